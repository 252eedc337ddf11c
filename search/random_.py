"""Uniformly random valid configurations without repetition: the yardstick for every other strategy."""

from __future__ import annotations

from gemmtune.search.strategy import Strategy


class Random(Strategy):
    """Draws from the valid set."""

    name = "random"

    def _next(self) -> int:
        return self._any_unseen()
