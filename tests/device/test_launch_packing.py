"""Launching by recipe, with the driver replaced: every argument is checked and packed as the ABI wants it."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.device import scratch
from gemmtune.device.launch import LoadedKernel, Packed, scalar_word
from gemmtune.device.scratch import ScratchPool, StreamScratch
from gemmtune.space.errors import LaunchError
from gemmtune.space.families import gemm_recipe
from gemmtune.space.gemm import Gemm
from gemmtune.space.recipe import Argument, LaunchRecipe, Precondition, Tile

PROBLEM = Gemm(100, 64, 32, epilogue="alpha_beta")
ARGUMENTS = gemm_recipe.arguments(PROBLEM, workspace=True)
POINTERS = {"a": 0x10000, "b": 0x20000, "d": 0x30000, "c": 0x40000}


def recipe(**changes: Any) -> LaunchRecipe:
    fields: dict[str, Any] = {
        "entry": "kernel", "block": (128, 1, 1), "grid": gemm_recipe.grid(32, 32, 2), "tile": Tile(32, 32, "0", "0"),
        "arguments": ARGUMENTS, "dynamic_shared": 1024, "workspace": "m * n * 8", "counters": "ceil_div(m, 32) * 4",
        "preconditions": gemm_recipe.aligned("a", 2, 8), "constants": {"n": 64, "k": 32},
    }  # fmt: skip
    return LaunchRecipe(**{**fields, **changes})


class Driver:
    """Takes cuLaunchKernel's place and reads the arguments back from memory."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.words: list[int] = []

    def __call__(self, *arguments: Any) -> None:
        *shape, stream, params, _ = arguments
        self.calls.append((shape, stream))
        addresses = (ctypes.c_void_p * len(ARGUMENTS)).from_address(params)
        self.words = [ctypes.c_uint64.from_address(a).value for a in addresses if a is not None]


def loaded(r: LaunchRecipe, driver: Any) -> LoadedKernel:
    kernel = object.__new__(LoadedKernel)
    kernel.recipe, kernel.shared, kernel.function, kernel.launch_kernel = r, r.dynamic_shared, 77, driver
    kernel.sms = 132
    return kernel


class FixedScratch:
    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def reserve(self, workspace: int, counters: int) -> tuple[int, int]:
        self.asked.append((workspace, counters))
        return 0xAAAA00, 0xBBBB00


def env() -> dict[str, Any]:
    return {**PROBLEM.environment(), "alpha": 1.25, "beta": -0.5}


def test_arguments_reach_the_driver_in_order_and_type() -> None:
    driver, where = Driver(), FixedScratch()
    loaded(recipe(), driver).launch(env(), POINTERS, stream=5, scratch=where)
    shape, stream = driver.calls[0]
    assert shape == [77, 4 * 2, 1, 2, 128, 1, 1, 1024]
    assert stream == 5
    assert where.asked == [(100 * 64 * 8, 16)]
    f32 = [struct.unpack("<I", struct.pack("<f", v))[0] for v in (1.25, -0.5)]
    expected = [0x10000, 0x20000, 0x30000, 100, 32, 32, 64, 0x40000, 64, *f32, 0xAAAA00, 0xBBBB00]
    assert driver.words == expected


def test_a_prepared_launch_takes_other_addresses_of_the_same_alignment() -> None:
    driver, where = Driver(), FixedScratch()
    prepared = loaded(recipe(), driver).prepare(env(), POINTERS)
    assert prepared.pointer_names == ("a", "b", "d", "c")
    prepared.launch_at([0x50000, 0x60000, 0x70000, 0x80000], 0, where, {"alpha": 2.0})
    words = driver.words
    assert words[:3] == [0x50000, 0x60000, 0x70000]
    assert words[7] == 0x80000
    assert words[9] == struct.unpack("<I", struct.pack("<f", 2.0))[0]
    with pytest.raises(LaunchError, match="prepare it again"):
        prepared.launch_at([0x50002, 0x60000, 0x70000, 0x80000], 0, where)
    with pytest.raises(ValueError, match="argument"):
        prepared.launch_at([0x50000], 0, where)


@pytest.mark.parametrize(
    ("changes", "bound", "pointers", "said"),
    [
        ({}, {}, {"a": 0x10002}, "not a multiple of 16 bytes"),
        ({}, {"lda": 33}, {}, "leading dimension of a"),
        ({}, {"n": 65}, {}, "n is compiled in as 64, but the call has 65"),
        ({}, {}, {"b": None}, "address of b"),
        ({}, {}, {"b": 0}, "address of b"),
        ({}, {"alpha": "x"}, {}, "alpha must be a number"),
        ({}, {"alpha": 1e300}, {}, "out of the range of fp32"),
        ({}, {"m": 0}, {}, "grid"),
        ({"grid": ("1", "70000", "1")}, {}, {}, "grid"),
        ({"workspace": "0 - 8"}, {}, {}, "-8 bytes of workspace"),
        ({"arguments": (Argument("scalar", "q", "i32"),)}, {}, {}, "value for q"),
        ({"arguments": (Argument("scalar", "m", "i32", "m * 100000000"),)}, {}, {}, "out of the range of i32"),
        ({"preconditions": (Precondition("ptr_a % 4096 == 0", "a is not page-aligned"),)}, {}, {}, "page-aligned"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    changes: dict[str, Any], bound: dict[str, Any], pointers: dict[str, Any], said: str
) -> None:
    driver = Driver()
    with pytest.raises(LaunchError, match=said):
        loaded(recipe(**changes), driver).launch({**env(), **bound}, {**POINTERS, **pointers}, 0, FixedScratch())
    assert driver.calls == []


def test_missing_scratch_and_refusing_drivers_are_launch_errors() -> None:
    with pytest.raises(LaunchError, match="needs a workspace"):
        loaded(recipe(), Driver()).launch(env(), POINTERS)

    def refuse(*_: Any) -> None:
        raise RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument")

    with pytest.raises(LaunchError, match=r"grid \(8, 1, 2\).*INVALID_VALUE"):
        loaded(recipe(), refuse).launch(env(), POINTERS, 0, FixedScratch())


@given(st.sampled_from(["i32", "i64", "u32", "u64"]), st.integers(-(2**70), 2**70))
def test_integers_are_packed_exactly_or_refused(kind: str, value: int) -> None:
    bits, signed = int(kind[1:]), kind[0] == "i"
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    argument = Argument("scalar", "v", kind)
    if low <= value < high:
        raw = Packed([scalar_word(argument, value)]).words
        assert int.from_bytes(bytes(raw)[: bits // 8], "little", signed=signed) == value
    else:
        with pytest.raises(LaunchError):
            scalar_word(argument, value)


@given(st.floats(width=32))
def test_floats_are_packed_bit_for_bit(value: float) -> None:
    word = scalar_word(Argument("scalar", "v", "f32"), value)
    back = struct.unpack("<f", struct.pack("<I", word))[0]
    assert back == value or (back != back and value != value)


def test_bools_and_text_are_no_integers() -> None:
    for bad in (True, "3", 3.0, None):
        with pytest.raises(LaunchError, match="must be an integer"):
            scalar_word(Argument("scalar", "v", "i32"), bad)


class Block:
    """Host memory in the place of device memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._buffer = ctypes.create_string_buffer(b"\xaa" * size, size)
        self.ptr = ctypes.addressof(self._buffer)


class FakeCupy:
    class cuda:
        class Stream:
            ptr = 5

            def __init__(self, non_blocking: bool) -> None:
                assert non_blocking

            def synchronize(self) -> None:
                pass

        class runtime:
            @staticmethod
            def memsetAsync(address: int, value: int, size: int, stream: int) -> None:
                ctypes.memset(address, value, size)


@pytest.fixture
def host_scratch(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    made: list[Block] = []

    def allocate(size: int) -> Block:
        made.append(Block(size))
        return made[-1]

    monkeypatch.setattr(scratch, "allocate", allocate)
    monkeypatch.setattr(scratch, "require_cupy", FakeCupy)
    return made


def test_scratch_grows_by_doubling_keeps_old_buffers_and_zeroes_counters_once(host_scratch: list[Block]) -> None:
    s = StreamScratch(0, limit=2**23)
    workspace, counters = s.reserve(100, 8)
    assert ctypes.string_at(counters, 8) == bytes(8)
    assert s.reserve(50, 4) == (workspace, counters)
    ctypes.memset(counters, 1, 4)
    assert s.reserve(2**20, 8) == (workspace, counters)
    bigger, same = s.reserve(2**20 + 1, 8)
    assert bigger != workspace
    assert same == counters
    assert ctypes.string_at(counters, 4) == b"\x01" * 4
    assert [b.size for b in host_scratch] == [2**20, 4096, 2**21]
    assert s.nbytes == 2**20 + 4096 + 2**21
    with pytest.raises(LaunchError, match="limit is 8388608"):
        s.reserve(2**23 + 1, 0)
    assert s.reserve(2**23, 0)[0] != bigger


def test_scratch_grows_under_a_capture_in_relaxed_mode(
    host_scratch: list[Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = [0]

    def exchange(mode: Any) -> int:
        modes.append(mode._obj.value)
        mode._obj.value = modes[-2]
        return 0

    monkeypatch.setattr("gemmtune.device.driver.function", lambda name: exchange)
    s = StreamScratch(0)
    s.reserve(100, 8)
    s.reserve(50, 4)
    assert modes == [0, 2, 0]
    assert len(host_scratch) == 2


def test_nothing_asked_nothing_allocated(host_scratch: list[Block]) -> None:
    assert StreamScratch().reserve(0, 0) == (0, 0)
    assert host_scratch == []


def test_each_stream_of_each_device_has_its_own_scratch() -> None:
    pool = ScratchPool()
    assert pool.of(0, 1) is pool.of(0, 1)
    assert len({id(pool.of(d, s)) for d in (0, 1) for s in (0, 7)}) == 4


def test_the_launch_path_imports_no_heavy_package() -> None:
    code = (
        "import sys, gemmtune.device.launch, gemmtune.device.baselines, gemmtune.device.scratch\n"
        "bad = ('cupy', 'cuda', 'jinja2', 'optuna', 'sqlalchemy', 'alembic', 'typer', 'rich', 'gemmtune.codegen')\n"
        "print([m for m in sys.modules if m.startswith(bad)])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
