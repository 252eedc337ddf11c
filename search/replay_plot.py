"""Best-so-far curves of replays as a picture: the mean of each strategy and the band of the middle 80 % of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmtune.space.errors import RecordingError, ToolchainError
from gemmtune.space.whole_file import whole_file

_FLOOR = 0.6
"""The least fraction shown: what lies below is the first handful of evaluations."""
_COLUMNS = 2


_ENDINGS = (".svg", ".png", ".pdf")


def check_plot(path: str | Path) -> None:
    """Say no to a plot that cannot be drawn before anything has taken its time.

    Raises:
        ToolchainError: matplotlib is not installed.
        RecordingError: the name of the file tells no kind of picture.
    """
    try:
        import matplotlib as mpl  # noqa: F401 - whether it is there
    except ImportError:
        raise ToolchainError("Plots need matplotlib, which is not installed: pip install 'gemmtune[plot]'.") from None
    if Path(path).suffix.lower() not in _ENDINGS:
        raise RecordingError(
            f"The plot {str(path)!r} cannot be written: let its name end in one of {', '.join(_ENDINGS)}."
        )


def plot_replays(path: str | Path, spaces: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the ``spaces`` of a result file of replays, one panel each; SVG, PNG or PDF by the name of the file.

    Raises:
        ToolchainError: matplotlib is not installed.
        RecordingError: the file cannot be written, or its kind is unknown.
    """
    check_plot(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

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
    kind = where.suffix.lower().removeprefix(".")
    steady: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {}
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(where) as file, mpl.rc_context({"svg.hashsalt": "gemmtune"}):  # equal figures, equal files
            figure.savefig(file, format=kind, **steady)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordingError(f"The plot {str(path)!r} cannot be written ({reason}): choose another place.") from None
