"""Launching kernels on the emulator core: guarded buffers, schedules, faults and counters.

The structures here mirror those of ``native/launch.cpp``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gemmtune.device.emulator.build import build_core
from gemmtune.space.errors import LaunchError
from gemmtune.space.problem import Array

DEFAULT_BUDGET = 2_000_000_000
"""Operations (accesses, barriers, collectives) of one launch: some 20 s. A loop without any is the worker's matter."""


class Policy(IntEnum):
    """Which ready thread goes on when one has to wait."""

    LOWEST_FIRST = 0
    HIGHEST_FIRST = 1
    RANDOM_PRIORITY = 2


class Copies(IntEnum):
    """When the bytes of an asynchronous copy arrive: at its wait, at its issue, or by chance at either."""

    LATE = 0
    EARLY = 1
    RANDOM = 2


@dataclass(frozen=True)
class Schedule:
    """One adversary. ``at_end``: buffers end at their upper guard (else they begin at the lower one)."""

    name: str
    policy: Policy
    copies: Copies
    preempt: bool = False
    seed: int = 1
    at_end: bool = True

    def order(
        self, blocks: Sequence[tuple[int, int, int]], cluster: tuple[int, int, int] = (1, 1, 1)
    ) -> list[tuple[int, int, int]]:
        """The order in which blocks run: whole clusters, each in the order of its ranks (x first)."""
        firsts = list(dict.fromkeys(tuple(i // c * c for i, c in zip(b, cluster, strict=True)) for b in blocks))
        if self.policy is Policy.HIGHEST_FIRST:
            firsts.reverse()
        elif self.policy is Policy.RANDOM_PRIORITY:
            firsts = [firsts[i] for i in np.random.default_rng(self.seed).permutation(len(firsts))]
        within = [(x, y, z) for z in range(cluster[2]) for y in range(cluster[1]) for x in range(cluster[0])]
        return [(x + i, y + j, z + k) for x, y, z in firsts for i, j, k in within]


SCHEDULES = (
    Schedule("lowest-first", Policy.LOWEST_FIRST, Copies.LATE),
    Schedule("highest-first", Policy.HIGHEST_FIRST, Copies.LATE, at_end=False),
    Schedule("random", Policy.RANDOM_PRIORITY, Copies.RANDOM, preempt=True),
)


class EmulationFault(LaunchError):
    """What a kernel did wrong while it ran.

    ``kind``: race, deadlock, out_of_bounds, misaligned, divergence, budget, crash, invalid, out_of_memory, protocol
    (misuse of what is asynchronous: mbarriers, TMA, wgmma, clusters). The message names block, thread and line of the
    source.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, str(self))


class _Span(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("writable", ctypes.c_int),
        ("name", ctypes.c_char * 24),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("dynamic_shared", ctypes.c_uint32),
        ("resident_blocks", ctypes.c_uint32),
        ("static_shared", ctypes.c_void_p),
        ("static_bytes", ctypes.c_uint64),
        ("block_ids", ctypes.c_void_p),
        ("block_count", ctypes.c_uint64),
        ("spans", ctypes.c_void_p),
        ("span_count", ctypes.c_uint32),
        ("policy", ctypes.c_int),
        ("copy_mode", ctypes.c_int),
        ("preempt", ctypes.c_int),
        ("race_checks", ctypes.c_int),
        ("profiled_block", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("budget", ctypes.c_int64),
    )


class _Result(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_char * 32),
        ("message", ctypes.c_char * 1024),
        *((n, ctypes.c_uint64) for n in ("switches", "collectives", "barriers", "copies", "blocks", "operations")),
    )


class _Site(ctypes.Structure):
    _fields_ = (
        ("access", ctypes.c_int),
        ("line", ctypes.c_int),
        *((n, ctypes.c_uint64) for n in ("requests", "transactions", "ideal")),
    )


@dataclass(frozen=True)
class Site:
    """One line that accesses memory, in the profiled block: whole-warp requests, their transactions and the ideal.

    ``access`` is "global read", "global write", "shared read" or "shared write"; transactions are 32-byte sectors of
    global memory, or passes over shared memory's banks.
    """

    access: str
    line: int
    requests: int
    transactions: int
    ideal: int


@dataclass(frozen=True)
class LaunchCounters:
    """What a launch did in all its blocks, and the access sites of the profiled one."""

    switches: int
    collectives: int
    barriers: int
    copies: int
    blocks: int
    operations: int
    sites: tuple[Site, ...] = field(default=())


_ACCESSES = ("global read", "global write", "shared read", "shared write")
_LOCK = threading.Lock()  # the core holds one launch at a time


@lru_cache(maxsize=1)
def core() -> ctypes.CDLL:
    """The core, built if need be and loaded once, with its symbols visible to the kernel libraries.

    Raises:
        ToolchainError: it cannot be built.
    """
    library = ctypes.CDLL(str(build_core()), mode=ctypes.RTLD_GLOBAL)
    library.emu_allocate.restype = ctypes.c_void_p
    library.emu_allocate.argtypes = [ctypes.c_uint64, ctypes.c_int]
    library.emu_free.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.emu_free.restype = None
    library.emu_protect.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int]
    library.emu_first_altered.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.emu_first_altered.restype = ctypes.c_int64
    library.emu_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.emu_launch.restype = None
    library.emu_sites.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    library.emu_sites.restype = ctypes.c_uint64
    return library


class Buffer:
    """A guarded global buffer of ``nbytes``, all poison (NaN) at first.

    ``at_end``: its end meets the upper guard (up to 15 bytes of checked poison between), else its begin the lower one.
    Addresses are multiples of 16 and 4096 bytes respectively. Memory is taken only for the pages written.

    Raises:
        MemoryError: the host has no address space left.
    """

    def __init__(self, name: str, nbytes: int, *, at_end: bool = True, writable: bool = True) -> None:
        self.name, self.nbytes, self.writable = name, max(nbytes, 1), writable
        address = core().emu_allocate(self.nbytes, int(at_end))
        if not address:
            raise MemoryError(f"No address space for {nbytes} bytes of buffer {name}.")
        self.address: int = address

    def view(self, dtype: np.dtype[Any]) -> Array:
        """The bytes as a one-dimensional array of ``dtype``."""
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address))
        return raw[: self.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)

    def first_altered(self) -> int | None:
        """Offset of the first byte that is not poison, in the buffer or in the slack around it; None if all is."""
        found = int(core().emu_first_altered(self.address, self.nbytes))
        return None if found == -(2**63) else found

    def protect(self, *, writable: bool) -> None:
        """Make the pages read-only, or writable again."""
        core().emu_protect(self.address, self.nbytes, int(writable))

    def free(self) -> None:
        """Unmap it; views become invalid. Safe to call twice."""
        if self.address:
            core().emu_free(self.address, self.nbytes)
            self.address = 0


class KernelLibrary:
    """A loaded kernel; :meth:`close` unloads it, so that one process may run any number of them.

    ``symbol`` is another than the library's own entry where its source exports several (``EMU_EXPORT``).

    Raises:
        LaunchError: the library cannot be loaded.
    """

    def __init__(self, path: Path, symbol: str = "emu_entry") -> None:
        core()
        try:
            self._library: ctypes.CDLL | None = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            raise LaunchError(f"The emulated kernel {path.name} cannot be loaded: {error}.") from None
        for name in ("emu_shared_begin", "emu_shared_end"):
            getattr(self._library, name).restype = ctypes.c_void_p
        self.entry: int = ctypes.cast(self._library[symbol], ctypes.c_void_p).value or 0
        self.resident_blocks = int(self._library.emu_resident_blocks())
        self.static_begin: int = self._library.emu_shared_begin() or 0
        self.static_bytes: int = (self._library.emu_shared_end() or 0) - self.static_begin

    def close(self) -> None:
        """Unload it. Safe to call twice."""
        if self._library is not None:
            import _ctypes

            _ctypes.dlclose(self._library._handle)
            self._library = None


def launch(
    library: KernelLibrary,
    *,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    cluster: tuple[int, int, int] = (1, 1, 1),
    arguments: Sequence[Any],
    buffers: Sequence[Buffer] = (),
    blocks: Sequence[tuple[int, int, int]] | None = None,
    dynamic_shared: int = 0,
    schedule: Schedule = SCHEDULES[0],
    race_checks: bool = True,
    profiled: tuple[int, int, int] | None = None,
    budget: int = DEFAULT_BUDGET,
) -> LaunchCounters:
    """Run ``blocks`` (all of the grid by default) of a kernel, one after another, under one schedule.

    Args:
        library: the kernel.
        grid: its size in x, y, z, as the kernel sees it whichever blocks run.
        block: threads in x, y, z.
        cluster: blocks of a cluster in x, y, z: they run together, and a block brings its whole cluster along.
        arguments: ctypes values, in order.
        buffers: the global memory that the kernel may touch.
        blocks: block indices; by default all.
        dynamic_shared: bytes a block.
        schedule: the adversary.
        race_checks: whether to look for races (which no schedule changes), at about twice the time.
        profiled: the block whose accesses are counted line by line.
        budget: operations that the launch may make.

    Raises:
        EmulationFault: the kernel did something wrong; see its ``kind``.
    """
    if blocks is None:
        blocks = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    if any(size % step for size, step in zip(grid, cluster, strict=True)):
        raise EmulationFault("invalid", f"a grid of {grid} blocks is no multiple of the cluster {cluster}")
    ordered = schedule.order(blocks, cluster)
    ids = np.ascontiguousarray(np.array(ordered, np.uint32).reshape(-1, 3))
    pointers = (ctypes.c_void_p * max(1, len(arguments)))(*[ctypes.addressof(a) for a in arguments])
    spans = (_Span * max(1, len(buffers)))(
        *[_Span(b.address, b.nbytes, b.writable, b.name.encode()[:23]) for b in buffers]
    )
    request = _Request(
        entry=library.entry,
        arguments=ctypes.addressof(pointers),
        grid=grid,
        block=block,
        cluster=cluster,
        dynamic_shared=dynamic_shared,
        resident_blocks=library.resident_blocks,
        static_shared=library.static_begin,
        static_bytes=library.static_bytes,
        block_ids=ids.ctypes.data,
        block_count=len(ordered),
        spans=ctypes.addressof(spans),
        span_count=len(buffers),
        policy=schedule.policy,
        copy_mode=schedule.copies,
        preempt=schedule.preempt,
        race_checks=race_checks,
        profiled_block=ordered.index(profiled) if profiled in ordered else -1,
        seed=schedule.seed,
        budget=budget,
    )
    result = _Result()
    native = core()
    with _LOCK:
        for b in buffers:
            if not b.writable:
                b.protect(writable=False)
        native.emu_launch(ctypes.addressof(request), ctypes.addressof(result))
        for b in buffers:
            if not b.writable:
                b.protect(writable=True)
        if result.kind:
            raise EmulationFault(result.kind.decode(), result.message.decode(errors="replace"))
        return LaunchCounters(
            switches=result.switches,
            collectives=result.collectives,
            barriers=result.barriers,
            copies=result.copies,
            blocks=result.blocks,
            operations=result.operations,
            sites=_sites(native),
        )


def _sites(native: ctypes.CDLL) -> tuple[Site, ...]:
    count = int(native.emu_sites(None, 0))
    raw = (_Site * max(1, count))()
    native.emu_sites(ctypes.addressof(raw), count)
    return tuple(Site(_ACCESSES[s.access], s.line, s.requests, s.transactions, s.ideal) for s in raw[:count])
