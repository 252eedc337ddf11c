"""Where rows stand: geometric means of their ratios, and each row against the best of several peers.

A bar that is set against "the best peer of each shape" takes, row by row, the quickest of the peers that count, so
that a mean of it is below the mean against any one of them. ``vendor`` counts what NVIDIA ships (:data:`VENDOR`),
``any`` whatever was timed beside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmtune.search.results import BenchRow

VENDOR = ("cublas", "cublaslt16")
"""The peers that the vendor's library is: its own choice, and the best of cuBLASLt's first 16 heuristics."""


@dataclass(frozen=True)
class Against:
    """Rows against the best of several peers: the geometric mean, the lowest ratio and the problem it belongs to.

    ``rows`` have at least one of the peers; ``losses`` of them are below 1.
    """

    ratio: float
    lowest: float
    where: str
    losses: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ratio": self.ratio,
            "lowest": self.lowest,
            "where": self.where,
            "losses": self.losses,
            "rows": self.rows,
        }


@dataclass(frozen=True)
class Standing:
    """How ``rows`` rows stand: ``ratios`` by peer over the rows that have it, ``floor_fraction`` over all.

    ``vendor`` and ``any`` are None where no row has such a peer.
    """

    rows: int
    ratios: Mapping[str, float]
    floor_fraction: float
    vendor: Against | None
    any: Against | None

    def to_json(self) -> dict[str, Any]:
        """Plain data; what does not exist is left out."""
        best = {name: a.to_json() for name, a in (("vendor", self.vendor), ("any", self.any)) if a is not None}
        return {"rows": self.rows, "ratios": dict(self.ratios), "floor_fraction": self.floor_fraction, **best}


def standing(rows: Sequence[BenchRow]) -> Standing:
    """The standing of at least one row."""
    return Standing(
        rows=len(rows),
        ratios=mean_ratios(rows),
        floor_fraction=geometric_mean([row.floor_fraction for row in rows]),
        vendor=against(rows, VENDOR),
        any=against(rows, None),
    )


def against(rows: Iterable[BenchRow], peers: Iterable[str] | None) -> Against | None:
    """Each row against the quickest of ``peers`` (None: of all that it has); None where no row has one."""
    ratios: list[tuple[float, str]] = []
    for row in rows:
        ratio = best_ratio(row, peers)
        if ratio is not None:
            ratios.append((ratio, row.problem.key))
    if not ratios:
        return None
    lowest, where = min(ratios)
    mean = geometric_mean(ratio for ratio, _ in ratios)
    return Against(mean, lowest, where, sum(ratio < 1 for ratio, _ in ratios), len(ratios))


def best_ratio(row: BenchRow, peers: Iterable[str] | None = VENDOR) -> float | None:
    """The quickest of ``peers`` over our time; None where the row has none of them."""
    names = row.peers if peers is None else [peer for peer in peers if peer in row.peers]
    return min((row.peers[name] for name in names), default=0.0) / row.us or None


def mean_ratios(rows: Iterable[BenchRow]) -> dict[str, float]:
    """Geometric mean of peer time / our time for each peer, over the rows that have it."""
    by_peer: dict[str, list[float]] = {}
    for row in rows:
        for peer, us in row.peers.items():
            by_peer.setdefault(peer, []).append(us / row.us)
    return {peer: geometric_mean(ratios) for peer, ratios in by_peer.items()}


def geometric_mean(values: Iterable[float]) -> float:
    """The exponential of the mean logarithm of positive numbers."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))
