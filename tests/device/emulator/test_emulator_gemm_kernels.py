"""Two complete GEMM kernels: right over ragged sizes under every schedule, and each planted mistake caught."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gemmtune.device.emulator.build import build_kernel
from gemmtune.device.emulator.emulate import Emulation, Run, emulate, plan_runs
from gemmtune.device.emulator.launch import SCHEDULES, Buffer, KernelLibrary, Schedule, launch
from gemmtune.space.families.gemm_recipe import arguments
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import LaunchRecipe, Tile

KERNELS = Path(__file__).parent / "kernels"


@dataclass(frozen=True)
class Kernel:
    """One of the test kernels."""

    name: str
    threads: int
    bm: int
    bn: int
    shared: int
    dtype: str
    step: int  # pitches are multiples of this many elements

    def text(self, n: int, k: int, bug: int = 0) -> str:
        return f"constexpr int N = {n}, K = {k}, BUG = {bug};\n" + (KERNELS / f"{self.name}.cu").read_text()

    def problem(self, m: int, n: int, k: int) -> Gemm:
        lda, ldb = -(-k // self.step) * self.step, -(-n // self.step) * self.step
        return Gemm(m, n, k, dtype=self.dtype, out_dtype="fp32", layout="nn", lda=lda, ldb=ldb)

    def recipe(self, problem: Gemm, shared: int | None = None) -> LaunchRecipe:
        grid = (f"ceil_div(n, {self.bn})", f"ceil_div(m, {self.bm})", "1")
        tile = Tile(self.bm, self.bn, f"by * {self.bm}", f"bx * {self.bn}")
        constants = {"n": problem.n, "k": problem.k}
        bytes_ = self.shared if shared is None else shared
        return LaunchRecipe(
            self.name, (self.threads, 1, 1), grid, arguments(problem), tile, dynamic_shared=bytes_, constants=constants
        )


SIMT = Kernel("simt", 256, 64, 64, 2 * 16 * (68 + 68) * 4, "fp32", 1)
MMA = Kernel("mma", 128, 128, 64, 3 * (128 * 40 + 32 * 72) * 2, "bf16", 8)
NUMPY: dict[str, Any] = {"fp32": np.float32, "bf16": ml_dtypes.bfloat16}

SIZES = [
    (64, 64, 16),
    (128, 128, 128),
    (1, 1, 1),
    (7, 5, 3),
    (65, 63, 17),
    (130, 70, 100),
    (257, 1, 65),
    (129, 200, 77),
]


def multiply(kernel: Kernel, size: tuple[int, int, int], schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """The whole product as the emulator and as NumPy computes it; every block, padded pitches."""
    m, n, k = size
    rng = np.random.default_rng([m, n, k])
    dtype = np.dtype(NUMPY[kernel.dtype])
    a, b = (rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in ((m, k), (k, n)))
    lda, ldb, ldd = -(-k // 8) * 8 + 8, -(-n // 8) * 8 + 8, n + 3
    buffers = [
        Buffer("a", ((m - 1) * lda + k) * dtype.itemsize, at_end=schedule.at_end, writable=False),
        Buffer("b", ((k - 1) * ldb + n) * dtype.itemsize, at_end=schedule.at_end, writable=False),
        Buffer("d", ((m - 1) * ldd + n) * 4, at_end=schedule.at_end),
    ]
    library = KernelLibrary(build_kernel(kernel.text(n, k), kernel.name))
    try:
        for buffer, array, ld in zip(buffers, (a, b), (lda, ldb), strict=False):
            flat = buffer.view(dtype)
            for row in range(array.shape[0]):
                flat[row * ld : row * ld + array.shape[1]] = array[row]
        pointers = [ctypes.c_void_p(buffer.address) for buffer in buffers]
        sizes = [ctypes.c_int(m), *(ctypes.c_longlong(ld) for ld in (lda, ldb, ldd))]
        launch(
            library, grid=(-(-n // kernel.bn), -(-m // kernel.bm), 1), block=(kernel.threads, 1, 1), buffers=buffers,
            arguments=[*pointers, *sizes], dynamic_shared=kernel.shared, schedule=schedule,
        )  # fmt: skip
        flat = buffers[2].view(np.dtype(np.float32))
        out = np.stack([flat[row * ldd : row * ldd + n] for row in range(m)])
        gaps = [flat[row * ldd + n : (row + 1) * ldd] for row in range(m - 1)]
        assert all((gap.view(np.uint8) == 0xFF).all() for gap in gaps), "padding was written"
    finally:
        for buffer in buffers:
            buffer.free()
        library.close()
    return out.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("size", SIZES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("kernel", [SIMT, MMA], ids=lambda k: k.name)
def test_product_equals_numpy_under_every_schedule(kernel: Kernel, size: tuple[int, int, int]) -> None:
    for schedule in SCHEDULES:
        out, reference = multiply(kernel, size, schedule)
        assert np.abs(out - reference).max() <= 1e-5 * np.sqrt(size[2])


@pytest.mark.parametrize("kernel", [SIMT, MMA], ids=lambda k: k.name)
def test_emulate_finds_nothing_in_a_right_kernel(kernel: Kernel) -> None:
    problem = kernel.problem(130, 70, 100)
    found = emulate(kernel.text(70, 100), kernel.recipe(problem), problem)
    assert found.verification.passed, found.verification.detail
    assert found.fault == ""
    assert 0 < found.verification.excess <= 1
    assert found.verification.coverage == 1.0
    words = found.verification.checks
    assert [w.split(" ")[0] for w in words] == ["m=130", "m=130", "m=130", f"m={2 * kernel.bm}", "m=1"]
    assert found.counters["bank_conflict_factor"] >= 1


# ------------------------------------------------------------------------------------------------------- planted bugs

BUGS = [
    (SIMT, 1, "missing barrier", {"race"}),
    (SIMT, 2, "padding off by one", {"race", "wrong"}),
    (SIMT, 3, "writes rows past the end", {"out_of_bounds", "stray_write"}),
    (SIMT, 4, "reads rows past the end", {"out_of_bounds"}),
    (SIMT, 5, "no guard of the K tail", {"out_of_bounds", "wrong"}),
    (SIMT, 6, "drops the K tail", {"wrong"}),
    (SIMT, 7, "one wrong corner", {"wrong"}),
    (SIMT, 8, "wrong column in the epilogue", {"wrong", "stray_write"}),
    (MMA, 1, "missing barrier", {"race"}),
    (MMA, 3, "wait_group one too lax", {"race"}),
    (MMA, 4, "stage overwritten early", {"race"}),
]


def plant(
    kernel: Kernel, bug: int, runs: list[Run] | None = None, size: tuple[int, int, int] = (130, 70, 420)
) -> Emulation:
    m, n, k = size
    problem = kernel.problem(m, n, k)
    return emulate(kernel.text(n, k, bug), kernel.recipe(problem), problem, runs=runs)


@pytest.mark.parametrize(("kernel", "bug", "what", "kinds"), BUGS, ids=[f"{b[0].name}: {b[2]}" for b in BUGS])
def test_planted_bug_is_caught(kernel: Kernel, bug: int, what: str, kinds: set[str]) -> None:
    found = plant(kernel, bug)
    assert not found.verification.passed
    assert found.fault in kinds, found.verification.detail


def test_race_report_names_the_lines_of_the_missing_barrier() -> None:
    text = SIMT.text(70, 420, 1).splitlines()
    detail = plant(SIMT, 1).verification.detail.partition("thread")[2]
    one, other = (text[int(n) - 1] for n in re.findall(r"line (\d+)", detail))
    assert sorted(word for word in ("hw::lds", "hw::sts") for line in (one, other) if word in line) == [
        "hw::lds",
        "hw::sts",
    ]


SCHEDULE_BUGS = [
    (SIMT, 1, "missing barrier", 2),
    (MMA, 1, "missing barrier", 3),
    (MMA, 3, "wait_group one too lax", 2),
    (MMA, 4, "stage overwritten early", 3),
]


@pytest.mark.parametrize(
    ("kernel", "bug", "what", "least"), SCHEDULE_BUGS, ids=[f"{b[0].name}: {b[2]}" for b in SCHEDULE_BUGS]
)
def test_schedules_expose_bugs_without_the_race_detector(kernel: Kernel, bug: int, what: str, least: int) -> None:
    """Late copies, poison and greedy order turn synchronisation mistakes into wrong numbers by themselves."""
    caught = [plant(kernel, bug, [Run(130, s, 1.0, race_checks=False)]).fault == "wrong" for s in SCHEDULES]
    assert sum(caught) >= least


def test_shared_memory_asked_too_small_is_caught() -> None:
    problem = MMA.problem(130, 70, 100)
    found = emulate(MMA.text(70, 100), MMA.recipe(problem, MMA.shared - 64), problem)
    assert found.fault == "out_of_bounds"
    assert "shared memory" in found.verification.detail


def test_recipe_whose_tile_origins_disagree_with_the_kernel_is_caught() -> None:
    problem = SIMT.problem(130, 130, 20)
    recipe = SIMT.recipe(problem)
    swapped = LaunchRecipe(
        recipe.entry, recipe.block, recipe.grid, recipe.arguments, Tile(64, 64, "bx * 64", "by * 64"),
        dynamic_shared=recipe.dynamic_shared, constants=recipe.constants,
    )  # fmt: skip
    runs = [Run(130, SCHEDULES[0], 3 * 64 * 64 * 20 / 120e6)]
    assert emulate(SIMT.text(130, 20), swapped, problem, runs=runs).fault in ("wrong", "stray_write")


def test_large_problem_costs_only_its_tiles() -> None:
    problem = MMA.problem(8192, 8192, 64)
    found = emulate(MMA.text(8192, 64), MMA.recipe(problem), problem, work=8 * 128 * 64 * 64)
    assert found.verification.passed, found.verification.detail
    assert 0 < found.verification.coverage < 0.01


def test_grid_too_large_to_look_at_is_cut_down_as_ragged_as_it_was() -> None:
    problem = SIMT.problem(2**24 + 5, 8192, 8)
    runs = plan_runs(problem, SIMT.recipe(problem), 0)
    assert {r.size % 64 for r in runs[:3]} == {5}
    assert runs[0].size < problem.m
    found = emulate(SIMT.text(8192, 8), SIMT.recipe(problem), problem, work=4 * 64 * 64 * 8, runs=runs[:1])
    assert found.verification.passed, found.verification.detail


def test_offsets_beyond_32_bits_are_reached() -> None:
    """Row pitch and rows such that elements lie more than 2**32 bytes into a buffer that is never materialised."""
    problem = Gemm(4096, 64, 16, dtype="fp32", layout="nn", lda=2**20, ldd=2**20)
    runs = [Run(4096, SCHEDULES[0], 1.0)]
    text = SIMT.text(64, 16)
    assert emulate(text, SIMT.recipe(problem), problem, work=64 * 64 * 16 * 4, runs=runs).verification.passed
    broken = text.replace("(i64)row * ldd", "row * (int)ldd")
    found = emulate(broken, SIMT.recipe(problem), problem, work=64 * 64 * 16 * 4, runs=runs)
    assert found.fault == "out_of_bounds"
