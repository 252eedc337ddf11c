"""A clock for tests, which do not wait."""

from __future__ import annotations


class Clock:
    """Time that passes only where something is done, or by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
