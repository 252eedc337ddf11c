"""What is known of a kernel, each fact with where it came from, and what is missing.

Facts come from the compiler's report of resources, from the emulator's counters, from the machine code, from Nsight
Compute and from measured times; any of them may be missing. :func:`gather` collects what can be had without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.sass import disassemble
from gemmtune.device.base import Job, Limits
from gemmtune.diagnose.mix import Mix, mix_of
from gemmtune.space.errors import GemmtuneError
from gemmtune.space.estimate import blocks_per_sm
from gemmtune.space.family import Traits
from gemmtune.space.gpu import TABLE, Gpu
from gemmtune.space.problem import Problem

SPACES = ("global read", "global write", "shared read", "shared write")


@dataclass(frozen=True)
class Traffic:
    """What one block asks of a memory: requests of whole warps, their transactions, and the fewest possible.

    Transactions are sectors of 32 bytes in global memory, passes over the 32 banks in shared memory.
    """

    requests: float
    transactions: float
    ideal: float

    @property
    def factor(self) -> float:
        """Transactions over the fewest possible, at least 1."""
        return max(1.0, self.transactions / self.ideal) if self.ideal else 1.0

    @property
    def per_request(self) -> float:
        """Transactions of one request."""
        return self.transactions / self.requests if self.requests else 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.requests + other.requests, self.transactions + other.transactions, self.ideal + other.ideal)


@dataclass(frozen=True)
class Subject:
    """The kernel that is asked about. ``us`` and ``ratio`` are its times, where it was timed on ``gpu``.

    ``shared_bytes`` is what a block asks for in all; None for what the compiler was never asked.
    """

    label: str
    problem: Problem
    gpu: Gpu
    source: KernelSource
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    us: float | None = None
    ratio: float | None = None
    estimated: bool = False


@dataclass(frozen=True)
class Facts:
    """What is known. ``traffic`` is that of one block, by :data:`SPACES`, empty where nobody counted.

    ``origins`` says for groups of facts (``resources``, ``traffic``, ``mix``, ``time``) who said so; ``missing`` has a
    sentence for each that nobody could say, with the cure. ``measured`` holds what Nsight Compute read, by its names.
    """

    subject: Subject
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    mix: Mix | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        names = {**self.subject.problem.environment(), "sms": self.subject.gpu.sms}
        return math.prod(self.subject.source.recipe.grid_size(names))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.subject.source.recipe.threads

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        told = self.subject.shared_bytes
        return self.subject.source.recipe.dynamic_shared if told is None else told

    @property
    def fit(self) -> tuple[int, str]:
        """Blocks that an SM holds at once, and what bounds them; registers unknown do not."""
        return blocks_per_sm(self.threads, self.shared_bytes, self.subject.registers or 1, self.subject.gpu)

    @property
    def unlimited(self) -> int:
        """Blocks that an SM would hold if its present limit were none."""
        held, limiter = self.fit
        if limiter == "registers":
            return blocks_per_sm(self.threads, self.shared_bytes, 1, self.subject.gpu)[0]
        if limiter == "shared_memory":
            return blocks_per_sm(self.threads, 0, self.subject.registers or 1, self.subject.gpu)[0]
        return held

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return -(-self.threads // 32)

    @property
    def occupancy(self) -> float:
        """Fraction of an SM's warps that the blocks it holds fill."""
        return self.fit[0] * self.warps * 32 / self.subject.gpu.threads_per_sm

    @property
    def block_flops(self) -> float:
        """Floating-point operations of one block, its tile counted whole, also beyond the output's edge."""
        shape = next(t.shape for t in self.subject.problem.tensors() if t.output)
        tile = self.subject.source.recipe.tile
        tiles = -(-shape[0] // tile.rows) * -(-shape[1] // tile.columns)
        whole = self.subject.problem.flops * (tiles * tile.rows * tile.columns) / math.prod(shape)
        return whole / self.blocks

    def accesses(self, memory: str) -> Traffic | None:
        """Reads and writes of ``global`` or ``shared`` memory together; None where nobody counted."""
        if not self.traffic:
            return None
        nothing = Traffic(0, 0, 0)
        return self.traffic.get(f"{memory} read", nothing) + self.traffic.get(f"{memory} write", nothing)


def traffic_of(counters: Mapping[str, float]) -> dict[str, Traffic]:
    """The emulator's counters of one block as traffic; empty where there are none."""
    out = {}
    for space in SPACES:
        word = space.replace(" ", "_")
        if f"{word}_requests" in counters:
            out[space] = Traffic(
                counters[f"{word}_requests"], counters[f"{word}_transactions"], counters[f"{word}_ideal"]
            )
    return out


def gather(
    subject: Subject,
    *,
    cubin: Callable[[], bytes] | bytes,
    counters: Mapping[str, float] | None = None,
    emulate: bool = True,
) -> Facts:
    """Everything that can be said of a kernel without a GPU.

    Args:
        subject: the kernel.
        cubin: its machine code, or what fetches it and may raise a :class:`GemmtuneError` that says why there is none.
        counters: what the emulator counted when the trial ran, where it ran there.
        emulate: run it on the emulator, in a process of its own, where ``counters`` are not given.
    """
    origins, missing = {}, []
    if subject.registers is None:
        missing.append(
            "Registers: the compiler's report is missing, so that occupancy is bounded by shared memory and threads "
            "alone; tune again with NVRTC installed: pip install 'gemmtune[cuda13]'."
        )
    else:
        origins["resources"] = "compiler's report"
    if subject.us is not None:
        origins["time"] = "estimated" if subject.estimated else "measured"
    if subject.us is None or subject.estimated:
        missing.append(
            "Achieved bandwidth and arithmetic: they need a time measured on a GPU; tune there, or rerun the trial."
        )
    traffic = traffic_of(counters or {})
    if traffic:
        origins["traffic"] = "emulator, when the trial ran"
    elif emulate:
        try:
            traffic = traffic_of(count(subject))
            origins["traffic"] = "emulator"
        except GemmtuneError as error:
            missing.append(f"Sectors and bank conflicts: {error}")
    mix = None
    try:
        code = cubin if isinstance(cubin, bytes) else cubin()
        mix = mix_of(disassemble(code, subject.source.entry).hot)
        if mix is None:
            missing.append("Instruction mix: the hot loop of the machine code does no arithmetic that is known here.")
        else:
            origins["mix"] = "machine code"
    except GemmtuneError as error:
        missing.append(f"Instruction mix: {error}")
    return Facts(subject, traffic, mix, {}, origins, tuple(missing))


def count(subject: Subject, limits: Limits | None = None) -> Mapping[str, float]:
    """The emulator's counters of one block of a kernel.

    Raises:
        ToolchainError: there is no C++ compiler for the emulator.
        LaunchError: the kernel fails there.
    """
    from gemmtune.device.emulator import EmulatorDevice
    from gemmtune.space.errors import LaunchError

    kernel = CompiledKernel(subject.source, subject.gpu.arch, b"", None, "", "", 0.0, cached=False)
    device = EmulatorDevice(_stand_in(subject.gpu))
    try:
        job = Job(subject.problem, kernel, seed=0, verify=False, traits=_plain_traits(subject))
        report = device.run(job, limits or Limits())
    finally:
        device.close()
    if report.measurement is None:
        raise LaunchError(f"the kernel does not run on the emulator ({report.outcome}): {report.detail}")
    return report.measurement.counters


def _stand_in(gpu: Gpu) -> str:
    """The GPU of the table to emulate: itself, else the newest that is no newer."""
    if gpu.short in TABLE:
        return gpu.short
    older = [g for g in TABLE.values() if g.capability <= gpu.capability]
    return max(older or TABLE.values(), key=lambda g: (g.capability, g.sms) if older else (-g.capability[0], 0)).short


def _plain_traits(subject: Subject) -> Traits:
    """Enough for a worker that does not know the family; counters do not depend on it."""
    recipe = subject.source.recipe
    return Traits(
        recipe.tile.rows, recipe.tile.columns, 1, 1, 1, recipe.threads, recipe.dynamic_shared, subject.registers or 32,
        "fma",
    )  # fmt: skip


def of_kernel(kernel: CompiledKernel, problem: Problem, gpu: Gpu, label: str = "") -> Subject:
    """A kernel just compiled, not recorded."""
    resources = kernel.resources
    return Subject(
        label=label or str(kernel.configuration),
        problem=problem,
        gpu=gpu,
        source=kernel.source,
        registers=resources.registers if resources else None,
        spill_bytes=resources.spill_bytes if resources else None,
        shared_bytes=kernel.recipe.dynamic_shared + (resources.shared_bytes if resources else 0),
    )


def judged_on(subject: Subject, gpu: Gpu) -> Subject:
    """The same kernel on another GPU, where its times do not hold."""
    if gpu.key == subject.gpu.key:
        return subject
    return replace(subject, gpu=gpu, us=None, ratio=None, estimated=False)
