"""Workspace and counters: one pair a (device, stream), grown on demand, capped, counters zeroed once."""

from __future__ import annotations

import threading
from typing import Any

from gemmtune.device.driver import relaxed_capture
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import LaunchError

DEFAULT_LIMIT = 2**30
"""Most bytes of workspace a stream may take, unless the caller says otherwise."""
_SMALLEST = 2**20
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


def allocate(nbytes: int) -> Any:
    """Device memory outside CuPy's pool, which hands freed blocks to other work without asking any stream but its own.

    Raises:
        MemoryError: the device has no more, even after CuPy's pool gave back what it holds unused.
    """
    cupy = require_cupy()
    runtime = cupy.cuda.runtime
    for last in (False, True):
        try:
            return cupy.cuda.Memory(nbytes)
        except runtime.CUDARuntimeError as error:
            if error.status != _OUT_OF_MEMORY:
                raise LaunchError(
                    f"{nbytes} bytes of scratch memory could not be allocated ({error}): "
                    "when capturing a graph, make the same call once before."
                ) from error
            if last:
                raise MemoryError(f"The GPU has no {nbytes} bytes left for scratch memory.") from None
            cupy.get_default_memory_pool().free_all_blocks()
    raise AssertionError("unreachable")


class StreamScratch:
    """Scratch memory of one stream of the current device.

    Launches on one stream run one after the other, so they can share a workspace. Counters are zero when first handed
    out, and every kernel leaves them so. Buffers that were outgrown stay alive, since captured graphs may still hold
    their addresses; sizes at least double, so that they add up to less than the newest.

    Args:
        stream: address of the CUDA stream that it is for (0: the default stream).
        limit: most bytes of workspace; counters are not counted, they are a few kilobytes.
    """

    def __init__(self, stream: int = 0, limit: int = DEFAULT_LIMIT) -> None:
        self.stream = stream
        self._limit = limit
        self._workspace = 0
        self._workspace_bytes = 0
        self._counters = 0
        self._counter_bytes = 0
        self._held: list[Any] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, outgrown ones too."""
        return sum(memory.size for memory in self._held)

    def reserve(self, workspace: int, counters: int) -> tuple[int, int]:
        """Addresses of at least so many bytes of workspace and of counters.

        Raises:
            LaunchError: the workspace would pass the limit.
            MemoryError: the device has no more.
        """
        if workspace > self._workspace_bytes or counters > self._counter_bytes:
            with relaxed_capture():
                self._grow(workspace, counters)
        return self._workspace, self._counters

    def _grow(self, workspace: int, counters: int) -> None:
        if workspace > self._workspace_bytes:
            if workspace > self._limit:
                raise LaunchError(
                    f"The kernel needs a workspace of {workspace} bytes, but the limit is {self._limit}: raise it."
                )
            size = min(self._limit, max(workspace, 2 * self._workspace_bytes, _SMALLEST))
            self._workspace = self._new(size)
            self._workspace_bytes = size
        if counters > self._counter_bytes:
            size = max(counters, 2 * self._counter_bytes, 4096)
            self._counters = self._new(size)
            # Zeroed at once, on a stream of its own: on a stream that is captured the zeroing would be a part of one
            # graph, and other graphs of that stream would find what nobody zeroed.
            cupy = require_cupy()
            stream = cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.runtime.memsetAsync(self._counters, 0, size, stream.ptr)
            stream.synchronize()
            self._counter_bytes = size

    def _new(self, size: int) -> int:
        memory = allocate(size)
        self._held.append(memory)
        return int(memory.ptr)


class ScratchPool:
    """The scratch of every (device, stream) a program uses."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._known: dict[tuple[int, int], StreamScratch] = {}

    def of(self, device: int, stream: int) -> StreamScratch:
        """The scratch of ``stream`` on ``device``, which must be the current device when it grows."""
        key = (device, stream)
        found = self._known.get(key)
        if found is None:
            with self._lock:
                found = self._known.setdefault(key, StreamScratch(stream, self._limit))
        return found
