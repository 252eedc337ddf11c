"""Kernels that are right and slow, each for one reason, and a sound one: what diagnosis is tested on.

A family of one knob, ``ill``; importable by its path from tests and from ``benchmarks/ailments.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.families import gemm_recipe
from gemmtune.space.family import Family, Traits
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe

SOUND = "none"
AILMENTS = ("registers", "uncoalesced", "conflicts", "waves", "integer")
"""What each kernel suffers from, in the order in which an engineer looks."""

_BIG = Gemm(4096, 2112, 256, dtype="fp32")  # 64 x 33 tiles: sixteen for each of an H200's SMs
PROBLEMS: dict[str, Gemm] = {
    SOUND: _BIG,
    "registers": Gemm(4224, 2048, 160, dtype="fp32", layout="nn"),  # 66 x 8 tiles: four for each SM
    "uncoalesced": _BIG,
    "conflicts": _BIG,
    "waves": Gemm(256, 256, 2048, dtype="fp32"),  # 4 x 4 tiles for 132 SMs
    "integer": _BIG,
}
"""For each kernel a problem on which nothing but its ailment holds an H200 back."""

EXPECTED = {
    "registers": "occupancy",
    "uncoalesced": "global memory",
    "conflicts": "bank conflicts",
    "waves": "waves",
    "integer": "integer work",
}
"""What diagnosis is to call each ailment."""

_SIDE = 64
_DEPTH = 32


class Ailments(Family):
    """64 x 64 tiles through shared memory; the kernel of ``registers`` is another one (64 x 256, none shared)."""

    name = "ailment"
    summary = "small fp32 kernels with one thing done badly"
    searchable = False
    template_dirs = (Path(__file__).parent / "templates",)

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        return gemm_recipe.unsupported(problem, gpu, self.name, (7, 0))

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        return (Parameter("ill", (SOUND, *AILMENTS), "what is done badly"),)

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        gemm = gemm_recipe.as_gemm(problem)
        v = self.context(problem, configuration)
        registers = configuration["ill"] == "registers"
        return LaunchRecipe(
            entry=self.name,
            block=(256, 1, 1),
            grid=gemm_recipe.grid(v["bm"], v["bn"]),
            arguments=gemm_recipe.arguments(gemm),
            tile=gemm_recipe.tile(v["bm"], v["bn"], 1),
            dynamic_shared=0 if registers else 2 * _SIDE * v["pitch"] * 4,
            preconditions=(
                gemm_recipe.RUNTIME_M,
                *(gemm_recipe.aligned("a", 4, 4) if registers else ()),
            ),
            constants={"n": gemm.n, "k": gemm.k},
        )

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        v = self.context(problem, configuration)
        shared = 2 * _SIDE * v["pitch"] * 4
        if configuration["ill"] == "registers":
            return Traits(v["bm"], v["bn"], problem.axes["k"], 1, 1, 256, 0, 216, "fma")
        return Traits(v["bm"], v["bn"], v["bk"], 1, 1, 256, shared, 56, "fma")

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        ill = configuration["ill"]
        return {
            "bm": _SIDE,
            "bn": 256 if ill == "registers" else _SIDE,
            "bk": _DEPTH,
            "group": 1,
            "pitch": _DEPTH if ill == "conflicts" else _DEPTH + 1,
        }


def kernel_of(ill: str) -> tuple[Gemm, Configuration]:
    """The problem and configuration of one of them."""
    return PROBLEMS[ill], Configuration.of(Ailments.name, {"ill": ill})
