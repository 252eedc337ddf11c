"""One kernel launched by itself, for tools that watch a process: compute-sanitizer looks on from outside.

Everything here is plain: operands are filled on the host and copied, so that the kernel is the only one that runs, and
each buffer is an allocation of its own and of exactly its size, so that one byte beyond it is found.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gemmtune.device.base import Job
from gemmtune.space.problem import Problem, Tensor

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gemmtune.device.cuda.alone import main; main(*sys.argv[2:])"
)
_PATTERN = 65_537
"""Random values that an operand repeats; a prime, so that no two rows of a usual length are alike."""
FAILED = 3
"""Exit code where the kernel was refused or died."""


@dataclass(frozen=True)
class Launches:
    """What the child launches: ``job``'s kernel once with each of these M, on GPU ``index``."""

    job: Job
    counts: tuple[int, ...]
    index: int


def row_counts(job: Job) -> tuple[int, ...]:
    """The M to launch with: the full one and, where M is not compiled in, a ragged one of two tiles, and 1."""
    m, tile = job.problem.axes.get("m", 1), job.kernel.recipe.tile.rows
    if "m" in job.kernel.recipe.constants or "m" not in job.problem.axes:
        return (m,)
    ragged = tile + 1 + job.seed % max(1, tile - 1)
    return tuple(dict.fromkeys(count for count in (m, ragged, 1) if 1 <= count <= m))


def command(launches: Launches, file: Path) -> list[str]:
    """The command line of a process that does ``launches``, which are written to ``file`` for it."""
    job = replace(launches.job, traits=None)
    file.write_bytes(pickle.dumps(replace(launches, job=job)))
    path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
    return [sys.executable, "-P", "-c", _BOOT, path, str(file), str(os.getpid())]


def popen(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process that leads a group of its own, both its streams read as one."""
    return subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", process_group=0,
    )  # fmt: skip


def run(arguments: Sequence[str], timeout: float) -> tuple[int, str]:
    """Exit code and output of a process; nothing of it and what it started is left afterwards.

    Raises:
        subprocess.TimeoutExpired: it did not end within ``timeout`` seconds.
    """
    process = popen(arguments)
    try:
        text, _ = process.communicate(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return process.returncode, text


def main(file: str, parent: str) -> None:
    """The child: launch everything, then end with 0, or with :data:`FAILED` and a sentence on standard output."""
    threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()
    launches: Launches = pickle.loads(Path(file).read_bytes())  # noqa: S301 - from our own parent
    try:
        for line in launch(launches):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    except Exception as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        sys.stdout.flush()
        os._exit(FAILED)  # an interpreter that shuts down with a broken CUDA context may hang
    sys.stdout.flush()


def launch(launches: Launches) -> list[str]:
    """Launch the kernel with each M and wait for it; a line on each.

    Raises:
        LaunchError: the kernel cannot be loaded, or be launched at the full size.
        CUDARuntimeError: it died.
    """
    from gemmtune.device.cuda.operands import scalars_of
    from gemmtune.device.launch import LoadedKernel
    from gemmtune.device.toolchain import require_cupy

    cupy = require_cupy()
    cupy.cuda.Device(launches.index).use()
    job, said = launches.job, []
    kernel = LoadedKernel(job.kernel.cubin, job.kernel.recipe)
    for count in launches.counts:
        problem: Problem = job.problem.with_axes(m=count) if "m" in job.problem.axes else job.problem
        held = {t.name: _buffer(cupy, t, job.seed + i) for i, t in enumerate(problem.tensors())}
        pointers = {name: int(memory.ptr) for name, memory in held.items()}
        env: Mapping[str, Any] = {**problem.environment(), **scalars_of(problem)}
        bound = {**env, **{f"ptr_{name}": address for name, address in pointers.items()}}
        unmet = kernel.recipe.unmet(bound)
        if unmet is not None and count != launches.counts[0]:
            said.append(f"m={count}: not served ({unmet})")
            continue
        kernel.prepare(env, pointers).launch(0, _Scratch(cupy))
        cupy.cuda.runtime.deviceSynchronize()
        said.append(f"m={count}: launched")
    return said


class _Scratch:
    """Workspace and counters of exactly the sizes asked for, the counters zeroed."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._held: list[Any] = []

    def reserve(self, workspace: int, counters: int) -> tuple[int, int]:
        """Their addresses, 0 where none is needed."""
        return self._new(workspace), self._new(counters)

    def _new(self, nbytes: int) -> int:
        if not nbytes:
            return 0
        memory = self._cupy.cuda.Memory(nbytes)  # outside the pool, whose blocks hide what lies beyond them
        self._cupy.cuda.runtime.memset(int(memory.ptr), 0, nbytes)
        self._held.append(memory)
        return int(memory.ptr)


def _buffer(cupy: Any, tensor: Tensor, seed: int) -> Any:
    """An allocation of the tensor's size; inputs hold values, the output zeros."""
    nbytes = max(1, tensor.elements * tensor.dtype.bytes)
    memory = cupy.cuda.Memory(nbytes)
    runtime = cupy.cuda.runtime
    if tensor.output:
        runtime.memset(int(memory.ptr), 0, nbytes)
    else:
        values = np.random.default_rng(seed).standard_normal(_PATTERN).astype(tensor.dtype.np)
        host = np.ascontiguousarray(np.resize(values, max(1, tensor.elements)))
        runtime.memcpy(int(memory.ptr), host.ctypes.data, nbytes, runtime.memcpyHostToDevice)
    return memory


def _watch(parent: int) -> None:
    """End when the process that wanted this is gone: a tool stands between, which a parent-death signal would miss."""
    pause = threading.Event()
    while not pause.wait(1.0):
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os._exit(1)
        except PermissionError:
            pass
