"""Kernels that do one thing wrong each, as a family from outside: what a study must live through.

``FAULTS`` says of each what it does, how a trial of it must end, and whether it takes its worker along. On a GPU and on
the emulator some end differently: the emulator sees the write itself, a GPU the damage that it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemmtune.device.base import Outcome
from gemmtune.space import families
from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.families import gemm_recipe
from gemmtune.space.family import Family, Traits
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe

VARIANTS = 8
DEPTH = 16
"""Of the tree of template instances: NVRTC takes 6 s and 0.4 GB for 14, 30 s for 15, minutes for 16."""


@dataclass(frozen=True)
class Fault:
    """One way to go wrong: the outcome on a GPU, on the emulator, and whether the GPU's worker is lost with it."""

    cuda: Outcome
    emulator: Outcome
    kills: bool = False
    words: str = ""
    """Which the reason on record must hold, on either device (a regular expression)."""

    def outcome(self, kind: str) -> Outcome:
        """What a trial must end as on a device of ``kind``."""
        return self.emulator if kind == "emulator" else self.cuda


def _both(outcome: Outcome, words: str, *, kills: bool = False) -> Fault:
    return Fault(outcome, outcome, kills, words)


FAULTS: Mapping[str, Fault] = {
    "none": _both(Outcome.CORRECT, ""),
    "out_of_bounds": Fault(Outcome.WRONG, Outcome.LAUNCH, words="outside the output|buffer d"),
    "writes_input": Fault(Outcome.WRONG, Outcome.LAUNCH, words="wrong|must not write"),
    "illegal_address": _both(Outcome.LAUNCH, "died while it ran|plain access", kills=True),
    "misaligned": _both(Outcome.LAUNCH, "died while it ran|not a multiple of 4", kills=True),
    "trap": _both(Outcome.LAUNCH, "died while it ran|a trap", kills=True),
    "spin": _both(Outcome.TIMEOUT, "killed|work budget", kills=True),
    "spin_silently": _both(Outcome.TIMEOUT, "killed", kills=True),
    "deadlock": _both(Outcome.TIMEOUT, "killed|at the block barrier", kills=True),
    "spill": _both(Outcome.PRUNED, r"spills \d+ bytes"),
    "shared_hog": _both(Outcome.PRUNED, "of shared memory"),
    "memory_hog": _both(Outcome.OUT_OF_MEMORY, "memory"),
    "refused": _both(Outcome.COMPILE, "fault=refused"),
    "slow_compile": _both(Outcome.COMPILE, "fault=slow_compile"),
    "nan": _both(Outcome.WRONG, "wrong|NaN|nan"),
    "corner": _both(Outcome.WRONG, "wrong|is right|row"),
    "nondeterministic": _both(Outcome.WRONG, "wrong|no barrier between"),
}


class Faulty(Family):
    """One thread, one output, and one thing wrong with it: ``fault`` says what, ``variant`` where or how."""

    name = "fault"
    summary = "kernels that go wrong in one way each"
    searchable = False
    template_dirs = (Path(__file__).resolve().parent / "templates",)

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        """GEMMs on compute capability 7.5 and above."""
        return gemm_recipe.unsupported(problem, gpu, self.name, (7, 5))

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """The fault, its variant, and the side of a block of threads."""
        return (
            Parameter("fault", tuple(FAULTS), "what goes wrong"),
            Parameter("variant", tuple(range(VARIANTS)), "where or how it does"),
            Parameter("side", (8, 16), "a block computes side x side outputs, one a thread"),
        )

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        """One block of side x side threads for as many outputs; the hogs ask for more memory than there is."""
        gemm = gemm_recipe.as_gemm(problem)
        side, fault = configuration.integer("side"), configuration["fault"]
        variant = configuration.integer("variant")
        return LaunchRecipe(
            entry=self.name,
            block=(side * side, 1, 1),
            grid=gemm_recipe.grid(side, side),
            arguments=gemm_recipe.arguments(gemm, workspace=fault == "memory_hog"),
            tile=gemm_recipe.tile(side, side, 1),
            dynamic_shared=2**20 + 1024 * variant if fault == "shared_hog" else 0,
            workspace=str(2**50 + variant) if fault == "memory_hog" else "0",
            counters="4" if fault == "memory_hog" else "0",
            preconditions=(gemm_recipe.RUNTIME_M,),
            constants={"n": gemm.n, "k": gemm.k},
        )

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        """Those of the naive kernel: every multiply-add takes two loads."""
        side = configuration.integer("side")
        naive = families.family("naive").traits(problem, Configuration.of("naive", {}), gpu)
        return replace(naive, tile_m=side, tile_n=side, threads=side * side)

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        """The tile sizes that the common part of the template wants, and how slow the slow compile is."""
        side = configuration.integer("side")
        return {"bm": side, "bn": side, "bk": 1, "group": 1, "depth": DEPTH}


def configuration(fault: str, variant: int = 0, side: int = 16) -> Configuration:
    """The kernel with ``fault``."""
    return Configuration.of(Faulty.name, {"fault": fault, "variant": variant, "side": side})


def several(fault: str, count: int) -> list[Configuration]:
    """The first ``count`` kernels with ``fault``, the most different first; there are 16."""
    return [configuration(fault, i % VARIANTS, 16 if i < VARIANTS else 8) for i in range(count)]


def fault_of(text: str) -> str | None:
    """What is wrong with the configuration written as ``text``; None for kernels of other families."""
    found = Configuration.parse(text)
    return str(found["fault"]) if found.family == Faulty.name else None


@contextmanager
def registered() -> Iterator[Faulty]:
    """The family among those that gemmtune knows, for as long as it lasts."""
    family = Faulty()
    families.FAMILIES[family.name] = family
    try:
        yield family
    finally:
        del families.FAMILIES[family.name]
