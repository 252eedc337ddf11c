"""Proving one kernel right in this process: several sizes, several schedules, every number compared.

:func:`emulate` takes any source over the intrinsics layer with its launch recipe and problem; the engine calls it in a
worker process, tests call it directly.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemmtune.device.base import Verification
from gemmtune.device.emulator import tensor_map
from gemmtune.device.emulator.build import build_kernel
from gemmtune.device.emulator.launch import EmulationFault, KernelLibrary, LaunchCounters, launch
from gemmtune.device.emulator.operands import Operands, axis_map, output_of, pitches
from gemmtune.device.emulator.plan import Run as Run
from gemmtune.device.emulator.plan import plan_runs as plan_runs
from gemmtune.device.emulator.plan import size_of
from gemmtune.device.emulator.tiles import ONE_PIECE, all_tiles, choose_tiles, spans
from gemmtune.device.verify import POISON, Comparison, Limits, compare
from gemmtune.space.errors import LaunchError
from gemmtune.space.expression import expression
from gemmtune.space.problem import Array, Problem
from gemmtune.space.recipe import LaunchRecipe

WORK = 120_000_000
"""Multiply-adds of one emulation, over all its runs (about a second)."""
_C_TYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
}


@dataclass(frozen=True)
class Emulation:
    """What became of a kernel.

    ``fault`` is the kind of what went wrong while it ran (:class:`EmulationFault`) or was found after it: ``wrong``
    (numbers), ``stray_write`` (outside the tiles), ``counters`` (not zero at the end); empty where all is well.
    ``counters`` are those that :func:`gemmtune.space.estimate.estimate` takes, and more, of one block.
    """

    verification: Verification
    fault: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)


def emulate(
    text: str,
    recipe: LaunchRecipe,
    problem: Problem,
    *,
    seed: int = 0,
    work: int = WORK,
    runs: list[Run] | None = None,
    capability: int = 90,
) -> Emulation:
    """Build ``text``, run chosen tiles of it at several sizes and schedules, and compare all they wrote.

    Args:
        text: CUDA C++ over ``hw::``; its entry is ``recipe.entry``.
        recipe: how to launch it.
        problem: what it computes.
        seed: chooses tiles and numbers.
        work: multiply-adds to spend; each run takes at least a tile or two.
        runs: by default :func:`plan_runs`.
        capability: the GPU's compute capability, e.g. 90.

    Raises:
        ToolchainError: there is no usable C++ compiler.
        CompileError: it refuses the source.
    """
    library = KernelLibrary(build_kernel(text, recipe.entry, capability=capability))
    checks: list[str] = []
    worst_error = worst_excess = covered = 0.0
    counters: dict[str, float] = {}
    bound = problem.error_bound()
    detail, kind = "", ""
    planned = runs or plan_runs(problem, recipe, seed)
    try:
        for run in planned:
            sized = problem
            if run.size != size_of(problem):
                sized = problem.with_axes(**{axis_map(problem).row_axis: run.size})
            attempt = _Attempt(library, recipe, sized, problem, run, seed + len(checks), int(work * run.share))
            unmet = attempt.unmet()
            if unmet and run.size != size_of(problem):
                continue  # this kernel was never meant for that size
            try:
                if unmet:
                    raise EmulationFault("precondition", f"the kernel may not be launched for this problem: {unmet}")
                outcome = attempt.execute()
            except EmulationFault as fault:
                detail, kind = f"With {attempt.label}: {fault}.", fault.kind
                if isinstance(fault, _WrongNumbers):
                    worst_error = max(worst_error, fault.found.rel_error)
                    worst_excess = max(worst_excess, fault.found.excess)
                break
            checks.append(outcome.words)
            worst_error, worst_excess = max(worst_error, outcome.rel_error), max(worst_excess, outcome.excess)
            if run.size == planned[0].size:
                covered = max(covered, outcome.compared / math.prod(output_of(problem).shape))
            if run.profile:
                counters = profile_counters(outcome.counters)
    finally:
        library.close()
    verification = Verification(
        passed=not kind,
        rel_error=worst_error,
        error_bound=bound.relative,
        excess=worst_excess,
        checks=tuple(checks),
        coverage=covered,
        detail=detail,
    )
    return Emulation(verification, kind, counters)


def profile_counters(launched: LaunchCounters) -> dict[str, float]:
    """Counters of the profiled block, summed over its sites."""
    totals: dict[str, float] = {}
    for site in launched.sites:
        word = site.access.replace(" ", "_")
        for name in ("requests", "transactions", "ideal"):
            key = f"{word}_{name}"
            totals[key] = totals.get(key, 0.0) + getattr(site, name)

    def factor(memory: str) -> float:
        ideal = sum(totals.get(f"{memory}_{way}_ideal", 0.0) for way in ("read", "write"))
        moved = sum(totals.get(f"{memory}_{way}_transactions", 0.0) for way in ("read", "write"))
        return moved / ideal if ideal else 1.0

    return {"bank_conflict_factor": factor("shared"), "sector_factor": factor("global"), **totals}


class _WrongNumbers(EmulationFault):
    def __init__(self, message: str, found: Comparison) -> None:
        super().__init__("wrong", message)
        self.found = found


@dataclass(frozen=True)
class _Outcome:
    words: str
    rel_error: float
    excess: float
    compared: int
    counters: LaunchCounters


class _Attempt:
    """One run: choose tiles, make operands, launch, compare."""

    def __init__(
        self,
        library: KernelLibrary,
        recipe: LaunchRecipe,
        problem: Problem,
        like: Problem,
        run: Run,
        seed: int,
        work: int,
    ) -> None:
        self._library, self._recipe, self._problem, self._run, self._seed = library, recipe, problem, run, seed
        self._lds = pitches(problem, like, padded=run.padded)
        self.label = f"{axis_map(problem).row_axis}={run.size} under the {run.schedule.name} schedule"
        if run.sms != ONE_PIECE:
            self.label += f" on {run.sms} multiprocessors"
        shape = output_of(problem).shape
        per_element = problem.flops // (2 * shape[0] * shape[1])
        self._tile_work = per_element * recipe.tile.rows * recipe.tile.columns
        limit = max(run.least, work // max(1, self._tile_work))
        environment = {**problem.environment(), **{f"ld{name}": ld for name, ld in self._lds.items()}, "sms": run.sms}
        if run.whole:
            self._tiles, self._total = all_tiles(recipe, environment, shape)
        else:
            self._tiles, self._total = choose_tiles(recipe, environment, shape, limit, seed)
        self._environment = environment

    def unmet(self) -> str | None:
        """Why the recipe forbids this launch, or None."""
        addresses = {f"ptr_{t.name}": 4096 for t in self._problem.tensors()}
        return self._recipe.unmet({**self._environment, **addresses})

    def execute(self) -> _Outcome:
        """Run it.

        Raises:
            EmulationFault: the kernel failed, or what it wrote is not right.
        """
        run, at_end = self._run, self._run.schedule.at_end
        rows, columns = spans(self._tiles)

        def make(at_end: bool) -> Operands:
            return Operands.make(self._problem, rows, columns, self._lds, seed=self._seed, at_end=at_end, sms=run.sms)

        operands = make(at_end)
        try:
            if self._recipe.unmet(operands.environment):  # it wants more alignment than an end at the guard gives
                operands.free()
                operands = make(at_end=False)
            workspace = operands.scratch("workspace", self._recipe.workspace, at_end=at_end, zero=False)
            counters = operands.scratch("counters", self._recipe.counters, at_end=at_end, zero=True)
            blocks = list(dict.fromkeys(b for tile in self._tiles for b in tile.blocks))
            launched = launch(
                self._library,
                grid=self._recipe.grid_size(operands.environment),
                block=self._recipe.block,
                cluster=self._recipe.cluster,
                arguments=self._arguments(operands, workspace, counters),
                buffers=list(operands.buffers.values()),
                blocks=blocks,
                dynamic_shared=self._recipe.dynamic_shared,
                schedule=run.schedule,
                race_checks=run.race_checks,
                profiled=(self._tiles[-1].blocks or blocks)[0] if run.profile else None,
                budget=20_000_000 + 8 * self._tile_work * len(self._tiles),
            )
            if counters is not None and counters.view(np.dtype(np.uint8)).any():
                raise EmulationFault("counters", "the counters are not zero again at the end of the kernel")
            return self._compare(operands, launched)
        finally:
            operands.free()

    def _arguments(self, operands: Operands, workspace: Any, counters: Any) -> list[Any]:
        out: list[Any] = []
        for argument in self._recipe.arguments:
            if argument.kind == "pointer":
                out.append(ctypes.c_void_p(operands.buffers[argument.name].address))
            elif argument.map is not None:
                address = operands.buffers[argument.name].address
                out.append(tensor_map.encode(argument.map.bind(operands.environment), address))
            elif argument.kind == "scalar":
                env = operands.environment
                value = expression(argument.expr)(env) if argument.expr else env.get(argument.name)
                if value is None:
                    raise LaunchError(
                        f"The recipe of {self._recipe.entry} wants {argument.name}, which the problem does not have."
                    )
                out.append(_C_TYPES[argument.type](value))
            else:
                buffer = workspace if argument.kind == "workspace" else counters
                out.append(ctypes.c_void_p(buffer.address if buffer is not None else None))
        return out

    def _compare(self, operands: Operands, launched: LaunchCounters) -> _Outcome:
        output = output_of(self._problem)
        bound, limits = self._problem.error_bound(), Limits.of(output.dtype)
        worst_error = worst_excess = 0.0
        area = 0
        poison = np.frombuffer(bytes([POISON]) * output.dtype.bytes, output.dtype.np)[0]
        reference, scale = operands.reference()
        for tile in self._tiles:
            r, c = slice(tile.row, tile.row + tile.rows), slice(tile.column, tile.column + tile.columns)
            here = _within(operands.rows, tile.row, tile.rows), _within(operands.columns, tile.column, tile.columns)
            found = compare(
                operands.output[r, c].copy(),
                reference[here],
                scale[here],
                bound,
                rows=np.arange(r.start, r.stop),
                columns=np.arange(c.start, c.stop),
                limits=limits,
            )
            if not found.passed:
                raise _WrongNumbers(f"in the tile at ({tile.row}, {tile.column}), {found.detail}", found)
            worst_error, worst_excess = max(worst_error, found.rel_error), max(worst_excess, found.excess)
            area += found.compared
            operands.output[r, c] = poison
        self._stray_writes(operands)
        words = f"{self.label}: {len(self._tiles)} of {self._total} tiles ({launched.blocks} blocks)"
        return _Outcome(words, worst_error, worst_excess, area, launched)

    def _stray_writes(self, operands: Operands) -> None:
        """After the tiles are poison again, the whole buffer must be."""
        output = output_of(self._problem)
        altered = operands.buffers[output.name].first_altered()
        if altered is None:
            return
        row, column = divmod(altered // output.dtype.bytes, self._lds[output.name])
        where = f"row {row}, column {column}"
        if altered < 0 or altered >= operands.buffers[output.name].nbytes:
            where = f"byte {altered} of its {operands.buffers[output.name].nbytes}"
        elif column >= output.shape[1]:
            where += ", which is padding between rows"
        raise EmulationFault(
            "stray_write", f"the output was written outside the tiles of the blocks that ran, at {where}"
        )


def _within(indices: Array, start: int, count: int) -> slice:
    first = int(np.searchsorted(indices, start))
    return slice(first, first + count)
