"""GPUs: limits and peaks, from the device or from the shipped table, and the device key.

Sources of the table: NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities" (threads, registers, shared memory a
block and an SM), and the vendor's datasheets and architecture whitepapers (SMs, L2, bandwidth, dense peaks). Peaks are
the datasheet's and serve estimates only; a result file carries what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmtune.space.errors import UnknownNameError


@dataclass(frozen=True)
class Gpu:
    """One GPU model (or one present device).

    Shared memory and L2 in bytes, ``bandwidth`` in bytes/s, ``peak`` in FLOP/s by dtype (fp32 on the FMA pipe; tf32,
    fp16, bf16 on tensor cores, dense, fp32 accumulation). ``memory`` is the device memory in bytes.
    """

    name: str
    short: str
    capability: tuple[int, int]
    sms: int
    shared_per_block: int
    shared_per_sm: int
    l2: int
    memory: int
    bandwidth: float
    clock: float
    peak: Mapping[str, float] = field(default_factory=dict, hash=False)
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    mig: str = ""

    @property
    def arch(self) -> str:
        """The compile target, see :func:`compile_target`."""
        return compile_target(self.capability)

    @property
    def key(self) -> str:
        """The device key: what must agree for two measurements, or a kernel and a device, to be comparable.

        Compute capability, name, SMs, memory (GiB, rounded) and MIG profile; one function for tuner and runtime.
        """
        return device_key(self.capability, self.name, self.sms, self.memory, self.mig)

    def environment(self) -> dict[str, Any]:
        """Names for expressions."""
        return {
            "gpu_name": self.short,
            "capability": self.capability[0] * 10 + self.capability[1],
            "sms": self.sms,
            "shared_per_block": self.shared_per_block,
            "shared_per_sm": self.shared_per_sm,
            "registers_per_sm": self.registers_per_sm,
            "registers_per_thread": self.registers_per_thread,
            "threads_per_block": self.threads_per_block,
            "threads_per_sm": self.threads_per_sm,
        }


def device_key(capability: tuple[int, int], name: str, sms: int, memory: int, mig: str = "") -> str:
    """``"9.0|NVIDIA H200|132|140|"``: capability, name, SMs, memory in GiB (rounded), MIG profile."""
    return f"{capability[0]}.{capability[1]}|{name}|{sms}|{round(memory / 2**30)}|{mig}"


def sms_of(key: str) -> int:
    """The multiprocessors of the device whose key (:func:`device_key`) this is.

    Raises:
        UnknownNameError: it is no device key.
    """
    match key.split("|"):
        case [_, _, sms, _, _] if sms.isascii() and sms.isdigit() and 0 < int(sms) < 2**16:
            return int(sms)
    raise UnknownNameError(f"{key[:80]!r} is no device key, such as '9.0|NVIDIA H200|132|140|'.")


def compile_target(capability: tuple[int, int]) -> str:
    """``sm_90a`` on Hopper and ``sm_100a`` on Blackwell, for the instructions of theirs alone; else ``sm_XY``."""
    major, minor = capability
    return f"sm_{major}{minor}" + ("a" if major in (9, 10) else "")


_KB, _GB, _T = 1024, 2**30, 1e12


def _row(
    short: str,
    name: str,
    cc: tuple[int, int],
    sms: int,
    block_kb: int,
    sm_kb: int,
    l2_mb: float,
    memory_gb: float,
    bandwidth_gbs: float,
    clock_mhz: int,
    threads_per_sm: int,
    blocks_per_sm: int,
    **peak_tflops: float,
) -> Gpu:
    return Gpu(
        name=name, short=short, capability=cc, sms=sms, shared_per_block=block_kb * _KB, shared_per_sm=sm_kb * _KB,
        l2=int(l2_mb * 2**20), memory=int(memory_gb * _GB), bandwidth=bandwidth_gbs * 1e9, clock=clock_mhz * 1e6,
        threads_per_sm=threads_per_sm, blocks_per_sm=blocks_per_sm, peak={k: v * _T for k, v in peak_tflops.items()},
    )  # fmt: skip


TABLE: dict[str, Gpu] = {
    g.short: g
    for g in (
        _row("v100", "Tesla V100-SXM2-16GB", (7, 0), 80, 96, 96, 6, 15.8, 900, 1530, 2048, 32, fp32=15.7, fp16=125),
        _row("t4", "Tesla T4", (7, 5), 40, 64, 64, 4, 14.6, 320, 1590, 1024, 16, fp32=8.1, fp16=65),
        _row("a100", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 163, 164, 40, 79.3, 2039, 1410, 2048, 32,
             fp32=19.5, tf32=156, fp16=312, bf16=312),
        _row("rtx3090", "NVIDIA GeForce RTX 3090", (8, 6), 82, 99, 100, 6, 23.7, 936, 1695, 1536, 16,
             fp32=35.6, tf32=35.6, fp16=71, bf16=71),
        _row("l4", "NVIDIA L4", (8, 9), 58, 99, 100, 48, 22.0, 300, 2040, 1536, 24,
             fp32=30.3, tf32=60, fp16=121, bf16=121),
        _row("rtx4090", "NVIDIA GeForce RTX 4090", (8, 9), 128, 99, 100, 72, 23.6, 1008, 2520, 1536, 24,
             fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2),
        _row("h100", "NVIDIA H100 80GB HBM3", (9, 0), 132, 227, 228, 50, 79.6, 3350, 1980, 2048, 32,
             fp32=66.9, tf32=494, fp16=989, bf16=989),
        _row("h200", "NVIDIA H200", (9, 0), 132, 227, 228, 60, 139.8, 4800, 1980, 2048, 32,
             fp32=66.9, tf32=494, fp16=989, bf16=989),
        _row("b200", "NVIDIA B200", (10, 0), 148, 227, 228, 126, 179.0, 7700, 1965, 2048, 32,
             fp32=75, tf32=1100, fp16=2250, bf16=2250),
        _row("rtx5090", "NVIDIA GeForce RTX 5090", (12, 0), 170, 99, 100, 96, 31.4, 1792, 2407, 1536, 24,
             fp32=104.8, tf32=104.8, fp16=209.5, bf16=209.5),
    )
}  # fmt: skip


def gpu(name: str) -> Gpu:
    """The GPU of the shipped table called ``name`` ("h200", "RTX 4090", "NVIDIA H200").

    Raises:
        UnknownNameError: there is none of that name; the message lists those there are.
    """
    for g in TABLE.values():
        if is_called(name, g.short, g.name):
            return g
    raise UnknownNameError(f"Unknown GPU {name!r}: the table knows {', '.join(TABLE)}.")


def is_called(name: str, *names: str) -> bool:
    """Whether ``name`` is one of ``names``: only letters and digits count, in upper or lower case."""

    def letters(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    return letters(name) in [letters(n) for n in names]
