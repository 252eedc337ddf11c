"""Matrices of small whole numbers, and the product that a pack has to give for them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from fake_frameworks import aligned

RNG = np.random.default_rng(0)
NUMPY = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Small integers: every product and sum is exact in fp32, and in fp16 and bf16 for short sums."""
    return RNG.integers(-3, 4, shape).astype(dtype)


def place(values: np.ndarray[Any, Any], offset: int = 0) -> np.ndarray[Any, Any]:
    """The values at an address that is a multiple of 256, plus ``offset`` bytes."""
    out = aligned(values.shape, values.dtype, offset)
    out[...] = values
    return out


def same(framework: Any, got: Any, wanted: np.ndarray[Any, Any]) -> None:
    host = framework.host(got)
    assert host.shape == wanted.shape
    assert np.array_equal(host.astype(np.float64), wanted.astype(np.float64), equal_nan=True)


def product(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a.astype(np.float64) @ b.astype(np.float64)
