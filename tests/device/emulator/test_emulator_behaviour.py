"""Kernels that are right give what CUDA gives, under every schedule."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmtune.device.emulator.launch import SCHEDULES, Buffer

OUT = np.zeros(1024, np.float32)
LANES = np.arange(32)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)


@every_schedule
def test_shuffles(unit: Callable[..., Any], schedule: Any) -> None:
    (out,), _ = unit("shuffles", [OUT], schedule=schedule)
    assert (out[:32] == LANES.sum()).all()
    assert (out[32:64] == np.where(LANES + 3 < 32, LANES + 3, LANES)).all()
    assert (out[64:96] == np.where(LANES % 16 >= 2, LANES - 2, LANES)).all()
    assert (out[96:128] == LANES // 8 * 8 + 5).all()


@every_schedule
def test_lanes_may_part_into_masks(unit: Callable[..., Any], schedule: Any) -> None:
    (out,), _ = unit("split_masks", [OUT], schedule=schedule)
    assert (out[:32] == np.where(LANES % 2, LANES ^ 2, LANES ^ 4)).all()


@every_schedule
def test_static_shared_memory(unit: Callable[..., Any], schedule: Any) -> None:
    (out,), _ = unit("static_shared", [OUT], threads=64, schedule=schedule)
    assert (out[:64] == 63 - np.arange(64)).all()


@every_schedule
def test_warp_barrier_orders_its_warp(unit: Callable[..., Any], schedule: Any) -> None:
    (out,), _ = unit("warp_exchange", [OUT], threads=64, schedule=schedule)
    assert (out[:64] == (np.arange(64) ^ 1) + 3).all()


@every_schedule
def test_neighbouring_bytes_and_halves_are_no_race(unit: Callable[..., Any], schedule: Any) -> None:
    (out,), _ = unit("neighbours", [OUT], threads=32, schedule=schedule)
    assert (out[:32] == 2 * (LANES ^ 1)).all()


@every_schedule
def test_ended_threads_do_not_hold_up_the_barrier(unit: Callable[..., Any], schedule: Any) -> None:
    (out,), _ = unit("early_exit", [OUT], schedule=schedule)
    assert (out[:32] == (LANES != 5)).all()


@every_schedule
def test_last_block_sums_what_all_have_published(unit: Callable[..., Any], schedule: Any) -> None:
    arrays = [np.zeros(5 * 32, np.float32), np.zeros(1, np.uint32), OUT]
    (_, counter, out), counters = unit("split_k", arrays, blocks=5, schedule=schedule)
    assert (out[:32] == 5 * LANES + 10).all()
    assert counter[0] == 0
    assert counters.blocks == 5


def test_copy_that_a_block_left_in_flight_does_not_touch_the_next(unit: Callable[..., Any]) -> None:
    unit("copy_left_in_flight", [OUT], blocks=2)
    unit("warp_exchange", [OUT])


def test_one_cumulative_fence_is_enough(unit: Callable[..., Any]) -> None:
    unit("publish_with_one_fence", [OUT, np.zeros(1, np.uint32), OUT], threads=64)


def test_shared_memory_starts_as_nan(unit: Callable[..., Any]) -> None:
    (out,), _ = unit("uninitialised_shared", [OUT])
    assert np.isnan(out[:32]).all()


def test_bank_conflicts_and_sectors_are_counted_by_line(unit: Callable[..., Any]) -> None:
    _, counters = unit("conflicts", [OUT], profile=True)
    found = {(s.line, s.access): (s.requests, s.transactions, s.ideal) for s in counters.sites}
    assert found == {
        (61, "shared write"): (1, 1, 1),
        (63, "shared read"): (1, 2, 1),
        (64, "shared read"): (1, 32, 1),
        (65, "shared read"): (1, 1, 1),
        (66, "global write"): (1, 32, 4),
    }


def test_counters_count_switches_and_collectives(unit: Callable[..., Any]) -> None:
    _, counters = unit("many_warp_barriers", scalars=[ctypes.c_int(100)])
    assert counters.collectives == 100
    assert counters.operations == 3200
    assert counters.switches >= 3100


def test_fibers_without_assembly() -> None:
    probe = Path(__file__).with_name("fallback_probe.py")
    done = subprocess.run([sys.executable, probe], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


class TestBuffer:
    @pytest.mark.parametrize("at_end", [True, False])
    def test_is_poison_until_written(self, at_end: bool) -> None:
        buffer = Buffer("x", 10_001, at_end=at_end)
        assert (buffer.view(np.dtype(np.uint8)) == 0xFF).all()
        assert buffer.first_altered() is None
        buffer.view(np.dtype(np.uint8))[7000] = 0
        assert buffer.first_altered() == 7000
        buffer.free()
        buffer.free()

    def test_larger_than_memory_costs_only_what_is_written(self) -> None:
        buffer = Buffer("x", 1 << 36)
        view = buffer.view(np.dtype(np.float32))
        view[-1] = 1.0
        assert np.isnan(view[1 << 33])
        buffer.free()

    def test_alignment(self) -> None:
        for n in (1, 15, 16, 4097):
            at_end, at_begin = Buffer("x", n), Buffer("x", n, at_end=False)
            assert at_end.address % 16 == 0
            assert at_begin.address % 4096 == 0
            at_end.free()
            at_begin.free()
