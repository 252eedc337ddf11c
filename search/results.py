"""Result files: every figure the project quotes, in one schema, written by its own benchmark.

A file is ``{"schema": 1, "name", "gpu", "driver", "cuda", "versions", "date", "commit", "protocol", "ceilings", "rows",
"summary"}``. Rows hold times in microseconds, so that anyone can recompute; a ratio is always peer time / our time
(above 1 is faster), a mean of ratios is geometric.

Means cover rows that were timed in one way alone: those of another regime or cache, and those of kernels that overlap
their launches (programmatic dependent launch), have a summary of their own under ``apart``. Rows of a suite name their
group, and ``by_group`` says how each group stands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gemmtune.search.standing import VENDOR as VENDOR
from gemmtune.search.standing import Against, Standing, against, geometric_mean, mean_ratios, standing
from gemmtune.space.errors import GemmtuneError, ProblemError
from gemmtune.space.gemm import Gemm
from gemmtune.space.whole_file import whole_file

SCHEMA = 1


@dataclass(frozen=True)
class BenchRow:
    """One GEMM, timed.

    ``us`` is the median of our kernel with its 95 % interval, ``peers`` the medians of what was timed beside it, in
    one interleaved run; all in microseconds, as ``floor_us`` is (:func:`gemmtune.space.estimate.floor_us`).
    ``rel_error`` = max |d - ref| / (|A| |B|), to be at most ``error_bound``. ``trials`` and ``wall_s`` (seconds) are
    what finding the kernel cost. ``scaling`` names how operands are scaled ("none").
    """

    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    layout: str
    epilogue: str
    scaling: str
    regime: str
    cache: str
    family: str
    config: str
    trials: int
    wall_s: float
    us: float
    us_low: float
    us_high: float
    floor_us: float
    peers: Mapping[str, float]
    rel_error: float
    error_bound: float
    estimated: bool = False
    """Whether the times are estimates; a file says so once, in its summary."""
    group: str = ""
    """The group of the suite it belongs to; a file leaves it out where there is none."""
    programmatic: bool = False
    """Whether launches overlapped (programmatic dependent launch), the peers' too; a file leaves out a False."""
    unstable: str = ""
    """Why the kernel has no one time, as a sentence: its interval then spans what was seen; a file leaves out a ""."""

    @property
    def problem(self) -> Gemm:
        """The problem it is about (packed operands)."""
        return Gemm(self.m, self.n, self.k, self.dtype, self.out_dtype, self.layout, self.epilogue)

    @property
    def tflops(self) -> float:
        """Our TFLOP/s."""
        return self.problem.flops / self.us / 1e6

    @property
    def floor_fraction(self) -> float:
        """The floor over our time: 1 would be perfect."""
        return self.floor_us / self.us

    def ratio(self, peer: str) -> float | None:
        """Peer time / our time; None where the peer was not timed."""
        return self.peers[peer] / self.us if peer in self.peers else None


@dataclass(frozen=True)
class Summary:
    """Rows timed in one way and their geometric means: ``ratios`` by peer over the rows that have it,
    ``floor_fraction`` over all. ``by_dtype`` has the same ratios for each dtype alone; ``estimated`` says that times
    are estimates.

    ``vendor`` and ``any``: each row against its best peer (:mod:`gemmtune.search.standing`). ``by_group``: groups of a
    suite. ``apart``: the summaries of rows timed otherwise, by how ("burst, cold", "sustained, cold, programmatic").
    """

    rows: tuple[BenchRow, ...]
    ratios: Mapping[str, float]
    floor_fraction: float
    by_dtype: Mapping[str, Mapping[str, float]]
    estimated: bool
    vendor: Against | None = None
    any: Against | None = None
    by_group: Mapping[str, Standing] = field(default_factory=dict)
    apart: Mapping[str, Summary] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What a file's ``summary`` holds."""
        data: dict[str, Any] = {
            "rows": len(self.rows),
            "estimated": self.estimated,
            "ratios": dict(self.ratios),
            "floor_fraction": self.floor_fraction,
            "by_dtype": {dtype: dict(ratios) for dtype, ratios in self.by_dtype.items()},
        }
        best = (("vendor", self.vendor), ("any", self.any))
        data |= {name: one.to_json() for name, one in best if one is not None}
        for name, parts in (("by_group", self.by_group), ("apart", self.apart)):
            if parts:
                data[name] = {key: part.to_json() for key, part in parts.items()}
        return data


@dataclass(frozen=True)
class ResultFile:
    """One result file, read."""

    name: str
    gpu: str
    driver: str
    cuda: str
    versions: Mapping[str, str]
    date: str
    commit: str
    protocol: str
    ceilings: Mapping[str, float]
    rows: tuple[BenchRow, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def estimated(self) -> bool:
        """Whether its times are estimates."""
        return bool(self.summary.get("estimated", False))


_TOP = ("schema", *(f.name for f in fields(ResultFile)))
_TEXTS = ("name", "gpu", "driver", "cuda", "date", "commit", "protocol")
_ROW = {f.name: f.type for f in fields(BenchRow) if f.name != "estimated"}
_LEFT_OUT: Mapping[str, Any] = {"group": "", "programmatic": False, "unstable": ""}
"""Fields of a row that a file leaves out where they have this value."""


def summarise(rows: Iterable[BenchRow] | ResultFile | Path | str) -> Summary:
    """Rows (or those of a file) and their geometric means.

    Raises:
        ProblemError: the file is none of ours, or there are no rows.
    """
    if isinstance(rows, Path | str):
        rows = read_result_file(rows)
    every = rows.rows if isinstance(rows, ResultFile) else tuple(rows)
    if not every:
        raise ProblemError("There are no rows to summarise: benchmark at least one problem.")
    ways: dict[tuple[bool, bool, bool, str], list[BenchRow]] = {}
    for row in every:  # what the main means are of comes first
        how = ", ".join([row.regime, row.cache, *(["programmatic"] if row.programmatic else [])])
        way = (row.programmatic, row.regime != "sustained", row.cache != "cold", how)
        ways.setdefault(way, []).append(row)
    first, *others = sorted(ways)
    return replace(_summary(ways[first]), apart={way[3]: _summary(ways[way]) for way in others})


def _summary(rows: list[BenchRow]) -> Summary:
    """Of rows timed in one way."""
    groups = dict.fromkeys(row.group for row in rows if row.group)
    return Summary(
        rows=tuple(rows),
        ratios=mean_ratios(rows),
        floor_fraction=geometric_mean([row.floor_fraction for row in rows]),
        by_dtype={d: mean_ratios([r for r in rows if r.dtype == d]) for d in dict.fromkeys(r.dtype for r in rows)},
        estimated=any(row.estimated for row in rows),
        vendor=against(rows, VENDOR),
        any=against(rows, None),
        by_group={group: standing([row for row in rows if row.group == group]) for group in groups},
    )


# ---------------------------------------------------------------------------------------------------- reading, writing


def save(path: Path | str, result: ResultFile) -> None:
    """Write a result file: all of it or nothing.

    Raises:
        ProblemError: the data is not one that :func:`read_result_file` would accept, or the file cannot be written.
    """
    target = Path(path)
    data = {"schema": SCHEMA, **asdict(result)}
    for row in data["rows"]:
        del row["estimated"]
        for name, usual in _LEFT_OUT.items():
            if row[name] == usual:
                del row[name]
    result_from_json(data, str(target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as file:
            file.write(f"{json.dumps(data, indent=1)}\n".encode())
    except OSError as error:
        raise ProblemError(
            f"The result file {target} cannot be written ({error.strerror}): choose another place."
        ) from None


def result_file_there(path: Path | str) -> ResultFile | None:
    """The result file that writing to ``path`` would replace; None where there is nothing, an empty file or a device.

    Raises:
        ProblemError: what stands there is no result file, and is not replaced by one.
    """
    where = Path(path)
    try:
        if not where.is_file() or not where.stat().st_size:
            return None
        return read_result_file(where)
    except OSError as error:
        raise ProblemError(
            f"The file {str(path)!r} cannot be written ({error.strerror}): choose another place."
        ) from None
    except ProblemError:
        raise ProblemError(
            f"The file {str(path)!r} is there already and is no result file that this gemmtune reads: write to another "
            f"file, or remove it first."
        ) from None


def read_result_file(path: Path | str) -> ResultFile:
    """Read a result file and check every field.

    Raises:
        ProblemError: it cannot be read, or a field is missing, unknown, of the wrong type or out of range.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise ProblemError(f"The result file {path} cannot be read ({error.strerror}): name an existing one.") from None
    except (ValueError, RecursionError) as error:
        raise ProblemError(f"The result file {path} is not JSON ({error}): write it with gemmtune bench.") from None
    return result_from_json(data, str(path))


def result_from_json(data: Any, where: str) -> ResultFile:
    """Check plain data against the schema; ``where`` names it in messages.

    Raises:
        ProblemError: as for :func:`read_result_file`.
    """
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, Mapping) else type(data).__name__
        raise ProblemError(f"{where} has schema {found!r}, but this gemmtune reads result files of schema {SCHEMA}.")
    _same_names(data, _TOP, where)
    for name in _TEXTS:
        _expect(isinstance(data[name], str), where, name, data[name], "text")
    for name, kind in (("versions", str), ("ceilings", float), ("summary", object)):
        whole = data[name]
        _expect(isinstance(whole, Mapping), where, name, whole, "an object")
        for key, value in whole.items():
            _expect(
                isinstance(value, kind) or (kind is float and _number(value)), where, f"{name}.{key}", value, "valid"
            )
    _expect(isinstance(data["rows"], list | tuple), where, "rows", data["rows"], "a list")
    estimated = data["summary"].get("estimated", False)
    _expect(isinstance(estimated, bool), where, "summary.estimated", estimated, "true or false")
    rows = tuple(_row(row, estimated, f"{where} row {i}") for i, row in enumerate(data["rows"]))
    rest = {name: data[name] for name in _TOP if name not in ("schema", "rows")}
    result = ResultFile(rows=rows, **rest)
    if rows:
        _check_summary(result, where)
    return result


def _row(data: Any, estimated: bool, where: str) -> BenchRow:
    _expect(isinstance(data, Mapping), where, "row", data, "an object")
    data = {**_LEFT_OUT, **data}
    _same_names(data, tuple(_ROW), where)
    for name, kind in _ROW.items():
        value = data[name]
        if kind == "int":
            _expect(
                isinstance(value, int) and not isinstance(value, bool) and value >= 0, where, name, value, "a count"
            )
        elif kind == "float":
            _expect(_number(value), where, name, value, "a finite number, not negative")
        elif kind == "str":
            _expect(isinstance(value, str), where, name, value, "text")
        elif kind == "bool":
            _expect(isinstance(value, bool), where, name, value, "true or false")
    peers = data["peers"]
    _expect(isinstance(peers, Mapping), where, "peers", peers, "an object")
    for peer, us in peers.items():
        _expect(_number(us) and us > 0, where, f"peers.{peer}", us, "positive microseconds")
    row = BenchRow(**{**data, "peers": dict(peers)}, estimated=estimated)
    _expect(row.us > 0 and row.floor_us > 0, where, "us", row.us, "positive microseconds")
    _expect(row.us_low <= row.us <= row.us_high, where, "us", row.us, f"within {row.us_low} to {row.us_high}")
    _expect(row.rel_error <= row.error_bound, where, "rel_error", row.rel_error, f"within {row.error_bound}")
    try:
        row.problem  # noqa: B018 - a problem that does not exist raises
    except GemmtuneError as error:
        raise ProblemError(f"{where} is of no problem that this gemmtune knows: {error}") from None
    return row


def _check_summary(result: ResultFile, where: str) -> None:
    """The stored means must be those of the rows, to six digits."""
    computed = summarise(result).to_json()
    for name, value in result.summary.items():
        if name in computed and not _close(value, computed[name]):
            raise ProblemError(f"{where} has {name} = {value} in its summary, but its rows give {computed[name]}.")


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_close(a[k], b[k]) for k in a)
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)


def _same_names(data: Mapping[str, Any], wanted: tuple[str, ...], where: str) -> None:
    missing, unknown = sorted(set(wanted) - set(data)), sorted(set(data) - set(wanted))
    if missing or unknown:
        raise ProblemError(f"{where} lacks the fields {missing} or has the unknown fields {unknown}.")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _expect(holds: bool, where: str, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise ProblemError(f"{where} has {name} = {value!r}, which is not {wanted}.")
