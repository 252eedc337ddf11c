"""A problem kind and a family that gemmtune does not ship, in a module of their own: the smallest complete example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.constraint import Constraint
from gemmtune.space.dtypes import FP32
from gemmtune.space.family import Family, Traits
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Array, ErrorBound, Problem, Tensor, register_problem
from gemmtune.space.recipe import Argument, LaunchRecipe, Tile


@dataclass(frozen=True)
class Transposition:
    """D[m,n] = A[n,m] transposed, fp32."""

    m: int
    n: int

    kind: ClassVar[str] = "transposition"

    @property
    def key(self) -> str:
        return f"{self.kind} {self.m}x{self.n}"

    @property
    def axes(self) -> Mapping[str, int]:
        return {"m": self.m, "n": self.n}

    @property
    def flops(self) -> int:
        return 0

    @property
    def bytes(self) -> int:
        return sum(t.bytes for t in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        return Tensor("a", FP32, (self.n, self.m), self.m), Tensor("d", FP32, (self.m, self.n), self.n, output=True)

    def environment(self) -> dict[str, Any]:
        return {**self.axes, "lda": self.m, "ldd": self.n, "dtype": "fp32"}

    def with_axes(self, **axes: int) -> Transposition:
        return replace(self, **axes)

    def inputs(self, seed: int) -> dict[str, Array]:
        return {"a": np.random.default_rng(seed).standard_normal((self.n, self.m), dtype=np.float32)}

    def reference(self, arrays: Mapping[str, Array], rows: Array, columns: Array) -> tuple[Array, Array]:
        d = arrays["a"][np.ix_(columns, rows)].T.astype(np.float64)
        return d, np.abs(d)

    def error_bound(self) -> ErrorBound:
        return ErrorBound(accumulation=0.0, rounding=2.0**-24)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.axes}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Transposition:
        return cls(data["m"], data["n"])


register_problem(Transposition.kind, Transposition.from_json)


class Strips(Family):
    """A block transposes 16 rows of ``side`` columns, straight through."""

    name = "transposition"
    summary = "one thread, every sixteenth column of a row"
    template_dirs = (Path(__file__).parent / "templates",)
    constraints = (Constraint("side", "side < 2 * n or side == 16", "strips of {side} are twice the {n} columns"),)

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        return None if isinstance(problem, Transposition) else "it only transposes"

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        return (Parameter("side", (16, 32, 64), "columns of a strip"),)

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        side = configuration["side"]
        return LaunchRecipe(
            entry=self.name,
            block=(256, 1, 1),
            grid=("ceil_div(m, 16)", f"ceil_div(n, {side})", "1"),
            arguments=(
                Argument("pointer", "a"),
                Argument("pointer", "d"),
                *(Argument("scalar", name, "i32") for name in ("m", "n", "lda", "ldd")),
            ),
            tile=Tile(16, int(side), "16 * bx", f"{side} * by"),
        )

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        return Traits(16, int(configuration["side"]), 1, 1, 1, 256, 0, 24, "fma", padded_k=1)

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        return {}
