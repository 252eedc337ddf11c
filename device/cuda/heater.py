"""Keeping the card at work between jobs, so that every trial finds it in the same state.

A card that idles while a kernel compiles, or a worker is replaced, may run above its sustained clock for a while, and
the ratio of two kernels depends on the clock. Without this, the ratios of right kernels on an H200 moved by 5 % or more
in one of ten where faulty ones between them cost workers their lives (``benchmarks/h200/faults.json``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gemmtune.device.cuda.timing import Replay

PATIENCE = 10.0
"""Seconds without a job after which the card is left alone."""


class Heater:
    """Replays a graph over and over while nothing else is asked for.

    Args:
        stream: CuPy stream.
        clock: seconds that only grow.
    """

    def __init__(self, stream: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream = stream
        self._clock = clock
        self._replay: Replay | None = None
        self._until = 0.0

    def light(self, replay: Replay) -> None:
        """From now on keep the card at work with ``replay``, whose operands stay alive until :meth:`put_out`."""
        self._replay = replay
        self._until = self._clock() + PATIENCE

    def put_out(self) -> None:
        """Leave the card alone."""
        self._replay = None

    def beat(self) -> bool:
        """Some milliseconds of work; whether there is more to come."""
        if self._replay is None or self._clock() > self._until:
            self._replay = None
            return False
        try:
            self._replay.launch(self._stream)
            self._stream.synchronize()
        except RuntimeError:  # a lost context is the next job's to report
            self._replay = None
            return False
        return True
