"""The joint space of one or several families: every valid configuration for a problem on a GPU, by number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.errors import ConfigurationError, EmptySpaceError, UnknownNameError, UnsupportedError
from gemmtune.space.family import Family
from gemmtune.space.gpu import Gpu
from gemmtune.space.join import Codes, Enumeration, Join
from gemmtune.space.problem import Problem


class Space(Sequence[Configuration]):
    """The valid configurations of ``families`` for ``problem`` on ``gpu``.

    Configurations are numbered from 0, one family after another, each in the order of ``itertools.product`` over its
    knobs; the numbering depends on nothing else, so that it may be relied on across runs. Enumeration happens on first
    use (about a second for a raw product of 10**8) and stays in memory at 8 bytes a configuration.

    Raises:
        UnsupportedError: no family supports the problem on this GPU; the message has each one's reason.
        EmptySpaceError: (on first use) no configuration is valid; the message names the rules that emptied the space.
    """

    def __init__(self, problem: Problem, gpu: Gpu, families: Sequence[Family]) -> None:
        self.problem = problem
        self.gpu = gpu
        reasons = {f.name: f.unsupported(problem, gpu) for f in families}
        self.families: tuple[Family, ...] = tuple(f for f in families if reasons[f.name] is None)
        if not self.families:
            listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "no family was given"
            raise UnsupportedError(f"No kernel family can compute {problem.key} on {gpu.short} ({listed}).")
        self._joins = tuple(
            Join(f.parameters(problem, gpu), f.definitions, f.constraints, f.environment(problem, gpu))
            for f in self.families
        )

    # ------------------------------------------------------------------------------------------------- enumeration

    @cached_property
    def _enumerations(self) -> tuple[Enumeration, ...]:
        found = tuple(join.run() for join in self._joins)
        if not any(len(e.codes) for e in found):
            raise EmptySpaceError(self._why_empty(found))
        return found

    @cached_property
    def _starts(self) -> list[int]:
        """Number of the first configuration of each family, and the total last."""
        return [0, *accumulate(len(e.codes) for e in self._enumerations)]

    def _why_empty(self, found: Sequence[Enumeration]) -> str:
        parts = []
        for family, join, e in zip(self.families, self._joins, found, strict=True):
            guilty = sorted((n for n, r in e.rejections.items() if r), key=lambda n: -e.rejections[n])
            counts = ", ".join(f"{name} rejects {e.rejections[name]}" for name in guilty)
            example = self._least_bad(family, join)
            reasons = "; ".join(family.why_invalid(self.problem, example, self.gpu))
            parts.append(f"of {join.raw_size} configurations of {family.name} {counts}, e.g. '{example}' ({reasons})")
        return (
            f"No configuration is valid for {self.problem.key} on {self.gpu.short}: {'; '.join(parts)}; "
            f"try another family, dtype, size or GPU."
        )

    def _least_bad(self, family: Family, join: Join) -> Configuration:
        """Of some raw configurations, the one that breaks the fewest rules: the most telling example."""
        rng = np.random.default_rng(0)
        tried = [self._at(family, join, int(code)) for code in rng.integers(0, join.raw_size, 64)]
        return min(tried, key=lambda c: len(family.why_invalid(self.problem, c, self.gpu)))

    @property
    def raw_size(self) -> int:
        """Configurations before any rule: the product of the knobs, summed over the families."""
        return sum(join.raw_size for join in self._joins)

    @property
    def rejections(self) -> dict[str, int]:
        """How many raw configurations each rule rejected; one that breaks several counts for the first one applied.

        ``raw_size == len(space) + sum(space.rejections.values())``.
        """
        out: dict[str, int] = {}
        for e in self._enumerations:
            for name, count in e.rejections.items():
                out[name] = out.get(name, 0) + count
        return out

    def parameters(self, family_name: str) -> tuple[Parameter, ...]:
        """The knobs of one of the space's families.

        Raises:
            UnknownNameError: the space has no such family.
        """
        return self._joins[self._family_number(family_name, UnknownNameError)].parameters

    # ---------------------------------------------------------------------------------------------------- sequence

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, i: int) -> Configuration:  # type: ignore[override]  # slices of a huge space help nobody
        if not -len(self) <= i < len(self):
            raise IndexError(f"Configuration {i} of a space of {len(self)}.")
        number, code = self._locate(i % len(self))
        return self._at(self.families[number], self._joins[number], code)

    def __iter__(self) -> Iterator[Configuration]:
        for family, join, e in zip(self.families, self._joins, self._enumerations, strict=True):
            for code in e.codes:
                yield self._at(family, join, int(code))

    def __contains__(self, configuration: object) -> bool:
        try:
            self.index(configuration)
        except ConfigurationError:
            return False
        return True

    def index(self, configuration: object, start: int = 0, stop: int | None = None) -> int:
        """The number of a configuration.

        Raises:
            ConfigurationError: it is not in the space; the message says why.
        """
        if not isinstance(configuration, Configuration):
            raise ConfigurationError(f"{configuration!r} is not a configuration.")
        number = self._family_number(configuration.family, ConfigurationError)
        join = self._joins[number]
        code = self._code(join, configuration)
        if code is not None:
            position = _find(self._enumerations[number].codes, code)
            if position is not None:
                return self._starts[number] + position
        reasons = self.families[number].why_invalid(self.problem, configuration, self.gpu)
        raise ConfigurationError(f"Configuration '{configuration}' is not in the space: {'; '.join(reasons)}.")

    def neighbours(self, i: int) -> list[int]:
        """Numbers of the valid configurations that differ from ``i`` in one knob by one step in its values; sorted."""
        number, code = self._locate(i)
        join, codes = self._joins[number], self._enumerations[number].codes
        near = []
        for name, size in join.sizes.items():
            stride = join.strides[name]
            digit = code // stride % size
            near += [code + step * stride for step in (-1, 1) if 0 <= digit + step < size]
        found = (_find(codes, c) for c in near)
        return sorted(self._starts[number] + position for position in found if position is not None)

    def around(self, configuration: Configuration) -> list[int]:
        """Numbers of the valid configurations that differ from any of the raw product, valid or not, in one knob.

        Raises:
            ConfigurationError: its family, its knobs or their values are not of this space.
        """
        number = self._family_number(configuration.family, ConfigurationError)
        join, codes = self._joins[number], self._enumerations[number].codes
        code = self._code(join, configuration)
        if code is None:
            raise ConfigurationError(f"Configuration '{configuration}' has other knobs or values than this space.")
        near: list[int] = []
        for name, size in join.sizes.items():
            stride = join.strides[name]
            digit = code // stride % size
            near += [code + (other - digit) * stride for other in range(size) if other != digit]
        positions = np.minimum(np.searchsorted(codes, near), max(0, len(codes) - 1))
        found = positions[codes[positions] == near] if len(codes) else positions[:0]
        return sorted(self._starts[number] + int(position) for position in found)

    def digits(self, indices: Codes) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Configurations ``indices`` [n] as numbers: that of each one's family [n], and those of its values [n, knobs].

        The latter count within the values of the family's :meth:`parameters`, in their order; rows of families that
        have fewer knobs than others end in zeros.
        """
        numbers = np.searchsorted(np.array(self._starts[1:]), indices, side="right")
        out = np.zeros((len(indices), max(len(join.sizes) for join in self._joins)), np.intp)
        for number, (join, e) in enumerate(zip(self._joins, self._enumerations, strict=True)):
            mine = numbers == number
            codes = e.codes[indices[mine] - self._starts[number]]
            for column, (name, size) in enumerate(join.sizes.items()):
                out[mine, column] = codes // join.strides[name] % size
        return numbers, out

    # ----------------------------------------------------------------------------------------------------- helpers

    def _family_number(self, name: str, error: type[UnknownNameError | ConfigurationError]) -> int:
        for number, family in enumerate(self.families):
            if family.name == name:
                return number
        known = ", ".join(f.name for f in self.families)
        raise error(f"Family {name!r} is not in this space: it has {known}.")

    def _locate(self, i: int) -> tuple[int, int]:
        """Family number and code of configuration ``i``."""
        if not 0 <= i < len(self):
            raise IndexError(f"Configuration {i} of a space of {len(self)}.")
        number = bisect_right(self._starts, i) - 1
        return number, int(self._enumerations[number].codes[i - self._starts[number]])

    @staticmethod
    def _at(family: Family, join: Join, code: int) -> Configuration:
        return Configuration(
            family.name,
            tuple((p.name, p.values[code // join.strides[p.name] % len(p.values)]) for p in join.parameters),
        )

    @staticmethod
    def _code(join: Join, configuration: Configuration) -> int | None:
        """The code, or None where the knobs or their values are not the family's."""
        if set(configuration) != set(join.sizes):
            return None
        code = 0
        for p in join.parameters:
            value = configuration[p.name]
            if value not in p.values:
                return None
            code += p.values.index(value) * join.strides[p.name]
        return code


def _find(codes: Codes, code: int) -> int | None:
    position = int(np.searchsorted(codes, code))
    return position if position < len(codes) and codes[position] == code else None
