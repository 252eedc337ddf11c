"""The course of one trial: render and compile ahead, judge the compiler's report, run, and make it a result."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.nvrtc import compile_options
from gemmtune.codegen.render import render
from gemmtune.db import KernelData, TrialRecord, TrialResult, describe
from gemmtune.device.base import Cache, Device, Job, Outcome, Regime, Report
from gemmtune.search.limits import TimeLimit, hopeless
from gemmtune.search.recording import binary_identity, kernel_data, measurement_data, reused, verification_data
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError, ConfigurationError, ExpressionError, GemmtuneError, ToolchainError
from gemmtune.space.family import Family
from gemmtune.space.problem import Problem

REUSABLE = frozenset(Outcome) - {Outcome.INFRASTRUCTURE, Outcome.COMPILE}
"""Outcomes that hold for every kernel of the same binary: what one copy of it did, no other has to do again."""
DISTURBED = frozenset({Outcome.UNSTABLE, Outcome.INFRASTRUCTURE})
"""Outcomes that say more of the machine at that moment than of the kernel: they are worth another attempt."""
FATAL = frozenset({Outcome.TIMEOUT, Outcome.LAUNCH, Outcome.OUT_OF_MEMORY})
"""Outcomes of kernels that may have cost a worker its life."""


class Compiler(Protocol):
    """What compiles ahead: :class:`gemmtune.codegen.pool.CompilePool`."""

    def submit(self, source: KernelSource, arch: str) -> Future[CompiledKernel]:
        """Compile in the background."""
        ...


@dataclass(frozen=True)
class Timing:
    """How times are taken, and the seed of the inputs.

    ``thorough``: clear losers are timed in full, too: for who wants every time of a list, not the best of a space.
    """

    regime: Regime = "sustained"
    cache: Cache = "cold"
    seed: int = 0
    thorough: bool = False

    def trial_seed(self, number: int) -> int:
        """The seed of trial ``number``: every trial sees fresh inputs, and the same ones when it is run again."""
        return (self.seed * 1_000_003 + number) % 2**31


@dataclass(frozen=True)
class Prepared:
    """A configuration on its way to the device: being compiled, or refused before that for ``reason``.

    ``recording``: what will be recorded of the kernel, once it is compiled.
    """

    configuration: Configuration
    compiling: Future[CompiledKernel] | None
    recording: Future[KernelData] | None = None
    reason: str = ""
    render_seconds: float = 0.0


@dataclass(frozen=True)
class Attempt:
    """The result of a trial, and the identity of its binary where it has one.

    ``disturbed``: it says little of the kernel, which is worth another attempt. No kernel that cost its worker the life
    is.
    """

    result: TrialResult
    binary: str | None = None
    disturbed: bool = False

    def after(self, earlier: Attempt) -> Attempt:
        """A second attempt: the result is its own, with a note on the ``earlier`` one."""
        note = f"Tried twice; at first: {earlier.result.detail or earlier.result.outcome}"
        detail = f"{self.result.detail} {note}" if self.result.detail else note
        return replace(self, result=replace(self.result, detail=detail), disturbed=False)


class TrialRunner:
    """Tries configurations of one study, one after another.

    Args:
        problem: what is computed.
        device: where it runs.
        families: the families of the configurations.
        compiler: compiles ahead of the device.
        timing: how times are taken, and the study's seed.
        kernels: the cache of compiled kernels, where binaries of an earlier run are looked up.
    """

    def __init__(
        self,
        problem: Problem,
        device: Device,
        families: Sequence[Family],
        compiler: Compiler,
        timing: Timing,
        kernels: KernelCache | None = None,
    ) -> None:
        self.problem = problem
        self.device = device
        self.timing = timing
        self._families = {family.name: family for family in families}
        self._compiler = compiler
        self._kernels = kernels
        self._limit = TimeLimit(estimates=device.estimates)
        self._binaries: dict[str, TrialRecord] = {}

    def prepare(self, configuration: Configuration) -> Prepared:
        """Render ``configuration`` and start compiling it."""
        started = time.perf_counter()
        try:
            source = render(self.problem, configuration, self._families[configuration.family])
        except (ConfigurationError, ExpressionError) as error:
            return Prepared(configuration, None, reason=str(error))
        seconds = time.perf_counter() - started
        compiling = self._compiler.submit(source, self.device.gpu.arch)
        # In the thread that compiled it, which has time: what is recorded between two trials keeps the device waiting.
        recording: Future[KernelData] = Future()
        compiling.add_done_callback(partial(self._describe, recording))
        return Prepared(configuration, compiling, recording, render_seconds=seconds)

    def _describe(self, recording: Future[KernelData], compiled: Future[CompiledKernel]) -> None:
        try:
            kernel = compiled.result()
            data = kernel_data(kernel, self._families[kernel.configuration.family])
            describe(data, str(kernel.configuration))
            recording.set_result(data)
        except BaseException as error:  # whoever waits for it is told, whatever it is
            recording.set_exception(error)

    def run(self, prepared: Prepared, number: int, best: TrialRecord | None) -> Attempt:
        """Try one prepared configuration; whatever its kernel does is a result, too.

        Raises:
            ToolchainError: nothing can be compiled or run here.
        """
        if prepared.compiling is None or prepared.recording is None:
            return Attempt(TrialResult(Outcome.COMPILE, prepared.reason))
        self.device.start()  # while the first kernel compiles
        started = time.perf_counter()
        try:
            kernel = prepared.compiling.result()
        except CompileError as error:
            return Attempt(TrialResult(Outcome.COMPILE, str(error)))
        waited = time.perf_counter() - started
        seconds = {"render": prepared.render_seconds, "compile": kernel.seconds, "wait": waited}
        data = prepared.recording.result()
        reason = hopeless(kernel, self.device.gpu)
        if reason:
            return Attempt(TrialResult(Outcome.PRUNED, reason, kernel=data, seconds=seconds))
        binary = binary_identity(kernel.source, kernel.cubin)
        twin = self._binaries.get(binary or "")
        if twin is not None:
            return Attempt(reused(twin, data, seconds), binary)
        started = time.perf_counter()
        report = self.report(self._job(kernel, number, best))
        elapsed = time.perf_counter() - started
        blamed = report.killed and report.outcome == Outcome.INFRASTRUCTURE  # it ended the worker, in whatever way
        result = TrialResult(
            outcome=Outcome.LAUNCH if blamed else report.outcome,
            detail=report.detail,
            kernel=data,
            verification=verification_data(report.verification),
            measurement=measurement_data(report.measurement, self.problem),
            seconds={**seconds, **report.seconds, "device": elapsed},
        )
        return Attempt(result, binary, report.outcome in DISTURBED and not report.killed)

    def remember(self, binary: str | None, record: TrialRecord) -> None:
        """From now on the result of ``binary`` is that of ``record``."""
        if binary and record.outcome in REUSABLE:
            self._binaries.setdefault(binary, record)

    def recall(self, records: Iterable[TrialRecord]) -> None:
        """Remember the binaries of an earlier run, as far as the cache still has them.

        Those that may have killed a worker are compiled again where it has not: none of them is to have a second go
        under another configuration's name.

        Raises:
            ToolchainError: nothing can be compiled here.
        """
        lost: list[tuple[TrialRecord, Prepared]] = []
        for record in records:
            binary = self._cached_binary(record)
            if binary is None and record.outcome in FATAL and record.cubin_sha256 and record.family in self._families:
                lost.append((record, self.prepare(Configuration.parse(record.configuration))))
            self.remember(binary, record)
        for record, prepared in lost:
            if prepared.compiling is not None:
                with suppress(CompileError):
                    kernel = prepared.compiling.result()
                    self.remember(binary_identity(kernel.source, kernel.cubin), record)

    def _cached_binary(self, record: TrialRecord) -> str | None:
        if self._kernels is None or not record.cubin_sha256 or record.family not in self._families:
            return None
        try:
            configuration = Configuration.parse(record.configuration)
            source = render(self.problem, configuration, self._families[record.family])
        except (ConfigurationError, ExpressionError):
            return None
        found = self._kernels.get(source, compile_options(record.arch), record.nvrtc)
        return binary_identity(source, found.cubin) if found else None

    def _job(self, kernel: CompiledKernel, number: int, best: TrialRecord | None) -> Job:
        return Job(
            problem=self.problem,
            kernel=kernel,
            seed=self.timing.trial_seed(number),
            regime=self.timing.regime,
            cache=self.timing.cache,
            best_us=best.us if best else None,
            best_ratio=best.ratio if best else None,
            thorough=self.timing.thorough,
        )

    def report(self, job: Job) -> Report:
        """The device's report on one job; what it raises in spite of its contract costs this job alone.

        Raises:
            ToolchainError: nothing can be run here.
        """
        try:
            report = self.device.run(job, self._limit.limits)
        except ToolchainError:
            raise
        except GemmtuneError as error:
            return Report(Outcome.INFRASTRUCTURE, str(error))
        if report.outcome == Outcome.CORRECT:
            self._limit.succeeded(report.seconds)
        return report
