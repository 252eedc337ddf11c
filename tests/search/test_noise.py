"""A/A: what counts as a false difference, and races that are disturbed; devices are fakes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device.base import Measurement, Outcome, Report
from gemmtune.device.statistics import median_interval
from gemmtune.search.noise import THRESHOLD, Copy, differs, good_kernel, measure_noise
from gemmtune.space.errors import LaunchError, SettingError, UnsupportedError
from gemmtune.space.gemm import Gemm

pytestmark = pytest.mark.usefixtures("toys")


class Racing:
    """Races every copy with normal noise, ``noise`` a sample; ``spoil(race, copy)`` may replace a report."""

    kind, name, estimates = "cuda", "cuda:0", False

    def __init__(self, fake, noise, bias=0.0, spoil=lambda race, copy: None):
        self.gpu = fake().gpu
        self.rng = np.random.default_rng(5)
        self.noise, self.bias, self.spoil = noise, bias, spoil
        self.races = []

    def compare(self, jobs, timeout):
        self.races.append(jobs)
        return [self.spoil(len(self.races), i) or self.report(i) for i in range(len(jobs))]

    def report(self, copy):
        ratios = (1.1 * (1 + self.bias * copy) * (1 + self.noise * self.rng.standard_normal(12))).tolist()
        interval = median_interval(ratios)
        times = Measurement(10, 9.9, 10.1, 11, interval.median, interval.low, interval.high, tuple(ratios))
        return Report(Outcome.CORRECT, measurement=times)


@pytest.fixture
def kernel(problem, fake_device, monkeypatch, fake_pool):
    def compile_kernel(source, arch, cache):
        return fake_pool().submit(source, arch).result()

    monkeypatch.setattr("gemmtune.search.noise.compile_kernel", compile_kernel)
    return good_kernel(problem, fake_device())


def test_pairs_come_in_whole_races_of_eleven_copies_proven_once(problem, kernel, fake_device):
    device, heard = Racing(fake_device, 0.0), []
    noise = measure_noise(device, problem, 200, lambda done, of: heard.append((done, of)), kernel=kernel)
    assert (noise.pairs, noise.false_differences, noise.rate, noise.disturbed) == (220, 0, 0.0, 0)
    assert noise.spread == pytest.approx(0, abs=1e-12)
    assert [len(jobs) for jobs in device.races] == [11] * 4
    assert heard == [(55 * i, 220) for i in range(1, 5)]
    assert [{job.verify for job in jobs} for jobs in device.races] == [{True}] + [{False}] * 3
    assert {(j.effort, j.regime, j.cache) for jobs in device.races for j in jobs} == {("final", "sustained", "cold")}
    assert all(job.thorough for jobs in device.races for job in jobs)  # no copy stays out for its luck in the heats
    assert (noise.problem, noise.configuration) == (problem.key, str(kernel.configuration))


@pytest.mark.parametrize(("pairs", "copies", "races"), [(1, 2, 1), (3, 3, 1), (4, 4, 1), (55, 11, 1), (56, 11, 2)])
def test_few_pairs_take_few_copies(pairs, copies, races, problem, kernel, fake_device):
    device = Racing(fake_device, 0.0)
    noise = measure_noise(device, problem, pairs, kernel=kernel)
    assert [len(jobs) for jobs in device.races] == [copies] * races
    assert noise.pairs == races * math.comb(copies, 2) >= pairs


def test_small_noise_makes_no_difference_and_a_bias_makes_many(problem, kernel, fake_device):
    calm = measure_noise(Racing(fake_device, 0.001), problem, kernel=kernel)
    assert calm.rate < 0.01
    assert 0 < calm.spread < THRESHOLD
    biased = measure_noise(Racing(fake_device, 0.001, bias=0.01), problem, kernel=kernel)
    assert biased.rate > 0.9
    assert biased.spread > THRESHOLD


def copy(ratio, low, high):
    return Copy(10.0, ratio, low, high)


@pytest.mark.parametrize(
    ("slower", "expected"),
    [
        (copy(0.996, 0.995, 0.997), False),  # not by 0.5 %
        (copy(0.985, 0.98, 0.99), True),  # the intervals do not meet
        (copy(0.985, 0.98, 0.994), False),  # they do
    ],
)
def test_a_difference_is_large_and_the_intervals_do_not_meet(slower, expected):
    quicker = copy(1.0, 0.993, 1.01) if slower.ratio < 0.99 else copy(1.0, 0.999, 1.001)
    assert differs(quicker, slower) is expected
    assert differs(slower, quicker) is expected


positive = st.floats(0.5, 2.0)


@given(positive, positive, st.floats(0, 0.1), st.floats(0, 0.1))
def test_difference_does_not_depend_on_the_order_and_needs_both_conditions(a, b, wide_a, wide_b):
    one, other = copy(a, a * (1 - wide_a), a * (1 + wide_a)), copy(b, b * (1 - wide_b), b * (1 + wide_b))
    assert differs(one, other) == differs(other, one)
    quicker, slower = (one, other) if a > b else (other, one)
    meeting = slower.ratio_high >= quicker.ratio_low
    if meeting or quicker.ratio <= slower.ratio * (1 + THRESHOLD):
        assert not differs(one, other)
    else:
        assert differs(one, other)


UNSTABLE = Report(Outcome.UNSTABLE, "Two levels.")


def test_a_disturbed_race_is_run_again_and_what_stays_disturbed_is_counted(problem, kernel, fake_device):
    once = Racing(fake_device, 0.0, spoil=lambda race, i: UNSTABLE if race == 1 and i < 3 else None)
    noise = measure_noise(once, problem, 110, kernel=kernel)
    assert (len(once.races), noise.pairs, noise.disturbed) == (3, 110, 0)
    ever = Racing(fake_device, 0.0, spoil=lambda race, i: UNSTABLE if i == 0 else None)
    noise = measure_noise(ever, problem, 110, kernel=kernel)
    assert (len(ever.races), noise.pairs, noise.disturbed) == (4, 90, 2)
    never = Racing(fake_device, 0.0, spoil=lambda race, i: UNSTABLE)
    with pytest.raises(LaunchError, match=r"Not one pair of copies of toy .* see what else runs"):
        measure_noise(never, problem, 42, kernel=kernel)


def test_a_kernel_that_fails_ends_it(problem, kernel, fake_device):
    wrong = Racing(fake_device, 0.0, spoil=lambda race, i: Report(Outcome.WRONG, "One corner is wrong."))
    with pytest.raises(LaunchError, match=r"toy .* ended as wrong: One corner is wrong\.; time another one"):
        measure_noise(wrong, problem, 21, kernel=kernel)


def test_what_has_no_noise_or_no_sense_is_refused(problem, kernel, fake_device):
    with pytest.raises(UnsupportedError, match="estimates, which have no noise"):
        measure_noise(fake_device(kind="emulator", name="emulator:h200"), problem)
    with pytest.raises(SettingError, match="pairs"):
        measure_noise(Racing(fake_device, 0.0), problem, 0)
    with pytest.raises(UnsupportedError, match="toy is for 16 bits"):
        measure_noise(Racing(fake_device, 0.0), Gemm(64, 64, 64, "fp32"))
