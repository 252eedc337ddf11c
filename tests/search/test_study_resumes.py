"""A study that was stopped, in whatever way, goes on as if it had not been."""

import copy
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmtune.db import History
from gemmtune.search.study import tune
from gemmtune.space import families as registry
from gemmtune.space.gemm import Gemm

pytestmark = pytest.mark.usefixtures("toys")


class Kill(BaseException):
    """What no code catches: the end of the process, as far as the study can see."""


def killed_after(n, fake_device, kind="emulator", error=Kill):
    device = fake_device(kind=kind)
    run = device.run

    def dying(job, limits):
        if len(device.jobs) == n:
            raise error
        return run(job, limits)

    device.run = dying
    return device


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(points=st.lists(st.integers(0, 31), min_size=1, max_size=2), strategy=st.sampled_from(["gp", "tpe", "random"]))
def test_a_study_that_was_killed_ends_as_an_undisturbed_one(
    points, strategy, problem, fake_device, tmp_path_factory, trials_of
):
    folder = tmp_path_factory.mktemp("kill")
    with History(folder / "calm.db") as calm:
        (wanted,) = tune(problem, fake_device(kind="emulator"), trials=32, strategy=strategy, history=calm)
        expected = trials_of(calm, wanted.study_id)
    for point in points:
        with History(folder / "hit.db") as history, suppress(Kill):  # a later run may have nothing left to do
            tune(problem, killed_after(point, fake_device), trials=32, strategy=strategy, history=history)
    with History(folder / "hit.db") as history:
        (result,) = tune(problem, fake_device(kind="emulator"), trials=32, strategy=strategy, history=history)
        assert trials_of(history, result.study_id) == expected
        assert [r.configuration for r in result.best] == [r.configuration for r in wanted.best]


def test_ctrl_c_stops_cleanly_and_the_same_call_goes_on(problem, fake_device, history):
    device = killed_after(7, fake_device, error=KeyboardInterrupt)
    first, *others = tune([problem, Gemm(64, 64, 64)], device, trials=20, history=history)
    assert others == []
    assert (first.interrupted, first.trials) == (True, 7)
    (second,) = tune(problem, fake_device(kind="emulator"), trials=20, history=history)
    assert (second.interrupted, second.trials, second.resumed) == (False, 20, 7)


def test_ctrl_c_in_the_finals_keeps_the_trials(problem, fake_device, history):
    class Impatient(fake_device):
        def compare(self, jobs, timeout):
            raise KeyboardInterrupt

    (result,) = tune(problem, Impatient(), trials=10, history=history)
    assert (result.interrupted, result.trials) == (True, 10)
    device = fake_device()
    (result,) = tune(problem, device, trials=10, history=history)
    assert (device.jobs, len(device.compared)) == ([], 1)
    assert result.best[0].final is not None


def test_a_finished_study_is_not_run_again(problem, fake_device, history):
    tune(problem, fake_device(), trials=10, history=history)
    device = fake_device()
    (result,) = tune(problem, device, trials=10, history=history)
    assert (device.jobs, device.compared) == ([], [])
    assert (result.trials, result.resumed) == (10, 10)


def test_more_trials_carry_a_study_on(problem, fake_device, history, trials_of):
    (first,) = tune(problem, fake_device(), trials=20, history=history)
    (second,) = tune(problem, fake_device(), trials=50, history=history)
    assert second.study_id == first.study_id
    assert (second.trials, second.resumed) == (50, 20)
    assert len({t[1] for t in trials_of(history, first.study_id)}) == 50


def test_another_driver_opens_another_study(problem, fake_device, history):
    (first,) = tune(problem, fake_device(), trials=5, history=history)
    (second,) = tune(problem, fake_device(versions={"driver": "2"}), trials=5, history=history)
    assert (second.study_id != first.study_id, second.resumed) == (True, 0)


def test_a_study_in_a_new_environment_starts_from_the_best_of_the_old_one(problem, fake_device, history):
    (old,) = tune(problem, fake_device(), trials=60, history=history)
    device = fake_device(versions={"driver": "2"})
    tune(problem, device, trials=8, history=history)
    ranked = sorted((r for r in history.trials(limit=None) if r.study_id == old.study_id), key=lambda r: r.us)
    assert str(device.jobs[0].kernel.configuration) == ranked[0].configuration
    taken = {str(job.kernel.configuration) for job in device.jobs[:5]}
    assert taken <= {r.configuration for r in ranked}


def test_searches_of_one_family_and_of_all_stand_in_one_ranking(
    problem, toy, fake_device, history, monkeypatch, tmp_path
):
    (tmp_path / "twin").mkdir()
    (tmp_path / "twin" / "kernel.cu.j2").write_text("// another\n")
    twin = copy.copy(toy)
    twin.name, twin.template_dirs = "twin", (tmp_path,)
    monkeypatch.setitem(registry.FAMILIES, "twin", twin)
    tune(problem, fake_device(), trials=30, history=history)
    tune(problem, fake_device(), trials=2, history=history, families=["twin"])
    (winner,) = (record for record in history.best(limit=None) if record.rank == 1)
    assert winner.study_id == 1


def test_a_time_limit_alone_bounds_the_study(problem, fake_device, history, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    (result,) = tune(problem, fake_device(kind="emulator"), time_limit=100, history=history)
    assert 0 < result.trials < 100
    assert not result.interrupted
