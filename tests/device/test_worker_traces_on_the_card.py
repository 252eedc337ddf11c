"""What a dead worker leaves on the card: its processes and memory as NVML tells them, waited for and then told."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from clock import Clock

from gemmtune.device.cuda import nvml, sanity
from gemmtune.device.cuda.sanity import Traces


class Card:
    """NVML's view of a GPU whose processes and memory go away after a while."""

    def __init__(self, clock: Clock, *, pids: dict[int, float], used: Callable[[float], int | None]) -> None:
        self._clock, self._pids, self._used = clock, pids, used

    def processes(self) -> frozenset[int]:
        return frozenset(pid for pid, until in self._pids.items() if self._clock.now < until)

    def memory_used(self) -> int | None:
        return self._used(self._clock.now)


class Library:
    """libnvidia-ml with ``pids`` on the GPU; the first calls find the list grown since."""

    def __init__(self, pids: list[int], grows: int = 0, status: int = 0) -> None:
        self.pids, self.grows, self.status = pids, grows, status

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: bytes, device: Any) -> int:
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:
        memory._obj.used = 5 * GIB
        return self.status

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: Any, count: Any, found: Any) -> int:
        if self.status:
            return self.status
        if self.grows or len(found) < len(self.pids):
            self.grows -= self.grows > 0
            count._obj.value = len(self.pids)
            return 7
        for place, pid in zip(found, self.pids, strict=False):
            place.pid = pid
        count._obj.value = len(self.pids)
        return 0


GIB = 2**30


@pytest.mark.parametrize("count", [0, 1, 16, 17, 100])
@pytest.mark.parametrize("grows", [0, 2])
def test_all_processes_on_the_gpu_are_read(monkeypatch: pytest.MonkeyPatch, count: int, grows: int) -> None:
    monkeypatch.setattr(nvml, "_library", lambda: Library(list(range(10, 10 + count)), grows))
    monitor = nvml.Monitor("0000:3B:00.0")
    assert monitor.processes() == frozenset(range(10, 10 + count))
    assert monitor.memory_used() == 5 * GIB


@pytest.mark.parametrize("library", [None, Library([1], status=3)])
def test_where_nvml_says_nothing_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setattr(nvml, "_library", lambda: library)
    monitor = nvml.Monitor("0000:3B:00.0")
    assert monitor.processes() == frozenset()
    assert monitor.memory_used() is None


def test_the_structures_are_those_of_nvml_h() -> None:
    assert ctypes.sizeof(nvml._Process) == 24
    assert ctypes.sizeof(nvml._Memory) == 24


@pytest.mark.parametrize(
    ("pids", "used", "left"),
    [
        ({}, lambda now: GIB, ""),
        ({7: 1.0}, lambda now: GIB, ""),
        ({8: 99.0}, lambda now: GIB, ""),
        ({}, lambda now: None, ""),
        ({}, lambda now: GIB + 8 * 2**20 if now > 0 else GIB, ""),
        ({}, lambda now: 2 * GIB if 0 < now < 2 else GIB, ""),
        ({7: 99.0}, lambda now: GIB, "still lists the dead worker (process 7)"),
        ({}, lambda now: 2 * GIB if now > 0 else GIB, "1024 MiB more GPU memory"),
    ],
    ids=["gone", "listed for a while", "another's", "no NVML", "within the slack", "freed late", "listed", "leaked"],
)
def test_what_a_dead_worker_leaves_is_waited_for_and_then_told(
    pids: dict[int, float], used: Callable[[float], int | None], left: str
) -> None:
    clock = Clock()
    monitor: Any = Card(clock, pids=pids, used=used)
    traces = Traces(monitor, clock, clock.pause)
    traces.before()
    clock.now = 0.1
    said = traces.after(7)
    assert (left in said) if left else (said == "")
    assert clock.now <= 0.1 + sanity.GONE_SECONDS + 0.1
