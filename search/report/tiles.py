"""Figures that need to know what a configuration's tile is: the roofline, and the heat maps of tile sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gemmtune.db.records import TrialRecord
from gemmtune.search.report.figures import BEST_LINE, SCALE, Figure, colour, told
from gemmtune.search.report.material import Material
from gemmtune.space.errors import GemmtuneError
from gemmtune.space.estimate import estimate_traits, floor_us
from gemmtune.space.family import Traits
from gemmtune.space.problem import Problem

# ----------------------------------------------------------------------------------------------------------- roofline


def roofline(material: Material) -> Figure | None:
    """Speed over arithmetic intensity: every trial where L2 serves its tiles, winner and baseline at the problem's own.

    The problem's own intensity is its operations over the fewest bytes through device memory. A tile of
    tile_m x tile_n draws (tile_m + tile_n) elements from L2 for each step of k, however much of it device memory
    delivered before; so trials stand at the operations over those bytes. (A hierarchical roofline: Yang, Kurth,
    Williams, "Hierarchical Roofline analysis for GPUs", 2020.)
    """
    problem, winner = material.problem, material.winner
    if problem is None or winner is None or not problem.flops or not problem.bytes:
        return None
    gpu = material.study.gpu
    traces: list[dict[str, Any]] = []
    points: list[tuple[float, float]] = []
    slope = 0.0  # of the roof that L2 makes, in TFLOP/s over FLOP/byte: what a full GPU draws
    for family in material.families:
        shown = []
        for trial in material.correct(family):
            traits, timing = material.traits(trial), trial.timing
            if traits is None or timing is None:
                continue
            try:
                estimated = estimate_traits(problem, traits, gpu, registers=trial.registers)
            except GemmtuneError:
                continue
            x = problem.flops / l2_bytes(problem, traits)
            shown.append((trial, x, problem.flops / timing.us / 1e6))
            if math.isfinite(estimated.l2_us) and estimated.l2_us > 0:
                slope = max(slope, problem.flops / estimated.l2_us / 1e6 / x)
        points += [(x, y) for _, x, y in shown]
        if shown:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": f"{family}, at its tiles' intensity",
                    "x": [x for _, x, _ in shown], "y": [y for *_, y in shown], "text": [told(t) for t, *_ in shown],
                    "hovertemplate": "%{text}<br>%{y:.4g} TFLOP/s at %{x:.4g} FLOP/B of L2<extra></extra>",
                    "marker": {"color": colour(material, family), "size": 6, "opacity": 0.6},
                }
            )  # fmt: skip
    own = problem.flops / problem.bytes
    timing = winner.timing
    if timing is None:
        return None
    traces.append(_star("winner", own, problem.flops / timing.us / 1e6, "star", BEST_LINE))
    points.append((own, problem.flops / timing.us / 1e6))
    if timing.baseline_us:
        rate = problem.flops / timing.baseline_us / 1e6
        traces.append(_star(winner.baseline or "baseline", own, rate, "diamond", "#808a94"))
        points.append((own, rate))
    top = peak(material)
    low, high = min(x for x, _ in points) / 4, max(x for x, _ in points) * 4
    bandwidth = gpu.bandwidth / 1e12
    roofs = [("device memory", bandwidth, "solid")]
    if slope:
        roofs.append(("L2, by the cost estimate", slope, "dot"))
    for name, rise, dash in roofs:
        traces.append(_roof(name, rise, top, low, high, dash))
    floor = problem.flops / floor_us(problem, gpu) / 1e6
    traces.append(
        {
            "type": "scatter", "mode": "markers", "name": "the floor", "x": [own], "y": [floor],
            "hovertemplate": "floor: %{y:.4g} TFLOP/s<extra></extra>",
            "marker": {"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": "#808a94"}},
        }
    )  # fmt: skip
    ceiling = top or max(y for _, y in points)
    bottom = min(min(y for _, y in points), ceiling) / 2
    layout = {
        "xaxis": {
            "type": "log", "dtick": "D2", "title": {"text": "FLOP per byte"},
            "range": [math.log10(low), math.log10(high)],
        },
        "yaxis": {
            "type": "log", "dtick": "D2",
            "title": {"text": f"TFLOP/s{' (estimated)' if material.measure.estimated else ''}"},
            "range": [math.log10(bottom), math.log10(ceiling * 1.6)],
        },
        "height": 480, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def l2_bytes(problem: Problem, traits: Traits) -> float:
    """Bytes of the inputs that all blocks together draw, each tile's rows and columns for the whole reduction."""
    height, width = next(t.shape for t in problem.tensors() if t.output)
    element = max(t.dtype.bytes for t in problem.tensors() if not t.output)
    blocks = -(-height // traits.tile_m) * -(-width // traits.tile_n)
    depth = max(traits.padded_k, problem.axes.get("k", 1))
    return float(blocks * (traits.tile_m + traits.tile_n) * depth * element)


def peak(material: Material) -> float | None:
    """The datasheet's TFLOP/s for the problem's dtype; None where it has none."""
    problem = material.problem
    rate = None if problem is None else material.study.gpu.peak.get(str(problem.environment().get("dtype", "")))
    return None if rate is None else rate / 1e12


def _star(name: str, x: float, y: float, symbol: str, tint: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers+text", "name": name, "x": [x], "y": [y], "text": [name],
        "textposition": "middle right", "hovertemplate": f"{name}: %{{y:.4g}} TFLOP/s<extra></extra>",
        "marker": {"symbol": symbol, "size": 13, "color": tint}, "showlegend": False,
    }  # fmt: skip


def _roof(name: str, slope: float, top: float | None, low: float, high: float, dash: str) -> dict[str, Any]:
    """The line y = slope x up to the peak, in TFLOP/s and FLOP/B; ``slope`` is a bandwidth in TB/s."""
    xs = [low, high]
    if top is not None and low < top / slope < high:
        xs.insert(1, top / slope)
    ys = [min(slope * x, math.inf if top is None else top) for x in xs]
    return {
        "type": "scatter", "mode": "lines", "name": f"{name}: {slope:.3g} TB/s", "x": xs, "y": ys,
        "hoverinfo": "skip", "line": {"dash": dash, "color": "#808a94", "width": 1.5},
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- heat maps


def heat_maps(material: Material, family: str) -> Figure | None:
    """The best figure that each tile reached: rows by columns of the tile, and its depth by pipeline stages."""
    trials = [(t, traits) for t in material.correct(family) if (traits := material.traits(t)) is not None]
    if len(trials) < 2:
        return None
    measure = material.measure
    values = [v for t, _ in trials if (v := measure.of(t)) is not None]
    maps = [
        ("tile: columns", "tile: rows", lambda t: (t.tile_n, t.tile_m)),
        ("pipeline stages", "tile: depth", lambda t: (t.stages, t.tile_k)),
    ]
    traces, layout = [], {"height": 400, "margin": {"l": 70, "t": 20}}
    for i, (across, down, place) in enumerate(maps):
        n = "" if i == 0 else str(i + 1)
        traces.append(_heat_map(material, trials, place, n, (min(values), max(values))))
        layout[f"xaxis{n}"] = {
            "title": {"text": across}, "type": "category", "domain": [0.54 * i, 0.46 + 0.54 * i], "anchor": f"y{n}",
            "showgrid": False,
        }  # fmt: skip
        layout[f"yaxis{n}"] = {"title": {"text": down}, "type": "category", "anchor": f"x{n}", "showgrid": False}
    return {"data": traces, "layout": layout}


def _heat_map(
    material: Material,
    trials: list[tuple[TrialRecord, Traits]],
    place: Callable[[Traits], tuple[int, int]],
    axis: str,
    span: tuple[float, float],
) -> dict[str, Any]:
    measure = material.measure
    best: dict[tuple[int, int], TrialRecord] = {}
    count: dict[tuple[int, int], int] = {}
    for trial, traits in trials:  # best first
        cell = place(traits)
        best.setdefault(cell, trial)
        count[cell] = count.get(cell, 0) + 1
    columns, rows = sorted({c for c, _ in best}), sorted({r for _, r in best})

    def said(value: float) -> str:
        return f"{value:.3f}" if measure.ratio else f"{value:.4g}"

    def grid(value: Callable[[tuple[int, int]], Any], empty: Any) -> list[list[Any]]:
        return [[value((c, r)) if (c, r) in best else empty for c in columns] for r in rows]

    return {
        "type": "heatmap", "x": [str(c) for c in columns], "y": [str(r) for r in rows],
        "xaxis": f"x{axis}", "yaxis": f"y{axis}", "colorscale": SCALE, "reversescale": not measure.ratio,
        "zmin": span[0], "zmax": span[1], "xgap": 2, "ygap": 2, "showscale": axis == "",
        "colorbar": {"title": {"text": measure.short}, "thickness": 12},
        "z": grid(lambda cell: measure.of(best[cell]), None),
        "text": grid(lambda cell: said(measure.of(best[cell]) or 0.0), ""), "texttemplate": "%{text}",
        "hovertext": grid(lambda cell: f"{count[cell]} tried; the best:<br>{told(best[cell])}", ""),
        "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip
