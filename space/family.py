"""A kernel family: one template with its knobs, rules, resources, estimate and launch plan.

A family is one module in ``space/families/`` and one folder in ``codegen/templates/``; a knob is added in those two
places alone. Rules and derived quantities are expressions, so that a million configurations are judged at once with
NumPy and any one of them can be explained in a sentence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.constraint import Constraint
from gemmtune.space.errors import ConfigurationError, ExpressionError
from gemmtune.space.expression import expression
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe


@dataclass(frozen=True)
class Traits:
    """What the cost estimate needs to know of a configuration; see :mod:`gemmtune.space.estimate`."""

    tile_m: int
    tile_n: int
    tile_k: int
    splits: int
    stages: int
    threads: int
    shared_bytes: int
    registers: int
    unit: str
    """``"tensor"`` or ``"fma"``: which pipe does the arithmetic."""
    efficiency: float = 1.0
    """Fraction of the pipe's peak that the inner loop can issue (instruction mix, bank conflicts), 0..1."""
    padded_k: int = 0
    synchronous: bool = True
    """Whether all warps of a block meet at a barrier each step; not where warps that only load run ahead of the others,
    or each warp loads for itself."""
    gathered: int = 1
    """Of the splits, how many are blocks of a cluster that add up on chip, through each other's shared memory."""
    ring: bool = False
    """Whether a warp that only loads fills a stage anew only once its consumers are a step beyond it."""
    cluster: int = 1
    """Blocks that start together, in one GPC."""
    streamed: bool = False
    """Whether as many blocks as run at once share out all k tiles evenly (stream-K), passing on sums of begun tiles."""


class Family(ABC):
    """Base of every family. Subclasses are stateless: one instance serves all problems and GPUs."""

    name: ClassVar[str]
    summary: ClassVar[str]
    searchable: ClassVar[bool] = True
    """Whether studies search it (the naive kernel is there to compare with, not to search)."""
    estimable: ClassVar[bool] = True
    """Whether :meth:`traits` is known; of recorded kernels of other tools it is not."""
    definitions: ClassVar[Mapping[str, str]] = {}
    """Derived integers by name, in order; each may use knobs, earlier definitions, the problem's and GPU's names."""
    constraints: ClassVar[tuple[Constraint, ...]] = ()

    @abstractmethod
    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        """Why this family cannot serve ``problem`` on ``gpu``, as a sentence; None where it can."""

    @abstractmethod
    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """The knobs with their values for this problem and GPU, in the order they are printed."""

    @abstractmethod
    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        """How to launch the kernel of ``configuration``."""

    @abstractmethod
    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        """What the cost estimate needs to know."""

    @abstractmethod
    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        """Values for the template ``codegen/templates/<name>/kernel.cu.j2``."""

    def starting_points(self, problem: Problem, gpu: Gpu) -> list[Configuration]:
        """Valid configurations that did well somewhere, for a search to try first; none unless a family knows some."""
        return []

    def complexity(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> tuple[int | str, ...]:
        """A key that is smaller for the *simpler* of two configurations, which wins where both are equally fast.

        Simpler means, in this order: fewer splits of the reduction (no workspace, no second pass), fewer pipeline
        stages, less shared memory, fewer threads a block, a smaller tile; the text of the configuration decides at
        last.
        """
        t = self.traits(problem, configuration, gpu)
        return t.splits, t.stages, t.shared_bytes, t.threads, t.tile_m * t.tile_n, configuration.key

    def environment(self, problem: Problem, gpu: Gpu) -> dict[str, Any]:
        """The constants that rules may use: the problem's environment and the GPU's limits."""
        return {**problem.environment(), **gpu.environment()}

    def bind(self, problem: Problem, configuration: Mapping[str, Any], gpu: Gpu) -> dict[str, Any]:
        """All names of one configuration: constants, knobs and definitions."""
        env = {**self.environment(problem, gpu), **configuration}
        for name, text in self.definitions.items():
            env[name] = expression(text)(env)
        return env

    def why_invalid(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> list[str]:
        """Every reason why a configuration is not in the space, as sentences; empty where it is valid.

        Raises:
            ConfigurationError: it belongs to another family.
        """
        if configuration.family != self.name:
            raise ConfigurationError(
                f"Configuration '{configuration}' is of family {configuration.family!r}, not {self.name!r}."
            )
        reason = self.unsupported(problem, gpu)
        if reason:
            return [f"support: {reason}"]
        knobs = {p.name: p for p in self.parameters(problem, gpu)}
        out = [f"knob: {name} is not a knob of {self.name}" for name in configuration if name not in knobs]
        missing = [name for name in knobs if name not in configuration]
        if missing:
            out.append(f"knob: no value is given for {', '.join(missing)}")
        for name, value in configuration.items():
            if name in knobs and value not in knobs[name].values:
                values = ", ".join(map(str, knobs[name].values))
                out.append(f"knob: {name}={value} is not among its values for this problem: {values}")
        if out:
            return out
        env = {**self.environment(problem, gpu), **configuration}
        for name, text in self.definitions.items():
            with suppress(ExpressionError):  # a division by zero: the rules that need it say so
                env[name] = expression(text)(env)
        return [reason for c in self.constraints if (reason := c.broken(env))]
