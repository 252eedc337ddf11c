"""Leave one M out: how good the look-up is at a size that nobody tuned.

For each tuned size the rest of its group is widened as an export widens it, without that size. Whatever the look-up
then answers there (a neighbour's kernel whose measured range covers the size, or the baseline) is timed on the GPU and
set against the kernel that was tuned for it. A range that wins at both ends and in the middle may lose in between, and
this is the measurement that would show it: it is made anew, on other inputs than those that made the claim.

Nothing is measured twice for the claims, but they know only of what they ask for themselves: a loss that came to light
in another size's turn would spare this one what a pack without the size would meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from gemmtune.pack.ranges import RangeMeter, claims

if TYPE_CHECKING:
    from gemmtune.codegen.kernel import CompiledKernel
    from gemmtune.device.base import Cache, Regime
    from gemmtune.space.problem import Problem


@dataclass(frozen=True)
class Tuned:
    """What tuning found at one size: its kernel where that beat the baseline, else None; ``ratio`` to the baseline."""

    problem: Problem
    kernel: CompiledKernel | None
    ratio: float


@dataclass(frozen=True)
class HeldOut:
    """What the look-up answers at a size it was not told of.

    Attributes:
        problem: the problem that was held out.
        how: ``range`` or ``baseline``.
        tuned_at: the size for which the answering kernel was tuned; None for the baseline.
        us, baseline_us: microseconds of the answer and of the baseline; None where the baseline answers.
        ratio, ratio_low, ratio_high: baseline time / answer's time with its 95 % interval; 1 for the baseline.
        best_ratio: the same of the best that was tuned for the size, at least 1 (the baseline's own).
    """

    problem: Problem
    how: str
    tuned_at: int | None
    us: float | None
    baseline_us: float | None
    ratio: float
    ratio_low: float
    ratio_high: float
    best_ratio: float

    @property
    def regret(self) -> float:
        """How much longer the answer takes than the best that was tuned, e.g. 0.05 for 5 %; 0 where it is no slower."""
        return max(0.0, self.best_ratio / self.ratio - 1.0)


def leave_one_out(
    meter: RangeMeter,
    group: Sequence[Tuned],
    regime: Regime,
    cache: Cache,
    tell: Callable[[Problem], None] = lambda _problem: None,
) -> list[HeldOut]:
    """Hold each size of ``group``, whose problems differ in the meter's axis alone, out in turn, and ``tell`` of it.

    Empty where there is only one.
    """
    axis = meter.axis
    by_size = {one.problem.axes[axis]: one for one in group}
    offers = {
        size: (one.kernel, one.problem)
        for size, one in by_size.items()
        if one.kernel is not None and axis not in one.kernel.recipe.constants
    }
    found: list[HeldOut] = []
    for size in sorted(by_size) if len(by_size) > 1 else ():
        out, best = by_size[size], max(1.0, by_size[size].ratio)
        tell(out.problem)
        answer = HeldOut(out.problem, "baseline", None, None, None, 1.0, 1.0, 1.0, best)
        others = [other for other in by_size if other != size]
        held = claims(meter, others, {o: offers[o] for o in others if o in offers}, regime, cache, apart=True)
        near = next((o for o, ps in held.items() if ps[0].axes[axis] <= size <= ps[-1].axes[axis]), None)
        if near is not None:
            point = meter.measure(*offers[near], size, regime, cache, anew=True)
            if point is not None and point.ratio is not None:
                low, high = point.ratio_low or point.ratio, point.ratio_high or point.ratio
                answer = HeldOut(
                    out.problem, "range", near, point.us, point.baseline_us, point.ratio, low, high, best
                )  # fmt: skip
        found.append(answer)
    return found


def summary(held: Sequence[HeldOut]) -> str:
    """One sentence for people about one group or many."""
    if not held:
        return "leave one M out: no two sizes of a product were tuned"
    ranged = [one for one in held if one.how == "range"]
    worst = max(held, key=lambda one: one.regret)
    slowest = min(held, key=lambda one: one.ratio)
    loss = 100 * (1 / slowest.ratio - 1)
    slower = f"at most {loss:.1f} % slower than the baseline ({slowest.problem.key})" if loss > 0 else (
        "never slower than the baseline"
    )  # fmt: skip
    return (
        f"leave one M out: {len(held)} sizes, {len(ranged)} answered by a neighbour's range and the rest by the "
        f"baseline; {slower}; regret against the tuned kernel {100 * fmean(one.regret for one in held):.1f} % in the "
        f"mean, {100 * worst.regret:.1f} % at most ({worst.problem.key})"
    )
