"""Small integer expressions: grids, workspace sizes, preconditions and constraints as checked text.

Expressions come from packs made elsewhere and from users' own spaces, so they are never trusted: the text is parsed
with :mod:`ast`, every node is checked against a short list (integers, short strings, names, ``+ - * // %``, comparisons,
``and or not``, ``x if c else y`` and the functions below), and only then compiled. There is no attribute, no
subscript, no power and no shift, and text length and depth are capped, so that no expression can run long or grow a
huge number.

One text evaluates in two ways: on Python integers (launching a kernel) and on NumPy arrays, element by element
(enumerating a space).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

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


def _array_min(*xs: Any) -> Any:
    out = xs[0]
    for x in xs[1:]:
        out = np.minimum(out, x)
    return out


def _array_max(*xs: Any) -> Any:
    out = xs[0]
    for x in xs[1:]:
        out = np.maximum(out, x)
    return out


_ARRAY: dict[str, Callable[..., Any]] = {
    "min": _array_min,
    "max": _array_max,
    "abs": np.abs,
    "ceil_div": _ceil_div,
    "round_up": _round_up,
    "is_power_of_two": lambda a: (np.asarray(a) > 0) & ((np.asarray(a) & (np.asarray(a) - 1)) == 0),
    "alignment": lambda a, cap: np.where(np.asarray(a) == 0, cap, np.minimum(np.asarray(a) & -np.asarray(a), cap)),
    "_and": np.logical_and,
    "_or": np.logical_or,
    "_not": np.logical_not,
    "_where": np.where,
}
_ARITY = {"abs": (1, 1), "ceil_div": (2, 2), "round_up": (2, 2), "is_power_of_two": (1, 1), "alignment": (2, 2)}
_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_COMPARE = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class Expression:
    """A checked integer expression.

    Args:
        text: the expression, e.g. ``"ceil_div(m, 128) * splits"``.

    Raises:
        ExpressionError: where the text is malformed, too long or deep, or uses anything outside the short list.
    """

    __slots__ = ("_array_code", "_scalar_code", "_tree", "names", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ExpressionError(f"An expression must be text, but got {type(text).__name__}.")
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"An expression may have {MAX_LENGTH} characters, but this one has {len(text)}.")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ExpressionError(f"Expression {text[:80]!r} does not parse: {error}.") from None
        names: set[str] = set()
        _check(tree.body, names, text, 0)
        self.text = text
        self.names: frozenset[str] = frozenset(names)
        self._tree = tree
        self._scalar_code: CodeType = compile(tree, "<expression>", "eval")
        self._array_code: CodeType | None = None

    def __call__(self, env: Mapping[str, Any]) -> Any:
        """The value on Python integers (or short strings), in ``env``.

        Raises:
            ExpressionError: a name is missing, a division by zero, or a result of 2**63 or more in size.
        """
        try:
            value = eval(self._scalar_code, {"__builtins__": {}, **_SCALAR}, env)
        except NameError as error:
            raise ExpressionError(f"Expression {self.text!r} needs a value that is not given: {error}.") from None
        except (ZeroDivisionError, TypeError, OverflowError) as error:
            raise ExpressionError(f"Expression {self.text!r} cannot be evaluated: {error}.") from None
        if isinstance(value, int) and not -LIMIT <= value < LIMIT:
            raise ExpressionError(f"Expression {self.text!r} gives {value}, which does not fit in 64 bits.")
        return value

    def on_arrays(self, env: Mapping[str, Any]) -> Any:
        """The value element by element, where some names are NumPy arrays (int64, bool or str) of one shape."""
        if self._array_code is None:
            tree = ast.fix_missing_locations(_Vectorise().visit(ast.parse(self.text.strip(), mode="eval")))
            self._array_code = compile(tree, "<expression>", "eval")
        try:
            with np.errstate(divide="raise"):
                return eval(self._array_code, {"__builtins__": {}, **_ARRAY}, env)
        except NameError as error:
            raise ExpressionError(f"Expression {self.text!r} needs a value that is not given: {error}.") from None
        except (FloatingPointError, ZeroDivisionError, TypeError) as error:
            raise ExpressionError(f"Expression {self.text!r} cannot be evaluated: {error}.") from None

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


@lru_cache(maxsize=4096)
def expression(text: str) -> Expression:
    """The checked expression of ``text``, from a cache."""
    return Expression(text)


def _check(node: ast.expr, names: set[str], text: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"Expression {text[:80]!r} is nested deeper than {MAX_DEPTH} levels.")
    children: list[ast.expr] = []
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() as v) if abs(v) < LIMIT:
            pass
        case ast.Constant(value=str() as s) if len(s) <= 40:
            pass
        case ast.Name(id=name):
            if name.startswith("_"):
                raise ExpressionError(f"Expression {text[:80]!r} uses the name {name!r}: names must not start with '_'.")
            names.add(name)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _BINARY):
            children = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            children = [operand]
        case ast.BoolOp(values=values):
            children = values
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(isinstance(o, _COMPARE) for o in ops):
            children = [left, *comparators]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            children = [test, body, orelse]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _SCALAR:
            low, high = _ARITY.get(name, (2, 16))
            if not low <= len(args) <= high:
                raise ExpressionError(f"Expression {text[:80]!r}: {name} takes {low} to {high} values, got {len(args)}.")
            children = args
        case _:
            raise ExpressionError(
                f"Expression {text[:80]!r} uses {type(node).__name__}, which is not allowed: only integers, names, "
                f"+ - * // %, comparisons, and/or/not, if/else and {', '.join(_SCALAR)} are."
            )
    for child in children:
        _check(child, names, text, depth + 1)


class _Vectorise(ast.NodeTransformer):
    """and/or/not, if/else and chained comparisons as NumPy calls, which the Python words do not reach."""

    @staticmethod
    def _call(name: str, args: list[ast.expr]) -> ast.expr:
        return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=args, keywords=[])

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        values: list[ast.expr] = [self.visit(v) for v in node.values]
        name = "_and" if isinstance(node.op, ast.And) else "_or"
        out = values[0]
        for value in values[1:]:
            out = self._call(name, [out, value])
        return out

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return self._call("_not", [operand])
        return ast.UnaryOp(op=node.op, operand=operand)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return self._call("_where", [self.visit(node.test), self.visit(node.body), self.visit(node.orelse)])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        sides: list[ast.expr] = [self.visit(node.left), *(self.visit(c) for c in node.comparators)]
        out: ast.expr | None = None
        for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
            pair: ast.expr = ast.Compare(left=left, ops=[op], comparators=[right])
            out = pair if out is None else self._call("_and", [out, pair])
        assert out is not None  # ast guarantees at least one comparator
        return out
