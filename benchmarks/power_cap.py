"""What the power cap does to times: ``python benchmarks/power_cap.py OUT.json [--device cuda:0]``, about a minute.

One kernel runs for a while alone, then in turns with the baseline of 0.05 to 1 s each. Told are the scatter of the
kernel's means over windows of growing length, which is what :data:`gemmtune.device.cuda.timing.SPAN` goes by; its mean
time at so many seconds after the baseline, which is what the untimed leads go by; and its ratio to the baseline by the
length of a turn, which is why trials and finals let a kernel settle.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import on_gpu

from gemmtune.device.cuda.bench import Bench, estimate
from gemmtune.device.cuda.info import gpu_of, monitor
from gemmtune.device.cuda.timing import Replay, Stopwatch, launches_for
from gemmtune.device.launch import LoadedKernel
from gemmtune.device.toolchain import require_cupy
from gemmtune.search.noise import good_kernel
from gemmtune.space.gemm import Gemm

WINDOWS = (0.05, 0.1, 0.2, 0.33, 0.5, 1.0, 2.0)
TURNS = (0.05, 0.1, 0.25, 0.5, 1.0)
AFTER = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4)
"""Seconds: windows, turns, and moments in the longest turn after the baseline's."""
ALONE, TAKING_TURNS, AHEAD = 16.0, 8.0, 8
PROTOCOL = (
    "CUDA graphs of about 2.5 ms over cold operands, back to back and each timed: the kernel alone for {alone:g} s "
    "(2 s of them left out), then in turns with the baseline for {turns:g} s by each length of a turn."
)


class Runner:
    """Runs graphs back to back, a few ahead of the clock, and takes the time of each."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def times(self, replays: Sequence[Replay]) -> np.ndarray:
        """Microseconds a launch of each."""
        cuda = require_cupy().cuda
        events = [cuda.Event() for _ in range(len(replays) + 1)]
        events[0].record(self._stream)
        for i, replay in enumerate(replays):
            replay.launch(self._stream)
            events[i + 1].record(self._stream)
            if i >= AHEAD:
                events[i - AHEAD].synchronize()
        events[-1].synchronize()
        spans = [cuda.get_elapsed_time(a, b) for a, b in pairwise(events)]
        return np.array(spans) * 1e3 / [replay.launches for replay in replays]


def scatter(us: np.ndarray, each: float) -> dict[str, float]:
    """Standard deviation of means over windows, relative, by the window's length in seconds."""
    out = {}
    for seconds in WINDOWS:
        n = max(1, round(seconds / each))
        means = us[: len(us) // n * n].reshape(-1, n).mean(1)
        out[f"{seconds:g}"] = round(float(means.std(ddof=1) / us.mean()), 5)
    return out


def measure(problem: Gemm, index: int, kernel: Any) -> dict[str, Any]:
    """The summary, of ``kernel`` on GPU ``index``."""
    cupy = require_cupy()
    cupy.cuda.Device(index).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        watch = Stopwatch(stream, "sustained", monitor(index))
        bench = Bench(problem, gpu_of(index), stream)
        loaded = LoadedKernel(kernel.cubin, kernel.recipe)
        bench.prover.prove(loaded, 0)
        calls = bench.calls(loaded, "cold")
        ours = Replay("kernel", calls, launches_for(estimate(calls, watch), len(calls)), stream)
        baseline = bench.baseline("cold", watch)
        runner = Runner(stream)
        each = float(np.median(runner.times([ours] * 40))) * ours.launches * 1e-6
        alone = runner.times([ours] * round(ALONE / each))[round(2 / each) :]
        ratios, after = {}, {}
        for turn in TURNS:
            n = max(1, round(turn / each))
            turns = max(2, round(TAKING_TURNS / (2 * turn)))
            found = runner.times(([ours] * n + [baseline] * n) * turns).reshape(turns, 2, n)[1:]
            ratios[f"{turn:g}"] = round(float(found[:, 1].mean() / found[:, 0].mean()), 4)
            after = {f"{s:g}": found[:, 0, round(s / each) :][:, :4].mean() for s in AFTER if s < turn - 4 * each}
        watch.warm([ours], 0.2)
    return {
        "estimated": False,
        "problem": problem.key,
        "configuration": str(kernel.configuration),
        "capped": watch.capped,
        "scatter_of_means": scatter(alone, each),
        "us_alone": round(float(alone.mean()), 2),
        "us_after_the_baseline": {s: round(float(us), 2) for s, us in after.items()},
        "ratio_by_turn": ratios,
    }


def main() -> None:
    """Measure, and write the file."""
    options = on_gpu.parser(__doc__).parse_args()
    problem = Gemm(4096, 4096, 4096, "bf16")
    protocol = PROTOCOL.format(alone=ALONE, turns=TAKING_TURNS)
    on_gpu.write(options, protocol, lambda device, index: measure(problem, index, good_kernel(problem, device)))


if __name__ == "__main__":
    main()
