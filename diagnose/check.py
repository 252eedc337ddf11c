"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gemmtune.space.errors import GemmtuneError


class Status(StrEnum):
    """How a check ended. ``skipped``: it needs something that is not here, and that nothing asked for needs."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        group: the heading it stands under.
        name: what was looked at, in a word or two.
        status: how it is.
        value: what was found, with the figures.
        cure: what to do about it; empty where there is nothing to do.
        data: the same figures for programs.
    """

    group: str
    name: str
    status: Status
    value: str
    cure: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What one look gives: a check without its place."""

    status: Status
    value: str
    cure: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def under(self, group: str, name: str) -> Check:
        """The check of that place."""
        return Check(group, name, self.status, self.value, self.cure, self.data)


def ok(value: str, **data: Any) -> Found:
    """As it should be."""
    return Found(Status.OK, value, "", data)


def warning(value: str, cure: str, **data: Any) -> Found:
    """It works, but slower or less surely than it could."""
    return Found(Status.WARNING, value, cure, data)


def problem(value: str, cure: str = "", **data: Any) -> Found:
    """It does not work; without a cure, ``value`` names it."""
    return Found(Status.PROBLEM, value, cure, data)


def skipped(value: str, cure: str = "", **data: Any) -> Found:
    """It was not looked at, and why."""
    return Found(Status.SKIPPED, value, cure, data)


def guarded(look: Callable[[], Found]) -> Found:
    """What ``look`` finds; the failures that a user can meet are problems, whose sentence names the cure."""
    try:
        return look()
    except GemmtuneError as error:
        return problem(str(error))


def join(words: list[str]) -> str:
    """``"a"``, ``"a and b"``, ``"a, b and c"``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
