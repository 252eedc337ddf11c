"""The guard zones around a problem's buffers, on host memory that stands in for a GPU's."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from gemmtune.device.cuda import operands
from gemmtune.space.gemm import Gemm


class Stats:
    """Counts what differs, as the kernel behind StatsBuffer does."""

    def __init__(self) -> None:
        self.damage = 0

    def count_changed(self, address: int, nbytes: int, value: int) -> None:
        self.damage += nbytes - ctypes.string_at(address, nbytes).count(value)

    def count_changed_rows(self, address: int, rows: int, pitch: int, low: int, high: int, value: int) -> None:
        for row in range(rows):
            self.count_changed(address + row * pitch + low, high - low, value)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def alloc(nbytes: int) -> Any:
        memory = ctypes.create_string_buffer(nbytes)
        return SimpleNamespace(ptr=ctypes.addressof(memory), memory=memory)

    runtime = SimpleNamespace(memsetAsync=lambda address, value, count, stream: ctypes.memset(address, value, count))
    cuda = SimpleNamespace(alloc=alloc, runtime=runtime, get_current_stream=lambda: SimpleNamespace(ptr=0))
    monkeypatch.setattr(operands, "require_cupy", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(operands, "fill_normal", lambda *_: None)
    monkeypatch.setattr(operands, "GUARD", 4096)


@pytest.fixture
def buffers(memory: None) -> Any:
    made = operands.Operands(Gemm(5, 7, 3, "fp16", ldd=9))
    made.refresh(0)
    return made


def damage(buffers: Any) -> int:
    stats: Any = Stats()
    buffers.count_damage(5, stats)
    return stats.damage


@pytest.mark.parametrize("name", ["a", "b", "d"])
@pytest.mark.parametrize("before", [True, False])
def test_a_write_into_a_guard_zone_counts_once_and_not_against_the_next_kernel(
    buffers: Any, name: str, before: bool
) -> None:
    assert damage(buffers) == 0
    tensor = next(t for t in buffers.tensors if t.name == name)
    place = -4096 if before else tensor.elements * 2
    ctypes.memset(buffers.pointers[name] + place, 0, 3)
    assert damage(buffers) == 3
    buffers.refresh(1)
    assert damage(buffers) == 0


def test_padding_between_the_output_rows_is_watched(buffers: Any) -> None:
    ctypes.memset(buffers.pointers["d"] + (1 * 9 + 7) * 2, 0, 4)
    assert damage(buffers) == 4
    buffers.poison_output()
    assert damage(buffers) == 0


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("place", [-4096, 120, 120 + 8 + 4095])
def test_scratch_memory_is_watched_and_fresh_for_every_run(memory: None, which: int, place: int) -> None:
    scratch, stats = operands.GuardedScratch(), Stats()
    scratch.prepare(120, 120)
    ctypes.memset(scratch.reserve(120, 120)[which] + place, 1, 1)
    scratch.count_damage(stats)  # type: ignore[arg-type]
    assert stats.damage == 1
    scratch.prepare(120, 120)
    fresh = Stats()
    scratch.count_damage(fresh)  # type: ignore[arg-type]
    assert fresh.damage == 0


def test_counters_left_behind_are_damage(memory: None) -> None:
    scratch, stats = operands.GuardedScratch(), Stats()
    scratch.prepare(0, 64)
    ctypes.memset(scratch.reserve(0, 64)[1] + 8, 1, 4)
    scratch.count_damage(stats)  # type: ignore[arg-type]
    assert stats.damage == 4
