"""A recorded space: every configuration that somebody tried, with what became of it.

A recording answers for a device: which configurations there are, and what each one took. Search strategies are compared
on recordings, since thousands of runs then cost seconds and no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from statistics import median
from typing import Any

from gemmtune.space.configuration import Configuration, Parameter, Value
from gemmtune.space.errors import ConfigurationError, RecordingError, UnknownNameError
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem

_FAILED = 1e20
"""What old cache files give as the time of a configuration that failed, whatever the unit."""
CORRECT, ABANDONED = "correct", "abandoned"
"""Outcomes of right kernels (:class:`gemmtune.device.base.Outcome`): only the first may win."""


@dataclass(frozen=True)
class Recorded:
    """What became of one configuration.

    ``outcome`` is the text of a :class:`gemmtune.device.base.Outcome`; ``us`` the median in microseconds, with its 95 %
    interval; all three None where there is no time. ``ratio`` = the baseline's time over ours, where one was timed
    beside. ``seconds`` by stage (compile, verify, measure, ...). ``extra`` is what else the source says of it, so that
    it can be written back.
    """

    configuration: Configuration
    outcome: str
    us: float | None = None
    us_low: float | None = None
    us_high: float | None = None
    ratio: float | None = None
    detail: str = ""
    registers: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        """Whether it is right and has a time."""
        return self.us is not None and self.outcome in (CORRECT, ABANDONED)


@dataclass(frozen=True)
class Recording:
    """A recorded space.

    Attributes:
        name: what it is called, in one word (``xgemm-rtx3090``).
        device_name: the GPU, as its source calls it.
        parameters: the knobs of each family, with their values.
        rows: one for each configuration, in the order of the source.
        source: where it comes from and under which licence, in a sentence.
        protocol: how times were taken, in a sentence.
        problem, gpu: what was computed and where, in gemmtune's own words; None where the source has other ones.
        estimated: times are estimates.
        regime, cache: how times were taken, where they are gemmtune's.
        environment: versions that the times depend on.
        extra: what else the source's header says, so that it can be written back.

    Raises:
        RecordingError: it has no rows, a configuration twice, or one that does not fit the parameters.
    """

    name: str
    device_name: str
    parameters: Mapping[str, tuple[Parameter, ...]]
    rows: tuple[Recorded, ...]
    source: str = ""
    protocol: str = ""
    problem: Problem | None = None
    gpu: Gpu | None = None
    estimated: bool = False
    regime: str = "sustained"
    cache: str = "cold"
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.rows:
            raise RecordingError(f"The recording {self.name!r} holds no configuration.")
        known = {family: {p.name: set(p.values) for p in knobs} for family, knobs in self.parameters.items()}
        for row in self.rows:
            c = row.configuration
            knobs = known.get(c.family)
            if knobs is None or len(knobs) != len(c.items_) or any(v not in knobs.get(k, ()) for k, v in c.items_):
                raise RecordingError(f"The recording {self.name!r} holds '{c}', which does not fit its parameters.")
        if len(self._by_key) != len(self.rows):
            raise RecordingError(f"The recording {self.name!r} holds a configuration twice.")

    @cached_property
    def _by_key(self) -> dict[str, Recorded]:
        return {row.configuration.key: row for row in self.rows}

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, configuration: object) -> bool:
        return isinstance(configuration, Configuration) and configuration.key in self._by_key

    def find(self, configuration: Configuration) -> Recorded:
        """What became of ``configuration``.

        Raises:
            ConfigurationError: it was not recorded.
        """
        row = self._by_key.get(configuration.key)
        if row is None:
            raise ConfigurationError(f"Configuration '{configuration}' is not in the recording {self.name!r}.")
        return row

    @cached_property
    def rated(self) -> bool:
        """Whether every correct time stands beside a baseline's, so that ratios rank rather than times."""
        return not self.estimated and all(r.ratio is not None for r in self.rows if r.timed and r.outcome == CORRECT)

    @cached_property
    def baseline_us(self) -> float | None:
        """The baseline's time, the median over the rows beside which it was timed; None where there is none."""
        times = [row.us * row.ratio for row in self.rows if row.us is not None and row.ratio is not None]
        return median(times) if times else None

    def objective(self, row: Recorded) -> float | None:
        """What a search minimises: our time over the baseline's where it is known, else microseconds; None: no time.

        A kernel that was given up as clearly beaten has no baseline beside it: it is held against the median one.
        """
        if not row.timed or row.us is None:
            return None
        if not self.rated or self.baseline_us is None:
            return row.us
        return row.us / self.baseline_us if row.ratio is None else 1.0 / row.ratio

    @cached_property
    def optimum(self) -> float:
        """The least objective of a correct row.

        Raises:
            RecordingError: no configuration is correct.
        """
        found = [self.objective(row) for row in self.rows if row.outcome == CORRECT]
        times = [value for value in found if value is not None]
        if not times:
            raise RecordingError(f"The recording {self.name!r} holds no configuration that is correct and has a time.")
        return min(times)

    def times_alone(self) -> Recording:
        """The recording without its problem and GPU, so that nothing can be known of a configuration but its time."""
        return replace(self, problem=None, gpu=None)

    def of_family(self, name: str) -> Recording:
        """The part of one family.

        Raises:
            UnknownNameError: it holds none of that family.
        """
        rows = tuple(row for row in self.rows if row.configuration.family == name)
        if not rows:
            raise UnknownNameError(
                f"The recording {self.name!r} holds no family {name!r}: it has {', '.join(self.parameters)}."
            )
        return replace(self, parameters={name: self.parameters[name]}, rows=rows)


def plain_value(value: Any) -> Value:
    """A knob's value as gemmtune holds it: an integer, or a word (``True``, ``0.5``), which reads as its source does.

    Raises:
        RecordingError: it is neither a number, a truth value nor text.
    """
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | str):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else repr(value)
    raise RecordingError(f"A knob has the value {value!r}: numbers, truth values and text can be recorded.")


def foreign_value(value: Value) -> int | float | bool | str:
    """The inverse of :func:`plain_value`, for writing: words that read as truth values or numbers become those."""
    if isinstance(value, int):
        return value
    if value in ("True", "False"):
        return value == "True"
    try:
        return float(value)
    except ValueError:
        return value


def read_time(value: Any) -> float | None:
    """A time that a source gives, in its own unit; None where it is none: text, nothing, or a figure for failure."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and isfinite(value) and 0 < value < _FAILED else None


def with_listed(
    shown: Mapping[str, tuple[Parameter, ...]], family: str, listed: Mapping[str, Sequence[Any]]
) -> dict[str, tuple[Parameter, ...]]:
    """The knobs of ``family`` with the values that a source lists, in its order, and then those that only rows show."""
    return {
        family: tuple(
            Parameter(p.name, tuple(dict.fromkeys([*map(plain_value, listed.get(p.name, ())), *p.values])))
            for p in shown[family]
        )
    }


def observed(configurations: list[Configuration]) -> dict[str, tuple[Parameter, ...]]:
    """The parameters that rows show, for sources that list none: numbers ascending, words in the order they appear."""
    seen: dict[str, dict[str, dict[Value, None]]] = {}
    for c in configurations:
        knobs = seen.setdefault(c.family, {})
        for name, value in c.items_:
            knobs.setdefault(name, {}).setdefault(value)
    return {
        family: tuple(Parameter(name, _ordered(values)) for name, values in knobs.items())
        for family, knobs in seen.items()
    }


def _ordered(values: Mapping[Value, None]) -> tuple[Value, ...]:
    numbers = sorted(v for v in values if isinstance(v, int))
    return (*numbers, *(v for v in values if isinstance(v, str)))
