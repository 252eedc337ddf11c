"""Suites of shapes: a TOML file whose tables are groups, each with ``shapes = [[M, N, K], ...]``.

Groups keep shapes of one kind together ("prefill", "decode"), so that a mean over all does not hide how one kind fares.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gemmtune.space.errors import ProblemError

if TYPE_CHECKING:
    from gemmtune.search.results import BenchRow
    from gemmtune.space.gemm import Gemm

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Suite:
    """Shapes (m, n, k) by group, in the order of the file; a shape belongs to the first group that lists it."""

    name: str
    groups: Mapping[str, tuple[Shape, ...]]

    @property
    def shapes(self) -> list[Shape]:
        """Every shape once, in order."""
        return list(dict.fromkeys(shape for shapes in self.groups.values() for shape in shapes))

    def group_of(self, problem: Gemm) -> str:
        """The group of a problem's shape; "" where the suite does not have it."""
        shape = (problem.m, problem.n, problem.k)
        return next((name for name, shapes in self.groups.items() if shape in shapes), "")

    def grouped(self, row: BenchRow) -> BenchRow:
        """The row with its group's name."""
        return replace(row, group=self.group_of(row.problem))


def read_suite(path: str | Path, groups: Sequence[str] = ()) -> Suite:
    """Read a suite, or only some of its groups.

    Raises:
        ProblemError: the file cannot be read, holds anything but groups of shapes, or lacks one of ``groups``.
    """
    tables = read_tables(Path(path))
    for group in groups:
        if group not in tables:
            raise ProblemError(f"The suite {str(path)!r} has no group {group!r}: it has {', '.join(tables)}.")
    wanted = {name: tuple(shapes) for name, shapes in tables.items() if not groups or name in groups}
    return Suite(Path(path).stem, wanted)


def read_tables(path: Path) -> dict[str, list[Shape]]:
    """The shapes of each table of a TOML file; those at its top level are the table "".

    Raises:
        ProblemError: the file is not there, is no TOML, or holds anything but shapes.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ProblemError(f"The shape file {str(path)!r} cannot be read: {reason}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ProblemError(f"The shape file {str(path)!r} is not valid TOML: {error}.") from None
    tables = {key: value for key, value in data.items() if isinstance(value, dict)}
    if "shapes" in data:
        tables[""] = data
    found = {key: _shapes(value.get("shapes"), key, path) for key, value in tables.items()}
    if not any(found.values()):
        raise ProblemError(f"The shape file {str(path)!r} has no shapes: write [name] and shapes = [[M, N, K], ...].")
    _check_fields(data, path)
    return found


def _check_fields(data: Mapping[str, object], path: Path) -> None:
    """Nothing but shapes may stand in a table, or beside the tables: a dtype there would not be that of the shapes."""
    places: list[tuple[str, Mapping[str, object]]] = [(repr(str(path)), data)]
    places += [(f"the table [{key}] of {str(path)!r}", value) for key, value in data.items() if isinstance(value, dict)]
    for where, table in places:
        for name, value in table.items():
            if name != "shapes" and not (table is data and isinstance(value, dict)):
                raise ProblemError(
                    f"There is an unknown field {name!r} in {where}: a table has shapes alone, so say the dtype and "
                    f"the like by options, or write [[problem]] for each with its own."
                )


def _shapes(rows: object, key: str, path: Path) -> list[Shape]:
    where = f"the table [{key}] of {str(path)!r}" if key else repr(str(path))
    if not isinstance(rows, list):
        raise ProblemError(f"There is no list of shapes in {where}: write shapes = [[M, N, K], ...].")
    shapes: list[Shape] = []
    for row in rows:
        whole = isinstance(row, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in row)
        if not whole or len(row) != 3:
            raise ProblemError(f"The shape {row!r} in {where} is not [M, N, K] with integers.")
        shapes.append((row[0], row[1], row[2]))
    return shapes
