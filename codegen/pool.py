"""Compiling ahead of the GPU in a pool of processes.

A thread of the parent owns each process, so that a compiler that crashes, never ends or eats the memory costs one
kernel: its process is replaced and the pool goes on. Processes die with their parent and leave Ctrl-C to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from types import TracebackType

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.child import Child, ChildDiedError, ChildMemoryError
from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.nvrtc import CompileMemoryError, compile_kernel
from gemmtune.space.errors import CompileError, GemmtuneError, ToolchainError
from gemmtune.space.settings import check_count, check_seconds

TIMEOUT = 60.0
"""Seconds one compile may take by default: a kernel takes 0.1-4 s, and one that takes this long is no use."""
SPARING = 8
"""CPUs from which on compiling does not take all of them."""
LEAST_MEMORY = 2 << 30
"""Bytes a compile process may always allocate by default; one kernel takes 0.1-0.4 GB."""
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_Item = tuple["Future[CompiledKernel]", KernelSource, str]


class CompileTimeout(CompileError):
    """The compiler did not end in time; its process was killed."""


def compile_in_child(source: KernelSource, arch: str, root: str | None) -> CompiledKernel:
    """What the pool's processes do; ``root`` is the cache's folder, None for no cache."""
    return compile_kernel(source, arch, KernelCache(root) if root is not None else None)


class CompilePool:
    """Compiles kernels in processes of their own.

    Args:
        workers: processes at most; by default :func:`default_workers`. They start when needed.
        cache: shared by all of them; None for none.
        timeout: seconds one compile may take, the start of its process included.
        memory: bytes of data each process may allocate; by default :func:`memory_share`.
        compiler: the function that compiles, as ``"module:name"``, with the signature of :func:`compile_in_child`.

    Raises:
        SettingError: fewer than one worker, or a limit that is not positive.
    """

    def __init__(
        self,
        workers: int | None = None,
        cache: KernelCache | None = None,
        timeout: float = TIMEOUT,
        memory: int | None = None,
        compiler: str = "gemmtune.codegen.pool:compile_in_child",
    ) -> None:
        self.workers = default_workers() if workers is None else workers
        check_count("workers", self.workers)
        check_seconds("compile timeout", timeout)
        self.timeout = timeout
        self.memory = memory_share(self.workers) if memory is None else memory
        check_count("compile memory", self.memory)
        self._told: set[str] = set()
        self._root = str(Path(cache.root).absolute()) if cache is not None else None
        self._compiler = compiler
        self._jobs: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._children: set[Child] = set()
        self._outstanding = 0
        self._closed = False

    def submit(self, source: KernelSource, arch: str) -> Future[CompiledKernel]:
        """Compile ``source`` for ``arch``; the future gives the kernel or raises.

        Raises (from the future):
            CompileError: the compiler refused the source, or its process died of it.
            CompileTimeout: it did not end within ``timeout``.
            CompileMemoryError: it needed more than ``memory``.
            ToolchainError: there is no NVRTC, it does not know ``arch``, or no process can be started.
        """
        future: Future[CompiledKernel] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("submit() after close()")
            self._outstanding += 1
            self._jobs.put((future, source, arch))
            if len(self._threads) < min(self.workers, self._outstanding):
                thread = threading.Thread(target=self._work, name="gemmtune-compile", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def close(self) -> None:
        """Cancel what waits, kill what runs, and end the processes; safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            children = list(self._children)
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._jobs.get_nowait()
                if item is not None:
                    item[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for child in children:
            child.process.kill()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        """One thread's life: take a job, have its own process do it, replace the process when it is lost."""
        child: Child | None = None
        while (item := self._jobs.get()) is not None:
            future, source, arch = item
            if future.set_running_or_notify_cancel():
                child = self._compile(child, future, source, arch)
            with self._lock:
                self._outstanding -= 1
        if child is not None:
            self._lose(child)

    def _compile(
        self, child: Child | None, future: Future[CompiledKernel], source: KernelSource, arch: str
    ) -> Child | None:
        """Have ``child`` (None: a new one) compile; the child to go on with."""
        what = f"{source.configuration} for {arch}"
        try:
            if child is None:
                child = self._start()
            kernel = child.call(source, arch, self._root, timeout=self.timeout)
        except TimeoutError:
            self._lose(child)
            child = None
            error: Exception = CompileTimeout(
                f"Compiling {what} took longer than {self.timeout:g} s and was stopped: raise the limit "
                f"(--compile-timeout), or leave such configurations out."
            )
        except (ChildDiedError, CompileMemoryError) as death:
            self._lose(child)
            if child is not None and child.served and not self._closed:  # is it to blame, or an earlier kernel?
                return self._compile(None, future, source, arch)
            child = None
            if self._closed:
                error = CompileError(f"Compiling {what} was stopped, since the pool was closed.")
            elif isinstance(death, ChildMemoryError | CompileMemoryError):
                how = "NVRTC says so" if isinstance(death, CompileMemoryError) else death
                error = CompileMemoryError(
                    f"Compiling {what} ran out of memory ({how}; {self.memory / 2**30:.3g} GB are allowed each of "
                    f"{self.workers} compile processes): use fewer workers, or leave such configurations out."
                )
            else:
                error = CompileError(
                    f"The compiler crashed over {what} ({death}): leave such configurations out, or update NVRTC."
                )
        except OSError as refused:
            error = ToolchainError(f"No process could be started to compile {what} ({refused}): use fewer workers.")
        except GemmtuneError as refused:
            error = refused
        except Exception as unexpected:  # must reach whoever waits for the future, and never end this thread
            error = CompileError(f"Compiling {what} failed: {unexpected!r}.")
        else:
            future.set_result(kernel)
            return child
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)
        return child

    def _start(self) -> Child:
        child = Child(self._compiler, self.memory, self._tell)
        with self._lock:
            self._children.add(child)
            closed = self._closed
        if closed:
            child.process.kill()
        return child

    def _tell(self, name: str, level: int, message: str) -> None:
        """Log what a process logged; every process says that the cache is full, once is enough."""
        with self._lock:
            known = message in self._told
            self._told.add(message)
        if not known:
            logging.getLogger(name).log(level, "%s", message)

    def _lose(self, child: Child | None) -> None:
        if child is not None:
            with self._lock:
                self._children.discard(child)
            child.kill()


def available_cpus() -> int:
    """CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_workers() -> int:
    """One for each CPU; of eight or more, two are left to the study and to the process that drives the GPU."""
    cpus = available_cpus()
    return cpus if cpus < SPARING else cpus - 2


def memory_share(workers: int) -> int:
    """Bytes each of ``workers`` processes may allocate: half of the memory between them, at least 2 GiB."""
    return max(LEAST_MEMORY, machine_memory() // 2 // workers)


def machine_memory() -> int:
    """Bytes of memory this process may use: the machine's, or its container's; 0 where neither can be told."""
    amounts = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        amounts.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            amounts.append(int(Path(path).read_text()))
    return min(amounts, default=0)
