"""Named barriers, mbarriers and clusters in small: who waits for whom, and what that orders."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gemmtune.device.emulator.build import build_kernel
from gemmtune.device.emulator.launch import SCHEDULES, Buffer, EmulationFault, KernelLibrary, Schedule, launch

TEXT = (Path(__file__).parent / "kernels" / "hopper_unit.cu").read_text()
NAMES = re.findall(r"^KERNEL (\w+)\(", TEXT, re.MULTILINE)
EVERY = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)


@pytest.fixture(scope="module")
def library() -> Path:
    return build_kernel(TEXT + "\n".join(f"EMU_EXPORT(call_{name}, {name})" for name in NAMES), NAMES[0])


@pytest.fixture
def out() -> Iterator[Buffer]:
    buffer = Buffer("out", 512)
    yield buffer
    buffer.free()


def run(
    library: Path,
    name: str,
    out: Buffer,
    schedule: Schedule,
    *numbers: int,
    threads: int = 128,
    grid: tuple[int, int, int] = (1, 1, 1),
    cluster: tuple[int, int, int] = (1, 1, 1),
) -> np.ndarray:
    kernel = KernelLibrary(library, f"call_{name}")
    try:
        launch(
            kernel, grid=grid, block=(threads, 1, 1), cluster=cluster, buffers=[out], dynamic_shared=1024,
            arguments=[ctypes.c_void_p(out.address), *(ctypes.c_int32(n) for n in numbers)], schedule=schedule,
            budget=1_000_000,
        )  # fmt: skip
        return out.view(np.dtype(np.float32)).copy()
    finally:
        kernel.close()


@EVERY
def test_who_arrives_goes_on_and_who_waits_sees_what_was_written(
    library: Path, out: Buffer, schedule: Schedule
) -> None:
    found = run(library, "arrive_and_wait", out, schedule)
    np.testing.assert_array_equal(found[:32], 3 * np.arange(32) + 192)


@EVERY
def test_arriving_alone_orders_nothing(library: Path, out: Buffer, schedule: Schedule) -> None:
    with pytest.raises(EmulationFault) as caught:
        run(library, "arrives_only", out, schedule, threads=64)
    assert caught.value.kind == "race"


@EVERY
def test_order_goes_through_a_chain_of_barriers(library: Path, out: Buffer, schedule: Schedule) -> None:
    assert run(library, "chain", out, schedule, 0)[0] == 7


@EVERY
def test_a_broken_chain_is_a_race_under_every_schedule(library: Path, out: Buffer, schedule: Schedule) -> None:
    with pytest.raises(EmulationFault) as caught:
        run(library, "chain", out, schedule, 1)
    assert caught.value.kind == "race"


@EVERY
def test_polling_lets_others_go_on(library: Path, out: Buffer, schedule: Schedule) -> None:
    assert run(library, "poll", out, schedule)[0] == 1


@EVERY
def test_phases_follow_one_another(library: Path, out: Buffer, schedule: Schedule) -> None:
    np.testing.assert_array_equal(run(library, "phases", out, schedule, threads=32)[:32], 5)


@EVERY
def test_ranks_count_along_x_first(library: Path, out: Buffer, schedule: Schedule) -> None:
    found = run(library, "ranks", out, schedule, grid=(4, 2, 1), cluster=(2, 2, 1))
    np.testing.assert_array_equal(found[:8], [0, 1, 0, 1, 2, 3, 2, 3])


@EVERY
def test_blocks_of_a_cluster_read_each_other_s_shared_memory(library: Path, out: Buffer, schedule: Schedule) -> None:
    found = run(library, "read_peer", out, schedule, -1, 0, 1, 1, threads=32, grid=(2, 1, 1), cluster=(2, 1, 1))
    np.testing.assert_array_equal(found[:64], [11] * 32 + [1] * 32)
    found = run(library, "read_peer", out, schedule, 1, 0, 1, 1, threads=32, grid=(2, 1, 1), cluster=(2, 1, 1))
    np.testing.assert_array_equal(found[:64], [11] * 64)  # its own, too


@pytest.mark.parametrize(
    ("numbers", "kind", "words"),
    [
        ((-1, 0, 0, 1), "race", r"(wrote|read) in line \d+, with no barrier between"),
        (
            (-1, 0, 2, 1),
            "race",
            r"reads byte \d+ of shared memory of block \d of the cluster, which thread \d+ of block",
        ),
        ((-1, 0, 3, 1), "race", "with no barrier between"),
        ((-1, 0, 1, 0), "protocol", r"lds_cluster in line \d+ reads from block \d of the cluster, which has ended"),
        ((-1, 0, 1, 2), "race", r"writes byte \d+ of shared memory, which thread \d+ of block \d of the cluster read"),
        ((2, 0, 1, 1), "invalid", r"lds_cluster in line \d+ names block 2 of a cluster of 2"),
        ((-1, 1024, 1, 1), "out_of_bounds", r"line \d+ reads 16 bytes at byte 1024"),
        ((-1, 8, 1, 1), "misaligned", "not a multiple of 16"),
    ],
)
def test_a_mistake_in_reading_another_block_is_found(
    library: Path, out: Buffer, numbers: tuple[int, ...], kind: str, words: str
) -> None:
    faults = []
    for schedule in SCHEDULES:
        try:
            run(library, "read_peer", out, schedule, *numbers, threads=32, grid=(2, 1, 1), cluster=(2, 1, 1))
        except EmulationFault as fault:
            faults.append(fault)
    assert faults
    assert {fault.kind for fault in faults} <= {kind, "protocol"}
    assert any(fault.kind == kind and re.search(words, str(fault)) for fault in faults), [str(f) for f in faults]


def test_a_cluster_that_does_not_meet_is_a_deadlock(library: Path, out: Buffer) -> None:
    with pytest.raises(EmulationFault, match=r"the (cluster|block) barrier") as caught:
        run(library, "cluster_without_one", out, SCHEDULES[0], grid=(2, 1, 1), cluster=(2, 1, 1))
    assert caught.value.kind == "deadlock"


def test_too_large_a_cluster_is_refused(library: Path, out: Buffer) -> None:
    with pytest.raises(EmulationFault, match="cannot be launched"):
        run(library, "ranks", out, SCHEDULES[0], grid=(9, 1, 1), cluster=(9, 1, 1))
