"""The best of a history as a pack.

For every problem on every device, in every regime, the fastest kernel that was proved right is taken; where it lost
to the baseline, or won by no more than the noise, the row says ``baseline`` and names it as the candidate. Estimates
(from the emulator) are marked, and serve only where nothing was measured. Cubins come from the kernel cache, or are
compiled again from the stored source; a cubin that comes out different from the measured one is left out, with the
reason in the report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gemmtune import __version__
from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.pack.format import MANIFEST, PackData, check_launch, pack_files, sha256, write_packed
from gemmtune.pack.ranges import Offer, RangeMeter, beats_baseline, claims
from gemmtune.pack.rebuild import alignment, pack_kernel, rebuild
from gemmtune.pack.regret import HeldOut, Tuned, leave_one_out, summary
from gemmtune.pack.schema import BASELINE, Kernel, Point, Row, Table, row_of
from gemmtune.space.errors import GemmtuneError, PackError, UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem, problem_from_json

if TYPE_CHECKING:
    from gemmtune.db import History
    from gemmtune.db.records import TrialRecord
    from gemmtune.device.base import Cache, Device, Regime

_TableKey = tuple[str, str, str, str, str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class ExportedRow:
    """One row of the new pack, for people: ``ratio`` None for an estimate."""

    problem: str
    gpu: str
    regime: str
    kernel: str
    configuration: str
    us: float
    ratio: float | None
    estimated: bool

    def __str__(self) -> str:
        what = "estimated" if self.estimated else f"{self.ratio:.3f} x the baseline" if self.ratio else "measured"
        who = "baseline" if self.kernel == BASELINE else self.kernel[:12]
        return f"{self.problem} on {self.gpu} ({self.regime}): {who} {self.us:.1f} us, {what} ({self.configuration})"


@dataclass(frozen=True)
class ExportReport:
    """What was written, what was left out and why (one sentence each), and how the look-up fares at sizes held out."""

    path: Path
    manifest_sha256: str
    kernels: int
    rows: tuple[ExportedRow, ...]
    left_out: tuple[str, ...] = ()
    export_id: str = ""
    held_out: tuple[HeldOut, ...] = ()

    def __str__(self) -> str:
        size = f"{_counted(len(self.rows), 'row')}, {_counted(self.kernels, 'kernel')}"
        known = f", export {self.export_id[:8]}" if self.export_id else ""
        head = f"{self.path}: {size}, manifest {self.manifest_sha256[:12]}{known}"
        tail = [f"  left out: {s}" for s in self.left_out]
        tail += [f"  {summary(self.held_out)}"] if self.held_out else []
        return "\n".join([head, *(f"  {r}" for r in self.rows), *tail])


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def export_pack(
    path: str | Path,
    history: History | str | Path | None = None,
    gpu: str | None = None,
    *,
    device: Device | str | None = None,
    allow_estimates: bool = True,
    as_zip: bool | None = None,
    cache: KernelCache | None = None,
    hold_out: bool = True,
    observer: Callable[[str], None] | None = None,
) -> ExportReport:
    """Write the best kernels of ``history`` as a pack.

    Args:
        path: ``name.kpack`` for a directory, or a name ending in ``.zip`` for one file. An older pack is replaced.
        history: a history, its URL or path; by default the user's.
        gpu: only kernels for this GPU (short or full name); by default for all.
        device: a real GPU on which to measure how far each kernel serves beyond its size; without one, every row
            serves one size. Kernels for other GPUs than this are exported as they are.
        allow_estimates: whether kernels that were only estimated go in (marked).
        as_zip: one zip file; by default where ``path`` ends in ``.zip``.
        cache: where compiled kernels lie; by default the user's.
        hold_out: with a device, whether to measure how the look-up fares at each tuned size when it is left out.
        observer: told in a few words what is being done, for a progress display.

    Raises:
        PackError: there is nothing to export, or the pack cannot be written there.
        UnsupportedError: the named device measures nothing.
        DatabaseError, UnknownNameError, ToolchainError: from opening the history or the device.
    """
    target = Path(path)
    with _Opened(history, device) as opened:
        export = _Export(opened.history, opened.device, cache or KernelCache(), observer or (lambda _: None))
        best = opened.history.best_kernels(gpu)
        for record in _choose(best, allow_estimates):
            export.add(record)
        held_out = export.hold_out() if hold_out else ()
        export.widen()  # after that, so as to know of every loss it met
        export.drop_wrong()
        data = export.data()
        if not any(t.rows for t in data.tables):
            reasons = "".join(f" {s}" for s in export.left_out[:3])
            of = f" for the GPU {gpu!r}" if gpu else ""
            if not export.left_out and (estimates := _choose(best, allow_estimates=True)):
                raise PackError(
                    f"What the history has to export{of} is estimated ({_counted(len(estimates), 'kernel')}), and "
                    f"estimates were to stay out: tune on a GPU, or let them go in, marked."
                )
            raise PackError(f"The history has no kernel{of} to export: tune one first with 'gemmtune tune'.{reasons}")
        files = pack_files(data)
        write_packed(target, files, as_zip=target.suffix == ".zip" if as_zip is None else as_zip)
        digest = sha256(files[MANIFEST])
        kept = sorted({sha256(raw): raw for raw in files.values()}.items())
        known = opened.history.record_export(target.name, digest, kept)
    rows, left_out = tuple(_rows(data)), tuple(export.left_out)
    return ExportReport(target, digest, len(data.kernels), rows, left_out, known, held_out)


def _choose(records: Iterable[TrialRecord], allow_estimates: bool) -> list[TrialRecord]:
    """One record for each device key, regime, cache and problem: what was measured displaces an estimate."""
    best: dict[tuple[str, str, str, str], TrialRecord] = {}
    for record in records:
        if record.timing is None or record.kind == "replay" or (record.timing.estimated and not allow_estimates):
            continue
        key = (record.gpu.key, record.regime, record.cache, record.problem_key)
        if key not in best or best[key].estimated:
            best[key] = record
    return [best[key] for key in sorted(best)]


@dataclass
class _Candidate:
    """A kernel with the problem and circumstances it was the best in."""

    record: TrialRecord
    problem: Problem
    kernel: CompiledKernel
    won: bool

    @property
    def regime(self) -> Regime:
        return cast("Regime", self.record.regime)

    @property
    def state(self) -> Cache:
        return cast("Cache", self.record.cache)

    @property
    def record_ratio(self) -> float:
        """The tuned kernel's ratio where it won beyond the noise, else the baseline's own."""
        timing = self.record.timing
        return timing.ratio if self.won and timing is not None and timing.ratio is not None else 1.0


@dataclass
class _Export:
    """The pack as it grows."""

    history: History
    device: Device | None
    cache: KernelCache
    say: Callable[[str], None]
    meter: RangeMeter | None = None
    left_out: list[str] = field(default_factory=list)
    candidates: list[_Candidate] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    compiled: dict[str, CompiledKernel] = field(default_factory=dict)
    rows: dict[_TableKey, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def add(self, record: TrialRecord) -> None:
        """Take the best kernel of one problem in, or note why not."""
        timing = record.timing
        assert timing is not None  # noqa: S101 - _choose saw to it
        self.say(f"{record.problem_key} on {record.gpu.name}")
        try:
            problem = problem_from_json(record.problem_json)
            if not isinstance(problem, Gemm):
                raise PackError(f"a pack serves GEMMs, and this is a {problem.kind}.")
            compiled = rebuild(record, self.cache, self.history.cubin(record.cubin_sha256))
            kernel = pack_kernel(compiled, problem)
            check_launch(kernel, problem, record.gpu.key)
            if kernel.recipe != self.kernels.setdefault(kernel.sha, kernel).recipe:
                raise PackError(f"another problem launches the same cubin {kernel.sha[:12]} in another way.")
        except GemmtuneError as error:
            self.left_out.append(f"{record.problem_key} on {record.gpu.name}: {error}")
            return
        self.compiled[kernel.sha] = compiled
        won = timing.estimated or beats_baseline(timing.ratio, timing.ratio_low)
        point = Point(
            dict(problem.axes), timing.us, timing.us_low, timing.us_high,
            timing.baseline_us, timing.ratio, timing.ratio_low, timing.ratio_high,
        )  # fmt: skip
        row = row_of(
            problem,
            kernel=kernel.sha if won else BASELINE,
            candidate=None if won else kernel.sha,
            estimated=timing.estimated,
            alignment=alignment(kernel, problem),
            points=(point,),
        )
        self.rows[_table_key(record.gpu, kernel.arch, record.regime, record.cache, record.environment)].append(row)
        self.candidates.append(_Candidate(record, problem, compiled, won))

    def widen(self) -> None:
        """Measure how far every measured winner of this GPU serves, and add the ranges that hold."""
        for meter, device, group in self._groups():
            first, by_size = group[0], {one.problem.axes["m"]: one for one in group}
            offers: dict[int, Offer] = {
                size: (one.kernel, one.problem)
                for size, one in by_size.items()
                if one.won and "m" not in one.kernel.recipe.constants
            }
            found = claims(meter, list(by_size), offers, first.regime, first.state, self._tell)
            for size, points in found.items():
                self._add_range(device, by_size[size], points)

    def _tell(self, problem: Problem, span: tuple[int, int]) -> None:
        self.say(f"{problem.key}: measuring m = {span[0]} to {span[1]}")

    def hold_out(self) -> tuple[HeldOut, ...]:
        """What the look-up would answer at each tuned size, had it not been tuned."""
        found: list[HeldOut] = []
        for meter, _, group in self._groups():
            first = group[0]
            tuned = [Tuned(c.problem, c.kernel if c.won else None, c.record_ratio) for c in group]
            found += leave_one_out(meter, tuned, first.regime, first.state, lambda p: self.say(f"{p.key}: held out"))
        return tuple(found)

    def drop_wrong(self) -> None:
        """Take back the ranges of kernels that were wrong at any size, whenever that came out."""
        wrong = self.meter.wrong if self.meter else {}
        for rows in self.rows.values():
            rows[:] = [row for row in rows if row.exact or row.kernel not in wrong]
        self.left_out += [f"kernel {sha[:12]} is wrong for {key}: it serves no range." for sha, key in wrong.items()]

    def _groups(self) -> Iterator[tuple[RangeMeter, Device, list[_Candidate]]]:
        """What was measured on this kind of GPU: problems that differ in m alone, with what measures them."""
        device = self.device
        if device is None or device.estimates:
            return
        self.meter = self.meter or RangeMeter(device)
        groups: dict[tuple[str, ...], list[_Candidate]] = defaultdict(list)
        for one in self.candidates:
            record = one.record
            if record.gpu.key == device.gpu.key and record.kind == device.kind and "m" in one.problem.axes:
                groups[record.regime, record.cache, one.problem.with_axes(m=1).key].append(one)
        for group in groups.values():
            yield self.meter, device, group

    def _add_range(self, device: Device, one: _Candidate, points: tuple[Point, ...]) -> None:
        kernel = self.kernels[one.kernel.cubin_sha256]
        axes = {name: (size, size) for name, size in one.problem.axes.items()}
        row = row_of(
            one.problem,
            axes={**axes, "m": (points[0].axes["m"], points[-1].axes["m"])},
            kernel=kernel.sha,
            alignment=alignment(kernel, one.problem),
            points=points,
        )
        try:
            for size in row.axes["m"]:
                check_launch(kernel, row.problem({**one.problem.axes, "m": size}), one.record.gpu.key)
        except PackError:  # a precondition on m: the kernel serves its own size
            return
        record, environment = one.record, device.environment()
        self.rows[_table_key(record.gpu, kernel.arch, record.regime, record.cache, environment)].append(row)

    def data(self) -> PackData:
        """The finished pack."""
        tables = tuple(
            Table(device, name, arch, regime, cache, dict(environment), tuple(rows))
            for (device, name, arch, regime, cache, environment), rows in sorted(self.rows.items())
        )
        return PackData(
            tables=tables,
            kernels=self.kernels,
            cubins={sha: c.cubin for sha, c in self.compiled.items()},
            sources={sha: c.source.text for sha, c in self.compiled.items()},
            tool=__version__,
        )


def _table_key(gpu: Gpu, arch: str, regime: str, cache: str, environment: object) -> _TableKey:
    versions = tuple(sorted((str(k), str(v)) for k, v in dict(cast("dict[str, str]", environment)).items()))
    return gpu.key, gpu.name, arch, regime, cache, versions


def _rows(data: PackData) -> Iterable[ExportedRow]:
    for table in data.tables:
        for row in table.rows:
            kernel = data.kernels[row.candidate or row.kernel]
            point = min(row.points, key=lambda p: p.ratio or 0.0)
            ranges = "".join(f" {n}={low}-{high}" for n, (low, high) in row.axes.items() if low != high)
            yield ExportedRow(
                problem=f"{row.problem().key}{ranges}",
                gpu=table.name,
                regime=table.regime,
                kernel=row.kernel,
                configuration=str(kernel.configuration),
                us=point.us,
                ratio=point.ratio,
                estimated=row.estimated,
            )


class _Opened:
    """The history and device, opened here where the caller named them, and closed again."""

    def __init__(self, history: History | str | Path | None, device: Device | str | None) -> None:
        self._given = history, device
        self._close: list[Callable[[], object]] = []
        self.device: Device | None = None

    def __enter__(self) -> _Opened:
        from gemmtune.db import History
        from gemmtune.device import open_device

        history, device = self._given
        try:
            if isinstance(history, History):
                self.history = history
            else:
                self.history = History(history, create=False)
                self._close.append(self.history.close)
            if isinstance(device, str):
                self.device = open_device(device, running=True)
                self._close.append(self.device.close)
                if self.device.estimates:
                    raise UnsupportedError(
                        f"{device} estimates, and how far a kernel serves is measured: name a GPU (cuda:0), or leave "
                        f"the device out."
                    )
            else:
                self.device = device
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._close:
            self._close.pop()()
