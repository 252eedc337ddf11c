"""The figures of a study as plain data for Plotly: ``{"data": [traces], "layout": {...}}``; None where nothing fits.

Colours of text, paper and grid are the page's, which knows whether it is shown light or dark.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from itertools import accumulate
from typing import Any

from gemmtune.db.records import TrialRecord
from gemmtune.search.importance import Knob
from gemmtune.search.report.material import Material, is_correct, shared_knobs
from gemmtune.space.configuration import Configuration

Figure = dict[str, Any]

_COLOURS = {
    "simt": "#3b7dd8", "mma": "#e08a2e", "hopper": "#2a9d6f", "hopper_programmatic": "#8a63d2", "skinny": "#d1477a",
    "naive": "#808a94",
}  # fmt: skip
_OTHERS = ("#17a2b8", "#b5892b", "#6b8e23", "#a0522d")
BEST_LINE = "#c0392b"
SCALE = [[0, "#7a5ea8"], [0.35, "#3b7dd8"], [0.7, "#2a9d6f"], [1, "#f0b400"]]
"""From bad to good; thin lines of every shade show on a light and on a dark page."""


def colour(material: Material, family: str) -> str:
    """A family's colour, the same in every figure."""
    unknown = [name for name in material.families if name not in _COLOURS]
    return _COLOURS.get(family) or _OTHERS[unknown.index(family) % len(_OTHERS)]


# ------------------------------------------------------------------------------------------------------------ history


def history(material: Material) -> Figure | None:
    """Every trial's figure by its number, the best so far, the finalists; below, how the failed ones ended."""
    if not material.trials:
        return None
    traces: list[dict[str, Any]] = []
    measure = material.measure
    own = [(t, v) for t in material.trials if is_correct(t) and (v := measure.of_search(t)) is not None]
    for family in material.families:
        mine = [(t, v) for t, v in own if t.family == family]
        if mine:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": family,
                    "x": [t.number for t, _ in mine], "y": [v for _, v in mine],
                    "text": [told(t) for t, _ in mine], "hovertemplate": "%{text}<extra></extra>",
                    "marker": {"color": colour(material, family), "size": 7, "opacity": 0.75},
                }
            )  # fmt: skip
    if own:
        best = list(accumulate((v for _, v in own), max if measure.ratio else min))
        numbers = [t.number for t, _ in own]
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": "best so far", "hovertemplate": "best so far %{y:.4g}",
                "x": [*numbers, material.trials[-1].number], "y": [*best, best[-1]],
                "line": {"shape": "hv", "color": BEST_LINE, "width": 2},
            }
        )  # fmt: skip
    finals = [(t, v) for t in material.trials if t.final and (v := measure.of(t)) is not None]
    if finals:
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "finalists, side by side",
                "x": [t.number for t, _ in finals], "y": [v for _, v in finals],
                "text": [told(t) for t, _ in finals], "hovertemplate": "%{text}<extra></extra>",
                "marker": {"symbol": "diamond-open", "size": 11, "color": BEST_LINE, "line": {"width": 2}},
            }
        )  # fmt: skip
    failed = [t for t in material.trials if not is_correct(t)]
    if failed:
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": "failed", "yaxis": "y2",
                "x": [t.number for t in failed], "y": [_words(t.outcome) for t in failed],
                "text": [told(t) for t in failed], "hovertemplate": "%{text}<extra></extra>",
                "marker": {"symbol": "x-thin", "size": 7, "line": {"width": 1.5, "color": "#909090"}},
            }
        )  # fmt: skip
    rows, last = len({t.outcome for t in failed}), material.trials[-1].number
    rug = min(0.3, 0.06 * rows)
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": "trial"}, "anchor": "y2" if rows else "y",
            "range": [-0.02 * last - 0.5, 1.02 * last + 0.5],
        },
        "yaxis": {
            "title": {"text": measure.label}, "domain": [rug + 0.03 if rows else 0, 1],
            **({"rangemode": "tozero"} if measure.ratio else {"type": "log"}),
        },
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "height": 460, "margin": {"l": 110},
    }  # fmt: skip
    if rows:
        layout["yaxis2"] = {"domain": [0, rug], "type": "category", "showgrid": False, "fixedrange": True}
    if measure.ratio:
        layout["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"dash": "dot", "width": 1}}
        ]
    return {"data": traces, "layout": layout}


def told(trial: TrialRecord) -> str:
    """A trial in a few lines, for a tooltip."""
    lines = [f"<b>trial {trial.number}</b> ({_words(trial.outcome)})"]
    timing = trial.timing
    if timing is not None:
        beside = f", {timing.ratio:.3f} x baseline" if timing.ratio is not None else ""
        lines.append(f"{'est. ' if timing.estimated else ''}{timing.us:.4g} us{beside}")
    lines += map(_plain, _folded(trial.configuration))
    if trial.registers is not None:
        lines.append(
            f"{trial.registers} registers, {trial.spill_bytes or 0} B spilled, {trial.shared_bytes or 0:,} B shared"
        )
    if trial.detail:
        lines += map(_plain, _folded(" ".join(trial.detail.split())[:240]))
    return "<br>".join(lines)


def _folded(text: str, width: int = 60) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _plain(text: str) -> str:
    """Text in which Plotly finds no markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _words(outcome: str) -> str:
    return outcome.replace("_", " ")


# ----------------------------------------------------------------------------------------------- parallel coordinates


def parallel(material: Material, family: str) -> Figure | None:
    """One line for each correct trial of a family through the values of its knobs, the most important first."""
    records = list(reversed(material.correct(family)))  # the best is drawn last, on top
    values = {name: choices for name, choices in shared_knobs(records).items() if len(choices) > 1}
    if len(records) < 2 or not values:
        return None
    order = [knob.name for knob in material.importance(family)]
    names = sorted(values, key=lambda name: order.index(name) if name in order else len(order))
    configurations = [Configuration.parse(t.configuration) for t in records]
    figures = [material.measure.of(t) or 0.0 for t in records]
    dimensions: list[dict[str, Any]] = [
        {
            "label": name, "values": [values[name].index(c[name]) for c in configurations],
            "tickvals": list(range(len(values[name]))), "ticktext": [str(v) for v in values[name]],
            "range": [-0.15, len(values[name]) - 0.85],
        }
        for name in names
    ]  # fmt: skip
    dimensions.append({"label": material.measure.short, "values": figures})
    line = {
        "color": figures, "colorscale": SCALE, "showscale": True, "reversescale": not material.measure.ratio,
        "colorbar": {"title": {"text": material.measure.short}, "thickness": 12},
    }  # fmt: skip
    trace = {"type": "parcoords", "dimensions": dimensions, "line": line}
    return {"data": [trace], "layout": {"height": 400, "margin": {"l": 60, "r": 40, "t": 60, "b": 30}}}


# ------------------------------------------------------------------------------------------------ importance, outcomes


def importances(material: Material) -> Figure | None:
    """A bar for the importance of each knob, family by family side by side."""
    found = {family: ranked for family in material.families if (ranked := material.importance(family))}
    if not found:
        return None
    traces = []
    layout: dict[str, Any] = {
        "height": 120 + 24 * max(map(len, found.values())),
        "showlegend": False,
        "annotations": [],
    }
    width = 1 / len(found)
    for i, (family, ranked) in enumerate(found.items()):
        n = "" if i == 0 else str(i + 1)
        bars = list(reversed(ranked))
        traces.append(
            {
                "type": "bar", "orientation": "h", "name": family, "y": [knob.name for knob in bars],
                "x": [knob.importance for knob in bars], "text": [_favoured(knob) for knob in bars],
                "xaxis": f"x{n}", "yaxis": f"y{n}", "marker": {"color": colour(material, family)},
                "hovertemplate": "%{y}: %{x:.1%}<br>%{text}<extra></extra>", "textposition": "none",
            }
        )  # fmt: skip
        domain = [i * width + (0.08 if i else 0), (i + 1) * width - 0.02]
        layout[f"xaxis{n}"] = {"domain": domain, "anchor": f"y{n}", "tickformat": ".0%", "rangemode": "tozero"}
        layout[f"yaxis{n}"] = {"anchor": f"x{n}", "type": "category"}
        layout["annotations"].append(
            {"text": f"<b>{family}</b>", "xref": "paper", "yref": "paper", "x": domain[0], "y": 1.0, "xanchor": "left",
             "yanchor": "bottom", "showarrow": False}
        )  # fmt: skip
    layout["margin"] = {"l": 90, "t": 40}
    return {"data": traces, "layout": layout}


def _favoured(knob: Knob) -> str:
    """What the best trials prefer."""
    return _plain(f"{knob.favoured} has {knob.best_share:.0%} of the best, {knob.share:.0%} of all")


def outcomes(material: Material) -> Figure | None:
    """How the trials ended, with each family's share."""
    counts = Counter((t.family, t.outcome) for t in material.trials)
    if not counts:
        return None
    totals: Counter[str] = Counter(t.outcome for t in material.trials)
    order = [name for name, _ in totals.most_common()][::-1]
    traces = [
        {
            "type": "bar", "orientation": "h", "name": family, "y": [_words(o) for o in order],
            "x": [counts[family, o] for o in order], "marker": {"color": colour(material, family)},
            "hovertemplate": f"{family}, %{{y}}: %{{x}}<extra></extra>",
        }
        for family in material.families
    ]  # fmt: skip
    layout = {
        "barmode": "stack", "height": 110 + 34 * len(order), "margin": {"l": 120, "t": 30},
        "xaxis": {"title": {"text": "trials"}}, "yaxis": {"type": "category"}, "showlegend": len(traces) > 1,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    return {"data": traces, "layout": layout}
