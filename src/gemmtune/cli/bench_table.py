"""Rows of a benchmark for people: the table, then the means over all, by dtype, by group and by way of timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmtune.cli import output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemmtune.search.results import BenchRow, Summary
    from gemmtune.search.standing import Against, Standing


def show_rows(rows: Sequence[BenchRow]) -> None:
    """The table, then the geometric means where there is more than one row."""
    from gemmtune.search.results import summarise
    from gemmtune.search.standing import VENDOR, best_ratio

    peers = list(dict.fromkeys(peer for row in rows for peer in row.peers))
    estimated = all(row.estimated for row in rows)
    grouped = any(row.group for row in rows)
    ways = len({_way(row) for row in rows}) > 1
    several = sum(peer in VENDOR for peer in peers) > 1
    columns = [
        *([output.Column("group")] if grouped else []),
        output.Column("problem"),
        *([output.Column("timed")] if ways else []),
        output.Column("us", right=True),
        output.Column("floor us", right=True),
        *([output.Column("vs best", right=True)] if several else []),
        *(output.Column(f"vs {peer}", right=True) for peer in peers),
        output.Column("TFLOP/s", right=True),
        output.Column("of floor", right=True),
        *([] if estimated else [output.Column("95 %", right=True)]),
        *(output.Column(f"{peer} us", right=True) for peer in peers),
        output.Column("error/bound", right=True),
        output.Column("configuration", long=True),
    ]
    table = [
        [
            *([row.group or "-"] if grouped else []),
            row.problem.key,
            *([_way(row)] if ways else []),
            output.microseconds(row.us, estimated=row.estimated),
            output.digits(row.floor_us, 3),
            *([output.ratio(best_ratio(row), estimated=row.estimated)] if several else []),
            *(output.ratio(row.ratio(peer), estimated=row.estimated) for peer in peers),
            output.digits(row.tflops, 3),
            f"{100 * row.floor_fraction:.0f} %",
            *([] if estimated else [_interval(row)]),
            *(output.microseconds(row.peers.get(peer), estimated=row.estimated) for peer in peers),
            f"{output.small(row.rel_error)}/{output.small(row.error_bound)}",
            row.config,
        ]
        for row in rows
    ]
    output.show_table(columns, table)
    for row in rows:
        if row.unstable:
            output.say(f"{row.problem.key}: {row.unstable} Its interval spans both.")
    if len(rows) < 2:
        return
    means = summarise(rows)
    _show_means(means, "")
    for how, part in means.apart.items():
        _show_means(part, f", {how}")


def _show_means(means: Summary, how: str) -> None:
    marked = " (estimated)" if means.estimated else ""
    said = [*([_means(means.ratios)] if means.ratios else []), f"{100 * means.floor_fraction:.0f} % of the floor"]
    output.say(f"Geometric means of {output.counted(len(means.rows), 'row')}{how}{marked}: {'; '.join(said)}.")
    if means.vendor is not None and len(means.rows) > 1:
        output.say(f"Against the vendor's best of each shape: {_against(means.vendor)}.")
    if means.any is not None and means.vendor is not None and means.any != means.vendor:
        output.say(f"Against the best peer of each shape: {_against(means.any)}.")
    if means.ratios and len(means.by_dtype) > 1:
        for dtype, ratios in means.by_dtype.items():
            print(f"  {dtype}: {_means(ratios) or 'no peer'}")
    if means.by_group:
        _show_groups(means.by_group)


def _show_groups(groups: Mapping[str, Standing]) -> None:
    peers = list(dict.fromkeys(peer for one in groups.values() for peer in one.ratios))
    ranked = any(one.vendor is not None for one in groups.values())  # none is where only estimates are
    columns = [
        output.Column("group"),
        output.Column("rows", right=True),
        *([output.Column("vs best", right=True), output.Column("lowest", right=True)] if ranked else []),
        *(output.Column(f"vs {peer}", right=True) for peer in peers),
        output.Column("of floor", right=True),
    ]
    table = [
        [
            name,
            str(one.rows),
            *([output.ratio(getattr(one.vendor, figure, None)) for figure in ("ratio", "lowest")] if ranked else []),
            *(output.ratio(one.ratios.get(peer)) for peer in peers),
            f"{100 * one.floor_fraction:.0f} %",
        ]
        for name, one in groups.items()
    ]
    output.show_table(columns, table)


def _against(one: Against) -> str:
    lost = f"{output.counted(one.losses, 'row')} of {one.rows} below 1" if one.losses else f"none of {one.rows} below 1"
    return f"{one.ratio:.3f}x, lowest {one.lowest:.3f}x ({one.where}), {lost}"


def _way(row: BenchRow) -> str:
    return f"{row.regime}, {row.cache}{', programmatic' if row.programmatic else ''}"


def _interval(row: BenchRow) -> str:
    return "-" if row.estimated else f"{output.microseconds(row.us_low)}-{output.microseconds(row.us_high)}"


def _means(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{output.ratio(r)} {peer}" for peer, r in ratios.items())
