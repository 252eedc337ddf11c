"""Diagnosis of a recorded trial: from the history, the cache, the emulator and Nsight Compute; as plain data, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.nvrtc import compile_kernel, nvrtc_version
from gemmtune.db import History, TrialRecord
from gemmtune.diagnose import facts as known
from gemmtune.diagnose import ncu
from gemmtune.diagnose.facts import Facts, Subject
from gemmtune.diagnose.verdict import Verdict, judge
from gemmtune.search.lookup import check_runs_on, cubin_of, problem_of, source_of
from gemmtune.space.errors import ConfigurationError, GemmtuneError, ToolchainError
from gemmtune.space.gpu import Gpu


def subject_of(record: TrialRecord) -> Subject:
    """A recorded trial as the subject of a diagnosis.

    Raises:
        ConfigurationError: it never became a kernel, or its family cannot be rendered any more.
        UnknownNameError: its problem or family is not known here.
        PackError: the recorded recipe is malformed.
    """
    if not record.source and record.outcome == "compile":
        raise ConfigurationError(
            f"Trial {record.id} did not compile, so that there is no kernel to diagnose: "
            f"{' '.join(record.detail.split())[:300] or 'no reason was recorded'}"
        )
    timing = record.timing
    return Subject(
        label=f"trial {record.id}: {record.configuration}",
        problem=problem_of(record),
        gpu=record.gpu,
        source=source_of(record),
        registers=record.registers,
        spill_bytes=record.spill_bytes,
        shared_bytes=record.shared_bytes,
        us=timing.us if timing else None,
        ratio=timing.ratio if timing else None,
        estimated=record.estimated,
    )


def diagnose_trial(
    history: History,
    record: TrialRecord,
    *,
    gpu: Gpu | None = None,
    profiled: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """All that can be said of a recorded trial.

    Args:
        history: where it is recorded.
        record: the trial.
        gpu: judge it as a kernel of this GPU; by default that of the trial.
        profiled: run it under Nsight Compute on this GPU, as CUDA numbers them.
        progress: is told what is being done.

    Raises:
        ConfigurationError, UnknownNameError, PackError: see :func:`subject_of`.
        UnsupportedError: its family needs what ``gpu`` lacks.
        ToolchainError: Nsight Compute was asked for, and there is none, or it cannot read the GPU's counters, or the
            kernel's machine code is nowhere.
    """
    subject = subject_of(record)
    if gpu is not None:
        check_runs_on(record, gpu)
        subject = known.judged_on(subject, gpu)
    counters = next((m.data.counters for m in history.measurements(record.id) if m.data.counters), None)
    notes: list[str] = []

    @lru_cache(maxsize=1)
    def cubin() -> bytes:
        code, note = _cubin(history, record)
        notes.extend([note] if note else [])
        return code

    progress("reading the machine code, counting on the emulator")
    facts = known.gather(subject, cubin=cubin, counters=counters)
    if profiled is not None:
        progress("running it once under Nsight Compute")
        facts = ncu.with_profile(facts, ncu.profile(facts, cubin(), profiled))
    else:
        notes.append(_unprofiled())
    return judge(replace(facts, missing=(*facts.missing, *notes)))


def _cubin(history: History, record: TrialRecord) -> tuple[bytes, str]:
    """The trial's machine code, or that of today's compiler and a sentence that says so: its mix is much the same.

    Raises:
        ConfigurationError, ToolchainError, CompileError: there is none, and none can be made.
    """
    try:
        return cubin_of(history, record).data, ""
    except ToolchainError:
        here = nvrtc_version()
        made = compile_kernel(source_of(record), record.arch or record.gpu.arch, KernelCache())
        return made.cubin, (
            f"The recorded machine code: it is not kept here, so that this is the same source by NVRTC {here} "
            f"({record.nvrtc or 'unknown'} then), which may differ in detail."
        )


def _unprofiled() -> str:
    try:
        ncu.find_ncu()
    except GemmtuneError:
        return f"Hardware counters: they need a GPU and Nsight Compute, which is not here: {ncu.CURE}; then add --ncu."
    return "Hardware counters: add --ncu to run the kernel once under Nsight Compute on a GPU."


def data(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain data: factors of time, bytes, microseconds; what is not known is null."""
    facts: Facts = verdict.facts
    subject, (held, limiter) = facts.subject, facts.fit
    return {
        "kernel": subject.label,
        "configuration": str(subject.source.configuration),
        "problem": subject.problem.key,
        "gpu": subject.gpu.name,
        "first": verdict.first,
        "ailments": [{"name": a.name, "cost": None if math.isinf(a.cost) else a.cost} for a in verdict.ailments],
        "bound_by": verdict.bound_by,
        "advice": verdict.advice,
        "checks": [{"name": c.name, "found": c.found, "cost": c.cost} for c in verdict.checks],
        "us": subject.us,
        "estimated": subject.estimated,
        "ratio": subject.ratio,
        "blocks": facts.blocks,
        "threads": facts.threads,
        "registers": subject.registers,
        "spill_bytes": subject.spill_bytes,
        "shared_bytes": facts.shared_bytes,
        "blocks_per_sm": held,
        "limiter": limiter,
        "occupancy": facts.occupancy,
        "traffic": {
            space: {"requests": t.requests, "transactions": t.transactions, "ideal": t.ideal}
            for space, t in facts.traffic.items()
        },
        "instructions": dict(facts.mix.counts) if facts.mix else None,
        "integer_per_math": facts.mix.integer_per_math if facts.mix else None,
        "measured": dict(facts.measured),
        "origins": dict(facts.origins),
        "missing": list(facts.missing),
    }
