"""The emulator's engine: what runs inside the worker process. Proves a kernel right and estimates its time."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from gemmtune.device import probe
from gemmtune.device.base import Job, Measurement, Outcome, Report
from gemmtune.device.emulator.build import build_core, build_kernel, prune_kernels
from gemmtune.device.emulator.emulate import WORK, Emulation, emulate
from gemmtune.device.emulator.launch import Buffer, KernelLibrary, launch
from gemmtune.device.probe import Health
from gemmtune.space.errors import CompileError, LaunchError
from gemmtune.space.estimate import estimate_traits
from gemmtune.space.families import family
from gemmtune.space.gpu import gpu

_OUTCOMES = {
    "deadlock": Outcome.TIMEOUT,  # what they would be on a GPU
    "budget": Outcome.TIMEOUT,
    "out_of_bounds": Outcome.LAUNCH,
    "misaligned": Outcome.LAUNCH,
    "divergence": Outcome.LAUNCH,
    "crash": Outcome.LAUNCH,
    "invalid": Outcome.LAUNCH,
    "precondition": Outcome.LAUNCH,
    "out_of_memory": Outcome.OUT_OF_MEMORY,
}
"""Every other fault (race, wrong numbers, stray writes, counters left over) is a wrong kernel."""


class EmulatorEngine:
    """Runs jobs for the GPU called ``gpu_name``.

    Raises:
        UnknownNameError: the table has no such GPU.
        ToolchainError: there is no usable C++ compiler.
    """

    renew_after = 2000
    """Kernels a process runs before it is replaced. Libraries are unloaded after use and have no thread-local data, so
    that there is no hard limit; a fresh process now and then bounds what small leaks add up to."""

    def __init__(self, gpu_name: str) -> None:
        self.gpu = gpu(gpu_name)
        prune_kernels()
        self._capability = self.gpu.capability[0] * 10 + self.gpu.capability[1]
        build_core()
        self.announce: Callable[[str], None] = lambda stage: None

    def run(self, job: Job) -> Report:
        """Prove one kernel right, then estimate its time from its resources and the emulator's counters."""
        self.announce("verify")  # estimating takes no time to speak of
        started = time.perf_counter()
        source = job.kernel.source
        work = WORK * (3 if job.effort == "final" else 1)
        try:
            emulation = emulate(
                source.text, source.recipe, job.problem, seed=job.seed, work=work, capability=self._capability
            )
        except CompileError as error:
            return Report(Outcome.COMPILE, str(error))
        except LaunchError as error:
            return Report(Outcome.LAUNCH, str(error))
        except MemoryError as error:
            return Report(Outcome.OUT_OF_MEMORY, f"The host has not the memory to emulate this kernel: {error}")
        seconds = {"verify": time.perf_counter() - started}
        if not emulation.verification.passed:
            outcome = _OUTCOMES.get(emulation.fault, Outcome.WRONG)
            return Report(outcome, emulation.verification.detail, emulation.verification, seconds=seconds)
        verification = emulation.verification if job.verify else None
        return Report(
            Outcome.CORRECT,
            verification=verification,
            measurement=self._measure(job, emulation) if job.measure else None,
            seconds=seconds,
        )

    def probe(self, reference: float | None) -> Health:
        """Build and run the known kernel; estimates are held to no time."""
        blocks, steps = 2, 100
        given = probe.question(blocks)
        library = KernelLibrary(build_kernel(f'#include "gemmtune/hw.cuh"\n{probe.BODY}', probe.ENTRY))
        buffers = [Buffer("in", given.nbytes, writable=False), Buffer("out", given.nbytes)]
        try:
            buffers[0].view(given.dtype)[:] = given
            numbers = [ctypes.c_uint32(probe.MULTIPLIER), ctypes.c_uint32(probe.INCREMENT), ctypes.c_int32(steps)]
            launch(
                library,
                grid=(blocks, 1, 1),
                block=(probe.THREADS, 1, 1),
                arguments=[*(ctypes.c_void_p(buffer.address) for buffer in buffers), *numbers],
                buffers=buffers,
            )
            return Health(None, probe.difference(buffers[1].view(given.dtype), probe.answer(given, steps)))
        finally:
            for buffer in buffers:
                buffer.free()
            library.close()

    def compare(self, jobs: list[Job]) -> list[Report]:
        """Estimates do not change from run to run: the jobs are simply run again."""
        return [self.run(job) for job in jobs]

    def close(self) -> None:
        """Nothing is held between jobs."""

    def _measure(self, job: Job, emulation: Emulation) -> Measurement:
        resources = job.kernel.resources
        configuration = job.kernel.configuration
        traits = job.traits or family(configuration.family).traits(job.problem, configuration, self.gpu)
        estimated = estimate_traits(
            job.problem,
            traits,
            self.gpu,
            emulation.counters,
            resources.registers if resources is not None else None,
        )
        counters = {**emulation.counters, "occupancy": estimated.occupancy, "waves": estimated.waves}
        return Measurement(
            us=estimated.us, us_low=estimated.us, us_high=estimated.us, estimated=True, counters=counters
        )
