"""A recorded trial once more, alone: the same kernel, inputs and timing; nothing is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.pool import CompilePool
from gemmtune.codegen.render import template_hash
from gemmtune.db import History, TrialRecord
from gemmtune.device.base import Cache, Device, Job, Limits, Outcome, Regime, Report
from gemmtune.search.limits import hopeless
from gemmtune.search.lookup import check_runs_on, problem_of, source_of
from gemmtune.search.trial import Timing
from gemmtune.space import families
from gemmtune.space.errors import CompileError, UnsupportedError
from gemmtune.space.settings import check_cache, check_regime

REUSED = "Same binary as trial"
"""How the detail of a trial begins that took an equal binary's result (:func:`gemmtune.search.recording.reused`)."""


@dataclass(frozen=True)
class Rerun:
    """How a trial ended this time.

    ``job`` is what ran, None where the kernel did not compile; ``notes`` are sentences on what is not as it was.
    """

    record: TrialRecord
    device: str
    seed: int
    report: Report
    job: Job | None
    notes: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether the kernel did not come out right."""
        return self.report.outcome is not Outcome.CORRECT


def usual_device(record: TrialRecord) -> str:
    """The name of the device that a trial is run on again by default: a GPU, or the emulator of the same GPU.

    Raises:
        UnsupportedError: it was recorded by a device of another kind, which cannot run anything.
    """
    if record.kind == "cuda":
        return "cuda:0"
    if record.kind == "emulator":
        return f"emulator:{record.gpu.short}"
    raise UnsupportedError(
        f"Trial {record.id} was recorded on a device of kind {record.kind!r}, which runs nothing: name another with "
        f"--device."
    )


def rerun(history: History, record: TrialRecord, device: Device, kernels: KernelCache | None = None) -> Rerun:
    """Compile, prove and time the trial's kernel on ``device``, in a worker of its own, with the seed it had.

    The recorded source is compiled where there is one, so that it is that very kernel even after its template changed.
    It is timed to the end, however slow it is, and it runs even where its resources kept it from running then.

    Raises:
        ConfigurationError, UnknownNameError, ProblemError, PackError: the record cannot be understood by this version.
        UnsupportedError: its family needs what the device lacks.
        ToolchainError: there is no compiler or no device.
    """
    check_runs_on(record, device.gpu)
    study = history.study(record.study_id)
    seed = Timing(seed=study.seed if study else 0).trial_seed(record.number)
    problem, source = problem_of(record), source_of(record)
    try:
        kernel = _compile(source, device, kernels)
    except CompileError as error:
        report = Report(Outcome.COMPILE, str(error))
        return Rerun(record, device.name, seed, report, None, _notes(record, device, None))
    check_regime(record.regime)
    check_cache(record.cache)
    job = Job(problem, kernel, seed, cast("Regime", record.regime), cast("Cache", record.cache))
    report = device.run(job, Limits())
    return Rerun(record, device.name, seed, report, job, _notes(record, device, kernel))


def _compile(source: KernelSource, device: Device, kernels: KernelCache | None) -> CompiledKernel:
    """Compile in a process of its own: the trial may have been one that crashed the compiler or never ended."""
    with CompilePool(1, kernels or KernelCache()) as pool:
        return pool.submit(source, device.gpu.arch).result()


def _notes(record: TrialRecord, device: Device, kernel: CompiledKernel | None) -> tuple[str, ...]:
    """Sentences on what is not as it was when the trial was recorded."""
    notes = []
    if record.gpu.key != device.gpu.key or record.kind != device.kind:
        then, now = record.gpu.short or record.gpu.name, device.gpu.short or device.gpu.name
        notes.append(
            f"It was recorded on {record.kind} {then} and runs on {device.kind} {now} now: its times do not compare."
        )
    changed = _changes(record, device, kernel)
    if changed:
        notes.append(f"Since then there changed: {', '.join(changed)}.")
    family = families.FAMILIES.get(record.family)
    if record.source and family is not None and template_hash(family) != record.template_hash:
        notes.append(f"The template of family {record.family} has changed since; what ran is the recorded source.")
    if kernel is None:
        return tuple(notes)
    if record.cubin_sha256 and record.arch == kernel.arch and kernel.cubin_sha256 != record.cubin_sha256:
        notes.append(
            f"The compiler made another binary of the same source: cubin {kernel.cubin_sha256[:12]}, then "
            f"{record.cubin_sha256[:12]}."
        )
    if record.outcome == Outcome.PRUNED:
        notes.append("It was pruned and never ran; this time it ran all the same.")
    elif (reason := hopeless(kernel, device.gpu)) is not None:
        notes.append(f"A study here would prune it: {reason}")
    if record.outcome == Outcome.ABANDONED:
        notes.append(
            "It was abandoned, as clearly slower than the best of its study; this time it was timed to the end."
        )
    if record.detail.startswith(REUSED):
        notes.append("It did not run then, but took the result of an equal binary; this time it ran itself.")
    return tuple(notes)


def _changes(record: TrialRecord, device: Device, kernel: CompiledKernel | None) -> list[str]:
    """What of the circumstances has another value now, as far as device and compiler tell."""
    now = device.environment() if record.kind == device.kind else {}
    if kernel is not None and kernel.nvrtc:
        now = {**now, "nvrtc": kernel.nvrtc}
    then = {**record.environment, "nvrtc": record.nvrtc or record.environment.get("nvrtc", "")}
    return [f"{name} {then[name]} to {value}" for name, value in now.items() if then.get(name) not in (None, "", value)]
