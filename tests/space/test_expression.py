"""Expressions: right on integers, the same on arrays, and hostile texts refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.space.errors import ExpressionError
from gemmtune.space.expression import MAX_DEPTH, MAX_LENGTH, Expression, UndefinedError, expression

NAMES = ("x", "y", "z")


def _grow(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(children, children)
    three = st.tuples(children, children, children)
    binary = st.sampled_from(["+", "-", "*", "//", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"])
    return st.one_of(
        st.tuples(two, binary).map(lambda t: f"({t[0][0]} {t[1]} {t[0][1]})"),
        children.map(lambda a: f"(-{a})"),
        children.map(lambda a: f"(not {a})"),
        three.map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        three.map(lambda t: f"({t[0]} < {t[1]} <= {t[2]})"),
        st.tuples(two, st.sampled_from(["min", "max", "ceil_div", "round_up"])).map(
            lambda t: f"{t[1]}({t[0][0]}, {t[0][1]})"
        ),
        children.map(lambda a: f"abs({a})"),
        children.map(lambda a: f"is_power_of_two({a})"),
        children.map(lambda a: f"alignment({a}, 16)"),
    )


TEXTS = st.recursive(st.one_of(st.sampled_from(NAMES), st.integers(0, 20).map(str)), _grow, max_leaves=8)
VALUES = st.lists(st.tuples(*[st.integers(-12, 12)] * 3), min_size=1, max_size=6)


@given(TEXTS, VALUES)
def test_arrays_give_what_python_gives(text: str, points: list[tuple[int, int, int]]) -> None:
    e = Expression(text)
    columns = {name: np.array([p[i] for p in points], np.int64) for i, name in enumerate(NAMES)}
    values, undefined = e.on_arrays(columns)
    values = np.broadcast_to(values, len(points))
    undefined = np.broadcast_to(False if undefined is None else undefined, len(points))
    for i, point in enumerate(points):
        env = dict(zip(NAMES, point, strict=True))
        try:
            expected = e(env)
        except UndefinedError:
            assert undefined[i]
        else:
            assert not undefined[i]
            assert values[i] == expected


@given(TEXTS, st.tuples(*[st.integers(-12, 12)] * 3))
def test_integers_give_what_python_gives(text: str, point: tuple[int, int, int]) -> None:
    env = dict(zip(NAMES, point, strict=True))
    functions = {
        "ceil_div": lambda a, b: -(-a // b),
        "round_up": lambda a, b: -(-a // b) * b,
        "is_power_of_two": lambda a: a > 0 and bin(a).count("1") == 1,
        "alignment": lambda a, cap: next(p for p in (16, 8, 4, 2, 1) if p <= cap and a % p == 0),
    }
    try:
        expected = eval(text, functions, env)
    except ZeroDivisionError:
        with pytest.raises(UndefinedError):
            Expression(text)(env)
    else:
        assert Expression(text)(env) == expected


def test_arrays_broadcast() -> None:
    rows, columns = np.arange(1, 4)[:, None], np.arange(1, 5)[None, :]
    values, undefined = Expression("a * b + c").on_arrays({"a": rows, "b": columns, "c": 7})
    assert undefined is None
    assert np.array_equal(values, rows * columns + 7)


def test_words_compare() -> None:
    e = Expression("layout == 'nt' and x > 1")
    assert e({"layout": "nt", "x": 2})
    assert not e({"layout": "nn", "x": 2})
    values, _ = e.on_arrays({"layout": np.array(["nt", "nn"]), "x": 2})
    assert list(values) == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "x.real", "().__class__", "x[0]", "x ** 2", "x << 3", "x >> 1", "x | 1", "x & 1", "x ^ 1", "~x", "x / 2",
        "x @ x", "print(1)", "__import__('os')", "eval('1')", "open('f')", "min(*x)", "max(x, key=x)", "min(x)", "min",
        "alignment(x)", "[x]", "(x, 1)", "{x}", "{1: x}", "[i for i in x]", "(i for i in x)", "lambda: 1", "(y := 1)",
        "x is None", "x in y", "None", "1.5", "1j", "...", "b'a'", "f'{x}'", "'a' * 9", "'%9d' % x", "-'a'",
        "('a' if x else 'b') * 9", "('a' or x) * 9", "max('a', 'b')", "'" + "a" * 41 + "'", str(2**63),
        "_x", "__builtins__", "x; y", "x = 1", "import os", "", "   ", "(", "x y", "1 +", "\x00", "await x", "yield",
    ],
)  # fmt: skip
def test_hostile_texts_are_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text)


def test_long_and_deep_texts_are_refused() -> None:
    for text in ("1+" * MAX_LENGTH + "1", "(" * 900 + "1" + ")" * 900, "-" * 1900 + "1", "not " * 400 + "1",
                 "-(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1), "1" * MAX_LENGTH, "1+" * 900 + "1"):  # fmt: skip
        with pytest.raises(ExpressionError):
            Expression(text)


def test_not_text_is_refused() -> None:
    with pytest.raises(ExpressionError, match="must be text"):
        Expression(7)  # type: ignore[arg-type]


def test_words_from_outside_cannot_be_computed_with() -> None:
    for text in ("layout * 99999999999", "(layout or 1) * 99999999999", "layout % 5", "max(layout, 1)"):
        with pytest.raises(ExpressionError, match="layout"):
            Expression(text)({"layout": "nt"})
        with pytest.raises(ExpressionError, match="layout"):
            Expression(text).on_arrays({"layout": np.array(["nt"])})


def test_results_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ExpressionError, match="64 bits"):
        Expression("x * x")({"x": 2**40})


def test_missing_names_say_so() -> None:
    with pytest.raises(ExpressionError, match="splits"):
        Expression("splits + 1")({})
    with pytest.raises(ExpressionError, match="splits"):
        Expression("splits + 1").on_arrays({})


def test_names_are_known() -> None:
    assert expression("ceil_div(m, bm) * (a if b > 2 else min(c, d))").names == {"m", "bm", "a", "b", "c", "d"}
