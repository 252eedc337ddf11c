"""Check a pack: every hash again, then every kernel run and verified; on a GPU also timed anew against the baseline.

Emulating a kernel compiles its source to native code and runs it on this machine, so a pack's source is emulated only
where it is, letter for letter, what this gemmtune renders from the kernel's configuration, or where the caller trusts
the pack. Running cubins on a GPU carries no such danger for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from gemmtune.device.base import Job, Limits, Outcome, Report
from gemmtune.pack.format import PackData, read_pack
from gemmtune.pack.rebuild import unpacked
from gemmtune.pack.schema import BASELINE, Kernel, Point, Row, Table
from gemmtune.space.errors import CompileError, GemmtuneError, ToolchainError, UnsupportedError
from gemmtune.space.gpu import TABLE

if TYPE_CHECKING:
    from gemmtune.device.base import Cache, Device, Regime

DRIFT = 0.05
"""A ratio that differs by more than this part from the recorded one is reported as drifted."""

Verdict = Literal["correct", "wrong", "failed", "not run"]
Missed = Literal["", "source", "device", "gpu"]
"""Why a kernel was not run: its source is foreign, nothing was there to run it on, or it is of another GPU."""


@dataclass(frozen=True)
class CheckedKernel:
    """What became of one kernel.

    ``source`` says how far the source can be believed: ``own`` (what this gemmtune renders), ``trusted``, or
    ``foreign``. ``cubin`` says whether NVRTC makes this very cubin from the source: ``reproduced``, ``differs``, or
    ``unknown`` where that was not tried: NVRTC missing or of another version, or a foreign source. ``ratio`` is
    measured now and ``recorded`` by the pack on a device of this very key (else None), ``drift`` the one over the
    other minus 1. ``missed`` says in a word why a kernel was not run, ``detail`` in a sentence.
    """

    sha: str
    problem: str
    configuration: str
    verdict: Verdict
    detail: str
    source: str
    cubin: str
    rel_error: float | None = None
    error_bound: float | None = None
    ratio: float | None = None
    recorded: float | None = None
    missed: Missed = ""

    @property
    def drift(self) -> float | None:
        """How far the ratio to the baseline has moved since it was recorded: +0.1 is 10 % better."""
        return None if self.ratio is None or not self.recorded else self.ratio / self.recorded - 1

    @property
    def ok(self) -> bool:
        """Whether nothing is known against it."""
        return self.verdict in ("correct", "not run") and self.cubin != "differs"

    def __str__(self) -> str:
        parts = [f"{self.sha[:12]} {self.problem} ({self.configuration}): {self.verdict}"]
        if self.rel_error is not None and self.error_bound is not None:
            parts.append(f"error {self.rel_error:.2e} of {self.error_bound:.2e} allowed")
        if self.drift is not None:
            word = "drifted" if abs(self.drift) > DRIFT else "as recorded"
            parts.append(f"{self.ratio:.3f} x the baseline, recorded {self.recorded:.3f} ({self.drift:+.1%}, {word})")
        elif self.ratio is not None:
            parts.append(f"{self.ratio:.3f} x the baseline")
        parts.append(f"source {self.source}, cubin {self.cubin}")
        return "; ".join([*parts, *([self.detail] if self.detail else [])])


@dataclass(frozen=True)
class CheckReport:
    """The checked pack: its files are whole (else reading it would have failed), and each kernel's verdict."""

    path: Path
    tool: str
    files: int
    device: str
    kernels: tuple[CheckedKernel, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether no kernel is wrong, failed, or not what its source says, and all that could be verified here were.

        Kernels of another GPU could not; but a check that ran nothing at all proved nothing.
        """
        ran = not self.kernels or any(k.verdict != "not run" for k in self.kernels)
        return ran and all(k.ok and k.missed in ("", "gpu") for k in self.kernels)

    def __str__(self) -> str:
        return self.text()

    def text(self, trust: str = "trust=True") -> str:
        """The report for people, a line a kernel and a last one that sums up; ``trust`` is what the caller may add."""
        head = f"{self.path}: {self.files} files, every hash right; written by gemmtune {self.tool}"
        lines = [head, *(f"  {k}" for k in self.kernels), *(f"  note: {n}" for n in self.notes)]
        return "\n".join([*lines, f"  {self._summary(trust)}"])

    def _summary(self, trust: str) -> str:
        """How many of how many were verified, and why the others were not."""
        if not self.kernels:
            return "no kernels"
        ran = [k.verdict for k in self.kernels if k.verdict != "not run"]
        kinds: tuple[Verdict, ...] = ("correct", "wrong", "failed")
        counts = ", ".join(f"{ran.count(v)} {v}" for v in kinds if v in ran)
        said = f"{len(ran)} of {len(self.kernels)} kernel{'' if len(self.kernels) == 1 else 's'} verified"
        reasons = {
            "source": f"whose source is not what this gemmtune renders ({trust} emulates it all the same)",
            "device": "which nothing here can run",
            "gpu": "compiled for another GPU",
        }
        missed = [k.missed for k in self.kernels]
        why = "; ".join(f"{missed.count(m)} {words}" for m, words in reasons.items() if m in missed)
        return f"{said}{f': {counts}' if counts else ''}.{f' Not verified: {why}.' if why else ''}"


def check_pack(
    path: str | Path,
    device: Device | str | None = None,
    trust: bool = False,
    *,
    observer: Callable[[str], None] | None = None,
) -> CheckReport:
    """Check a pack.

    Args:
        path: the pack.
        device: where to run its kernels; by default the first GPU, else the emulator of each kernel's own GPU.
        trust: also emulate sources that this gemmtune would not render; they become native code on this machine.
        observer: told which kernel is being checked, for a progress display.

    Raises:
        PackError: the pack is truncated, altered, hostile or of a newer schema.
        UnknownNameError, ToolchainError: the named device cannot be opened.
        UnsupportedError: the device is a record, which runs no kernel.
    """
    data = read_pack(path)
    say = observer or (lambda _: None)
    with _Devices(device) as devices:
        kernels: list[CheckedKernel] = []
        for sha, (table, row) in _kernels(data).items():
            kernel = data.kernels[sha]
            say(f"{kernel.problem.key} ({sha[:12]})")
            kernels.append(_Check(data, kernel, table, row, devices, trust).run())
        where = devices.name
    files = 2 + 3 * len(data.kernels)
    return CheckReport(Path(path), data.tool, files, where, tuple(kernels))


def _kernels(data: PackData) -> dict[str, tuple[Table, Row]]:
    """Every kernel with one of its rows, an exact one where it has one."""
    out: dict[str, tuple[Table, Row]] = {}
    for table in data.tables:
        for row in table.rows:
            sha = row.candidate or row.kernel
            if sha != BASELINE and (sha not in out or (row.exact and not out[sha][1].exact)):
                out[sha] = (table, row)
    return out


@dataclass(frozen=True)
class _Run:
    """How running a kernel ended: ``where`` is the key of the GPU, "" where there is no device."""

    where: str
    verdict: Verdict
    detail: str
    report: Report | None = None
    missed: Missed = ""


class _Check:
    """The check of one kernel."""

    def __init__(self, data: PackData, kernel: Kernel, table: Table, row: Row, devices: _Devices, trust: bool) -> None:
        self._data = data
        self._kernel = kernel
        self._table = table
        self._row = row
        self._devices = devices
        self._trust = trust

    def run(self) -> CheckedKernel:
        kernel = self._kernel
        text = self._data.sources[kernel.sha]
        foreign = self._foreign(text)
        source = "own" if foreign is None else "trusted" if self._trust else "foreign"
        # a foreign source is not compiled either: a compiler can be made to run for ever
        cubin = "unknown" if source == "foreign" else self._reproduced()
        run = self._run(foreign)
        verification = None if run.report is None else run.report.verification
        measurement = None if run.report is None else run.report.measurement
        point = self._point()
        return CheckedKernel(
            sha=kernel.sha,
            problem=self._row.problem(point.axes if point else None).key,
            configuration=str(kernel.configuration),
            verdict=run.verdict,
            detail=run.detail,
            source=source,
            cubin=cubin,
            rel_error=verification.rel_error if verification else None,
            error_bound=verification.error_bound if verification else None,
            ratio=measurement.ratio if measurement and not measurement.estimated else None,
            recorded=point.ratio if point and run.where == self._table.device else None,
            missed=run.missed,
        )

    def _point(self) -> Point | None:
        """The recorded point to run at: the first of the row."""
        return self._row.points[0] if self._row.points else None

    def _foreign(self, text: str) -> str | None:
        """Why the source is not what this gemmtune renders; None where it is."""
        from gemmtune.codegen.render import render

        kernel = self._kernel
        try:
            local = render(kernel.problem, kernel.configuration)
        except (GemmtuneError, KeyError, TypeError, ValueError) as error:
            return f"this gemmtune cannot render its configuration ({error})"
        if local.text != text:
            return "its source is not what this gemmtune renders from its configuration"
        if local.recipe != kernel.recipe:
            return "its launch recipe is not what this gemmtune plans for its configuration"
        return None

    def _reproduced(self) -> str:
        """Whether NVRTC makes the pack's cubin from the pack's source: cubins are deterministic."""
        from gemmtune.codegen.nvrtc import compile_kernel, nvrtc_version

        try:
            if nvrtc_version() != self._kernel.nvrtc:
                return "unknown"
            made = compile_kernel(unpacked(self._data, self._kernel).source, self._kernel.arch)
        except ToolchainError:
            return "unknown"
        except CompileError:
            return "differs"
        return "reproduced" if made.cubin_sha256 == self._kernel.sha else "differs"

    def _run(self, foreign: str | None) -> _Run:
        kernel, table = self._kernel, self._table
        try:
            device = self._devices.for_table(table)
        except ToolchainError as error:
            return _Run("", "not run", str(error), missed="device")
        except UnsupportedError as error:
            return _Run("", "not run", str(error), missed="gpu")
        key = device.gpu.key
        if device.gpu.arch != kernel.arch:
            other = f"it is compiled for {kernel.arch}, but {device.name} is {device.gpu.arch}."
            return _Run(key, "not run", other, missed="gpu")
        if device.kind == "emulator" and foreign is not None and not self._trust:
            return _Run(key, "not run", f"{foreign}.", missed="source")
        point = self._point()
        job = Job(
            problem=self._row.problem(point.axes if point else None),
            kernel=unpacked(self._data, kernel),
            seed=0,
            regime=cast("Regime", table.regime),
            cache=cast("Cache", table.cache),
            measure=not device.estimates,
            effort="final",
        )
        report = device.run(job, Limits())
        if report.outcome is Outcome.CORRECT:
            return _Run(key, "correct", "", report)
        wrong = report.outcome in (Outcome.WRONG, Outcome.UNSTABLE)
        return _Run(key, "wrong" if wrong else "failed", f"{report.outcome}: {report.detail}", report)


class _Devices:
    """The device to run on: the caller's, the GPU of this machine, or the emulator of each kernel's own GPU."""

    def __init__(self, given: Device | str | None) -> None:
        self._given = given
        self._opened: dict[str, Device] = {}

    def __enter__(self) -> _Devices:
        from gemmtune.device import open_device

        if isinstance(self._given, str):
            self._opened[self._given] = open_device(self._given, running=True)
        elif self._given is None:
            try:
                self._opened["cuda:0"] = open_device("cuda:0")
            except ToolchainError:
                pass
            else:
                self._given = "cuda:0"
        return self

    def __exit__(self, *_: object) -> None:
        for device in self._opened.values():
            device.close()

    @property
    def name(self) -> str:
        """What ran, for the report."""
        if self._given is not None and not isinstance(self._given, str):
            return self._given.name
        return ", ".join(d.name for d in self._opened.values()) or "nothing"

    def for_table(self, table: Table) -> Device:
        """Where a kernel of ``table`` runs.

        Raises:
            ToolchainError: the emulator lacks a compiler.
            UnsupportedError: it does not know the GPU.
        """
        if isinstance(self._given, str):
            return self._opened[self._given]
        if self._given is not None:
            return self._given
        from gemmtune.device import open_device

        short = next((g.short for g in TABLE.values() if g.key == table.device or g.name == table.name), None)
        short = short or next((g.short for g in TABLE.values() if g.arch == table.arch), None)
        if short is None:
            raise UnsupportedError(f"no emulated GPU is like {table.name} ({table.arch}).")
        if short not in self._opened:
            self._opened[short] = open_device(f"emulator:{short}")
        return self._opened[short]
