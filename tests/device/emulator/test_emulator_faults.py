"""What a kernel can do wrong is reported: the kind, and the line where there is one."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmtune.device.emulator.launch import SCHEDULES, EmulationFault

TEXT = (Path(__file__).parent / "kernels" / "unit.cu").read_text().splitlines()
OUT = np.zeros(1024, np.float32)


def line_of(kernel: str, words: str) -> int:
    """The line of unit.cu, in ``kernel``, that holds ``words``."""
    start = next(i for i, line in enumerate(TEXT) if line.startswith(f"KERNEL {kernel}("))
    return next(i for i in range(start, len(TEXT)) if words in TEXT[i]) + 1


def fault(
    unit: Callable[..., Any], name: str, arrays: list[np.ndarray] | None = None, **options: Any
) -> EmulationFault:
    with pytest.raises(EmulationFault) as caught:
        unit(name, [OUT] if arrays is None else arrays, **options)
    return caught.value


FAULTS = [
    ("global_write_overrun", "out_of_bounds", "writes 4 bytes at byte 4096 of buffer array0, which has 4096 bytes", 32),
    ("global_read_overrun", "out_of_bounds", "reads 4 bytes at byte -4 of buffer array0", 32),
    ("vector_straddles_end", "out_of_bounds", "writes 8 bytes at byte 4092 of buffer array0", 1),
    ("shared_overrun", "out_of_bounds", "writes 4 bytes at byte 4096 of the block's 4096 bytes of shared memory", 1),
    ("local_overrun", "out_of_bounds", "index 8 of an array", 32),
    ("misaligned_vector", "misaligned", "16 bytes at byte 4 of the block's", 32),
    ("misaligned_row", "misaligned", "which is not a multiple of 16", 32),
    ("aligned_divergence", "divergence", "ldmatrix_x4", 32),
    ("bad_source_bytes", "invalid", "17 source bytes of 16", 1),
]


@pytest.mark.parametrize(("name", "kind", "words", "threads"), FAULTS, ids=[f[0] for f in FAULTS])
def test_fault_has_its_kind_place_and_line(
    unit: Callable[..., Any], name: str, kind: str, words: str, threads: int
) -> None:
    found = fault(unit, name, threads=threads)
    assert found.kind == kind
    assert words in str(found)
    assert "block (0,0,0) thread" in str(found)
    assert re.search(r"line \d+", str(found))


def test_line_is_that_of_the_access(unit: Callable[..., Any]) -> None:
    found = fault(unit, "shared_overrun")
    assert f"line {line_of('shared_overrun', 'hw::sts')} " in str(found)


def test_plain_access_beyond_a_buffer_meets_the_guard(unit: Callable[..., Any]) -> None:
    found = fault(unit, "plain_overrun")
    assert found.kind == "out_of_bounds"
    assert "byte 20000000 of buffer array0" in str(found)


def test_plain_misaligned_access(unit: Callable[..., Any]) -> None:
    assert fault(unit, "misaligned_plain", threads=1).kind == "misaligned"


def test_plain_write_into_the_slack_behind_shared_memory_is_found(unit: Callable[..., Any]) -> None:
    found = fault(unit, "plain_shared_overrun", shared=4092)
    assert found.kind == "out_of_bounds"
    assert "past the end of shared memory, at byte 4092 of 4092" in str(found)


def test_writing_an_input_is_a_fault(unit: Callable[..., Any]) -> None:
    found = fault(unit, "input_written", read_only=True)
    assert found.kind == "out_of_bounds"
    assert "must not write" in str(found)


@pytest.mark.parametrize("threads", [1, 64])
def test_stack_overflow_is_a_fault(unit: Callable[..., Any], threads: int) -> None:
    found = fault(unit, "stack_overrun", threads=threads)
    assert found.kind == "out_of_bounds"
    assert re.search(r"thread \d+: the local memory \(stack\) of the thread ran out", str(found))


def test_division_by_zero_is_a_fault(unit: Callable[..., Any]) -> None:
    assert fault(unit, "division_by_zero", [np.zeros(32, np.int32)], scalars=[ctypes.c_int(0)]).kind == "crash"


def test_runaway_kernel_ends_when_its_budget_does(unit: Callable[..., Any]) -> None:
    found = fault(unit, "runaway", budget=10_000)
    assert found.kind == "budget"
    assert f"line {line_of('runaway', 'sync_warp')}" in str(found)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_deadlock_says_who_waits_where(unit: Callable[..., Any], schedule: Any) -> None:
    found = fault(unit, "deadlock", threads=64, schedule=schedule)
    assert found.kind == "deadlock"
    barrier, lane = line_of("deadlock", "sync_block"), line_of("deadlock", "threadIdx.x == 40") + 1
    assert f"31 threads (first 32) at the block barrier in line {barrier}" in str(found)
    assert f"1 thread (first 40) at __syncwarp in line {lane}" in str(found)
    assert "32 threads have ended" in str(found)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
def test_barriers_at_two_lines_are_not_one(unit: Callable[..., Any], schedule: Any) -> None:
    found = fault(unit, "barrier_divergence", threads=64, schedule=schedule)
    first = line_of("barrier_divergence", "sync_block")
    assert found.kind == "divergence"
    assert {int(n) for n in re.findall(r"line (\d+)", str(found))} == {first, first + 2}


def test_lanes_that_disagree_on_the_mask(unit: Callable[..., Any]) -> None:
    found = fault(unit, "mask_divergence", schedule=SCHEDULES[1])  # the half with the full mask comes first
    assert found.kind == "divergence"
    assert "lane 15 of warp 0 is at __syncwarp" in str(found)
    assert fault(unit, "mask_divergence", schedule=SCHEDULES[0]).kind == "deadlock"  # the other half has ended


def test_a_fault_leaves_the_emulator_usable(unit: Callable[..., Any]) -> None:
    for name in ("global_write_overrun", "plain_overrun", "deadlock", "aligned_divergence"):
        fault(unit, name, threads=64)
        (after,), _ = unit("early_exit", [OUT])
        assert after[:32].sum() == 31


# ------------------------------------------------------------------------------------------------------------- races

RACES = [
    ("race_write_read", "hw::lds", "hw::sts", 64),
    ("race_read_write", "2.f", "hw::lds", 64),
    ("race_write_write", "hw::sts", "hw::sts", 64),
    ("race_across_warps", "hw::lds", "hw::sts", 64),
    ("race_in_partial_mask", "hw::lds", "hw::sts", 32),
    ("race_copy_not_waited", "hw::lds", "cp_async<4>", 32),
    ("race_copy_behind_a_barrier", "hw::lds", "cp_async<4>", 32),
    ("race_copy_without_barrier", "hw::lds", "cp_async<4>", 32),
    ("race_copy_overwrites", "cp_async<4>", "hw::lds", 64),
    ("publish_without_acquire", "atomic_inc", "hw::ldg", 64),
    ("publish_without_barrier", "atomic_inc", "hw::stg", 64),
    ("publish_without_fence", "atomic_inc", "hw::stg", 64),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize(("name", "one", "other", "threads"), RACES, ids=[r[0] for r in RACES])
def test_race_names_both_lines_under_every_schedule(
    unit: Callable[..., Any], name: str, one: str, other: str, threads: int, schedule: Any
) -> None:
    arrays = [OUT, np.zeros(1, np.uint32), OUT] if name.startswith("publish") else [OUT]
    found = fault(unit, name, arrays, threads=threads, schedule=schedule)
    assert found.kind == "race"
    lines = {int(n) for n in re.findall(r"line (\d+)", str(found))}
    assert lines == {line_of(name, one), line_of(name, other)}
