"""The naive GEMM: one thread computes one output, straight from memory. To compare with, not to search."""

from __future__ import annotations

from typing import Any

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.families import gemm_recipe
from gemmtune.space.family import Family, Traits
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe

_SIDE = 16  # a block is 16 x 16 threads, one output each


class Naive(Family):
    """Every dtype, layout, size, pitch and epilogue; no knobs. tf32 operands are multiplied in full fp32."""

    name = "naive"
    summary = "one thread, one output: the simplest right kernel, to compare with"
    searchable = False

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        """GEMMs on compute capability 7.0 and above."""
        return gemm_recipe.unsupported(problem, gpu, "naive", (7, 0))

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """None."""
        return ()

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        """One block of 256 threads for each 16 x 16 outputs."""
        gemm = gemm_recipe.as_gemm(problem)
        return LaunchRecipe(
            entry=self.name,
            block=(_SIDE * _SIDE, 1, 1),
            grid=gemm_recipe.grid(_SIDE, _SIDE),
            arguments=gemm_recipe.arguments(gemm),
            tile=gemm_recipe.tile(_SIDE, _SIDE, 1),
            preconditions=(gemm_recipe.RUNTIME_M,),
            constants={"n": gemm.n, "k": gemm.k},
        )

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        """Two loads for each multiply-add: the load pipe, not the FMA pipe, sets the pace."""
        return Traits(
            tile_m=_SIDE,
            tile_n=_SIDE,
            tile_k=1,
            splits=1,
            stages=1,
            threads=_SIDE * _SIDE,
            shared_bytes=0,
            registers=40,
            unit="fma",
            efficiency=0.08,
            padded_k=problem.axes["k"],
        )

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        """The tile sizes that the common part of the template wants."""
        return {"bm": _SIDE, "bn": _SIDE, "bk": 1, "group": 1}
