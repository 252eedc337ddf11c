"""Enumerating a family's valid configurations: a progressive join over its knobs, with NumPy.

The raw product of the knobs may have 10**8 and more points, the valid set a millionth or a hundredth of that. So knobs
are placed one after another, and each rule is applied as soon as every knob it needs (through the definitions it uses)
is placed; what it rejects is never multiplied by the knobs still to come. The order of placing is chosen so that sharp
rules become ready early. Rows flow through the levels in chunks, depth first, so that memory stays bounded.

A point's *code* is its mixed-radix number, first knob most significant: the order of ``itertools.product``. Codes do
not depend on the order of placing, and come out sorted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmtune.space.configuration import Parameter
from gemmtune.space.constraint import Constraint
from gemmtune.space.errors import ConfigurationError, ExpressionError
from gemmtune.space.expression import Expression, UndefinedError, expression

Codes = npt.NDArray[np.int64]
_CHUNK = 1 << 17
"""Points judged at once: a few int64 columns of this length fit into a CPU's L2 cache."""
_SAMPLE = 2048
"""Random raw points that tell how sharp each rule is, which decides the order of placing alone, never the result."""


@dataclass(frozen=True)
class Enumeration:
    """Sorted codes of the valid points, and how many raw points each rule rejected first (names with 0 included)."""

    codes: Codes
    rejections: Mapping[str, int]


@dataclass(frozen=True)
class _Rule:
    name: str
    expression: Expression
    definitions: tuple[str, ...]
    """Definitions to evaluate first, in order."""
    knobs: frozenset[str]


@dataclass
class _Level:
    """One knob placed: the rules that become ready, the columns that later levels still read."""

    knob: str
    rules: list[_Rule]
    kept: list[str] = field(default_factory=list)
    rest: int = 1
    """Product of the sizes of the knobs still to be placed."""


@dataclass
class _Rows:
    """Partial points: their codes so far, and the value index of each column that is still read."""

    codes: Codes
    columns: dict[str, npt.NDArray[np.unsignedinteger[Any]]]

    def __len__(self) -> int:
        return len(self.codes)

    def part(self, start: int, stop: int) -> _Rows:
        return _Rows(self.codes[start:stop], {k: v[start:stop] for k, v in self.columns.items()})


class Join:
    """The progressive join of one family for one problem and GPU.

    Args:
        parameters: the knobs, in the canonical order.
        definitions: derived quantities by name, in order.
        constraints: the rules.
        constants: every other name that expressions may use.

    Raises:
        ConfigurationError: a knob has no values or a value twice, or the raw product passes 2**62.
        ExpressionError: a rule or definition uses a name that nothing defines.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        definitions: Mapping[str, str],
        constraints: Sequence[Constraint],
        constants: Mapping[str, Any],
    ) -> None:
        self.parameters = tuple(parameters)
        for p in self.parameters:
            if not p.values or len(set(p.values)) != len(p.values):
                raise ConfigurationError(f"Knob {p.name} must have values, each of them once, but has {p.values}.")
        self.sizes = {p.name: len(p.values) for p in self.parameters}
        self.raw_size = math.prod(self.sizes.values())
        if self.raw_size >= 2**62:
            raise ConfigurationError(
                f"The knobs multiply to {self.raw_size} configurations: 2**62 at most are possible."
            )
        self.strides: dict[str, int] = {}
        stride = self.raw_size
        for name, size in self.sizes.items():
            stride //= size
            self.strides[name] = stride
        self._values = {p.name: _as_array(p) for p in self.parameters}
        self._constants = dict(constants)
        self._definitions: dict[str, Expression] = {}
        self._needs: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {}
        for name, text in definitions.items():
            self._define(name, text)
        self._rules = [
            _Rule(c.name, c.expression, *self._requirements(c.expression, f"Constraint {c.name!r}"))
            for c in constraints
        ]

    # --------------------------------------------------------------------------------------------------- planning

    def _define(self, name: str, text: str) -> None:
        e = expression(text)
        definitions, knobs = self._requirements(e, f"Definition {name!r}")
        if not knobs and not definitions:  # one number for the whole space
            try:
                self._constants[name] = e(self._constants)
            except UndefinedError:
                pass  # rules that need it do not hold
            else:
                return
        self._definitions[name] = e
        self._needs[name] = ((*definitions, name), knobs)

    def _requirements(self, e: Expression, owner: str) -> tuple[tuple[str, ...], frozenset[str]]:
        """Definitions to evaluate first (each once, in order) and knobs, both transitively."""
        definitions: dict[str, None] = {}
        knobs: set[str] = set()
        for name in sorted(e.names):
            if name in self._definitions:
                first, through = self._needs[name]
                definitions |= dict.fromkeys(first)
                knobs |= through
            elif name in self.sizes:
                knobs.add(name)
            elif name not in self._constants:
                raise ExpressionError(f"{owner} uses {name!r}, which is neither a knob nor defined before: {e.text!r}.")
        return tuple(definitions), frozenset(knobs)

    def _pass_rates(self) -> dict[_Rule, float]:
        """Fraction of random raw points that each rule lets through (at least 1 / sample)."""
        rng = np.random.default_rng(0)
        env = dict(self._constants)
        for name, size in self.sizes.items():
            env[name] = self._values[name][rng.integers(0, size, _SAMPLE)]
        return {rule: max(float(np.mean(self._judge(rule, env))), 1.0 / _SAMPLE) for rule in self._rules}

    def _order(self) -> list[str]:
        """The order of placing: again and again the rule whose knobs grow the rows least, once it has cut them."""
        rates = self._pass_rates()
        waiting = [r for r in self._rules if r.knobs]
        order: list[str] = []
        while waiting:
            growths = {rule: self._growth(rule, frozenset(order), waiting, rates) for rule in waiting}
            best = min(waiting, key=lambda rule: (growths[rule], len(rule.knobs)))
            new = [k for k in self.sizes if k in best.knobs and k not in order]
            order += sorted(new, key=lambda k: self.sizes[k])  # the longest last: it is judged before it is stored
            waiting = [r for r in waiting if not r.knobs <= set(order)]
        return order + [k for k in self.sizes if k not in order]

    def _growth(
        self, rule: _Rule, placed: frozenset[str], waiting: Sequence[_Rule], rates: Mapping[_Rule, float]
    ) -> float:
        """Logarithm of the factor by which the rows grow if the knobs of ``rule`` come next (rules independent)."""
        after = placed | rule.knobs
        grown = sum(math.log(self.sizes[k]) for k in after - placed)
        return grown + sum(math.log(rates[r]) for r in waiting if r.knobs <= after)

    def _levels(self) -> list[_Level]:
        """The knobs in their order of placing, each with the rules that it makes ready."""
        order = self._order()
        place = {k: i for i, k in enumerate(order)}
        levels = [_Level(knob, []) for knob in order]
        for rule in self._rules:
            if rule.knobs:
                levels[max(place[k] for k in rule.knobs)].rules.append(rule)
        read: set[str] = set()
        rest = 1
        for level in reversed(levels):
            level.kept = sorted(read)
            level.rest = rest
            read |= {k for rule in level.rules for k in rule.knobs}
            rest *= self.sizes[level.knob]
        return levels

    # -------------------------------------------------------------------------------------------------- evaluation

    def _judge(self, rule: _Rule, env: dict[str, Any]) -> npt.NDArray[np.bool_]:
        """Where the rule holds; definitions it needs are left in ``env`` for the next rule.

        It does not hold where it, or a definition it needs, divides by zero (``env`` keeps those places as ``"?name"``,
        which no expression can read).
        """
        holds: npt.NDArray[np.bool_] = np.array(True)
        for name in rule.definitions:
            if name not in env:
                env[name], env[f"?{name}"] = self._definitions[name].on_arrays(env)
            if env[f"?{name}"] is not None:
                holds = holds & ~env[f"?{name}"]
        value, undefined = rule.expression.on_arrays(env)
        holds = np.logical_and(holds, value)
        return holds if undefined is None else holds & ~undefined

    def _expand(self, rows: _Rows, level: _Level, rejections: dict[str, int]) -> _Rows:
        """Place one knob: every row with every value, less what the level's rules reject."""
        size = self.sizes[level.knob]
        env = dict(self._constants)
        for name, column in rows.columns.items():
            env[name] = self._values[name][column][:, None]
        env[level.knob] = self._values[level.knob][None, :]
        shape = (len(rows), size)
        alive: npt.NDArray[np.bool_] = np.ones(shape, bool)
        count = alive.size
        for rule in level.rules:
            alive &= self._judge(rule, env)
            left = int(np.count_nonzero(alive))
            rejections[rule.name] += (count - left) * level.rest
            count = left
            if not count:
                break
        row, value = np.nonzero(alive)
        columns = {k: v[row] for k, v in rows.columns.items() if k in level.kept}
        if level.knob in level.kept:
            columns[level.knob] = value.astype(np.uint8 if size <= 256 else np.uint16 if size <= 65536 else np.uint32)
        return _Rows(rows.codes[row] + value * self.strides[level.knob], columns)

    def _flow(self, source: Iterable[_Rows], level: _Level, rejections: dict[str, int]) -> Iterator[_Rows]:
        """All rows of ``source`` through one level, in chunks: large ones are cut, small ones gathered."""
        most = max(1, _CHUNK // self.sizes[level.knob])
        waiting: list[_Rows] = []
        held = 0
        for rows in source:
            waiting.append(rows)
            held += len(rows)
            if held >= most:
                yield from self._drain(waiting, most, level, rejections)
                waiting, held = [], 0
        if held:
            yield from self._drain(waiting, most, level, rejections)

    def _drain(self, waiting: list[_Rows], most: int, level: _Level, rejections: dict[str, int]) -> Iterator[_Rows]:
        rows = waiting[0]
        if len(waiting) > 1:
            rows = _Rows(
                np.concatenate([w.codes for w in waiting]),
                {k: np.concatenate([w.columns[k] for w in waiting]) for k in rows.columns},
            )
        for start in range(0, len(rows), most):
            out = self._expand(rows.part(start, start + most), level, rejections)
            if len(out):
                yield out

    def run(self) -> Enumeration:
        """Enumerate the valid points."""
        rejections = dict.fromkeys((r.name for r in self._rules), 0)
        for rule in self._rules:
            if not rule.knobs and not self._judge(rule, dict(self._constants)).all():
                rejections[rule.name] += self.raw_size
                return Enumeration(np.zeros(0, np.int64), rejections)
        flow: Iterable[_Rows] = [_Rows(np.zeros(1, np.int64), {})]
        for level in self._levels():
            flow = self._flow(flow, level, rejections)
        found = [rows.codes for rows in flow]
        codes = np.concatenate(found) if found else np.zeros(0, np.int64)
        codes.sort()
        return Enumeration(codes, rejections)


def _as_array(parameter: Parameter) -> npt.NDArray[Any]:
    kinds = {type(v) for v in parameter.values}
    return np.array(parameter.values, dtype=np.int64 if kinds == {int} else np.str_ if kinds == {str} else object)
