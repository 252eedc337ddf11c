"""The page about a study: one HTML file that holds everything it shows, Plotly included, and asks no other host."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gemmtune.db import History
from gemmtune.db.records import StudyRecord
from gemmtune.search.report import facts, figures, tiles
from gemmtune.search.report.material import Material, gather
from gemmtune.space.errors import DatabaseError, ToolchainError, disk_is_full
from gemmtune.space.whole_file import whole_file

LEADERS = 12
"""Rows of the table of leading kernels."""


@dataclass(frozen=True)
class Chart:
    """One figure of the page: its name in addresses, heading, what it shows in a sentence or two, and its data."""

    name: str
    title: str
    words: str
    figure: figures.Figure

    @property
    def broad(self) -> bool:
        """Whether it has so many columns that a narrow screen scrolls it rather than squeezes it."""
        return self.name.startswith(("parallel-", "tiles-"))


def write_report(history: History, study: StudyRecord, path: str | Path) -> None:
    """Write the page about ``study`` to ``path``, which appears whole or not at all.

    Raises:
        ToolchainError: Plotly is not installed.
        DatabaseError: the database fails, or the file cannot be written.
    """
    target = Path(path)
    text = page(gather(history, study))
    try:
        with whole_file(target) as file:
            file.write(text.encode())
    except OSError as error:
        if disk_is_full(error):
            raise DatabaseError(
                f"The disk of {target} is full: free some space and run the same command again."
            ) from None
        raise DatabaseError(
            f"The file {target} cannot be written ({error.strerror or error}): choose another place."
        ) from None


def page(material: Material) -> str:
    """The whole page as text.

    Raises:
        ToolchainError: Plotly is not installed.
    """
    environment = Environment(
        loader=PackageLoader("gemmtune.search.report", "."), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    shown = charts(material)
    winner = material.winner
    source = facts.highlighted(winner.source) if winner and winner.source else None
    return environment.get_template("page.html.j2").render(
        title=f"{material.study.problem_key} on {material.study.gpu.name}",
        study=material.study,
        written=time.strftime("%Y-%m-%d %H:%M", time.localtime()),
        estimated=material.measure.estimated,
        tiles=facts.headline(material),
        circumstances=facts.circumstances(material),
        charts=shown,
        leaders=facts.leaders(material, LEADERS),
        failures=facts.failures(material),
        winner=winner,
        winner_facts=facts.winner_facts(material),
        source=source and Markup(source.html),  # noqa: S704 - escaped by Pygments
        source_style=Markup(source.css if source else ""),  # noqa: S704 - made by Pygments alone
        figures=Markup(_script_data({chart.name: chart.figure for chart in shown})),  # noqa: S704 - escaped there
        plotly=Markup(_plotly()),  # noqa: S704 - the library's own text
    )


def charts(material: Material) -> list[Chart]:
    """Every figure that the study has the trials for, in the page's order."""
    better = "Higher is better" if material.measure.ratio else "Lower is better"
    found: list[tuple[str, str, str, figures.Figure | None]] = [
        (
            "history", "History",
            f"Each dot is a trial as the search saw it. {better}. Crosses below the plot are trials that failed.",
            figures.history(material),
        ),
        (
            "importance", "Which knobs mattered",
            "PED-ANOVA: how differently a knob is set in the best tenth of the trials than in all. The shares of a "
            "family add up to 100 %; a search that tries some values more often than others sways them. Point at a "
            "bar for the value that the best prefer.",
            figures.importances(material),
        ),
    ]  # fmt: skip
    for family in material.families:
        fixed = facts.constant_knobs(material, family)
        kept = f" The same in all of them: {fixed}." if fixed else ""
        found.append(
            (
                f"parallel-{family}", f"Parallel coordinates: {family}",
                "Each line is a correct trial, the most important knobs first. Drag along an axis to select, along a "
                f"name to move it.{kept}",
                figures.parallel(material, family),
            )
        )  # fmt: skip
    for family in material.families:
        found.append(
            (
                f"tiles-{family}", f"Tiles: {family}",
                "The best that any correct trial with this tile reached. A cell without a figure has none.",
                tiles.heat_maps(material, family),
            )
        )  # fmt: skip
    peak = tiles.peak(material)
    roof = "" if peak is None else f" of {peak:.4g} TFLOP/s"
    found += [
        (
            "roofline", "Roofline",
            "Dots stand at the operations that a trial's tiles get out of each byte drawn from L2; winner and baseline "
            "at those that the problem allows for each byte of device memory. The datasheet's bandwidth and "
            f"peak{roof} make the roof.",
            tiles.roofline(material),
        ),
        ("outcomes", "Outcomes", "How the trials ended, by family.", figures.outcomes(material)),
    ]  # fmt: skip
    return [Chart(name, title, words, figure) for name, title, words, figure in found if figure is not None]


def _script_data(data: Any) -> str:
    """JSON that a script element can hold: nothing in it ends the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, default=float)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ToolchainError(
            "The report needs Plotly, which is not installed: run pip install 'gemmtune[report]'."
        ) from None
    # No script of ours ends early where the library's text speaks of such an element.
    return str(get_plotlyjs()).replace("</script", "<\\/script")
