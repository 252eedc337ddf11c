"""Suites: shapes by group, rows against the best peer of each shape, ways of timing kept apart, results checked."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from gemmtune.cli.bench_table import show_rows
from gemmtune.codegen.kernel import CompiledKernel, KernelResources
from gemmtune.db import History
from gemmtune.device.base import Measurement, Outcome, Report, Verification
from gemmtune.search.benchmark import EXCERPT, benchmark
from gemmtune.search.result_file import blank_result, earlier_file, joined, write_result_file
from gemmtune.search.results import BenchRow, read_result_file, save, summarise
from gemmtune.search.standing import against, best_ratio
from gemmtune.search.study import tune
from gemmtune.search.suite import read_suite
from gemmtune.space import families
from gemmtune.space.errors import LaunchError, ProblemError, UnknownNameError
from gemmtune.space.families.naive import Naive

SHAPES = Path(__file__).parents[2] / "benchmarks" / "shapes.toml"

ROW = BenchRow(
    m=4096, n=4096, k=1024, dtype="bf16", out_dtype="bf16", layout="nt", epilogue="identity", scaling="none",
    regime="sustained", cache="cold", family="hopper", config="hopper bm=128", trials=100, wall_s=12.5, us=50.0,
    us_low=49.0, us_high=51.0, floor_us=45.0, peers={"cublas": 60.0, "cublaslt16": 55.0, "triton": 52.0},
    rel_error=1e-3, error_bound=4e-3, group="prefill",
)  # fmt: skip


def row(**changes):
    return dataclasses.replace(ROW, **changes)


# ---------------------------------------------------------------------------------------------------------- the shapes


def test_the_suite_of_every_speed_claim_has_42_shapes_in_five_groups():
    suite = read_suite(SHAPES)
    assert {name: len(shapes) for name, shapes in suite.groups.items()} == {
        "square": 5, "tall_wide": 4, "prefill": 9, "decode": 18, "odd": 6,
    }  # fmt: skip
    assert len(suite.shapes) == 42
    assert suite.group_of(row(m=7, n=4096, k=4096).problem) == "odd"
    assert suite.group_of(row(m=7, n=4096, k=4097).problem) == ""
    assert suite.grouped(row(m=1, n=4096, k=4096, group="")).group == "decode"


def test_groups_are_chosen_by_name_and_unknown_ones_refused(tmp_path):
    chosen = read_suite(SHAPES, ["prefill", "square"])
    assert list(chosen.groups) == ["square", "prefill"]
    with pytest.raises(ProblemError, match="no group 'wide': it has square, tall_wide, prefill, decode, odd"):
        read_suite(SHAPES, ["wide"])
    twice = tmp_path / "twice.toml"
    twice.write_text("[a]\nshapes = [[8, 8, 8]]\n[b]\nshapes = [[8, 8, 8], [9, 8, 8]]\n")
    suite = read_suite(twice)
    assert suite.shapes == [(8, 8, 8), (9, 8, 8)]
    assert suite.group_of(row(m=8, n=8, k=8).problem) == "a"


# ----------------------------------------------------------------------------------------------------- where rows stand


def test_the_best_peer_is_taken_shape_by_shape():
    other = row(m=64, us=10.0, us_low=10.0, us_high=10.0, peers={"cublas": 9.5, "cublaslt16": 20.0}, group="decode")
    assert best_ratio(ROW) == pytest.approx(1.1)
    assert best_ratio(ROW, None) == pytest.approx(1.04)
    assert best_ratio(row(peers={"triton": 5.0})) is None
    vendor = against([ROW, other], ("cublas", "cublaslt16"))
    assert vendor.ratio == pytest.approx(math.sqrt(1.1 * 0.95))
    assert (vendor.lowest, vendor.where, vendor.losses, vendor.rows) == (0.95, other.problem.key, 1, 2)
    means = summarise([ROW, other])
    assert means.vendor == vendor
    assert means.vendor.ratio < min(means.ratios["cublas"], means.ratios["cublaslt16"])
    assert {name: one.rows for name, one in means.by_group.items()} == {"prefill": 1, "decode": 1}
    assert means.by_group["decode"].vendor.ratio == pytest.approx(0.95)
    assert against([row(peers={})], None) is None


def test_other_regimes_and_overlapping_launches_count_in_no_mean_but_their_own():
    burst = row(regime="burst", us=100.0, us_low=100.0, us_high=100.0)
    overlapped = row(programmatic=True, us=1.0, us_low=1.0, us_high=1.0)
    for order in ([ROW, burst, overlapped], [overlapped, burst, ROW]):
        means = summarise(order)
        assert means.rows == (ROW,)
        assert means.ratios["cublas"] == pytest.approx(1.2)
        assert set(means.apart) == {"burst, cold", "sustained, cold, programmatic"}
        assert means.apart["burst, cold"].ratios["cublas"] == pytest.approx(0.6)
        assert means.apart["sustained, cold, programmatic"].vendor.ratio == pytest.approx(55.0)


def test_a_file_keeps_groups_ways_and_notes_and_checks_every_mean(tmp_path, fake_device):
    path = tmp_path / "s.json"
    rows = [ROW, row(regime="burst"), row(programmatic=True)]
    written = write_result_file(path, rows, device=fake_device(), notes=["deepgemm is not there."])
    again = read_result_file(path)
    assert again == written
    assert again.rows == tuple(rows)
    assert again.summary["notes"] == ["deepgemm is not there."]
    data = json.loads(path.read_text())
    assert "programmatic" not in data["rows"][0]
    for damage in (
        lambda d: d["summary"]["by_group"]["prefill"].update(floor_fraction=0.99),
        lambda d: d["summary"]["vendor"].update(ratio=1.3),
        lambda d: d["summary"]["apart"]["burst, cold"]["ratios"].update(cublas=9.0),
        lambda d: d["rows"][2].pop("programmatic"),
        lambda d: d["rows"][0].update(programmatic=1),
    ):
        broken = json.loads(path.read_text())
        damage(broken)
        (tmp_path / "broken.json").write_text(json.dumps(broken))
        with pytest.raises(ProblemError):
            read_result_file(tmp_path / "broken.json")


def test_rows_of_another_regime_type_or_layout_join_a_file_and_those_of_the_same_are_replaced(tmp_path, fake_device):
    path = tmp_path / "s.json"
    assert earlier_file(path, fake_device()) is None
    write_result_file(path, [ROW, row(m=64)], device=fake_device())
    burst = [row(regime="burst")]
    both = joined(earlier_file(path, fake_device()).rows, burst)
    assert both == [ROW, row(m=64), *burst]
    write_result_file(path, both, device=fake_device())
    fresh = [row(us=49.5)]
    assert joined(earlier_file(path, fake_device()).rows, fresh) == [*burst, *fresh]
    for other in (row(layout="nn"), row(dtype="fp16", out_dtype="fp16"), row(out_dtype="fp32")):
        assert joined(earlier_file(path, fake_device()).rows, [other]) == [ROW, row(m=64), *burst, other]
    for other in (fake_device(versions={"driver": "2"}), fake_device(kind="emulator")):
        with pytest.raises(ProblemError, match="write to another file"):
            earlier_file(path, other)


# -------------------------------------------------------------------------------------------------------- benchmarking


@pytest.fixture
def arena(toys, monkeypatch, fake_device, excerpt, tmp_path, problem):
    """A tuned toy and a device that times it beside peers, as it is told to."""
    monkeypatch.setattr(families, "FAMILIES", {"toy": toys, "naive": Naive()})

    def compile_at_once(source, arch, cache):
        return CompiledKernel(source, arch, source.text.encode(), KernelResources(64, 0, 0, 0), "13.0", "", 0, False)

    for module in ("benchmark", "known"):
        monkeypatch.setattr(f"gemmtune.search.{module}.compile_kernel", compile_at_once)
    monkeypatch.setattr("gemmtune.search.benchmark.baseline_name", lambda problem: "cublas")

    class Arena(fake_device):
        peers = {"cublaslt16": 18.0}  # noqa: RUF012
        spoilt = ()
        unstable = 0
        silent = False
        levels = ()

        def compare(self, jobs, timeout):
            self.compared.append(jobs)
            proof = Verification(True, 1e-4, 1e-2, 0.01, ("all",), 1.0)
            time = Measurement(10.0, 9.9, 10.1, 20.0, 2.0, 1.98, 2.02)
            (job, *rest) = jobs
            timed = {name: us for name, us in self.peers.items() if name in job.peers}
            taken = excerpt(job.problem, ("kernel", "cublas", *timed), count=job.excerpt)
            for name in self.spoilt:
                taken.outputs[name][-1, -1] = 99
            absent = {name: f"The peer {name} is not there." for name in job.peers if name not in timed}
            outcome, detail = Outcome.CORRECT, ""
            if len(self.compared) <= self.unstable:
                outcome, detail = Outcome.UNSTABLE, "Its ratio varies."
                baseline = tuple(10.0 * ratio for ratio in self.levels)
                time = dataclasses.replace(time, samples=(10.0,) * len(baseline), baseline_samples=baseline)
            excerpted = None if self.silent else taken
            ours = Report(outcome, detail, proof, time, excerpt=excerpted, peers=timed, absent=absent)
            return [ours, *(Report(Outcome.CORRECT, "", proof, time) for _ in rest)]

    with History(tmp_path / "h.db") as history:
        tune(problem, fake_device(), trials=6, history=history, families=["toy"])
        yield Arena, history


def test_peers_are_timed_where_they_are_and_said_where_not(problem, arena):
    device, (make, history), notes = None, arena, []
    device = make()
    (found,) = benchmark(problem, device, history, peers=["cublaslt16", "deepgemm", "naive"], noted=notes.append)
    assert found.peers == {"cublas": 20.0, "cublaslt16": 18.0, "naive": 10.0}
    assert notes == [f"{problem.key}: The peer deepgemm is not there."]
    ((ours, naive),) = device.compared
    assert (ours.peers, ours.excerpt) == (("cublaslt16", "deepgemm"), EXCERPT)
    assert (naive.peers, naive.excerpt) == ((), 0)
    (alone,) = benchmark(problem, make(), history, peers=[])
    assert alone.peers == {"cublas": 20.0}
    with pytest.raises(UnknownNameError, match="'cutlass': known are cublaslt16, triton, deepgemm, naive"):
        benchmark(problem, make(), history, peers=["cutlass"])


def test_a_peer_whose_result_is_wrong_is_not_timed(problem, arena):
    make, history = arena
    device, notes = make(), []
    device.spoilt = ("cublaslt16",)
    (found,) = benchmark(problem, device, history, peers=["cublaslt16"], noted=notes.append)
    assert "cublaslt16" not in found.peers
    assert "the result of cublaslt16 is wrong against float64" in notes[0]


def test_our_own_wrong_or_missing_result_makes_no_row(problem, arena):
    make, history = arena
    device = make()
    device.spoilt = ("kernel",)
    with pytest.raises(LaunchError, match=r"is wrong against float64 on the CPU: .* row 511, column 511"):
        benchmark(problem, device, history)
    device = make()
    device.silent = True
    with pytest.raises(LaunchError, match="did not come back to be checked"):
        benchmark(problem, device, history)


def test_an_unstable_time_is_measured_once_more(problem, arena):
    make, history = arena
    device, notes = make(), []
    device.unstable = 1
    assert benchmark(problem, device, history, noted=notes.append)
    assert len(device.compared) == 2
    assert "timed once more: Its ratio varies." in notes[0]
    device = make()
    device.unstable = 2
    with pytest.raises(LaunchError, match="ended as unstable"):
        benchmark(problem, device, history)
    assert len(device.compared) == 2


def test_a_ratio_of_two_levels_twice_makes_a_row_that_says_so_and_spans_both(problem, arena, tmp_path, capsys):
    make, history = arena
    device = make()
    device.unstable, device.levels = 2, (1.9,) * 6 + (2.1,) * 6
    (row,) = benchmark(problem, device, history)
    assert row.unstable == "Its ratio varies."
    assert (row.us_low, row.us, row.us_high) == pytest.approx((20 / 2.1, 10.0, 20 / 1.9))
    data = blank_result("bench", device, "As told.")
    save(tmp_path / "b.json", dataclasses.replace(data, rows=(row,), summary=summarise([row]).to_json()))
    assert read_result_file(tmp_path / "b.json").rows == (row,)
    show_rows([row])
    assert f"{problem.key}: Its ratio varies. Its interval spans both." in capsys.readouterr().out


def test_kernels_that_overlap_their_launches_are_asked_for_apart(problem, arena, toys, monkeypatch):
    make, history = arena
    plan = type(toys).plan

    def overlapping(self, problem, configuration):
        recipe = plan(self, problem, configuration)
        return dataclasses.replace(recipe, programmatic=configuration["order"] == winner["order"])

    best = history.best(limit=1)[0].configuration
    winner = dict(part.split("=") for part in best.split()[1:])
    monkeypatch.setattr(type(toys), "plan", overlapping)
    device = make()
    (whatever,) = benchmark(problem, device, history)
    assert (whatever.config, whatever.programmatic) == (best, True)
    assert all(job.overlap for job in device.compared[0])
    known = {r.configuration for r in history.best(limit=None)}
    assert any(f"order={winner['order']}" not in c for c in known), "the seed gave one order alone"
    device = make()
    (plain,) = benchmark(problem, device, history, programmatic=False)
    assert (f"order={winner['order']}" in plain.config, plain.programmatic) == (False, False)
    assert not any(job.overlap for job in device.compared[0])
    monkeypatch.setattr(type(toys), "plan", plan)
    with pytest.raises(UnknownNameError, match="does not overlap its launches"):
        benchmark(problem, make(), history, programmatic=True)
