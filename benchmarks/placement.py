"""What a kernel's time owes to where its operands lie: ``python benchmarks/placement.py OUT.json`` on a GPU.

Kernels of one family are loaded twice each, and timed alone on the same number of sets of operands in several places:
each place is an allocation of its own of all that the cold cache needs, and all are held at once. Told are, for each
kernel and for the baseline, the median times by place, how far the slowest place is from the fastest, and how far one
load of the code is from the other in the same place.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
import on_gpu

from gemmtune.codegen.cache import KernelCache
from gemmtune.codegen.pool import CompilePool
from gemmtune.codegen.render import render
from gemmtune.device.cuda.bench import Bench, estimate
from gemmtune.device.cuda.info import gpu_of, monitor
from gemmtune.device.cuda.timing import Replay, Series, Stopwatch, launches_for
from gemmtune.device.launch import LoadedKernel
from gemmtune.device.toolchain import require_cupy
from gemmtune.search.start import starting_points
from gemmtune.space.families import family
from gemmtune.space.gemm import Gemm
from gemmtune.space.space import Space

KERNELS, PLACES, LOADS, SEED = 24, 6, 2, 8
LEAD, SPAN, SAMPLES = 0.005, 0.02, 3
"""Seconds untimed, seconds timed, and the samples that these are cut into."""
APART = 0.02
"""Places that differ by more count as different."""
PROTOCOL = (
    "CUDA graphs over cold operands; {kernels} kernels of {family} and the baseline, {loads} loads each, alone in "
    "{places} places that are held at once: the median of {samples} samples of {span:g} s together."
)


def times(bench: Bench, kernels: list[list[LoadedKernel]], watch: Stopwatch, stream: Any) -> list[list[float]]:
    """Microseconds a launch of every load of every kernel in this place, those of the baseline last."""
    found = []
    for loads in kernels:
        row = []
        for loaded in loads:
            calls = bench.calls(loaded, "cold")
            us = estimate(calls, watch)
            replay = Replay("kernel", calls, launches_for(us, len(calls)), stream)
            row.append(median(watch.alone(Series(replay), us, LEAD, SPAN, SAMPLES)))
        found.append(row)
    replay = bench.baseline("cold", watch)
    us = watch.once(lambda: replay.launch(stream)) / replay.launches
    return [*found, [median(watch.alone(Series(replay), us, LEAD, SPAN, SAMPLES)) for _ in range(LOADS)]]


def measure(problem: Gemm, name: str, index: int) -> dict[str, Any]:
    """The summary, on GPU ``index``."""
    cupy = require_cupy()
    cupy.cuda.Device(index).use()
    gpu, chosen = gpu_of(index), family(name)
    space = Space(problem, gpu, [chosen])
    points = [space[i] for i in starting_points(space, KERNELS, np.random.default_rng(SEED))]
    with CompilePool(cache=KernelCache()) as pool:
        futures = [pool.submit(render(problem, point, chosen), gpu.arch) for point in points]
        compiled = [future.result() for future in futures]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        watch = Stopwatch(stream, "sustained", monitor(index))
        kernels = [[LoadedKernel(kernel.cubin, kernel.recipe) for _ in range(LOADS)] for kernel in compiled]
        benches = [Bench(problem, gpu, stream) for _ in range(PLACES)]
        for bench in benches:
            bench.pointers("cold")
        us = np.array([times(bench, kernels, watch, stream) for bench in benches])  # places, kernels, loads
    by_place = np.median(us, axis=2)
    places = by_place.max(axis=0) / by_place.min(axis=0) - 1
    loads = (us.max(axis=2) / us.min(axis=2) - 1).max(axis=0)
    return {
        "estimated": False,
        "problem": problem.key,
        "kernels": len(points),
        "places": PLACES,
        "apart": APART,
        "kernels_that_places_move": int((places[:-1] > APART).sum()),
        "kernels_that_loads_move": int((loads[:-1] > APART).sum()),
        "most_by_place": round(float(places[:-1].max()), 4),
        "most_by_load": round(float(loads[:-1].max()), 4),
        "baseline_by_place": round(float(places[-1]), 4),
        "us": {
            str(what): [round(float(x), 2) for x in by_place[:, i]] for i, what in enumerate([*points, "baseline"])
        },
    }  # fmt: skip


def main() -> None:
    """Measure, and write the file."""
    parser = on_gpu.parser(__doc__)
    parser.add_argument("--family", default="mma")
    parser.add_argument("--shape", default="1000x1000x1000")
    options = parser.parse_args()
    problem = Gemm(*map(int, options.shape.split("x")), "bf16")
    protocol = PROTOCOL.format(
        kernels=KERNELS, family=options.family, loads=LOADS, places=PLACES, samples=SAMPLES, span=SPAN
    )  # fmt: skip
    on_gpu.write(options, protocol, lambda _, index: measure(problem, options.family, index))


if __name__ == "__main__":
    main()
