"""Verification on the GPU: several M, fresh inputs, poison and guards everywhere, the law of gemmtune.device.verify."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from gemmtune.device import verify
from gemmtune.device.base import Verification
from gemmtune.device.cuda.helpers import Axis, Stats, StatsBuffer
from gemmtune.device.cuda.operands import GuardedScratch, Operands
from gemmtune.device.cuda.reference import GemmReference
from gemmtune.device.launch import LoadedKernel
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.gpu import Gpu


def row_counts(m: int, tile: int, seed: int, fixed: bool) -> list[int]:
    """The M to verify at, the full one first: then two tiles, one ragged, and one row, as far as they are smaller.

    ``fixed``: M is compiled in, so that there is no other.
    """
    if fixed:
        return [m]
    rng = random.Random(seed)  # noqa: S311 - no secret
    ragged = tile + rng.randrange(1, max(2, tile))
    return list(dict.fromkeys(c for c in (m, 2 * tile, ragged, 1) if 1 <= c <= m))


class Prover:
    """Verifies kernels of one problem; inputs are redrawn for every seed, buffers are kept.

    Args:
        operands: the guarded buffers.
        gpu: how much float64 arithmetic is affordable.
    """

    def __init__(self, operands: Operands, gpu: Gpu) -> None:
        self._operands = operands
        self._problem = operands.problem
        self._bound = self._problem.error_bound()
        self._limits = verify.Limits.of(operands.output.dtype)
        self._reference = GemmReference(operands, gpu)
        self._special = GemmReference(operands, gpu)
        self._scratch = GuardedScratch()
        self._stats = StatsBuffer()
        self._env = {**self._problem.environment(), **operands.scalars}

    def prove(self, kernel: LoadedKernel, seed: int) -> Verification:
        """Run the kernel at several M on inputs drawn from ``seed``, and compare.

        Raises:
            LaunchError: the kernel cannot be launched at the full size.
            CUDARuntimeError: it died while it ran; the context may be lost.
        """
        m = self._problem.axes["m"]
        counts = row_counts(m, kernel.recipe.tile.rows, seed, "m" in kernel.recipe.constants)
        self._operands.refresh(seed)
        self._reference.compute(max((c for c in counts if c < m), default=0))
        checks, served, relative, excess = [], [], 0.0, 0.0
        for count in counts:
            env = {**self._env, "m": count}
            unmet = kernel.recipe.unmet({**env, **{f"ptr_{n}": p for n, p in self._operands.pointers.items()}})
            if unmet is not None and count != m:
                checks.append(f"m={count}: not served ({unmet})")
                continue
            stats = self._check(kernel, env, count, self._reference)
            served.append(count)
            relative, excess = max(relative, stats.relative), max(excess, stats.excess)
            checks.append(f"m={count}: {self._reference.rows_below(count)} rows compared, {stats.wrong} elements wrong")
            if not stats.passed:
                detail = self._explain(stats, count, self._reference)
                excess = float("inf") if stats.mismatches or stats.damage else excess
                return self._verdict(False, relative, excess, checks, detail)
        wrong = self._check_special(kernel, served[min(1, len(served) - 1)], checks)
        return self._verdict(not wrong, relative, float("inf") if wrong else excess, checks, wrong)

    def recheck(self) -> str:
        """Compare the output as it stands (after timing) with the reference; what is wrong, or nothing."""
        m = self._problem.axes["m"]
        self._stats.reset()
        self._compare(m, self._reference)
        self._operands.count_damage(m, self._stats)
        stats = self._stats.read()
        return "" if stats.passed else self._explain(stats, m, self._reference)

    # -------------------------------------------------------------------------------------------------- internals

    def _verdict(
        self, passed: bool, relative: float, excess: float, checks: list[str], detail: str = ""
    ) -> Verification:
        return Verification(
            passed, relative, self._bound.relative, excess, tuple(checks), self._reference.coverage, detail
        )

    def _check_special(self, kernel: LoadedKernel, count: int, checks: list[str]) -> str:
        """One run whose inputs hold NaN and infinities: what is wrong, or nothing. Leaves the inputs as they were."""
        self._special.compute_special(count)
        stats = self._check(kernel, {**self._env, "m": count}, count, self._special)
        self._operands.refresh(self._operands.seed or 0)
        checks.append(f"m={count}: NaN and infinities planted, {stats.wrong} elements wrong")
        if stats.passed:
            return ""
        return f"With NaN and infinities among the inputs: {self._explain(stats, count, self._special)}"

    def _check(self, kernel: LoadedKernel, env: Mapping[str, Any], count: int, reference: GemmReference) -> Stats:
        stream = require_cupy().cuda.get_current_stream()
        prepared = kernel.prepare(env, self._operands.pointers)
        self._operands.poison_output()
        self._scratch.prepare(prepared.workspace_bytes, prepared.counter_bytes)
        self._stats.reset()
        prepared.launch(stream.ptr, self._scratch)
        self._compare(count, reference)
        self._operands.count_damage(count, self._stats)
        self._scratch.count_damage(self._stats)
        return self._stats.read()

    def _compare(self, count: int, reference: GemmReference) -> None:
        """Compare the sampled rows below ``count``."""
        out = self._operands.output
        self._stats.compare(
            self._operands.pointers[out.name], out.dtype.numpy, out.ld,
            Axis.of(reference.rows[: reference.rows_below(count)]), Axis.of(reference.columns),
            reference.reference, reference.scale, self._bound, self._limits,
        )  # fmt: skip

    def _explain(self, stats: Stats, count: int, reference: GemmReference) -> str:
        """One sentence on what is wrong."""
        if not stats.wrong:
            return (
                f"With m={count}, {stats.damage} bytes outside the output were written, or counters were left non-zero."
            )
        out = self._operands.output
        r, c = divmod(stats.first, len(reference.host_columns))
        row, column = int(reference.host_rows[r]), int(reference.host_columns[c])
        value = np.empty(1, out.dtype.np)
        runtime = require_cupy().cuda.runtime
        address = self._operands.pointers[out.name] + (row * out.ld + column) * out.dtype.bytes
        runtime.memcpy(value.ctypes.data, address, out.dtype.bytes, runtime.memcpyDeviceToHost)
        right = float(reference.reference[r, c])
        sentence = (
            f"With m={count}, {stats.wrong} compared elements are wrong, the first at row {row}, column {column}: "
            f"{float(value[0]):.9g} where {right:.9g} is right"
        )
        if stats.unwritten:
            sentence += f"; {stats.unwritten} were never written"
        if stats.damage:
            sentence += f"; {stats.damage} bytes outside the output were written"
        return sentence + "."
