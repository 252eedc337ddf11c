"""Five kernels with one ailment each, diagnosed without a GPU and held against Nsight Compute on one.

``python benchmarks/ailments.py [--device cuda:0] OUT.json``. The kernels are those of ``tests/diagnose/ailments``. Each
is compiled for the GPU and diagnosed from the compiler's report, the emulator's counters and the machine code alone;
then it runs once under ``ncu``, whose numbers must show the same ailment (see ``SIGNS``) where the sound kernel's do
not; and the diagnosis that goes by ncu's numbers must name it first, too. The exit code is 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.device import open_device
from gemmtune.diagnose import ncu
from gemmtune.diagnose.facts import gather, of_kernel
from gemmtune.diagnose.report import data
from gemmtune.diagnose.verdict import judge
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import save
from gemmtune.space.gpu import Gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "diagnose" / "ailments"))
import ailments

Metrics = Mapping[str, float]

PROTOCOL = (
    "Each kernel is diagnosed from the compiler's report, the emulator's counters and the machine code; then one "
    "launch of it, on operands that no cache holds, is profiled by ncu with the clocks as they are. 'us' is "
    "ncu's gpu__time_duration."
)


def _integer_per_ffma(metrics: Metrics) -> float:
    return metrics.get(ncu.INTEGER, 0.0) / max(1.0, metrics.get(ncu.FFMA, 0.0))


SIGNS: Mapping[str, tuple[str, Callable[[Metrics], bool]]] = {
    "registers": (
        "registers limit the blocks of an SM, and under 20 % of its warps are active",
        lambda m: ncu.limiter(m) == "registers" and m.get(ncu.OCCUPANCY, 100.0) < 20,
    ),
    "uncoalesced": (
        "a global load takes 16 sectors or more",
        lambda m: (ncu.sectors_per_request(m) or 0.0) >= 16,
    ),
    "conflicts": (
        "shared memory takes 4 times the wavefronts that it would without bank conflicts",
        lambda m: (ncu.conflict_factor(m) or 0.0) >= 4,
    ),
    "waves": ("the grid is less than one wave", lambda m: m.get(ncu.WAVES, 1.0) < 1),
    "integer": ("three integer instructions or more for one FFMA", lambda m: _integer_per_ffma(m) >= 3),
}
"""How each ailment shows in ncu's numbers: in words, and as a condition."""


def examine(ill: str, gpu: Gpu, index: int) -> dict[str, Any]:
    """One kernel: our verdict without a GPU, ncu's numbers, our verdict by them, and which signs they show."""
    problem, configuration = ailments.kernel_of(ill)
    kernel = compile_kernel(render(problem, configuration, ailments.Ailments()), gpu.arch)
    facts = gather(of_kernel(kernel, problem, gpu, ill), cubin=kernel.cubin)
    alone = judge(facts)
    metrics = ncu.profile(facts, kernel.cubin, index)
    measured = judge(ncu.with_profile(facts, metrics))
    said = data(alone)
    return {
        "kernel": ill,
        "problem": problem.key,
        "expected": ailments.EXPECTED.get(ill, "none"),
        "without_gpu": alone.first,
        "with_ncu": measured.first,
        "costs": {a["name"]: a["cost"] for a in said["ailments"]},
        "advice": alone.advice,
        "us": metrics.get(ncu.TIME, 0.0) / 1000,
        "shows": [name for name, (_, holds) in SIGNS.items() if holds(metrics)],
        "ncu_limiter": ncu.limiter(metrics),
        "ncu_occupancy_percent": metrics.get(ncu.OCCUPANCY),
        "ncu_sectors_per_load": ncu.sectors_per_request(metrics),
        "counted_sectors_per_load": facts.traffic["global read"].per_request,
        "ncu_conflict_factor": ncu.conflict_factor(metrics),
        "counted_conflict_factor": shared.factor if (shared := facts.accesses("shared")) else None,
        "ncu_waves": metrics.get(ncu.WAVES),
        "ncu_integer_per_ffma": _integer_per_ffma(metrics),
        "counted_integer_per_math": said["integer_per_math"],
        "metrics": metrics,
        "missing": [sentence for sentence in alone.facts.missing if not sentence.startswith("Achieved")],
    }


def missed(kernels: list[dict[str, Any]]) -> list[str]:
    """What does not hold, as sentences."""
    out = []
    for one in kernels:
        ill, expected = one["kernel"], one["expected"]
        out += [
            f"{ill}: {how} the first is {one[how]}, not {expected}"
            for how in ("without_gpu", "with_ncu")
            if one[how] != expected
        ]
        if ill == ailments.SOUND and one["shows"]:
            out.append(f"the sound kernel shows signs of {', '.join(one['shows'])} under ncu")
        if ill != ailments.SOUND and ill not in one["shows"]:
            out.append(f"{ill}: ncu does not show that {SIGNS[ill][0]}")
    return out


def main() -> None:
    """Examine all, print a line each, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    kernels = []
    with closing(open_device(options.device)) as device:
        gpu, blank = device.gpu, blank_result("ailments", device, PROTOCOL)
    for ill in (ailments.SOUND, *ailments.AILMENTS):
        kernels.append(examine(ill, gpu, int(options.device.partition(":")[2] or 0)))
        print({k: v for k, v in kernels[-1].items() if k not in ("metrics", "advice")}, flush=True)  # noqa: T201
    failures = missed(kernels)
    summary = {"kernels": kernels, "signs": {name: words for name, (words, _) in SIGNS.items()}, "missed": failures}
    result = replace(blank, summary=summary)
    save(options.output, result)
    print(*failures, sep="\n", flush=True)  # noqa: T201
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
