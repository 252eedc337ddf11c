"""``gemmtune devices``: GPUs, toolchain, what each family can do on each, and how to get what is missing."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import TYPE_CHECKING

from gemmtune.cli import output
from gemmtune.space.errors import GemmtuneError, ToolchainError

if TYPE_CHECKING:
    from gemmtune.space.gpu import Gpu

_DTYPES = ("fp32", "tf32", "fp16", "bf16")


def devices() -> None:
    """List GPUs and emulated ones, what kernels can be made for each, and the tools found here."""
    from gemmtune.space.families import FAMILIES
    from gemmtune.space.gpu import TABLE

    searchable = [f for f in FAMILIES.values() if f.searchable]
    archs = _value(_archs)
    present, reason = _present()
    columns = [
        output.Column("device"),
        output.Column("GPU"),
        output.Column("cc"),
        *(output.Column(f.name) for f in searchable),
        output.Column("note", long=True),
    ]
    rows = []
    default = "cuda:0" if present else "emulator:h200"
    for name, gpu in [*present.items(), *((f"emulator:{short}", g) for short, g in TABLE.items())]:
        note = _note(gpu, archs)
        major, minor = gpu.capability
        able = [_dtypes(f.name, gpu) for f in searchable]
        mark = " *" if name == default else ""
        rows.append([name + mark, gpu.name.removeprefix("NVIDIA "), f"{major}.{minor}", *able, note])
    output.show_table(columns, rows)
    output.say(
        "* is what commands use where no --device is given. An emulator runs kernels on the CPU: it proves them right, "
        "and its times are estimates."
    )
    print()
    facts = [
        ("GPU", f"{len(present)} found" if present else reason),
        ("CuPy", _or_reason(_cupy)),
        ("NVRTC", _or_reason(_nvrtc)),
        ("C++ compiler", _or_reason(_compiler)),
    ]
    for name, fact in facts:
        output.say(f"{name + ':':14} {fact}", hanging=15)


def _present() -> tuple[dict[str, Gpu], str]:
    """GPUs by device name, or none and why."""
    from gemmtune.device import open_device
    from gemmtune.device.toolchain import device_count

    found: dict[str, Gpu] = {}
    try:
        for index in range(device_count()):
            device = open_device(f"cuda:{index}")
            found[device.name] = device.gpu
            device.close()
    except ToolchainError as error:
        return found, str(error)
    return found, ""


def _dtypes(family: str, gpu: Gpu) -> str:
    """Dtypes that a family can do on a GPU."""
    from gemmtune.space.families import FAMILIES
    from gemmtune.space.gemm import Gemm

    able = [d for d in _DTYPES if FAMILIES[family].unsupported(Gemm(256, 256, 256, d), gpu) is None]
    return " ".join(able) or "-"


def _note(gpu: Gpu, archs: list[int] | None) -> str:
    number = gpu.capability[0] * 10 + gpu.capability[1]
    if archs and number not in archs:
        if number < min(archs):
            return "its kernels need CUDA 12's NVRTC: pip install 'gemmtune[cuda12]' in an environment of its own"
        return "its kernels need a newer NVRTC: pip install -U 'gemmtune[cuda13]'"
    return ""


def _archs() -> list[int]:
    from gemmtune.codegen.nvrtc import supported_archs

    return supported_archs()


def _cupy() -> str:
    from gemmtune.device.toolchain import require_cupy

    return str(require_cupy().__version__)


def _nvrtc() -> str:
    from gemmtune.codegen.nvrtc import nvrtc_version

    bindings = importlib.metadata.version("cuda-bindings")
    return f"{nvrtc_version()} (cuda-bindings {bindings}), compiles for {' '.join(f'sm_{a}' for a in _archs())}"


def _compiler() -> str:
    from gemmtune.device.emulator.toolchain import find_toolchain

    return find_toolchain().version


def _or_reason(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except GemmtuneError as error:
        return str(error)


def _value(ask: Callable[[], list[int]]) -> list[int] | None:
    try:
        return ask()
    except GemmtuneError:
        return None
