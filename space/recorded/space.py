"""A recording as a space: what strategies search, with no kernel behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import ConfigurationError, UnknownNameError, UnsupportedError
from gemmtune.space.family import Family, Traits
from gemmtune.space.gpu import TABLE, Gpu, is_called
from gemmtune.space.join import Enumeration, Join
from gemmtune.space.problem import Array, ErrorBound, Problem, Tensor
from gemmtune.space.recipe import LaunchRecipe
from gemmtune.space.recorded.model import Recorded, Recording
from gemmtune.space.space import Space


@dataclass(frozen=True)
class RecordedProblem:
    """What a recording of another tool computed: a name, with nothing behind it that could be run."""

    name: str
    kind: ClassVar[str] = "recorded"

    @property
    def key(self) -> str:
        """The recording's name."""
        return f"recorded {self.name}"

    @property
    def axes(self) -> Mapping[str, int]:
        """None."""
        return {}

    @property
    def flops(self) -> int:
        """Unknown: 0."""
        return 0

    @property
    def bytes(self) -> int:
        """Unknown: 0."""
        return 0

    def tensors(self) -> tuple[Tensor, ...]:
        """None."""
        return ()

    def environment(self) -> dict[str, Any]:
        """No names."""
        return {}

    def with_axes(self, **axes: int) -> Problem:
        """Raises UnsupportedError: it has no axes."""
        raise self._nothing()

    def inputs(self, seed: int) -> dict[str, Array]:
        """Raises UnsupportedError: there is nothing to compute."""
        raise self._nothing()

    def reference(self, arrays: Mapping[str, Array], rows: Array, columns: Array) -> tuple[Array, Array]:
        """Raises UnsupportedError: there is nothing to compute."""
        raise self._nothing()

    def error_bound(self) -> ErrorBound:
        """Raises UnsupportedError: there is nothing to compute."""
        raise self._nothing()

    def to_json(self) -> dict[str, Any]:
        """Its kind and key; it is not read back, since recordings carry their own name."""
        return {"kind": self.kind, "key": self.key}

    def _nothing(self) -> UnsupportedError:
        return UnsupportedError(f"The problem {self.key!r} is known by its recorded times alone: nothing can be run.")


class RecordedFamily(Family):
    """The configurations of one family that were recorded.

    Where gemmtune has the family itself (``original``), the cost estimate and the order of simplicity are its own;
    another tool's kernel has neither (:attr:`estimable`).
    """

    name = "recorded"
    summary = "what was recorded"
    searchable = False

    def __init__(self, recording: Recording, name: str, original: Family | None) -> None:
        self.name = name  # type: ignore[misc]
        self.estimable = original is not None  # type: ignore[misc]
        self._recording = recording
        self._original = original

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        """None: what was recorded was there."""
        return None

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        """The recorded knobs."""
        return self._recording.parameters[self.name]

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        """The original's traits.

        Raises:
            UnsupportedError: the kernel is another tool's.
        """
        return self._known().traits(problem, configuration, gpu)

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        """The original's plan; raises UnsupportedError for another tool's kernel."""
        return self._known().plan(problem, configuration)

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        """The original's context; raises UnsupportedError for another tool's kernel."""
        return self._known().context(problem, configuration)

    def starting_points(self, problem: Problem, gpu: Gpu) -> list[Configuration]:
        """Those of the original that were recorded."""
        points = self._original.starting_points(problem, gpu) if self._original else []
        return [c for c in points if c in self._recording]

    def complexity(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> tuple[int | str, ...]:
        """The original's; of another tool's kernels, the text alone decides."""
        if self._original is None:
            return (configuration.key,)
        return self._original.complexity(problem, configuration, gpu)

    def why_invalid(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> list[str]:
        """That it was not recorded."""
        recorded = configuration in self._recording
        return [] if recorded else [f"recorded: it is not among the configurations of {self._recording.name!r}"]

    def _known(self) -> Family:
        if self._original is None:
            raise UnsupportedError(f"Nothing is known of the kernel {self.name!r} but its recorded times.")
        return self._original


class RecordedSpace(Space):
    """The recorded configurations as a space: numbers, neighbours and all; see :class:`gemmtune.space.space.Space`.

    Args:
        recording: what was recorded.
        families: those to search; by default all of the recording.

    Raises:
        UnknownNameError: the recording has no such family.
    """

    def __init__(self, recording: Recording, families: Sequence[str] | None = None) -> None:
        self.recording = recording
        self.problem = recording.problem or RecordedProblem(recording.name)
        self.gpu = recording.gpu or stand_in(recording.device_name)
        names = tuple(recording.parameters) if families is None else tuple(dict.fromkeys(families))
        rows: dict[str, list[Recorded]] = {name: [] for name in names}
        for row in recording.rows:
            if row.configuration.family in rows:
                rows[row.configuration.family].append(row)
        for name, found in rows.items():
            if not found:
                raise UnknownNameError(
                    f"The recording {recording.name!r} holds no family {name!r}: it has "
                    f"{', '.join(recording.parameters)}."
                )
        self.families = tuple(RecordedFamily(recording, name, _original(recording, name)) for name in names)
        self._joins = tuple(Join(recording.parameters[name], {}, (), {}) for name in names)
        self._rows = rows

    @cached_property
    def _enumerations(self) -> tuple[Enumeration, ...]:
        return tuple(
            _enumeration(join, self._rows[family.name]) for family, join in zip(self.families, self._joins, strict=True)
        )

    def recorded(self, index: int) -> Recorded:
        """What became of configuration ``index``."""
        return self.recording.find(self[index])


def _enumeration(join: Join, rows: Sequence[Recorded]) -> Enumeration:
    digits = {p.name: {value: i * join.strides[p.name] for i, value in enumerate(p.values)} for p in join.parameters}
    codes = [sum(digits[name][value] for name, value in row.configuration.items_) for row in rows]
    return Enumeration(np.sort(np.array(codes, dtype=np.int64)), {"recorded": join.raw_size - len(codes)})


def _original(recording: Recording, name: str) -> Family | None:
    """The shipped family of that name, where the recording is of it: the same knobs, on a known problem and GPU."""
    from gemmtune.space import families

    if recording.problem is None or recording.gpu is None or name not in families.FAMILIES:
        return None
    family = families.FAMILIES[name]
    try:
        if family.unsupported(recording.problem, recording.gpu) is not None:
            return None
        knobs = {p.name for p in family.parameters(recording.problem, recording.gpu)}
    except ConfigurationError:
        return None
    return family if knobs == {p.name for p in recording.parameters[name]} else None


def stand_in(device_name: str) -> Gpu:
    """The GPU of the shipped table that a source calls ``device_name``, else one of that name with an L4's limits.

    The limits serve nothing but estimates, and another tool's kernels have none.
    """
    for gpu in TABLE.values():
        if device_name and (is_called(device_name, gpu.short, gpu.name) or gpu.name.startswith(device_name)):
            return gpu
    short = "".join(c for c in device_name.lower() if c.isalnum()) or "unknown"
    return replace(TABLE["l4"], name=device_name or "unknown", short=short)
