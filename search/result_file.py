"""Writing result files: rows of a benchmark with where, when and how they were measured."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gemmtune.codegen.nvrtc import nvrtc_version
from gemmtune.device.base import Device
from gemmtune.device.cuda.timing import PIECES, SETTLE, SPAN
from gemmtune.search.results import BenchRow, ResultFile, result_file_there, save, summarise
from gemmtune.search.study import opened
from gemmtune.space.errors import ProblemError
from gemmtune.space.gemm import Gemm

PROTOCOL = (
    "Medians of interleaved CUDA-graph replays over random data, {cache} cache, {regime} clocks; ours, {peers} in one "
    "run; at the power cap each runs alone, {visit:g} s at a time after {settle:g} s untimed, so that its own power "
    "sets its clock (a kernel over four times slower than the baseline is timed apart); every kernel proved against "
    "float64 first, and every result compared with float64 from the CPU at sampled rows and columns and all edges."
)
ESTIMATED_PROTOCOL = (
    "ESTIMATES, not measurements: a cost model for {gpu} fed with the compiler's registers and an emulator's counters; "
    "every kernel proved against float64 on chosen tiles."
)


def write_result_file(
    path: str | Path,
    rows: Sequence[BenchRow],
    *,
    name: str = "",
    device: Device | str | None = None,
    notes: Sequence[str] = (),
) -> ResultFile:
    """Write ``rows`` as a result file; the directory is made where it is missing.

    ``ceilings`` gets the most that any kernel of these rows reached: TFLOP/s by dtype, and TB/s over the fewest bytes.

    Args:
        path: of the file.
        rows: what :func:`benchmark` returned.
        name: of the result; by default the file's.
        device: where the rows were timed, for its GPU and versions.
        notes: sentences for the summary: what was not as asked for.

    Raises:
        ProblemError: there are no rows, or the file cannot be written.
    """
    summary = summarise(rows)
    with ExitStack() as stack:
        where = opened(device, stack)
        blank = blank_result(name or Path(path).stem, where, ESTIMATED_PROTOCOL if summary.estimated else PROTOCOL)
    protocol = blank.protocol.format(
        gpu=blank.gpu,
        regime=" and ".join(dict.fromkeys(row.regime for row in rows)),
        cache=" and ".join(dict.fromkeys(row.cache for row in rows)),
        peers=", ".join(dict.fromkeys(peer for row in rows for peer in row.peers)),
        settle=SETTLE,
        visit=round(PIECES * SPAN, 1),
    )
    data = {**summary.to_json(), **({"notes": list(notes)} if notes else {})}
    result = replace(blank, protocol=protocol, ceilings=_ceilings(rows), rows=tuple(rows), summary=data)
    save(path, result)
    return result


def earlier_file(path: str | Path, device: Device) -> ResultFile | None:
    """A file as it is so far, whose rows others may join or replace; None where it does not exist.

    Raises:
        ProblemError: it is no result file or holds no table of times, or is of another GPU or driver, or of estimates
            where these are measurements: such times never meet in one file, and none is lost to another's.
    """
    found = result_file_there(path)
    if found is None:
        return None
    if not found.rows:
        raise ProblemError(
            f"The result file {str(path)!r} ({found.name}) holds no table of times, which would take its place: write "
            f"to another file."
        )
    driver = device.environment().get("driver", "")
    there, here = _origin(found.gpu, found.driver, found.estimated), _origin(device.gpu.name, driver, device.estimates)
    if there != here:
        raise ProblemError(f"The result file {str(path)!r} is of {there}, but this is {here}: write to another file.")
    return found


def _origin(gpu: str, driver: str, estimated: bool) -> str:
    return f"{gpu}, driver {driver or 'unknown'}, {'estimates' if estimated else 'measurements'}"


def lacking(
    found: ResultFile, problems: Sequence[Gemm], regime: str, cache: str, programmatic: bool | None
) -> list[Gemm]:
    """Those of ``problems`` of which a file has no row timed in this way (``programmatic``: None for either)."""
    there = {
        row.problem.key
        for row in found.rows
        if (row.regime, row.cache) == (regime, cache) and programmatic in (None, row.programmatic)
    }
    return [problem for problem in problems if problem.key not in there]


def completed(
    found: ResultFile, rows: Sequence[BenchRow], problems: Sequence[Gemm]
) -> tuple[list[BenchRow], list[str]]:
    """A file's rows and ``rows`` that it lacked, those of each kind in the order of ``problems``; and its notes, with
    one that tells which rows are of which run.
    """
    everything = [*found.rows, *rows]
    kinds = list(dict.fromkeys(_kind(row) for row in everything))
    place = {problem.key: number for number, problem in enumerate(problems)}
    everything.sort(key=lambda row: (kinds.index(_kind(row)), place.get(row.problem.key, len(place))))
    added = ", ".join(row.problem.key for row in rows)
    told = [re.compile(re.escape(row.problem.key) + r"(?! \w+=)") for row in rows]  # not the same with an epilogue, say
    earlier = [note for note in found.summary.get("notes", ()) if not any(one.search(note) for one in told)]
    return everything, [*earlier, f"Not in one run with the rows of {found.date[:16]}: {added}."]


def joined(earlier: Sequence[BenchRow], rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Earlier rows of another kind (types, layout, epilogue) or timed in another way than all ``rows``, then these."""
    kinds = {_kind(row) for row in rows}
    return [row for row in earlier if _kind(row) not in kinds] + list(rows)


def _kind(row: BenchRow) -> tuple[str | bool, ...]:
    return (
        row.dtype, row.out_dtype, row.layout, row.epilogue, row.scaling, row.regime, row.cache, row.programmatic,
    )  # fmt: skip


def blank_result(name: str, device: Device, protocol: str, summary: Mapping[str, object] | None = None) -> ResultFile:
    """A result file with no GEMM rows as yet: where it comes from, now, and what its ``summary`` says."""
    versions = {"nvrtc": nvrtc_version(), **device.environment()}
    return blank_of(name, device.gpu.name, versions, protocol, summary)


def blank_of(
    name: str,
    gpu: str,
    environment: Mapping[str, str],
    protocol: str,
    summary: Mapping[str, object] | None = None,
) -> ResultFile:
    """The same of a GPU (by name, "" for none) and an environment that were recorded."""
    versions = dict(environment)
    return ResultFile(
        name=name,
        gpu=gpu,
        driver=versions.pop("driver", ""),
        cuda=versions.get("cuda_runtime", ""),
        versions=versions,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=source_commit(),
        protocol=protocol,
        ceilings={},
        rows=(),
        summary=summary or {},
    )


def _ceilings(rows: Sequence[BenchRow]) -> Mapping[str, float]:
    best: dict[str, float] = {}
    for row in rows:
        quickest = min(row.us, *row.peers.values()) if row.peers else row.us
        flops, bandwidth = f"{row.dtype}_tflops", "tb_per_s"
        best[flops] = max(best.get(flops, 0.0), row.problem.flops / quickest / 1e6)
        best[bandwidth] = max(best.get(bandwidth, 0.0), row.problem.bytes / quickest / 1e6)
    return best


def source_commit() -> str:
    """The git commit of the tree gemmtune runs from, with ``-dirty`` where it was changed since; "" elsewhere."""
    here = Path(__file__).resolve()
    commands = (
        ["git", "ls-files", "--error-unmatch", here.name],  # a tree that merely surrounds an installation is not ours
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
    )
    output = ""
    for command in commands:
        try:
            done = subprocess.run(command, cwd=here.parent, capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return ""
        output = done.stdout.strip()
    return output
