"""The JSON types in a pack's launch recipe, checked with distrust before the recipe's own reader checks the values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.pack.jsontext import Reader
from gemmtune.space.errors import PackError
from gemmtune.space.recipe import SCHEMA


def check_recipe_types(data: Mapping[str, Any], where: str) -> None:
    """Check the JSON types in a recipe, before :meth:`LaunchRecipe.from_json` checks the values.

    Raises:
        PackError: a field has another type than a recipe's, or there are too many arguments or conditions.
    """
    reader = Reader(data, where)
    schema = reader.integer("schema", 1)
    if schema > SCHEMA:
        raise PackError(f"{where} has schema {schema}, but this gemmtune reads 1 to {SCHEMA}: upgrade gemmtune.")
    for name in ("entry", "workspace", "counters"):
        reader.text(name)
    for name, kind in (("block", int), ("cluster", int), ("grid", str)):
        values = reader.items(name, 3)
        if len(values) != 3 or not all(type(v) is kind for v in values):
            raise PackError(f"{where} should have three {kind.__name__} in {name!r}: the pack was altered.")
    for name, fields in (("arguments", ("kind", "name", "type", "expr")), ("preconditions", ("expr", "text"))):
        for i, item in enumerate(reader.items(name, 64)):
            part = Reader(item, f"{where} {name} {i}")
            for one in fields:
                part.text(one)
            if schema > 1 and name == "arguments":
                _check_map(part.take("map"), f"{where} {name} {i} map")
            part.end()
    if schema > 1:
        reader.flag("programmatic")
    tile = Reader(reader.take("tile"), f"{where} tile")
    for name in ("rows", "columns"):
        tile.integer(name, 1)
    for name in ("row", "column"):
        tile.text(name)
    tile.end()
    reader.integer("dynamic_shared")
    reader.integers("constants")
    reader.end()


def _check_map(data: Any, where: str) -> None:
    """Check the JSON types in the tensor map of an argument, where it has one."""
    if data is None:
        return
    reader = Reader(data, where)
    reader.text("element", 20)
    reader.text("pitch")
    for name, kind in (("extents", str), ("box", int)):
        values = reader.items(name, 2)
        if len(values) != 2 or not all(type(v) is kind for v in values):
            raise PackError(f"{where} should have two {kind.__name__} in {name!r}: the pack was altered.")
    reader.integer("swizzle")
    reader.integer("l2_promotion")
    reader.end()
