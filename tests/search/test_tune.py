import dataclasses

import pytest
from sqlalchemy import text

from gemmtune.codegen.kernel import KernelResources
from gemmtune.codegen.pool import CompileTimeout
from gemmtune.db import History
from gemmtune.device.base import Limits, Outcome
from gemmtune.search.events import Silent
from gemmtune.search.finals import FINALISTS
from gemmtune.search.study import tune
from gemmtune.space.configuration import Parameter
from gemmtune.space.errors import (
    CompileError,
    DatabaseError,
    EmptySpaceError,
    LaunchError,
    ProblemError,
    SettingError,
    ToolchainError,
    UnknownNameError,
    UnsupportedError,
)
from gemmtune.space.gemm import Gemm

pytestmark = pytest.mark.usefixtures("toys")


def use_pool(monkeypatch, pool):
    monkeypatch.setattr("gemmtune.search.study.CompilePool", lambda *a, **k: pool)


# ------------------------------------------------------------------------------------------------- the natural course


def test_a_study_finds_the_best_and_records_every_trial(problem, fake_device, history, time_of, trials_of):
    device = fake_device()
    (result,) = tune(problem, device, trials=60, history=history)
    assert (result.trials, result.resumed, result.interrupted, result.estimated) == (60, 0, False, False)
    assert result.outcomes == {"correct": 60}
    assert len(trials_of(history, result.study_id)) == 60
    assert result.best[0].us <= 13
    assert result.best[0].final is not None
    assert not device.closed  # it was ours


def test_the_finals_measure_the_best_few_together(problem, fake_device, history):
    device = fake_device()
    (result,) = tune(problem, device, trials=30, history=history)
    (jobs,) = device.compared
    assert len(jobs) == FINALISTS
    assert all(job.effort == "final" for job in jobs)
    assert {str(job.kernel.configuration) for job in jobs} == {r.configuration for r in result.best[:FINALISTS]}


def test_estimates_have_no_finals(problem, fake_device, history):
    device = fake_device(kind="emulator", name="emulator:h200")
    (result,) = tune(problem, device, trials=20, history=history)
    assert result.estimated
    assert device.compared == []
    assert result.best[0].us == min(r.us for r in result.best)


def test_default_trials_depend_on_the_device(problem, fake_device, history):
    (result,) = tune(problem, fake_device(kind="emulator"), history=history)
    assert result.trials == 40


def test_a_budget_beyond_the_space_tries_all_of_it(problem, toy, fake_device, history, monkeypatch):
    few = tuple(Parameter(p.name, p.values[-2:]) for p in toy.parameters(problem, None))
    monkeypatch.setattr(type(toy), "parameters", lambda *_: few)
    (result,) = tune(problem, fake_device(), trials=10_000, history=history)
    assert result.trials == result.valid < 64 == result.raw
    assert result.best[0].us == 10.0


def test_several_problems_are_one_study_each_in_order_and_repeated_ones_once(fake_device, history):
    problems = [Gemm(512, 512, 512), Gemm(256, 512, 512), Gemm(512, 512, 512)]
    results = tune(problems, fake_device(), trials=6, history=history)
    assert [r.problem for r in results] == problems[:2]
    assert len({r.study_id for r in results}) == 2


def test_among_equals_the_simpler_configuration_wins(problem, fake_device, history):
    from gemmtune.device.base import Measurement, Report

    class Flat(fake_device):
        def compare(self, jobs, timeout):
            measured = Measurement(10.0, 9.9, 10.1, 20.0, 2.0, 1.98, 2.02)
            return [Report(Outcome.CORRECT, measurement=measured) for _ in jobs]

    (result,) = tune(problem, Flat(), trials=30, history=history)
    finals = [r for r in result.best if r.final]
    stages = [int(r.configuration.split("stages=")[1].split()[0]) for r in finals]
    assert stages[0] == min(stages)


def test_the_observer_hears_everything_in_order(problem, fake_device, history):
    heard = []

    class Ear(Silent):
        def study_started(self, problem, device, valid, raw, budget, resumed):
            heard.append(("started", budget, resumed))

        def trial_finished(self, record, best, done, budget, counts):
            heard.append(("trial", record.number, done, best.us <= record.us, counts.total()))

        def finals_started(self, problem, candidates):
            heard.append(("finals", candidates))

        def study_finished(self, result):
            heard.append(("finished", result.trials))

    tune(problem, fake_device(), trials=5, history=history, observer=Ear())
    assert heard == [
        ("started", 5, 0),
        *(("trial", i, i + 1, True, i + 1) for i in range(5)),
        ("finals", 4),
        ("finished", 5),
    ]


# --------------------------------------------------------------------------------------------------------- bad trials


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.CORRECT, Outcome.COMPILE, Outcome.PRUNED)])
def test_a_bad_trial_is_recorded_and_never_stops_the_study(outcome, problem, fake_device, history, trials_of):
    device = fake_device(outcomes=lambda c: outcome if c["stages"] == 2 else Outcome.CORRECT)
    (result,) = tune(problem, device, trials=28, history=history)
    assert result.trials == 28
    assert result.outcomes[outcome] > 0
    assert all(r.outcome == "correct" for r in result.best)
    bad = [t for t in trials_of(history, result.study_id) if t[2] == outcome]
    assert all("stages=2" in t[1] for t in bad)
    assert all(t[3] is None for t in bad) or outcome == "abandoned"


def test_a_time_without_a_ratio_is_not_taken_for_one(problem, fake_device, history):
    """One abandoned for its first launches has microseconds alone, here far fewer than the others' ratios."""
    from gemmtune.device.base import Measurement, Report
    from gemmtune.search.ranking import objective

    class Hasty(fake_device):
        def run(self, job, limits):
            report = super().run(job, limits)
            if job.kernel.configuration["stages"] != 2:
                return report
            return Report(Outcome.ABANDONED, "It is slow.", report.verification, Measurement(0.01, 0.01, 0.01))

    (result,) = tune(problem, Hasty(), trials=28, history=history)
    trials = history.trials(study_id=result.study_id, limit=None)
    abandoned = [t for t in trials if t.outcome == "abandoned"]
    assert abandoned
    assert [objective(t) for t in abandoned] == [None] * len(abandoned)
    assert all(objective(t) == pytest.approx(1 / t.ratio) for t in trials if t.outcome == "correct")


def test_a_strategy_never_learns_that_an_abandoned_trial_was_the_best(problem, fake_device, history):
    """At a glance it may look so, where others were timed at the clock that their own power leaves them."""
    from gemmtune.device.base import Measurement, Report
    from gemmtune.search.ranking import SLOWER, Lessons, objective

    class Glancing(fake_device):
        def run(self, job, limits):
            report = super().run(job, limits)
            if job.kernel.configuration["stages"] != 2 or report.outcome != Outcome.CORRECT:
                return report
            flattered = Measurement(1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0)
            return Report(Outcome.ABANDONED, "It is behind.", report.verification, flattered)

    (result,) = tune(problem, Glancing(), trials=28, history=history)
    trials = history.trials(study_id=result.study_id, limit=None)
    lessons, best = Lessons(), None
    for trial in sorted(trials, key=lambda t: t.number):
        learned = lessons.of(trial)
        if trial.outcome == "correct":
            assert learned == objective(trial)
            best = min(learned, best or learned)
        elif trial.outcome == "abandoned" and best is not None:
            assert learned == pytest.approx(best * SLOWER)
    assert "abandoned" in result.outcomes


@pytest.mark.parametrize("error", [CompileError("ptxas says no"), CompileTimeout("too long")])
def test_kernels_that_do_not_compile_never_reach_the_device(
    error, problem, fake_device, fake_pool, history, monkeypatch, trials_of
):
    use_pool(monkeypatch, fake_pool(fail=lambda c: error if c["pad"] == 4 else None))
    device = fake_device()
    (result,) = tune(problem, device, trials=28, history=history)
    assert result.outcomes["compile"] > 0
    assert not any(job.kernel.configuration["pad"] == 4 for job in device.jobs)
    assert {t[4] for t in trials_of(history, result.study_id) if t[2] == "compile"} == {str(error)}


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (KernelResources(255, 4000, 0, 0), "spills 4000 bytes"),
        (KernelResources(255, 0, 0, 300_000), "300000 bytes of shared memory"),
    ],
)
def test_hopeless_kernels_are_pruned(
    resources, words, problem, fake_device, fake_pool, history, monkeypatch, trials_of
):
    good = KernelResources(64, 0, 0, 0)
    use_pool(monkeypatch, fake_pool(resources=lambda c: resources if c["unroll"] == 4 else good))
    device = fake_device()
    (result,) = tune(problem, device, trials=28, history=history)
    assert result.outcomes["pruned"] > 0
    assert not any(job.kernel.configuration["unroll"] == 4 for job in device.jobs)
    pruned = [t for t in trials_of(history, result.study_id) if t[2] == "pruned"]
    assert all(words in t[4] for t in pruned)


def test_too_many_registers_for_an_sm_are_pruned(toy, problem, fake_pool):
    from gemmtune.codegen.render import render
    from gemmtune.search.limits import hopeless
    from gemmtune.space.configuration import Configuration
    from gemmtune.space.gpu import gpu

    c = Configuration.parse("toy bm=16 bn=16 stages=2 unroll=1 order=row pad=0")
    source = render(problem, c, toy)
    kernel = fake_pool().submit(source, "sm_90a").result()
    wide = dataclasses.replace(source, recipe=dataclasses.replace(source.recipe, block=(1024, 1, 1)))
    kernel = dataclasses.replace(kernel, source=wide, resources=KernelResources(72, 0, 0, 0))
    assert "73728" in (hopeless(kernel, gpu("h200")) or "")
    assert hopeless(dataclasses.replace(kernel, resources=KernelResources(64, 0, 0, 0)), gpu("h200")) is None
    assert hopeless(dataclasses.replace(kernel, resources=None), gpu("h200")) is None


def test_the_same_binary_runs_once(problem, fake_device, fake_pool, history, monkeypatch):
    class Folding(fake_pool):
        """The unroll factor makes no difference to the code."""

        def submit(self, source, arch):
            future = super().submit(source, arch)
            kernel = future.result()
            text = f"{source.entry} {[v for k, v in source.configuration.items() if k != 'unroll']}"
            future._result = dataclasses.replace(kernel, cubin=text.encode())
            return future

    use_pool(monkeypatch, Folding())
    device = fake_device(kind="emulator")
    tune(problem, device, trials=150, history=history, strategy="random")
    ran = {tuple(v for k, v in j.kernel.configuration.items() if k != "unroll") for j in device.jobs}
    assert len(ran) == len(device.jobs) < 150
    records = {r.number: r for r in history.trials(limit=None)}
    twins = [r for r in records.values() if r.detail.startswith("Same binary as trial ")]
    assert len(twins) == 150 - len(device.jobs)
    for twin in twins:
        first = records[int(twin.detail.split()[4].rstrip("."))]
        assert (twin.us, twin.outcome, twin.rel_error) == (first.us, first.outcome, first.rel_error)


def test_a_device_that_raises_costs_that_trial_alone(problem, fake_device, history):
    def sometimes(c):
        if c["order"] == "column":
            raise LaunchError("the driver hiccuped")
        return Outcome.CORRECT

    (result,) = tune(problem, fake_device(outcomes=sometimes), trials=28, history=history)
    assert result.trials == 28
    assert result.outcomes["infrastructure"] > 0


def test_a_device_that_fails_again_and_again_ends_the_study_with_a_sentence(problem, fake_device, history):
    device = fake_device(outcomes=lambda c: Outcome.INFRASTRUCTURE)
    with pytest.raises(ToolchainError, match=r"cuda:0 failed 8 times in a row .* run the same command"):
        tune(problem, device, trials=28, history=history)
    assert len(device.jobs) == 8


def test_a_missing_toolchain_ends_the_study_and_leaves_no_claims(problem, fake_device, fake_pool, history, monkeypatch):
    use_pool(monkeypatch, fake_pool(fail=lambda c: ToolchainError("There is no NVRTC: install it.")))
    with pytest.raises(ToolchainError, match="There is no NVRTC"):
        tune(problem, fake_device(), trials=28, history=history)
    use_pool(monkeypatch, fake_pool())
    (result,) = tune(problem, fake_device(), trials=8, history=history)
    assert (result.trials, result.resumed) == (8, 0)


def test_the_time_limit_of_a_trial_shrinks_to_a_multiple_of_the_quickest(problem, fake_device, history):
    device = fake_device()
    tune(problem, device, trials=5, history=history)
    assert device.limits[0] == Limits()
    assert all(5 <= limits.verify < 10 for limits in device.limits[1:])


def test_jobs_know_the_best_so_far_and_have_seeds_of_their_own(problem, fake_device, history):
    device = fake_device()
    tune(problem, device, trials=20, history=history, regime="burst", cache="warm")
    assert device.jobs[0].best_us is None
    best = min(r.us for r in history.trials(limit=None) if r.number < 19)
    assert device.jobs[19].best_us == best
    assert len({job.seed for job in device.jobs}) == 20
    assert {(job.regime, job.cache) for job in device.jobs} == {("burst", "warm")}


# ----------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"trials": 0}, SettingError, "trials must be an integer of at least 1, but is 0"),
        ({"trials": 2.5}, SettingError, "is 2.5"),
        ({"trials": True}, SettingError, "is True"),
        ({"time_limit": "10m"}, SettingError, "seconds, but is '10m'"),
        ({"seed": 2**31}, SettingError, "from 0 to 2147483647, but is 2147483648"),
        ({"workers": -1}, SettingError, "workers must be an integer of at least 1, but is -1"),
        ({"time_limit": 0}, SettingError, "positive number of seconds, but is 0"),
        ({"time_limit": float("nan")}, SettingError, "but is nan"),
        ({"seed": -1}, SettingError, "seed must be an integer from 0"),
        ({"strategy": "luck"}, UnknownNameError, "Unknown strategy 'luck'"),
        ({"families": ["toy", "warp"]}, UnknownNameError, "Unknown family 'warp'"),
        ({"regime": "idle"}, SettingError, "The regime 'idle' does not exist: choose one of sustained, burst"),
        ({"cache": "hot"}, SettingError, "The cache 'hot' does not exist: choose one of cold, warm"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments, error, words, problem, fake_device, history):
    device = fake_device()
    with pytest.raises(error, match=words) as caught:
        tune(problem, device, history=history, **arguments)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    assert device.jobs == []
    assert history.trials() == []


def test_no_problem_at_all_is_refused(fake_device, history):
    with pytest.raises(ProblemError, match="There is no problem"):
        tune([], fake_device(), history=history)


def test_an_empty_space_names_the_rules_that_emptied_it(problem, toy, fake_device, history, monkeypatch):
    large = tuple(Parameter(p.name, p.values[-1:]) for p in toy.parameters(problem, None))
    monkeypatch.setattr(type(toy), "parameters", lambda *_: large)
    with pytest.raises(EmptySpaceError, match="threads"):
        tune(problem, fake_device(), trials=5, history=history)
    assert history.studies() == []


def test_a_full_disk_loses_no_finished_trial(problem, fake_device, history, tmp_path, trials_of):
    class Filling(fake_device):
        def run(self, job, limits):
            if len(self.jobs) == 6:
                with history.writing() as connection:
                    pages = connection.scalar(text("PRAGMA page_count"))
                    connection.execute(text(f"PRAGMA max_page_count = {pages}"))
            return super().run(job, limits)

    with pytest.raises(DatabaseError, match=r"The disk of .*h\.db is full: free some space"):
        tune(problem, Filling(), history=history, trials=20, strategy="random")
    with History(tmp_path / "h.db") as later, History(tmp_path / "other.db") as undisturbed:
        kept = later.trials(limit=None)
        assert 5 <= len(kept) < 20
        (resumed,) = tune(problem, fake_device(), history=later, trials=20, strategy="random")
        assert resumed.resumed == len(kept)
        (whole,) = tune(problem, fake_device(), history=undisturbed, trials=20, strategy="random")
        assert trials_of(later, resumed.study_id) == trials_of(undisturbed, whole.study_id)


def test_an_unsupported_problem_is_refused_before_the_others_take_their_time(problem, fake_device, history):
    device = fake_device()
    with pytest.raises(UnsupportedError, match="toy is for 16 bits"):
        tune([problem, Gemm(64, 64, 64, "fp32")], device, trials=5, history=history)
    assert device.jobs == []
