"""From a history to a pack: winners, losers, estimates, ranges, cubins that are lost."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gemmtune.codegen import nvrtc
from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.codegen.render import render
from gemmtune.db import History
from gemmtune.db.records import KernelData, MeasurementData, StudySpec, TrialResult
from gemmtune.device.base import Job, Limits, Measurement, Outcome, Report
from gemmtune.pack.dispatch import Dispatch
from gemmtune.pack.export import export_pack
from gemmtune.pack.format import read_pack
from gemmtune.pack.ranges import spans
from gemmtune.pack.restore import restore_pack
from gemmtune.pack.storage import read_files
from gemmtune.search.results import read_result_file
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError, PackError, ToolchainError, UnknownNameError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, gpu

H200 = gpu("h200")
NAIVE = Configuration.of("naive", {})
PROBLEM = Gemm(64, 48, 32)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "h.db") as opened:
        yield opened


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache")


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


def test_a_winner_and_a_loser(history: History, cache: KernelCache, tmp_path: Path) -> None:
    won, lost = Gemm(64, 48, 32), Gemm(64, 40, 32)
    kernel, loser = record(history, cache, won, 1.25), record(history, cache, lost, 0.8)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    pack = read_pack(tmp_path / "p.kpack")
    rows = {row.problem().key: row for table in pack.tables for row in table.rows}
    assert rows[won.key].kernel == kernel.cubin_sha256
    assert rows[won.key].candidate is None
    assert rows[won.key].ratio == 1.25
    assert rows[lost.key].kernel == "baseline"
    assert rows[lost.key].candidate == loser.cubin_sha256
    assert pack.cubins[kernel.cubin_sha256] == kernel.cubin
    assert pack.sources[kernel.cubin_sha256] == kernel.source.text
    assert pack.kernels[kernel.cubin_sha256].recipe == kernel.recipe
    assert pack.tables[0].environment == {"driver": "580"}
    assert (report.kernels, len(report.rows), report.left_out) == (2, 2, ())
    assert "baseline" in str(report)
    assert "1.250 x the baseline" in str(report)


def test_the_export_is_recorded_with_its_cubins(history: History, cache: KernelCache, tmp_path: Path) -> None:
    kernel = record(history, cache)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    (export,) = history.exports()
    assert export.uuid == report.export_id
    assert (export.name, export.manifest_sha256) == ("p.kpack", report.manifest_sha256)
    assert history.cubin(kernel.cubin_sha256) == kernel.cubin


def test_equal_histories_give_equal_zips(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache)
    for name in ("a.zip", "b.zip"):
        export_pack(tmp_path / name, str(tmp_path / "h.db"), cache=cache)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_estimates_are_marked_and_give_way_to_measurements(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    other = Gemm(64, 40, 32)
    record(history, cache, PROBLEM, None, us=1.0)
    record(history, cache, other, None)
    record(history, cache, PROBLEM, 1.1)
    export_pack(tmp_path / "p.kpack", history, cache=cache)
    rows = {r.problem().key: r for t in read_pack(tmp_path / "p.kpack").tables for r in t.rows}
    assert not rows[PROBLEM.key].estimated
    assert rows[other.key].estimated
    assert rows[other.key].ratio is None
    export_pack(tmp_path / "q.kpack", history, cache=cache, allow_estimates=False)
    assert [r.problem().key for t in read_pack(tmp_path / "q.kpack").tables for r in t.rows] == [PROBLEM.key]


def test_problems_that_differ_in_m_share_a_kernel(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    record(history, cache, Gemm(128, 48, 32))
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert (report.kernels, len(report.rows)) == (1, 2)


def test_gpus_and_regimes_are_kept_apart(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache)
    record(history, cache, regime="burst")
    record(history, cache, device=gpu("a100"))
    export_pack(tmp_path / "p.kpack", history, cache=cache)
    tables = read_pack(tmp_path / "p.kpack").tables
    assert {(t.name, t.regime, t.arch) for t in tables} == {
        ("NVIDIA H200", "sustained", "sm_90a"), ("NVIDIA H200", "burst", "sm_90a"),
        ("NVIDIA A100-SXM4-80GB", "sustained", "sm_80"),
    }  # fmt: skip
    export_pack(tmp_path / "a100.kpack", history, "a100", cache=cache)
    assert [t.name for t in read_pack(tmp_path / "a100.kpack").tables] == ["NVIDIA A100-SXM4-80GB"]


def test_a_lost_cubin_is_compiled_again(history: History, cache: KernelCache, tmp_path: Path) -> None:
    kernel = record(history, None)
    export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert read_pack(tmp_path / "p.kpack").cubins == {kernel.cubin_sha256: kernel.cubin}


def test_a_cubin_that_comes_out_different_is_left_out(
    history: History, cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(history, None, Gemm(64, 48, 32), source="// altered\n" + compiled(Gemm(64, 48, 32)).source.text)
    good = record(history, cache, Gemm(64, 40, 32))

    def another(source: Any, arch: str, cache: Any = None) -> CompiledKernel:
        return replace(compiled(Gemm(64, 48, 32)), source=source, cubin=b"another", nvrtc="99.0")

    monkeypatch.setattr(nvrtc, "compile_kernel", another)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert list(read_pack(tmp_path / "p.kpack").kernels) == [good.cubin_sha256]
    assert len(report.left_out) == 1
    assert "NVRTC 99.0 makes another" in report.left_out[0]
    assert "left out" in str(report)


def test_an_estimate_may_be_compiled_by_another_nvrtc(
    history: History, cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(history, None, PROBLEM, None)
    another = replace(compiled(PROBLEM), cubin=b"another", nvrtc="99.0")
    monkeypatch.setattr(nvrtc, "compile_kernel", lambda *_: another)
    export_pack(tmp_path / "p.kpack", history, cache=cache)
    (kernel,) = read_pack(tmp_path / "p.kpack").kernels.values()
    assert kernel.nvrtc == "99.0"


def test_an_earlier_export_saves_a_cubin(
    history: History, cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = record(history, cache)
    export_pack(tmp_path / "p.kpack", history, cache=cache)

    def fails(*_: object) -> None:
        raise CompileError("no.")

    monkeypatch.setattr(nvrtc, "compile_kernel", fails)
    export_pack(tmp_path / "q.kpack", history, cache=KernelCache(tmp_path / "empty"))
    assert list(read_pack(tmp_path / "q.kpack").kernels) == [kernel.cubin_sha256]


def test_without_nvrtc_the_reason_is_told(
    history: History, cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(history, None)

    def missing(*_: object) -> None:
        raise ToolchainError("NVRTC is missing: install it.")

    monkeypatch.setattr(nvrtc, "compile_kernel", missing)
    with pytest.raises(PackError, match=r"no kernel.*NVRTC is missing"):
        export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert not (tmp_path / "p.kpack").exists()
    assert history.exports() == []


def test_nothing_to_export(history: History, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="gemmtune tune"):
        export_pack(tmp_path / "p.kpack", history)
    with pytest.raises(UnknownNameError):
        export_pack(tmp_path / "p.kpack", history, "no such gpu")


def test_what_is_no_pack_is_not_replaced(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache)
    (tmp_path / "p.kpack").write_text("mine")
    with pytest.raises(PackError, match="not a pack"):
        export_pack(tmp_path / "p.kpack", history, cache=cache)
    assert history.exports() == []


# ---------------------------------------------------------------------------------------------------------- ranges


@dataclass
class Meter:
    """A GPU whose kernels reach ``ratio(m)``."""

    ratio: Callable[[int], float]
    outcome: Callable[[int], Outcome] = lambda m: Outcome.CORRECT
    jobs: list[Job] = field(default_factory=list)
    kind: str = "cuda"
    name: str = "cuda:0"
    gpu: Gpu = H200
    estimates: bool = False
    spread: float = 0.0

    def environment(self) -> dict[str, str]:
        return {"driver": "580"}

    def run(self, job: Job, limits: Limits) -> Report:
        self.jobs.append(job)
        m = job.problem.axes["m"]
        ratio = self.ratio(m)
        return Report(
            self.outcome(m),
            measurement=Measurement(10, 9, 11, 10 * ratio, ratio, ratio - self.spread, ratio + self.spread),
        )

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        return [self.run(job, timeout) for job in jobs]

    def close(self) -> None:
        raise AssertionError("the device is the caller's")


def ranges_of(path: Path) -> dict[int, tuple[int, int]]:
    """The claimed range of m by the m in the middle of its exact row's problem."""
    rows = [r for t in read_pack(path).tables for r in t.rows]
    return {sum(r.axes["m"]) // 2: r.axes["m"] for r in rows if not r.exact}


def test_a_range_is_claimed_where_it_was_measured(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    record(history, cache, Gemm(1024, 48, 32))
    meter = Meter(lambda m: 1.2)
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    rows = [r for t in read_pack(tmp_path / "p.kpack").tables for r in t.rows]
    found = {r.axes["m"]: [p.axes["m"] for p in r.points] for r in rows}
    assert found == {
        (64, 64): [64], (1024, 1024): [1024], (32, 256): [32, 144, 256], (257, 2048): [257, 1152, 2048],
    }  # fmt: skip
    assert all(job.verify and job.measure and job.effort == "final" for job in meter.jobs)


def test_a_range_that_loses_at_an_end_is_halved_or_dropped(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    record(history, cache, Gemm(64, 48, 32))
    export_pack(tmp_path / "a.kpack", history, cache=cache, device=Meter(lambda m: 1.2 if m < 100 else 0.9))
    assert list(ranges_of(tmp_path / "a.kpack").values()) == [(32, 90)]
    export_pack(tmp_path / "b.kpack", history, cache=cache, device=Meter(lambda m: 0.9))
    assert ranges_of(tmp_path / "b.kpack") == {}


def test_a_kernel_that_is_wrong_elsewhere_claims_nothing(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    meter = Meter(lambda m: 2.0, lambda m: Outcome.WRONG if m > 64 else Outcome.CORRECT)
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    assert ranges_of(tmp_path / "p.kpack") == {}


def test_no_range_without_a_gpu_of_this_kind(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    for meter in (Meter(lambda m: 2.0, gpu=gpu("a100")), Meter(lambda m: 2.0, estimates=True)):
        export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
        assert ranges_of(tmp_path / "p.kpack") == {}
        assert meter.jobs == []


def test_losers_and_estimates_claim_no_range(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32), 0.5)
    record(history, cache, Gemm(64, 40, 32), None)
    meter = Meter(lambda m: 2.0)
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    assert meter.jobs == []


def test_offered_spans_meet_and_never_overlap() -> None:
    offered = spans([4096, 1, 16, 128, 17])
    assert offered[1][0] == 1
    assert offered[4096][1] == 8192
    ordered = [offered[m] for m in sorted(offered)]
    for (_, high), (low, _) in pairwise(ordered):
        assert high < low
    assert all(low <= m <= high for m, (low, high) in offered.items())


def test_a_range_gives_way_on_the_side_where_its_middle_loses(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    record(history, cache, Gemm(64, 48, 32))
    loses = {128: 1.2, 80: 0.9}  # wins at the far end, not in between
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=Meter(lambda m: loses.get(m, 1.2)))
    assert list(ranges_of(tmp_path / "p.kpack").values()) == [(32, 90)]


# ----------------------------------------------------------------------------------------------------------- noise


def test_a_win_inside_the_noise_is_the_baselines(history: History, cache: KernelCache, tmp_path: Path) -> None:
    kernel = record(history, cache, PROBLEM, 1.005)  # its interval is 0.995 to 1.015
    report = export_pack(tmp_path / "p.kpack", history, cache=cache)
    data = read_pack(tmp_path / "p.kpack")
    (row,) = data.tables[0].rows
    assert (row.kernel, row.candidate, row.ratio) == ("baseline", kernel.cubin_sha256, 1.005)
    assert "baseline" in str(report)
    choice = Dispatch(data, H200.key, H200.arch).choose(PROBLEM)
    assert (choice.how, choice.kernel) == ("baseline", None)
    assert "lies within noise (0.995 to 1.015), so the baseline serves" in choice.why


def test_a_range_needs_more_than_noise_at_every_point(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(64, 48, 32))
    meter = Meter(lambda m: 1.2 if m <= 64 else 1.004, spread=0.01)
    export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    assert list(ranges_of(tmp_path / "p.kpack").values()) == [(32, 64)]


# -------------------------------------------------------------------------------------------------- one size left out


def test_a_size_held_out_is_answered_by_its_neighbour(history: History, cache: KernelCache, tmp_path: Path) -> None:
    for m in (32, 64, 128):
        record(history, cache, Gemm(m, 48, 32), 1.5)
    meter = Meter(lambda m: 1.2)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    held = {h.problem.axes["m"]: h for h in report.held_out}
    assert {m: (h.how, h.tuned_at) for m, h in held.items()} == {
        32: ("range", 64), 64: ("range", 32), 128: ("range", 64),
    }  # fmt: skip
    assert all(h.regret == pytest.approx(0.25) and h.best_ratio == 1.5 for h in held.values())
    assert "3 sizes, 3 answered by a neighbour's range" in str(report)
    assert "never slower than the baseline" in str(report)
    assert "25.0 % in the mean" in str(report)
    judged = [j.problem.axes["m"] for j in meter.jobs if j.seed == 1]
    assert sorted(judged) == [32, 64, 128]  # anew, on other inputs than the claim's


def test_a_loss_between_the_points_of_a_range_is_found(history: History, cache: KernelCache, tmp_path: Path) -> None:
    for m in (32, 60, 128):
        record(history, cache, Gemm(m, 48, 32), 1.5)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache, device=Meter(lambda m: 0.8 if m == 60 else 1.5))
    (lost,) = [h for h in report.held_out if h.ratio < 1]
    assert (lost.problem.axes["m"], lost.regret) == (60, pytest.approx(1.5 / 0.8 - 1))
    assert "at most 25.0 % slower than the baseline (gemm 60x48x32" in str(report)


def test_a_range_is_taken_back_where_a_size_held_out_shows_it_wrong(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    for m in (32, 60, 128):
        record(history, cache, Gemm(m, 48, 32), 1.5)
    meter = Meter(lambda m: 1.5, lambda m: Outcome.WRONG if m == 60 else Outcome.CORRECT)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache, device=meter)
    assert ranges_of(tmp_path / "p.kpack") == {}  # the three sizes share one cubin
    (line,) = report.left_out
    assert "is wrong for gemm 60x48x32" in line


def test_losers_and_lone_sizes_answer_with_the_baseline(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache, Gemm(32, 48, 32), 1.5)
    record(history, cache, Gemm(64, 48, 32), 0.7)
    record(history, cache, Gemm(64, 40, 32), 1.5)
    report = export_pack(tmp_path / "p.kpack", history, cache=cache, device=Meter(lambda m: 1.5))
    held = {h.problem.axes["m"]: h for h in report.held_out}
    assert set(held) == {32, 64}
    assert (held[32].how, held[32].regret) == ("baseline", pytest.approx(0.5))
    assert (held[64].how, held[64].ratio, held[64].regret) == ("range", 1.5, 0.0)
    quiet = export_pack(tmp_path / "q.kpack", history, cache=cache, device=Meter(lambda m: 1.5), hold_out=False)
    assert quiet.held_out == ()
    assert "leave one M out" not in str(quiet)


# ------------------------------------------------------------------------------------------------------ brought back


@pytest.mark.parametrize("name", ["again.kpack", "again.zip"])
def test_an_export_is_brought_back_byte_for_byte(
    history: History, cache: KernelCache, tmp_path: Path, name: str
) -> None:
    record(history, cache)
    first = export_pack(tmp_path / "p.kpack", history, cache=cache)
    record(history, cache, Gemm(64, 40, 32))
    export_pack(tmp_path / "q.kpack", history, cache=cache)
    found = restore_pack(tmp_path / name, history, first.export_id[:8])
    assert (found.name, found.manifest_sha256) == ("p.kpack", first.manifest_sha256)
    assert read_files(tmp_path / name) == read_files(tmp_path / "p.kpack")
    restore_pack(tmp_path / name, history, "latest")
    assert read_files(tmp_path / name) == read_files(tmp_path / "q.kpack")
    restore_pack(tmp_path / name, history, first.manifest_sha256[:10])
    assert read_files(tmp_path / name) == read_files(tmp_path / "p.kpack")


def test_an_export_travels_with_the_history(history: History, cache: KernelCache, tmp_path: Path) -> None:
    record(history, cache)
    first = export_pack(tmp_path / "p.kpack", history, cache=cache)
    history.export(tmp_path / "h.gz")
    with History(tmp_path / "other.db") as other:
        other.merge(tmp_path / "h.gz")
        restore_pack(tmp_path / "again.kpack", other, first.export_id)
    assert read_files(tmp_path / "again.kpack") == read_files(tmp_path / "p.kpack")


def test_what_the_history_does_not_have_is_not_brought_back(
    history: History, cache: KernelCache, tmp_path: Path
) -> None:
    with pytest.raises(UnknownNameError, match="has no export"):
        restore_pack(tmp_path / "x.kpack", history, "latest")
    history.record_export("old.kpack", "ab" * 32, [])
    with pytest.raises(PackError, match=r"old\.kpack.*cubins alone"):
        restore_pack(tmp_path / "x.kpack", history, "abab")
    with pytest.raises(UnknownNameError, match=r"no export 'zz'.*old\.kpack"):
        restore_pack(tmp_path / "x.kpack", history, "zz")
    history.record_export("new.kpack", "ac" * 32, [])
    with pytest.raises(UnknownNameError, match="2 exports begin with 'a'"):
        restore_pack(tmp_path / "x.kpack", history, "a")


# ------------------------------------------------------------------------------------------------------- the benchmark


def test_the_benchmark_tunes_holds_out_and_writes_one_file(
    tmp_path: Path, cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "dispatch.py"
    spec = importlib.util.spec_from_file_location("dispatch_benchmark_run", path)
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    class OnGpu(Meter):
        def close(self) -> None:
            pass

    def tune(problems: list[Gemm], device: Any, *, history: History, **_: Any) -> None:
        assert [p.dtype for p in problems] == ["bf16"] * 3
        for problem in problems:
            record(history, cache, Gemm(problem.m, problem.n, problem.k), 1.5)

    monkeypatch.setattr(script, "SIZES", (32, 64, 128))
    monkeypatch.setattr(script, "open_device", lambda name: OnGpu(lambda m: 0.9 if m == 64 else 1.2))
    monkeypatch.setattr(script, "tune", tune)
    out = tmp_path / "dispatch.json"
    for product, code in (("48x32", 0), ("40x32", 0)):
        argv = ["dispatch.py", str(out), "--product", product, "--db", str(tmp_path / "histories")]
        monkeypatch.setattr("sys.argv", argv)
        with pytest.raises(SystemExit) as ended:
            script.main()
        assert ended.value.code == code
    result = read_result_file(out)
    assert (result.name, result.gpu, result.rows) == ("dispatch", "NVIDIA H200", ())
    answers = result.summary["answers"]
    assert [(a["m"], a["n"], a["how"]) for a in answers] == [
        (m, n, "baseline" if m == 64 else "range") for n in (48, 40) for m in (32, 64, 128)
    ]  # fmt: skip
    assert result.summary["products"] == 2
