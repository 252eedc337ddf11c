"""JSON in one canonical spelling, read with distrust: the text of ``manifest.json``, ``dispatch.json`` and recipes.

Standard library only. :func:`encode` gives the same bytes for equal data, so that packs are reproducible;
:func:`decode` refuses what a pack never holds (too large, too deep, NaN and infinities, integers beyond 64 bits,
a key given twice), and :class:`Reader` takes typed fields out of an object and refuses those left over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from gemmtune.space.errors import PackError

MAX_JSON = 16 * 2**20
"""Bytes of one JSON file."""
MAX_DEPTH = 16
"""Nesting of objects and lists: a pack's own files need 7."""
LIMIT = 2**63


def encode(data: Any) -> bytes:
    """``data`` as UTF-8 JSON, sorted and indented, one spelling for equal data."""
    return (json.dumps(data, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()


def decode(raw: bytes, where: str) -> Any:
    """The data of ``raw``, which stands in the file ``where``.

    Raises:
        PackError: it is too large, not UTF-8, not JSON, nested too deep, repeats a key, or holds a number that is
            not finite or not within 64 bits.
    """
    if len(raw) > MAX_JSON:
        raise PackError(f"{where} has {len(raw)} bytes, but a pack's JSON may have {MAX_JSON}: refuse it.")

    def refuse(text: str) -> NoReturn:
        raise PackError(f"{where} holds the number {text}, which is not finite: the pack was altered.")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            raise PackError(f"{where} gives a key twice in one object: the pack was altered.")
        return out

    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=refuse, object_pairs_hook=unique)
    except RecursionError:
        raise PackError(f"{where} is nested deeper than {MAX_DEPTH} levels: refuse it.") from None
    except ValueError as error:  # covers JSONDecodeError, UnicodeDecodeError and integers of thousands of digits
        raise PackError(f"{where} is not JSON ({error}): the pack is truncated or was altered.") from None
    _check(data, where)
    return data


def _check(data: Any, where: str) -> None:
    waiting: list[tuple[Any, int]] = [(data, 1)]
    while waiting:
        value, depth = waiting.pop()
        if isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise PackError(f"{where} is nested deeper than {MAX_DEPTH} levels: refuse it.")
            waiting += [(v, depth + 1) for v in (value.values() if isinstance(value, dict) else value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise PackError(f"{where} holds a number that is not finite: the pack was altered.")
        elif isinstance(value, int) and not -LIMIT <= value < LIMIT:
            raise PackError(f"{where} holds a number beyond 64 bits: the pack was altered.")


class Reader:
    """Takes typed fields out of one JSON object; every failure names the file and the field.

    Args:
        data: what should be an object.
        where: how errors call it, e.g. ``"dispatch.json row 3"``.

    Raises:
        PackError: from every method, where the field is missing or of the wrong type, and from :meth:`end` where
            fields are left over.
    """

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise PackError(f"{where} should be a JSON object, but is {type(data).__name__}: the pack was altered.")
        self._left: dict[str, Any] = dict(data)
        self.where = where

    def take(self, name: str) -> Any:
        """The field ``name``, of any type."""
        if name not in self._left:
            raise PackError(
                f"{self.where} lacks the field {name!r}: the pack was altered, or written by another version."
            )
        return self._left.pop(name)

    def text(self, name: str, limit: int = 2000) -> str:
        """A string of at most ``limit`` characters."""
        value = self.take(name)
        if not isinstance(value, str) or len(value) > limit:
            self._wrong(name, f"text of at most {limit} characters", value)
        return value

    def maybe_text(self, name: str, limit: int = 2000) -> str | None:
        """A string of at most ``limit`` characters, or null."""
        if self._left.get(name, ...) is None:
            self._left.pop(name)
            return None
        return self.text(name, limit)

    def integer(self, name: str, low: int = 0, high: int = LIMIT - 1) -> int:
        """An integer within ``low..high``."""
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self._wrong(name, f"an integer from {low} to {high}", value)
        return int(value)

    def number(self, name: str) -> float:
        """A positive finite number."""
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self._wrong(name, "a positive number", value)
        return float(value)

    def maybe_number(self, name: str) -> float | None:
        """A positive finite number, or null."""
        if self._left.get(name, ...) is None:
            self._left.pop(name)
            return None
        return self.number(name)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.take(name)
        if not isinstance(value, bool):
            self._wrong(name, "true or false", value)
        return bool(value)

    def items(self, name: str, limit: int = 100_000) -> list[Any]:
        """A list of at most ``limit`` values."""
        value = self.take(name)
        if not isinstance(value, list) or len(value) > limit:
            self._wrong(name, f"a list of at most {limit} values", value)
        return list(value)

    def mapping(self, name: str) -> dict[str, Any]:
        """An object, unread."""
        value = self.take(name)
        if not isinstance(value, dict):
            self._wrong(name, "an object", value)
        return dict(value)

    def texts(self, name: str) -> dict[str, str]:
        """An object whose values are strings."""
        reader = Reader(self.take(name), f"{self.where} {name}")
        return {key: reader.text(key) for key in list(reader._left)}

    def integers(self, name: str, low: int = 0, high: int = LIMIT - 1) -> dict[str, int]:
        """An object whose values are integers within ``low..high``."""
        reader = Reader(self.take(name), f"{self.where} {name}")
        return {key: reader.integer(key, low, high) for key in list(reader._left)}

    def end(self) -> None:
        """Refuse fields that nobody asked for."""
        if self._left:
            names = ", ".join(sorted(self._left)[:5])
            raise PackError(
                f"{self.where} has unknown fields ({names[:200]}): the pack was altered, or is of a newer version."
            )

    def _wrong(self, name: str, wanted: str, value: Any) -> NoReturn:
        raise PackError(
            f"{self.where} should have {wanted} in {name!r}, but has {_short(value)}: the pack was altered."
        )


def _short(value: Any) -> str:
    text = type(value).__name__ if isinstance(value, Mapping | list) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
