"""Whether a GPU is sane: a known kernel in its known time, and nothing left behind by a worker that died.

The probe runs in the worker; :class:`Traces` runs in the parent, through NVML, and makes no CUDA context.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from gemmtune.device import probe
from gemmtune.device.cuda.nvml import Monitor
from gemmtune.device.elementwise import compile_module
from gemmtune.device.probe import Health
from gemmtune.device.toolchain import require_cupy

BLOCKS = 2048
"""Enough to fill any GPU, so that a leftover kernel beside it shows in the time."""
STEPS = 4096
REPEATS = 5
SLOWER = 1.5
"""Times the reference that the known kernel may take: what the card's own clocks make of it."""
WARM_SECONDS = 0.15
"""How long the kernel is repeated for a reference: an idle card raises its clocks within it."""
SETTLE_SECONDS = 5.0
"""How long a slow card gets to come back to its known time."""
SLACK_BYTES = 8 * 2**20
"""GPU memory that may differ once a worker is gone."""
GONE_SECONDS = 5.0
"""How long the driver gets to clear away a dead worker."""
_POLL = 0.02


class Probe:
    """The known kernel on the current device.

    Args:
        stream: CuPy stream it runs on.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def check(self, reference: float | None) -> Health:
        """Run the known kernel until it takes at most :data:`SLOWER` times ``reference`` microseconds.

        Without a reference it makes one: the shortest of the medians over :data:`WARM_SECONDS`.
        """
        function, given, expected = self._setup
        cupy = require_cupy()
        with self._stream:
            source = cupy.asarray(given)
            out = cupy.zeros_like(source)
            numbers = (np.uint32(probe.MULTIPLIER), np.uint32(probe.INCREMENT), np.int32(STEPS))

            def run() -> float:
                events = [cupy.cuda.Event() for _ in range(REPEATS + 1)]
                events[0].record(self._stream)
                for event in events[1:]:
                    function((BLOCKS,), (probe.THREADS,), (source, out, *numbers))
                    event.record(self._stream)
                events[-1].synchronize()
                elapsed = cupy.cuda.get_elapsed_time
                return 1e3 * statistics.median(float(elapsed(a, b)) for a, b in pairwise(events))

            us = run()  # the first launch of a process also loads the kernel
            wrong = probe.difference(out.get(), expected)
            return Health(us, wrong) if wrong else settled(run, reference, time.monotonic)

    @cached_property
    def _setup(self) -> tuple[Any, Any, Any]:
        given = probe.question(BLOCKS)
        return compile_module(probe.BODY).get_function(probe.ENTRY), given, probe.answer(given, STEPS)


def settled(run: Callable[[], float], reference: float | None, clock: Callable[[], float]) -> Health:
    """The verdict on a kernel whose time in microseconds ``run`` measures; see :meth:`Probe.check`."""
    started = clock()
    best = run()
    if reference is None:
        while clock() - started < WARM_SECONDS:
            best = min(best, run())
        return Health(best)
    while best > SLOWER * reference:
        if clock() - started > SETTLE_SECONDS:
            return Health(
                best,
                f"A known kernel took {best:.0f} us or more for {SETTLE_SECONDS:g} s, but {reference:.0f} us when this "
                f"program began: something else is running on the GPU, or it is slowed down (see nvidia-smi).",
            )
        best = min(best, run())
    return Health(best)


class Traces:
    """What a worker leaves on a GPU: see :class:`gemmtune.device.worker.Aftermath`.

    Args:
        monitor: reads the GPU.
        clock: seconds that only grow.
        pause: sleeps so many seconds.
    """

    def __init__(
        self,
        monitor: Monitor,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._monitor = monitor
        self._clock = clock
        self._pause = pause
        self._used: int | None = None

    def before(self) -> None:
        """No worker is up: this is how much memory the rest of the world uses."""
        self._used = self._monitor.memory_used()

    def after(self, pid: int) -> str:
        """Wait until nothing is left of worker ``pid``; one sentence on what still is after a while, or nothing."""
        end = self._clock() + GONE_SECONDS
        while True:
            left = self._left(pid)
            if not left or self._clock() >= end:
                return left
            self._pause(_POLL)

    def _left(self, pid: int) -> str:
        if pid in self._monitor.processes():
            return f"After {GONE_SECONDS:g} s the driver still lists the dead worker (process {pid}) on the GPU."
        used = self._monitor.memory_used()
        if used is None or self._used is None or used <= self._used + SLACK_BYTES:
            return ""
        more = (used - self._used) / 2**20
        return f"After {GONE_SECONDS:g} s {more:.0f} MiB more GPU memory were in use than before the dead worker began."
