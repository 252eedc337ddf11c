"""Variants of a program timed in turns, as many as their ratios need to be known."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gemmtune.device.statistics import Interval, median_interval

Call = Callable[[], object]


def ratio(plain: list[float], other: list[float]) -> Interval:
    """How many times as fast ``other`` is, turn by turn: what the card's clock does in a turn falls on both."""
    return median_interval([a / b for a, b in zip(plain, other, strict=True)])


@dataclass(frozen=True)
class Turns:
    """How long variants are timed.

    Attributes:
        wait: returns when the device has done all it was given.
        least, most: turns; more than the least only while a ratio is not known: that of the first two variants, of the
            next two, and so on (a last one without a partner has none).
        span: seconds of a variant's turn, a quarter of which goes before, untimed. Short, so that what slows the host
            for a while falls on all variants.
        known: how wide a ratio's 95 % interval may be, as a fraction of the ratio.
        seconds: after which nothing but the least turns begins.
        clock: seconds; for tests.
    """

    wait: Call
    least: int = 21
    most: int = 301
    span: float = 0.1
    known: float = 0.02
    seconds: float = 90.0
    clock: Callable[[], float] = field(default=time.perf_counter)

    def times(self, calls: Mapping[str, Call]) -> dict[str, list[float]]:
        """Microseconds of each call in every turn, in an order that turns round.

        Python's collector, whose long pauses fall on one variant or another, works between turns alone.
        """
        for call in calls.values():
            for _ in range(3):
                call()
        self.wait()
        samples: dict[str, list[float]] = {variant: [] for variant in calls}
        lists = list(samples.values())
        first, pairs = lists[0], list(zip(lists[::2], lists[1::2], strict=False))
        end = self.clock() + self.seconds
        collects = gc.isenabled()
        gc.disable()
        gc.collect()
        gc.freeze()
        try:
            while len(first) < self.least or (
                len(first) < self.most and self.clock() < end and not all(itertools.starmap(self._is_known, pairs))
            ):
                order = list(calls.items())
                for variant, call in order if len(first) % 2 == 0 else reversed(order):
                    gc.collect()
                    samples[variant].append(self._sample(call))
        finally:
            if collects:
                gc.enable()
            gc.unfreeze()
        return samples

    def _is_known(self, plain: list[float], other: list[float]) -> bool:
        found = ratio(plain, other)
        return found.high - found.low <= self.known * found.median

    def _sample(self, call: Call) -> float:
        count, begin = 0, self.clock()
        while count < 1 or self.clock() - begin < self.span / 4:  # untimed: clocks settle to this load
            call()
            self.wait()
            count += 1
        count *= 3
        begin = self.clock()
        for _ in range(count):
            call()
        self.wait()
        return (self.clock() - begin) / count * 1e6
