"""Constraints: an expression that must hold, with a name and a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemmtune.space.errors import ExpressionError
from gemmtune.space.expression import Expression, expression


@dataclass(frozen=True)
class Constraint:
    """One rule of a space.

    Args:
        name: short, e.g. ``"shared_memory"``.
        expr: what must hold, over knobs, definitions, the problem's environment and the GPU's limits.
        sentence: shown where it does not, with ``{names}`` filled in, e.g. ``"needs {shared} bytes of shared memory,
            but a block of {gpu_name} may have {shared_per_block}"``.
    """

    name: str
    expr: str
    sentence: str

    @property
    def expression(self) -> Expression:
        """The checked expression."""
        return expression(self.expr)

    def holds(self, env: Mapping[str, Any]) -> bool:
        """Whether the rule holds for the values in ``env``."""
        return bool(self.expression(env))

    def explain(self, env: Mapping[str, Any]) -> str:
        """The sentence with its values filled in, led by the rule's name."""
        return f"{self.name}: {self.sentence.format_map(_Known(env))}"

    def broken(self, env: Mapping[str, Any]) -> str | None:
        """The sentence where the rule does not hold, None where it does.

        A rule that divides by zero, or needs a definition that does, does not hold.
        """
        try:
            return None if self.holds(env) else self.explain(env)
        except ExpressionError as error:
            return f"{self.explain(env)} ({error})"


class _Known(dict[str, Any]):
    """The values of a sentence; a definition that has none reads "?"."""

    def __missing__(self, name: str) -> str:
        return "?"
