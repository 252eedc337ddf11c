"""Child processes that answer over a pipe and never outlive their parent: compilers, and the workers of devices.

Not :mod:`multiprocessing`'s spawn, which runs the caller's main script again in the child: a plain script without an
``if __name__ == "__main__"`` guard, or one read from standard input, would break. A child here starts from nothing
but the name of the function it runs, with the parent's import path.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gemmtune.codegen.child import live; live(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])"
)
_PR_SET_PDEATHSIG = 1


_WANT = ("out of memory", "bad_alloc", "cannot allocate memory", "memoryerror")
"""Last words of a process that memory was refused: LLVM's, C++'s, the C library's, Python's."""


class ChildDiedError(Exception):
    """The child ended while it should have answered; the message says how."""


class ChildMemoryError(ChildDiedError):
    """It ended, or can no longer be used, for want of memory."""


def start(
    function: str, *arguments: str, output: IO[bytes] | None = None
) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a child that calls ``function`` with its end of a pipe and ``arguments``; the process and our end.

    It ignores Ctrl-C, which is the parent's matter, leads a process group of its own, and is killed when this process
    ends, however that comes about.

    Args:
        function: ``"package.module:name"``.
        arguments: further arguments.
        output: where what it prints goes; by default where ours does.

    Raises:
        OSError: no process can be started.
    """
    ours, theirs = Pipe()
    path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
    # -P: a file of the working directory must not stand in for a module of the standard library
    command = [sys.executable, "-P", "-c", _BOOT, path, str(theirs.fileno()), str(os.getpid()), function, *arguments]
    try:
        process = (
            _starter()
            .submit(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # a Ctrl-C at the terminal goes to the parent's group alone
            )
            .result()
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def find(name: str) -> Any:
    """What ``"package.module:name"`` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def signal_name(code: int) -> str:
    """The name of the signal that a process with the negative exit code ``code`` died of."""
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


@lru_cache(maxsize=1)
def _starter() -> ThreadPoolExecutor:
    """The one thread that starts children.

    Linux sends the parent-death signal when the *thread* that started the child ends, so a child started from a
    short-lived thread would die with it. This thread lives as long as the process.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="gemmtune-start")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_starter.cache_clear)  # a fork does not take the thread along


# ----------------------------------------------------------------------------------------------------- requests to it


class Child:
    """One child process serving one function.

    What it prints is kept for the message about its death. What it logs is logged here.

    Args:
        function: ``"package.module:name"``; called with the arguments of each request, in order, one at a time.
        memory: bytes of data it may allocate; None for no limit.
        log: is told the logger's name, the level and the message of what the child logs; by default it is logged.

    Attributes:
        served: requests answered with a value so far.

    Raises:
        OSError: no process can be started.
    """

    def __init__(
        self, function: str, memory: int | None = None, log: Callable[[str, int, str], None] | None = None
    ) -> None:
        self.served = 0
        self._log = log or _log
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        try:
            self.process, self.connection = start(f"{__name__}:serve", function, str(memory or 0), output=self._printed)
        except BaseException:
            self._printed.close()
            raise

    def call(self, *arguments: Any, timeout: float) -> Any:
        """What the function returns; what it raises is raised here.

        Raises:
            TimeoutError: no answer within ``timeout`` seconds; the child has been killed.
            ChildMemoryError: it was refused memory, or the system killed it for taking too much; it must be replaced.
            ChildDiedError: it ended without an answer.
        """
        try:
            self.connection.send(arguments)
            if not self.connection.poll(timeout):
                self.kill()
                raise TimeoutError(f"no answer within {timeout:g} s")
            returned, value, logged = self.connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise self._obituary() from None
        for record in logged:
            self._log(*record)
        if isinstance(value, MemoryError):
            raise ChildMemoryError("it was refused memory")
        if not returned:
            raise value
        self.served += 1
        return value

    def kill(self) -> None:
        """End the child and what it started, now; safe to call twice."""
        if self.process.returncode is None:  # its number may be another's once it was waited for
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.process.wait()
        self.connection.close()
        self._printed.close()

    def _obituary(self) -> ChildDiedError:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return ChildDiedError("it closed its pipe")
        how = f"it ended with exit code {code}" if code >= 0 else f"it died of {signal_name(code)}"
        said = self._last_line()
        message = f"{how}, saying {said!r}" if said else how
        # A SIGKILL that is not ours is the system's, which ends the largest process when memory runs out.
        if code == -signal.SIGKILL or any(words in said.lower() for words in _WANT):
            return ChildMemoryError(message)
        return ChildDiedError(message)

    def _last_line(self) -> str:
        """The last line that it printed, which is where a runtime that aborts says why."""
        if self._printed.closed:
            return ""
        end = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, end - 2000))
        lines = self._printed.read().decode(errors="replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")


def _log(name: str, level: int, message: str) -> None:
    logging.getLogger(name).log(level, "%s", message)


# ------------------------------------------------------------------------------------------------------- in the child


def live(descriptor: int, parent: int, function: str, *arguments: str) -> None:
    """The child's whole life: ``function(pipe, *arguments)``, where ``parent`` is the parent's process id."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(parent)
    os.set_inheritable(descriptor, False)  # what is started from here must not keep the pipe open
    find(function)(Connection(descriptor), *arguments)


def serve(pipe: Connection, function: str, memory: str = "0") -> None:
    """Answer the requests of a :class:`Child` until the parent closes the pipe."""
    _limit(int(memory))
    logged = _Collected()
    logging.getLogger().addHandler(logged)
    call = find(function)
    while True:
        try:
            arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            answer = (True, call(*arguments))
        except Exception as error:  # whatever it is, the parent asked and must hear of it
            answer = (False, error)
        try:
            pipe.send((*answer, logged.taken()))
        except BrokenPipeError:
            return


class _Collected(logging.Handler):
    """What is logged here, until the parent is told."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._records: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append((record.name, record.levelno, record.getMessage()))

    def taken(self) -> list[tuple[str, int, str]]:
        records, self._records = self._records, []
        return records


YIELD = 10
"""How much a process that serves many requests beside others stands back for the program that it serves."""


def _limit(memory: int) -> None:
    """Allow this process ``memory`` bytes of data (0: any number) and no core file; stand back on a busy machine.

    The limit is on data, not on addresses: libraries and reserved address space cost no memory. There is a compiler for
    every CPU, but the study's own process and the one that launches kernels must not wait for one.
    """
    if sys.platform == "win32":
        return
    import resource

    os.nice(YIELD)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        most = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _die_with(parent: int) -> None:
    """Arrange for this process to be killed when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    # Elsewhere, and should the parent be replaced by exec: notice being handed to another process.
    threading.Thread(target=_watch, args=(parent,), daemon=True, name="gemmtune-watch").start()


def _watch(parent: int) -> None:
    """Poll for having been orphaned, once a second."""
    pause = threading.Event()
    while not pause.wait(1.0):
        if os.getppid() != parent:
            os._exit(1)
