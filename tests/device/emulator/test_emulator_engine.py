"""The engine and the device: reports with outcome, proof and estimate; workers that outlive hanging kernels."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmtune.codegen.kernel import CompiledKernel, KernelResources, KernelSource
from gemmtune.codegen.render import TEMPLATES, render
from gemmtune.device.base import Job, Limits, Outcome
from gemmtune.device.emulator import EmulatorDevice
from gemmtune.device.emulator.engine import EmulatorEngine
from gemmtune.space import families
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import UnknownNameError
from gemmtune.space.families.naive import Naive
from gemmtune.space.gemm import Gemm

NAIVE = Configuration("naive", ())


def job(
    problem: Gemm, edit: tuple[str, str] | None = None, configuration: Configuration = NAIVE, **options: Any
) -> Job:
    """A job of the naive kernel, with a planted change of its text."""
    source = render(problem, configuration)
    if edit:
        assert edit[0] in source.text
        source = replace(source, text=source.text.replace(*edit))
    resources = KernelResources(registers=40, spill_bytes=0, stack_bytes=0, shared_bytes=0)
    kernel = CompiledKernel(source, "sm_90a", b"", resources, "", "", 0.0, False)
    return Job(problem, kernel, seed=7, **options)


@pytest.fixture(scope="module")
def engine() -> EmulatorEngine:
    return EmulatorEngine("h200")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_a_right_kernel_is_proved_and_estimated(engine: EmulatorEngine, dtype: str, layout: str) -> None:
    report = engine.run(job(Gemm(50, 40, 30, dtype=dtype, layout=layout, epilogue="bias")))
    assert report.outcome is Outcome.CORRECT, report.detail
    assert report.verification is not None
    assert report.verification.passed
    assert report.verification.rel_error <= report.verification.error_bound
    assert report.verification.coverage == 1.0
    assert report.measurement is not None
    assert report.measurement.estimated
    assert report.measurement.us == report.measurement.us_low == report.measurement.us_high > 0
    assert report.measurement.ratio is None
    assert report.measurement.counters["sector_factor"] >= 1
    assert report.seconds["verify"] > 0


def test_a_family_that_only_the_users_program_knows_is_estimated_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(Naive):
        name = "mine"
        template_dirs = (tmp_path,)

    (tmp_path / "mine").mkdir()
    shutil.copy(TEMPLATES / "naive" / "kernel.cu.j2", tmp_path / "mine")
    monkeypatch.setitem(families.FAMILIES, "mine", Mine())
    asked = job(Gemm(8, 8, 8), configuration=Configuration("mine", ()))
    with closing(EmulatorDevice("h200")) as device:
        report = device.run(asked, Limits())
        (again,) = device.compare([asked], 60)
    assert report.outcome is Outcome.CORRECT, report.detail
    assert report.measurement == again.measurement is not None


def test_alpha_beta(engine: EmulatorEngine) -> None:
    assert engine.run(job(Gemm(20, 30, 10, epilogue="alpha_beta"))).outcome is Outcome.CORRECT


def test_parts_can_be_left_out(engine: EmulatorEngine) -> None:
    report = engine.run(job(Gemm(8, 8, 8), verify=False, measure=False))
    assert report.outcome is Outcome.CORRECT
    assert report.verification is None
    assert report.measurement is None


def test_wrong_numbers_are_wrong(engine: EmulatorEngine) -> None:
    report = engine.run(job(Gemm(50, 40, 30), ("epilogue(acc", "epilogue(1.01f * acc")))
    assert report.outcome is Outcome.WRONG
    assert report.verification is not None
    assert not report.verification.passed
    assert "elements are wrong" in report.detail
    assert report.detail.startswith("With m=50 under the lowest-first schedule")
    assert report.measurement is None


def test_out_of_bounds_is_a_launch_failure(engine: EmulatorEngine) -> None:
    report = engine.run(job(Gemm(50, 40, 30), ("hw::ldg(", "hw::ldg((1 << 20) + ")))
    assert report.outcome is Outcome.LAUNCH
    assert "buffer a" in report.detail or "buffer b" in report.detail


def test_a_source_that_does_not_compile(engine: EmulatorEngine) -> None:
    report = engine.run(job(Gemm(8, 8, 8), ("hw::ldg(", "hw::nothing(")))
    assert report.outcome is Outcome.COMPILE
    assert "nothing" in report.detail


def test_unmet_precondition_is_said(engine: EmulatorEngine) -> None:
    made = job(Gemm(50, 40, 30))
    source: KernelSource = made.kernel.source
    recipe = replace(source.recipe, constants={"n": 64})
    report = engine.run(replace(made, kernel=replace(made.kernel, source=replace(source, recipe=recipe))))
    assert report.outcome is Outcome.LAUNCH
    assert "n is compiled in as 64" in report.detail


def test_compare_runs_every_job(engine: EmulatorEngine) -> None:
    jobs = [job(Gemm(16, 16, 16)), job(Gemm(16, 16, 16), ("epilogue(acc", "epilogue(2.f * acc"))]
    assert [r.outcome for r in engine.compare(jobs)] == [Outcome.CORRECT, Outcome.WRONG]


def test_same_seed_same_report(engine: EmulatorEngine) -> None:
    one, two = (engine.run(job(Gemm(64, 64, 64))) for _ in range(2))
    assert one.verification == two.verification
    assert one.measurement == two.measurement


class TestDevice:
    def test_unknown_gpu(self) -> None:
        with pytest.raises(UnknownNameError, match="the table knows"):
            EmulatorDevice("h1000")

    def test_describes_itself(self) -> None:
        device = EmulatorDevice("A100")
        assert (device.name, device.kind, device.estimates, device.gpu.short) == (
            "emulator:a100",
            "emulator",
            True,
            "a100",
        )
        assert set(device.environment()) == {"emulator", "compiler", "numpy", "python"}
        device.close()

    def test_a_hanging_kernel_costs_one_report(self) -> None:
        device = EmulatorDevice("h200")
        try:
            assert device.run(job(Gemm(16, 16, 16)), Limits()).outcome is Outcome.CORRECT
            hang = job(
                Gemm(16, 16, 16), ("const Epilogue epilogue", 'while (m) asm volatile(""); const Epilogue epilogue')
            )
            assert device.run(hang, Limits(load=1, verify=1, measure=1)).outcome is Outcome.TIMEOUT
            crash = job(
                Gemm(16, 16, 16), ("const Epilogue epilogue", "emu::current = nullptr; const Epilogue epilogue")
            )
            assert device.run(crash, Limits()).outcome is Outcome.LAUNCH
            reports = device.compare([job(Gemm(16, 16, 16))] * 2, 60)
            assert [r.outcome for r in reports] == [Outcome.CORRECT] * 2
        finally:
            device.close()
            device.close()
