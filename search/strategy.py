"""The one interface of every strategy: propose a batch of configurations, observe what became of them.

A strategy is a pure function of its seed, the space, and the sequence of its calls. A study calls it in a fixed rhythm
(:mod:`gemmtune.search.rhythm`), so that replaying the recorded results of a killed study brings its strategy back to
where it was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np

from gemmtune.space.errors import SettingError, UnknownNameError
from gemmtune.space.space import Space

STRATEGIES = ("auto", "gp", "tpe", "random", "exhaustive")
UNTAUGHT = ("random", "exhaustive")
"""Those that start from nothing and learn nothing."""
LEADERS = 5
"""How many of the best configurations have their neighbours tried."""
DRAWS = 64
"""Blind draws for an unseen configuration before the unseen ones are listed (spaces that are nearly used up)."""


@dataclass(frozen=True)
class Result:
    """What became of one proposal.

    ``index`` is its place in the space, ``outcome`` a :class:`gemmtune.device.base.Outcome`, and ``objective`` the
    figure to minimise (our time over the baseline's, or estimated microseconds); None where there is no time.
    """

    index: int
    outcome: str
    objective: float | None = None


class Strategy(ABC):
    """Base of every strategy.

    Subclasses say which configuration comes next (:meth:`_next`) and may learn from results (:meth:`_learn`). The base
    keeps the promise that no configuration is proposed twice, and that all of them are valid: it deals in indices of
    the valid set alone.
    """

    name: str

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.rng = np.random.default_rng([seed, 0x6E])
        self.seen: set[int] = set()
        self._scores: dict[int, float] = {}

    def propose(self, n: int) -> list[int]:
        """Up to ``n`` configurations never proposed before; fewer, or none, only where the space is used up."""
        out: list[int] = []
        while len(out) < n and len(self.seen) < len(self.space):
            index = self._next()
            if index in self.seen:
                raise RuntimeError(f"Strategy {self.name} proposed {index} twice.")
            self.seen.add(index)
            self._pending(index)
            out.append(index)
        return out

    def observe(self, results: Sequence[Result]) -> None:
        """Learn what became of proposals, in trial order; results of configurations it never proposed are welcome."""
        for result in results:
            if result.index not in self.seen:
                self.seen.add(result.index)
                self._pending(result.index)
            if result.objective is not None:
                self._scores[result.index] = result.objective
            self._learn(result)

    @abstractmethod
    def _next(self) -> int:
        """An unseen index; there is at least one."""

    def _pending(self, index: int) -> None:  # noqa: B027 - a hook, for those who care
        """``index`` is being tried from now on."""

    def _learn(self, result: Result) -> None:  # noqa: B027 - a hook
        """``result`` has come in."""

    def _leaders(self) -> list[int]:
        """The best few so far, best first."""
        return nsmallest(LEADERS, self._scores, key=lambda index: (self._scores[index], index))

    def _any_unseen(self) -> int:
        """A random unseen index."""
        for _ in range(DRAWS):
            index = int(self.rng.integers(len(self.space)))
            if index not in self.seen:
                return index
        unseen = [i for i in range(len(self.space)) if i not in self.seen]
        return int(self.rng.choice(unseen))

    def _unseen_neighbour(self) -> int | None:
        """A random unseen configuration that is one step of one knob away from one of the leaders."""
        near = {n for index in self._leaders() for n in self.space.neighbours(index)} - self.seen
        return int(self.rng.choice(sorted(near))) if near else None


def make_strategy(
    name: str, space: Space, seed: int, budget: int, warm: Sequence[int] = (), confidence: float | None = None
) -> Strategy:
    """The strategy called ``name``; ``auto`` is exhaustive where ``budget`` covers the valid set, else ``gp``.

    ``warm`` are configurations that did well under other circumstances, the best first: ``gp`` and ``tpe`` start from
    some of them. With ``confidence``, ``gp`` ends when it gives that probability to being within 1 % of the best.

    Raises:
        UnknownNameError: there is none of that name.
    """
    check_strategy(name)
    if name == "exhaustive" or (name == "auto" and budget >= len(space)):
        from gemmtune.search.exhaustive import Exhaustive

        return Exhaustive(space, seed)
    if name == "random":
        from gemmtune.search.random_ import Random

        return Random(space, seed)
    if name == "tpe":
        from gemmtune.search.tpe import Tpe

        return Tpe(space, seed, budget, warm)
    from gemmtune.search.gp import Gp

    return Gp(space, seed, budget, warm, confidence)


def check_strategy(name: str) -> None:
    """Raises :class:`UnknownNameError` where there is no strategy called ``name``."""
    if name not in STRATEGIES:
        raise UnknownNameError(f"Unknown strategy {name!r}: choose one of {', '.join(STRATEGIES)}.")


def check_confidence(confidence: float | None, strategy: str) -> None:
    """Raises :class:`SettingError` where ``confidence`` is no probability above a half, or nothing can reckon it."""
    if confidence is None:
        return
    if not 0.5 <= confidence < 1:
        raise SettingError(f"A confidence is at least 0.5 and below 1, but this one is {confidence}.")
    if strategy not in ("auto", "gp"):
        raise SettingError(f"The strategy {strategy} knows no confidence: leave it out, or search with gp.")
