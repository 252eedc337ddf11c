"""The list of the benchmark and the figures made of its runs; and that the faults are what they say."""

from collections import Counter
from dataclasses import replace

import pytest
from fault_family import FAULTS, Faulty, configuration, fault_of, registered, several
from fault_study import mixed
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.codegen.render import render
from gemmtune.db import History, StudySpec, TrialResult
from gemmtune.db.records import MeasurementData
from gemmtune.space import families
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

PROBLEM = Gemm(4096, 4096, 4096, "bf16")


@pytest.fixture(scope="module")
def faults(load_benchmark):
    return load_benchmark("faults.py")


@pytest.fixture(scope="module")
def listed(faults):
    space = Space(PROBLEM, gpu("h200"), [families.family("mma")])
    return faults.fixed_list(space, 300), faults.fixed_list(space, 300)


def test_the_list_has_300_different_configurations_and_40_percent_are_faulty(listed):
    (whole, clean), _ = listed
    assert len(whole) == len(set(whole)) == 300
    assert sum(fault_of(str(c)) is not None for c in whole) == 120
    assert clean == [c for c in whole if fault_of(str(c)) is None]


def test_the_list_has_every_fault_and_begins_with_a_right_kernel(listed):
    (whole, _), _ = listed
    assert set(FAULTS) - {"none"} == {fault_of(str(c)) for c in whole} - {None}
    assert fault_of(str(whole[0])) is None


def test_the_list_is_always_the_same(listed):
    assert listed[0] == listed[1]


def test_every_configuration_of_the_family_is_a_kernel_of_its_own():
    family = Faulty()
    space = Space(PROBLEM, gpu("h200"), [family])
    sources = [render(PROBLEM, c, family) for c in space]
    assert len({(s.entry, s.text) for s in sources}) == len(space)
    assert Counter(fault_of(str(c)) for c in space) == dict.fromkeys(FAULTS, 16)


@given(st.integers(0, 16))
def test_the_first_few_of_a_fault_are_valid_and_differ(count):
    some = several("nan", count)
    assert len(set(some)) == count
    assert all(not Faulty().why_invalid(PROBLEM, c, gpu("h200")) for c in some)


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 9))
def test_mixing_keeps_all_and_the_order_of_the_right_ones(right, wrong, seed):
    a = [configuration("none", i) for i in range(right)]
    b = [configuration("nan", i) for i in range(wrong)]
    whole, clean = mixed(a, b, seed)
    assert whole[0] == a[0]
    assert Counter(whole) == Counter(a + b)
    assert clean == [c for c in whole if c in set(a)]


@pytest.fixture
def recorded(tmp_path):
    """Makes the recorded trials of {configuration: (outcome, ratio)}."""
    spec = StudySpec(
        PROBLEM.to_json(), PROBLEM.key, "cuda", gpu("h200"), {}, "sustained", "cold", ("fault",), "list", 0
    )

    def make(name, trials):
        with History(tmp_path / f"{name}.db") as history:
            study = history.open_study(spec)
            for number, (c, (outcome, ratio, detail)) in enumerate(trials.items()):
                time = MeasurementData(100.0, 99.0, 101.0, 100.0 * ratio, ratio, ratio, ratio) if ratio else None
                study.finish(study.claim(number, c), TrialResult(outcome, detail, measurement=time))
            return study.trials()

    return make


def test_shifts_pair_what_is_correct_in_both_runs(faults, recorded):
    a, b, c, d = (configuration("none", i) for i in range(4))
    before = recorded("1", {a: ("correct", 1.0, ""), b: ("correct", 0.5, ""), c: ("abandoned", 0.2, "")})
    after = recorded(
        "2", {b: ("correct", 0.52, ""), a: ("correct", 0.99, ""), c: ("correct", 0.2, ""), d: ("wrong", 0, "")}
    )
    assert faults.shifts(before, after) == {str(a): pytest.approx(-0.01), str(b): pytest.approx(0.04)}


def test_an_estimate_stands_in_where_there_is_no_ratio(faults, recorded):
    (record,) = recorded("1", {configuration("none"): ("correct", 1.0, "")})
    estimated = replace(record, ratio=None)
    assert faults.shifts([estimated], [replace(estimated, us=110.0)]) == {record.configuration: pytest.approx(0.1)}


def test_a_fault_that_ends_otherwise_or_for_another_reason_is_mistaken(faults, recorded):
    trials = {
        configuration("nan"): ("wrong", 0, "With m=1, 3 compared elements are wrong."),
        configuration("nan", 1): ("correct", 1.0, ""),
        configuration("trap"): ("launch", 0, "The kernel died while it ran."),
        configuration("trap", 1): ("infrastructure", 0, "The GPU is gone."),
        configuration("spill"): ("pruned", 0, "A block needs 1048576 bytes of shared memory."),
    }
    found = faults.mistaken(recorded("1", trials), "cuda")
    assert [line.split(": ")[0] for line in found] == [str(c) for c in list(trials)[1::2]] + [str(list(trials)[4])]


def test_a_right_kernel_that_fails_only_beside_faulty_ones_is_harmed(faults, recorded):
    a, b, c = (configuration("none", i) for i in range(3))
    before = recorded("1", {a: ("correct", 1.0, ""), b: ("abandoned", 0.1, ""), c: ("wrong", 0, "")})
    after = recorded("2", {a: ("timeout", 0, "It hung."), b: ("correct", 0.2, ""), c: ("launch", 0, "")})
    assert faults.harmed(before, after) == [f"{a}: timeout: It hung."]


def test_bars_are_missed_one_by_one(faults):
    good = {
        "mistaken": [], "harmed": [], "infrastructure": [],
        "shift_median": 0.007, "shift_p90": 0.03, "winner_shift": 0.01,
        "memory_left_at_a_death_bytes": 8 << 20, "memory_left_at_the_end_bytes": 8 << 20, "processes_left_on_gpu": [],
        "processes_left": 0, "zombies": 0, "recorded": 300, "configurations": 300, "memory_known": True,
        "estimated": False,
    }  # fmt: skip
    bad = {
        "mistaken": ["x"], "harmed": ["x"], "infrastructure": ["x"],
        "shift_median": 0.0071, "shift_p90": 0.031, "winner_shift": 0.011,
        "memory_left_at_a_death_bytes": 9 << 20, "memory_left_at_the_end_bytes": 9 << 20, "processes_left_on_gpu": [7],
        "processes_left": 1, "zombies": 1, "recorded": 299, "configurations": 301, "memory_known": False,
    }  # fmt: skip
    assert faults.missed(good) == []
    assert all(len(faults.missed({**good, name: value})) == 1 for name, value in bad.items())


def test_a_family_from_outside_is_known_only_for_as_long_as_it_is_registered():
    with registered() as family:
        assert families.family("fault") is family
    assert "fault" not in families.FAMILIES
