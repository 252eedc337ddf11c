"""The emulator as a device: the same kernel source on the CPU, for a named GPU. Its times are estimates."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib.metadata import version

from gemmtune.device.base import Job, Limits, Report
from gemmtune.device.emulator.build import CORE_TIMEOUT, sources_digest
from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.device.worker import Worker, WorkerDevice
from gemmtune.space import families
from gemmtune.space.gpu import Gpu, gpu


class EmulatorDevice(WorkerDevice):
    """An emulated GPU of the shipped table. The worker process starts with the first job.

    Raises:
        UnknownNameError: the table has no GPU called ``gpu_name``.
        ToolchainError: there is no usable C++ compiler; the message names the cure.
    """

    kind = "emulator"
    estimates = True

    def __init__(self, gpu_name: str = "h200") -> None:
        self._gpu = gpu(gpu_name)
        self._toolchain = find_toolchain()
        self._worker = Worker(self.name, start_timeout=CORE_TIMEOUT)  # the first start builds the core

    def run(self, job: Job, limits: Limits) -> Report:
        """Prove one kernel on chosen tiles and estimate its time."""
        return super().run(self._with_traits(job), limits)

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        """Run them once more."""
        return super().compare([self._with_traits(job) for job in jobs], timeout)

    def _with_traits(self, job: Job) -> Job:
        configuration = job.kernel.configuration
        known = families.FAMILIES.get(configuration.family)
        if known is None or not job.measure:
            return job
        return replace(job, traits=known.traits(job.problem, configuration, self._gpu))

    @property
    def name(self) -> str:
        """``emulator:h200``."""
        return f"emulator:{self._gpu.short}"

    @property
    def gpu(self) -> Gpu:
        """The GPU it stands for."""
        return self._gpu

    def environment(self) -> dict[str, str]:
        """What an estimate depends on besides kernel and GPU: the emulator's own sources, NumPy, the compiler."""
        return {
            "emulator": sources_digest()[:16],
            "compiler": self._toolchain.version,
            "numpy": version("numpy"),
            "python": platform.python_version(),
        }
