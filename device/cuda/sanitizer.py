"""A kernel under NVIDIA's compute-sanitizer: memory errors (memcheck), then races in shared memory (racecheck).

Options and output: the Compute Sanitizer user manual. Each tool runs a child that launches just this kernel
(:mod:`gemmtune.device.cuda.alone`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gemmtune.device.base import Job
from gemmtune.device.cuda.alone import Launches, command, row_counts, run
from gemmtune.space.errors import SettingError, ToolchainError

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
USUAL = ("memcheck", "racecheck")
CURE = (
    "pip install nvidia-cuda-sanitizer-api brings it, as does the CUDA toolkit (then put its bin folder on PATH, "
    "or set CUDA_HOME)"
)
TIMEOUT = 300.0
"""Seconds a tool may take: it slows a kernel down by a factor of ten to some thousand."""
_FOUND = 99
_PADDING = 65_536
"""Bytes put after each allocation, so that an access past its end does not land in the next one."""
_SHOWN = 5
_MARK = re.compile(r"^=+ ?(.*)$")
_SUMMARY = re.compile(r"^(ERROR|RACECHECK) SUMMARY: (.*)$")


@dataclass(frozen=True)
class Verdict:
    """What one tool found: ``clean`` or not, its summary in one line, the first different findings, all it said."""

    tool: str
    clean: bool
    summary: str
    findings: tuple[str, ...]
    text: str


def find_sanitizer() -> Path:
    """compute-sanitizer: on ``$PATH``, in ``$CUDA_HOME`` and ``$CUDA_PATH``, the wheel, ``/usr/local/cuda``.

    Raises:
        ToolchainError: there is none; the message names the cure.
    """
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += [str(Path(home) / "bin") for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    folders += [str(folder) for root in roots for folder in sorted(Path(root).glob("*/bin"), reverse=True)]
    folders.append("/usr/local/cuda/bin")
    found = shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
    if found is None:
        raise ToolchainError(f"compute-sanitizer was not found: {CURE}.")
    return Path(found)


def check_tool(name: str) -> None:
    """Raises SettingError where compute-sanitizer has no such tool."""
    if name not in TOOLS:
        raise SettingError(f"compute-sanitizer has no tool {name!r}: choose one of {', '.join(TOOLS)}.")


def sanitize(job: Job, tool: str, index: int = 0, timeout: float = TIMEOUT, program: Path | None = None) -> Verdict:
    """Launch ``job``'s kernel under ``tool`` once at full size and once at ragged M, by itself.

    Args:
        job: the kernel; it is neither proven nor timed here.
        tool: one of :data:`TOOLS`.
        index: the GPU, as CUDA numbers them.
        timeout: seconds after which it is ended, which is a finding.
        program: the compute-sanitizer to use; by default the one :func:`find_sanitizer` finds.

    Raises:
        SettingError: there is no such tool.
        ToolchainError: there is no compute-sanitizer, or it could not do its work here.
    """
    check_tool(tool)
    program = program or find_sanitizer()
    options = ["--tool", tool, "--error-exitcode", str(_FOUND), "--report-api-errors", "no", "--show-backtrace", "no"]
    if tool == "memcheck":
        options += ["--padding", str(_PADDING)]
    with tempfile.TemporaryDirectory(prefix="gemmtune-") as folder:
        child = command(Launches(job, row_counts(job), index), Path(folder) / "launches")
        try:
            code, text = run([str(program), *options, *child], timeout)
        except subprocess.TimeoutExpired:
            return Verdict(tool, False, f"it did not end within {timeout:g} s, and was killed", (), "")
    return read_verdict(tool, code, text)


def read_verdict(tool: str, code: int, text: str) -> Verdict:
    """What ``tool``'s output and exit code say.

    Raises:
        ToolchainError: it did not get so far as to check anything.
    """
    summary, blocks = "", list[list[str]]()
    for line in text.splitlines():
        mark = _MARK.match(line)
        if mark is None or not mark.group(1).strip():
            continue
        words = mark.group(1)
        if found := _SUMMARY.match(words):
            summary = found.group(2).strip()
        elif words.startswith("COMPUTE-SANITIZER"):
            continue
        elif words.startswith(" "):
            if blocks and not words.strip().startswith(("Saved host backtrace", "Host Frame")):
                blocks[-1].append(words.strip())
        else:
            blocks.append([words.strip()])
    if not summary or (code == 0 and "launched" not in text):
        said = [line.strip() for line in text.splitlines() if line.strip()]
        own = [line for line in said if not line.startswith("=") and ": launched" not in line]
        last = (own or said or [f"exit code {code}"])[-1].lstrip("= ").rstrip(".")
        raise ToolchainError(f"compute-sanitizer's {tool} could not check the kernel here: {last[:300]}.")
    different = {tuple(_without_numbers(part) for part in block[:2]): block for block in reversed(blocks)}
    findings = tuple(", ".join(block[:4]) for block in reversed(different.values()))
    return Verdict(tool, code == 0, summary, findings[:_SHOWN], text)


def _without_numbers(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)
