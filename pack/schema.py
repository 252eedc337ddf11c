"""What a pack says: tables of dispatch rows, kernels, and their JSON.

``dispatch.json`` is ``{"schema", "tables": [table]}``, one table for each device key, regime, cache state and
environment it was measured in; a table has rows, and a row says for one problem, or a range of an axis, which kernel
serves it, or that the baseline does. ``kernels/<sha>.json`` holds a kernel's launch recipe and where it came from.

Reading checks every field and every expression; nothing here evaluates, imports or unpickles what a pack brings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmtune.pack.jsontext import Reader
from gemmtune.pack.recipe_types import check_recipe_types
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import GemmtuneError, PackError
from gemmtune.space.problem import Problem, problem_from_json
from gemmtune.space.recipe import LaunchRecipe

SCHEMA = 1
BASELINE = "baseline"
MAX_ROWS = 100_000
_SHA = re.compile(r"[0-9a-f]{64}")
_TENSORS = {"a": "dtype", "b": "b_dtype", "d": "out_dtype"}


@dataclass(frozen=True)
class Point:
    """What was measured at one size: microseconds (median and its 95 % interval) of the kernel, and of the baseline.

    ``ratio`` = baseline time / kernel time. An estimate has a time alone. Of a ``baseline`` row these are the times of
    the candidate that lost.
    """

    axes: Mapping[str, int]
    us: float
    us_low: float
    us_high: float
    baseline_us: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None


@dataclass(frozen=True)
class Row:
    """One line of a dispatch table.

    ``axes`` maps each axis to the (first, last) size it serves. ``kernel`` is a cubin's SHA-256 or ``"baseline"``;
    then ``candidate`` is the best kernel that lost, where there is one. ``alignment`` is what the kernel needs of each
    tensor's address, in bytes (for people: the recipe's preconditions decide). ``pitches`` are the leading dimensions
    it was measured with, in elements, where not packed.
    """

    kind: str
    axes: Mapping[str, tuple[int, int]]
    dtypes: Mapping[str, str]
    layout: str
    epilogue: str
    kernel: str
    points: tuple[Point, ...]
    candidate: str | None = None
    estimated: bool = False
    alignment: Mapping[str, int] = field(default_factory=dict)
    pitches: Mapping[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether it serves a single size."""
        return all(low == high for low, high in self.axes.values())

    @property
    def ratio(self) -> float | None:
        """The expected ratio: the lowest of its points, so that a range promises no more than it kept everywhere."""
        ratios = [p.ratio for p in self.points if p.ratio is not None]
        return min(ratios) if ratios else None

    def __str__(self) -> str:
        ranges = "".join(f" {name}={low}-{high}" for name, (low, high) in self.axes.items() if low != high)
        return f"{self.problem().key}{ranges} -> {self.kernel[:12]}{' (estimated)' if self.estimated else ''}"

    def serves(self, axes: Mapping[str, int]) -> bool:
        """Whether every axis lies in its range."""
        return all(low <= axes[name] <= high for name, (low, high) in self.axes.items())

    def problem(self, axes: Mapping[str, int] | None = None) -> Problem:
        """The problem of this row at ``axes`` (at the first size of every range where none is given).

        Raises:
            PackError: the row describes no problem this gemmtune knows.
        """
        sizes = axes or {name: low for name, (low, _) in self.axes.items()}
        types = {name: self.dtypes[tensor] for tensor, name in _TENSORS.items()}
        data = {"kind": self.kind, **sizes, **types, "layout": self.layout, "epilogue": self.epilogue, **self.pitches}
        try:
            return problem_from_json(data)
        except GemmtuneError as error:
            raise PackError(f"A dispatch row describes no problem that this gemmtune knows: {error}") from None


@dataclass(frozen=True)
class Table:
    """Rows measured on one device (its key and name), in one regime, cache state and environment."""

    device: str
    name: str
    arch: str
    regime: str
    cache: str
    environment: Mapping[str, str]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Kernel:
    """One kernel of a pack; ``sha`` names its three files.

    ``problem`` and ``configuration`` are what it was rendered from, ``arch`` and ``nvrtc`` what it was compiled for and
    by; ``registers`` a thread and ``spill_bytes`` are the compiler's (0 and 0 where its log did not say).
    """

    sha: str
    recipe: LaunchRecipe
    configuration: Configuration
    problem: Problem
    arch: str
    nvrtc: str
    template_hash: str
    registers: int
    spill_bytes: int


# --------------------------------------------------------------------------------------------------------- to JSON


def row_of(problem: Problem, **fields: Any) -> Row:
    """A row for ``problem`` alone; ``fields`` are the rest of :class:`Row` (``axes`` may widen a range)."""
    data = problem.to_json()
    return Row(
        kind=problem.kind,
        **{"axes": {name: (size, size) for name, size in problem.axes.items()}, **fields},
        dtypes={tensor: data[name] for tensor, name in _TENSORS.items()},
        layout=data["layout"],
        epilogue=data["epilogue"],
        pitches={name: data[name] for name in ("lda", "ldb", "ldd") if data[name]},
    )


def dispatch_to_json(tables: tuple[Table, ...]) -> dict[str, Any]:
    """Plain data of ``dispatch.json``."""
    return {"schema": SCHEMA, "tables": [_table_to_json(t) for t in tables]}


def _table_to_json(table: Table) -> dict[str, Any]:
    return {
        "device": table.device,
        "name": table.name,
        "arch": table.arch,
        "regime": table.regime,
        "cache": table.cache,
        "environment": dict(table.environment),
        "rows": [_row_to_json(r) for r in table.rows],
    }


def _row_to_json(row: Row) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "axes": {name: low if low == high else [low, high] for name, (low, high) in row.axes.items()},
        "dtypes": dict(row.dtypes),
        "layout": row.layout,
        "epilogue": row.epilogue,
        "kernel": row.kernel,
        "candidate": row.candidate,
        "estimated": row.estimated,
        "alignment": dict(row.alignment),
        "pitches": dict(row.pitches),
        "points": [
            {
                "axes": dict(p.axes),
                "us": p.us,
                "us_low": p.us_low,
                "us_high": p.us_high,
                "baseline_us": p.baseline_us,
                "ratio": p.ratio,
                "ratio_low": p.ratio_low,
                "ratio_high": p.ratio_high,
            }
            for p in row.points
        ],
    }


def kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    """Plain data of ``kernels/<sha>.json``."""
    return {
        "schema": SCHEMA,
        "recipe": kernel.recipe.to_json(),
        "configuration": str(kernel.configuration),
        "problem": kernel.problem.to_json(),
        "arch": kernel.arch,
        "nvrtc": kernel.nvrtc,
        "template_hash": kernel.template_hash,
        "registers": kernel.registers,
        "spill_bytes": kernel.spill_bytes,
    }


# ------------------------------------------------------------------------------------------------------- from JSON


def check_schema(reader: Reader, newest: int = SCHEMA) -> None:
    """Refuse a file of a schema this gemmtune does not read."""
    schema = reader.integer("schema", 1)
    if schema > newest:
        raise PackError(f"{reader.where} has schema {schema}, but this gemmtune reads {newest}: upgrade gemmtune.")


def dispatch_from_json(data: Any) -> tuple[Table, ...]:
    """Read ``dispatch.json``.

    Raises:
        PackError: a field is missing, unknown, or out of range, or the schema is newer.
    """
    reader = Reader(data, "dispatch.json")
    check_schema(reader)
    tables = tuple(_table(t, f"dispatch.json table {i}") for i, t in enumerate(reader.items("tables", 10_000)))
    reader.end()
    if sum(len(t.rows) for t in tables) > MAX_ROWS:
        raise PackError(f"dispatch.json has more than {MAX_ROWS} rows, the most a pack may have.")
    return tables


def _table(data: Any, where: str) -> Table:
    reader = Reader(data, where)
    table = Table(
        device=reader.text("device", 200),
        name=reader.text("name", 200),
        arch=reader.text("arch", 20),
        regime=reader.text("regime", 20),
        cache=reader.text("cache", 20),
        environment=reader.texts("environment"),
        rows=tuple(_row(r, f"{where} row {i}") for i, r in enumerate(reader.items("rows"))),
    )
    reader.end()
    return table


def _row(data: Any, where: str) -> Row:
    reader = Reader(data, where)
    axes: dict[str, tuple[int, int]] = {}
    for name, value in reader.mapping("axes").items():
        pair = value if isinstance(value, list) else [value, value]
        if (
            len(pair) != 2
            or not all(isinstance(v, int) and not isinstance(v, bool) for v in pair)
            or not 1 <= pair[0] <= pair[1]
        ):
            raise PackError(
                f"{where} has {str(value)[:60]} as axis {name[:40]!r}, which is neither a size nor a range of sizes."
            )
        axes[name] = (pair[0], pair[1])
    row = Row(
        kind=reader.text("kind", 40),
        axes=axes,
        dtypes=reader.texts("dtypes"),
        layout=reader.text("layout", 10),
        epilogue=reader.text("epilogue", 40),
        kernel=reader.text("kernel", 64),
        candidate=reader.maybe_text("candidate", 64),
        estimated=reader.flag("estimated"),
        alignment=reader.integers("alignment", 1, 4096),
        pitches=reader.integers("pitches", 1),
        points=tuple(_point(p, axes, f"{where} point {i}") for i, p in enumerate(reader.items("points", 64))),
    )
    reader.end()
    _check_row(row, where)
    return row


def _check_row(row: Row, where: str) -> None:
    if set(row.dtypes) != set(_TENSORS):
        raise PackError(f"{where} gives dtypes of {sorted(row.dtypes)}, but a, b and d have one each.")
    problem = row.problem()
    if set(problem.axes) != set(row.axes):
        raise PackError(f"{where} has the axes {sorted(row.axes)}, but a {row.kind} has {sorted(problem.axes)}.")
    row.problem({name: high for name, (_, high) in row.axes.items()})
    for sha in (row.kernel, row.candidate):
        if sha not in (None, BASELINE) and not _SHA.fullmatch(str(sha)):
            raise PackError(f"{where} names {str(sha)!r}, which is neither a kernel's SHA-256 nor {BASELINE!r}.")
    if row.kernel != BASELINE and (row.candidate is not None or not row.points):
        raise PackError(f"{where} names a kernel, but has a candidate too, or no measurement: the pack was altered.")
    if not all(row.serves(p.axes) for p in row.points):
        raise PackError(f"{where} has a point outside of its own range of sizes: the pack was altered.")
    if not row.estimated and any(p.ratio is None for p in row.points):
        raise PackError(f"{where} has a point without a ratio, yet is not marked as an estimate: the pack was altered.")


def _point(data: Any, axes: Mapping[str, Any], where: str) -> Point:
    reader = Reader(data, where)
    point = Point(
        axes=reader.integers("axes", 1),
        us=reader.number("us"),
        us_low=reader.number("us_low"),
        us_high=reader.number("us_high"),
        baseline_us=reader.maybe_number("baseline_us"),
        ratio=reader.maybe_number("ratio"),
        ratio_low=reader.maybe_number("ratio_low"),
        ratio_high=reader.maybe_number("ratio_high"),
    )
    reader.end()
    if set(point.axes) != set(axes):
        raise PackError(f"{where} has the axes {sorted(point.axes)}, but its row has {sorted(axes)}.")
    return point


def kernel_from_json(sha: str, data: Any) -> Kernel:
    """Read ``kernels/<sha>.json``.

    Raises:
        PackError: a field is missing, unknown or out of range, an expression is not allowed, or the schema is newer.
    """
    where = f"kernels/{sha[:12]}....json"
    reader = Reader(data, where)
    check_schema(reader)
    recipe, problem = reader.mapping("recipe"), reader.mapping("problem")
    if not all(isinstance(v, str | int) and not isinstance(v, bool) for v in problem.values()):
        raise PackError(
            f"{where} has a problem with a field that is neither text nor an integer: the pack was altered."
        )
    check_recipe_types(recipe, f"{where} recipe")
    try:
        kernel = Kernel(
            sha=sha,
            recipe=LaunchRecipe.from_json(recipe),
            configuration=Configuration.parse(reader.text("configuration")),
            problem=problem_from_json(problem),
            arch=reader.text("arch", 20),
            nvrtc=reader.text("nvrtc", 40),
            template_hash=reader.text("template_hash", 64),
            registers=reader.integer("registers", 0, 1024),
            spill_bytes=reader.integer("spill_bytes", 0, 2**31),
        )
    except PackError:
        raise
    except GemmtuneError as error:
        raise PackError(f"{where} cannot be used: {error}") from None
    reader.end()
    return kernel
