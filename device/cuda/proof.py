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
        checks, relative, excess = [], 0.0, 0.0
        for count in counts:
            env = {**self._env, "m": count}
            unmet = kernel.recipe.unmet({**env, **{f"ptr_{n}": p for n, p in self._operands.pointers.items()}})
            if unmet is not None and count != m:
                checks.append(f"m={count}: not served ({unmet})")
                continue
            stats, where = self._check(kernel, env, count)
            relative, excess = max(relative, stats.relative), max(excess, stats.excess)
            checks.append(f"m={count}: {where} compared, {stats.wrong} wrong")
            if not stats.passed:
                excess = float("inf") if stats.mismatches or stats.damage else excess
                return self._verdict(False, relative, excess, checks, self._explain(stats, count))
        return self._verdict(True, relative, excess, checks)

    def recheck(self) -> str:
        """Compare the output as it stands (after timing) with the reference; what is wrong, or nothing."""
        m = self._problem.axes["m"]
        self._stats.reset()
        self._compare(m)
        self._operands.count_damage(m, self._stats)
        stats = self._stats.read()
        return "" if stats.passed else self._explain(stats, m)

    # -------------------------------------------------------------------------------------------------- internals

    def _verdict(
        self, passed: bool, relative: float, excess: float, checks: list[str], detail: str = ""
    ) -> Verification:
        return Verification(
            passed, relative, self._bound.relative, excess, tuple(checks), self._reference.coverage, detail
        )

    def _check(self, kernel: LoadedKernel, env: Mapping[str, Any], count: int) -> tuple[Stats, str]:
        stream = require_cupy().cuda.get_current_stream()
        prepared = kernel.prepare(env, self._operands.pointers)
        self._operands.poison_output()
        self._scratch.prepare(prepared.workspace_bytes, prepared.counter_bytes)
        self._stats.reset()
        prepared.launch(stream.ptr, self._scratch)
        rows = self._compare(count)
        self._operands.count_damage(count, self._stats)
        self._scratch.count_damage(self._stats)
        return self._stats.read(), f"{rows} of {count} rows"

    def _compare(self, count: int) -> int:
        """Compare the sampled rows below ``count``; how many there are."""
        reference, out = self._reference, self._operands.output
        rows = int(np.searchsorted(reference.host_rows, count))
        self._stats.compare(
            self._operands.pointers[out.name], out.dtype.numpy, out.ld, Axis.of(reference.rows[:rows]),
            Axis.of(reference.columns), reference.reference, reference.scale, self._bound, self._limits,
        )  # fmt: skip
        return rows

    def _explain(self, stats: Stats, count: int) -> str:
        """One sentence on what is wrong."""
        if not stats.wrong:
            return (
                f"With m={count}, {stats.damage} bytes outside the output were written, or counters were left non-zero."
            )
        reference, out = self._reference, self._operands.output
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
