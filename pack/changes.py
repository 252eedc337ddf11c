"""What changed between two packs: rows that came, went, became faster or slower, with intervals.

A row is compared with the row for the same sizes on the same device, in the same regime and cache state. Its speed-up
is the old time over the new one, of whatever serves (kernel or baseline); the interval takes the worst corners of both
95 % intervals, and only where it leaves out 1 is a row called faster or slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gemmtune.pack.combine import identity
from gemmtune.pack.format import PackData
from gemmtune.pack.schema import BASELINE, Row, Table

ADDED, LOST, FASTER, SLOWER, SAME = "added", "lost", "faster", "slower", "same"
_Key = tuple[object, ...]
_Times = tuple[float, float, float]


@dataclass(frozen=True)
class Change:
    """One row of either pack.

    Attributes:
        what: ``added``, ``lost``, ``faster``, ``slower`` or ``same``.
        problem: the problem, with its range where it has one.
        gpu, regime, cache: where it was measured.
        old, new: who serves (a kernel's SHA-256 or ``baseline``); None where there is no such row.
        old_us, new_us: microseconds of what serves, at the point where the speed-up is lowest.
        speedup, low, high: old time / new time with its interval; None where one of them is not known.
        note: why times may differ though no kernel changed, or "".
    """

    what: str
    problem: str
    gpu: str
    regime: str
    cache: str
    old: str | None = None
    new: str | None = None
    old_us: float | None = None
    new_us: float | None = None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""


def pack_changes(old: PackData, new: PackData) -> list[Change]:
    """Every row of both packs: those lost and slower first, then faster, added, and those that stayed as they were."""
    before, after = dict(_rows(old)), dict(_rows(new))
    changes = [_change(before.get(key), after.get(key)) for key in dict.fromkeys([*before, *after])]
    order = (LOST, SLOWER, FASTER, ADDED, SAME)
    return sorted(changes, key=lambda c: order.index(c.what))


def _rows(pack: PackData) -> Iterator[tuple[_Key, tuple[Table, Row]]]:
    """Later tables of the same circumstances (other environments) replace earlier ones."""
    for table in sorted(pack.tables, key=lambda t: sorted(t.environment.items())):
        for row in table.rows:
            yield (
                (table.device, table.regime, table.cache, *identity(row), tuple(sorted(row.axes.items()))),
                (table, row),
            )


def _change(old: tuple[Table, Row] | None, new: tuple[Table, Row] | None) -> Change:
    there = new or old
    assert there is not None  # noqa: S101 - every key came from one of the two
    table, row = there
    ranges = "".join(f" {name}={low}-{high}" for name, (low, high) in row.axes.items() if low != high)
    here = Change(SAME, row.problem().key + ranges, table.name, table.regime, table.cache)
    if old is None or new is None:
        us = max((times[0] for _, times in _served(row)), default=None)
        if old is None:
            return replace(here, what=ADDED, new=row.kernel, new_us=us)
        return replace(here, what=LOST, old=row.kernel, old_us=us)
    (old_table, old_row), (new_table, new_row) = old, new
    notes = [*_versions(old_table, new_table)]
    if old_row.estimated or new_row.estimated:
        notes.append("an estimate is among them")
    here = replace(here, old=old_row.kernel, new=new_row.kernel, note="; ".join(notes))
    found = _slowest(dict(_served(old_row)), dict(_served(new_row)))
    if found is None:
        return here
    before, after = found
    low, high = before[1] / after[2], before[2] / after[1]
    what = FASTER if low > 1.0 else SLOWER if high < 1.0 else SAME
    return replace(
        here, what=what, old_us=before[0], new_us=after[0], speedup=before[0] / after[0], low=low, high=high
    )  # fmt: skip


def _served(row: Row) -> Iterator[tuple[_Key, _Times]]:
    """Median, low and high of what serves at each point of the row."""
    for point in row.points:
        key = tuple(sorted(point.axes.items()))
        if row.kernel != BASELINE:
            yield key, (point.us, point.us_low, point.us_high)
        elif point.baseline_us is not None and point.ratio:
            # Its own interval was not kept: that of the ratio, in which it is one of two parts, is no narrower.
            us, ratio = point.baseline_us, point.ratio
            yield key, (us, us * (point.ratio_low or ratio) / ratio, us * (point.ratio_high or ratio) / ratio)


def _slowest(old: dict[_Key, _Times], new: dict[_Key, _Times]) -> tuple[_Times, _Times] | None:
    """Times of the point at which the speed-up is lowest, of those that both rows have."""
    both = [(old[key], new[key]) for key in old if key in new]
    return min(both, key=lambda pair: pair[0][0] / pair[1][0], default=None)


def _versions(old: Table, new: Table) -> Iterator[str]:
    for name in sorted({*old.environment, *new.environment}):
        before, after = old.environment.get(name, "none"), new.environment.get(name, "none")
        if before != after:
            yield f"{name} {before} became {after}"
