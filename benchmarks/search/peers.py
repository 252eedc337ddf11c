"""Kernel Tuner's strategies on a recorded space, in its simulation mode, into the result file of ``gemmtune replay``.

``python benchmarks/search/peers.py SPACE OUT.json --strategy bayes_opt:10 --strategy genetic_algorithm:30``. The space
is handed over as a Kernel Tuner cache file that gemmtune writes; what is not in it is excluded by a restriction, and
values that no configuration has are left out, so that Kernel Tuner searches the same valid set. Each strategy runs with
consecutive seeds and ``max_fevals`` evaluations; its options follow its name, as in ``bayes_opt,method=ei:10``.
Evaluations count in the order of their first visit, as Kernel Tuner counts them. It comes with the extra ``compare``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import kernel_tuner
import numpy as np

from gemmtune.search.recorded_study import open_space
from gemmtune.search.replay import Replayed, curve_of
from gemmtune.search.replay_file import add_replays
from gemmtune.search.replay_plot import plot_replays
from gemmtune.space.configuration import Configuration
from gemmtune.space.recorded import RecordedSpace, write_recording
from gemmtune.space.recorded.model import plain_value

DEFAULT = ("bayes_opt:10", "genetic_algorithm:30", "diff_evo:30")
PREFIX = "kernel_tuner "


def simulate(space: RecordedSpace, cache: Path, strategy: str, seed: int, budget: int | None) -> list[float | None]:
    """The objectives of one run, in the order in which its configurations were first tried; None for failures.

    Without a ``budget`` the strategy decides when to end.
    """
    header = json.loads(cache.read_text())
    knobs, entries = header["tune_params_keys"], header["cache"]
    recording = space.recording
    for knob, values in header["tune_params"].items():  # it walks the product of all values, at every run
        seen = {entry[knob] for entry in entries.values()}
        header["tune_params"][knob] = [v for v in values if v in seen]

    def recorded(values: dict[str, Any]) -> bool:
        return ",".join(str(values[k]) for k in knobs) in entries

    name, *words = strategy.split(",")
    options: dict[str, Any] = dict(word.split("=", 1) for word in words)
    if budget is not None:
        options["max_fevals"] = budget
    random.seed(seed)
    np.random.seed(seed)  # Kernel Tuner draws from the global generators
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results, _ = kernel_tuner.tune_kernel(
            header["kernel_name"], "__global__ void kernel() {}", header["problem_size"], [],
            header["tune_params"], restrictions=recorded, simulation_mode=True, cache=str(cache), strategy=name,
            strategy_options=options, quiet=True, lang="CUDA",
        )  # fmt: skip
    (family,) = recording.parameters
    objectives: dict[Configuration, float | None] = {}
    for result in results:
        configuration = Configuration.of(family, {k: plain_value(result[k]) for k in knobs})
        if configuration in recording and configuration not in objectives:
            objectives[configuration] = recording.objective(recording.find(configuration))
    return list(objectives.values())


def compare(space: RecordedSpace, strategy: str, repeats: int, budget: int, seed: int) -> Replayed:
    """``repeats`` runs of one of Kernel Tuner's strategies."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "space.json"
        write_recording(space.recording, cache, "kernel_tuner")
        began = time.perf_counter()
        runs = [simulate(space, cache, strategy, seed + i, budget) for i in range(repeats)]
        seconds = time.perf_counter() - began
    curves = np.array([curve_of(space, run, budget) for run in runs])
    return Replayed(f"{PREFIX}{strategy}", curves, seconds)


def main() -> None:
    """Run the strategies one after another, and write each into the file when it is through."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space", help="as for gemmtune replay")
    parser.add_argument("output", help="result file")
    parser.add_argument("--strategy", action="append", metavar="NAME[,OPTION=VALUE][:REPEATS]")
    parser.add_argument("--family")
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot")
    words = parser.parse_args()
    recording = open_space(words.space)
    space = RecordedSpace(recording.of_family(words.family) if words.family else recording)
    for text in words.strategy or DEFAULT:
        name, _, repeats = text.partition(":")
        told = compare(space, name, int(repeats or 30), words.budget, words.seed)
        result = add_replays(words.output, space, {told.strategy: told.to_json()})
        if words.plot:
            plot_replays(words.plot, result.summary["spaces"])
        sys.stdout.write(f"{told.strategy} {json.dumps(told.to_json()['fraction'])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
