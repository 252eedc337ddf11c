"""A cubin read back as machine instructions, by NVIDIA's ``nvdisasm``, which needs neither a GPU nor a driver.

``cuobjdump -sass`` runs nvdisasm itself, so that nvdisasm alone is looked for: in its wheel, in ``$CUDA_HOME`` and
``$CUDA_PATH``, on ``$PATH``, in ``/usr/local/cuda``, and beside Triton, which carries one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gemmtune.codegen.control_flow import Instruction, Loop, find_loops, hottest
from gemmtune.space.errors import ToolchainError

CURE = 'install gemmtune with the extra that brings it: pip install "gemmtune[sass]"'
_TIMEOUT = 60.0
"""Seconds for one disassembly, which takes 0.1 s."""
_SYSTEM = "/usr/local/cuda/bin"

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,]+)")
_LABEL = re.compile(r"^([.$\w]+):\s*$")
_LINE = re.compile(r"^\s*\{?\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_INSTRUCTION = re.compile(r"^(?:(@!?U?P[T\d]+)\s+)?([A-Z][\w.]*)\s*(.*)$")
_REFERENCE = re.compile(r"`\(([^)]+)\)")
_INDIRECT = re.compile(r"\(\*\"BRANCH_TARGETS ([^\"]*)\"\*\)")
_SCHEDULING = re.compile(r"\s+[&?]\w\S*")
"""What some versions append for newer GPUs: the barriers it waits for and sets (``&req={0} ?trans1``)."""


@dataclass(frozen=True)
class Sass:
    """The machine code of one kernel.

    Attributes:
        entry: the kernel's name.
        text: nvdisasm's own listing of the whole cubin.
        instructions: of ``entry``, by offset, the padding at the end included.
    """

    entry: str
    text: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Its loops, by the offset they start at, outer ones first."""
        return find_loops(self.instructions)

    @cached_property
    def hot(self) -> tuple[Instruction, ...]:
        """The instructions of the hottest loop, without those of loops inside it; all of them where there is none."""
        loop = hottest(self.loops)
        return loop.own if loop is not None else self.instructions


def disassemble(cubin: bytes, entry: str | None = None) -> Sass:
    """Read ``cubin`` back.

    Args:
        cubin: for any GPU that an nvdisasm found here knows.
        entry: the kernel wanted; by default the first one.

    Raises:
        ToolchainError: there is no nvdisasm, none of those here can read this cubin, or it has no such kernel.
    """
    if not cubin:
        raise ToolchainError(
            "This kernel has no cubin to disassemble, since it was made without NVRTC: "
            'pip install "gemmtune[cuda13]" and tune again.'
        )
    tools = find_disassemblers()
    if not tools:
        raise ToolchainError(f"nvdisasm, which reads machine code, was not found: {CURE}.")
    refusals = []
    for tool in tools:  # an old toolkit's does not know new GPUs, a new one's no old ones
        try:
            return parse_sass(_run(tool, cubin), entry)
        except _RefusedError as refusal:
            refusals.append(f"{tool}: {refusal}")
    raise ToolchainError(f"No nvdisasm here can read this cubin ({'; '.join(refusals)}): {CURE}.")


def find_disassemblers() -> tuple[Path, ...]:
    """Every nvdisasm found here, the best first; imports nothing."""
    folders = [folder for root in _package("nvidia") for folder in sorted(root.glob("*/bin"), reverse=True)]
    folders += [Path(home) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))]
    folders += [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders.append(Path(_SYSTEM))
    folders += [root / "backends" / "nvidia" / "bin" for root in _package("triton")]
    found = (shutil.which("nvdisasm", path=str(folder)) for folder in folders)
    return tuple(dict.fromkeys(Path(path) for path in found if path))


def parse_sass(listing: str, entry: str | None = None) -> Sass:
    """The kernel ``entry`` (by default the first) of what ``nvdisasm -c`` printed.

    Raises:
        ToolchainError: there is no such kernel in it.
    """
    sections: dict[str, list[tuple[int, str]]] = {}
    labels: dict[str, dict[str, int]] = {}
    name, waiting = "", list[str]()
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            name, waiting = section.group(1), []
            sections[name], labels[name] = [], {}
        elif name and (label := _LABEL.match(line)):
            waiting.append(label.group(1))
        elif name and (instruction := _LINE.match(line)):
            offset = int(instruction.group(1), 16)
            labels[name].update(dict.fromkeys(waiting, offset))
            waiting = []
            sections[name].append((offset, instruction.group(2)))
    if entry is None:
        entry = next(iter(sections), "")
    if not sections.get(entry):
        kernels = ", ".join(sections) or "none"
        raise ToolchainError(f"The cubin has no kernel {entry!r}, only: {kernels}.")
    instructions = tuple(_instruction(offset, text, labels[entry]) for offset, text in sections[entry])
    return Sass(entry=entry, text=listing, instructions=instructions)


class _RefusedError(Exception):
    """One nvdisasm could not read a cubin; the message is the first line of what it said."""


def _run(tool: Path, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [str(tool), "-c", file.name], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise _RefusedError(f"no answer within {_TIMEOUT:g} s") from None
        except OSError as error:
            raise _RefusedError(error.strerror or str(error)) from None
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise _RefusedError(said[0].replace(file.name, "the cubin") if said else f"exit code {done.returncode}")
    return done.stdout


def _package(name: str) -> list[Path]:
    """Folders of an installed package, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []


def _instruction(offset: int, raw: str, labels: dict[str, int]) -> Instruction:
    indirect = _INDIRECT.search(raw)
    named = indirect.group(1).split(",") if indirect else _REFERENCE.findall(raw)
    text = " ".join(_SCHEDULING.sub("", _INDIRECT.sub("", raw)).split())
    match = _INSTRUCTION.match(text)
    predicate, opcode, operands = match.groups() if match else ("", text, "")
    return Instruction(
        offset=offset,
        predicate=predicate or "",
        opcode=opcode,
        operands=_operands(operands),
        text=text,
        targets=tuple(labels[label] for label in named if label in labels),
    )


def _operands(text: str) -> tuple[str, ...]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return tuple(part.strip() for part in (*parts, text[start:]) if part.strip())
