"""Recipes with tensor maps and dependent launches: schema 2, beside schema 1 for whatever needs neither."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gemmtune.space.errors import ExpressionError, PackError, UnknownNameError
from gemmtune.space.gpu import TABLE, sms_of
from gemmtune.space.recipe import Argument, LaunchRecipe, Precondition, Tile
from gemmtune.space.tensor_map import TensorMapSpec

MAP = TensorMapSpec("bf16", ("k", "m"), "lda * 2", (64, 128), 128, 256)
RECIPE = LaunchRecipe(
    entry="hopper_ab12",
    block=(384, 1, 1),
    grid=("min(ceil_div(m, 128), sms)", "1", "1"),
    arguments=(Argument("tensor_map", "a", map=MAP), Argument("pointer", "d"), Argument("scalar", "m", "i32", "m")),
    tile=Tile(128, 128, "bx * 128", "0"),
    workspace="sms * 4096",
    programmatic=True,
)
ENV = {"m": 200, "n": 128, "k": 64, "lda": 64, "ptr_a": 4096, "ptr_d": 8192}


def plain() -> LaunchRecipe:
    return replace(RECIPE, arguments=RECIPE.arguments[1:], programmatic=False)


@pytest.mark.parametrize("recipe", [RECIPE, replace(RECIPE, programmatic=False), plain()])
def test_json_reads_back(recipe: LaunchRecipe) -> None:
    assert LaunchRecipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_what_older_readers_could_launch_is_written_for_them() -> None:
    assert RECIPE.to_json()["schema"] == 2
    assert replace(plain(), programmatic=True).to_json()["schema"] == 2
    old = plain().to_json()
    assert old["schema"] == 1
    assert "programmatic" not in old
    assert [set(a) for a in old["arguments"]] == [{"kind", "name", "type", "expr"}] * 2


def test_the_tensors_are_those_of_maps_and_pointers_once_each() -> None:
    assert RECIPE.tensors == ("a", "d")
    assert replace(RECIPE, arguments=(*RECIPE.arguments, Argument("pointer", "a"))).tensors == ("a", "d")


def test_a_map_binds_its_sizes() -> None:
    bound = MAP.bind(ENV)
    assert (bound.extents, bound.pitch, bound.box, bound.box_bytes) == ((64, 200), 128, (64, 128), 64 * 128 * 2)
    assert replace(MAP, element="tf32", box=(32, 8)).bind(ENV).box_bytes == 1024


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lda": 68}, "rows of a are 136 bytes apart"),
        ({"lda": 0}, "0 bytes apart"),
        ({"lda": 2**39}, "bytes apart"),
        ({"ptr_a": 4104}, "address of a is not a multiple of 16"),
        ({"m": 2**33}, "extents"),
        ({"k": 0}, "extents"),
    ],
)
def test_what_tma_cannot_read_is_a_condition_of_the_recipe(changed: dict[str, int], said: str) -> None:
    assert RECIPE.unmet(ENV) is None
    assert said in (RECIPE.unmet({**ENV, **changed}) or "")


@pytest.mark.parametrize(
    "changed",
    [
        {"element": "fp64"}, {"element": None}, {"extents": ["k"]}, {"extents": ["k", "m", "n"]}, {"extents": 3},
        {"extents": [1, 2]}, {"pitch": 128}, {"pitch": None}, {"box": [64]}, {"box": [64, 257]}, {"box": [64, 0]},
        {"box": [64.0, 128]}, {"box": [True, 128]}, {"box": [128, 64]}, {"box": [60, 64]}, {"swizzle": 256},
        {"swizzle": False}, {"swizzle": "128"}, {"l2_promotion": 32}, {"extra": 1}, {"element": ["bf16"]},
    ],
)  # fmt: skip
def test_maps_that_do_not_exist_are_refused(changed: dict[str, Any]) -> None:
    data = json.loads(json.dumps(RECIPE.to_json()))
    data["arguments"][0]["map"].update(changed)
    with pytest.raises((PackError, ExpressionError)):
        LaunchRecipe.from_json(data)


@pytest.mark.parametrize("field", ["element", "extents", "pitch", "box"])
def test_a_map_without_a_field_is_refused(field: str) -> None:
    data = json.loads(json.dumps(RECIPE.to_json()))
    del data["arguments"][0]["map"][field]
    with pytest.raises(PackError):
        LaunchRecipe.from_json(data)


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": 1}, {"schema": 3}, {"schema": True}, {"programmatic": 1}, {"programmatic": None},
        {"arguments": [{"kind": "tensor_map", "name": "a", "type": "", "expr": "", "map": None}]},
        {"arguments": [{"kind": "pointer", "name": "a", "type": "", "expr": ""}]},
        {"arguments": [{**RECIPE.to_json()["arguments"][0], "kind": "pointer"}]},
    ],
)  # fmt: skip
def test_altered_recipes_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(PackError):
        LaunchRecipe.from_json({**RECIPE.to_json(), **changed})


@pytest.mark.parametrize("text", ["__import__('os').system('true')", "k ** k", "sms * 2"])
def test_expressions_of_a_map_are_checked_and_the_same_on_every_device(text: str) -> None:
    for map_ in (replace(MAP, pitch=text), replace(MAP, extents=("k", text))):
        data = replace(RECIPE, arguments=(Argument("tensor_map", "a", map=map_),)).to_json()
        with pytest.raises((PackError, ExpressionError)):
            LaunchRecipe.from_json(data)


def test_no_precondition_looks_at_the_device() -> None:
    with pytest.raises(PackError, match="depends on the device"):
        LaunchRecipe.from_json(replace(RECIPE, preconditions=(Precondition("m < sms", "no"),)).to_json())


def test_a_device_key_tells_its_multiprocessors() -> None:
    assert all(sms_of(gpu.key) == gpu.sms for gpu in TABLE.values())
    for other in ("", "h200", "9.0|NVIDIA H200|0|140|", "9.0|NVIDIA H200|x|140|", "9.0|NVIDIA H200|132|140||"):
        with pytest.raises(UnknownNameError, match="no device key"):
            sms_of(other)
