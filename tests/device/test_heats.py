"""The heats before a final: who is clearly behind stays out, everybody runs once, and few need none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device.cuda.heats import BEHIND, FEWEST, SAMPLES, heats
from gemmtune.device.cuda.timing import SETTLE, SPAN, Series


class Watch:
    """Knows what each takes alone."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times = times
        self.asked: list[str] = []

    def alone(self, item: Series, us: float, lead: float, span: float, samples: int) -> list[float]:
        assert (lead, span, samples) == (SETTLE, SPAN, SAMPLES)
        self.asked.append(item.replay.name)
        return [self.times[item.replay.name]] * samples


def run(times: list[float]) -> tuple[dict[str, str], Watch]:
    watch: Any = Watch({f"kernel {i}": us for i, us in enumerate(times)})
    replays: list[Any] = [SimpleNamespace(name=name) for name in watch.times]
    found = heats(watch, {Series(replay): 100.0 for replay in replays})
    return {one.replay.name: reason for one, reason in found.items()}, watch


def test_who_is_clearly_behind_is_told_so() -> None:
    found, watch = run([100.0, 101.0, 103.0, 150.0])
    assert found == {
        "kernel 2": "In the heats of the finals, at 103.0 us, it was clearly behind the best (100.0 us).",
        "kernel 3": "In the heats of the finals, at 150.0 us, it was clearly behind the best (100.0 us).",
    }
    assert watch.asked == ["kernel 0", "kernel 1", "kernel 2", "kernel 3"]


@given(st.lists(st.floats(1.0, 1e5), min_size=FEWEST, max_size=8))
def test_the_best_and_whoever_is_near_it_go_on(times: list[float]) -> None:
    found, _ = run(times)
    assert found.keys() == {f"kernel {i}" for i, us in enumerate(times) if us * BEHIND > min(times)}
    assert f"kernel {times.index(min(times))}" not in found


@given(st.lists(st.floats(1.0, 1e5), max_size=FEWEST - 1))
def test_few_need_none(times: list[float]) -> None:
    found, watch = run(times)
    assert found == {}
    assert watch.asked == []
