"""``Pack.matmul`` with stand-ins for the frameworks and the launcher: real addresses, pitches and layouts, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemmtune.pack.runtime import Pack
from gemmtune.space.errors import ArrayError
from gemmtune.space.gemm import Gemm

RNG = np.random.default_rng(0)


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return RNG.integers(-8, 8, shape).astype(dtype)  # small integers: every product and sum is exact


def test_known_shape_runs_the_kernel(framework: Any, launches: Any, small_pack: Any) -> None:
    pack = Pack(small_pack, "p")
    a, weight = numbers((64, 16), np.float16), numbers((32, 16), np.float16)
    d = pack.matmul(framework.array(a), framework.array(weight.T))
    assert type(d) is framework.array
    assert np.array_equal(framework.host(d), (a.astype(float) @ weight.T.astype(float)).astype(np.float16))
    assert launches.calls == [("kernel", "gemm 64x32x16 fp16 nt", 7)]
