"""A pack on one GPU: its dispatch, its loaded kernels, scratch memory and baselines.

Built when the first array of a device comes by. Kernels are loaded when first chosen and stay loaded; launching goes
through :mod:`gemmtune.device.launch` by the recipe alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from gemmtune.device.baselines import Baseline, baseline_for
from gemmtune.device.driver import relaxed_capture
from gemmtune.device.identity import identity
from gemmtune.device.launch import LoadedKernel
from gemmtune.device.scratch import ScratchPool
from gemmtune.device.toolchain import require_cupy
from gemmtune.pack.dispatch import Dispatch
from gemmtune.pack.format import PackData, bindings
from gemmtune.pack.schema import Kernel
from gemmtune.space.errors import UnknownNameError, UnsupportedError
from gemmtune.space.gemm import Gemm

MAX_BASELINES = 4096
"""Baselines kept a device, one for each problem; the oldest goes first."""

Run = Callable[[Mapping[str, int], Mapping[str, float]], None]
"""Launches on addresses by tensor name, with alpha and beta where the epilogue reads them."""


def make_current() -> None:
    """Make the current device's context current in this thread, which a thread that has allocated nothing lacks."""
    require_cupy().cuda.runtime.free(0)


class DeviceState:
    """One GPU. ``options`` are those of :class:`gemmtune.pack.dispatch.Dispatch`."""

    def __init__(self, data: PackData, index: int, scratch_limit: int, options: Mapping[str, Any]) -> None:
        self.index = index
        seen = identity(index)
        self.key, self.arch = seen.key, seen.arch
        self.dispatch = Dispatch(data, self.key, self.arch, workspace_limit=scratch_limit, **options)
        self._cubins = data.cubins
        self._loaded: dict[str, LoadedKernel] = {}
        self._lock = threading.Lock()
        self._scratch = ScratchPool(scratch_limit)
        self._baselines: dict[Gemm, Baseline] = {}

    def plan(self, problem: Gemm, low_bits: Mapping[str, int], stream: int) -> Run:
        """What launches ``problem`` on ``stream``, for addresses that end in ``low_bits`` (8 bits, by tensor name).

        Raises:
            LaunchError: the chosen kernel cannot be loaded here.
            ToolchainError, UnsupportedError: the baseline is needed, and there is none.
        """
        with relaxed_capture():  # the first call of its kind may be one that is captured into a graph
            return self._planned(problem, low_bits, stream)

    def _planned(self, problem: Gemm, low_bits: Mapping[str, int], stream: int) -> Run:
        make_current()
        addresses = {name: 256 + bits for name, bits in low_bits.items()}
        bound = {f"ptr_{name}": address for name, address in addresses.items()}
        choice = self.dispatch.choose(problem, bound)
        if choice.kernel is not None:
            return self._kernel(choice.kernel, problem, addresses, stream)
        try:
            return self._baseline(problem, stream)
        except UnsupportedError:
            other = self.dispatch.unmeasured(problem, bound)
            if other is None or other.kernel is None:
                raise
            return self._kernel(other.kernel, problem, addresses, stream)

    def _kernel(self, kernel: Kernel, problem: Gemm, addresses: Mapping[str, int], stream: int) -> Run:
        prepared = self._load(kernel).prepare({**bindings(problem), "alpha": 1.0, "beta": 0.0}, addresses)
        scratch = self._scratch.of(self.index, stream)
        pick, launch_at = itemgetter(*prepared.pointer_names), prepared.launch_at  # of two names or more: a tuple

        def run(at: Mapping[str, int], scalars: Mapping[str, float]) -> None:
            launch_at(pick(at), stream, scratch, scalars)

        return run

    def _baseline(self, problem: Gemm, stream: int) -> Run:
        # Kept beside the plans, which die with their thread: a captured graph may still use a baseline's memory.
        with self._lock:
            baseline = self._baselines.get(problem)
            if baseline is None:
                if len(self._baselines) >= MAX_BASELINES:
                    del self._baselines[next(iter(self._baselines))]
                baseline = self._baselines[problem] = baseline_for(problem)
        launch = baseline.launch

        def run(at: Mapping[str, int], scalars: Mapping[str, float]) -> None:
            launch(at, stream, scalars)

        return run

    def _load(self, kernel: Kernel) -> LoadedKernel:
        with self._lock:
            loaded = self._loaded.get(kernel.sha)
            if loaded is None:
                loaded = self._loaded[kernel.sha] = LoadedKernel(self._cubins[kernel.sha], kernel.recipe)
            return loaded


def device_index(device: int | str | None) -> int | None:
    """The index in ``0`` or ``"cuda:0"``; None where there is none.

    Raises:
        UnknownNameError: a device that is not named like that.
    """
    if device is None or (isinstance(device, int) and not isinstance(device, bool) and device >= 0):
        return device
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        if kind == "cuda" and number.isdigit():
            return int(number)
    raise UnknownNameError(f"Unknown device {device!r}: a pack runs on GPUs, named 0 or 'cuda:0'.")
