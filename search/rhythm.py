"""The rhythm in which a study calls its strategy: fixed batches, a fixed number of them ahead of the device.

Batch b is chosen from the results of batches up to b - AHEAD - 1, whatever machine this is, so that 12 to 16 kernels
are being compiled or wait while one runs: enough to keep 16 cores busy. More would help them little, and a search needs
the more trials, the later it learns of a result. Since the sequence of calls is a constant, a study that is started
again replays it over the recorded trials, and its strategy ends up where it was.

The calls are made by a thread: a proposal takes tens of milliseconds, which pass while the device is busy. Meanwhile
the interpreter changes threads fifty times as often as it does by default: whoever waits for the device or the database
would else wait up to 5 ms longer for his turn, some ten times a trial. And its linear algebra keeps to one thread:
matrices of a few hundred rows gain nothing by more, which would take turns with the compilers on every CPU.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from threadpoolctl import threadpool_limits

from gemmtune.search.strategy import Result, Strategy

BATCH = 4
AHEAD = 3
TURN = 0.0001
"""Seconds for which a thread may keep the interpreter while another one waits."""


def one_thread() -> threadpool_limits:
    """From now on linear algebra keeps to one thread; as a context manager, within the block."""
    return threadpool_limits(1, user_api="blas")


class Rhythm:
    """A strategy and the thread that calls it, one call after another, in the order they were asked for."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._thread = ThreadPoolExecutor(1, "gemmtune-strategy")
        self._coming: deque[Future[list[int]]] = deque()

    def ask(self, n: int, results: Sequence[Result] = ()) -> None:
        """Have the strategy observe ``results``, then propose ``n`` configurations."""
        self._coming.append(self._thread.submit(self._step, n, tuple(results)))

    @property
    def coming(self) -> bool:
        """Whether there is a proposal still to be taken."""
        return bool(self._coming)

    def take(self, *, wait: bool) -> list[int] | None:
        """The next proposal; None where there is none, or it is not ready and ``wait`` is false."""
        if not self._coming or not (wait or self._coming[0].done()):
            return None
        return self._coming.popleft().result()

    def _step(self, n: int, results: tuple[Result, ...]) -> list[int]:
        if results:
            self._strategy.observe(results)
        return self._strategy.propose(n)

    def __enter__(self) -> Rhythm:
        self._limits = one_thread()
        self._turn = sys.getswitchinterval()
        sys.setswitchinterval(min(TURN, self._turn))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        sys.setswitchinterval(self._turn)
        self._limits.restore_original_limits()
