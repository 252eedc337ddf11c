"""Which kernel serves a problem: exact size, then measured range, then the baseline; and the words that explain it.

Kernels of the device's own rows come first. A kernel measured on another GPU of the same architecture, or at another
size, serves only where the user allows unmeasured kernels (or no baseline exists). Whatever the row says, the recipe's
preconditions decide on the actual addresses and leading dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gemmtune.pack.format import PackData, bindings
from gemmtune.pack.schema import BASELINE, Kernel, Point, Row, Table, row_of
from gemmtune.space.errors import ExpressionError, UnknownNameError
from gemmtune.space.expression import expression
from gemmtune.space.gpu import TABLE, is_called, sms_of
from gemmtune.space.problem import Problem

_Signature = tuple[str, tuple[tuple[str, str], ...], str, str]


@dataclass(frozen=True)
class Choice:
    """What serves one problem: a kernel, or the baseline (``kernel`` None); with the row behind it and the reasons.

    ``how`` is ``exact``, ``range``, ``unmeasured`` or ``baseline``; ``why`` one sentence; ``notes`` say what stood in
    the way of better rows.
    """

    how: str
    why: str
    kernel: Kernel | None = None
    row: Row | None = None
    table: Table | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Which row serves a problem, why, and what to expect; ``str()`` of it is for people.

    Times in microseconds; ``ratio`` = baseline time / kernel time with its 95 % interval, 1 where the baseline serves,
    None where only an estimate is known.
    """

    problem: str
    device: str
    how: str
    why: str
    kernel: str | None
    configuration: str | None
    regime: str | None
    cache: str | None
    estimated: bool
    us: float | None
    us_low: float | None
    us_high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = "the baseline" if self.kernel is None else f"kernel {self.kernel[:12]} ({self.configuration})"
        lines = [f"{self.problem} on {self.device}: {name}", f"  why: {self.why}"]
        if self.us is not None and self.estimated:
            lines.append(f"  expected: {self.us:.1f} us (an estimate, never measured)")
        elif self.us is not None and self.ratio is not None:
            span = "" if self.ratio_low is None else f", 95 % interval {self.ratio_low:.3f} to {self.ratio_high:.3f}"
            where = f"{self.regime}, {self.cache} cache"
            time = f"{self.us:.1f} us ({self.us_low:.1f} to {self.us_high:.1f})"
            lines.append(f"  expected: {self.ratio:.3f} x the baseline{span}; {time}; {where}")
        elif self.kernel is None:
            lines.append("  expected: 1.000 x the baseline, since it is the baseline")
        else:
            lines.append("  expected: unknown here, since it was never measured here")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


class Dispatch:
    """The rows of a pack as one device sees them.

    Args:
        data: the pack.
        device: the device key (:func:`gemmtune.space.gpu.device_key`).
        arch: the device's architecture, e.g. ``sm_90a``.
        regime: rows of this regime are preferred to those of others.
        allow_estimates: whether rows that were never measured may serve.
        allow_unmeasured: whether kernels measured elsewhere (other GPU of the architecture, other size) may serve.
        workspace_limit: bytes of workspace a kernel may have.
    """

    def __init__(
        self,
        data: PackData,
        device: str,
        arch: str,
        *,
        regime: str = "sustained",
        allow_estimates: bool = False,
        allow_unmeasured: bool = False,
        workspace_limit: int = 2**30,
    ) -> None:
        self.device = device
        self._sms = sms_of(device)
        self._workspace_limit = workspace_limit
        self._data = data
        self._allow_estimates = allow_estimates
        self._allow_unmeasured = allow_unmeasured
        self._own: dict[_Signature, list[tuple[Table, Row]]] = {}
        self._alike: dict[_Signature, list[tuple[Table, Row]]] = {}
        for table in sorted(data.tables, key=lambda t: (t.regime != regime, t.regime, t.cache != "cold")):
            for row in table.rows:
                if table.device == device:
                    self._own.setdefault(_signature(row), []).append((table, row))
                if table.arch == arch and row.kernel != BASELINE:
                    self._alike.setdefault(_signature(row), []).append((table, row))

    def choose(self, problem: Problem, addresses: Mapping[str, int] | None = None) -> Choice:
        """What serves ``problem``, whose leading dimensions are those of the call.

        Args:
            problem: the problem.
            addresses: ``ptr_a`` and so on (bytes), and other integers that replace the problem's own; by default
                every address is aligned.
        """
        env = {**bindings(problem), **(addresses or {})}
        notes: list[str] = []
        for table, row in self._rows(problem):
            how = "exact" if row.exact else "range"
            if row.kernel == BASELINE:
                return Choice("baseline", self._lost(row), row=row, table=table, notes=tuple(notes))
            if row.estimated and not self._allow_estimates:
                cure = "tune on this GPU, or load with allow_estimates=True"
                notes.append(f"kernel {row.kernel[:12]} was estimated, never measured, so a GPU refuses it: {cure}")
                continue
            kernel = self._data.kernels[row.kernel]
            if (reason := self._unmet(kernel, env)) is not None:
                notes.append(f"kernel {row.kernel[:12]} cannot serve this call: {reason}")
                continue
            return Choice(how, _measured(row, table), kernel, row, table, tuple(notes))
        if self._allow_unmeasured and (choice := self.unmeasured(problem, addresses)) is not None:
            return replace(choice, notes=tuple(notes))
        why = "no row of this pack serves this problem on this device" if not notes else "no row that matches may serve"
        return Choice("baseline", why, notes=tuple(notes))

    def unmeasured(self, problem: Problem, addresses: Mapping[str, int] | None = None) -> Choice | None:
        """The kernel of this architecture tuned nearest to ``problem``, wherever it was measured; None if none fits."""
        env = {**bindings(problem), **(addresses or {})}
        wanted = row_of(problem, kernel=BASELINE, points=())

        def distance(entry: tuple[Table, Row]) -> tuple[float, bool, bool]:
            table, row = entry
            near = [abs(math.log(low / size)) for name, size in problem.axes.items() for low in row.axes[name][:1]]
            return (0.0 if row.serves(problem.axes) else sum(near), table.device != self.device, row.estimated)

        for table, row in sorted(self._alike.get(_signature(wanted), []), key=distance):
            kernel = self._data.kernels[row.kernel]
            if self._unmet(kernel, env) is None and (self._allow_estimates or not row.estimated):
                why = f"tuned for {row.problem().key} on {table.name}: never measured for this problem on this device"
                return Choice("unmeasured", why, kernel, row, table)
        return None

    def explain(self, problem: Problem, choice: Choice) -> Explanation:
        """The words for ``choice``."""
        point = _worst(choice.row) if choice.row is not None and choice.how in ("exact", "range") else None
        kernel, table = choice.kernel, choice.table
        baseline = kernel is None
        return Explanation(
            problem=problem.key,
            device=self.device.split("|")[1] if self.device.count("|") >= 4 else self.device,
            how=choice.how,
            why=choice.why,
            kernel=None if kernel is None else kernel.sha,
            configuration=None if kernel is None else str(kernel.configuration),
            regime=None if table is None else table.regime,
            cache=None if table is None else table.cache,
            estimated=choice.row is not None and choice.row.estimated,
            us=None if point is None else point.us,
            us_low=None if point is None else point.us_low,
            us_high=None if point is None else point.us_high,
            ratio=1.0 if baseline else None if point is None else point.ratio,
            ratio_low=None if point is None else point.ratio_low,
            ratio_high=None if point is None else point.ratio_high,
            notes=choice.notes,
        )

    def _rows(self, problem: Problem) -> Iterator[tuple[Table, Row]]:
        """The device's own rows for ``problem``: exact sizes before ranges, equal leading dimensions before others."""
        wanted = row_of(problem, kernel=BASELINE, points=())
        fitting = [(t, r) for t, r in self._own.get(_signature(wanted), []) if r.serves(problem.axes)]
        # sorted() is stable: within one class the order of tables (regime, cache) stays
        yield from sorted(fitting, key=lambda entry: (not entry[1].exact, entry[1].pitches != wanted.pitches))

    def _unmet(self, kernel: Kernel, env: Mapping[str, int]) -> str | None:
        """Why ``kernel`` cannot serve a call with the bound names ``env``; None where it can.

        A launch is reused for all addresses that agree in their low 8 bits, so the answer must hold for all of them.
        """
        moved = {name: value + 256 if name.startswith("ptr_") else value for name, value in env.items()}
        try:
            workspace = int(expression(kernel.recipe.workspace)({**env, "sms": self._sms}))
            reason = kernel.recipe.unmet(env) or kernel.recipe.unmet(moved)
        except ExpressionError as error:
            return str(error)
        if workspace > self._workspace_limit:
            return f"it needs a workspace of {workspace} bytes, but the limit is {self._workspace_limit}"
        return reason

    def _lost(self, row: Row) -> str:
        if row.candidate is None or not row.points:
            return "the baseline was the fastest here"
        name = self._data.kernels[row.candidate].configuration
        point = _worst(row)
        if point is not None and (point.ratio or 0.0) > 1.0 and point.ratio_low is not None:
            span = f"{point.ratio_low:.3f} to {point.ratio_high:.3f}"
            return f"the win of the best kernel tried ({name}) lies within noise ({span}), so the baseline serves"
        return f"the best kernel tried ({name}) reached {row.ratio or 0.0:.3f} x the baseline, so the baseline serves"


def table_for(data: PackData, gpu: str | None) -> Table:
    """A table of the GPU called ``gpu`` (short or full name, or device key), or of the pack's only one.

    Raises:
        UnknownNameError: there is none, or no name is given and the pack has several.
    """
    tables = {t.device: t for t in data.tables if gpu is None or _is_named(t, gpu)}
    names = ", ".join(dict.fromkeys(t.name for t in data.tables)) or "no GPU"
    if not tables:
        raise UnknownNameError(f"The pack has no rows for the GPU {gpu!r}: it has rows for {names}.")
    if len(tables) > 1:
        raise UnknownNameError(f"The pack has rows for several GPUs ({names}): say which with gpu=.")
    return next(iter(tables.values()))


def _is_named(table: Table, gpu: str) -> bool:
    names = [table.name, table.name.removeprefix("NVIDIA "), *(g.short for g in TABLE.values() if g.name == table.name)]
    return gpu == table.device or is_called(gpu, *names)


def _signature(row: Row) -> _Signature:
    return row.kind, tuple(sorted(row.dtypes.items())), row.layout, row.epilogue


def _worst(row: Row) -> Point | None:
    return min(row.points, key=lambda p: p.ratio or 0.0, default=None)


def _measured(row: Row, table: Table) -> str:
    if row.estimated:
        return f"estimated for exactly this size on {table.name}"
    if row.exact:
        return f"measured at exactly this size on {table.name}"
    name, (low, high) = next((n, limits) for n, limits in row.axes.items() if limits[0] != limits[1])
    sizes = ", ".join(str(p.axes[name]) for p in row.points)
    return f"{name} lies in the range {low} to {high}, measured at {name} = {sizes} on {table.name}"
