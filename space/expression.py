"""Small integer expressions: grids, workspace sizes, preconditions and constraints as checked text.

Expressions come from packs made elsewhere and from users' own spaces, so they are never trusted: the text is parsed
with :mod:`ast`, every node is checked against a short list (integers, short words, names, ``+ - * // %``,
comparisons, ``and or not``, ``x if c else y`` and the functions below), and only then compiled. There is no attribute,
no subscript, no power and no shift, words may be compared but never computed with (``"a" * 10**12`` would fill the
memory), and text length and depth are capped, so that no expression can run long or grow a huge number.

One text evaluates in two ways: on Python integers (launching a kernel) and on NumPy arrays, element by element
(enumerating a space). Both give the same values wherever the integers fit in 64 bits.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from gemmtune.space.errors import ExpressionError

MAX_LENGTH = 2000
MAX_DEPTH = 60
LIMIT = 2**63


def _ceil_div(a: Any, b: Any) -> Any:
    return -(-a // b)


def _round_up(a: Any, b: Any) -> Any:
    return -(-a // b) * b


def _power_of_two(a: int) -> bool:
    return a > 0 and (a & (a - 1)) == 0


def _largest_power_of_two(a: int, cap: int) -> int:
    """The largest power of two that divides ``a``, at most ``cap`` (itself a power of two); ``cap`` where a is 0."""
    return cap if a == 0 else min(a & -a, cap)


_SCALAR: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceil_div": _ceil_div,
    "round_up": _round_up,
    "is_power_of_two": _power_of_two,
    "alignment": _largest_power_of_two,
}


_ARITY = {"abs": (1, 1), "ceil_div": (2, 2), "round_up": (2, 2), "is_power_of_two": (1, 1), "alignment": (2, 2)}
_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_COMPARE = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class UndefinedError(ExpressionError):
    """An expression that divides by zero for the values at hand."""


class Expression:
    """A checked integer expression.

    Args:
        text: the expression, e.g. ``"ceil_div(m, 128) * splits"``.

    Raises:
        ExpressionError: where the text is malformed, too long or deep, or uses anything outside the short list.
    """

    __slots__ = ("_code", "_numeric", "_tree", "names", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ExpressionError(f"An expression must be text, but got {type(text).__name__}.")
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"An expression may have {MAX_LENGTH} characters, but this one has {len(text)}.")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"Expression {text[:80]!r} does not parse: {error}.") from None
        names: dict[str, bool] = {}
        _check(tree.body, names, text, 0, numeric=False)
        self.text = text
        self.names: frozenset[str] = frozenset(names)
        self._numeric = tuple(name for name, numeric in names.items() if numeric)
        self._tree = tree.body
        self._code: CodeType = compile(tree, "<expression>", "eval")

    def __call__(self, env: Mapping[str, Any]) -> Any:
        """The value on Python integers (or short strings), in ``env``.

        Raises:
            UndefinedError: a division by zero.
            ExpressionError: a name is missing, a word in arithmetic, or a result of 2**63 or more in size.
        """
        self._refuse_words(env)
        try:
            value = eval(self._code, {"__builtins__": {}, **_SCALAR}, env)
        except NameError as error:
            raise ExpressionError(f"Expression {self.text!r} needs a value that is not given: {error}.") from None
        except ZeroDivisionError:
            raise UndefinedError(f"Expression {self.text!r} divides by zero.") from None
        except (TypeError, OverflowError) as error:
            raise ExpressionError(f"Expression {self.text!r} cannot be evaluated: {error}.") from None
        if isinstance(value, int) and not -LIMIT <= value < LIMIT:
            raise ExpressionError(f"Expression {self.text!r} gives {value}, which does not fit in 64 bits.")
        return value

    def on_arrays(self, env: Mapping[str, Any]) -> tuple[Any, Any]:
        """Values element by element, where some names are NumPy arrays (int64, bool or str) that broadcast.

        The second result marks the elements that have no value, where a call would raise :class:`UndefinedError`; it is
        None where there is no such element.

        Raises:
            ExpressionError: a name is missing, a word in arithmetic, or an integer beyond 64 bits.
        """
        from gemmtune.space.array_expression import evaluate

        self._refuse_words(env)
        try:
            return evaluate(self._tree, env)
        except KeyError as error:
            raise ExpressionError(f"Expression {self.text!r} needs a value that is not given: {error}.") from None
        except (TypeError, OverflowError) as error:
            raise ExpressionError(f"Expression {self.text!r} cannot be evaluated: {error}.") from None

    def _refuse_words(self, env: Mapping[str, Any]) -> None:
        for name in self._numeric:
            value = env.get(name)
            if isinstance(value, str) or ((dtype := getattr(value, "dtype", None)) and dtype.kind not in "biu"):
                raise ExpressionError(f"Expression {self.text!r} computes with {name}, which is a word, not a number.")

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


def expression(text: str) -> Expression:
    """The checked expression of ``text``, from a cache."""
    return _cached(text) if isinstance(text, str) else Expression(text)  # the latter raises, whatever was given


_cached = lru_cache(maxsize=4096)(Expression)


def _check(node: ast.expr, names: dict[str, bool], text: str, depth: int, *, numeric: bool) -> None:
    """Refuse what is not on the list; collect names, with whether they are computed with (``numeric``: not words)."""
    if depth > MAX_DEPTH:
        raise ExpressionError(f"Expression {text[:80]!r} is nested deeper than {MAX_DEPTH} levels.")
    children: list[tuple[ast.expr, bool]] = []
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() as v) if abs(v) < LIMIT:
            pass
        case ast.Constant(value=str() as s) if len(s) <= 40 and not numeric:
            pass
        case ast.Name(id=name):
            if name.startswith("_") or name in _SCALAR:
                raise ExpressionError(
                    f"Expression {text[:80]!r} uses the name {name!r}, which is not free for a value."
                )
            names[name] = names.get(name, False) or numeric
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _BINARY):
            children = [(left, True), (right, True)]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            children = [(operand, True)]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            children = [(operand, False)]
        case ast.BoolOp(values=values):
            children = [(value, numeric) for value in values]
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(isinstance(o, _COMPARE) for o in ops):
            children = [(side, False) for side in (left, *comparators)]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            children = [(test, False), (body, numeric), (orelse, numeric)]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _SCALAR:
            low, high = _ARITY.get(name, (2, 16))
            if not low <= len(args) <= high:
                raise ExpressionError(
                    f"Expression {text[:80]!r}: {name} takes {low} to {high} values, got {len(args)}."
                )
            children = [(argument, True) for argument in args]
        case _:
            raise ExpressionError(
                f"Expression {text[:80]!r} uses {_describe(node)}, which is not allowed: only integers, names, "
                f"+ - * // %, comparisons (also of short words), and/or/not, if/else and {', '.join(_SCALAR)} are."
            )
    for child, in_arithmetic in children:
        _check(child, names, text, depth + 1, numeric=in_arithmetic)


def _describe(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=value):
            return f"the value {str(value)[:40]!r}"
        case ast.BinOp(op=op) | ast.UnaryOp(op=op):
            return type(op).__name__
        case ast.Call(func=ast.Name(id=name)):
            return f"a call of {name}"
        case _:
            return type(node).__name__
