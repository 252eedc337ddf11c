"""A study: the same spec resumes, claims are exclusive, what finished is never touched again."""

from __future__ import annotations

import math
import os
import socket
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import event, update

from gemmtune.db import History, TrialResult
from gemmtune.db.owner import LEASE, Owner, start_token, this_process
from gemmtune.space.errors import DatabaseError, UnknownNameError
from gemmtune.space.gemm import Gemm

# ------------------------------------------------------------------------------------------------------------- opening


def test_the_same_spec_is_the_same_study(path: Path, make: SimpleNamespace):
    with History(path) as history:
        first = history.open_study(make.spec())
        assert not first.resumed
    with History(path) as history:
        again = history.open_study(make.spec())
        assert again.resumed
        assert (again.id, again.uuid, again.parent_id) == (first.id, first.uuid, None)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "emulator"},
        {"device": "a100"},
        {"regime": "burst"},
        {"cache": "warm"},
        {"families": ("mma", "simt")},
        {"strategy": "random"},
        {"seed": 1},
        {"problem": Gemm(512, 512, 1024)},
    ],
)
def test_any_other_spec_is_an_unrelated_study(history: History, make: SimpleNamespace, change: dict[str, object]):
    first = history.open_study(make.spec())
    other = history.open_study(make.spec(**change))
    assert other.id != first.id
    assert other.parent_id is None


def test_another_environment_is_a_new_study_linked_to_the_latest(history: History, make: SimpleNamespace):
    old = history.open_study(make.spec())
    new = history.open_study(make.spec(environment={"driver": "590", "cuda": "13.0"}))
    newest = history.open_study(make.spec(environment={"driver": "600", "cuda": "13.0"}))
    assert (new.parent_id, newest.parent_id) == (old.id, new.id)
    back = history.open_study(make.spec())
    assert (back.id, back.parent_id) == (old.id, None)
    assert [s.parent_uuid for s in history.studies()] == [new.uuid, old.uuid, None]


def test_the_order_of_an_environments_names_does_not_matter(history: History, make: SimpleNamespace):
    first = history.open_study(make.spec())
    assert history.open_study(make.spec(environment={"cuda": "13.0", "driver": "580"})).id == first.id


def test_large_seeds(history: History, make: SimpleNamespace):
    history.open_study(make.spec(seed=2**62))
    assert history.studies()[0].seed == 2**62


def test_an_unknown_problem_kind_is_refused_and_leaves_nothing(history: History, make: SimpleNamespace):
    with pytest.raises(UnknownNameError, match="attention"):
        history.open_study(replace(make.spec(), problem_json={"kind": "attention"}, problem_key="attention"))
    assert history.studies() == []


# -------------------------------------------------------------------------------------------------------------- trials


def test_a_trial_comes_back_as_it_was_recorded(path: Path, make: SimpleNamespace):
    with History(path) as history:
        trial_id = make.run(history.open_study(make.spec()), 3, make.correct(3, 1.25))
    with History(path) as history:
        (trial,) = history.open_study(make.spec()).trials()
        (stored,) = history.measurements(trial_id)
    assert (trial.number, trial.state, trial.outcome, trial.family) == (3, "done", "correct", "mma")
    assert trial.configuration == str(make.configuration(3))
    assert (trial.us, trial.ratio, trial.baseline_us, trial.baseline) == (8.0, 1.25, 10.0, "cublas")
    assert trial.final is None
    assert trial.timing.ratio == 1.25
    assert (trial.rel_error, trial.error_bound, trial.coverage) == (1e-7, 1e-6, 1.0)
    assert (trial.source, trial.cubin_sha256) == ("// kernel 3\n", f"{3:064x}")
    assert trial.recipe == {"entry": "k3", "block": [256, 1, 1]}
    assert (trial.registers, trial.spill_bytes, trial.stack_bytes, trial.shared_bytes) == (128, 0, None, 65536)
    assert trial.seconds == {"compile": 0.1, "measure": 0.02}
    assert trial.gpu == make.spec().gpu
    assert trial.environment == make.spec().environment
    assert trial.problem_key == "gemm 512x512x512 bf16 nt"
    assert Gemm.from_json(trial.problem_json) == Gemm(512, 512, 512)
    assert stored.data == make.measurement(1.25)


def test_trials_come_in_the_order_of_their_numbers_and_claimed_ones_not_at_all(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    for number in (2, 0, 1):
        make.run(study, number, make.correct(number))
    study.claim(7, make.configuration(7))
    assert [t.number for t in study.trials()] == [0, 1, 2]
    assert len(history.trials()) == 3


def test_a_wrong_kernel_with_nan_keeps_an_error_beyond_any_bound(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    proof = replace(make.proof, passed=False, rel_error=math.nan, excess=math.inf)
    make.run(study, 0, TrialResult("wrong", "d[3, 4] is nan", make.kernel(0), proof))
    (trial,) = study.trials()
    assert (trial.rel_error, trial.excess) == (math.inf, math.inf)
    assert trial.timing is None


def test_numbers_that_json_lacks_become_null(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    trial_id = make.run(study, 0, replace(make.correct(0), measurement=make.measurement(counters={"x": math.nan})))
    assert history.measurements(trial_id)[0].data.counters == {"x": None}


def test_a_finished_trial_is_never_touched_again(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    trial_id = make.run(study, 0, make.correct(0))
    with pytest.raises(DatabaseError, match="is not claimed"):
        study.finish(trial_id, make.failed("wrong", "no"))
    assert study.trials()[0].outcome == "correct"


def test_a_better_measurement_is_a_new_row_and_the_latest_final_one_counts(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    trial_id = make.run(study, 0, make.correct(0, 1.5))
    study.add_measurement(trial_id, make.measurement(1.2))
    study.add_measurement(trial_id, make.measurement(1.1))
    study.add_measurement(trial_id, make.measurement(1.4), final=False)
    (trial,) = study.trials()
    assert [m.data.ratio for m in history.measurements(trial_id)] == [1.5, 1.2, 1.1, 1.4]
    assert (trial.ratio, trial.final_ratio, trial.timing.ratio, trial.timing.final) == (1.4, 1.1, 1.1, True)
    assert trial.final_us == pytest.approx(10 / 1.1)


def test_only_a_finished_trial_of_the_study_is_measured_again(history: History, make: SimpleNamespace):
    study, other = history.open_study(make.spec()), history.open_study(make.spec(seed=1))
    claimed, foreign = study.claim(0, make.configuration(0)), make.run(other, 0, make.correct(0))
    for trial_id in (claimed, foreign, 99):
        with pytest.raises(DatabaseError, match="no finished trial"):
            study.add_measurement(trial_id, make.measurement())


def test_estimates_and_measurements_stay_in_studies_of_their_own(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec(kind="emulator"))
    trial_id = study.claim(0, make.configuration(0))
    with pytest.raises(DatabaseError, match="A measured time cannot go into study 1, whose device kind is emulator"):
        study.finish(trial_id, make.correct(0))
    study.finish(trial_id, TrialResult("correct", measurement=make.estimate(5.0)))
    with pytest.raises(DatabaseError, match="A measured time"):
        study.add_measurement(trial_id, make.measurement())
    with pytest.raises(DatabaseError, match="An estimated time"):
        make.run(history.open_study(make.spec()), 0, TrialResult("correct", measurement=make.estimate(5.0)))


def test_equal_kernels_and_templates_are_stored_once(history: History, path: Path, make: SimpleNamespace):
    make.run(history.open_study(make.spec()), 0, make.correct(0))
    make.run(history.open_study(make.spec(seed=1)), 0, make.correct(0))
    make.run(history.open_study(make.spec(seed=1)), 1, make.correct(1))
    with sqlite3.connect(path) as raw:
        count = {
            t: raw.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("kernel", "template", "gpu", "trial")
        }
    assert count == {"kernel": 2, "template": 1, "gpu": 1, "trial": 3}


def test_a_templates_text_may_come_later(history: History, path: Path, make: SimpleNamespace):
    study = history.open_study(make.spec())
    make.run(study, 0, TrialResult("correct", kernel=replace(make.kernel(0), template_text="")))
    make.run(study, 1, make.correct(1))
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT text FROM template").fetchall() == [("template",)]


def test_a_trial_costs_few_statements_that_are_built_once(history: History, make: SimpleNamespace):
    """The GPU waits while a trial is recorded; making a statement takes longer than running it."""
    study = history.open_study(make.spec())
    make.run(study, 0, make.correct(0))
    make.run(study, 1, make.correct(1))
    ran: list[str] = []
    event.listen(history._engine, "before_execute", lambda _c, clause, *_: ran.append(clause))
    make.run(study, 2, make.correct(2))
    first, ran[:] = list(ran), []
    make.run(study, 3, make.correct(3))
    assert len(first) <= 8
    assert all(a is b for a, b in zip(first, ran, strict=True))


# -------------------------------------------------------------------------------------------------------------- claims


def test_a_number_and_a_configuration_are_claimed_once(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    study.claim(0, make.configuration(0))
    for number, config in ((0, 1), (1, 0)):
        with pytest.raises(DatabaseError, match=f"is being tried by process {os.getpid()} on {socket.gethostname()}"):
            study.claim(number, make.configuration(config))
    make.run(study, 2, make.correct(2))
    for number, config in ((2, 3), (3, 2)):
        with pytest.raises(DatabaseError, match="is already recorded as trial 2"):
            study.claim(number, make.configuration(config))
    history.open_study(make.spec(seed=1)).claim(0, make.configuration(0))


def test_claims_that_this_process_left_open_are_released(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    trial_id = study.claim(0, make.configuration(0))
    make.run(study, 1, make.correct(1))
    assert study.release_claims() == 1
    assert study.release_claims() == 0
    with pytest.raises(DatabaseError, match="is not claimed"):
        study.finish(trial_id, make.correct(0))
    make.run(study, 0, make.correct(0))
    assert [t.number for t in study.trials()] == [0, 1]


def reown(history: History, trial_id: int, owner: Owner, age: float = 0.0) -> None:
    from gemmtune.db import models as m

    now = {"owner_host": owner.host, "owner_pid": owner.pid, "owner_token": owner.token}
    older = update(m.trial).where(m.trial.c.id == trial_id).values(**now, started=m.trial.c.started - age)
    with history.writing() as connection:
        assert connection.execute(older).rowcount == 1


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize(
    ("owner", "age", "left"),
    [
        (lambda me: replace(me, pid=dead_pid()), 0, True),
        (lambda me: replace(me, token="another start"), 0, True),  # the pid lives again, as another process
        (lambda me: replace(me, pid=os.getppid(), token=start_token(os.getppid())), 2 * LEASE, False),
        (lambda me: replace(me, host="elsewhere"), 0, False),
        (lambda me: replace(me, host="elsewhere"), LEASE + 1, True),
    ],
)
def test_claims_of_dead_owners_are_released_and_of_living_ones_kept(
    history: History, make: SimpleNamespace, owner, age: float, left: bool
):
    study = history.open_study(make.spec())
    reown(history, study.claim(0, make.configuration(0)), owner(this_process()), age)
    if left:
        study.claim(0, make.configuration(0))  # a claim clears the way by itself
        assert study.release_claims() == 1
    else:
        assert study.release_claims() == 0
        with pytest.raises(DatabaseError, match="is being tried by process"):
            study.claim(0, make.configuration(0))
        assert study.release_claims(force=True) == 1


def test_a_zombie_is_dead():
    child = subprocess.Popen([sys.executable, "-c", "print(input())"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert start_token(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, but is not yet reaped
    assert start_token(child.pid) == ""
    child.communicate()


# ------------------------------------------------------------------------------------------------------------- kill -9

WORKER = """
import runpy, sys
from gemmtune.db import History
make = runpy.run_path(sys.argv[2])
with History(sys.argv[1]) as history:
    study = history.open_study(make["spec"]())
    study.release_claims()
    done = {t.number for t in study.trials()}
    for number in range(10**6):
        if number not in done:
            make["run"](study, number, make["correct"](number))
            print(number, flush=True)
"""


def test_kill_at_any_moment_loses_no_finished_trial(path: Path, make: SimpleNamespace):
    told: set[int] = set()
    conftest = str(Path(__file__).with_name("conftest.py"))
    for lines in (1, 3, 10):
        command = [sys.executable, "-c", WORKER, str(path), conftest]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            told |= {int(child.stdout.readline()) for _ in range(lines)}
            child.kill()
            told |= {int(line) for line in child.stdout if line.endswith("\n")}
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    with History(path) as history:
        study = history.open_study(make.spec())
        assert study.release_claims() <= 1
        numbers = [t.number for t in study.trials()]
        assert numbers == list(range(len(numbers)))
        assert told <= set(numbers)
        assert len(numbers) - len(told) <= 3  # recorded, but killed before it could tell


def test_a_batch_is_claimed_whole_or_not_at_all(history: History, make: SimpleNamespace):
    study = history.open_study(make.spec())
    study.claim(2, make.configuration(2))
    with pytest.raises(DatabaseError, match="Trial 2 of study"):
        study.claim_all([(1, make.configuration(1)), (2, make.configuration(7))])
    first, second = study.claim_all([(1, make.configuration(1)), (3, make.configuration(3))])
    assert first != second
    study.finish(first, make.correct(1))
    study.finish(second, make.correct(3))
    assert [trial.number for trial in study.trials()] == [1, 3]
    with pytest.raises(DatabaseError, match="already recorded as trial 1"):
        study.claim_all([(5, make.configuration(5)), (6, make.configuration(1))])
    assert study.claim_all([]) == []
