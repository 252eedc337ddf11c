"""How trials are timed on a card that reaches its power cap: a glance beside the baseline, then contenders alone.

What a user gets at the power cap is a kernel's time at the clock that its own power leaves it, to which the card takes
a while (``benchmarks/power_cap.py`` shows how long). On the way there, beside a baseline that a faster clock hardly
helps, the ratio of one kernel moves from run to run by more than good kernels differ, and they stand in another order
than they will. Therefore a glance only tells who is clearly behind, and all others run alone until they have settled.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

from gemmtune.device.base import Measurement
from gemmtune.device.cuda.timing import Series, Stopwatch, at_the_cap, ratios
from gemmtune.device.statistics import median_interval

CONTENDER = 0.93
"""Who is slower than this fraction of what the best would be at a glance is clearly behind."""
GLANCES = 16
"""Trials among whose glances a good one stands out, whatever is expected."""
CLOSE = 0.97
"""So is who is slower than this fraction of the best, both settled: it is not timed for long."""
LEAD, SHORT, SHORT_SAMPLES = 0.05, 0.03, 3
"""Seconds that a contender runs untimed, seconds that are timed at first, and the samples that these are cut into."""
LONG, LONG_SAMPLES = 0.06, 4
"""The same of what is timed right after, of those that are close to the best. Longer would tell hardly more: means of
0.05 s scatter by 0.7 %, those of 0.2 s still by 0.5 % (``benchmarks/h200/power-cap.json``)."""
FEWEST = 3
"""Kernels that must have settled before a glance tells who is behind."""
FRESH, LEVEL_LEAD, FIRST_LEAD = 8.0, 0.4, 1.0
"""Seconds after which the baseline is timed again, that it runs untimed first, and that it does so the first time.

Every ratio rests on its time, which is far off while the card still makes up for the pause before, most of all at the
start of a study.
"""
LEVELS = 5
"""The baseline's level is the median of so many of its latest times: it wanders more slowly than they scatter."""


class Settled:
    """Times the trials of one problem, one after another; remembers the best of them and the baseline's level.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._best: list[float] = []
        self._paces: deque[float] = deque(maxlen=LEVELS)
        self._glances: deque[float] = deque(maxlen=GLANCES)
        self._baseline: Series | None = None
        self._levels: deque[list[float]] = deque(maxlen=LEVELS)
        self._taken = 0.0
        self._latest: Measurement | None = None

    @property
    def best_us(self) -> float:
        """The time to come close to: the second best of the sound ones, since the best may be luck; infinite if none.

        Times, not ratios: those would carry what the baseline's level is off by at the time.
        """
        return self._best[-1] if self._best else math.inf

    def glance(self, watch: Stopwatch, kernel: Series, baseline: Series) -> float:
        """Time both a little, side by side; the kernel's ratio to the baseline, roughly."""
        self._begin(baseline)
        watch.round([kernel, baseline])
        self._glances.append(median_interval(ratios(kernel, baseline)).median)
        return self._glances[-1]

    def behind(self, glance: float) -> str:
        """Why a kernel of this ratio at a glance is clearly behind, as a sentence; empty where it is a contender.

        What the best would be at a glance follows from what the latest kernels that settled gained or lost by it: of
        one kernel alone, a glance may be far off. But the clock at glances may change for good, and where nobody
        settles any more, nobody would tell: therefore no more is expected than what other trials lately were at.
        """
        if len(self._paces) < FEWEST or len(self._glances) < FEWEST:
            return ""
        expected = min(statistics.median(self._paces) / self.best_us, sorted(self._glances)[-2])
        if glance >= CONTENDER * expected:
            return ""
        return (
            f"At a glance, at {glance:.3f} of the baseline, it is clearly behind the best so far, which would be at "
            f"about {expected:.3f}: it was not timed until it had settled."
        )

    def measure(
        self,
        watch: Stopwatch,
        kernel: Series,
        us: float,
        baseline: Series,
        baseline_us: float,
        glance: float,
        *,
        thorough: bool = False,
    ) -> tuple[Measurement, str]:
        """The kernel's settled time with its ratio to the baseline's level, and why it is clearly behind where it is.

        ``us`` and ``baseline_us``: about what a launch of each takes; ``glance``: the kernel's ratio at one;
        ``thorough``: nothing is behind, and everything is timed for long.
        """
        self._begin(baseline)
        if self._clock() - self._taken > FRESH or not self._levels:
            lead = LEVEL_LEAD if self._levels else FIRST_LEAD
            self._levels.append(watch.alone(baseline, baseline_us, lead, SHORT, SHORT_SAMPLES))
            self._taken = self._clock()
        found = self._measured(watch, watch.alone(kernel, us, LEAD, SHORT, SHORT_SAMPLES))
        reason = ""
        if found.us * CLOSE > self.best_us and not thorough:
            reason = f"Settled, at {found.us:.1f} us, it is clearly behind the best so far ({self.best_us:.1f} us)."
        else:
            found = self._latest = self._measured(watch, watch.alone(kernel, us, 0.0, LONG, LONG_SAMPLES))
        self._paces.append(glance * found.us)
        return found, reason

    def keep(self, measured: Measurement) -> None:
        """``measured``, the latest of :meth:`measure`, is sound: from now on others are compared with it."""
        if measured is self._latest:
            self._best = sorted([*self._best, measured.us])[:2]

    def _begin(self, baseline: Series) -> None:
        """Forget what was timed beside another baseline: of another cache state, say."""
        if self._baseline is None or self._baseline.replay is not baseline.replay:
            self._baseline, self._taken = baseline, -FRESH
            for known in (self._best, self._paces, self._glances, self._levels):
                known.clear()

    def _measured(self, watch: Stopwatch, samples: list[float]) -> Measurement:
        levels = [sample for level in self._levels for sample in level]
        level = median_interval(levels).median
        ours = at_the_cap(median_interval(samples), watch.clock_mhz)
        ratio = at_the_cap(median_interval([level / sample for sample in samples]), watch.clock_mhz)
        return Measurement(
            us=ours.median, us_low=ours.low, us_high=ours.high,
            baseline_us=level,
            ratio=ratio.median, ratio_low=ratio.low, ratio_high=ratio.high,
            samples=tuple(samples), baseline_samples=tuple(levels),
            clock_mhz=watch.clock_mhz, throttle=watch.throttle,
        )  # fmt: skip
