"""How far a kernel serves beyond the size it was tuned for: claimed only where it was proved and timed.

A kernel takes M at run time. Between two tuned sizes each kernel is offered half of the way (in the geometric sense).
On either side it claims that span, or else the half of it, or nothing. What is left between two sizes is then offered
to the kernel of the larger, whose tiles hold the smaller M as well, and after it to that of the smaller; it must win in
the middle of that too. What a kernel claims in the end was proved and timed at both ends and in the middle, and beats
the baseline there by more than the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.device.base import Job, Limits, Measurement, Outcome
from gemmtune.pack.schema import Point

if TYPE_CHECKING:
    from gemmtune.device.base import Cache, Device, Effort, Regime
    from gemmtune.space.problem import Problem


def spans(sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The span offered to each of ``sizes``: half of the way to its neighbours, a factor of two at the ends."""
    order = sorted(set(sizes))
    out: dict[int, tuple[int, int]] = {}
    for i, size in enumerate(order):
        low = math.isqrt(order[i - 1] * size) + 1 if i else max(1, size // 2)
        high = math.isqrt(size * order[i + 1]) if i + 1 < len(order) else 2 * size
        out[size] = (min(low, size), max(high, size))
    return out


Key = tuple[str, str, "Regime", "Cache"]
"""A kernel by its cubin's SHA-256, its problem without the size that ranges, and how it is timed."""
Seen = dict[Key, dict[int, "Point | None"]]
"""What kernels reach, by size; None where they fail."""
Offer = tuple[CompiledKernel, "Problem"]
"""A kernel that takes M at run time, and the problem it was tuned for."""


def claims(
    meter: RangeMeter,
    sizes: Sequence[int],
    offers: Mapping[int, Offer],
    regime: Regime,
    cache: Cache,
    tell: Callable[[Problem, tuple[int, int]], None] = lambda _problem, _span: None,
    *,
    apart: bool = False,
) -> dict[int, tuple[Point, ...]]:
    """The ranges of a group that hold, by the size each kernel was tuned for; no two overlap.

    None holds a size at which its kernel was seen to lose, be it by an earlier claim of the meter's.

    Args:
        meter: measures.
        sizes: all tuned sizes, also those that the baseline serves.
        offers: what may serve more than its own size, by that size.
        regime: in which to measure.
        cache: in which state.
        tell: is told what each kernel is tried on.
        apart: losses count only where this call asks for them: what is claimed is what a new meter would claim, but
            for kernels that are wrong, which no pack keeps.
    """
    axis, offered = meter.axis, spans(sizes)
    seen: Seen | None = {} if apart else None

    def claim(size: int, span: tuple[int, int]) -> tuple[Point, ...]:
        tell(offers[size][1], span)
        return meter.claim(*offers[size], span, regime, cache, seen)

    held = {size: claim(size, offered[size]) for size in sorted(offers)}

    def reach(size: int) -> tuple[int, int]:
        points = held.get(size)
        return (points[0].axes[axis], points[-1].axes[axis]) if points else (size, size)

    for below, above in pairwise(sorted(set(sizes))):
        for size in (above, below):
            low, high = reach(below)[1] + 1, reach(above)[0] - 1
            if size in offers and low <= high:
                had = reach(size)
                span = (low, had[1]) if size == above else (had[0], high)
                points = claim(size, span)
                if not points or had[0] < points[0].axes[axis] or points[-1].axes[axis] < had[1]:
                    continue  # it would give up what it had
                middle = (low + high) // 2
                if points[0].axes[axis] <= middle <= points[-1].axes[axis]:
                    between = meter.measure(*offers[size], middle, regime, cache, seen=seen)
                    if between is None or not beats_baseline(between.ratio, between.ratio_low):
                        continue
                held[size] = points
    # An offer that was turned down may have shown a loss inside of what its kernel already held.
    for size, points in held.items():
        if points:
            held[size] = meter.claim(*offers[size], reach(size), regime, cache, seen)
    right = {size for size in held if offers[size][0].cubin_sha256 not in meter.wrong}
    return {size: points for size, points in held.items() if points and size in right}


def beats_baseline(ratio: float | None, ratio_low: float | None) -> bool:
    """Whether a kernel is quicker than the baseline beyond the noise: the 95 % interval of the ratio lies above 1.

    A win inside the noise is none: the baseline then serves just as well, and has the larger number of users.
    """
    return ratio is not None and (ratio if ratio_low is None else ratio_low) > 1.0


def point_of(axes: dict[str, int], measurement: Measurement) -> Point:
    """A measurement at ``axes`` as a pack keeps it."""
    return Point(
        axes=axes,
        us=measurement.us,
        us_low=measurement.us_low,
        us_high=measurement.us_high,
        baseline_us=measurement.baseline_us,
        ratio=measurement.ratio,
        ratio_low=measurement.ratio_low,
        ratio_high=measurement.ratio_high,
    )


class RangeMeter:
    """Proves and times kernels at other sizes of one axis on a real GPU; each size of a kernel once.

    Args:
        device: the device; its times are measured, not estimated.
        axis: the axis that ranges.
        seed: of the random inputs.

    Attributes:
        axis: as given.
        wrong: where a kernel (by its cubin's SHA-256) was first found wrong.
    """

    def __init__(self, device: Device, axis: str = "m", *, seed: int = 0) -> None:
        self._device = device
        self.axis = axis
        self._seed = seed
        self._known: Seen = {}
        self.wrong: dict[str, str] = {}

    def claim(
        self,
        kernel: CompiledKernel,
        problem: Problem,
        span: tuple[int, int],
        regime: Regime,
        cache: Cache,
        seen: Seen | None = None,
    ) -> tuple[Point, ...]:
        """The measured points (first, middle, last) of the claim that holds; empty where none does.

        Either end is sought from the outside in (the end of the span, half of the way, the tuned size). No claim holds
        a size at which the kernel was seen to lose, be it by an earlier claim: the end on that side gives way. A
        kernel that was wrong at any size claims none. ``seen``: what counts as seen, and is added to; by default
        all that was ever measured.
        """
        tuned = problem.axes[self.axis]
        known = self._of(kernel, problem, regime, cache, seen)

        def wins(size: int) -> bool:
            point = self.measure(kernel, problem, size, regime, cache, seen=seen)
            return point is not None and beats_baseline(point.ratio, point.ratio_low)

        def lost() -> int | None:
            """The size furthest out in the claim at which it is known to lose."""
            inside = [size for size in known if lows[0] <= size <= highs[0] and not wins(size)]
            return max(inside, key=lambda size: abs(size - tuned), default=None)

        lows = list(dict.fromkeys((span[0], math.isqrt(span[0] * tuned), tuned)))
        highs = list(dict.fromkeys((span[1], math.isqrt(tuned * span[1]), tuned)))
        while lows[0] < highs[0] and kernel.cubin_sha256 not in self.wrong:
            low, high = lows[0], highs[0]
            middle = (low + high) // 2
            loss = lost()
            if loss is None:
                loss = next((size for size in (low, high, middle) if not wins(size)), None)
            if loss is None:
                return tuple(point for size in sorted({low, middle, high}) if (point := known[size]) is not None)
            given_way = highs if loss > tuned else lows
            if len(given_way) == 1:  # the kernel does not hold at its own size today
                return ()
            given_way.pop(0)
        return ()

    def measure(
        self,
        kernel: CompiledKernel,
        problem: Problem,
        size: int,
        regime: Regime,
        cache: Cache,
        *,
        anew: bool = False,
        seen: Seen | None = None,
    ) -> Point | None:
        """The point at ``size``, measured when it is first asked for; None where the kernel is wrong there or fails.

        ``anew`` measures again, on other inputs and as long as finals are: for a judge who must not see the numbers
        that made the claim. ``seen`` is told of it.
        """
        known = self._of(kernel, problem, regime, cache)
        if anew or size not in known:
            point = self.point(kernel, problem.with_axes(**{self.axis: size}), regime, cache, anew)
            if anew:
                return point
            known[size] = point
        self._of(kernel, problem, regime, cache, seen)[size] = known[size]
        return known[size]

    def point(self, kernel: CompiledKernel, there: Problem, regime: Regime, cache: Cache, anew: bool) -> Point | None:
        """Prove and time a kernel at ``there``, as :meth:`measure` asks for it once."""
        # A trial's effort tells a win from a loss to within its interval, in a third of the time of a final's.
        effort: Effort = "final" if anew else "trial"
        job = Job(there, kernel, self._seed + anew, regime=regime, cache=cache, effort=effort, thorough=True)
        report = self._device.run(job, Limits())
        measurement = report.measurement
        if report.outcome is Outcome.WRONG:
            self.wrong.setdefault(kernel.cubin_sha256, there.key)
        if report.outcome is not Outcome.CORRECT or measurement is None or measurement.estimated:
            return None
        return None if measurement.ratio is None else point_of(dict(there.axes), measurement)

    def _of(
        self, kernel: CompiledKernel, problem: Problem, regime: Regime, cache: Cache, seen: Seen | None = None
    ) -> dict[int, Point | None]:
        """What is known of a kernel, by size; in ``seen`` where that is given."""
        key = kernel.cubin_sha256, problem.with_axes(**{self.axis: 1}).key, regime, cache
        return (self._known if seen is None else seen).setdefault(key, {})
