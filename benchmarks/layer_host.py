"""What a layer left to torch costs the host: ``python benchmarks/layer_host.py PACK OUT.json``, with a GPU or without.

A loop over one layer finds all it touches in the processor's caches; a model, which runs a hundred other operators
between two layers, does not. So here 72 layers are called one after the other, and before each some MiB of memory are
gone through, which drives out what the layers before have left there. Host microseconds of the call alone, of
``nn.Linear`` and of the same layer swapped, at a size that the pack leaves to torch in eager code; in turns.
"""

from __future__ import annotations

import argparse
import copy
import gc
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gemmtune.torch as gt
from gemmtune.device import open_device
from gemmtune.device.statistics import median_interval
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import save

LAYERS = 72
DIRTY_MIB = (0, 1, 4, 16)
PROTOCOL = (
    "{layers} layers [{n}, {k}] with biases (bf16, {rows} rows, no gradients) one after the other, before each of "
    "which so many MiB of memory are read and written ('again': nn.Linear once more, as another copy); host "
    "microseconds a call, medians over {turns} turns; 'more' is by how many a call is longer than nn.Linear's, turn by "
    "turn, with its 95 % interval."
)


def main() -> None:
    """Measure every amount of memory and write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack")
    parser.add_argument("output")
    parser.add_argument("--shape", default="4096x768x768", help="MxNxK of the layers")
    parser.add_argument("--turns", type=int, default=21)
    options = parser.parse_args()
    rows, n, k = map(int, options.shape.split("x"))
    cuda = torch.cuda.is_available()
    where = torch.device("cuda" if cuda else "cpu")
    torch.set_num_threads(1)
    plain = [torch.nn.Linear(k, n, device=where, dtype=torch.bfloat16) for _ in range(LAYERS)]
    sets = {"nn.Linear": plain, "swapped": copy.deepcopy(plain), "again": copy.deepcopy(plain)}
    key = gt.use(options.pack)
    for layer in sets["swapped"]:
        gt.optimize_(layer, key)
    x = torch.ones(rows, k, device=where, dtype=torch.bfloat16)
    with torch.no_grad():
        sets["swapped"][0](x)
    served = gt.served(key)
    if any(who.startswith("kernel") for who in served.values()):
        raise SystemExit(f"A kernel of the pack serves {options.shape} in eager code: take another shape.")
    found = {f"{dirty} MiB": measure(sets, x, dirty, options.turns) for dirty in DIRTY_MIB}
    text = PROTOCOL.format(layers=LAYERS, n=n, k=k, rows=rows, turns=options.turns)
    summary = {"estimated": not cuda, "us": found, "served": served}
    with closing(open_device("cuda:0" if cuda else "emulator:h200")) as device:
        result = blank_result(Path(options.output).stem, device, text, summary)
    save(options.output, replace(result, versions={**result.versions, "torch": torch.__version__}))
    for dirty, us in found.items():
        print(dirty, {name: round(value, 2) for name, value in us.items() if isinstance(value, float)}, us["more"])  # noqa: T201


def measure(sets: dict[str, list[Any]], x: Any, dirty: int, turns: int) -> dict[str, Any]:
    """Microseconds a call of each set, and how many more than of the first with their interval."""
    memory = torch.zeros(max(1, dirty * 2**18))
    taken: dict[str, list[float]] = {name: [] for name in sets}
    for layers in sets.values():
        once(layers, x, memory)
    gc.disable()
    try:
        for turn in range(turns):
            for name, layers in list(sets.items())[:: 1 if turn % 2 else -1]:
                taken[name].append(once(layers, x, memory))
    finally:
        gc.enable()
    first, *others = taken
    more = {name: median_interval([b - a for a, b in zip(taken[first], taken[name], strict=True)]) for name in others}
    return {
        **{name: median(us) for name, us in taken.items()},
        "more": {name: [round(v, 3) for v in (found.median, found.low, found.high)] for name, found in more.items()},
    }


def once(layers: list[Any], x: Any, memory: Any) -> float:
    """Mean microseconds of calling each layer, with ``memory`` gone through before it."""
    clock, total = time.perf_counter_ns, 0
    with torch.no_grad():
        for layer in layers:
            memory.add_(1)
            begin = clock()
            layer(x)
            total += clock() - begin
    if x.is_cuda:
        torch.cuda.synchronize()
    return total / len(layers) / 1000


if __name__ == "__main__":
    main()
