"""The script of ``benchmarks/search/live.py``: short studies beside a pack's kernels, its figures, parts and files."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gemmtune.codegen.cache import default_root
from gemmtune.db import History
from gemmtune.device.base import Measurement, Outcome, Report
from gemmtune.device.emulator.toolchain import find_toolchain
from gemmtune.pack.export import export_pack
from gemmtune.pack.format import read_pack, write_pack
from gemmtune.pack.schema import BASELINE
from gemmtune.search.result_file import blank_of
from gemmtune.search.results import read_result_file, save
from gemmtune.search.study import tune
from gemmtune.space.errors import LaunchError, ProblemError, ToolchainError
from gemmtune.space.gemm import Gemm

FIRST, SECOND, UNKNOWN = Gemm(64, 64, 64), Gemm(64, 128, 64), Gemm(128, 64, 64)
RUN = {"timed_on": "here", "estimated": False, "trials_a_shape": 60, "families": None, "pack": "p", "pack_sha256": "0"}


@pytest.fixture(scope="module")
def script(load_benchmark):
    return load_benchmark("search/live.py")


@pytest.fixture
def run(script, monkeypatch):
    """The script with these words on its command line: its exit code."""

    def of(*words):
        monkeypatch.setattr(sys, "argv", ["live.py", *map(str, words)])
        try:
            return script.main()
        except SystemExit as ended:
            return ended.code

    return of


# ------------------------------------------------------------------------------------------------- figures and joining


def row(problem, group, over_pack=None, seconds=10.0):
    compared = {"why": "No kernel."} if over_pack is None else {"over_pack": over_pack}
    return {"problem": problem, "group": group, "trials": 60, "seconds": seconds, **compared}


def rows(*listed):
    return {one["problem"]: one for one in listed}


def test_the_summary_is_of_what_could_be_compared_and_time_is_of_all(script):
    found = script.summarise(rows(row("x", "a", 1.21), row("y", "a", 1.0), row("z", "b", 0.9), row("w", "b")), RUN)
    assert (found["shapes"], found["compared"], found["trials"], found["tuning_seconds"]) == (4, 3, 240, 40.0)
    assert found["over_pack"] == pytest.approx((1.21 * 1.0 * 0.9) ** (1 / 3))
    assert found["by_group"] == {"a": pytest.approx(1.1), "b": pytest.approx(0.9)}
    assert list(found["worst"].items()) == [("x", 1.21), ("y", 1.0), ("z", 0.9)]
    assert script.summarise(rows(row("w", "b")), RUN)["over_pack"] is None
    assert list(script.summarise(rows(*(row(str(i), "a", 1 + i) for i in range(9))), RUN)["worst"]) == list("87654")


@pytest.fixture
def part(script, tmp_path):
    """A file of some rows."""

    def of(name, listed, **changes):
        summary = script.summarise(rows(*listed), {**RUN, **changes})
        save(tmp_path / name, blank_of("live", "NVIDIA H200", {}, "as always", summary))
        return tmp_path / name

    return of


def test_parts_are_joined_by_problem_and_judged_together(script, part, run, tmp_path):
    one = part("a.json", [row("x", "a", 1.02, 5.0), row("y", "a")])
    other = part("b.json", [row("y", "a", 1.005, 7.0), row("z", "b", 1.0, 3.0)])
    assert run(tmp_path / "live.json", "--join", one, other) == 0
    joined = read_result_file(tmp_path / "live.json").summary
    assert [study["problem"] for study in joined["studies"]] == ["x", "y", "z"]
    assert (joined["compared"], joined["tuning_seconds"], joined["trials_a_shape"]) == (3, 15.0, 60)
    assert run(tmp_path / "one.json", "--join", one) == 1  # 1.02 misses the bar
    assert run(tmp_path / "none.json", "--join", part("c.json", [row("y", "a")])) == 1


@pytest.mark.parametrize("change", [{"trials_a_shape": 300}, {"pack_sha256": "1"}, {"timed_on": "there"}])
def test_parts_of_several_runs_are_not_joined(script, part, tmp_path, change):
    parts = [part("a.json", [row("x", "a", 1.0)]), part("b.json", [row("y", "a", 1.0)], **change)]
    with pytest.raises(ProblemError, match=f"b.json' has {next(iter(change))} .* write to another file"):
        script.join(tmp_path / "live.json", parts)
    assert not (tmp_path / "live.json").exists()


def test_a_file_of_another_benchmark_is_no_part(script, tmp_path):
    save(tmp_path / "noise.json", blank_of("noise", "", {}, "", {"rate": 0.0}))
    with pytest.raises(ProblemError, match="has timed_on None"):
        script.join(tmp_path / "live.json", [tmp_path / "noise.json"])


@pytest.mark.parametrize("words", [("p.kpack", "o.json", "--part", "2/2"), ("p.kpack", "o.json", "--part", "x"),
                                   ("o.json",), ("p.kpack", "o.json", "--join", "a.json")])  # fmt: skip
def test_a_command_line_that_makes_no_sense_is_refused(run, words):
    assert run(*words) == 2


# ---------------------------------------------------------------------------------------------------------- comparing

TIME = Measurement(10.0, 9.0, 11.0, 20.0)


class Racing:
    """A device whose comparisons come out as listed, one after another."""

    def __init__(self, *outcomes):
        self.left = list(outcomes)
        self.jobs = []

    def compare(self, jobs, timeout):
        self.jobs = jobs
        return [Report(outcome, "So it was.", measurement=TIME) for outcome in self.left.pop(0)]


CALM, BOTH = (Outcome.CORRECT, Outcome.CORRECT), [SimpleNamespace(configuration=name) for name in ("ours", "theirs")]


def test_a_disturbed_comparison_is_done_once_more(script):
    device = Racing((Outcome.CORRECT, Outcome.UNSTABLE), CALM)
    ours, theirs = script.race(device, FIRST, BOTH)
    assert (ours["config"], theirs["config"], ours["us"], theirs["baseline_us"]) == ("ours", "theirs", 10.0, 20.0)
    assert len({job.seed for job in device.jobs}) == 1
    assert all(job.effort == "final" and job.verify and job.thorough for job in device.jobs)
    assert not device.left
    with pytest.raises(LaunchError, match=r"ours of .* ended as unstable"):
        script.race(Racing(*[(Outcome.UNSTABLE, Outcome.CORRECT)] * 2), FIRST, BOTH)


def test_a_kernel_that_is_wrong_is_not_compared(script):
    device = Racing((Outcome.CORRECT, Outcome.WRONG), CALM)
    with pytest.raises(LaunchError, match=r"theirs of .* ended as wrong beside the other: So it was"):
        script.race(device, FIRST, BOTH)
    assert device.left == [CALM]


# ------------------------------------------------------------------------------------------------ on an emulated H200


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """A history of two problems, and its pack, which leaves the second one to the baseline."""
    from gemmtune.codegen.nvrtc import nvrtc_version

    try:
        nvrtc_version()
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("longer")
    tune([FIRST, SECOND], "emulator:h200", trials=3, history=folder / "h.db", workers=2)
    export_pack(folder / "p.kpack", folder / "h.db")
    data = read_pack(folder / "p.kpack")
    tables = [
        replace(
            t, rows=tuple(replace(r, kernel=BASELINE, candidate=r.kernel) if "128" in str(r) else r for r in t.rows)
        )
        for t in data.tables
    ]
    write_pack(folder / "p.kpack", replace(data, tables=tuple(tables)))
    return folder


@pytest.fixture
def tried(run, longer, tmp_path, monkeypatch):
    """The script on the emulator and three tiny shapes, with these words besides: its exit code."""
    monkeypatch.setenv("GEMMTUNE_CACHE", str(default_root()))  # where the emulator is built already
    (tmp_path / "tiny.toml").write_text("[a]\nshapes = [[64, 64, 64], [64, 128, 64]]\n[b]\nshapes = [[128, 64, 64]]\n")
    usual = {"--shapes": tmp_path / "tiny.toml", "--trials": 2, "--device": "emulator:h200"}

    def of(output, *words):
        return run(longer / "p.kpack", tmp_path / output, *(w for pair in usual.items() for w in pair), *words)

    return of


def studies(path):
    return {one["problem"]: one for one in json.loads(path.read_text())["summary"]["studies"]}


def test_every_shape_is_tuned_and_what_the_pack_has_is_compared(tried, tmp_path, monkeypatch, script):
    assert tried("live.json") == 0
    result, found = read_result_file(tmp_path / "live.json"), studies(tmp_path / "live.json")
    assert result.estimated
    assert list(found) == [FIRST.key, SECOND.key, UNKNOWN.key]
    assert all(one["trials"] == 2 and one["seconds"] > 0 for one in found.values())
    assert [one["group"] for one in found.values()] == ["a", "a", "b"]
    assert [one["pack"]["serves"] for one in (found[FIRST.key], found[SECOND.key])] == [True, False]
    for one in (found[FIRST.key], found[SECOND.key]):
        assert one["over_pack"] == pytest.approx(one["us"] / one["pack"]["us"])
        assert one["over_pack_low"] <= one["over_pack"] <= one["over_pack_high"]
    assert found[UNKNOWN.key]["why"] == f"The pack has no row for {UNKNOWN.key} alone: tune it and export anew."
    assert found[FIRST.key]["borrowed"] == []
    assert f"from {FIRST.key} on this GPU" in found[SECOND.key]["borrowed"][0]
    monkeypatch.setattr(script, "BAR", 0.1)
    assert tried("live.json", "--groups", "a") == 1  # all is there; the bar is missed


def test_a_run_that_was_stopped_keeps_what_it_had_and_goes_on(tried, tmp_path, monkeypatch, script):
    def stop(watch, sources):
        raise KeyboardInterrupt

    history = tmp_path / "h.db"
    with monkeypatch.context() as patched:
        patched.setattr(script.Watch, "borrowed", stop)  # the second study is the first that borrows
        assert tried("live.json", "--db", history, "--groups", "a") == 130
    first = studies(tmp_path / "live.json")
    assert list(first) == [FIRST.key]
    assert tried("live.json", "--db", history, "--groups", "a") == 0
    both = studies(tmp_path / "live.json")
    assert both[FIRST.key] == first[FIRST.key]
    assert list(both) == [FIRST.key, SECOND.key]
    with History(history) as opened:
        assert [study.trials for study in opened.studies()] == [2, 2]


def test_parts_share_the_shapes(tried, tmp_path):
    assert tried("b.json", "--part", "1/2") == 0
    assert list(studies(tmp_path / "b.json")) == [SECOND.key]


def test_a_pack_of_other_shapes_is_refused_before_anything_is_tuned(tried, tmp_path, capsys):
    assert tried("live.json", "--groups", "b") == 2
    assert "has no row (sustained, cold) of any of these shapes" in capsys.readouterr().err
    assert not (tmp_path / "live.json").exists()


def test_a_history_of_longer_studies_is_refused_since_they_would_be_borrowed_from(tried, longer, tmp_path, capsys):
    assert tried("live.json", "--db", longer / "h.db") == 2
    assert "must not borrow: name a new file" in capsys.readouterr().err
    assert not (tmp_path / "live.json").exists()
