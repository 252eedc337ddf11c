"""What people type, read: shapes, shape files, durations, and the problems they describe."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gemmtune.space.errors import ProblemError
from gemmtune.space.whole_file import is_special, whole_file

if TYPE_CHECKING:
    from gemmtune.space.gemm import Gemm

Shape = tuple[int, int, int]
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


def read_shape(text: str) -> Shape:
    """``"4096x1024x512"`` as (m, n, k).

    Raises:
        ProblemError: it is not three integers with ``x`` between them.
    """
    parts = re.split(r"[xX×*,]", text.strip())
    if len(parts) != 3 or not all(re.fullmatch(r"[+-]?[0-9]+", p.strip()) for p in parts):
        raise ProblemError(f"Shape {text!r} is malformed: write it as MxNxK with integers, e.g. 4096x4096x1024.")
    m, n, k = (int(p) for p in parts)
    return m, n, k


def read_shape_file(name: str) -> list[Shape]:
    """The shapes of a TOML file whose tables each have ``shapes = [[M, N, K], ...]``; ``FILE:TABLE`` takes one table.

    A file of ``[[problem]]``, such as ``gemmtune shapes`` writes, gives the sizes of its problems.

    Raises:
        ProblemError: the file or table is not there, is no TOML, or holds anything but shapes.
    """
    from gemmtune.search.shape_file import read_problems
    from gemmtune.search.suite import read_tables

    weighted = read_problems(name)
    if weighted is not None:
        return list(dict.fromkeys((w.problem.m, w.problem.n, w.problem.k) for w in weighted))
    path, table = Path(name), ""
    if not path.exists() and ":" in name:
        head, _, table = name.rpartition(":")
        path = Path(head)
    tables = read_tables(path)
    if not table:
        return [shape for shapes in tables.values() for shape in shapes]
    if table not in tables:
        raise ProblemError(f"The shape file {str(path)!r} has no table {table!r}: it has {', '.join(tables)}.")
    if not tables[table]:
        raise ProblemError(f"The table {table!r} of {str(path)!r} has no shapes: write shapes = [[M, N, K], ...].")
    return tables[table]


def read_duration(text: str) -> float:
    """``"90"``, ``"90s"``, ``"10m"``, ``"1h30m"`` in seconds.

    Raises:
        ProblemError: it is none of these, or not positive.
    """
    found = re.fullmatch(_DURATION, text.strip().lower())
    seconds = 0.0
    if found:
        seconds = sum(float(v) * u for v, u in zip(found.groups(), (3600.0, 60.0, 1.0), strict=True) if v)
    if seconds <= 0:
        if found and re.search(r"\d", text):
            raise ProblemError(f"Duration {text!r} is no time at all: give more than 0, e.g. 90s, 10m, 1h30m.")
        raise ProblemError(f"Duration {text!r} is malformed: write seconds, minutes or hours, e.g. 90s, 10m, 1h30m.")
    return seconds


def check_destination(name: str) -> None:
    """Say no to a file that cannot be written before anything has taken its time.

    Raises:
        ProblemError: it is a directory, a database, or a device that may not be written, or the directory that is to
            hold it (or its nearest parent) takes no new file.
    """
    path = Path(name)
    try:
        if path.is_dir():
            raise ProblemError(f"The file {name!r} cannot be written: it is a directory; name a file in it.")
        if is_special(path):
            if not os.access(path, os.W_OK):
                raise ProblemError(f"The file {name!r} cannot be written: it may not be; choose another place.")
            return
        path = Path(os.path.realpath(path))
        if path.exists() and _is_database(path):
            raise ProblemError(
                f"The file {name!r} is a database, a history perhaps, which nothing else takes the place of: write to "
                "another file."
            )
        parent = next(folder for folder in path.parents if folder.exists())
        with tempfile.TemporaryFile(dir=parent):  # asked of the folder: some that look writable, as /proc, are not
            pass
    except OSError as error:
        raise ProblemError(
            f"The file {name!r} cannot be written ({error.strerror or error}): choose another place."
        ) from None


def _is_database(path: Path) -> bool:
    """By the magic string of SQLite's file format, section 1.3."""
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def write_text(name: str, text: str) -> None:
    """Write a file, all of it or nothing.

    Raises:
        ProblemError: it cannot be written.
    """
    try:
        with whole_file(name) as file:
            file.write(text.encode())
    except OSError as error:
        raise ProblemError(
            f"The file {name!r} cannot be written ({error.strerror or error}): choose another place."
        ) from None


def read_shapes(
    positional: Iterable[str], m: int | None, n: int | None, k: int | None, files: Iterable[str]
) -> list[Shape]:
    """Every shape that a command line names, in order.

    Raises:
        ProblemError: none is named, or only some of ``--m --n --k`` are.
    """
    shapes = [read_shape(text) for text in positional]
    sizes = {"--m": m, "--n": n, "--k": k}
    missing = [name for name, value in sizes.items() if value is None]
    if m is not None and n is not None and k is not None:
        shapes.append((m, n, k))
    elif len(missing) < 3:
        raise ProblemError(f"A size is missing: give {' and '.join(missing)} too, or write the shape as MxNxK.")
    for name in files:
        shapes += read_shape_file(name)
    if not shapes:
        raise ProblemError("No shape is given: write MxNxK, e.g. 4096x4096x4096, or --m --n --k, or --shapes FILE.")
    return shapes


def wanted(
    shapes: Iterable[str],
    m: int | None,
    n: int | None,
    k: int | None,
    files: Iterable[str],
    dtypes: Sequence[str] | None,
    out_dtype: str | None,
    layout: str,
    epilogue: str,
) -> list[Gemm]:
    """Every problem that a command line names, each once: typed shapes, then those of the files, in order.

    Problems of a file of ``[[problem]]`` keep their own layout and epilogue, and their dtype unless ``dtypes`` are
    given; plain shapes have the options' (bf16 where no dtype is given).

    Raises:
        ProblemError: none is named, only some of ``--m --n --k`` are, or a value is out of range.
    """
    from gemmtune.search.shape_file import read_problems

    found: dict[Gemm, None] = {}
    plain: list[str] = []
    for name in files:
        weighted = read_problems(name, dtypes)
        if weighted is None:
            plain.append(name)
        else:
            found |= dict.fromkeys(w.problem for w in weighted)
    if found and not (plain or list(shapes) or m or n or k):
        return list(found)
    typed = problems(read_shapes(shapes, m, n, k, plain), dtypes or ["bf16"], out_dtype, layout, epilogue)
    return list(dict.fromkeys([*typed, *found]))


def problems(
    shapes: Sequence[Shape], dtypes: Sequence[str], out_dtype: str | None, layout: str, epilogue: str
) -> list[Gemm]:
    """One GEMM for each shape and dtype, each once.

    Raises:
        ProblemError: a size, dtype, layout or epilogue out of range.
    """
    from gemmtune.space.gemm import Gemm

    wanted = (
        Gemm(*shape, dtype=dtype, out_dtype=out_dtype or "", layout=layout, epilogue=epilogue)
        for dtype in dtypes
        for shape in shapes
    )
    return list(dict.fromkeys(wanted))
