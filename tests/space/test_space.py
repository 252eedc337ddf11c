"""Spaces: enumeration equals brute force on any small family; numbering, neighbours, reasons."""

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmtune.space.configuration import Configuration, Parameter
from gemmtune.space.constraint import Constraint
from gemmtune.space.errors import (
    ConfigurationError,
    EmptySpaceError,
    ExpressionError,
    UnknownNameError,
    UnsupportedError,
)
from gemmtune.space.family import Family, Traits
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu, gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import LaunchRecipe
from gemmtune.space.space import Space

PROBLEM = Gemm(64, 64, 64)
H200 = gpu("h200")


class Rules(Family):
    """A family of nothing but knobs and rules."""

    name: ClassVar[str] = "rules"
    summary: ClassVar[str] = "for tests"

    def __init__(
        self,
        knobs: Mapping[str, tuple[int | str, ...]],
        rules: tuple[Constraint, ...] = (),
        definitions: Mapping[str, str] | None = None,
        name: str = "rules",
        refuses: str | None = None,
    ) -> None:
        self.knobs, self.refuses = knobs, refuses
        self.constraints, self.definitions, self.name = rules, definitions or {}, name  # type: ignore[misc]

    def unsupported(self, problem: Problem, gpu: Gpu) -> str | None:
        return self.refuses

    def parameters(self, problem: Problem, gpu: Gpu) -> tuple[Parameter, ...]:
        return tuple(Parameter(k, v) for k, v in self.knobs.items())

    def plan(self, problem: Problem, configuration: Configuration) -> LaunchRecipe:
        raise AssertionError

    def traits(self, problem: Problem, configuration: Configuration, gpu: Gpu) -> Traits:
        raise AssertionError

    def context(self, problem: Problem, configuration: Configuration) -> dict[str, Any]:
        raise AssertionError


def rule(expr: str, name: str = "rule", sentence: str = "it is so") -> Constraint:
    return Constraint(name, expr, sentence)


def brute_force(family: Rules) -> list[Configuration]:
    points = (Configuration.of(family.name, dict(zip(family.knobs, v, strict=True)))
              for v in itertools.product(*family.knobs.values()))  # fmt: skip
    return [c for c in points if not family.why_invalid(PROBLEM, c, H200)]


NAMES = ("a", "b", "c", "d", "e")
TERMS = st.sampled_from([*NAMES, "s", "t", "m", "sms", "2", "3", "0"])
RULES = st.builds(
    lambda x, o, y, p, z: f"{x} {o} {y} {p} {z}",
    TERMS, st.sampled_from(["+", "*", "-", "//", "%", "and", "or"]), TERMS,
    st.sampled_from(["<", "<=", "!=", "==", ">"]), TERMS,
)  # fmt: skip


@st.composite
def families(draw: st.DrawFn, name: str = "rules") -> Rules:
    knobs: dict[str, tuple[int | str, ...]] = {
        n: tuple(draw(st.lists(st.integers(-3, 9), min_size=1, max_size=5, unique=True))) for n in NAMES
    }
    definitions = {
        "s": draw(st.sampled_from(["a * b", "a + 1", "m // 2", "c // b", "7"])),
        "t": draw(st.sampled_from(["s + d", "s * s", "s // a", "e"])),
    }
    texts = draw(st.lists(RULES, max_size=5))
    return Rules(knobs, tuple(rule(t, f"r{i}") for i, t in enumerate(texts)), definitions, name)


@settings(deadline=None)
@given(families())
def test_enumeration_is_brute_force(family: Rules) -> None:
    space = Space(PROBLEM, H200, [family])
    expected = brute_force(family)
    if not expected:
        with pytest.raises(EmptySpaceError):
            len(space)
        return
    assert list(space) == expected
    assert [space[i] for i in range(len(space))] == expected
    assert space.raw_size == len(expected) + sum(space.rejections.values())
    assert [space.index(c) for c in expected] == list(range(len(expected)))


@settings(deadline=None, max_examples=30)
@given(families(), st.data())
def test_neighbours_are_one_step_in_one_knob(family: Rules, data: st.DataObject) -> None:
    space = Space(PROBLEM, H200, [Rules({"x": (1, 2)}, name="other"), family])
    i = data.draw(st.integers(0, len(space) - 1))
    here = space[i]

    def steps(there: Configuration) -> int:
        if there.family != here.family:
            return 99
        positions = {p.name: p.values for p in space.parameters(here.family)}
        return sum(abs(v.index(here[k]) - v.index(there[k])) for k, v in positions.items())

    assert space.neighbours(i) == [j for j, there in enumerate(space) if steps(there) == 1]


def test_families_follow_one_another() -> None:
    one, two = Rules({"x": (1, 2, 3)}, name="one"), Rules({"y": ("p", "q")}, (rule("y != 'p'"),), name="two")
    space = Space(PROBLEM, H200, [one, two])
    assert [str(c) for c in space] == ["one x=1", "one x=2", "one x=3", "two y=q"]
    assert str(space[-1]) == "two y=q"
    assert space.raw_size == 5
    assert space.rejections == {"rule": 1}
    assert space.index(Configuration.parse("two y=q")) == 3
    assert Configuration.parse("one x=2") in space
    assert Configuration.parse("two y=p") not in space
    assert "one x=2" not in space
    with pytest.raises(IndexError):
        space[4]
    with pytest.raises(IndexError):
        space.neighbours(-1)


def test_one_empty_family_among_others_is_no_error() -> None:
    space = Space(PROBLEM, H200, [Rules({"x": (1,)}, (rule("x > 1"),), name="one"), Rules({"y": (5,)}, name="two")])
    assert [str(c) for c in space] == ["two y=5"]


def test_many_values_and_words() -> None:
    family = Rules({"x": tuple(range(70000)), "w": ("lo", "hi"), "mixed": (1, "auto")},
                   (rule("x % 1000 == 0 and w == 'hi'"), rule("mixed == 'auto' or x > 68000")))  # fmt: skip
    space = Space(PROBLEM, H200, [family])
    assert len(space) == 70 + 1
    assert dict(space[len(space) - 1]) == {"x": 69000, "w": "hi", "mixed": "auto"}


def test_a_configuration_outside_says_why() -> None:
    family = Rules({"x": (1, 2, 3)}, (rule("x < y", "limit", "{x} is not below {y}"),), {"y": "1 + 2"})
    space = Space(PROBLEM, H200, [family])
    for text, reason in [
        ("rules x=3", "limit: 3 is not below 3"),
        ("rules x=9", "x=9 is not among its values for this problem: 1, 2, 3"),
        ("rules", "no value is given for x"),
        ("rules x=1 z=1", "z is not a knob"),
        ("fft x=1", "it has rules"),
    ]:
        with pytest.raises(ConfigurationError, match=reason):
            space.index(Configuration.parse(text))


def test_an_empty_space_names_what_emptied_it() -> None:
    rules = (
        rule(
            "x * 100000 <= shared_per_block", "shared_memory", "needs {x}00000 bytes, {gpu_name} has {shared_per_block}"
        ),
        rule("x != 2", "taste", "2 is ugly"),
    )
    with pytest.raises(EmptySpaceError) as caught:
        len(Space(PROBLEM, H200, [Rules({"x": (2, 3, 4)}, rules)]))
    message = str(caught.value)
    assert "of 3 configurations of rules" in message
    assert "shared_memory rejects 3" in message or (
        "shared_memory rejects 2" in message and "taste rejects 1" in message
    )
    assert "needs 300000 bytes, h200 has 232448" in message or "needs 400000 bytes" in message


def test_a_rule_without_knobs_can_empty_a_space() -> None:
    with pytest.raises(EmptySpaceError, match="never rejects 3"):
        len(Space(PROBLEM, H200, [Rules({"x": (2, 3, 4)}, (rule("m > 64", "never"),))]))


def test_unsupported_lists_every_reason() -> None:
    with pytest.raises(UnsupportedError, match="one: wants tensor cores; two: wants magic"):
        Space(PROBLEM, H200, [Rules({}, name="one", refuses="wants tensor cores"),
                              Rules({}, name="two", refuses="wants magic")])  # fmt: skip
    mixed = Space(PROBLEM, H200, [Rules({}, name="one", refuses="no"), Rules({"x": (1,)}, name="two")])
    assert [f.name for f in mixed.families] == ["two"]
    with pytest.raises(UnknownNameError, match="two"):
        mixed.parameters("one")
    assert mixed.parameters("two") == (Parameter("x", (1,)),)


def test_faults_of_a_family_are_named() -> None:
    with pytest.raises(ExpressionError, match="'limit' uses 'bananas'"):
        Space(PROBLEM, H200, [Rules({"x": (1,)}, (rule("bananas > 1", "limit"),))])
    with pytest.raises(ExpressionError, match="Definition 's' uses 't'"):
        Space(PROBLEM, H200, [Rules({"x": (1,)}, (), {"s": "t", "t": "x"})])
    for values in ((), (1, 2, 1)):
        with pytest.raises(ConfigurationError, match="Knob x"):
            Space(PROBLEM, H200, [Rules({"x": values})])
    with pytest.raises(ConfigurationError, match=r"2\*\*62"):
        Space(PROBLEM, H200, [Rules({f"x{i}": tuple(range(100)) for i in range(10)})])


def test_a_rule_that_divides_by_zero_does_not_hold() -> None:
    family = Rules({"x": (0, 2, 3)}, (rule("12 % x == 0", "divides", "{x} does not divide 12"),))
    assert [dict(c) for c in Space(PROBLEM, H200, [family])] == [{"x": 2}, {"x": 3}]
    (reason,) = family.why_invalid(PROBLEM, Configuration.parse("rules x=0"), H200)
    assert reason.startswith("divides: 0 does not divide 12")
    assert "divides by zero" in reason


def test_large_spaces_stay_small_in_memory() -> None:
    knobs: dict[str, tuple[int | str, ...]] = {f"k{i}": tuple(range(1, 11)) for i in range(8)}
    chain = tuple(rule(f"k{i} * k{i + 1} % 10 == 0", f"r{i}") for i in range(7))
    space = Space(PROBLEM, H200, [Rules(knobs, chain)])
    assert space.raw_size == 10**8
    assert len(space) == _paths(8)
    assert space.raw_size == len(space) + sum(space.rejections.values())


def _paths(length: int) -> int:
    """Sequences of 1..10 in which the product of neighbours is a multiple of 10, counted one place after another."""
    ends = dict.fromkeys(range(1, 11), 1)
    for _ in range(length - 1):
        ends = {b: sum(n for a, n in ends.items() if a * b % 10 == 0) for b in range(1, 11)}
    return sum(ends.values())
