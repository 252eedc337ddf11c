"""Replaying strategies on recorded spaces, the files of their figures, and studies as recordings."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.db import History
from gemmtune.search.recorded_study import open_space, recording_of
from gemmtune.search.replay import curve_of, figures, replay
from gemmtune.search.replay_file import add_replays, space_data
from gemmtune.search.replay_plot import plot_replays
from gemmtune.search.results import read_result_file
from gemmtune.search.strategy import Strategy
from gemmtune.search.study import tune
from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import (
    ProblemError,
    RecordingError,
    SettingError,
    ToolchainError,
    UnknownNameError,
    UnsupportedError,
)
from gemmtune.space.recorded import Recorded, RecordedSpace, Recording, write_recording

ROOT = Path(__file__).parents[2]
XGEMM = ROOT / "benchmarks" / "search" / "xgemm-rtx3090.json.gz"


def valley(n: int = 12, failing=lambda x, y: (x + y) % 7 == 3) -> Recording:
    """An n x n valley whose best is 1.0 at (n - 1, 0); every seventh diagonal fails, every fifth row is missing."""
    knobs = (Parameter("x", tuple(range(n))), Parameter("y", tuple(range(n))))
    rows = []
    for x in range(n):
        for y in range(n):
            if x % 5 == 4:
                continue
            c = Configuration.of("valley", {"y": y, "x": x})
            bad = failing(x, y)
            rows.append(Recorded(c, "compile" if bad else "correct", None if bad else 1.0 + (n - 1 - x) + y / 2))
    return Recording("valley", "A card of no table", {"valley": knobs}, tuple(rows))


@pytest.fixture(scope="module")
def space() -> RecordedSpace:
    return RecordedSpace(valley())


# ------------------------------------------------------------------------------------------------------- the space


def test_a_recorded_space_holds_what_was_recorded_and_nothing_else(space):
    assert len(space) == len(space.recording) == 120
    assert {c.key for c in space} == {row.configuration.key for row in space.recording.rows}
    assert [space.index(space[i]) for i in range(len(space))] == list(range(len(space)))
    assert space.raw_size == len(space) + space.rejections["recorded"]
    assert Configuration.of("valley", {"x": 4, "y": 0}) not in space
    corner = space.index(Configuration.of("valley", {"x": 3, "y": 1}))
    near = {(space[i]["x"], space[i]["y"]) for i in space.neighbours(corner)}
    assert near == {(2, 1), (3, 0), (3, 2)}  # x = 4 was not recorded
    assert not space.families[0].estimable
    with pytest.raises(UnsupportedError, match="recorded times alone"):
        space.problem.inputs(0)
    with pytest.raises(UnsupportedError, match="recorded times"):
        space.families[0].traits(space.problem, space[0], space.gpu)
    with pytest.raises(UnknownNameError, match="it has valley"):
        RecordedSpace(valley(), ["hill"])


# -------------------------------------------------------------------------------------------------------- the runs


def test_a_kernel_that_was_given_up_counts_with_its_time_but_is_no_optimum():
    rows = [
        replace(row, outcome="abandoned") if row.us is not None and row.us not in (4.0, 6.0) else row
        for row in valley().rows
    ]
    space = RecordedSpace(replace(valley(), rows=tuple(rows)))
    assert space.recording.optimum == 4.0  # 1.0 to 3.5 were given up in this recording, however that came about
    seen = [5.0, None, 4.5, 3.0]
    assert curve_of(space, seen, 4).tolist() == pytest.approx([0.8, 0.8, 4 / 4.5, 1.0])
    curves = replay(space, "random", budget=120, repeats=5).curves
    assert (curves[:, 2] > 0).mean() > 0.5  # few are correct, most have a time
    assert curves.max() == 1.0


def test_a_run_that_covers_the_space_ends_at_its_optimum_and_never_falls(space):
    told = replay(space, "random", budget=150, repeats=3)
    assert told.curves.shape == (3, 150)
    assert (np.diff(told.curves, axis=1) >= 0).all()
    assert (told.curves[:, -1] == 1.0).all()
    assert replay(space, "exhaustive", budget=len(space), repeats=1).curves[0, -1] == 1.0


def test_a_run_is_a_function_of_its_seed(space):
    one = replay(space, "random", budget=40, repeats=3, seed=5)
    assert (one.curves == replay(space, "random", budget=40, repeats=3, seed=5).curves).all()
    assert (one.curves[1] == replay(space, "random", budget=40, repeats=1, seed=6).curves[0]).all()


class Watched(Strategy):
    """Proposes in order and notes how many results it had seen by then."""

    name = "watched"

    def __init__(self, space, seed):
        super().__init__(space, seed)
        self.known, self.proposals, self.results = 0, [], []

    def _next(self):
        self.proposals.append(self.known)
        return len(self.proposals) - 1

    def _learn(self, result):
        self.known += 1
        self.results.append(result)


def test_a_strategy_is_called_in_the_rhythm_of_a_study(space):
    made = []

    def make(name, space, seed, budget):
        made.append(Watched(space, seed))
        return made[-1]

    replay(space, "watched", budget=30, repeats=1, make=make)
    (strategy,) = made
    # four batches of four blindly, then one for each batch that came back
    assert strategy.proposals == [0] * 16 + [4] * 4 + [8] * 4 + [12] * 4 + [16] * 2
    first = strategy.results[0]
    assert first.outcome == space.recorded(0).outcome
    assert first.objective == space.recording.objective(space.recorded(0))


@pytest.mark.parametrize(("name", "value"), [("budget", 0), ("repeats", 0), ("seed", -1)])
def test_settings_out_of_range_are_refused(space, name, value):
    with pytest.raises(SettingError):
        replay(space, "random", **{name: value})


def test_every_other_card_of_the_format_has_its_optimum_as_its_own():
    space = RecordedSpace(open_space(str(XGEMM)))
    assert (len(space), space.raw_size) == (17956, 82944)
    assert space.recording.optimum == pytest.approx(5657.84)
    assert space.gpu.short == "rtx3090"
    told = replay(space, "random", repeats=4)
    assert 0.6 < figures(told.curves)["fraction"]["200"]["mean"] < 1.0


# --------------------------------------------------------------------------------------------------------- figures


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=60, max_size=60), min_size=1, max_size=7))
def test_figures_agree_with_their_definitions(lines):
    curves = np.maximum.accumulate(np.array(lines), axis=1)
    told = figures(curves)
    assert set(told["fraction"]) == {"25", "50"}
    assert told["fraction"]["50"]["worst"] == pytest.approx(curves[:, 49].min(), abs=1e-5)
    assert told["fraction"]["25"]["mean"] == pytest.approx(curves[:, 24].mean(), abs=1e-5)
    reached = told["evaluations"]["0.95"]
    if reached is not None:  # over half of the runs have arrived by then, and not over half before
        by = (curves[:, int(reached) - 1] >= 0.95).sum()
        before = (curves[:, int(reached) - 2] >= 0.95).sum() if reached > 1 else 0
        assert by > len(curves) // 2 >= before
    else:
        assert (curves[:, -1] >= 0.95).sum() <= len(curves) // 2


def test_the_curve_of_evaluations_made_elsewhere_stands_still_after_their_end(space):
    assert curve_of(space, [None, 4.0, 8.0, 1.0], 6).tolist() == [0.0, 0.25, 0.25, 1.0, 1.0, 1.0]


def test_figures_are_added_to_a_result_file_that_keeps_the_others(space, tmp_path):
    path = tmp_path / "replay.json"
    told = replay(space, "random", budget=30, repeats=2).to_json()
    add_replays(path, space, {"random": told})
    add_replays(path, space, {"other": told})
    second = RecordedSpace(Recording("second", "", space.recording.parameters, space.recording.rows))
    add_replays(path, second, {"random": told})
    found = read_result_file(path).summary["spaces"]
    assert set(found) == {"valley", "second"}
    assert set(found["valley"]["strategies"]) == {"random", "other"}
    assert found["valley"]["configurations"] == 120
    assert len(found["valley"]["strategies"]["random"]["curve"]["mean"]) == 30
    data = json.loads(path.read_text())
    data["summary"] = {}
    path.write_text(json.dumps(data))
    with pytest.raises(ProblemError, match="not of replays"):
        add_replays(path, space, {})


def test_a_plot_is_drawn_the_same_way_each_time(space, tmp_path):
    pytest.importorskip("matplotlib")
    told = {"random": replay(space, "random", budget=30, repeats=2).to_json()}
    for name in ("a.svg", "b.svg"):
        plot_replays(tmp_path / name, {"valley": space_data(space, told), "two": space_data(space, told)})
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (
        b"fraction of the optimum" in (tmp_path / "a.svg").read_bytes() or b"<svg" in (tmp_path / "a.svg").read_bytes()
    )
    with pytest.raises(RecordingError, match="cannot be written"):
        plot_replays(tmp_path / "a.nonsense", {"valley": space_data(space, told)})


def test_without_matplotlib_the_cure_is_named(space, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ToolchainError, match=r"gemmtune\[plot\]"):
        plot_replays(tmp_path / "a.svg", {"valley": space_data(space, {})})


# --------------------------------------------------------------------------------------------------------- studies


@pytest.fixture
def studied(toys, fake_device, problem, tmp_path):
    """A history with a study of 60 trials on a fake GPU, some of which failed for various reasons."""

    def outcome(c):
        return "wrong" if c["unroll"] == 4 else "infrastructure" if c["pad"] == 4 and c["bm"] == 16 else "correct"

    history = History(tmp_path / "history.sqlite")
    device = fake_device(outcomes=outcome)
    (result,) = tune(problem, device, trials=60, strategy="random", history=history)
    yield history, result
    history.close()


def test_a_study_becomes_a_recording_that_answers_as_its_device_did(studied, problem, time_of, toy):
    history, result = studied
    recording = recording_of(history, [result.study_id])
    failed = history.outcomes().get("infrastructure", 0)
    assert len(recording) == 60 - failed
    assert recording.problem == problem
    assert recording.gpu.short == "h200"
    assert recording.parameters["toy"] == toy.parameters(problem, recording.gpu)
    assert recording.rated
    for row in recording.rows:
        assert row.outcome == ("wrong" if row.configuration["unroll"] == 4 else "correct")
        if row.outcome == "correct":
            assert row.us == pytest.approx(time_of(row.configuration))
    space = RecordedSpace(recording)
    assert space.families[0].estimable
    assert space.families[0].traits(problem, space[0], space.gpu) == toy.traits(problem, space[0], space.gpu)
    blind = RecordedSpace(recording.times_alone())
    assert not blind.families[0].estimable
    assert [blind.recording.objective(row) for row in blind.recording.rows] == [
        recording.objective(row) for row in recording.rows
    ]


def test_studies_are_named_in_the_history_or_in_an_exported_one(studied, tmp_path):
    history, result = studied
    there = open_space(f"study:{result.study_id}", history.location)
    assert there.name == "h200-512x512x512-bf16"
    history.export(tmp_path / "night.history.gz")
    for text in ("night.history.gz", "night.history.gz#1"):
        taken = open_space(str(tmp_path / text))
        assert taken.name == f"night-{there.name}"
        assert taken.rows == there.rows
    assert len(open_space("study:1+1", history.location)) == len(there)
    with pytest.raises(UnknownNameError, match="There is no study 9"):
        open_space("study:9", history.location)
    with pytest.raises(UnknownNameError, match="names no study"):
        open_space("study:one", history.location)
    with pytest.raises(RecordingError, match="cannot be read"):
        open_space(str(tmp_path / "nothing.json"))


def test_studies_of_different_problems_are_no_one_recording(studied, fake_device, problem):
    history, result = studied
    (other,) = tune(problem.with_axes(m=256), fake_device(), trials=4, strategy="random", history=history)
    with pytest.raises(RecordingError, match="cannot be one recording"):
        recording_of(history, [result.study_id, other.study_id])
    both = Path(history.location).with_name("two.history.gz")
    history.export(both)
    with pytest.raises(UnknownNameError, match="Say which study"):
        open_space(str(both))


def test_a_study_on_the_replay_device_searches_the_recording_and_finds_its_best(studied, problem, tmp_path):
    history, result = studied
    path = tmp_path / "toys.json.gz"
    write_recording(recording_of(history, [result.study_id]), path)
    (again,) = tune(problem, f"replay:{path}", history=tmp_path / "second.sqlite")
    recording = open_space(str(path))
    assert again.valid == again.trials == len(recording)
    assert again.best[0].ratio == pytest.approx(1 / recording.optimum)
    assert again.best[0].kind == "replay"
    with pytest.raises(UnsupportedError, match=r"is of gemm 512x512x512 bf16 nt, not of gemm 256x512x512"):
        tune(problem.with_axes(m=256), f"replay:{path}", history=tmp_path / "second.sqlite")
