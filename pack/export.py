"""The best of a history as a pack.

For every problem on every device, in every regime, the fastest kernel that was proved right is taken; where it lost
to the baseline the row says ``baseline`` and names it as the candidate. Estimates (from the emulator) are marked, and
serve only where nothing was measured. Cubins come from the kernel cache, or are compiled again from the stored source;
a cubin that comes out different from the measured one is left out, with the reason in the report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gemmtune import __version__
from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.kernel import CompiledKernel, KernelResources, KernelSource
from gemmtune.pack.format import PackData, bindings, check_launch, sha256, write_pack
from gemmtune.pack.ranges import RangeMeter, spans
from gemmtune.pack.schema import BASELINE, Kernel, Point, Row, Table, row_of
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import CompileError, GemmtuneError, PackError, ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem, problem_from_json
from gemmtune.space.recipe import LaunchRecipe

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
    """What was written, and what was left out and why (one sentence each)."""

    path: Path
    manifest_sha256: str
    kernels: int
    rows: tuple[ExportedRow, ...]
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f"{_counted(len(self.rows), 'row')}, {_counted(self.kernels, 'kernel')}"
        head = f"{self.path}: {size}, manifest {self.manifest_sha256[:12]}"
        return "\n".join([head, *(f"  {r}" for r in self.rows), *(f"  left out: {s}" for s in self.left_out)])


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
        observer: told in a few words what is being done, for a progress display.

    Raises:
        PackError: there is nothing to export, or the pack cannot be written there.
        DatabaseError, UnknownNameError, ToolchainError: from opening the history or the device.
    """
    target = Path(path)
    with _Opened(history, device) as opened:
        export = _Export(opened.history, opened.device, cache or KernelCache(), observer or (lambda _: None))
        for record in _choose(opened.history.best_kernels(gpu), allow_estimates):
            export.add(record)
        export.widen()
        data = export.data()
        if not any(t.rows for t in data.tables):
            reasons = "".join(f" {s}" for s in export.left_out[:3])
            of = f" for the GPU {gpu!r}" if gpu else ""
            raise PackError(f"The history has no kernel{of} to export: tune one first with 'gemmtune tune'.{reasons}")
        digest = write_pack(target, data, as_zip=target.suffix == ".zip" if as_zip is None else as_zip)
        opened.history.record_export(target.name, digest, sorted(data.cubins.items()))
    return ExportReport(target, digest, len(data.kernels), tuple(_rows(data)), tuple(export.left_out))


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


@dataclass
class _Export:
    """The pack as it grows."""

    history: History
    device: Device | None
    cache: KernelCache
    say: Callable[[str], None]
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
            kernel = _kernel(compiled, problem)
            check_launch(kernel, problem, record.gpu.key)
            if kernel.recipe != self.kernels.setdefault(kernel.sha, kernel).recipe:
                raise PackError(f"another problem launches the same cubin {kernel.sha[:12]} in another way.")
        except GemmtuneError as error:
            self.left_out.append(f"{record.problem_key} on {record.gpu.name}: {error}")
            return
        self.compiled[kernel.sha] = compiled
        won = timing.estimated or (timing.ratio is not None and timing.ratio >= 1.0)
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
        device = self.device
        if device is None or device.estimates:
            return
        meter = RangeMeter(device)
        groups: dict[tuple[str, ...], list[_Candidate]] = defaultdict(list)
        for one in self.candidates:
            record = one.record
            if record.gpu.key == device.gpu.key and record.kind == device.kind and "m" in one.problem.axes:
                groups[record.regime, record.cache, one.problem.with_axes(m=1).key].append(one)
        for group in groups.values():
            offered = spans([one.problem.axes["m"] for one in group])
            for one in group:
                if not one.won or "m" in one.kernel.recipe.constants:
                    continue
                record, span = one.record, offered[one.problem.axes["m"]]
                self.say(f"{record.problem_key}: measuring m = {span[0]} to {span[1]}")
                regime, state = cast("Regime", record.regime), cast("Cache", record.cache)
                points = meter.claim(one.kernel, one.problem, span, regime, state)
                if points:
                    self._add_range(device, one, points)

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


def rebuild(record: TrialRecord, cache: KernelCache, exported: bytes | None = None) -> CompiledKernel:
    """The kernel of a recorded trial, with its cubin: from the cache, an earlier export, or its stored source.

    Raises:
        CompileError: the cubin that comes out is not the one that was measured.
        ToolchainError: it must be compiled, and there is no NVRTC for it.
        PackError: the history has no source or recipe of it.
    """
    from gemmtune.codegen.nvrtc import compile_kernel, compile_options

    if not record.source or record.recipe is None:
        raise PackError(f"the history holds neither source nor recipe of trial {record.number}: tune it again.")
    recipe = LaunchRecipe.from_json(record.recipe)
    source = KernelSource(
        Configuration.parse(record.configuration), recipe.entry, record.source, record.template_hash, recipe
    )
    resources = KernelResources(
        record.registers or 0, record.spill_bytes or 0, record.stack_bytes or 0, record.shared_bytes or 0
    )
    found = cache.get(source, compile_options(record.arch), record.nvrtc)
    for cubin, log in ((found.cubin, found.log) if found else (b"", ""), (exported or b"", "")):
        if cubin and sha256(cubin) == record.cubin_sha256:
            return CompiledKernel(source, record.arch, cubin, resources, record.nvrtc, log, 0.0, cached=True)
    compiled = compile_kernel(source, record.arch, cache)
    # An estimate speaks of the source, so any cubin of it will do; a measurement speaks of one cubin alone.
    if not record.estimated and compiled.cubin_sha256 != record.cubin_sha256:
        raise CompileError(
            f"the measured cubin is no longer in the kernel cache, and NVRTC {compiled.nvrtc} makes another from its "
            f"source (measured: {record.nvrtc}): install NVRTC {record.nvrtc}, or tune again."
        )
    return compiled


def _kernel(compiled: CompiledKernel, problem: Problem) -> Kernel:
    if not compiled.cubin:
        raise ToolchainError("there is no cubin of it, since NVRTC was missing: install NVRTC and export again.")
    resources = compiled.resources
    return Kernel(
        sha=compiled.cubin_sha256,
        recipe=compiled.recipe,
        configuration=compiled.configuration,
        problem=problem,
        arch=compiled.arch,
        nvrtc=compiled.nvrtc,
        template_hash=compiled.source.template_hash,
        registers=resources.registers if resources else 0,
        spill_bytes=resources.spill_bytes if resources else 0,
    )


def alignment(kernel: Kernel, problem: Problem) -> dict[str, int]:
    """What ``kernel`` needs of each tensor's address, in bytes: the smallest power of two that its recipe accepts."""
    env = bindings(problem)
    out: dict[str, int] = {}
    for tensor in problem.tensors():
        name = f"ptr_{tensor.name}"
        fits = (p for p in (1 << i for i in range(9)) if kernel.recipe.unmet({**env, name: p}) is None)
        out[tensor.name] = next(fits, 512)
    return out


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
                self.device = open_device(device)
                self._close.append(self.device.close)
            else:
                self.device = device
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._close:
            self._close.pop()()
