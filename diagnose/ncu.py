"""A kernel under Nsight Compute: one launch, a fixed list of metrics, read from its CSV.

Metric names are those of Nsight Compute's documentation ("Profiling Guide", metrics reference) for compute capability
7.5 and later; what a version does not know is left out. Clocks stay as they are (``--clock-control none``).
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.device.base import Job
from gemmtune.device.cuda.alone import Launches, command, run
from gemmtune.diagnose.facts import Facts, Traffic
from gemmtune.space.errors import ToolchainError

CURE = (
    "install Nsight Compute (https://developer.nvidia.com/nsight-compute, or with the CUDA toolkit) and put its folder "
    "on PATH"
)
TIMEOUT = 120.0
"""Seconds for one kernel: some ten passes, each with its operands restored, and the start of both programs."""

OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
WAVES = "launch__waves_per_multiprocessor"
REGISTERS = "launch__registers_per_thread"
LIMITS: Mapping[str, str] = {
    "registers": "launch__occupancy_limit_registers",
    "shared_memory": "launch__occupancy_limit_shared_mem",
    "threads": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
}
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
TIME = "gpu__time_duration.sum"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
INTEGER = "smsp__sass_thread_inst_executed_op_integer_pred_on.sum"
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
ALU = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active"
FMA = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
LSU = "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
SHARED_BUSY = "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed"
BYTES_PER_SECTOR = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"


def _global(what: str, way: str) -> str:
    return f"l1tex__t_{what}_pipe_lsu_mem_global_op_{way}.sum"


def _shared(what: str, way: str) -> str:
    return f"l1tex__data_{what}_pipe_lsu_mem_shared_op_{way}.sum"


_WAYS: Mapping[str, str] = {"read": "ld", "write": "st"}
_WAVEFRONTS: Mapping[str, str] = {
    way: f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{way}.sum" for way in ("ld", "st")
}
METRICS: tuple[str, ...] = (
    TIME, OCCUPANCY, WAVES, REGISTERS, *LIMITS.values(), DRAM, "dram__bytes_read.sum", "dram__bytes_write.sum", ISSUE,
    INTEGER, FFMA, ALU, FMA, LSU, TENSOR, SHARED_BUSY, BYTES_PER_SECTOR,
    *(_global(what, way) for what in ("requests", "sectors") for way in _WAYS.values()),
    *(_shared("bank_conflicts", way) for way in _WAYS.values()), *_WAVEFRONTS.values(),
)  # fmt: skip
"""Everything that is asked for."""

_PERMISSION = "ERR_NVGPUCTRPERM"
_TOLD = re.compile(r"^==(?:ERROR|WARNING)==\s*(.*)$", re.MULTILINE)


def find_ncu() -> Path:
    """ncu: on ``$PATH``, in ``$CUDA_HOME`` and ``$CUDA_PATH``, in ``/usr/local/cuda``, in ``/opt/nvidia``.

    Raises:
        ToolchainError: there is none; the message names the cure.
    """
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += [str(Path(home) / "bin") for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    folders.append("/usr/local/cuda/bin")
    folders += [str(folder) for folder in sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)]
    found = shutil.which("ncu", path=os.pathsep.join(folders))
    if found is None:
        raise ToolchainError(f"Nsight Compute's ncu was not found: {CURE}.")
    return Path(found)


def profile(
    facts: Facts, cubin: bytes, index: int = 0, *, timeout: float = TIMEOUT, program: Path | None = None
) -> dict[str, float]:
    """Launch the kernel once under ncu; its metrics by name.

    Args:
        facts: of the kernel.
        cubin: its machine code, for GPU ``index``.
        index: the GPU, as CUDA numbers them.
        timeout: seconds after which both are ended.
        program: the ncu to use; by default the one :func:`find_ncu` finds.

    Raises:
        ToolchainError: there is no ncu, it may not or cannot read the GPU's counters, or it read nothing.
    """
    program = program or find_ncu()
    source = facts.subject.source
    kernel = CompiledKernel(source, facts.subject.gpu.arch, cubin, None, "", "", 0.0, cached=False)
    job = Job(facts.subject.problem, kernel, seed=0)
    count = facts.subject.problem.axes.get("m", 1)
    with tempfile.TemporaryDirectory(prefix="gemmtune-") as folder:
        child = command(Launches(job, (count,), index), Path(folder) / "launch")
        code, text = _run(program, METRICS, source.entry, child, timeout)
        refused = [metric for metric in METRICS if _refused(metric, text)]
        if code != 0 and refused:  # an older or newer ncu, or another GPU
            rest = tuple(metric for metric in METRICS if metric not in refused)
            code, text = _run(program, rest, source.entry, child, timeout)
    found = parse(text)
    if not found:
        raise ToolchainError(_failure(text, code))
    return found


def parse(text: str) -> dict[str, float]:
    """The metrics of the first kernel in ncu's output, whatever else was printed: one a line, or one a column.

    Values that are no numbers (``n/a``) are left out.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    if not rows:
        return {}
    header, body = rows[0], rows[1:]
    out: dict[str, float] = {}
    if "Metric Name" in header and "Metric Value" in header:
        name, value = header.index("Metric Name"), header.index("Metric Value")
        for row in body:
            if len(row) == len(header) and (number := _number(row[value])) is not None:
                out.setdefault(row[name], number)
        return out
    for row in body:  # the raw page: a row of units first, then a row for each kernel
        wide = {n: number for n, v in zip(header, row, strict=False) if (number := _number(v)) is not None}
        if any("__" in n for n in wide):
            return {n: v for n, v in wide.items() if "__" in n}
    return {}


def with_profile(facts: Facts, metrics: Mapping[str, float]) -> Facts:
    """The facts with what ncu measured in the place of what the emulator counted, for one block on average.

    The fewest sectors possible stay the emulator's share of the requests; without it they follow from the bytes that
    the lanes asked for.
    """
    traffic = dict(facts.traffic)
    for word, way in _WAYS.items():
        requests, sectors = metrics.get(_global("requests", way)), metrics.get(_global("sectors", way))
        if requests and sectors is not None:
            known = facts.traffic.get(f"global {word}")
            share = known.ideal / known.requests if known and known.requests else None
            used = metrics.get(BYTES_PER_SECTOR, 100.0) / 100 if way == "ld" else 1.0
            ideal = requests * share if share is not None else sectors * used
            traffic[f"global {word}"] = _a_block(facts, requests, sectors, min(ideal, sectors))
        passes, conflicts = metrics.get(_WAVEFRONTS[way]), metrics.get(_shared("bank_conflicts", way))
        if passes and conflicts is not None:
            traffic[f"shared {word}"] = _a_block(facts, passes - conflicts, passes, passes - conflicts)
    origins = {**facts.origins, "traffic": "Nsight Compute", "measured": "Nsight Compute"}
    missing = tuple(sentence for sentence in facts.missing if not sentence.startswith("Sectors"))
    subject = facts.subject
    if REGISTERS in metrics:
        subject = replace(subject, registers=int(metrics[REGISTERS]))
        missing = tuple(sentence for sentence in missing if not sentence.startswith("Registers"))
    return replace(facts, subject=subject, traffic=traffic, measured=dict(metrics), origins=origins, missing=missing)


def limiter(metrics: Mapping[str, float]) -> str:
    """What bounds the blocks of an SM, as ncu says; empty where it does not."""
    said = {name: metrics[metric] for name, metric in LIMITS.items() if metric in metrics}
    return min(said, key=lambda name: said[name]) if said else ""


def sectors_per_request(metrics: Mapping[str, float], way: str = "ld") -> float | None:
    """Of global loads (``ld``) or stores (``st``)."""
    requests = metrics.get(_global("requests", way))
    return metrics[_global("sectors", way)] / requests if requests else None


def conflict_factor(metrics: Mapping[str, float]) -> float | None:
    """Wavefronts of shared memory over those without bank conflicts, loads and stores together."""
    passes = sum(metrics.get(name, 0.0) for name in _WAVEFRONTS.values())
    conflicts = sum(metrics.get(_shared("bank_conflicts", way), 0.0) for way in _WAYS.values())
    return passes / (passes - conflicts) if passes > conflicts else None


def _a_block(facts: Facts, requests: float, transactions: float, ideal: float) -> Traffic:
    return Traffic(requests / facts.blocks, transactions / facts.blocks, ideal / facts.blocks)


def _run(program: Path, metrics: tuple[str, ...], entry: str, child: list[str], timeout: float) -> tuple[int, str]:
    options = [
        "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--target-processes", "all",
        "--kernel-name", entry, "--launch-count", "1", "--metrics", ",".join(metrics),
    ]  # fmt: skip
    try:
        return run([str(program), *options, *child], timeout)
    except subprocess.TimeoutExpired:
        raise ToolchainError(
            f"ncu did not end within {timeout:g} s and was killed: profile a smaller problem."
        ) from None


def _refused(metric: str, text: str) -> bool:
    """Whether ncu complained of this metric by its name."""
    return any(metric in sentence or metric.split(".")[0] in sentence.split() for sentence in _TOLD.findall(text))


def _failure(text: str, code: int) -> str:
    if _PERMISSION in text:
        return (
            "ncu may not read this GPU's performance counters: run as root, or let users do so with the driver's "
            "option NVreg_RestrictProfilingToAdminUsers=0 (ERR_NVGPUCTRPERM)."
        )
    said = [sentence for sentence in _TOLD.findall(text) if sentence] or [
        t.strip() for t in text.splitlines() if t.strip()
    ]
    return f"ncu read no metrics of the kernel: {said[-1][:300] if said else f'exit code {code}'}."


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
