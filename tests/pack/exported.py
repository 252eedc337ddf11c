"""Finished trials of a naive kernel, put into a history for an export to find."""

from __future__ import annotations

from functools import lru_cache

from gemmtune.codegen import nvrtc
from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.codegen.render import render
from gemmtune.db import History
from gemmtune.db.records import KernelData, MeasurementData, StudySpec, TrialResult
from gemmtune.device.base import Outcome
from gemmtune.space.configuration import Configuration
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, gpu

H200 = gpu("h200")
NAIVE = Configuration.of("naive", {})
PROBLEM = Gemm(64, 48, 32)


@lru_cache(maxsize=32)
def compiled(problem: Gemm, arch: str = H200.arch) -> CompiledKernel:
    """The naive kernel; it has no knobs, so one compile serves every test of a problem."""
    return nvrtc.compile_kernel(render(problem, NAIVE), arch)


def record(
    history: History, cache: KernelCache | None, problem: Gemm = PROBLEM, ratio: float | None = 1.2, *,
    us: float = 10.0, device: Gpu = H200, regime: str = "sustained", source: str | None = None,
) -> CompiledKernel:  # fmt: skip
    """One finished trial of a study; an estimate where there is no ratio."""
    kernel = compiled(problem, device.arch)
    kind = "emulator" if ratio is None else "cuda"
    spec = StudySpec(
        problem.to_json(), problem.key, kind, device, {"driver": "580"}, regime, "cold", ("naive",), "exhaustive", 0
    )
    if cache is not None:
        cache.put(kernel.source, nvrtc.compile_options(device.arch), kernel.nvrtc, kernel.cubin, kernel.log)
    measured = MeasurementData(
        us, us * 0.99, us * 1.01, None if ratio is None else us * ratio, ratio,
        None if ratio is None else ratio * 0.99, None if ratio is None else ratio * 1.01, estimated=ratio is None,
    )  # fmt: skip
    study = history.open_study(spec)
    configuration = Configuration.of("naive", {"copy": len(study.trials())}) if study.trials() else NAIVE
    trial = study.claim(len(study.trials()), configuration)
    resources = kernel.resources
    assert resources is not None
    data = KernelData(
        kernel.source.template_hash, source or kernel.source.text, kernel.cubin_sha256, device.arch, kernel.nvrtc,
        kernel.recipe.to_json(), registers=resources.registers, spill_bytes=0, stack_bytes=0, shared_bytes=0,
    )  # fmt: skip
    study.finish(trial, TrialResult(str(Outcome.CORRECT), kernel=data, measurement=measured))
    return kernel
