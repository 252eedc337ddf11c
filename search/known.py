"""The best kernel known for a problem: from the history, or from a pack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.db import History
from gemmtune.db.records import TrialRecord
from gemmtune.device.base import Cache, Device, Regime
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import UnknownNameError
from gemmtune.space.problem import Problem, shape_of


@dataclass(frozen=True)
class Known:
    """A kernel, and what finding it cost: the trials of every study of its problem on such a device, timed in this way,
    and their wall time in seconds (0 where unknown).
    """

    kernel: CompiledKernel
    trials: int
    wall_s: float


class KnownKernels:
    """Looks up the best kernel of a problem on one device, timed in one way.

    Args:
        device: the device; kernels found on devices of another kind or model do not count.
        history: where the kernels are, or where their studies are, when a pack brings them.
        pack: a pack to take the kernels from.
        regime, cache: how they were timed.
        candidate: give a pack's own kernel too where it lost to the baseline, so that the pack does not use it.
        programmatic: only kernels that overlap their launches (True) or do not (False); None: whatever is best.

    Raises:
        PackError: the pack cannot be read.
    """

    def __init__(
        self,
        device: Device,
        history: History,
        pack: str | Path | None,
        regime: Regime,
        cache: Cache,
        *,
        candidate: bool = False,
        programmatic: bool | None = None,
    ) -> None:
        self._device = device
        self._history = history
        self._regime = regime
        self._cache = cache
        found = history.best_kernels(device.gpu.key, device.kind, regime, cache=cache)
        self._records = {record.problem_key: record for record in found}
        self._programmatic = programmatic
        self._pack = None if pack is None else _Pack(Path(pack), device, regime, candidate)

    def best(self, problem: Problem) -> Known:
        """The best kernel for ``problem``.

        Raises:
            UnknownNameError: none is known.
            ConfigurationError, CompileError: it cannot be rendered or compiled any more.
        """
        record = self._records.get(problem.key)
        trials = [] if record is None else self._tried(problem)
        wall_s = sum(trial.seconds.get("wall", 0.0) for trial in trials)
        if self._pack is not None:
            kernel = self._pack.best(problem)
            if self._programmatic not in (None, kernel.recipe.programmatic):
                raise UnknownNameError(f"The pack's kernel for {problem.key} {self._unlike(kernel.configuration)}.")
            return Known(kernel, len(trials), wall_s)
        if record is None:
            raise UnknownNameError(
                f"No kernel is known for {problem.key} on {self._device.name} ({self._regime}, {self._cache}): "
                f"run 'gemmtune tune' for it first."
            )
        source = self._source(problem, record)
        return Known(compile_kernel(source, self._device.gpu.arch, KernelCache()), len(trials), wall_s)

    def _source(self, problem: Problem, record: TrialRecord) -> KernelSource:
        """The source of the best kernel that is launched as wanted; ``record`` is the best of all."""
        best = render(problem, Configuration.parse(record.configuration))
        if self._programmatic in (None, best.recipe.programmatic):
            return best
        for other in self._history.best(**self._timed_so(problem)):
            if other.problem_key == problem.key:
                source = render(problem, Configuration.parse(other.configuration))
                if source.recipe.programmatic == self._programmatic:
                    return source
        raise UnknownNameError(
            f"Every kernel known for {problem.key} {self._unlike(best.configuration)}: tune again with the other kind."
        )

    def _tried(self, problem: Problem) -> list[TrialRecord]:
        return [t for t in self._history.trials(**self._timed_so(problem)) if t.problem_key == problem.key]

    def _timed_so(self, problem: Problem) -> dict[str, Any]:
        """What narrows a query down to problems of this size, on such a device and timed in this way."""
        return {
            "gpu": self._device.gpu.key, "shape": shape_of(problem.axes),
            "kind": self._device.kind, "regime": self._regime, "cache": self._cache, "limit": None,
        }  # fmt: skip

    def _unlike(self, configuration: Configuration) -> str:
        how = "does not overlap its launches" if self._programmatic else "overlaps its launches"
        return f"({configuration}) {how}"


class _Pack:
    """The kernels of a pack as one device sees them."""

    def __init__(self, path: Path, device: Device, regime: Regime, candidate: bool) -> None:
        # A pack's plain data stands below the search; only its export stands above.
        from gemmtune.pack.dispatch import Dispatch
        from gemmtune.pack.format import read_pack

        self._path = path
        self._candidate = candidate
        self._data = read_pack(path)
        self._dispatch = Dispatch(
            self._data, device.gpu.key, device.gpu.arch, regime=regime, allow_estimates=device.estimates
        )

    def best(self, problem: Problem) -> CompiledKernel:
        from gemmtune.pack.rebuild import unpacked

        choice = self._dispatch.choose(problem)
        kernel = choice.kernel
        if kernel is None and choice.row is not None and choice.row.candidate is not None:
            if not self._candidate:
                raise UnknownNameError(
                    f"The pack {self._path.name} dispatches {problem.key} to the baseline, which was faster: ask for "
                    f"its candidate (--candidate) to time our own kernel."
                )
            kernel = self._data.kernels[choice.row.candidate]  # it lost to the baseline: that too is a result
        if kernel is None:
            raise UnknownNameError(f"The pack {self._path.name} has no kernel for {problem.key} here: {choice.why}.")
        return unpacked(self._data, kernel)
