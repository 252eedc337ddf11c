"""How trials are timed on a card that reaches its power cap: a glance beside the baseline, then contenders alone.

What a user gets at the power cap is a kernel's time at the clock that its own power leaves it, to which the card takes
0.05 to 0.08 s. Trials that are timed on the way there differ by 10 % from one run to the next: on an H200 the cap works
on the SM clock, and cuBLAS, which a faster clock hardly helps, then passes kernels that it does help. Therefore

- a glance (a few samples beside the baseline) finds the card rested, at its full clock, and takes less time than the
  cap needs to take hold;
- who may be among the best by it runs alone until it has settled, and that time counts. A bf16 4096 x 4096 x 4096
  kernel of 128 x 112 tiles was 1.04 times as fast as cuBLAS in rounds of 2.5 ms and 0.96 times once settled.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gemmtune.device.base import Measurement
from gemmtune.device.cuda.timing import Replay, Series, Stopwatch, ratios
from gemmtune.device.statistics import median_interval

ROUNDS = 2
"""Rounds of a glance: 20 ms."""
CONTENDER = 0.95
"""Who is slower than this fraction of the best, both at a glance, is no contender."""
LEAD, SPAN, SAMPLES = 0.07, 0.05, 5
"""Seconds that a contender runs untimed, seconds that are timed, and the samples that these are cut into."""
FRESH = 2.0
"""Seconds for which the baseline's settled level holds; the card warms and cools more slowly."""
REST, BREATH = 0.06, 0.015
"""Seconds of rest after a kernel has settled, and after a glance; preparing the next trial takes a part of them."""


class Settled:
    """Times the trials of one problem, one after another; remembers the best of them and the baseline's level.

    Args:
        clock: seconds that only grow.
        sleep: passes seconds.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._rested = 0.0
        self._best: tuple[float, float] | None = None
        self._replay: Replay | None = None
        self._level: list[float] = []
        self._taken = 0.0

    def tire(self, rest: float = REST) -> None:
        """The card has worked just now, and needs so many seconds until it is rested."""
        self._rested = self._clock() + rest

    def glance(self, watch: Stopwatch, kernel: Series, baseline: Series) -> float:
        """Time both a little once the card is rested; the kernel's ratio to the baseline at that clock."""
        wait = self._rested - self._clock()
        if wait > 0:
            self._sleep(wait)
        for _ in range(ROUNDS):
            watch.round([kernel, baseline])
        self.tire(BREATH)
        return median_interval(ratios(kernel, baseline)).median

    def contends(self, glance: float) -> bool:
        """Whether a kernel of this ratio at a glance may be among the best."""
        return self._best is None or glance >= CONTENDER * self._best[1]

    def measure(
        self, watch: Stopwatch, kernel: Series, us: float, baseline: Series, baseline_us: float, glance: float
    ) -> Measurement:
        """The kernel's settled time, and its ratio to the baseline's, which is taken anew where it is not fresh.

        ``us`` and ``baseline_us``: about what a launch of each takes; ``glance``: the kernel's ratio at one.
        """
        if self._replay is not baseline.replay or self._clock() - self._taken > FRESH:
            self._level = watch.alone(baseline, baseline_us, LEAD, SPAN, SAMPLES)
            self._replay, self._taken = baseline.replay, self._clock()
        samples = watch.alone(kernel, us, LEAD, SPAN, SAMPLES)
        self.tire()
        level = median_interval(self._level).median
        ours, ratio = median_interval(samples), median_interval([level / sample for sample in samples])
        if self._best is None or ratio.median > self._best[0]:
            self._best = ratio.median, glance
        return Measurement(
            us=ours.median, us_low=ours.low, us_high=ours.high,
            baseline_us=level,
            ratio=ratio.median, ratio_low=ratio.low, ratio_high=ratio.high,
            samples=tuple(samples), baseline_samples=tuple(self._level),
            clock_mhz=watch.clock_mhz, throttle=watch.throttle,
        )  # fmt: skip
