"""The C++ compiler that turns kernels into host code: ``$CXX``, g++, clang++, or the ``ziglang`` wheel from PyPI."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from gemmtune.space.errors import ToolchainError

_COMMON = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-w")
"""Aliasing is off because kernels view shared memory as several types, as CUDA allows in practice."""

_KERNEL: dict[str, tuple[str, ...]] = {
    "gcc": ("-fsanitize=bounds-strict,alignment", "-fno-sanitize-recover=all"),
    "clang": ("-fsanitize=bounds,alignment", "-fno-sanitize-recover=all"),
    "zig": ("-fsanitize=bounds,alignment", "-fno-sanitize-recover=all", "-fno-sanitize-trap=all"),
}
_KERNEL_COMMON = (
    "-ftrivial-auto-var-init=pattern",  # using an uninitialised variable shows
    "-fstack-clash-protection",  # a huge frame meets its own stack's guard page, not the next stack
    "-fwrapv",  # 32-bit offsets that overflow wrap, as they do on a GPU, instead of being widened by the optimiser
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-plt",
)


class CompilerFailure(ToolchainError):
    """A compiler that ran and refused; ``log`` is the head of what it printed."""

    def __init__(self, compiler: str, log: str) -> None:
        super().__init__(f"The C++ compiler {compiler} failed: {log}")
        self.log = log


@dataclass(frozen=True)
class Toolchain:
    """A working C++20 compiler: its command line, flavour and first line of ``--version``."""

    command: tuple[str, ...]
    flavour: Literal["gcc", "clang", "zig"]
    version: str

    def core_flags(self) -> tuple[str, ...]:
        """Flags for the emulator core."""
        plain = () if self.flavour == "gcc" else ("-fno-sanitize=all",)  # zig sanitizes by default
        return (*_COMMON, *machine_flags(self.flavour), *plain)

    def kernel_flags(self) -> tuple[str, ...]:
        """Flags for kernels: sanitizer checks whose handlers the core provides, and no libraries at all."""
        return (*_COMMON, *machine_flags(self.flavour), *_KERNEL_COMMON, *_KERNEL[self.flavour])

    def compile(self, arguments: list[str], timeout: float) -> None:
        """Run the compiler.

        Raises:
            CompilerFailure: it fails, with the head of what it printed.
            ToolchainError: it takes longer than ``timeout`` seconds.
        """
        try:
            done = subprocess.run(
                [*self.command, *arguments], capture_output=True, text=True, timeout=timeout, check=False,
                env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ToolchainError(
                f"The C++ compiler {self.command[0]} took longer than {timeout:.0f} s: is the machine overloaded?"
            ) from None
        if done.returncode:
            head = " | ".join(line.strip() for line in done.stderr.splitlines()[:12] if line.strip())
            raise CompilerFailure(self.command[0], head[:1500])


@lru_cache(maxsize=4)
def machine_flags(flavour: str) -> tuple[str, ...]:
    """AVX2, FMA and F16C where this machine has them; the compiler's default elsewhere."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore")
    except OSError:
        return ()
    words = set(text.split())
    level = "x86_64_v3" if flavour == "zig" else "x86-64-v3"
    return (f"-march={level}",) if {"avx2", "fma", "f16c", "bmi2"} <= words else ()


def _candidates() -> list[tuple[str, ...]]:
    out: list[tuple[str, ...]] = []
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        out.append(tuple(shlex.split(chosen)))
    out += [(name,) for name in ("g++", "clang++") if shutil.which(name)]
    if importlib.util.find_spec("ziglang") is not None:
        out.append((sys.executable, "-m", "ziglang", "c++"))
    return out


def _probe(command: tuple[str, ...]) -> Toolchain | None:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode or not done.stdout.strip():
        return None
    flavour: Literal["gcc", "clang", "zig"] = "clang" if "clang" in done.stdout else "gcc"
    return Toolchain(command, "zig" if "ziglang" in command else flavour, done.stdout.strip().splitlines()[0].strip())


@lru_cache(maxsize=4)
def _find(environment: str) -> Toolchain:
    for command in _candidates():
        found = _probe(command)
        if found:
            return found
        if environment and command == tuple(shlex.split(environment)):
            raise ToolchainError(
                f"$CXX is {environment!r}, which does not run: set it to a C++20 compiler, or unset it."
            )
    raise ToolchainError(
        "The emulator needs a C++ compiler, but found neither $CXX nor g++ nor clang++: "
        "install one, or `pip install gemmtune[ziglang]`, which brings one from PyPI."
    )


def find_toolchain() -> Toolchain:
    """The first of ``$CXX``, g++, clang++ and ``python -m ziglang c++`` that runs.

    Raises:
        ToolchainError: there is none, or ``$CXX`` names something that does not run.
    """
    return _find(os.environ.get("CXX", "").strip())
