"""A mistake in what the product itself renders does not pass: synchronisation is taken out of an mma kernel."""

from __future__ import annotations

import random
import re

import pytest

from gemmtune.codegen.kernel import KernelSource
from gemmtune.codegen.render import render
from gemmtune.device.emulator.emulate import Run, emulate
from gemmtune.device.emulator.launch import SCHEDULES
from gemmtune.space.families import family
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

PROBLEM = Gemm(200, 136, 264, dtype="bf16")
RUNS = [Run(PROBLEM.m, SCHEDULES[0], 1.0)]
WORK = 3_000_000


@pytest.fixture(scope="module")
def source() -> KernelSource:
    """A split-K kernel with a ring of stages."""
    space = Space(PROBLEM, gpu("h200"), [family("mma")])
    rng = random.Random(2)
    for _ in range(10_000):
        configuration = space[rng.randrange(len(space))]
        if configuration["splits"] == 4 and configuration["stages"] == 3 and configuration["store"] == "direct":
            return render(PROBLEM, configuration)
    raise AssertionError("no such configuration: the knobs of mma have changed")


def test_whole_kernel_passes(source: KernelSource) -> None:
    found = emulate(source.text, source.recipe, PROBLEM, runs=RUNS, work=WORK)
    assert found.verification.passed, found.verification.detail


@pytest.mark.parametrize(
    ("word", "instead"),
    [("hw::sync_block();", ";"), ("hw::fence_device();", ";"), ("hw::cp_async_wait<", "hw::cp_async_wait<1 + ")],
)
def test_taking_out_any_one_synchronisation_is_caught(source: KernelSource, word: str, instead: str) -> None:
    places = [m.start() for m in re.finditer(re.escape(word), source.text)]
    assert places
    for place in places:
        text = source.text[:place] + instead + source.text[place + len(word) :]
        found = emulate(text, source.recipe, PROBLEM, runs=RUNS, work=WORK)
        assert found.fault == "race", f"line {source.text[:place].count(chr(10)) + 1}: {word}"


def test_wrong_tile_order_is_caught(source: KernelSource) -> None:
    """The kernel's own arithmetic against the recipe's expressions."""
    text = re.sub(
        r"(static __device__ __forceinline__ Tile tile_of\(int block, int tiles_m\) \{)", r"\1 block ^= 1;", source.text
    )
    assert text != source.text
    found = emulate(text, source.recipe, PROBLEM, runs=[Run(PROBLEM.m, SCHEDULES[0], 1.0)], work=WORK // 2)
    assert not found.verification.passed
