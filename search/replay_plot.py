"""Best-so-far curves of replays as a picture: the mean of each strategy and the band of the middle 80 % of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmtune.space.errors import RecordingError, ToolchainError

_FLOOR = 0.6
"""The least fraction shown: what lies below is the first handful of evaluations."""
_COLUMNS = 2


def plot_replays(path: str | Path, spaces: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the ``spaces`` of a result file of replays, one panel each; SVG, PNG or PDF by the name of the file.

    Raises:
        ToolchainError: matplotlib is not installed.
        RecordingError: the file cannot be written, or its kind is unknown.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ToolchainError("Plots need matplotlib: pip install 'gemmtune[plot]'.") from None
    columns = min(_COLUMNS, len(spaces))
    lines = -(-len(spaces) // columns)
    figure = Figure(figsize=(6.4 * columns, 4.4 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    names = list(dict.fromkeys(name for space in spaces.values() for name in space["strategies"]))
    colours = {name: f"C{i % 10}" for i, name in enumerate(names)}
    for panel, (title, space) in zip(panels, spaces.items(), strict=False):
        for name, strategy in space["strategies"].items():
            curve = strategy["curve"]
            x = range(1, len(curve["mean"]) + 1)
            panel.plot(x, curve["mean"], color=colours[name], label=name, linewidth=1.6)
            panel.fill_between(x, curve["low"], curve["high"], color=colours[name], alpha=0.12, linewidth=0)
        panel.set(title=f"{title} ({space['configurations']:,} configurations)", ylim=(_FLOOR, 1.005))
        panel.set(xlabel="evaluations", ylabel="fraction of the optimum")
        panel.grid(alpha=0.3)
        panel.legend(loc="lower right", fontsize=8)
    for panel in panels[len(spaces) :]:
        panel.set_visible(False)
    where = Path(path)
    steady: dict[str, Any] = {"metadata": {"Date": None}} if where.suffix == ".svg" else {}
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context({"svg.hashsalt": "gemmtune"}):  # equal figures, equal files
            figure.savefig(where, **steady)
    except (OSError, ValueError) as error:
        raise RecordingError(f"The plot {str(path)!r} cannot be written: {error}.") from None
