"""The numbers of the intrinsics: conversions against NumPy and ml_dtypes, fragments against index arrays written from
the PTX manual independently of the emulator's own code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gemmtune.device.emulator.build import build_kernel
from gemmtune.device.emulator.launch import SCHEDULES, Buffer, KernelLibrary, launch

SOURCE = r"""
#include "gemmtune/hw.cuh"
#define KERNEL extern "C" __global__ void
template <class T> static __device__ T make(u16 bits) { return {bits}; }
#define CONVERT(NAME, FROM, TO, EXPRESSION)                           \
  KERNEL NAME(const FROM* in, TO* out, int n) {                       \
    for (int i = threadIdx.x; i < n; i += 32) out[i] = EXPRESSION;    \
  }
CONVERT(to_f16, float, u16, hw::from_float<hw::f16>(in[i]).bits)
CONVERT(to_bf16, float, u16, hw::from_float<hw::bf16>(in[i]).bits)
CONVERT(to_tf32, float, u32, hw::to_tf32_rna(in[i]))
CONVERT(of_f16, u16, float, hw::to_float(make<hw::f16>(in[i])))
CONVERT(of_bf16, u16, float, hw::to_float(make<hw::bf16>(in[i])))
#define MMA(NAME, A, B)                                               \
  KERNEL NAME(const u32* in_a, const u32* in_b, float* d) {           \
    u32 a[A], b[B];                                                   \
    float c[4];                                                       \
    for (int i = 0; i < A; i++) a[i] = in_a[threadIdx.x * A + i];     \
    for (int i = 0; i < B; i++) b[i] = in_b[threadIdx.x * B + i];     \
    for (int i = 0; i < 4; i++) c[i] = d[threadIdx.x * 4 + i];        \
    hw::NAME(c, a, b);                                                \
    for (int i = 0; i < 4; i++) d[threadIdx.x * 4 + i] = c[i];        \
  }
MMA(mma_m16n8k8_f16, 2, 1)
MMA(mma_m16n8k16_f16, 4, 2)
MMA(mma_m16n8k16_bf16, 4, 2)
MMA(mma_m16n8k8_tf32, 4, 2)
#define LDMATRIX(NAME, N)                                             \
  KERNEL NAME(const u16* in, u32* out, int pitch) {                   \
    HW_SHARED(raw);                                                   \
    u16* s = reinterpret_cast<u16*>(raw);                             \
    for (int i = threadIdx.x; i < 32 * pitch; i += 32) s[i] = in[i];  \
    hw::sync_warp();                                                  \
    u32 r[N];                                                         \
    hw::NAME(r, s + threadIdx.x * pitch);                             \
    for (int i = 0; i < N; i++) out[threadIdx.x * N + i] = r[i];      \
  }
LDMATRIX(ldmatrix_x4, 4)
LDMATRIX(ldmatrix_x4_trans, 4)
LDMATRIX(ldmatrix_x2, 2)
LDMATRIX(ldmatrix_x2_trans, 2)
"""
NAMES = ["to_f16", "to_bf16", "to_tf32", "of_f16", "of_bf16"]
NAMES += [f"mma_{k}" for k in ("m16n8k8_f16", "m16n8k16_f16", "m16n8k16_bf16", "m16n8k8_tf32")]
NAMES += [f"ldmatrix_x{n}{t}" for n in (4, 2) for t in ("", "_trans")]


@pytest.fixture(scope="module")
def run() -> Callable[..., list[np.ndarray]]:
    exports = "\n".join(f"EMU_EXPORT(call_{name}, {name})" for name in NAMES)
    path: Path = build_kernel(SOURCE + exports, NAMES[0])

    def call(name: str, *arrays: np.ndarray, scalars: tuple[Any, ...] = (), shared: int = 0) -> list[np.ndarray]:
        library = KernelLibrary(path, f"call_{name}")
        buffers = [Buffer(f"array{i}", a.nbytes) for i, a in enumerate(arrays)]
        for buffer, array in zip(buffers, arrays, strict=True):
            buffer.view(np.dtype(np.uint8))[:] = array.reshape(-1).view(np.uint8)
        arguments = [*(ctypes.c_void_p(b.address) for b in buffers), *scalars]
        launch(
            library, grid=(1, 1, 1), block=(32, 1, 1), arguments=arguments, buffers=buffers, dynamic_shared=shared,
            schedule=SCHEDULES[2],
        )  # fmt: skip
        out = [b.view(a.dtype).reshape(a.shape).copy() for b, a in zip(buffers, arrays, strict=True)]
        for buffer in buffers:
            buffer.free()
        library.close()
        return out

    return call


def convert(run: Callable[..., list[np.ndarray]], name: str, values: np.ndarray, dtype: Any) -> np.ndarray:
    return run(name, values, np.zeros(values.size, dtype), scalars=(ctypes.c_int(values.size),))[1]


# -------------------------------------------------------------------------------------------------------- conversions

TAILS = np.unique(
    np.concatenate(
        [
            np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32),
            np.random.default_rng(0).integers(0, 65536, 20, dtype=np.uint32),
        ]
    )
)


def all_heads() -> np.ndarray:
    """Every upper half of an fp32 (sign, exponent, 7 bits) with lower halves around every tie of every target."""
    bits = (np.arange(65536, dtype=np.uint32) << 16)[:, None] | TAILS[None, :]
    return bits.ravel().view(np.float32)


@pytest.mark.parametrize(("name", "dtype"), [("to_f16", np.float16), ("to_bf16", ml_dtypes.bfloat16)])
def test_rounding_to_16_bits_equals_numpy(run: Callable[..., list[np.ndarray]], name: str, dtype: Any) -> None:
    values = all_heads()
    got = convert(run, name, values, np.uint16)
    nan = np.isnan(values)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(dtype).view(np.uint16)
    assert (got[~nan] == expected[~nan]).all()
    assert (got[nan] == 0x7FFF).all()


def test_rounding_to_tf32_is_to_nearest_with_ties_away(run: Callable[..., list[np.ndarray]]) -> None:
    values = all_heads()
    got = convert(run, "to_tf32", values, np.uint32)
    finite = np.isfinite(values)
    assert (got[~finite] == values.view(np.uint32)[~finite] & np.uint32(0xFFFFE000)).all()  # as an H200 does it
    # In units of 2**-10 of the binade (13 bits of the pattern), floor(x + 1/2) of the magnitude.
    magnitude = values.view(np.uint32)[finite].astype(np.uint64) & 0x7FFFFFFF
    sign = values.view(np.uint32)[finite].astype(np.uint64) & 0x80000000
    expected = (magnitude + 0x1000) // 0x2000 * 0x2000 | sign
    assert (got[finite] == expected).all()


@pytest.mark.parametrize(("name", "dtype"), [("of_f16", np.float16), ("of_bf16", ml_dtypes.bfloat16)])
def test_widening_of_every_16_bit_pattern_equals_numpy(
    run: Callable[..., list[np.ndarray]], name: str, dtype: Any
) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    got = convert(run, name, patterns, np.float32)
    expected = patterns.view(dtype).astype(np.float32)
    nan = np.isnan(expected)
    assert (got.view(np.uint32)[~nan] == expected.view(np.uint32)[~nan]).all()
    assert np.isnan(got[nan]).all()


# ---------------------------------------------------------------------------------------------------------- fragments

LANE = np.arange(32)
GROUP, IN_GROUP = LANE // 4, LANE % 4


def halves(matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """One register of each lane: elements (row, column) and (row, column + 1) as two 16-bit halves."""
    bits = matrix.view(np.uint16).astype(np.uint32)
    return bits[rows, columns] | bits[rows, columns + 1] << np.uint32(16)


def scatter_d(d: np.ndarray) -> np.ndarray:
    out = np.empty((16, 8), np.float32)
    for i in range(4):
        out[GROUP + 8 * (i // 2), IN_GROUP * 2 + i % 2] = d[:, i]
    return out


@pytest.mark.parametrize(
    ("kind", "k", "dtype"), [("f16", 8, np.float16), ("f16", 16, np.float16), ("bf16", 16, ml_dtypes.bfloat16)]
)
def test_mma_of_16_bit_types(run: Callable[..., list[np.ndarray]], kind: str, k: int, dtype: Any) -> None:
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((16, k)).astype(dtype), rng.standard_normal((k, 8)).astype(dtype)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    fa = np.stack([halves(a, GROUP + dr, IN_GROUP * 2 + dk) for dk in range(0, k, 8) for dr in (0, 8)], 1)
    fb = np.stack([halves(np.ascontiguousarray(b.T), GROUP, IN_GROUP * 2 + dk) for dk in range(0, k, 8)], 1)
    fc = np.stack([c[GROUP + dr, IN_GROUP * 2 + dc] for dr in (0, 8) for dc in (0, 1)], 1)
    d = scatter_d(run(f"mma_m16n8k{k}_{kind}", fa, fb, fc)[2])
    expected = a.astype(np.float64) @ b.astype(np.float64) + c
    assert np.abs(d - expected).max() < 1e-5


def test_mma_of_tf32_ignores_the_low_bits(run: Callable[..., list[np.ndarray]]) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((16, 8), dtype=np.float32), rng.standard_normal((8, 8), dtype=np.float32)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    fa = np.stack([a[GROUP + dr, IN_GROUP + dk] for dk in (0, 4) for dr in (0, 8)], 1).view(np.uint32)
    fb = np.stack([b[IN_GROUP + dk, GROUP] for dk in (0, 4)], 1).view(np.uint32)
    fc = np.stack([c[GROUP + dr, IN_GROUP * 2 + dc] for dr in (0, 8) for dc in (0, 1)], 1)
    d = scatter_d(run("mma_m16n8k8_tf32", fa, fb, fc)[2])
    cut_a, cut_b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in (a, b))
    assert np.abs(d - (cut_a @ cut_b + c)).max() < 1e-5


def test_mma_passes_nan_and_infinity_on(run: Callable[..., list[np.ndarray]]) -> None:
    a, b = np.zeros((16, 16), np.float16), np.ones((16, 8), np.float16)
    a[3, 5], a[7, 2] = np.nan, np.inf
    fa = np.stack([halves(a, GROUP + dr, IN_GROUP * 2 + dk) for dk in (0, 8) for dr in (0, 8)], 1)
    fb = np.stack([halves(np.ascontiguousarray(b.T), GROUP, IN_GROUP * 2 + dk) for dk in (0, 8)], 1)
    d = scatter_d(run("mma_m16n8k16_f16", fa, fb, np.zeros((32, 4), np.float32))[2])
    assert np.isnan(d[3]).all()
    assert np.isposinf(d[7]).all()
    assert (np.delete(d, [3, 7], 0) == 0).all()


@pytest.mark.parametrize("count", [4, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(run: Callable[..., list[np.ndarray]], count: int, transposed: bool) -> None:
    pitch = 24
    data = np.random.default_rng(count).integers(0, 65536, (32, pitch), dtype=np.uint16)
    name = f"ldmatrix_x{count}" + ("_trans" if transposed else "")
    out = run(name, data, np.zeros((32, count), np.uint32), scalars=(ctypes.c_int(pitch),), shared=32 * pitch * 2)[1]
    for i in range(count):
        matrix = np.ascontiguousarray(data[8 * i : 8 * i + 8, :8])
        if transposed:
            matrix = np.ascontiguousarray(matrix.T)
        assert (out[:, i] == halves(matrix, GROUP, IN_GROUP * 2)).all()
