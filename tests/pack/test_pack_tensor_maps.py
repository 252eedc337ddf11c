"""Kernels with tensor maps and persistent grids in a pack: they round-trip, are checked, and dispatch by alignment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmtune.pack.dispatch import Dispatch
from gemmtune.pack.export import alignment
from gemmtune.pack.format import PackData, check_launch, pack_files, read_pack, unpack
from gemmtune.pack.jsontext import decode, encode
from gemmtune.pack.schema import Kernel, kernel_from_json, kernel_to_json
from gemmtune.space.errors import PackError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.recipe import Argument
from gemmtune.space.tensor_map import TensorMapSpec

H200 = gpu("h200")
PROBLEM = Gemm(512, 256, 128, "bf16")
MAPS = tuple(
    Argument("tensor_map", name, map=TensorMapSpec("bf16", ("k", rows), f"ld{name} * 2", (64, 128)))
    for name, rows in (("a", "m"), ("b", "n"))
)


@pytest.fixture
def data(maker: Any) -> PackData:
    """A pack of one kernel that reads A and B through tensor maps, with as many blocks as the device has SMs."""
    kernel = maker.add(PROBLEM, workspace="m * 4")
    others = tuple(a for a in kernel.recipe.arguments if a.name not in ("a", "b"))
    maker.kernels[kernel.sha] = replace(
        kernel,
        recipe=replace(
            kernel.recipe,
            arguments=MAPS + others,
            grid=("min(m, sms)", "1", "1"),
            workspace="sms * 1024",
            preconditions=(),
            programmatic=True,
        ),
    )
    made: PackData = maker.data()
    return made


def only(data: PackData) -> Kernel:
    return next(iter(data.kernels.values()))


def test_it_round_trips(data: PackData, write: Callable[..., Path]) -> None:
    again = read_pack(write(data, "p.zip"))
    assert replace(again, manifest_sha256="") == data
    assert only(again).recipe.to_json()["schema"] == 2


def test_it_dispatches_where_tma_can_read(data: PackData) -> None:
    dispatch = Dispatch(data, H200.key, H200.arch)
    assert dispatch.choose(PROBLEM).kernel is not None
    assert "not a multiple of 16 bytes" in str(dispatch.choose(PROBLEM, {"ptr_a": 264}).notes)
    assert "rows of a are 258 bytes apart" in str(dispatch.choose(replace(PROBLEM, lda=129)).notes)
    small = Dispatch(data, H200.key, H200.arch, workspace_limit=131 * 1024)
    assert "workspace of 135168 bytes" in str(small.choose(PROBLEM).notes)


def test_the_alignment_it_needs_is_told(data: PackData) -> None:
    assert alignment(only(data), PROBLEM) == {"a": 16, "b": 16, "d": 1}


def test_a_launch_is_checked_on_the_device_of_its_table(data: PackData) -> None:
    check_launch(only(data), PROBLEM, H200.key)
    with pytest.raises(PackError, match="no device key"):
        check_launch(only(data), PROBLEM, "my GPU")
    with pytest.raises(PackError, match="device that cannot be"):
        pack_files(replace(data, tables=(replace(data.tables[0], device="my GPU"),)))


@pytest.mark.parametrize(
    ("index", "changed", "said"),
    [
        (0, {"map": 7}, "map should be a JSON object"),
        (0, {"map": None}, "kind 'tensor_map' with map None"),
        (0, {"name": "c"}, "takes? just the tensors|not take just"),
        (2, {"map": {}}, "lacks the field"),
    ],
)
def test_altered_maps_are_refused(data: PackData, index: int, changed: dict[str, Any], said: str) -> None:
    altered = decode(encode(kernel_to_json(only(data))), "kernel")
    altered["recipe"]["arguments"][index].update(changed)
    with pytest.raises(PackError, match=said):
        check_launch(kernel_from_json(only(data).sha, altered), PROBLEM, H200.key)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("element", 3, "element"), ("extents", ["k"], "two str"), ("extents", ["k", 1], "two str"),
        ("box", [64.5, 1], "two int"), ("box", [64, 2**62], "1 to 256"), ("swizzle", "x", "swizzle"),
        ("l2_promotion", -1, "l2_promotion"), ("more", 1, "more"),
    ],
)  # fmt: skip
def test_every_field_of_a_map_is_typed(data: PackData, field: str, value: Any, said: str) -> None:
    altered = decode(encode(kernel_to_json(only(data))), "kernel")
    altered["recipe"]["arguments"][0]["map"][field] = value
    with pytest.raises(PackError, match=said):
        kernel_from_json(only(data).sha, altered)


def test_files_are_read_back_as_they_are_written(data: PackData) -> None:
    assert replace(unpack(pack_files(data)), manifest_sha256="") == data
