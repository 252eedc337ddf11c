"""The child's side of a worker: builds the engine, answers requests one by one, ends when told or orphaned.

Wire format, both ways: pickled tuples over a socket whose other end only the parent holds. The parent trusts its own
child and the other way round; nothing from outside ever reaches this pipe. To the child: ``(engine path, options)``,
then ``(method, arguments)`` for each request. From it: ``("up", has a probe, probes first)`` or why it did not come up;
then ``("stage", name)`` as a stage begins, and ``("answer", result, is the last, left unusable)``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from gemmtune.codegen.child import find
from gemmtune.device.base import Job, Outcome, Report
from gemmtune.space.errors import GemmtuneError, LaunchError


class Engine(Protocol):
    """What runs inside the child; made from its import path and keyword arguments.

    Optional attributes: ``spent`` (bool), read after every request: True says that the last job left this process
    unusable (a CUDA context with a sticky error), which is then replaced; ``renew_after`` (int): it is replaced after
    so many requests in any case. ``announce``: set by the child; to be called with the name of each stage of a job
    (:data:`gemmtune.device.base.Stage`) as it begins. ``probe(reference)``: runs a known kernel and returns a
    :class:`gemmtune.device.probe.Health`; asked of every child that replaces another and, where ``probe_first`` is
    true, of the first one too, whose time is the later ones' reference.
    """

    def run(self, job: Job) -> Report:
        """Prove and time one kernel."""
        ...

    def compare(self, jobs: list[Job]) -> list[Report]:
        """Re-measure several, interleaved."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


def main(pipe: Connection) -> None:
    """Serve the parent at the other end of ``pipe`` until either ends; run by :func:`gemmtune.codegen.child.start`."""
    try:
        path, options = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own parent
    except (EOFError, OSError):
        return
    _volunteer()
    try:
        engine: Engine = find(path)(**options)
    except GemmtuneError as error:
        pipe.send_bytes(_portable(error))
        return
    except Exception as error:
        pipe.send_bytes(pickle.dumps(f"{type(error).__name__}: {error}"))
        return
    if hasattr(engine, "announce"):
        engine.announce = lambda stage: pipe.send_bytes(pickle.dumps(("stage", stage)))
    pipe.send_bytes(pickle.dumps(("up", hasattr(engine, "probe"), bool(getattr(engine, "probe_first", False)))))
    spent = _serve(pipe, engine)
    if not spent:  # on a broken CUDA context cleaning up fails, or hangs
        with contextlib.suppress(Exception):
            engine.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # an interpreter that shuts down with a broken CUDA context may hang


def _volunteer() -> None:
    """Have the system, where it runs out of memory, kill this process and not the study's."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _serve(pipe: Connection, engine: Engine) -> bool:
    """Answer until the parent is gone or this process is to be replaced; whether a job left it unusable."""
    limit = getattr(engine, "renew_after", None)
    served = 0
    while True:
        try:
            method, arguments = pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own parent
        except (EOFError, OSError):  # the parent closed the pipe, or is gone
            return False
        answer = _answer(getattr(engine, method), arguments)
        served += 1
        spent = bool(getattr(engine, "spent", False))
        last = spent or (limit is not None and served >= limit)
        try:
            message = pickle.dumps(("answer", answer, last, spent))
        except Exception as error:
            failure = Report(
                Outcome.INFRASTRUCTURE, f"The engine's answer cannot be sent: {type(error).__name__}: {error}."
            )
            message = pickle.dumps(("answer", failure, last, spent))
        with contextlib.suppress(OSError):
            pipe.send_bytes(message)
        if last:
            return spent


def _answer(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The engine's answer, or what its exception means: a report, or a typed error for :meth:`Worker.ask` to raise."""
    try:
        return call(*arguments)
    except MemoryError as error:
        return Report(Outcome.OUT_OF_MEMORY, str(error) or "The worker ran out of memory.")
    except LaunchError as error:
        return Report(Outcome.LAUNCH, str(error))
    except GemmtuneError as error:
        return pickle.loads(_portable(error))  # noqa: S301 - made one line above
    except Exception as error:
        return Report(Outcome.INFRASTRUCTURE, f"The engine failed: {type(error).__name__}: {error}.")


def _portable(error: GemmtuneError) -> bytes:
    """A typed error as bytes: message and public type, without the traceback's or a subclass's baggage."""
    public = next(kind for kind in type(error).__mro__ if kind.__module__ == GemmtuneError.__module__)
    return pickle.dumps(public(str(error)))
