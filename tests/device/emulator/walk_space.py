"""Emulate a whole space, or every STEPth configuration of it: ``python tests/device/emulator/walk_space.py hopper``.

Small problems that between them have every dtype, layout, epilogue and raggedness, on a GPU with so few multiprocessors
that persistent grids have several tiles a block. Prints what fails and where it stands, and exits with 1 where anything
failed; ``--start`` goes on from a configuration's number. CI takes a seeded sample of the same
(``test_hopper_family.py``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from gemmtune.codegen.render import render
from gemmtune.device.emulator.emulate import Run, emulate
from gemmtune.device.emulator.launch import SCHEDULES
from gemmtune.device.emulator.tiles import is_cut_by_device
from gemmtune.space.families import family
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.space import Space

PROBLEMS = (
    Gemm(130, 104, 520, dtype="fp16", layout="tn", epilogue="bias", lda=136),
    Gemm(264, 200, 328, dtype="tf32", out_dtype="bf16"),
    Gemm(33, 264, 1000, layout="nn", epilogue="alpha_beta", out_dtype="fp32"),
    Gemm(200, 400, 648, layout="tt", lda=208),
    Gemm(300, 520, 264),
    Gemm(16, 520, 1032),
)
SMS = 4
_WORK = 20_000_000


def check(name: str, number: int, place: int, gpu_name: str) -> str:
    """What is wrong with one configuration of one problem; empty where nothing is."""
    problem, h = PROBLEMS[number], replace(gpu(gpu_name), sms=SMS)
    space = _space(name, number, gpu_name)
    configuration = space[place]
    source = render(problem, configuration)
    run = Run(problem.m, SCHEDULES[place % 3], 1.0, sms=SMS, whole=is_cut_by_device(source.recipe))
    capability = h.capability[0] * 10 + h.capability[1]
    found = emulate(
        source.text, source.recipe, problem, runs=[run], seed=place, work=_WORK, capability=capability
    ).verification
    return "" if found.passed else f"{problem.key}: {place}: {configuration}: {found.detail}"


_SPACES: dict[tuple[str, int, str], Space] = {}


def _space(name: str, number: int, gpu_name: str) -> Space:
    """The space, numbered once a process."""
    key = (name, number, gpu_name)
    if key not in _SPACES:
        _SPACES[key] = Space(PROBLEMS[number], replace(gpu(gpu_name), sms=SMS), [family(name)])
    return _SPACES[key]


def walk(name: str, gpu_name: str, start: int, step: int, workers: int) -> Iterator[str]:
    """One line for each failure, and one for each problem that was walked to its end."""
    with ProcessPoolExecutor(workers) as pool:
        for number, problem in enumerate(PROBLEMS):
            if family(name).unsupported(problem, gpu(gpu_name)):
                continue
            places = range(start, len(_space(name, number, gpu_name)), step)
            count = len(places)
            same = ([value] * count for value in (name, number))
            yield from filter(None, pool.map(check, *same, places, [gpu_name] * count, chunksize=16))
            yield f"walked {count} of {problem.key}"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", help="a family's name, e.g. hopper")
    parser.add_argument("--gpu", default="h200", help="of the shipped table")
    parser.add_argument("--start", type=int, default=0, help="number of the first configuration of each problem")
    parser.add_argument("--step", type=int, default=1, help="take one configuration in so many")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    failed = 0
    for line in walk(args.family, args.gpu, args.start, args.step, args.workers):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        failed += not line.startswith("walked ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
