"""The kernel families gemmtune ships, by name."""

from __future__ import annotations

from collections.abc import Sequence

from gemmtune.space.errors import UnknownNameError, UnsupportedError
from gemmtune.space.families.hopper import Hopper, HopperProgrammatic
from gemmtune.space.families.mma import Mma
from gemmtune.space.families.naive import Naive
from gemmtune.space.families.simt import Simt
from gemmtune.space.families.skinny import Skinny
from gemmtune.space.family import Family
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem

FAMILIES: dict[str, Family] = {f.name: f for f in (Simt(), Mma(), Hopper(), HopperProgrammatic(), Skinny(), Naive())}
"""Every family, searchable or not."""


def family(name: str) -> Family:
    """The family called ``name``.

    Raises:
        UnknownNameError: there is none; the message lists those there are.
    """
    try:
        return FAMILIES[name]
    except KeyError:
        raise UnknownNameError(f"Unknown family {name!r}: choose one of {', '.join(FAMILIES)}.") from None


def families_for(problem: Problem, gpu: Gpu, names: Sequence[str] | None = None) -> list[Family]:
    """The searchable families that serve ``problem`` on ``gpu``; with ``names``, those of them that were asked for.

    A family that was named is taken even where studies would not search it by themselves.

    Raises:
        UnknownNameError: a name that is no family.
        UnsupportedError: no family serves it; the message has each one's reason.
    """
    asked = [family(n) for n in names] if names else [f for f in FAMILIES.values() if f.searchable]
    reasons = {f.name: f.unsupported(problem, gpu) for f in asked}
    served = [f for f in asked if reasons[f.name] is None]
    if not served:
        why = "; ".join(f"{name}: {(reason or '').rstrip('.')}" for name, reason in reasons.items())
        raise UnsupportedError(f"No family can serve {problem.key} on {gpu.name} ({why}).")
    return served
