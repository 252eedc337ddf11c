"""Tables for people, for scripts and for spreadsheets: rich on a terminal, plain text in a pipe, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Format = Literal["table", "json", "csv"]


@dataclass(frozen=True)
class Column:
    """One column of a table: ``right`` for numbers, ``wrap`` for the one that may take several lines."""

    title: str
    right: bool = False
    wrap: bool = False


def console(stream: TextIO | None = None) -> Console:
    """A console that neither highlights nor interprets markup in what it is given."""
    from rich.console import Console

    return Console(file=stream or sys.stdout, highlight=False, markup=False, emoji=False)


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether people read ``stream`` (standard output) as it is written."""
    return (stream or sys.stdout).isatty()


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table: fitted to a terminal, or as plain aligned lines of any length where there is none."""
    if not is_terminal():
        sys.stdout.write(plain_table(columns, rows, title))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left", pad_edge=False)
    for c in columns:
        table.add_column(
            c.title,
            justify="right" if c.right else "left",
            no_wrap=not c.wrap,
            overflow="fold",
            ratio=1 if c.wrap else None,
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Aligned lines, two blanks between the columns, none at the ends."""
    titles = [c.title for c in columns]
    widths = [max(len(cell) for cell in cells) for cells in zip(titles, *rows, strict=True)]
    lines = [title] if title else []
    for row in (titles, *rows):
        cells = [cell.rjust(w) if c.right else cell.ljust(w) for cell, w, c in zip(row, widths, columns, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def show_data(records: Sequence[Mapping[str, Any]], form: Format) -> None:
    """Print records as a JSON array, or as CSV with the first record's fields (nested values as JSON)."""
    if form == "json":
        sys.stdout.write(json.dumps([_finite(r) for r in records], indent=2, ensure_ascii=False) + "\n")
        return
    out = io.StringIO()
    if records:
        writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
        writer.writeheader()
        for record in records:
            writer.writerow({k: v if _flat(v) else json.dumps(_finite(v)) for k, v in record.items()})
    sys.stdout.write(out.getvalue())


def _flat(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _finite(value: Any) -> Any:
    """NaN and infinity as words: JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def microseconds(us: float | None, *, estimated: bool = False) -> str:
    """``"12.34"``, ``"1580"``, ``"12.3 est."``, ``"-"``: four digits are as many as a measurement has."""
    if us is None:
        return "-"
    text = f"{us:.0f}" if us >= 1000 else f"{us:.4g}"
    return f"{text} est." if estimated else text


def ratio(value: float | None) -> str:
    """``"1.03x"`` or ``"-"``."""
    return "-" if value is None else f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


def small(value: float | None) -> str:
    """``"1.2e-07"`` or ``"-"``: errors and their bounds."""
    return "-" if value is None else f"{value:.1e}"


def duration(seconds: float) -> str:
    """``"8 s"``, ``"2:05"``, ``"1:02:05"``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
