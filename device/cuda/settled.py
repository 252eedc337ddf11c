"""The short form of settling, for trials: what a kernel takes at the clock that its own power leaves it.

Rounds with the baseline compare cycles, since both then run at one clock; at the power cap that is not what a user
gets. On an H200 a bf16 4096 x 4096 x 4096 kernel of 128 x 112 tiles was 1.04 times as fast as cuBLAS in rounds of
2.5 ms and 0.96 times once each ran at its own clock (``benchmarks/h200/noise.json`` tells how well the latter repeats).
The clock follows within 0.03 to 0.08 s, hence :data:`LEAD`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gemmtune.device.base import Measurement
from gemmtune.device.cuda.timing import Replay, Series, Stopwatch
from gemmtune.device.statistics import median_interval

LEAD, SPAN, SAMPLES = 0.07, 0.05, 5
"""Seconds of untimed running, seconds that are timed, and the samples that these are cut into."""
FRESH = 2.0
"""Seconds for which the baseline's level holds; the card warms and cools more slowly."""


class Settled:
    """Measures kernels of one problem after another; remembers the baseline's level between them.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._replay: Replay | None = None
        self._level: list[float] = []
        self._taken = 0.0

    def measure(self, watch: Stopwatch, kernel: Series, us: float, baseline: Series, baseline_us: float) -> Measurement:
        """The kernel's time, and its ratio to the baseline's level, which is taken anew where it is not fresh.

        ``us`` and ``baseline_us``: about what a launch of each takes.
        """
        if self._replay is not baseline.replay or self._clock() - self._taken > FRESH:
            self._level = watch.alone(baseline, baseline_us, LEAD, SPAN, SAMPLES)
            self._replay, self._taken = baseline.replay, self._clock()
        samples = watch.alone(kernel, us, LEAD, SPAN, SAMPLES)
        level = median_interval(self._level).median
        ours, ratio = median_interval(samples), median_interval([level / sample for sample in samples])
        return Measurement(
            us=ours.median, us_low=ours.low, us_high=ours.high,
            baseline_us=level,
            ratio=ratio.median, ratio_low=ratio.low, ratio_high=ratio.high,
            samples=tuple(samples), baseline_samples=tuple(self._level),
            clock_mhz=watch.clock_mhz, throttle=watch.throttle,
        )  # fmt: skip

    def forget(self) -> None:
        """Let go of the baseline's graph."""
        self._replay = None
