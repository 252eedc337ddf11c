"""Settings of searches, benchmarks and packs: what they may be, and the sentence where one is not."""

from __future__ import annotations

from typing import Literal, get_args

from gemmtune.space.errors import SettingError

Regime = Literal["sustained", "burst"]
"""How long kernels run before they are timed: until clocks settle under their own power, or hardly at all."""
Cache = Literal["cold", "warm"]
"""Whether operands lie in the L2 cache when a kernel is timed."""

SEEDS = 2**31


def check_count(what: str, value: object, least: int = 1) -> None:
    """Raises :class:`SettingError` where ``value`` is no integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"The number of {what} must be an integer of at least {least}, but is {value!r}.")


def check_seconds(what: str, value: float) -> None:
    """Raises :class:`SettingError` where ``value`` is no positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise SettingError(f"The {what} must be a positive number of seconds, but is {value!r}.")


def check_seed(value: object) -> None:
    """Raises :class:`SettingError` where ``value`` cannot seed everything random."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < SEEDS:
        raise SettingError(f"The seed must be an integer from 0 to {SEEDS - 1}, but is {value!r}.")


def check_regime(value: str) -> None:
    """Raises :class:`SettingError` where ``value`` is no regime."""
    _check_choice("regime", value, get_args(Regime))


def check_cache(value: str) -> None:
    """Raises :class:`SettingError` where ``value`` is no state of the cache."""
    _check_choice("cache", value, get_args(Cache))


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SettingError(f"The {what} {value!r} does not exist: choose one of {', '.join(choices)}.")
