"""How far a kernel serves beyond the size it was tuned for: claimed only where it was proved and timed.

A kernel takes M at run time. Between two tuned sizes each kernel is offered half of the way (in the geometric sense);
it claims that span where it is right and beats the baseline at both ends and in the middle, else the half of it, else
its own size alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.device.base import Job, Limits, Measurement, Outcome
from gemmtune.pack.schema import Point

if TYPE_CHECKING:
    from gemmtune.device.base import Cache, Device, Regime
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
    """Proves and times kernels at other sizes of one axis on a real GPU.

    Args:
        device: the device; its times are measured, not estimated.
        axis: the axis that ranges.
        least: the ratio to the baseline that a kernel must reach at every point.
        seed: of the random inputs.
    """

    def __init__(self, device: Device, axis: str = "m", *, least: float = 1.0, seed: int = 0) -> None:
        self._device = device
        self._axis = axis
        self._least = least
        self._seed = seed

    def claim(
        self, kernel: CompiledKernel, problem: Problem, span: tuple[int, int], regime: Regime, cache: Cache
    ) -> tuple[Point, ...]:
        """The measured points (first, middle, last) of the widest claim that holds; empty where none does."""
        tuned = problem.axes[self._axis]
        known: dict[int, Point | None] = {}
        for low, high in (span, (math.isqrt(span[0] * tuned), math.isqrt(tuned * span[1]))):
            if low >= high:
                continue
            points: list[Point] = []
            for size in sorted({low, (low + high) // 2, high}):
                if size not in known:
                    known[size] = self._measure(kernel, problem, size, regime, cache)
                point = known[size]
                if point is None:
                    break
                points.append(point)
            else:
                return tuple(points)
        return ()

    def _measure(
        self, kernel: CompiledKernel, problem: Problem, size: int, regime: Regime, cache: Cache
    ) -> Point | None:
        """The point at ``size``; None where the kernel is wrong there, fails, or loses to the baseline."""
        there = problem.with_axes(**{self._axis: size})
        job = Job(there, kernel, self._seed, regime=regime, cache=cache, effort="final")
        report = self._device.run(job, Limits())
        measurement = report.measurement
        if report.outcome is not Outcome.CORRECT or measurement is None or measurement.estimated:
            return None
        if measurement.ratio is None or measurement.ratio < self._least:
            return None
        return point_of(dict(there.axes), measurement)
