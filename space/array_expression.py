"""Expressions on NumPy arrays: the same values, element by element, that Python gives on integers.

The tree of a checked expression is walked once for all elements. Each step yields the values and where they have none
(``None``: nowhere): array code computes every branch, also the one that Python would not reach, so that a zero divisor
in ``x == 0 or n % x == 0`` is no fault. Only an element where Python itself would divide by zero has no value.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np

Undefined = Any
"""A boolean array (True: no value), or None where every element has one."""
Result = tuple[Any, Undefined]


def evaluate(node: ast.expr, env: Mapping[str, Any]) -> Result:
    """Values of a checked tree, and where it divides by zero.

    Raises:
        KeyError: a name is not in ``env``.
        TypeError, OverflowError: words in arithmetic, an integer beyond 64 bits.
    """
    match node:
        case ast.Constant(value=value):
            return value, None
        case ast.Name(id=name):
            return env[name], None
        case ast.BinOp(left=left, op=op, right=right):
            a, ua = evaluate(left, env)
            b, ub = evaluate(right, env)
            return _arithmetic(op, whole(a), whole(b), _either(ua, ub))
        case ast.UnaryOp(op=op, operand=operand):
            a, undefined = evaluate(operand, env)
            return _unary(op, a), undefined
        case ast.BoolOp(op=op, values=values):
            return _lazy(op, [evaluate(v, env) for v in values])
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _choose(evaluate(test, env), evaluate(body, env), evaluate(orelse, env))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [evaluate(side, env) for side in (left, *comparators)]
            pairs = [
                (_COMPARE[type(op)](a, b), _either(ua, ub))
                for (a, ua), op, (b, ub) in zip(sides, ops, sides[1:], strict=False)
            ]
            return _lazy(ast.And(), pairs)
        case ast.Call(func=ast.Name(id=name), args=args):
            results = [evaluate(argument, env) for argument in args]
            undefined = reduce(_either, (u for _, u in results))
            return _FUNCTIONS[name]([whole(a) for a, _ in results], undefined)
        case _:
            raise TypeError(f"{type(node).__name__} is not part of an expression")


def whole(x: Any) -> Any:
    """Booleans as integers, which is how Python computes with them; NumPy would not."""
    if isinstance(x, np.ndarray | np.generic):
        return x.astype(np.int64) if x.dtype == bool else x
    return int(x) if isinstance(x, bool) else x


def truth(x: Any) -> Any:
    """Whether each element is true: a bool, or an array of them."""
    if isinstance(x, np.ndarray | np.generic):
        return x if x.dtype == bool else x.astype(bool)
    return bool(x)


def _either(a: Undefined, b: Undefined) -> Undefined:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def _where(test: Any, yes: Any, no: Any) -> Any:
    if isinstance(test, bool):  # keeps the smaller shape of the branch taken
        return yes if test else no
    return np.where(test, yes, no)


def _choose(test: Result, yes: Result, no: Result) -> Result:
    holds = truth(test[0])
    undefined = test[1]
    if yes[1] is not None or no[1] is not None:
        undefined = _either(undefined, _where(holds, *(False if u is None else u for u in (yes[1], no[1]))))
    return _where(holds, yes[0], no[0]), undefined


def _lazy(op: ast.boolop, results: list[Result]) -> Result:
    """``and`` / ``or`` from left to right: the later operand counts only where the earlier one does not decide."""
    out = results[0]
    for more in results[1:]:
        out = _choose(out, more, (out[0], None)) if isinstance(op, ast.And) else _choose(out, (out[0], None), more)
    return out


def _unary(op: ast.unaryop, a: Any) -> Any:
    if isinstance(op, ast.Not):
        holds = truth(a)
        return not holds if isinstance(holds, bool) else np.logical_not(holds)
    return -whole(a) if isinstance(op, ast.USub) else whole(a)


def _arithmetic(op: ast.operator, a: Any, b: Any, undefined: Undefined) -> Result:
    if isinstance(op, ast.FloorDiv | ast.Mod):
        b, undefined = _divisor(b, undefined)
        return (a // b if isinstance(op, ast.FloorDiv) else a % b), undefined
    if isinstance(op, ast.Add):
        return a + b, undefined
    return (a - b if isinstance(op, ast.Sub) else a * b), undefined


def _divisor(b: Any, undefined: Undefined) -> Result:
    """The divisor with 1 for 0, and where it was 0."""
    zero = np.asarray(b) == 0
    if not zero.any():
        return b, undefined
    return np.where(zero, 1, b), _either(undefined, zero)


def _ceil_div(args: list[Any], undefined: Undefined) -> Result:
    b, undefined = _divisor(args[1], undefined)
    return -(-args[0] // b), undefined


def _round_up(args: list[Any], undefined: Undefined) -> Result:
    b, undefined = _divisor(args[1], undefined)
    return -(-args[0] // b) * b, undefined


def _power_of_two(args: list[Any], undefined: Undefined) -> Result:
    a = np.asarray(args[0])
    return (a > 0) & ((a & (a - 1)) == 0), undefined


def _alignment(args: list[Any], undefined: Undefined) -> Result:
    a, cap = np.asarray(args[0]), args[1]
    return np.where(a == 0, cap, np.minimum(a & -a, cap)), undefined


_FUNCTIONS: dict[str, Callable[[list[Any], Undefined], Result]] = {
    "min": lambda args, undefined: (reduce(np.minimum, args), undefined),
    "max": lambda args, undefined: (reduce(np.maximum, args), undefined),
    "abs": lambda args, undefined: (np.abs(args[0]), undefined),
    "ceil_div": _ceil_div,
    "round_up": _round_up,
    "is_power_of_two": _power_of_two,
    "alignment": _alignment,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}
