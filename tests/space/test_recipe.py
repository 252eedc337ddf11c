"""Launch recipes: JSON round trips, and everything altered or hostile is refused."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemmtune.space.errors import ExpressionError, GemmtuneError, PackError
from gemmtune.space.recipe import Argument, LaunchRecipe, Precondition, Tile

RECIPE = LaunchRecipe(
    entry="gemm_ab12",
    block=(128, 1, 1),
    grid=("ceil_div(m, 64) * ceil_div(n, 64)", "1", "2"),
    arguments=(
        Argument("pointer", "a"),
        Argument("scalar", "m", "i32", "m"),
        Argument("scalar", "alpha", "f32"),
        Argument("workspace"),
        Argument("counters"),
    ),
    tile=Tile(64, 64, "bx % 4 * 64", "bx // 4 * 64"),
    cluster=(2, 1, 1),
    dynamic_shared=49152,
    workspace="m * n * 4",
    counters="ceil_div(m, 64) * 4",
    preconditions=(Precondition("ptr_a % 16 == 0", "the address of a is not a multiple of 16 bytes"),),
    constants={"n": 256, "k": 128},
)
ENV = {"m": 200, "n": 256, "k": 128, "ptr_a": 4096}


def test_json_reads_back() -> None:
    assert LaunchRecipe.from_json(json.loads(json.dumps(RECIPE.to_json()))) == RECIPE


def test_grid_and_conditions() -> None:
    assert RECIPE.grid_size(ENV) == (16, 1, 2)
    assert RECIPE.threads == 128
    assert RECIPE.unmet(ENV) is None
    assert RECIPE.unmet({**ENV, "n": 255}) == "n is compiled in as 256, but the call has 255"
    assert RECIPE.unmet({**ENV, "ptr_a": 4104}) == "the address of a is not a multiple of 16 bytes"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", 2), ("schema", None), ("entry", "a b"), ("entry", ""), ("entry", 7), ("block", [1024, 2, 1]),
        ("block", [0, 1, 1]), ("block", [1, 1]), ("block", "abc"), ("block", [1.5, 1, 1]), ("block", None),
        ("grid", ["m", "n"]), ("grid", [1, 1, 1]), ("cluster", [0, 1, 1]), ("cluster", [2**32, 1, 1]),
        ("dynamic_shared", -1), ("dynamic_shared", 2**21), ("dynamic_shared", "1"), ("arguments", [{"kind": "shell"}]),
        ("arguments", [{"kind": "scalar", "name": "m", "type": "i128"}]), ("arguments", [{"kind": "pointer", "x": 1}]),
        ("arguments", None), ("arguments", ["a"]), ("tile", {"rows": 0, "columns": 1, "row": "0", "column": "0"}),
        ("tile", {}), ("tile", None), ("preconditions", [{"expr": "1"}]), ("preconditions", 3),
        ("constants", {"n": "8"}), ("constants", {"n": True}), ("preconditions", [{"expr": "1", "text": 1}]),
        ("constants", 4), ("constants", {"n": 1.5}), ("workspace", None), ("workspace", 4), ("extra", 1),
    ],
)  # fmt: skip
def test_altered_recipes_are_refused(field: str, value: Any) -> None:
    data = RECIPE.to_json()
    data[field] = value
    with pytest.raises((PackError, ExpressionError)):
        LaunchRecipe.from_json(data)


@pytest.mark.parametrize("field", list(RECIPE.to_json()))
def test_missing_fields_are_refused(field: str) -> None:
    data = RECIPE.to_json()
    del data[field]
    with pytest.raises(PackError):
        LaunchRecipe.from_json(data)


HOSTILE = "__import__('os').system('true')"


@pytest.mark.parametrize("text", [HOSTILE, "m ** m", "'a' * 10000000000", "m.__class__", "1" * 3000])
def test_hostile_expressions_are_refused_everywhere(text: str) -> None:
    data = RECIPE.to_json()
    places: list[dict[str, Any]] = [
        {**data, "grid": [text, "1", "1"]},
        {**data, "workspace": text},
        {**data, "counters": text},
        {**data, "tile": {**data["tile"], "row": text}},
        {**data, "tile": {**data["tile"], "column": text}},
        {**data, "preconditions": [{"expr": text, "text": "x"}]},
        {**data, "arguments": [{"kind": "scalar", "name": "m", "type": "i32", "expr": text}]},
    ]
    for altered in places:
        with pytest.raises(ExpressionError):
            LaunchRecipe.from_json(altered)


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text("ab_ /'\\0é", max_size=5)),
    lambda c: st.one_of(st.lists(c, max_size=3), st.dictionaries(st.text("ab_ /'\\0é", max_size=5), c, max_size=3)),
    max_leaves=5,
)


@given(st.sampled_from(sorted(RECIPE.to_json())), JUNK)
@example("constants", [[None, 0]])
def test_junk_in_any_field_is_refused_with_a_sentence_or_harmless(field: str, junk: Any) -> None:
    data = {**RECIPE.to_json(), field: junk}
    try:
        recipe = LaunchRecipe.from_json(data)
    except GemmtuneError:
        return
    assert LaunchRecipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
