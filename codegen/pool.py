"""Compiling ahead of the GPU in a pool of processes.

A thread of the parent owns each process, so that a compiler that crashes or never ends costs one kernel: its process is
replaced and the pool goes on. Processes die with their parent and leave Ctrl-C to it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from types import TracebackType

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.child import Child, ChildDiedError
from gemmtune.codegen.kernel import CompiledKernel, KernelSource
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.space.errors import CompileError, GemmtuneError
from gemmtune.space.settings import check_count

_Item = tuple["Future[CompiledKernel]", KernelSource, str]


class CompileTimeout(CompileError):
    """The compiler did not end in time; its process was killed."""


def compile_in_child(source: KernelSource, arch: str, root: str | None) -> CompiledKernel:
    """What the pool's processes do; ``root`` is the cache's folder, None for no cache."""
    return compile_kernel(source, arch, KernelCache(root) if root is not None else None)


class CompilePool:
    """Compiles kernels in processes of their own.

    Args:
        workers: processes at most; by default one for each CPU this process may use. They start when needed.
        cache: shared by all of them; None for none.
        timeout: seconds one compile may take, the start of its process included.
        compiler: the function that compiles, as ``"module:name"``, with the signature of :func:`compile_in_child`.

    Raises:
        SettingError: fewer than one worker.
    """

    def __init__(
        self,
        workers: int | None = None,
        cache: KernelCache | None = None,
        timeout: float = 120.0,
        compiler: str = "gemmtune.codegen.pool:compile_in_child",
    ) -> None:
        self.workers = available_cpus() if workers is None else workers
        check_count("workers", self.workers)
        self.timeout = timeout
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
            ToolchainError: there is no NVRTC, or it does not know ``arch``.
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
        try:
            if child is None:
                child = Child(self._compiler)
                with self._lock:
                    self._children.add(child)
                    closed = self._closed
                if closed:
                    child.process.kill()
            kernel = child.call(source, arch, self._root, timeout=self.timeout)
        except TimeoutError:
            self._lose(child)
            child = None
            error: Exception = CompileTimeout(
                f"Compiling {source.configuration} for {arch} took longer than {self.timeout:g} s and was stopped: "
                f"raise the limit, or leave such configurations out."
            )
        except ChildDiedError as death:
            self._lose(child)
            child = None
            error = CompileError(f"The compiler's process was lost over {source.configuration} for {arch}: {death}.")
        except GemmtuneError as refused:
            error = refused
        except Exception as unexpected:  # must reach whoever waits for the future, and never end this thread
            error = CompileError(f"Compiling {source.configuration} for {arch} failed: {unexpected!r}.")
        else:
            future.set_result(kernel)
            return child
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)
        return child

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
