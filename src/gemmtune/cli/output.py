"""Tables for people, for scripts and for spreadsheets: rich on a terminal, plain text in a pipe, JSON, CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Format = Literal["table", "json", "csv"]


class Interrupted(Exception):
    """Ctrl-C, with what is kept and how to go on; typer turns a plain KeyboardInterrupt into a bare exit code."""


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Have Ctrl-C inside the block say what is true then: ``kept`` is asked for it, "" for nothing.

    Raises:
        Interrupted: Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(kept()) from None


@dataclass(frozen=True)
class Column:
    """One column of a table: ``right`` for numbers, ``long`` for the last one where its cells may be sentences."""

    title: str
    right: bool = False
    long: bool = False


def console(stream: TextIO | None = None) -> Console:
    """A console that neither highlights nor interprets markup in what it is given."""
    from rich.console import Console

    return Console(file=stream or sys.stdout, highlight=False, markup=False, emoji=False)


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether people read ``stream`` (standard output) as it is written."""
    return (stream or sys.stdout).isatty()


def error(sentence: str) -> None:
    """One line on standard error that starts with ``error:``; on a terminal it is wrapped at words."""
    sys.stderr.write(_wrapped(f"error: {' '.join(sentence.split())}", 2, sys.stderr) + "\n")


def note(sentence: str) -> None:
    """A remark on standard error, beside output that may go into a file."""
    sys.stderr.write(_wrapped(" ".join(sentence.split()), 2, sys.stderr) + "\n")


def say(text: str, hanging: int = 0) -> None:
    """Print a paragraph, wrapped at words on a terminal with ``hanging`` blanks before its further lines."""
    print(_wrapped(text, hanging, sys.stdout))


def heading(text: str) -> None:
    """Print one line that stands out on a terminal."""
    if not is_terminal():
        print(text)
        return
    from rich.text import Text

    console().print(Text(text, style="bold"))


def facts(rows: Sequence[tuple[str, str]]) -> None:
    """Print names and values as two columns; on a terminal long values are wrapped below themselves."""
    widest = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        say(f"{name:{widest}}  {value}", hanging=widest + 2)


def _wrapped(text: str, hanging: int, stream: TextIO) -> str:
    if not is_terminal(stream):
        return text
    width = max(40, console(stream).width - 1)
    return textwrap.fill(text, width, subsequent_indent=" " * hanging, break_on_hyphens=False, break_long_words=False)


def say_next(steps: Sequence[tuple[str, str]]) -> None:
    """Print what to do next: commands with their purpose, beside or, where the terminal is too narrow, below them."""
    longest = max(len(command) for command, _ in steps)
    beside = [f"  {command:{longest}}  {purpose}" for command, purpose in steps]
    print("Next:")
    if is_terminal() and max(map(len, beside)) >= console().width:
        beside = [f"  {command}\n      {purpose}" for command, purpose in steps]
    print("\n".join(beside))


@contextmanager
def busy(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done, with a spinner; silent elsewhere. Yields what changes the text."""
    if not is_terminal():
        yield lambda _: None
        return
    from rich.text import Text

    with console().status(Text(text)) as status:
        yield lambda now: status.update(Text(now))


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table: fitted to the terminal, or as plain aligned lines of any length where there is none."""
    if not is_terminal():
        sys.stdout.write("\n".join([*([title] if title else []), *lines_of(columns, rows)]) + "\n")
        return
    from rich.text import Text

    screen = console()
    lines = fitted(columns, rows, screen.width)
    if title:
        screen.print(Text(title, style="bold"))
    screen.print(Text(lines[0], style="dim"))
    for line in lines[1:]:
        screen.print(Text(line), soft_wrap=True)


def lines_of(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Titles and rows as aligned lines, two blanks between the columns, none at the ends."""
    titles = [c.title for c in columns]
    widths = [max(len(cell) for cell in cells) for cells in zip(titles, *rows, strict=True)]
    lines = []
    for row in (titles, *rows):
        cells = [cell.rjust(w) if c.right else cell.ljust(w) for cell, w, c in zip(row, widths, columns, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The same within ``width``: columns that do not fit, the last ones first, go below their row, wrapped."""
    beside = len(columns)
    while (lines := lines_of(columns[:beside], [row[:beside] for row in rows])) and beside > 1:
        if max(map(len, lines)) <= width:
            break
        beside -= 1
    out = [lines[0]]
    for line, row in zip(lines[1:], rows, strict=True):
        out.append(line)
        below = list(zip(columns[beside:], row[beside:], strict=True))
        short = ", ".join(f"{column.title} {cell}" for column, cell in below if not column.long and cell != "-")
        for text in (short, *(cell for column, cell in below if column.long)):
            out += textwrap.wrap(text, max(20, width - 1), initial_indent="    ", subsequent_indent="    ")
    return out


def show_data(records: Sequence[Mapping[str, Any]], form: Format) -> None:
    """Print records as :func:`data_text` has them."""
    sys.stdout.write(data_text(records, form))


def data_text(records: Sequence[Mapping[str, Any]], form: Format) -> str:
    """Records as a JSON array, or as CSV with the first record's fields (nested values as JSON)."""
    if form == "json":
        return json.dumps([_finite(r) for r in records], indent=2, ensure_ascii=False) + "\n"
    out = io.StringIO()
    if records:
        writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
        writer.writeheader()
        for record in records:
            writer.writerow({k: v if _flat(v) else json.dumps(_finite(v)) for k, v in record.items()})
    return out.getvalue()


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
    """``"12.30"``, ``"1580"``, ``"12.3 est."``, ``"-"``: as many digits as it deserves."""
    if us is None:
        return "-"
    return f"{digits(us, 3)} est." if estimated else digits(us, 4)


def digits(value: float, count: int) -> str:
    """``count`` significant digits, and all of those before the point: ``"61.0"``, ``"0.123"``, ``"1580"``."""
    if abs(value) >= 10 ** (count - 1):
        return f"{value:.0f}"
    return f"{value:#.{count}g}".rstrip(".")


def ratio(value: float | None, *, estimated: bool = False) -> str:
    """``"1.03x"``, ``"15.1x est."`` or ``"-"``."""
    if value is None:
        return "-"
    return f"{digits(value, 3)}x est." if estimated else f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


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


def counted(n: int, one: str, several: str = "") -> str:
    """``"1 trial"``, ``"2 trials"``."""
    return f"{n:,} {one if n == 1 else several or one + 's'}"
