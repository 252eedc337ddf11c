"""What a device reports, in the words of the history; the two rooms do not know each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.render import template_text
from gemmtune.db import KernelData, MeasurementData, TrialRecord, TrialResult, VerificationData
from gemmtune.device.base import Measurement, Outcome, Verification
from gemmtune.space.family import Family
from gemmtune.space.problem import Problem


def kernel_data(kernel: CompiledKernel, family: Family) -> KernelData:
    """A kernel as the history keeps it; ``shared_bytes`` counts static and dynamic shared memory."""
    r = kernel.resources
    return KernelData(
        template_hash=kernel.source.template_hash,
        template_text=template_text(family),
        source=kernel.source.text,
        cubin_sha256=kernel.cubin_sha256,
        arch=kernel.arch,
        nvrtc=kernel.nvrtc,
        recipe=kernel.recipe.to_json(),
        registers=r.registers if r else None,
        spill_bytes=r.spill_bytes if r else None,
        stack_bytes=r.stack_bytes if r else None,
        shared_bytes=kernel.recipe.dynamic_shared + (r.shared_bytes if r else 0),
    )


def verification_data(verification: Verification | None) -> VerificationData | None:
    """The proof, field by field."""
    return None if verification is None else VerificationData(**asdict(verification))


def measurement_data(measurement: Measurement | None, problem: Problem) -> MeasurementData | None:
    """The time, field by field, and the baseline's name where one was timed beside."""
    if measurement is None:
        return None
    name = baseline_name(problem) if measurement.baseline_us is not None else ""
    values = {**vars(measurement), "counters": dict(measurement.counters)}
    return MeasurementData(**values, baseline_name=name)


def baseline_name(problem: Problem) -> str:
    """The name of what a user would run otherwise."""
    from gemmtune.device.baselines import baseline_for

    return str(baseline_for(problem).name)


def reused(twin: TrialRecord, kernel: KernelData, seconds: Mapping[str, float]) -> TrialResult:
    """The result of a kernel whose binary is that of an earlier trial: the same proof and time, and a note of whose."""
    note = f"Same binary as trial {twin.number}."
    verification = measurement = None
    if twin.rel_error is not None and twin.error_bound is not None:
        verification = VerificationData(
            passed=twin.outcome != Outcome.WRONG,
            rel_error=twin.rel_error,
            error_bound=twin.error_bound,
            excess=twin.excess or 0.0,
            checks=(note,),
            coverage=twin.coverage or 0.0,
            detail=twin.detail,
        )
    if twin.us is not None and twin.us_low is not None and twin.us_high is not None:
        measurement = MeasurementData(
            us=twin.us,
            us_low=twin.us_low,
            us_high=twin.us_high,
            baseline_us=twin.baseline_us,
            ratio=twin.ratio,
            ratio_low=twin.ratio_low,
            ratio_high=twin.ratio_high,
            estimated=twin.estimated,
            baseline_name=twin.baseline,
        )
    detail = f"{note} {twin.detail}" if twin.detail and not twin.detail.startswith("Same binary") else note
    return TrialResult(twin.outcome, detail, kernel, verification, measurement, seconds)


def binary_identity(source: KernelSource, cubin: bytes) -> str | None:
    """Equal for kernels that do the same: cubin and launch recipe, but for the name of the entry; None without a cubin.

    Different knobs may well compile to the same instructions (an unroll factor past the loop's length, say).
    """
    if not cubin:
        return None
    name = source.entry.encode()
    recipe = {**source.recipe.to_json(), "entry": ""}
    digest = hashlib.sha256(cubin.replace(name, b"_" * len(name)))
    digest.update(json.dumps(recipe, sort_keys=True).encode())
    return digest.hexdigest()
