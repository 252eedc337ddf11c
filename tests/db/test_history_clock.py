"""A clock that is set back: orders, claims and what counts stay as they were."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmtune.db import History
from gemmtune.db.owner import LEASE, Owner, this_process
from gemmtune.space.errors import DatabaseError

NOON = 1.8e9


class Clock:
    """The wall clock, as somebody sets it."""

    def __init__(self, moment: float = NOON):
        self.moment = moment

    def time(self) -> float:
        return self.moment


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("gemmtune.db.history.time", made)
    return made


def test_a_trial_does_not_end_before_it_began(path: Path, make: SimpleNamespace, clock: Clock):
    with History(path) as history:
        trial = history.open_study(make.spec()).claim(0, make.configuration(0))
    clock.moment -= 7200
    with History(path) as history:
        study = history.open_study(make.spec())
        study.finish(trial, make.correct(0))
        (record,) = study.trials()
        (measured,) = history.measurements(trial)
    assert record.started == NOON
    assert record.finished == measured.measured == NOON


def test_moments_of_a_run_keep_their_order(history: History, make: SimpleNamespace, clock: Clock):
    study = history.open_study(make.spec())
    for number in range(4):
        make.run(study, number, make.correct(number))
        clock.moment -= 100
    moments = [moment for trial in study.trials() for moment in (trial.started, trial.finished)]
    assert moments == sorted(moments)


def test_the_latest_final_measurement_counts_whatever_the_clock_says(path: Path, make: SimpleNamespace, clock: Clock):
    with History(path) as history:
        trial = make.run(history.open_study(make.spec()), 0, make.correct(0, 1.5))
    for ratio in (1.2, 1.1, 1.3):
        clock.moment -= 3600
        with History(path) as history:
            history.open_study(make.spec()).add_measurement(trial, make.measurement(ratio))
    with History(path) as history:
        assert [m.data.ratio for m in history.measurements(trial)] == [1.5, 1.2, 1.1, 1.3]
        assert history.trial(trial).timing.ratio == 1.3
        assert history.best()[0].timing.ratio == 1.3


def test_the_newest_environment_is_the_one_opened_last(path: Path, make: SimpleNamespace, clock: Clock):
    drivers = ("580", "590", "600")
    studies = []
    for driver in drivers:
        with History(path) as history:
            studies.append(history.open_study(make.spec(environment={"driver": driver})))
            make.run(studies[-1], 0, make.correct(0))
        clock.moment -= 86400
    with History(path) as history:
        assert [study.parent_id for study in studies] == [None, studies[0].id, studies[1].id]
        assert [study.environment["driver"] for study in history.studies()] == list(reversed(drivers))
        assert [record.environment["driver"] for record in history.best_kernels()] == ["600"]


@pytest.mark.parametrize(
    ("step", "left"),
    [(0, False), (-LEASE / 2, False), (LEASE / 2, False), (LEASE + 1, True), (-LEASE - 1, True), (-1e9, True)],
)
def test_a_claim_from_another_host_expires_also_where_it_lies_ahead(
    path: Path, make: SimpleNamespace, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: float, left: bool
):
    there = Owner("elsewhere", 1, "token")
    with History(path) as history, monkeypatch.context() as patch:
        patch.setattr("gemmtune.db.study.this_process", lambda: there)
        history.open_study(make.spec()).claim(0, make.configuration(0))
    clock.moment += step
    with History(path) as history:
        study = history.open_study(make.spec())
        if left:
            study.claim(0, make.configuration(0))
        else:
            with pytest.raises(DatabaseError, match="is being tried by process 1 on elsewhere"):
                study.claim(0, make.configuration(0))


@pytest.mark.parametrize("step", [0.0, -1e6, 1e6])
def test_a_claim_of_a_dead_process_of_this_host_expires_at_once_whatever_the_clock_says(
    path: Path, make: SimpleNamespace, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: float
):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        from gemmtune.db.owner import start_token

        dead = Owner(this_process().host, child.pid, start_token(child.pid))
        assert dead.token
        with History(path) as history, monkeypatch.context() as patch:
            patch.setattr("gemmtune.db.study.this_process", lambda: dead)
            history.open_study(make.spec()).claim(0, make.configuration(0))
        clock.moment += step
        with History(path) as history:
            study = history.open_study(make.spec())
            with pytest.raises(DatabaseError, match=f"is being tried by process {child.pid}"):
                study.claim(0, make.configuration(0))  # it lives
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            study.claim(0, make.configuration(0))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.floats(-1e5, 1e5), min_size=1, max_size=5))
def test_no_sequence_of_steps_changes_what_is_read(make: SimpleNamespace, steps: list[float]):
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch, History(":memory:") as history:
        patch.setattr("gemmtune.db.history.time", clock)
        study = history.open_study(make.spec())
        trial = make.run(study, 0, make.correct(0))
        ratios = [1.0 + i / 8 for i in range(len(steps))]
        for number, (step, ratio) in enumerate(zip(steps, ratios, strict=True), 1):
            clock.moment += step
            history._moment = 0.0  # as in a process that has just begun
            study.add_measurement(trial, make.measurement(ratio))
            make.run(study, number, make.correct(number))
        records = study.trials()
        assert [m.data.ratio for m in history.measurements(trial)] == [1.0, *ratios]
        assert records[0].timing.ratio == ratios[-1]
        assert [t.number for t in records] == list(range(len(steps) + 1))
        assert all(t.finished >= t.started for t in records)
        stamps = [m.measured for m in history.measurements(trial)]
        assert all(a < b for a, b in itertools.pairwise(stamps))
