"""Tensor maps, dependent launches, clusters and persistent grids by recipe, with the driver's library replaced."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest

from gemmtune.device import driver as driver_module
from gemmtune.device.launch import LoadedKernel
from gemmtune.device.tensor_map import EncodedMaps
from gemmtune.space.errors import LaunchError, ToolchainError
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import Argument, LaunchRecipe, Tile
from gemmtune.space.tensor_map import TensorMapSpec

PROBLEM = Gemm(100, 64, 72, "bf16")
MAP_A = TensorMapSpec("bf16", ("k", "m"), "lda * 2", (64, 128), 128, 256)
MAP_B = TensorMapSpec("tf32", ("k", "n"), "ldb * 4", (8, 16), 32, 0)
RECIPE = LaunchRecipe(
    entry="kernel",
    block=(384, 1, 1),
    grid=("min(ceil_div(m, 4), sms // 2) * 2", "1", "1"),
    arguments=(
        Argument("tensor_map", "a", map=MAP_A),
        Argument("tensor_map", "b", map=MAP_B),
        Argument("pointer", "d"),
        Argument("pointer", "a"),
        Argument("scalar", "sms", "i32", "sms * 10"),
    ),
    tile=Tile(4, 64, "bx * 4", "0"),
    cluster=(2, 1, 1),
    dynamic_shared=2048,
)
POINTERS = {"a": 0x10000, "b": 0x20000, "d": 0x30000}


class Library:
    """libcuda as far as launching needs it: remembers what it was asked, and fills maps with the tensor's address."""

    def __init__(self) -> None:
        self.maps: list[tuple[Any, ...]] = []
        self.launches: list[dict[str, Any]] = []
        self.status = 0

    def cuTensorMapEncodeTiled(self, place: Any, *rest: Any) -> int:
        element, rank, address, extents, pitches, box, steps, *modes = rest
        assert place.value % 64 == 0
        words = (ctypes.c_uint64 * 16).from_address(place.value)
        words[:] = [address.value + i for i in range(16)]
        self.maps.append(
            (
                element.value,
                rank.value,
                address.value,
                *map(tuple, (extents, pitches, box, steps)),
                *(m.value for m in modes),
            )
        )
        return self.status

    def cuLaunchKernelEx(self, config: Any, function: Any, params: Any, extra: Any) -> int:
        c = config._obj
        assert (c.count, c.attributes[0].id, c.attributes[0].value, extra.value) == (1, 6, 1, None)
        shape = (*c.grid, *c.block, c.shared)
        self.launches.append({"shape": shape, "stream": c.stream, "function": function.value, "at": params.value})
        return self.status

    def cuGetErrorName(self, status: Any, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_INVALID_VALUE"
        return 0


class Launches:
    """cuLaunchKernel: reads the arguments back, 16 words where they are maps."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.shape: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> None:
        *shape, _, params, _ = arguments
        self.shape = tuple(shape)
        self.seen.append(read(params))


def read(params: int) -> list[int]:
    """Maps (their first word, the rest checked), pointers and scalars at the addresses that ``params`` lists."""
    out = []
    for a, at in zip(RECIPE.arguments, (ctypes.c_void_p * len(RECIPE.arguments)).from_address(params), strict=True):
        assert at is not None
        words = (ctypes.c_uint64 * (16 if a.map else 1)).from_address(at)
        assert list(words) == [words[0] + i for i in range(len(words))]
        assert not a.map or at % 128 == 0
        out.append(words[0])
    return out


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    fake = Library()
    monkeypatch.setattr(driver_module, "library", lambda: fake)
    return fake


def loaded(recipe: LaunchRecipe, launch: Any = None, sms: int = 10) -> LoadedKernel:
    kernel = object.__new__(LoadedKernel)
    kernel.recipe, kernel.shared, kernel.function, kernel.sms = recipe, recipe.dynamic_shared, 77, sms
    kernel.launch_kernel = launch or Launches()
    return kernel


def test_maps_are_encoded_as_the_recipe_says_and_passed_by_value(library: Library) -> None:
    launches = Launches()
    env = {**PROBLEM.environment(), "lda": 80, "ldb": 72}
    loaded(RECIPE, launches).launch(env, POINTERS)
    assert library.maps == [
        (9, 2, 0x10000, (72, 100), (160,), (64, 128), (1, 1), 0, 3, 3, 0),
        (11, 2, 0x20000, (72, 64), (288,), (8, 16), (1, 1), 0, 1, 0, 0),
    ]
    assert launches.seen == [[0x10000, 0x20000, 0x30000, 0x10000, 100]]
    assert launches.shape == (77, 10, 1, 1, 384, 1, 1, 2048)


def test_a_persistent_grid_follows_the_device(library: Library) -> None:
    assert [loaded(RECIPE, sms=s).prepare(PROBLEM.environment(), POINTERS).grid[0] for s in (2, 7, 132)] == [2, 6, 50]


def test_other_addresses_get_maps_of_their_own_each_encoded_once(library: Library) -> None:
    launches = Launches()
    prepared = loaded(RECIPE, launches).prepare(PROBLEM.environment(), POINTERS)
    assert prepared.pointer_names == ("a", "b", "d")
    for _ in range(3):
        for step in range(4):
            prepared.launch_at([p + step * 0x1000 for p in POINTERS.values()], 0)
    assert [seen[0] for seen in launches.seen] == [0x10000, 0x11000, 0x12000, 0x13000] * 3
    assert all(seen == [a := seen[0], a + 0x10000, a + 0x20000, a, 100] for seen in launches.seen)
    assert len(library.maps) == 2 * 4
    with pytest.raises(LaunchError, match="prepare it again"):
        prepared.launch_at([0x10010, 0x20000, 0x30000], 0)


def test_maps_of_more_addresses_than_are_kept_stay_right(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmtune.device.tensor_map._KEPT", 64)
    maps = EncodedMaps("a", MAP_A.bind({**PROBLEM.environment(), "lda": 72}))
    for address in [*range(0x1000, 0x1000 + 16 * 200, 16)] * 2:
        assert ctypes.c_uint64.from_address(maps.at(address)).value == address
    assert len(maps._kept) <= 64


def test_a_models_weights_are_encoded_once(library: Library) -> None:
    maps = EncodedMaps("a", MAP_A.bind({**PROBLEM.environment(), "lda": 72}))
    for _ in range(3):
        for weight in range(160):  # gate and up of 80 layers
            maps.at(0x10000 * (weight + 1))
    assert len(library.maps) == 160


@pytest.mark.parametrize(
    ("bound", "pointers", "said"),
    [
        ({"lda": 75}, {}, "rows of a are 150 bytes apart, but TMA needs a multiple of 16"),
        ({"lda": 2**40}, {}, "bytes apart"),
        ({"m": 0}, {}, "extents"),
        ({"m": 2**33}, {}, "extents"),
        ({}, {"a": 0x10008}, "address of a is not a multiple of 16"),
        ({}, {"b": None}, "needs the address of b"),
    ],
)
def test_what_tma_cannot_do_is_refused_with_a_sentence(
    library: Library, bound: dict[str, int], pointers: dict[str, Any], said: str
) -> None:
    with pytest.raises(LaunchError, match=said):
        loaded(RECIPE).launch({**PROBLEM.environment(), **bound}, {**POINTERS, **pointers})
    assert library.maps == []


def test_a_refusing_encoder_and_a_ragged_cluster_are_launch_errors(library: Library) -> None:
    with pytest.raises(LaunchError, match=r"grid of \(25, 1, 1\).*no multiple of its cluster of \(2, 1, 1\)"):
        loaded(replace(RECIPE, grid=("ceil_div(m, 4)", "1", "1"))).launch(PROBLEM.environment(), POINTERS)
    library.status = 1
    with pytest.raises(LaunchError, match=r"tensor map of a at 0x10000.*CUDA_ERROR_INVALID_VALUE"):
        loaded(RECIPE).launch(PROBLEM.environment(), POINTERS)


def test_a_programmatic_launch_asks_the_driver_for_it(library: Library) -> None:
    plain = Launches()
    prepared = loaded(replace(RECIPE, programmatic=True), plain).prepare(PROBLEM.environment(), POINTERS)
    for stream in (0, 5):
        prepared.launch(stream)
    assert plain.seen == []
    first, second = library.launches
    assert (first["shape"], first["function"]) == ((10, 1, 1, 384, 1, 1, 2048), 77)
    assert (first["stream"], second["stream"]) == (None, 5)
    assert read(second["at"]) == [0x10000, 0x20000, 0x30000, 0x10000, 100]
    library.status = 1
    with pytest.raises(LaunchError, match=r"refused with grid .*CUDA_ERROR_INVALID_VALUE"):
        prepared.launch(0)


def test_a_driver_of_old_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "library", lambda: object())
    with pytest.raises(ToolchainError, match="no cuTensorMapEncodeTiled: update it"):
        loaded(RECIPE).prepare(PROBLEM.environment(), POINTERS)


def test_structures_and_values_are_those_of_the_driver_api() -> None:
    assert (ctypes.sizeof(driver_module.LaunchAttribute), driver_module.LaunchAttribute.value.offset) == (72, 8)
    config = driver_module.LaunchConfig
    assert ctypes.sizeof(config) == 56
    assert (config.stream.offset, config.attributes.offset, config.count.offset) == (32, 40, 48)
    api = pytest.importorskip("cuda.bindings.driver")
    attribute = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    assert int(attribute) == driver_module._DEPENDENT
    kinds = api.CUtensorMapDataType
    assert [
        int(getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{t}")) for t in ("FLOAT16", "FLOAT32", "BFLOAT16", "TFLOAT32")
    ] == [6, 7, 9, 11]
    swizzles = ["NONE", "32B", "64B", "128B"]
    assert [int(getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{s}")) for s in swizzles] == [0, 1, 2, 3]
    promotions = ["NONE", "L2_64B", "L2_128B", "L2_256B"]
    enum = api.CUtensorMapL2promotion
    assert [int(getattr(enum, f"CU_TENSOR_MAP_L2_PROMOTION_{p}")) for p in promotions] == [0, 1, 2, 3]
