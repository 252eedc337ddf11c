"""Files of weighted problems: what ``gemmtune shapes`` writes and ``gemmtune tune --shapes`` reads.

TOML with one ``[[problem]]`` for each GEMM, the most valuable first: ``m n k``, and ``dtype out_dtype layout epilogue``
where they are not the defaults (bf16, as A, nt, identity). ``count`` says how often one pass computes it, ``share``
its part of the time of all of them (0 to 1), ``where`` the layers; these three are for people and may be left out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmtune.space.errors import ProblemError
from gemmtune.space.gemm import Gemm
from gemmtune.space.whole_file import whole_file

_SIZES, _WORDS = ("m", "n", "k"), ("dtype", "out_dtype", "layout", "epilogue")
_REMARKS = ("count", "share", "where")


@dataclass(frozen=True)
class Weighted:
    """A problem, how often one pass computes it, its share of the time (0 to 1), and which layers it belongs to."""

    problem: Gemm
    count: float = 1.0
    share: float = 0.0
    where: tuple[str, ...] = ()


def write_problems(path: str | Path, problems: Iterable[Weighted], title: str = "") -> None:
    """Write a file of problems in the given order; ``title`` becomes its first comment.

    Raises:
        ProblemError: the file cannot be written.
    """
    try:
        with whole_file(path) as file:
            file.write(problems_text(problems, title).encode())
    except OSError as error:
        raise ProblemError(f"The shape file {str(path)!r} cannot be written: {error.strerror}.") from None


def problems_text(problems: Iterable[Weighted], title: str = "") -> str:
    """The text of such a file."""
    blocks = ["".join(f"# {line}\n" for line in title.splitlines())] if title else []
    for one in problems:
        fields = one.problem.to_json()
        lines = ["[[problem]]"]
        lines += [f"{name} = {fields[name]}" for name in _SIZES]
        lines += [f"{name} = {_quoted(fields[name])}" for name in _WORDS]
        lines.append(f"count = {one.count:g}")
        lines.append(f"share = {one.share:.4f}")
        if one.where:
            lines.append(f"where = [{', '.join(_quoted(name) for name in one.where)}]")
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _quoted(text: str) -> str:
    """A TOML basic string; what is neither a letter, a digit nor plain punctuation goes in by its code point."""
    return '"' + "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'


def read_problems(path: str | Path, dtypes: Sequence[str] | None = None) -> list[Weighted] | None:
    """The problems of such a file in its order; None where the file has none (it may be one of plain shapes).

    Args:
        path: the file.
        dtypes: element types that replace those of the file, one problem for each; by default the file's own.

    Raises:
        ProblemError: it holds an unknown field or a value out of range.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None  # the reader of plain shapes says what is wrong
    rows = data.get("problem")
    if not isinstance(rows, list):
        return None
    for name in data:
        if name != "problem":
            raise ProblemError(
                f"There is an unknown field {name!r} beside the problems of {str(path)!r}: write it into each of them."
            )
    found: dict[Gemm, Weighted] = {}
    for i, row in enumerate(rows, 1):
        where = f"problem {i} of {str(path)!r}"
        for dtype in dtypes or (None,):
            one = _read(row, where, dtype)
            found.setdefault(one.problem, one)
    if not found:
        raise ProblemError(f"The shape file {str(path)!r} has an empty list of problems.")
    return list(found.values())


def _read(row: Any, where: str, dtype: str | None) -> Weighted:
    if not isinstance(row, dict):
        raise ProblemError(f"There is {row!r} instead of a table in {where}: write [[problem]], then m, n and k.")
    for name in row:
        if name not in (*_SIZES, *_WORDS, *_REMARKS):
            raise ProblemError(f"There is an unknown field {name!r} in {where}.")
    for name in _SIZES:
        if name not in row:
            raise ProblemError(f"There is no {name} in {where}: write m, n and k.")
    words = {name: row[name] for name in _WORDS if name in row}
    for name, value in words.items():
        if not isinstance(value, str):
            raise ProblemError(f"The {name} in {where} is {value!r}, but should be text.")
    if dtype is not None:
        if words.get("out_dtype") == words.get("dtype"):  # as A, whatever A becomes
            words.pop("out_dtype", None)
        words["dtype"] = dtype
    count, share, layers = row.get("count", 1), row.get("share", 0.0), row.get("where", [])
    for name, value in (("count", count), ("share", share)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ProblemError(f"The {name} in {where} is {value!r}, but should be a number of at least 0.")
    if not isinstance(layers, list) or not all(isinstance(layer, str) for layer in layers):
        raise ProblemError(f"The field 'where' in {where} is {layers!r}, but should be a list of texts.")
    problem = Gemm(row["m"], row["n"], row["k"], **{"dtype": "bf16", **words})
    return Weighted(problem, float(count), float(share), tuple(layers))
