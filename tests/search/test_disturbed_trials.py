"""Disturbed measurements get a second attempt, killers never do, and a study stopped in between goes on as if not."""

import dataclasses
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmtune.codegen.cache import KernelCache
from gemmtune.db import History
from gemmtune.device.base import Measurement, Outcome, Report
from gemmtune.search.finals import FINALISTS, finalists, measure_finalists
from gemmtune.search.study import tune
from gemmtune.search.trial import Timing, TrialRunner
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ToolchainError

pytestmark = pytest.mark.usefixtures("toys")


@pytest.fixture
def moody(fake_device):
    """A device whose first reports on some jobs are others than its later ones."""

    class Moody(fake_device):
        def __init__(self, reports, kind="cuda"):
            """``reports(configuration, attempt)`` is a report to give instead, or None."""
            super().__init__(kind=kind)
            self.reports = reports
            self.attempts = Counter()

        def run(self, job, limits):
            report = super().run(job, limits)
            key = job.kernel.configuration.key
            self.attempts[key] += 1
            return self.reports(job.kernel.configuration, self.attempts[key]) or report

    return Moody


def odd(c):
    return c["order"] == "column"


def by_number(history, study_id):
    return sorted((r for r in history.trials(limit=None) if r.study_id == study_id), key=lambda r: r.number)


UNSTABLE = Report(Outcome.UNSTABLE, "Its ratio to the baseline has two levels.", measurement=Measurement(99, 99, 99))
SICK = Report(Outcome.INFRASTRUCTURE, "The device is not sane.")


@pytest.mark.parametrize("first", [UNSTABLE, SICK])
def test_a_disturbed_trial_is_tried_again_and_the_second_attempt_is_recorded(first, problem, moody, history, time_of):
    device = moody(lambda c, attempt: first if odd(c) and attempt == 1 else None)
    (result,) = tune(problem, device, trials=24, history=history)
    assert result.outcomes == {"correct": 24}
    records = by_number(history, result.study_id)
    assert [r.number for r in records] == list(range(24))
    assert {n for key, n in device.attempts.items() if "order=column" in key} == {2}
    for record in records:
        twice = "order=column" in record.configuration
        assert record.detail == (f"Tried twice; at first: {first.detail}" if twice else "")
        assert record.us == time_of(Configuration.parse(record.configuration))


def test_the_second_attempt_comes_after_the_others_of_the_batch_and_never_a_third(problem, moody, history):
    device = moody(lambda c, attempt: UNSTABLE if odd(c) else None)
    (result,) = tune(problem, device, trials=12, history=history, strategy="random")
    records = by_number(history, result.study_id)
    expected = []
    for start in range(0, 12, 4):
        batch = records[start : start + 4]
        expected += [r.configuration for r in batch] + [r.configuration for r in batch if "column" in r.configuration]
    assert [str(job.kernel.configuration) for job in device.jobs] == expected
    assert len(expected) > 12
    assert result.outcomes["unstable"] == len(expected) - 12
    assert not any("column" in r.configuration for r in result.best)
    seeds = {}
    for job in device.jobs:  # both attempts see the same inputs
        assert seeds.setdefault(job.kernel.configuration.key, job.seed) == job.seed
    for record in records:
        if record.outcome == "unstable":
            assert record.detail == f"{UNSTABLE.detail} Tried twice; at first: {UNSTABLE.detail}"


def test_time_goes_to_the_trial_that_took_it(problem, moody, history, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    device = moody(lambda c, attempt: UNSTABLE if odd(c) and attempt == 1 else None)
    (result,) = tune(problem, device, trials=16, history=history, strategy="random")
    records = by_number(history, result.study_id)
    once = {r.seconds["wall"] for r in records if not r.detail}
    twice = {r.seconds["wall"] for r in records if r.detail}
    assert min(twice) > max(once)
    assert result.database_seconds > 0


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.LAUNCH, Outcome.OUT_OF_MEMORY, Outcome.INFRASTRUCTURE])
@pytest.mark.parametrize("cached", [True, False])
def test_a_killer_is_never_tried_again_under_any_name_in_any_run(
    outcome, cached, problem, moody, history, fake_pool, monkeypatch
):
    class Folding(fake_pool):
        """The unroll factor makes no difference to the code; with a cache, what was compiled is found again."""

        def submit(self, source, arch):
            future = super().submit(source, arch)
            kernel = future.result()
            text = f"{source.entry} {[v for k, v in source.configuration.items() if k != 'unroll']}"
            future._result = dataclasses.replace(kernel, cubin=text.encode())
            if cached:
                known[source.text] = future._result
            return future

    known = {}
    monkeypatch.setattr("gemmtune.search.study.CompilePool", lambda *a, **k: Folding())
    monkeypatch.setattr(KernelCache, "get", lambda self, source, options, nvrtc: known.get(source.text))
    killed = Report(outcome, "It took the worker with it.", killed=True)

    def reports(c, attempt):
        return killed if c["stages"] == 2 else None

    devices = [moody(reports), moody(reports)]
    for device, trials in zip(devices, (60, 150), strict=True):
        (result,) = tune(problem, device, trials=trials, history=history, strategy="random")
    jobs = [job for device in devices for job in device.jobs]
    ran = [job.kernel.cubin for job in jobs if job.kernel.configuration["stages"] == 2]
    binaries = {cubin.split(b" ", 1)[1] for cubin in ran}
    assert len(ran) == len(binaries) > 3
    records = [r for r in by_number(history, result.study_id) if "stages=2" in r.configuration]
    assert len(records) > len(ran)
    expected = Outcome.LAUNCH if outcome is Outcome.INFRASTRUCTURE else outcome  # the kernel is to blame
    assert {r.outcome for r in records} == {expected}
    assert all("It took the worker with it." in r.detail for r in records)
    assert not any("stages=2" in str(job.kernel.configuration) for d in devices for jobs in d.compared for job in jobs)


def test_a_dead_device_costs_few_trials(problem, moody, history):
    device = moody(lambda c, attempt: SICK)
    with pytest.raises(ToolchainError, match="8 times in a row"):
        tune(problem, device, trials=28, history=history)
    assert len(device.jobs) == 8
    assert len(history.trials(limit=None)) == 3
    (result,) = tune(problem, moody(lambda c, attempt: None), trials=28, history=history)
    assert (result.trials, result.outcomes) == (28, {"infrastructure": 3, "correct": 25})


class Kill(BaseException):
    """The end of the process, as far as the study can see."""


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    points=st.lists(st.integers(0, 44), min_size=1, max_size=3),
    strategy=st.sampled_from(["gp", "tpe", "random"]),
    error=st.sampled_from([Kill, KeyboardInterrupt]),
)
def test_a_study_stopped_between_two_attempts_ends_as_an_undisturbed_one(
    points, strategy, error, problem, moody, tmp_path_factory
):
    def outcomes(history, study_id):
        return [(r.number, r.configuration, r.outcome, r.us, r.detail) for r in by_number(history, study_id)]

    def reports(c, attempt):
        return dataclasses.replace(UNSTABLE, measurement=None) if odd(c) and attempt == 1 else None

    folder = tmp_path_factory.mktemp("stop")
    with History(folder / "calm.db") as calm:
        (wanted,) = tune(problem, moody(reports, "emulator"), trials=24, strategy=strategy, history=calm)
        expected = outcomes(calm, wanted.study_id)
    with History(folder / "hit.db") as history:
        for point in points:
            device = moody(reports, "emulator")
            plain = device.run

            def run(job, limits, device=device, plain=plain, point=point):
                if len(device.jobs) == point:
                    raise error
                return plain(job, limits)

            device.run = run
            with suppress(Kill):
                tune(problem, device, trials=24, strategy=strategy, history=history)
            numbers = [r.number for r in history.trials(limit=None)]
            assert len(numbers) == len(set(numbers))
        (result,) = tune(problem, moody(reports, "emulator"), trials=24, strategy=strategy, history=history)
        assert outcomes(history, result.study_id) == expected


# -------------------------------------------------------------------------------------------------------------- finals


def test_disturbed_finals_are_run_once_more(problem, fake_device, history):
    class Flicker(fake_device):
        def compare(self, jobs, timeout):
            reports = super().compare(jobs, timeout)
            return [UNSTABLE, *reports[1:]] if len(self.compared) == 1 else reports

    device = Flicker()
    (result,) = tune(problem, device, trials=20, history=history)
    assert [len(jobs) for jobs in device.compared] == [FINALISTS] * 2
    assert all(r.final for r in result.best[:FINALISTS])


def test_a_finalist_that_is_unstable_each_time_does_not_keep_the_others_from_their_times(problem, fake_device, history):
    class Flicker(fake_device):
        def compare(self, jobs, timeout):
            return [UNSTABLE, *super().compare(jobs, timeout)[1:]]

    device = Flicker()
    (result,) = tune(problem, device, trials=20, history=history)
    assert [bool(r.final) for r in result.best[:FINALISTS]] == [True] * (FINALISTS - 1) + [False]
    calm = fake_device()
    tune(problem, calm, trials=20, history=history)
    assert (calm.jobs, calm.compared) == ([], [])


def test_who_is_behind_in_the_heats_keeps_its_own_time_and_is_not_asked_again(problem, fake_device, history):
    class Heats(fake_device):
        def compare(self, jobs, timeout):
            reports = super().compare(jobs, timeout)
            return [Report(Outcome.ABANDONED, "It was clearly behind.", reports[0].verification), *reports[1:]]

    device = Heats()
    (result,) = tune(problem, device, trials=20, history=history)
    assert [len(jobs) for jobs in device.compared] == [FINALISTS]
    behind = str(device.compared[0][0].kernel.configuration)
    assert [bool(r.final) for r in result.best[:FINALISTS]] == [True] * (FINALISTS - 1) + [False]
    assert result.best[FINALISTS - 1].configuration == behind
    calm = fake_device()
    tune(problem, calm, trials=20, history=history)
    assert (calm.jobs, calm.compared) == ([], [])


@pytest.mark.parametrize("thorough", [False, True])
def test_who_wants_every_time_wants_every_finalists_too(thorough, problem, fake_device, fake_pool, history, toy):
    (result,) = tune(problem, fake_device(), trials=20, history=history)
    device = fake_device()
    runner = TrialRunner(problem, device, [toy], fake_pool(), Timing(thorough=thorough))
    measure_finalists(runner, finalists(history.trials(study_id=result.study_id, limit=None)))
    (jobs,) = device.compared
    assert [job.thorough for job in jobs] == [thorough] * FINALISTS


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.LAUNCH, Outcome.OUT_OF_MEMORY])
def test_a_kernel_that_kills_the_finals_is_found_and_left_out_for_good(outcome, problem, fake_device, history, time_of):
    class Trap(fake_device):
        """The best kernel kills its worker in any run but its first."""

        def run(self, job, limits):
            report = super().run(job, limits)
            before = sum(j.kernel.configuration == job.kernel.configuration for j in self.jobs)
            return Report(outcome, "It died.", killed=True) if before > 1 and self.fatal(job) else report

        def fatal(self, job):
            return bool(self.compared) and job.kernel.configuration == self.compared[0][0].kernel.configuration

        def compare(self, jobs, timeout):
            reports = super().compare(jobs, timeout)
            if any(self.fatal(job) for job in jobs):
                return [Report(outcome, "The worker died.") for _ in jobs]
            return reports

    device = Trap()
    (result,) = tune(problem, device, trials=30, history=history)
    first, second = device.compared
    assert [str(j.kernel.configuration) for j in second] == [str(j.kernel.configuration) for j in first[1:]]
    assert [bool(r.final) for r in result.best[:FINALISTS]] == [True] * (FINALISTS - 1) + [False]
    assert result.best[FINALISTS - 1].configuration == str(first[0].kernel.configuration)
    calm = fake_device()
    tune(problem, calm, trials=30, history=history)
    assert calm.compared == []
    tune(problem, calm, trials=60, history=history)  # new ones may come, the killer does not
    met = {str(job.kernel.configuration) for jobs in calm.compared for job in jobs}
    assert str(first[0].kernel.configuration) not in met


# ------------------------------------------------------------------------------------------------------------- winners


@pytest.mark.parametrize(("apart", "simplest_wins"), [(0.004, True), (0.02, False)])
def test_a_win_inside_the_noise_is_no_win(apart, simplest_wins, problem, fake_device, history, toy):
    """The least simple finalist is the quickest; its interval reaches 1 % down."""

    class Close(fake_device):
        def simplest_first(self):
            (jobs,) = self.compared
            return sorted(
                (job.kernel.configuration for job in jobs), key=lambda c: toy.complexity(problem, c, self.gpu)
            )

        def compare(self, jobs, timeout):
            super().compare(jobs, timeout)
            last = self.simplest_first()[-1]
            ratios = [2.0 if job.kernel.configuration == last else 2.0 * (1 - apart) for job in jobs]
            return [
                Report(Outcome.CORRECT, measurement=Measurement(10, 9, 11, 20.0, r, 0.99 * r, 1.01 * r)) for r in ratios
            ]

    device = Close()
    (result,) = tune(problem, device, trials=40, history=history)
    assert result.best[0].configuration == str(device.simplest_first()[0 if simplest_wins else -1])
    (kernel,) = history.best_kernels(device.gpu.key, device.kind, "sustained", cache="cold")
    assert kernel.configuration == result.best[0].configuration
