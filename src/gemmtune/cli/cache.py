"""``gemmtune cache``: what the kernel cache holds, and making room."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from gemmtune.cli import output, query
from gemmtune.cli.groups import group
from gemmtune.space.errors import SettingError

app = group("What the kernel cache holds, and making room in it.")

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@app.command("list", short_help="Entries with size, age and hits.")
def show(
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Entries at most.")] = 20,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="table, json or csv.")] = "table",
) -> None:
    """What the cache holds, the last used first: size, age since the last use, and how often it saved a compile."""
    from gemmtune.codegen.cache import default_root
    from gemmtune.codegen.housekeeping import entries

    kind = query.chosen_form(form)
    root = default_root()
    found = entries(root)
    shown = found[::-1][:limit]
    now = time.time()
    if kind != "table":
        output.show_data(
            [
                {
                    "kind": e.kind, "name": e.name, "path": str(e.paths[0]), "bytes": e.bytes,
                    "used": e.used, "age_seconds": max(0.0, now - e.used), "hits": e.hits,
                }
                for e in shown
            ],
            kind,
        )  # fmt: skip
        return
    if not found:
        output.say(f"The cache in {root} is empty.")
        return
    columns = [
        output.Column("kind"),
        output.Column("name"),
        output.Column("size", right=True),
        output.Column("unused for", right=True),
        output.Column("hits", right=True),
    ]
    rows = [[e.kind, e.name, size(e.bytes), age(now - e.used), "-" if e.hits is None else str(e.hits)] for e in shown]
    output.show_table(columns, rows)
    total = output.counted(len(found), "entry", "entries")
    more = "" if len(shown) == len(found) else f" The last {len(shown)} are shown: --limit N shows more."
    output.say(f"{total}, {size(sum(e.bytes for e in found))}, in {root}.{more}")


@app.command("prune", short_help="Remove what was not used for longest.")
def prune(
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="Leave at most this much, e.g. 2GB.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Remove what was unused for so long, e.g. 30d.")
    ] = None,
) -> None:
    """Remove what was not used for longest; what is removed is made again when it is needed."""
    from gemmtune.codegen import housekeeping
    from gemmtune.codegen.cache import default_root

    if max_size is None and older_than is None:
        raise SettingError("Nothing says what may go: give --max-size, e.g. 2GB, or --older-than, e.g. 30d.")
    bound = None if max_size is None else read_size(max_size)
    span = None if older_than is None else read_age(older_than)
    root = default_root()
    removed = housekeeping.prune(root, bound, span)
    left = housekeeping.entries(root)
    output.say(
        f"{output.counted(len(removed), 'entry', 'entries')} of {size(sum(e.bytes for e in removed))} removed; "
        f"{output.counted(len(left), 'entry', 'entries')} of {size(sum(e.bytes for e in left))} left in {root}."
    )


def read_size(text: str) -> int:
    """Bytes from ``2GB``, ``500 MiB``, ``1.5g``, ``4096``; raises SettingError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", text.strip().upper())
    unit = match.group(2) if match else "?"
    factor = (_BYTES | _BINARY).get(unit) or _BYTES.get(f"{unit}B")
    if match is None or factor is None:
        raise SettingError(f"A size is a number with B, KB, MB, GB or TB, e.g. 2GB, but is {text!r}.")
    return int(float(match.group(1)) * factor)


def read_age(text: str) -> float:
    """Seconds from ``30d``, ``12h``, ``90m``; raises SettingError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text.lower())
    if match is None:
        raise SettingError(f"An age is a number with s, m, h, d or w, e.g. 30d, but is {text!r}.")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def size(amount: int) -> str:
    """``"512 B"``, ``"20.3 KB"``, ``"1.25 GB"``."""
    for unit in ("TB", "GB", "MB", "KB"):
        if amount >= _BYTES[unit]:
            return f"{output.digits(amount / _BYTES[unit], 3)} {unit}"
    return f"{amount} B"


def age(seconds: float) -> str:
    """``"30 s"``, ``"5 h"``, ``"12 d"``: in the largest unit that fits; a clock set back gives none."""
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:.0f} {'min' if unit == 'm' else unit}"
    return f"{max(0.0, seconds):.0f} s"
