"""The best kernel known for a problem: from the history, or from a pack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel, KernelResources, KernelSource
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.db import History
from gemmtune.device.base import Cache, Device, Regime
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import UnknownNameError
from gemmtune.space.problem import Problem


@dataclass(frozen=True)
class Known:
    """A kernel, and what finding it cost: trials of its study and their wall time in seconds (0 where unknown)."""

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

    Raises:
        PackError: the pack cannot be read.
    """

    def __init__(self, device: Device, history: History, pack: str | Path | None, regime: Regime, cache: Cache) -> None:
        self._device = device
        self._history = history
        self._regime = regime
        self._cache = cache
        found = history.best_kernels(device.gpu.key, device.kind, regime, cache=cache)
        self._records = {record.problem_key: record for record in found}
        self._pack = None if pack is None else _Pack(Path(pack), device, regime)

    def best(self, problem: Problem) -> Known:
        """The best kernel for ``problem``.

        Raises:
            UnknownNameError: none is known.
            ConfigurationError, CompileError: it cannot be rendered or compiled any more.
        """
        record = self._records.get(problem.key)
        trials = [] if record is None else self._history.trials(study_id=record.study_id, limit=None)
        wall_s = sum(trial.seconds.get("wall", 0.0) for trial in trials)
        if self._pack is not None:
            return Known(self._pack.best(problem), len(trials), wall_s)
        if record is None:
            raise UnknownNameError(
                f"No kernel is known for {problem.key} on {self._device.name} ({self._regime}, {self._cache}): "
                f"run 'gemmtune tune' for it first."
            )
        source = render(problem, Configuration.parse(record.configuration))
        return Known(compile_kernel(source, self._device.gpu.arch, KernelCache()), len(trials), wall_s)


class _Pack:
    """The kernels of a pack as one device sees them."""

    def __init__(self, path: Path, device: Device, regime: Regime) -> None:
        # A pack's plain data stands below the search; only its export stands above.
        from gemmtune.pack.dispatch import Dispatch
        from gemmtune.pack.format import read_pack

        self._path = path
        self._data = read_pack(path)
        self._dispatch = Dispatch(
            self._data, device.gpu.key, device.gpu.arch, regime=regime, allow_estimates=device.estimates
        )

    def best(self, problem: Problem) -> CompiledKernel:
        choice = self._dispatch.choose(problem)
        kernel = choice.kernel
        if kernel is None and choice.row is not None and choice.row.candidate is not None:
            kernel = self._data.kernels[choice.row.candidate]  # it lost to the baseline: that too is a result
        if kernel is None:
            raise UnknownNameError(f"The pack {self._path.name} has no kernel for {problem.key} here: {choice.why}.")
        source = KernelSource(
            configuration=kernel.configuration,
            entry=kernel.recipe.entry,
            text=self._data.sources[kernel.sha],
            template_hash=kernel.template_hash,
            recipe=kernel.recipe,
        )
        return CompiledKernel(
            source=source,
            arch=kernel.arch,
            cubin=self._data.cubins[kernel.sha],
            resources=KernelResources(kernel.registers, kernel.spill_bytes, 0, 0),
            nvrtc=kernel.nvrtc,
            log="",
            seconds=0.0,
            cached=True,
        )
