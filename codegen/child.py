"""A child process that answers requests over a pipe and never outlives its parent.

Not :mod:`multiprocessing`'s spawn, which runs the caller's main script again in the child: a plain script without an
``if __name__ == "__main__"`` guard, or one read from standard input, would break. The child here starts from nothing
but the name of the function it serves, with the parent's import path.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from typing import Any

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from gemmtune.codegen.child import serve; serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))"
)
_PR_SET_PDEATHSIG = 1


class ChildDiedError(Exception):
    """The child ended while it should have answered; the message says how."""


class Child:
    """One child process serving one function.

    Args:
        function: ``"package.module:name"``; called with the arguments of each request, in order, one at a time.
    """

    def __init__(self, function: str) -> None:
        self.connection, theirs = Pipe()
        try:
            command = [sys.executable, "-P", "-c", _BOOT]
            command += [json.dumps([p for p in sys.path if p]), function, str(theirs.fileno()), str(os.getpid())]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        finally:
            theirs.close()

    def call(self, *arguments: Any, timeout: float) -> Any:
        """What the function returns; what it raises is raised here.

        Raises:
            TimeoutError: no answer within ``timeout`` seconds; the child has been killed.
            ChildDiedError: it ended without an answer.
        """
        try:
            self.connection.send(arguments)
            if not self.connection.poll(timeout):
                self.kill()
                raise TimeoutError(f"no answer within {timeout:g} s")
            returned, value = self.connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise ChildDiedError(self._last_words()) from None
        if returned:
            return value
        raise value

    def kill(self) -> None:
        """End the child now; safe to call twice."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.connection.close()

    def _last_words(self) -> str:
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed its pipe"
        if code >= 0:
            return f"it ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"it died of {signal.Signals(-code).name}"
        return f"it died of signal {-code}"


def serve(function: str, descriptor: int, parent: int) -> None:
    """The child's whole life: answer until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and is the parent's matter
    _die_with(parent)
    module, _, name = function.partition(":")
    call = getattr(importlib.import_module(module), name)
    connection = Connection(descriptor)
    while True:
        try:
            arguments = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            answer = (True, call(*arguments))
        except Exception as error:  # whatever it is, the parent asked and must hear of it
            answer = (False, error)
        try:
            connection.send(answer)
        except BrokenPipeError:
            return


def _die_with(parent: int) -> None:
    """Be killed when the parent's thread that started this process ends (on Linux; elsewhere the pipe tells)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the request was made
        os._exit(1)
