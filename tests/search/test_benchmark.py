import dataclasses
import json
import math
from pathlib import Path

import pytest

from gemmtune.codegen.kernel import CompiledKernel, KernelResources
from gemmtune.db import History
from gemmtune.device.base import Measurement, Outcome, Report, Verification
from gemmtune.search import results
from gemmtune.search.benchmark import benchmark
from gemmtune.search.result_file import source_commit, write_result_file
from gemmtune.search.results import BenchRow, read_result_file, result_from_json, summarise
from gemmtune.search.study import tune
from gemmtune.search.why import why
from gemmtune.space import families
from gemmtune.space.errors import (
    ConfigurationError,
    DatabaseError,
    LaunchError,
    ProblemError,
    SettingError,
    UnknownNameError,
)
from gemmtune.space.families.naive import Naive
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

ROW = BenchRow(
    m=4096, n=4096, k=1024, dtype="bf16", out_dtype="bf16", layout="nt", epilogue="identity", scaling="none",
    regime="sustained", cache="cold", family="mma", config="mma bm=128", trials=100, wall_s=12.5, us=60.0, us_low=59.0,
    us_high=61.0, floor_us=45.0, peers={"cublas": 48.0, "naive": 6000.0}, rel_error=1e-3, error_bound=4e-3,
)  # fmt: skip


@pytest.fixture
def history(tmp_path, toys):
    with History(tmp_path / "h.db") as h:
        yield h


@pytest.fixture
def bench(toys, monkeypatch, fake_device, excerpt):
    """A device that has benchmarked kernels prove and time themselves, and no compiler."""
    monkeypatch.setattr(families, "FAMILIES", {"toy": toys, "naive": Naive()})

    def compile_at_once(source, arch, cache):
        return CompiledKernel(source, arch, source.text.encode(), KernelResources(64, 0, 0, 0), "13.0", "", 0, False)

    for module in ("benchmark", "known"):
        monkeypatch.setattr(f"gemmtune.search.{module}.compile_kernel", compile_at_once)
    monkeypatch.setattr("gemmtune.search.benchmark.baseline_name", lambda problem: "cublas")

    class Bench(fake_device):
        wrong = ()

        def compare(self, jobs, timeout):
            self.compared.append(jobs)
            return [self._compared(job) for job in jobs]

        def _compared(self, job):
            name = job.kernel.configuration.family
            if name in self.wrong:
                return Report(Outcome.WRONG, "D[3, 4] is off.")
            if name == "toy":
                taken = None if self.estimates or not job.excerpt else excerpt(job.problem, ("kernel", "cublas"))
                return Report(Outcome.CORRECT, "", *self._proof(job), excerpt=taken)
            proof = Verification(True, 1e-4, 1e-2, 0.01, ("all",), 1.0)
            return Report(Outcome.CORRECT, "", proof, Measurement(500, 490, 510, 20, 0.04, 0.03, 0.05))

    return Bench


def test_what_finding_a_kernel_cost_are_the_trials_of_all_its_studies(problem, bench, history):
    for seed in (0, 1):
        tune(problem, bench(), trials=20, seed=seed, history=history, families=["toy"])
    tune(problem, bench(), trials=20, regime="burst", history=history, families=["toy"])
    (row,) = benchmark(problem, bench(), history)
    assert row.trials == 40
    timed_so = history.trials(regime="sustained", limit=None)
    assert row.wall_s == pytest.approx(sum(r.seconds["wall"] for r in timed_so))


def test_the_best_known_kernel_is_timed_beside_cublas_and_the_naive_one(problem, bench, history):
    (study,) = tune(problem, bench(), trials=20, history=history, families=["toy"])
    device = bench()
    (row,) = benchmark(problem, device, history)
    assert row.config == study.best[0].configuration
    assert (row.us, row.peers, row.estimated) == (study.best[0].us, {"cublas": 20.0, "naive": 500}, False)
    assert (row.trials, row.problem) == (20, problem)
    assert row.wall_s == pytest.approx(sum(r.seconds["wall"] for r in history.trials(limit=None)))
    assert row.ratio("cublas") == 20.0 / row.us
    assert row.ratio("torch") is None
    assert row.tflops == pytest.approx(2 * 512**3 / row.us / 1e6)
    ((ours, naive),) = device.compared
    assert naive.kernel.configuration.family == "naive"
    assert ours.verify
    assert naive.verify


@pytest.mark.parametrize("kind", ["cuda", "emulator"])
def test_among_equals_study_benchmark_pack_and_query_agree_on_the_winner(problem, bench, history, kind):
    class Flat(bench):
        def _proof(self, job):
            proof, measured = super()._proof(job)
            if self.estimates:
                return proof, dataclasses.replace(measured, us=10.0, us_low=10.0, us_high=10.0)
            return proof, Measurement(10.0, 9.9, 10.1, 20.0, 2.0, 1.98, 2.02)

    device = Flat(kind=kind)
    (study,) = tune(problem, device, trials=30, history=history, families=["toy"], strategy="random")
    winner = study.best[0]
    stages = [int(r.configuration.split("stages=")[1].split()[0]) for r in study.best if r.final or kind == "emulator"]
    assert stages[0] == min(stages) < max(stages)
    (row,) = benchmark(problem, device, history)
    assert row.config == winner.configuration
    assert [r.id for r in history.best(limit=1)] == [r.id for r in history.best_kernels()] == [winner.id]
    assert [r.id for r in history.best(limit=None)] == [r.id for r in study.best]


def test_estimates_are_marked_and_have_no_baseline(problem, bench, history, tmp_path):
    device = bench(kind="emulator", name="emulator:h200")
    tune(problem, device, trials=8, history=history, families=["toy"])
    rows = benchmark(problem, device, history)
    assert rows[0].estimated
    assert "cublas" not in rows[0].peers
    written = write_result_file(tmp_path / "e.json", rows, device=device)
    assert written.protocol.startswith("ESTIMATES, not measurements")
    again = read_result_file(tmp_path / "e.json")
    assert again.estimated
    assert again.rows == tuple(rows)


def test_a_problem_without_a_kernel_says_what_to_do_and_may_be_passed_over(problem, bench, history):
    tune(problem, bench(), trials=4, history=history, families=["toy"])
    other = Gemm(64, 64, 64)
    with pytest.raises(UnknownNameError, match=r"No kernel is known for gemm 64x64x64 .* 'gemmtune tune'"):
        benchmark([other, problem], bench(), history)
    missed = []
    rows = benchmark([other, problem], bench(), history, failed=lambda p, e: missed.append(p))
    assert (missed, [r.problem for r in rows]) == ([other], [problem])


def test_a_benchmark_begins_no_history(problem, bench, tmp_path):
    with pytest.raises(DatabaseError, match="There is no history at"):
        benchmark(problem, bench(), tmp_path / "misspelt.db")
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_is_wrong_now_makes_no_row(problem, bench, history):
    tune(problem, bench(), trials=4, history=history, families=["toy"])
    device = bench()
    device.wrong = ("toy",)
    with pytest.raises(LaunchError, match=r"ended as wrong: D\[3, 4\] is off"):
        benchmark(problem, device, history)
    device.wrong = ("naive",)
    assert "naive" not in benchmark(problem, device, history)[0].peers


def test_kernels_of_another_regime_do_not_count(problem, bench, history):
    tune(problem, bench(), trials=4, history=history, families=["toy"])
    with pytest.raises(UnknownNameError, match="burst"):
        benchmark(problem, bench(), history, regime="burst")


# -------------------------------------------------------------------------------------------------------- result files


@pytest.mark.parametrize("bad", [{"regime": "idle"}, {"cache": "hot"}, {"seed": -1}])
def test_settings_out_of_range_are_refused_before_anything_runs(problem, bench, history, bad):
    with pytest.raises(SettingError, match=repr(next(iter(bad.values())))):
        benchmark(problem, bench(), history, **bad)


def test_means_of_ratios_are_geometric_and_peer_over_ours():
    twice = dataclasses.replace(ROW, dtype="fp16", out_dtype="fp16", us=30.0, us_low=30.0, us_high=30.0)
    summary = summarise([ROW, twice])
    assert summary.ratios["cublas"] == pytest.approx(math.sqrt(0.8 * 1.6))
    assert summary.by_dtype["fp16"]["cublas"] == pytest.approx(1.6)
    assert summary.floor_fraction == pytest.approx(math.sqrt(0.75 * 1.5))


def test_a_file_reads_back_as_it_was_written(tmp_path, fake_device):
    written = write_result_file(tmp_path / "deep" / "mine.json", [ROW], device=fake_device())
    assert read_result_file(tmp_path / "deep" / "mine.json") == written
    assert (written.name, written.driver) == ("mine", "1")
    assert written.ceilings["bf16_tflops"] == pytest.approx(ROW.problem.flops / 48.0 / 1e6)
    assert summarise(tmp_path / "deep" / "mine.json").to_json() == written.summary


@pytest.fixture
def data(tmp_path, fake_device):
    write_result_file(tmp_path / "x.json", [ROW], device=fake_device())
    return json.loads((tmp_path / "x.json").read_text())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: d.update(schema=2), "schema 2"),
        (lambda d: d.pop("commit"), "lacks the fields"),
        (lambda d: d.update(extra=1), "unknown fields"),
        (lambda d: d["rows"][0].pop("us"), "lacks the fields"),
        (lambda d: d["rows"][0].update(us=-1.0), "us = -1.0"),
        (lambda d: d["rows"][0].update(us=99.0), "within 59.0 to 61.0"),
        (lambda d: d["rows"][0].update(rel_error=1.0), "within 0.004"),
        (lambda d: d["rows"][0].update(dtype="fp7"), "fp7"),
        (lambda d: d["rows"][0].update(m=True), "m = True"),
        (lambda d: d["rows"][0]["peers"].update(cublas=0), "positive"),
        (lambda d: d["summary"].update(floor_fraction=0.9), "floor_fraction = 0.9"),
        (lambda d: d["summary"]["ratios"].update(cublas=1.2), "ratios"),
        (lambda d: d.update(rows={}), "not a list"),
    ],
)
def test_damaged_files_are_refused_with_the_field(damage, words, data):
    damage(data)
    with pytest.raises(ProblemError, match=words):
        result_from_json(data, "x.json")


def test_files_that_are_no_result_are_refused(tmp_path):
    with pytest.raises(ProblemError, match="cannot be read"):
        read_result_file(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(ProblemError, match="not JSON"):
        read_result_file(tmp_path / "text.json")
    with pytest.raises(ProblemError, match="no rows"):
        summarise([])


def test_every_committed_result_file_keeps_to_the_schema():
    for path in BENCHMARKS.rglob("*.json"):
        assert results.read_result_file(path).name


def test_the_commit_is_a_hash_or_nothing():
    commit = source_commit().removesuffix("-dirty")
    assert commit == "" or (len(commit) == 40 and int(commit, 16) >= 0)


# ----------------------------------------------------------------------------------------------------------------- why


def test_why_names_the_rule_or_the_trials_or_says_never_tried(problem, fake_device, history):
    device = fake_device(outcomes=lambda c: Outcome.WRONG if c["stages"] == 2 else Outcome.CORRECT)
    tune(problem, device, trials=12, history=history)
    for record in history.trials(limit=None):
        (sentence,) = why(record.configuration, problem, gpu("h200"), history)
        assert sentence.startswith(f"Trial {record.id} (cuda, sustained, cold cache) ended as {record.outcome}")
        assert ("x the baseline" in sentence) == (record.outcome == "correct")
    refused = "toy bm=128 bn=128 stages=3 unroll=1 order=row pad=4"
    sentences = why(refused, problem, gpu("h200"), history)
    assert sentences[0].endswith("on h200, for 2 reasons:")
    assert ["threads" in sentences[1], "pairs" in sentences[2]] == [True, True]
    (only,) = why(refused.replace("pad=4", "pad=0"), problem, gpu("h200"), history)
    assert only.startswith("It is not valid for")
    assert why(refused, problem, gpu("h200"), None) == sentences
    tried = {r.configuration for r in history.trials(limit=None)}
    fresh = next(
        c for p in (0, 4, 8) for u in (1, 2, 4)
        if (c := f"toy bm=16 bn=16 stages=2 unroll={u} order=row pad={p}") not in tried
    )  # fmt: skip
    assert why(fresh, problem, gpu("h200"), history)[0].endswith("was never tried.")


def test_why_refuses_what_is_no_configuration(problem, history):
    with pytest.raises(ConfigurationError, match="does not start with its family"):
        why("bm=1", problem, gpu("h200"), history)
    with pytest.raises(UnknownNameError, match="Unknown family 'warp'"):
        why("warp bm=1", problem, gpu("h200"), history)
