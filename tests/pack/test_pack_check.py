"""Checking a pack: whose source is run, what a verdict says, drift, and the real emulator on a real kernel."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from gemmtune import device as device_room
from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.device.base import Job, Limits, Measurement, Outcome, Report, Verification
from gemmtune.pack.check import CheckedKernel, CheckReport, check_pack
from gemmtune.pack.format import PackData, sha256, write_pack
from gemmtune.pack.schema import BASELINE, Kernel, Point, Table, row_of
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import PackError, ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, gpu

H200 = gpu("h200")
PROBLEM = Gemm(40, 24, 16)


@lru_cache(maxsize=4)
def compiled(problem: Gemm) -> CompiledKernel:
    return compile_kernel(render(problem, Configuration.of("naive", {})), H200.arch)


def pack_of(
    ratio: float = 1.2, *, won: bool = True, change: Callable[[Kernel], Kernel] = lambda k: k, text: str = ""
) -> PackData:
    """A pack of one real kernel, or of one whose ``text`` is not what gemmtune renders."""
    made = compiled(PROBLEM)
    kernel = change(
        Kernel(
            made.cubin_sha256,
            made.recipe,
            made.configuration,
            PROBLEM,
            made.arch,
            made.nvrtc,
            made.source.template_hash,
            40,
            0,
        )
    )
    point = Point(dict(PROBLEM.axes), 10.0, 9.0, 11.0, 10.0 * ratio, ratio, ratio, ratio)
    row = row_of(
        PROBLEM, kernel=kernel.sha if won else BASELINE, candidate=None if won else kernel.sha, points=(point,)
    )
    table = Table(H200.key, H200.name, H200.arch, "sustained", "cold", {}, (row,))
    return PackData((table,), {kernel.sha: kernel}, {kernel.sha: made.cubin}, {kernel.sha: text or made.source.text})


@dataclass
class Bench:
    """A device that answers ``outcome`` and, where it is a GPU, the ratio given."""

    outcome: Outcome = Outcome.CORRECT
    ratio: float = 1.2
    kind: str = "cuda"
    gpu: Gpu = H200
    name: str = "cuda:0"
    jobs: list[Job] = field(default_factory=list)

    @property
    def estimates(self) -> bool:
        return self.kind == "emulator"

    def environment(self) -> dict[str, str]:
        return {}

    def run(self, job: Job, limits: Limits) -> Report:
        self.jobs.append(job)
        right = self.outcome is Outcome.CORRECT
        proof = Verification(right, 1e-4, 1e-3, 0.1, (), 1.0)
        time = Measurement(8, 7, 9, 8 * self.ratio, self.ratio) if job.measure else None
        return Report(self.outcome, "" if right else "the corner is wrong.", proof, time)

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        return [self.run(job, timeout) for job in jobs]

    def close(self) -> None:
        raise AssertionError("the device is the caller's")


def check(data: PackData, tmp_path: Path, device: Any, **options: Any) -> Any:
    path = tmp_path / "p.kpack"
    write_pack(path, data)
    return check_pack(path, device, **options)


def test_a_right_kernel_on_a_gpu_is_measured_again(tmp_path: Path) -> None:
    bench = Bench(ratio=1.08)
    report = check(pack_of(1.2), tmp_path, bench)
    (kernel,) = report.kernels
    assert (kernel.verdict, kernel.source, kernel.cubin) == ("correct", "own", "reproduced")
    assert (kernel.recorded, kernel.ratio, round(kernel.drift, 3)) == (1.2, 1.08, -0.1)
    assert report.ok
    assert "-10.0%, drifted" in str(report)
    assert "every hash right" in str(report)
    (job,) = bench.jobs
    assert (job.problem, job.measure, job.regime, job.kernel.cubin) == (
        PROBLEM,
        True,
        "sustained",
        compiled(PROBLEM).cubin,
    )


def test_drift_is_told_only_of_the_device_it_was_recorded_on(tmp_path: Path) -> None:
    (kernel,) = check(pack_of(1.2), tmp_path, Bench(ratio=1.0, gpu=gpu("h100"))).kernels
    assert (kernel.verdict, kernel.ratio, kernel.recorded, kernel.drift) == ("correct", 1.0, None, None)
    assert "1.000 x the baseline" in str(kernel)


def test_a_wrong_kernel_fails_the_report(tmp_path: Path) -> None:
    report = check(pack_of(), tmp_path, Bench(Outcome.WRONG))
    assert report.kernels[0].verdict == "wrong"
    assert not report.ok
    assert "the corner is wrong" in str(report)
    assert check(pack_of(), tmp_path, Bench(Outcome.TIMEOUT)).kernels[0].verdict == "failed"


def test_candidates_are_checked_too(tmp_path: Path) -> None:
    report = check(pack_of(0.7, won=False), tmp_path, Bench(ratio=0.7))
    assert [k.recorded for k in report.kernels] == [0.7]


def test_a_foreign_source_is_emulated_only_with_trust(tmp_path: Path) -> None:
    data = pack_of(text="// mine\n" + compiled(PROBLEM).source.text)
    bench = Bench(kind="emulator", name="emulator:h200")
    report = check(data, tmp_path, bench)
    (kernel,) = report.kernels
    assert (kernel.verdict, kernel.source, kernel.cubin) == ("not run", "foreign", "unknown")
    assert kernel.missed == "source"
    assert bench.jobs == []
    assert not report.ok
    last = "0 of 1 kernel verified. Not verified: 1 whose source is not what this gemmtune renders"
    assert str(report).splitlines()[-1] == f"  {last} (trust=True emulates it all the same)."
    assert report.text("--trust").endswith(f"{last} (--trust emulates it all the same).")
    (kernel,) = check(data, tmp_path, bench, trust=True).kernels
    assert (kernel.verdict, kernel.source) == ("correct", "trusted")
    assert not bench.jobs[0].measure


def test_a_foreign_recipe_is_foreign_too(tmp_path: Path) -> None:
    data = pack_of(change=lambda k: replace(k, recipe=replace(k.recipe, dynamic_shared=1024)))
    (kernel,) = check(data, tmp_path, Bench(kind="emulator")).kernels
    assert (kernel.verdict, kernel.source) == ("not run", "foreign")


def test_an_unknown_configuration_is_foreign(tmp_path: Path) -> None:
    data = pack_of(change=lambda k: replace(k, configuration=Configuration.of("nobody", {"x": 1})))
    (kernel,) = check(data, tmp_path, Bench(kind="emulator")).kernels
    assert "cannot render" in kernel.detail


def test_a_cubin_that_its_source_does_not_make(tmp_path: Path) -> None:
    data = pack_of()
    (kernel,) = data.kernels.values()
    other = b"another program"
    forged = replace(kernel, sha=sha256(other))
    row = replace(data.tables[0].rows[0], kernel=forged.sha)
    data = PackData(
        (replace(data.tables[0], rows=(row,)),), {forged.sha: forged}, {forged.sha: other},
        {forged.sha: data.sources[kernel.sha]},
    )  # fmt: skip
    report = check(data, tmp_path, Bench())
    assert report.kernels[0].cubin == "differs"
    assert not report.ok


def test_a_cubin_of_another_nvrtc_is_left_unjudged(tmp_path: Path) -> None:
    report = check(pack_of(change=lambda k: replace(k, nvrtc="1.0")), tmp_path, Bench())
    assert report.kernels[0].cubin == "unknown"
    assert report.ok


def test_another_architecture_is_not_run(tmp_path: Path) -> None:
    bench = Bench(gpu=gpu("a100"))
    (kernel,) = check(pack_of(), tmp_path, bench).kernels
    assert kernel.verdict == "not run"
    assert "sm_80" in kernel.detail
    assert bench.jobs == []


@pytest.mark.parametrize(
    ("missed", "ok", "why"),
    [
        ("gpu", True, "1 compiled for another GPU"),
        ("source", False, "1 whose source is not what this gemmtune renders (trust=True emulates it all the same)"),
        ("device", False, "1 which nothing here can run"),
    ],
)
def test_some_right_and_some_not_run_passes_only_where_no_more_could_be_run(missed: Any, ok: bool, why: str) -> None:
    right = CheckedKernel("a" * 64, "gemm", "naive", "correct", "", "own", "reproduced")
    left = CheckedKernel("b" * 64, "gemm", "naive", "not run", "why.", "own", "unknown", missed=missed)
    report = CheckReport(Path("p.kpack"), "1", 8, "emulator:h200", (right, left))
    assert report.ok is ok
    assert str(report).splitlines()[-1] == f"  1 of 2 kernels verified: 1 correct. Not verified: {why}."


def test_without_a_compiler_hashes_are_checked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(spec: str | None = None) -> Any:
        raise ToolchainError(f"{spec} needs something that is not installed: install it.")

    monkeypatch.setattr(device_room, "open_device", none)
    report = check(pack_of(), tmp_path, None)
    assert report.kernels[0].verdict == "not run"
    assert not report.ok  # a check that ran nothing proved nothing
    assert "emulator:h200 needs something" in str(report)


def test_an_altered_pack_is_refused_before_anything_runs(tmp_path: Path) -> None:
    bench = Bench()
    check(pack_of(), tmp_path, bench)
    cubin = next((tmp_path / "p.kpack" / "kernels").glob("*.cubin"))
    cubin.write_bytes(cubin.read_bytes()[:-1])
    with pytest.raises(PackError, match="truncated or altered"):
        check_pack(tmp_path / "p.kpack", bench)
    assert len(bench.jobs) == 1


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="the emulator needs a C++ compiler")
def test_the_emulator_proves_a_kernel_of_a_pack(tmp_path: Path) -> None:
    report = check(pack_of(), tmp_path, "emulator:h200")
    (kernel,) = report.kernels
    assert (kernel.verdict, kernel.source, kernel.cubin) == ("correct", "own", "reproduced")
    assert kernel.rel_error <= kernel.error_bound
    assert kernel.ratio is None
    assert report.device == "emulator:h200"
