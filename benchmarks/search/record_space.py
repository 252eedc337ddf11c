"""Record a grid of one family's configurations on a GPU, so that anyone can compare search strategies without it.

``python benchmarks/search/record_space.py 4096x4096x4096 --db grid.sqlite --time 540 OUT.json.gz``. Every valid
configuration of a grid (:data:`GRIDS`: a few values of each knob, chosen so that some thousands are valid) is proved
and timed as any study does, in random order, so that what is there after an early end is a fair sample. The same
command with the same database goes on where it ended; the recording is written at every end. Without ``--time`` it runs
until the grid is through. ``--list`` tells how many configurations each grid has, and needs no GPU.

Ratios to the baseline, which runs beside every kernel, do not depend on the clock of the moment; at the power cap the
times do. So the times written are the baseline's settled time (the median of those beside correct kernels) over each
ratio: whoever minimises times and whoever maximises ratios searches one and the same space.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from statistics import median

from gemmtune.db import History
from gemmtune.search.recorded_study import recording_of
from gemmtune.search.study import tune
from gemmtune.space import families
from gemmtune.space.configuration import Parameter, Value
from gemmtune.space.families.hopper import Hopper
from gemmtune.space.families.mma import Mma
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, gpu
from gemmtune.space.problem import Problem, shape_of
from gemmtune.space.recorded import Recorded, Recording, write_recording
from gemmtune.space.recorded.model import CORRECT
from gemmtune.space.space import Space

Grid = dict[str, tuple[Value, ...]]
GRIDS: dict[str, tuple[str, Grid]] = {
    # Square: tiles from too small to the largest, deep and shallow pipelines, both schedules, clusters, persistence.
    "4096x4096x4096": (
        "hopper",
        {
            "bm": (64, 128, 192, 256),
            "bn": (64, 96, 128, 160, 192, 224, 256),
            "stages": (2, 3, 4, 5, 6),
            "group": (1, 8),
            "store": ("shared", "tma"),
            "producer": (40,),
            "raster": ("rows",),
            "stream": (0,),
        },
    ),
    # A layer at decoding: operands swapped or not, K split or not, hints for what is read once.
    "64x7168x16384": (
        "hopper",
        {
            "bm": (64, 128, 256),
            "bn": (16, 32, 48, 64, 128),
            "bk": (64, 128),
            "stages": (3, 4, 6, 8),
            "cluster": ("1x1", "2x1"),
            "raster": ("rows",),
            "group": (1,),
            "splits": (1, 2, 3, 4, 6, 8),
            "producer": (40,),
            "stream": (0,),
        },
    ),
    # Split K on tensor cores of any generation: warp tiles, staging, fragments ahead.
    "1024x1024x4096": (
        "mma",
        {
            "bm": (32, 64, 128),
            "bn": (32, 64, 128),
            "bk": (32, 64),
            "wm": (32, 64),
            "wn": (32, 64),
            "stages": (2, 3, 4, 5),
            "smem": ("xor",),
            "ldmatrix": (1,),
            "unroll": (1,),
            "splits": (1, 2, 4, 8),
            "group": (8,),
            "blocks": (1,),
        },
    ),
}
"""By shape: the family, and the values of those of its knobs that do not have all of theirs."""
SOURCE = "Recorded by gemmtune's benchmarks/search/record_space.py; MIT licence, as the rest of the repository."


class GridOfHopper(Hopper):
    """The family with some of its knobs' values, by shape."""

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """The knobs with the grid's values."""
        return narrowed(super().parameters(problem, gpu), problem)


class GridOfMma(Mma):
    """The family with some of its knobs' values, by shape."""

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """The knobs with the grid's values."""
        return narrowed(super().parameters(problem, gpu), problem)


def narrowed(parameters: tuple[Parameter, ...], problem: Problem) -> tuple[Parameter, ...]:
    """The knobs with the values of the problem's grid, where it names any and the problem allows them."""
    _, grid = GRIDS[shape_of(problem.axes)]
    return tuple(
        replace(p, values=tuple(v for v in p.values if v in grid.get(p.name, p.values)) or p.values) for p in parameters
    )


def settled(recording: Recording) -> Recording:
    """The recording with the times that its ratios make of the baseline's settled one."""
    beside = [r.us * r.ratio for r in recording.rows if r.outcome == CORRECT and r.us and r.ratio]
    if not beside:
        return recording
    baseline = median(beside)

    def timed(row: Recorded) -> Recorded:
        if row.us is None or row.ratio is None:
            return row
        scale = baseline / row.ratio / row.us
        low, high = (None if us is None else us * scale for us in (row.us_low, row.us_high))
        return replace(row, us=row.us * scale, us_low=low, us_high=high)

    protocol = f"{recording.protocol} Times are {baseline:.3f} us, the baseline's, over the ratio."
    return replace(recording, rows=tuple(map(timed, recording.rows)), protocol=protocol)


def problem_of(shape: str) -> Gemm:
    """The bf16 problem of a grid's shape."""
    m, n, k = map(int, shape.split("x"))
    return Gemm(m, n, k, "bf16")


def main() -> int:
    """Record, or list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="?", choices=sorted(GRIDS))
    parser.add_argument("output", nargs="?", help="recording to write, *.json.gz")
    parser.add_argument("--db", help="history of the recording, kept between runs")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--time", type=float, help="seconds for this run")
    parser.add_argument("--trials", type=int, help="configurations in all, instead of the whole grid")
    parser.add_argument("--list", action="store_true")
    words = parser.parse_args()
    families.FAMILIES |= {"hopper": GridOfHopper(), "mma": GridOfMma()}
    if words.list:
        for shape, (family, _) in GRIDS.items():
            space = Space(problem_of(shape), gpu("h200"), [families.family(family)])
            sys.stdout.write(f"{shape}: {len(space)} valid of {space.raw_size}\n")
        return 0
    if not (words.shape and words.output and words.db):
        parser.error("a shape, an output and --db are needed")
    family, _ = GRIDS[words.shape]
    with History(words.db) as history:
        (result,) = tune(
            problem_of(words.shape), words.device, trials=words.trials, time_limit=words.time, families=[family],
            strategy="random", history=history,
        )  # fmt: skip
        recording = recording_of(history, [result.study_id])
    recording = settled(replace(recording, name=f"{family}-h200-{words.shape}-bf16", source=SOURCE))
    write_recording(recording, words.output)
    sys.stdout.write(f"{len(recording)} of {result.valid} configurations in {words.output}: {result.outcomes}\n")
    return 0 if len(recording) >= result.valid else 3


if __name__ == "__main__":
    sys.exit(main())
