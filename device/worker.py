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
import time
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import IO, Any, Protocol

from gemmtune.codegen.child import signal_name, start
from gemmtune.device.base import Job, Limits, Outcome, Report
from gemmtune.device.probe import Health
from gemmtune.space.errors import GemmtuneError, ToolchainError, UnknownNameError

_GRACE = 5.0
"""Seconds a child that announced its end gets to do so before it is killed."""
_REAP = 30.0
"""Seconds a killed child gets to be gone: the driver first takes its kernel off the GPU."""


class Aftermath(Protocol):
    """Sees to it that a dead worker leaves nothing on its device."""

    def before(self) -> None:
        """Called when no worker is up, just before one starts."""
        ...

    def after(self, pid: int) -> str:
        """Called when worker ``pid`` is dead: waits until nothing is left of it, and says what is after a while."""
        ...


class _TooLongError(Exception):
    """The child did not answer in time; the message says in what."""


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

    A child that replaces another first proves its device sane, where the engine can (``probe``, see
    :class:`gemmtune.device.child.Engine`): a known kernel gives its known answer, in the time that the first child
    measured. Where it does not, the request is an ``infrastructure`` report, and the next one gets another child.

    The child starts with the first request. It dies with this process, and takes no notice of Ctrl-C: that is the
    parent's matter. Use from one thread at a time.

    Args:
        engine: ``cuda:N``, ``emulator:NAME`` or ``package.module:Class``.
        options: further keyword arguments of the engine's class; must be picklable.
        start_timeout: seconds the first child may take to come up.
        aftermath: called around the life of each child.
    """

    def __init__(
        self,
        engine: str,
        options: Mapping[str, Any] | None = None,
        *,
        start_timeout: float = 180.0,
        aftermath: Aftermath | None = None,
    ) -> None:
        self._path, arguments = resolve_engine(engine)
        self._options = {**arguments, **(options or {})}
        self._engine = engine
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._words: IO[bytes] | None = None
        self._aftermath = aftermath
        self._undead: list[subprocess.Popen[bytes]] = []
        self._reference_us: float | None = None
        self.started = 0
        """How many children there have been."""
        self._came_up = False

    # ------------------------------------------------------------------------------------------------- requests

    def request(self, job: Job, limits: Limits) -> Report:
        """Prove and time one kernel; whatever the kernel does, a report comes back within the limits.

        Where the engine announces its stages each has its own limit, else all of them share one.

        Raises:
            GemmtuneError: no child ever came up, so that no kernel is to blame; the message is the engine's own.
        """
        return self._reported("run", (job,), limits, 1)[0]

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

    def start(self, timeout: float | None = None) -> None:
        """Bring the child up now, where there is none; a replacement within ``timeout`` seconds.

        Raises:
            ToolchainError: the engine did not come up, with the child's own message, or its device is not sane.
            GemmtuneError: another typed error that the engine's constructor raised.
        """
        if self.pid is not None:
            return
        self._end()
        allowed = self._start_timeout if timeout is None or not self._came_up else timeout
        deadline = time.monotonic() + allowed
        if self._aftermath is not None:
            self._aftermath.before()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        try:
            self._process, self._pipe = start("gemmtune.device.child:main", output=self._words)
        except OSError as error:
            raise ToolchainError(f"The worker process could not be started: {error}.") from None
        self.started += 1
        try:
            self._pipe.send_bytes(pickle.dumps((self._path, self._options)))
            if not self._pipe.poll(allowed):
                raise _TooLongError
            answer = pickle.loads(self._pipe.recv_bytes())  # noqa: S301 - from our own child
            if isinstance(answer, GemmtuneError):
                raise answer
            if isinstance(answer, str):
                raise ToolchainError(f"The worker of {self._engine} did not come up: {answer}")
            _, probes, probes_first = answer
            if probes and (self._came_up or probes_first):
                self._prove_sane(self._pipe, deadline)
        except _TooLongError:
            self._end()
            raise ToolchainError(f"The worker of {self._engine} did not come up within {allowed:.3g} s.") from None
        except (EOFError, OSError):
            raise ToolchainError(f"The worker of {self._engine} did not come up: {self._obituary()[1]}") from None
        except BaseException:
            self._end()
            raise
        self._came_up = True

    def _prove_sane(self, pipe: Connection, deadline: float) -> None:
        """Have the fresh child run the known kernel.

        Raises:
            ToolchainError: the device is not sane.
            _TooLongError: no answer.
        """
        pipe.send_bytes(pickle.dumps(("probe", (self._reference_us,))))
        health, _, _ = _answer(pipe, max(0.0, deadline - time.monotonic()))
        if not isinstance(health, Health):
            said = health.detail if isinstance(health, Report) else str(health)
            raise ToolchainError(f"The device of {self._engine} cannot run a known kernel: {said}")
        if health.trouble:
            raise ToolchainError(f"The device of {self._engine} is not sane: {health.trouble}")
        if self._reference_us is None:
            self._reference_us = health.us

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

    def _reported(self, method: str, arguments: tuple[Any, ...], limits: Limits | float, count: int) -> list[Report]:
        try:
            answer = self._exchange(method, arguments, limits)
        except GemmtuneError as error:
            if not self._came_up:
                raise
            answer = error
        if isinstance(answer, GemmtuneError):
            answer = Report(Outcome.INFRASTRUCTURE, str(answer))
        if isinstance(answer, Report):  # of several kernels nobody knows which one it was
            return [replace(answer, killed=answer.killed and count == 1)] * count
        if isinstance(answer, list) and len(answer) == count and all(isinstance(r, Report) for r in answer):
            return answer
        return [Report(Outcome.INFRASTRUCTURE, f"The engine answered {method} with {type(answer).__name__}.")] * count

    def _exchange(self, method: str, arguments: tuple[Any, ...], limits: Limits | float) -> Any:
        """One request: the engine's result, the typed error it raised, or a Report of how the child ended."""
        try:
            message = pickle.dumps((method, arguments))
        except Exception as error:  # pickle raises whatever the object's own code does
            return Report(
                Outcome.INFRASTRUCTURE, f"The job cannot be sent to a worker: {type(error).__name__}: {error}."
            )
        self.start(limits.start if isinstance(limits, Limits) else None)
        pipe, pid = self._pipe, self.pid or 0
        assert pipe is not None  # noqa: S101 - start() made it
        try:
            pipe.send_bytes(message)
            answer, last, spent = _answer(pipe, limits)
        except _TooLongError as error:
            self._end()
            detail = f"{error}: the worker was killed and is replaced.{self._left_by(pid)}"
            return Report(Outcome.TIMEOUT, detail, killed=True)
        except (EOFError, OSError):
            outcome, words = self._obituary()
            return Report(outcome, words + self._left_by(pid), killed=True)
        except BaseException:  # Ctrl-C: the answer to this request must never be taken for that to the next
            self._end()
            raise
        if last:  # the child is spent, or has served its number of requests: it ends by itself
            self._end(patience=_GRACE)
        if spent:
            left = self._left_by(pid)
            if isinstance(answer, Report):
                answer = replace(answer, killed=True, detail=answer.detail + left)
        return answer

    def _left_by(self, pid: int) -> str:
        """A sentence to append on what a dead child left on the device, once it has had time to be cleared away."""
        if self._undead:
            return f" Process {pid} does not die, though killed {_REAP:g} s ago: the driver holds it."
        left = self._aftermath.after(pid) if self._aftermath is not None else ""
        return f" {left}" if left else ""

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
            try:
                process.wait(_REAP)
            except subprocess.TimeoutExpired:  # stuck in the driver: to be reaped once it is let go
                self._undead.append(process)
        self._undead = [one for one in self._undead if one.poll() is None]
        if words is not None:
            words.close()


def _answer(pipe: Connection, limits: Limits | float) -> tuple[Any, bool, bool]:
    """The child's answer, whether it is the child's last, and whether the child is unusable now.

    Raises:
        _TooLongError: a stage, or all of it, took longer than its limit.
        EOFError, OSError: the child is gone.
    """
    allowed = limits.job if isinstance(limits, Limits) else limits
    end = deadline = time.monotonic() + allowed
    late = f"No answer within {allowed:.3g} s"
    while pipe.poll(max(0.0, deadline - time.monotonic())):
        message = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own child
        if message[0] == "answer":
            return message[1], message[2], message[3]
        if isinstance(limits, Limits):
            stage = message[1]
            deadline = min(end, time.monotonic() + limits.of(stage))
            late = f"It did not end its {stage} stage within {limits.of(stage):.3g} s"
    raise _TooLongError(late)


class WorkerDevice:
    """The part of a device that its worker does."""

    _worker: Worker

    def start(self) -> None:
        """Bring the first worker up; does nothing where there has been one."""
        if not self._worker.started:
            self._worker.start()

    def run(self, job: Job, limits: Limits) -> Report:
        """Prove and time one kernel; whatever the kernel does, a hang or crash included, is a report."""
        return self._worker.request(job, limits)

    def compare(self, jobs: list[Job], timeout: float) -> list[Report]:
        """Run several in one go: measured interleaved with the baseline, or estimated once more."""
        return self._worker.compare(jobs, timeout)

    def close(self) -> None:
        """End the worker; safe to call twice."""
        self._worker.close()
