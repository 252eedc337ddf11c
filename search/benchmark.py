"""The benchmark: the best known kernel, the baseline and the naive kernel, timed in one interleaved run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.nvrtc import compile_kernel, nvrtc_version
from gemmtune.codegen.render import render
from gemmtune.db import History
from gemmtune.device.base import Cache, Device, Job, Outcome, Regime, Report
from gemmtune.device.cuda.timing import SETTLE, SPAN
from gemmtune.search.known import Known, KnownKernels
from gemmtune.search.recording import baseline_name
from gemmtune.search.results import BenchRow, ResultFile, save, summarise
from gemmtune.search.study import opened, problems_of
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import GemmtuneError, LaunchError
from gemmtune.space.estimate import floor_us
from gemmtune.space.problem import Problem
from gemmtune.space.settings import check_cache, check_regime, check_seed

TIMEOUT = 600.0
"""Seconds for one problem: proofs against float64, and the times of all kernels."""
NAIVE = "naive"

PROTOCOL = (
    "Medians of interleaved CUDA-graph replays over random data, {cache} cache, {regime} clocks; ours, {peers} in one "
    "run; a sustained sample takes {span:g} s after {settle:g} s of the same kernel untimed, so that its own power "
    "sets its clock (a kernel over four times slower than the baseline is timed apart); every kernel proved against "
    "float64 first."
)
ESTIMATED_PROTOCOL = (
    "ESTIMATES, not measurements: a cost model for {gpu} fed with the compiler's registers and an emulator's counters; "
    "every kernel proved against float64 on chosen tiles."
)


def benchmark(
    problems: Problem | Sequence[Problem],
    device: Device | str | None = None,
    history: History | str | Path | None = None,
    pack: str | Path | None = None,
    *,
    regime: Regime = "sustained",
    cache: Cache = "cold",
    seed: int = 0,
    finished: Callable[[BenchRow], None] | None = None,
    failed: Callable[[Problem, GemmtuneError], None] | None = None,
) -> list[BenchRow]:
    """Time the best known kernel of each problem beside the baseline and the naive kernel.

    On a device whose times are estimates there is no baseline, and rows are marked (:attr:`BenchRow.estimated`).

    Args:
        problems: one or several.
        device: a device, or how one is called; by default the GPU, else the emulator.
        history: where the best kernels, and what finding them cost, are looked up; by default the user's own.
        pack: take the kernels of this pack instead.
        regime: ``sustained`` or ``burst``.
        cache: ``cold`` or ``warm``.
        seed: of the inputs.
        finished: is told every row as it is there.
        failed: is told a problem whose kernel is unknown or fails, and the others go on; without it, that is raised.

    Raises:
        ProblemError: there is no problem.
        SettingError: ``regime``, ``cache`` or ``seed`` out of range.
        UnknownNameError: a device that does not exist, or no kernel is known for a problem.
        LaunchError: a kernel is wrong now, or fails.
        PackError: the pack cannot be read.
        ToolchainError, DatabaseError: as for :func:`gemmtune.search.tune`.
    """
    wanted = problems_of(problems)
    check_regime(regime)
    check_cache(cache)
    check_seed(seed)
    rows = []
    with ExitStack() as stack:
        where = opened(device, stack)
        kept = history if isinstance(history, History) else stack.enter_context(History(history))
        known = KnownKernels(where, kept, pack, regime, cache)
        for problem in wanted:
            try:
                row = _row(problem, where, known.best(problem), regime, cache, seed)
            except GemmtuneError as error:
                if failed is None:
                    raise
                failed(problem, error)
                continue
            rows.append(row)
            if finished is not None:
                finished(row)
    return rows


def _row(problem: Problem, device: Device, known: Known, regime: Regime, cache: Cache, seed: int) -> BenchRow:
    naive = compile_kernel(render(problem, Configuration.of(NAIVE, {})), device.gpu.arch, KernelCache())
    jobs = [Job(problem, kernel, seed, regime, cache, effort="final") for kernel in (known.kernel, naive)]
    ours, theirs = device.compare(jobs, TIMEOUT)
    time = ours.measurement
    if ours.outcome != Outcome.CORRECT or time is None or ours.verification is None:
        raise LaunchError(
            f"The best known kernel of {problem.key} ({known.kernel.configuration}) ended as {ours.outcome}: "
            f"{ours.detail or 'no reason given'}; tune again."
        )
    data = problem.to_json()
    return BenchRow(
        **{name: data[name] for name in ("m", "n", "k", "dtype", "out_dtype", "layout", "epilogue")},
        scaling="none",
        regime=regime,
        cache=cache,
        family=known.kernel.configuration.family,
        config=str(known.kernel.configuration),
        trials=known.trials,
        wall_s=known.wall_s,
        us=time.us,
        us_low=time.us_low,
        us_high=time.us_high,
        floor_us=floor_us(problem, device.gpu),
        peers=_peers(problem, ours, theirs),
        rel_error=ours.verification.rel_error,
        error_bound=ours.verification.error_bound,
        estimated=time.estimated,
    )


def _peers(problem: Problem, ours: Report, naive: Report) -> dict[str, float]:
    """Median times of the baseline, where there is one, and of the naive kernel, where it is right."""
    peers: dict[str, float] = {}
    if ours.measurement is not None and ours.measurement.baseline_us is not None:
        peers[baseline_name(problem)] = ours.measurement.baseline_us
    if naive.outcome == Outcome.CORRECT and naive.measurement is not None:
        peers[NAIVE] = naive.measurement.us
    return peers


# -------------------------------------------------------------------------------------------------------- result files


def write_result_file(
    path: str | Path, rows: Sequence[BenchRow], *, name: str = "", device: Device | str | None = None
) -> ResultFile:
    """Write ``rows`` as a result file; the directory is made where it is missing.

    ``ceilings`` gets the most that any kernel of these rows reached: TFLOP/s by dtype, and TB/s over the fewest bytes.

    Args:
        path: of the file.
        rows: what :func:`benchmark` returned.
        name: of the result; by default the file's.
        device: where the rows were timed, for its GPU and versions.

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
        span=SPAN,
    )
    result = replace(blank, protocol=protocol, ceilings=_ceilings(rows), rows=tuple(rows), summary=summary.to_json())
    save(path, result)
    return result


def blank_result(name: str, device: Device, protocol: str, summary: Mapping[str, object] | None = None) -> ResultFile:
    """A result file with no GEMM rows as yet: where it comes from, now, and what its ``summary`` says."""
    versions = dict(device.environment())
    versions.setdefault("nvrtc", nvrtc_version())
    return ResultFile(
        name=name,
        gpu=device.gpu.name,
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
