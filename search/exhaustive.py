"""Every valid configuration, once, in the order of the space."""

from __future__ import annotations

from gemmtune.search.strategy import Strategy
from gemmtune.space.space import Space


class Exhaustive(Strategy):
    """All of the valid set; what a study does where its budget covers it."""

    name = "exhaustive"

    def __init__(self, space: Space, seed: int) -> None:
        super().__init__(space, seed)
        self._position = 0

    def _next(self) -> int:
        while self._position in self.seen:
            self._position += 1
        return self._position
