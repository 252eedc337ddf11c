"""compute-sanitizer on a real GPU: a right kernel is clean, a planted fault is found by the tool that looks for it."""

from __future__ import annotations

import pytest

from gemmtune.device.cuda.sanitizer import find_sanitizer, sanitize
from gemmtune.space.errors import ToolchainError
from gemmtune.space.gemm import Gemm

pytestmark = pytest.mark.gpu
PROBLEM = Gemm(48, 40, 32, "fp32")


@pytest.fixture(scope="module", autouse=True)
def present() -> None:
    try:
        find_sanitizer()
    except ToolchainError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_a_right_kernel_is_clean(planted, tool):
    verdict = sanitize(planted(PROBLEM), tool)
    assert verdict.clean, verdict.text


def test_a_write_just_past_the_output_is_found(planted):
    verdict = sanitize(planted(PROBLEM, after="if (last) d[(i64)(m - 1) * ldd + N] = 1.f;"), "memcheck")
    assert not verdict.clean, verdict.text
    assert "__global__ write of size 4" in verdict.findings[0]


def test_a_race_in_shared_memory_is_found(planted):
    race = "__shared__ float cell; if (threadIdx.x % 32 == 0) cell = (float)threadIdx.x; if (cell < 0.f) return;"
    verdict = sanitize(planted(PROBLEM, before=race), "racecheck")
    assert not verdict.clean, verdict.text
