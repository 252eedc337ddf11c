"""How many turns a benchmark of whole programs takes, and what it leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest


class Machine:
    """A clock that calls move on: each by the next of its own durations, in seconds."""

    def __init__(self, load_benchmark: Callable[[str], Any], **how: Any) -> None:
        self.now, self.collecting = 0.0, []  # type: tuple[float, list[bool]]
        self.turns = load_benchmark("turns.py").Turns(lambda: None, clock=lambda: self.now, **how)

    def call(self, *seconds: float) -> Callable[[], None]:
        durations = cycle(seconds)

        def call() -> None:
            self.now += next(durations)
            self.collecting.append(gc.isenabled())

        return call


def test_the_least_turns_are_enough_where_the_ratio_is_steady(load_benchmark: Callable[[str], Any]) -> None:
    machine = Machine(load_benchmark)
    taken = machine.turns.times({"plain": machine.call(0.02), "pack": machine.call(0.01), "third": machine.call(0.5)})
    assert {name: len(us) for name, us in taken.items()} == {"plain": 21, "pack": 21, "third": 21}
    assert taken["plain"] == pytest.approx([20_000.0] * 21)
    assert taken["pack"] == pytest.approx([10_000.0] * 21)


def test_an_unsteady_ratio_is_given_more_turns_up_to_the_most(load_benchmark: Callable[[str], Any]) -> None:
    machine = Machine(
        load_benchmark, span=0.0, least=11, most=31
    )  # a turn is an untimed call and three timed ones, after three at first
    unsteady = machine.call(*[0.01] * 3, *([0.01] * 4 + [0.03] * 4) * 16)
    taken = machine.turns.times({"plain": unsteady, "pack": machine.call(0.01)})
    assert {name: len(us) for name, us in taken.items()} == {"plain": 31, "pack": 31}
    assert max(taken["plain"]) > 2 * min(taken["plain"])


def test_a_second_pair_is_given_more_turns_as_the_first_is(load_benchmark: Callable[[str], Any]) -> None:
    machine = Machine(load_benchmark, span=0.0, least=11, most=31)
    unsteady = machine.call(*[0.01] * 3, *([0.01] * 4 + [0.03] * 4) * 16)
    steady = [machine.call(0.01) for _ in range(3)]
    names = ["plain", "pack", "plain compiled", "pack compiled"]
    taken = machine.turns.times(dict(zip(names, [*steady, unsteady], strict=True)))
    assert {len(us) for us in taken.values()} == {31}


def test_turns_end_as_soon_as_the_ratio_is_known(load_benchmark: Callable[[str], Any]) -> None:
    machine = Machine(load_benchmark, span=0.0, least=2, most=31)
    calls = {"plain": machine.call(*[0.01] * 7, *[0.05] * 4, *[0.01] * 1000), "pack": machine.call(0.01)}
    assert 2 < len(machine.turns.times(calls)["plain"]) < 31


def test_the_collector_rests_during_turns_alone_and_comes_back_whatever_happens(
    load_benchmark: Callable[[str], Any],
) -> None:
    machine = Machine(load_benchmark, least=2, most=2)
    machine.turns.times({"plain": machine.call(0.1), "pack": machine.call(0.1)})
    assert not any(machine.collecting[6:])  # three calls of each warm up before
    assert gc.isenabled()

    def fails() -> None:
        raise RuntimeError("no memory left")

    with pytest.raises(RuntimeError, match="no memory left"):
        machine.turns.times({"plain": machine.call(0.1), "pack": fails})
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
