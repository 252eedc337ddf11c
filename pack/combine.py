"""Packs of several GPUs as one.

Tables of different devices, regimes or cache states stand side by side. Where two packs speak of the same problem in
the same circumstances, the pack that is named later has the word, but for one thing: what was measured stands above an
estimate. Times of different environments are never compared to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemmtune import __version__
from gemmtune.pack.format import PackData, read_pack, write_pack
from gemmtune.pack.schema import Kernel, Row, Table
from gemmtune.space.errors import PackError

_Where = tuple[str, str, str]


@dataclass(frozen=True)
class MergeReport:
    """What was written, and which rows gave way to another pack's."""

    path: Path
    manifest_sha256: str
    rows: int
    kernels: int
    devices: tuple[str, ...]
    displaced: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.path}: {self.rows} rows and {self.kernels} kernels for {', '.join(self.devices)}"
        return "\n".join(
            [f"{head}, manifest {self.manifest_sha256[:12]}", *(f"  gave way: {d}" for d in self.displaced)]
        )


def merge_packs(path: str | Path, packs: Sequence[str | Path], *, as_zip: bool | None = None) -> MergeReport:
    """Write the packs as one.

    Args:
        path: where; an older pack there is replaced.
        packs: their paths; the later ones have the word where two speak of the same problem.
        as_zip: one zip file; by default where ``path`` ends in ``.zip``.

    Raises:
        PackError: a pack is refused, two packs disagree on how one cubin is launched, or the result is too large or
            cannot be written.
    """
    if not packs:
        raise PackError("No pack is named: name those to merge after the one to write.")
    data, displaced = combine([read_pack(p) for p in packs])
    target = Path(path)
    digest = write_pack(target, data, as_zip=target.suffix == ".zip" if as_zip is None else as_zip)
    rows = sum(len(t.rows) for t in data.tables)
    names = tuple(dict.fromkeys(t.name for t in data.tables))
    return MergeReport(target, digest, rows, len(data.kernels), names, displaced)


def combine(packs: Sequence[PackData]) -> tuple[PackData, tuple[str, ...]]:
    """The packs as one, and a sentence for each row that gave way.

    Raises:
        PackError: two packs disagree on how one cubin is launched.
    """
    kernels: dict[str, Kernel] = {}
    cubins: dict[str, bytes] = {}
    sources: dict[str, str] = {}
    for pack in packs:
        for sha, kernel in pack.kernels.items():
            known = kernels.setdefault(sha, kernel)
            if known.recipe != kernel.recipe:
                raise PackError(f"Two of the packs launch kernel {sha[:12]} in different ways: export them anew.")
        cubins |= pack.cubins
        sources |= pack.sources
    tables: list[Table] = []
    displaced: list[str] = []
    for table in (t for pack in packs for t in pack.tables):
        tables = _joined(tables, table, displaced)
    tables = [t for t in tables if t.rows]
    tables.sort(key=lambda t: (t.device, t.regime, t.cache, sorted(t.environment.items())))
    used = {sha for t in tables for r in t.rows for sha in (r.kernel, r.candidate)}
    data = PackData(
        tables=tuple(tables),
        kernels={sha: k for sha, k in kernels.items() if sha in used},
        cubins={sha: raw for sha, raw in cubins.items() if sha in used},
        sources={sha: text for sha, text in sources.items() if sha in used},
        tool=__version__,
    )
    return data, tuple(displaced)


def _joined(tables: Sequence[Table], new: Table, displaced: list[str]) -> list[Table]:
    """``tables`` with the rows of ``new``, without those of either that the other stands above."""
    rows = list(new.rows)
    out: list[Table] = []
    for table in tables:
        if _where(table) != _where(new):
            out.append(table)
            continue
        kept: list[Row] = []
        for row in table.rows:
            rivals = [r for r in rows if _meets(row, r)]
            if any(not row.estimated and r.estimated for r in rivals):
                displaced += [f"{r} on {new.name}, an estimate" for r in rivals if r.estimated]
                rows = [r for r in rows if not (r in rivals and r.estimated)]
                rivals = [r for r in rivals if not r.estimated]
            if not rivals:
                kept.append(row)
            elif rivals != [row]:
                displaced.append(f"{row} on {table.name}, to a later pack")
        out.append(replace(table, rows=tuple(kept)))
    same = next((i for i, t in enumerate(out) if _where(t) == _where(new) and t.environment == new.environment), None)
    if same is None:
        return [*out, replace(new, rows=tuple(rows))]
    out[same] = replace(out[same], rows=(*out[same].rows, *rows))
    return out


def _where(table: Table) -> _Where:
    return table.device, table.regime, table.cache


def _meets(old: Row, new: Row) -> bool:
    """Whether two rows answer for the same sizes: the same ones, or ranges that overlap."""
    if identity(old) != identity(new) or old.exact != new.exact:
        return False
    both = ((old.axes[name], new.axes[name]) for name in old.axes)
    return all(a[0] <= b[1] and b[0] <= a[1] for a, b in both)


def identity(row: Row) -> tuple[object, ...]:
    """What must agree for two rows to speak of the same kind of problem: all but the sizes and who serves."""
    return row.kind, row.layout, row.epilogue, tuple(sorted(row.dtypes.items())), tuple(sorted(row.pitches.items()))
