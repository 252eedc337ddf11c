"""What a pack's files say is checked, even where hashes and seal are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from forged import resealed

from gemmtune.pack.format import pack_files, unpack
from gemmtune.pack.jsontext import decode, encode
from gemmtune.space.errors import PackError


@pytest.fixture
def files(small_pack: Any) -> dict[str, bytes]:
    return pack_files(small_pack)


def edited(files: dict[str, bytes], name: str, change: Callable[[Any], None]) -> dict[str, bytes]:
    content = decode(files[name], name)
    change(content)
    return resealed({**files, name: encode(content)})


def kernel_file(files: dict[str, bytes]) -> str:
    return next(n for n in sorted(files) if n.endswith(".json") and n.startswith("kernels/"))


def rejects(files: dict[str, bytes], *words: str) -> None:
    with pytest.raises(PackError) as caught:
        unpack(files)
    for word in words:
        assert word in str(caught.value)


def test_newer_schemas(files: dict[str, bytes]) -> None:
    rejects(resealed(files, schema=2), "upgrade")
    rejects(edited(files, "dispatch.json", lambda d: d.update(schema=2)), "upgrade")
    rejects(edited(files, kernel_file(files), lambda d: d.update(schema=99)), "upgrade")
    rejects(edited(files, kernel_file(files), lambda d: d["recipe"].update(schema=3)), "upgrade")


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('true')", "m.__class__", "(lambda: 1)()", "[1 for x in m]", "m ** m", "1 << m",
     "open('x')", "'a' * 9999999999 == 'b'", "'%999999999d' % m", "m m", "(" * 500 + "m" + ")" * 500, "x" * 3000,
     "unknown + 1", "m // 0"],
)  # fmt: skip
def test_hostile_expressions_in_a_recipe(text: str, files: dict[str, bytes]) -> None:
    name = kernel_file(files)
    for change in (
        lambda d: d["recipe"].update(grid=[text, "1", "1"]),
        lambda d: d["recipe"].update(workspace=text),
        lambda d: d["recipe"]["arguments"][3].update(expr=text),
        lambda d: d["recipe"].update(preconditions=[{"expr": text, "text": "no"}]),
    ):
        rejects(edited(files, name, change))


def test_recipes_out_of_range(files: dict[str, bytes]) -> None:
    name = kernel_file(files)
    for change in (
        lambda d: d["recipe"].update(grid=["m * 99999999999", "1", "1"]),
        lambda d: d["recipe"].update(grid=["0 - m", "1", "1"]),
        lambda d: d["recipe"].update(workspace="m * 99999999999999"),
        lambda d: d["recipe"].update(block=[2048, 1, 1]),
        lambda d: d["recipe"].update(block=[True, 1, 1]),
        lambda d: d["recipe"].update(entry="a b"),
        lambda d: d["recipe"].update(dynamic_shared=2**30),
        lambda d: d["recipe"].update(preconditions=[{"expr": "m < 1", "text": "m is too large"}]),
        lambda d: d["recipe"].update(arguments=d["recipe"]["arguments"][1:]),
        lambda d: d["recipe"]["arguments"].append({"kind": "pointer", "name": "q", "type": "", "expr": ""}),
        lambda d: d["recipe"].update(constants={"n": 1}),
        lambda d: d["recipe"].update(surprise=1),
        lambda d: d.update(problem={"kind": []}),
        lambda d: d.update(problem={**d["problem"], "dtype": "fp8"}),
        lambda d: d["problem"].update(dtype="bf16", b_dtype="bf16"),
        lambda d: d.update(arch="sm_80"),
    ):
        rejects(edited(files, name, change))


def test_rows_that_do_not_fit(files: dict[str, bytes]) -> None:
    def first(d: Any) -> Any:
        return d["tables"][0]["rows"][0]

    for change, word in (
        (lambda d: first(d).update(kernel="c" * 64), "does not have"),
        (lambda d: first(d).update(kernel="evil"), "neither"),
        (lambda d: first(d).update(axes={"m": 1}), "axes"),
        (lambda d: first(d)["axes"].update(m=[8, 4]), "neither a size"),
        (lambda d: first(d)["axes"].update(m=0), "neither a size"),
        (lambda d: first(d).update(points=[]), "no measurement"),
        (lambda d: first(d)["points"][0].update(ratio=None), "estimate"),
        (lambda d: first(d)["points"][0].update(us=-1.0), "positive"),
        (lambda d: first(d)["points"][0]["axes"].update(m=63), "outside"),
        (lambda d: first(d).update(layout="xx"), "no problem"),
        (lambda d: first(d)["dtypes"].update(q="bf16"), "dtypes"),
        (lambda d: first(d).update(more=1), "unknown fields"),
        (lambda d: d["tables"][0].update(rows={}), "list"),
    ):
        rejects(edited(files, "dispatch.json", change), word)


def test_numbers_that_are_none(files: dict[str, bytes]) -> None:
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"99999999999999999999", b"9" * 5000):
        raw = files["dispatch.json"].replace(b'"us": 10.0', b'"us": ' + number)
        assert raw != files["dispatch.json"]
        rejects(resealed({**files, "dispatch.json": raw}), "dispatch.json")


@pytest.mark.parametrize("depth", [40, 100_000])
def test_deep_json(depth: int, files: dict[str, bytes]) -> None:
    raw = b"[" * depth + b"]" * depth
    rejects(resealed({**files, "dispatch.json": raw}), "nested deeper")


def test_a_key_given_twice(files: dict[str, bytes]) -> None:
    raw = files["dispatch.json"].replace(b'{\n "schema": 1', b'{\n "schema": 1, "schema": 1', 1)
    raw = raw if raw != files["dispatch.json"] else b'{"schema": 1, "schema": 1, "tables": []}'
    rejects(resealed({**files, "dispatch.json": raw}), "twice")
