"""A worker process that runs kernels, and what becomes of it: the parent's side.

A kernel may hang, crash the process, or leave the GPU's context unusable. All of that happens in a child process (see
:mod:`gemmtune.device.child`) and comes back as a typed :class:`Report`; the next request gets a fresh child.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import IO, Any

from gemmtune.codegen.child import signal_name, start
from gemmtune.device.base import Job, Limits, Outcome, Report
from gemmtune.space.errors import GemmtuneError, ToolchainError, UnknownNameError

_GRACE = 5.0
"""Seconds a child that announced its end gets to do so before it is killed."""


def resolve_engine(spec: str) -> tuple[str, dict[str, Any]]:
    """The import path ("module:Class") and the arguments of an engine.

    ``cuda:N`` and ``emulator:NAME`` are the product's own; ``package.module:Class`` names any other.

    Raises:
        UnknownNameError: the text is neither.
    """
    kind, _, rest = spec.partition(":")
    if kind == "cuda" and rest.isdigit():
        return "gemmtune.device.cuda.engine:CudaEngine", {"index": int(rest)}
    if kind == "emulator" and rest:
        return "gemmtune.device.emulator.engine:EmulatorEngine", {"gpu_name": rest}
    if rest.isidentifier() and kind not in ("cuda", "emulator") and all(p.isidentifier() for p in kind.split(".")):
        return spec, {}
    raise UnknownNameError(f"Unknown engine {spec!r}: write cuda:0, emulator:h200 or package.module:Class.")


class Worker:
    """One child process with an engine in it, replaced whenever it hangs, dies or is spent.

    The child starts with the first request. It dies with this process, and takes no notice of Ctrl-C: that is the
    parent's matter. Use from one thread at a time.

    Args:
        engine: ``cuda:N``, ``emulator:NAME`` or ``package.module:Class``.
        options: further keyword arguments of the engine's class; must be picklable.
        start_timeout: seconds the engine may take to come up.
    """

    def __init__(self, engine: str, options: Mapping[str, Any] | None = None, *, start_timeout: float = 180.0) -> None:
        self._path, arguments = resolve_engine(engine)
        self._options = {**arguments, **(options or {})}
        self._engine = engine
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._words: IO[bytes] | None = None
        self.started = 0
        """How many children there have been."""
        self._came_up = False

    # ------------------------------------------------------------------------------------------------- requests

    def request(self, job: Job, limits: Limits) -> Report:
        """Prove and time one kernel; whatever the kernel does, a report comes back within the limits.

        Raises:
            GemmtuneError: no child ever came up, so that no kernel is to blame; the message is the engine's own.
        """
        return self._reported("run", (job,), limits.total, 1)[0]

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        """Re-measure several kernels in one interleaved run: one report each; raises as :meth:`request` does."""
        return self._reported("compare", (list(jobs),), timeout, len(jobs))

    def ask(self, method: str, *arguments: Any, timeout: float = 60.0) -> Any:
        """Call any method of the engine and return its (picklable) result.

        Raises:
            GemmtuneError: what the engine raised, or ToolchainError where the worker could not start, died or hung.
        """
        answer = self._exchange(method, arguments, timeout)
        if isinstance(answer, Report):
            raise ToolchainError(f"The worker of {self._engine} failed in {method}: {answer.detail}")
        if isinstance(answer, GemmtuneError):
            raise answer
        return answer

    @property
    def pid(self) -> int | None:
        """Process id of the living child, or None."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Bring the child up now, where there is none.

        Raises:
            ToolchainError: the engine did not come up; the message is the child's own.
            GemmtuneError: another typed error that the engine's constructor raised.
        """
        if self.pid is not None:
            return
        self._end()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        try:
            self._process, self._pipe = start("gemmtune.device.child:main", output=self._words)
        except OSError as error:
            raise ToolchainError(f"The worker process could not be started: {error}.") from None
        self.started += 1
        try:
            self._pipe.send_bytes(pickle.dumps((self._path, self._options)))
            if not self._pipe.poll(self._start_timeout):
                self._end()
                raise ToolchainError(f"The worker of {self._engine} did not come up within {self._start_timeout:g} s.")
            answer = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - from our own child
        except (EOFError, OSError):
            raise ToolchainError(f"The worker of {self._engine} did not come up: {self._obituary()[1]}") from None
        except BaseException:
            self._end()
            raise
        if answer is not None:
            self._end()
            if isinstance(answer, GemmtuneError):
                raise answer
            raise ToolchainError(f"The worker of {self._engine} did not come up: {answer}")
        self._came_up = True

    def close(self) -> None:
        """End the child, which may close its engine first; safe to call twice."""
        self._end(patience=_GRACE)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be half gone
            self._end()

    # -------------------------------------------------------------------------------------------------- internals

    def _reported(self, method: str, arguments: tuple[Any, ...], timeout: float, count: int) -> list[Report]:
        try:
            answer = self._exchange(method, arguments, timeout)
        except GemmtuneError as error:
            if not self._came_up:
                raise
            answer = error
        if isinstance(answer, GemmtuneError):
            answer = Report(Outcome.INFRASTRUCTURE, str(answer))
        if isinstance(answer, Report):
            return [answer] * count
        if isinstance(answer, list) and len(answer) == count and all(isinstance(r, Report) for r in answer):
            return answer
        return [Report(Outcome.INFRASTRUCTURE, f"The engine answered {method} with {type(answer).__name__}.")] * count

    def _exchange(self, method: str, arguments: tuple[Any, ...], timeout: float) -> Any:
        """One request: the engine's result, the typed error it raised, or a Report of how the child ended."""
        try:
            message = pickle.dumps((method, arguments))
        except Exception as error:  # pickle raises whatever the object's own code does
            return Report(
                Outcome.INFRASTRUCTURE, f"The job cannot be sent to a worker: {type(error).__name__}: {error}."
            )
        self.start()
        pipe = self._pipe
        assert pipe is not None  # noqa: S101 - start() made it
        try:
            pipe.send_bytes(message)
            if not pipe.poll(timeout):
                self._end()
                return Report(
                    Outcome.TIMEOUT, f"No answer within {timeout:g} s: the worker was killed and is replaced."
                )
            answer, last = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own child
        except (EOFError, OSError):
            outcome, words = self._obituary()
            return Report(outcome, words)
        except BaseException:  # Ctrl-C: the answer to this request must never be taken for that to the next
            self._end()
            raise
        if last:  # the child is spent, or its CUDA context is: it ends by itself
            self._end(patience=_GRACE)
        return answer

    def _obituary(self) -> tuple[Outcome, str]:
        """How the child died, once its pipe has closed."""
        process, words = self._process, self._last_words()
        self._end(patience=_GRACE)
        code = process.returncode if process is not None else None
        said = f" Its last words: {words}" if words else ""
        if code == -signal.SIGKILL:
            return Outcome.OUT_OF_MEMORY, f"The worker was killed by the system, most likely for want of memory.{said}"
        if code is not None and code < 0:
            return Outcome.LAUNCH, f"The kernel crashed the worker with {signal_name(code)}.{said}"
        return Outcome.INFRASTRUCTURE, f"The worker ended by itself with exit code {code}.{said}"

    def _last_words(self) -> str:
        """The last non-empty line the child wrote to stdout or stderr."""
        if self._words is None:
            return ""
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - 4096))
        lines = [line.strip() for line in self._words.read().decode(errors="replace").splitlines()]
        return next((line[:300] for line in reversed(lines) if line), "")

    def _end(self, patience: float = 0.0) -> None:
        """Reap the child and all it started: after ``patience`` seconds of waiting, by force."""
        process, self._process = self._process, None
        pipe, self._pipe = self._pipe, None
        words, self._words = self._words, None
        if pipe is not None:
            pipe.close()
        if process is not None:
            if patience:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # its compilers too; the group outlives a dead leader
            process.wait()
        if words is not None:
            words.close()


class WorkerDevice:
    """The part of a device that its worker does."""

    _worker: Worker

    def run(self, job: Job, limits: Limits) -> Report:
        """Prove and time one kernel; whatever the kernel does, a hang or crash included, is a report."""
        return self._worker.request(job, limits)

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        """Run several in one go: measured interleaved with the baseline, or estimated once more."""
        return self._worker.compare(jobs, timeout)

    def close(self) -> None:
        """End the worker; safe to call twice."""
        self._worker.close()
