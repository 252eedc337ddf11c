"""``gemmtune.cupy`` with a stand-in for CuPy: what is taken as an array, and what is left to CuPy."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gemmtune.cupy
from gemmtune.pack.runtime import Pack
from gemmtune.space.errors import ArrayError, UnsupportedError


class FakePack(Pack):
    """Multiplies with NumPy and remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def matmul(self, a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        self.seen.append((a.shape, b.shape, options))
        assert a.ndim == b.ndim == 2
        return (a @ b).view(Array)


class Array(np.ndarray[Any, Any]):
    """In the place of ``cupy.ndarray``."""


class Borrowed:
    """An array of another library's, by one of the two protocols."""

    def __init__(self, host: Any, device: int | None = None) -> None:
        self.host = host
        if device is None:
            self.__cuda_array_interface__ = {}
        else:
            self.__dlpack__ = lambda: None
            self.__dlpack_device__ = lambda: (device, 0)


@pytest.fixture
def array(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    module = types.SimpleNamespace(
        ndarray=Array,
        asarray=lambda other: other.host,
        from_dlpack=lambda other: other.host,
        matmul=lambda a, b: np.matmul(a, b),
    )
    monkeypatch.setattr(gemmtune.cupy, "require_cupy", lambda: module)
    monkeypatch.setattr(gemmtune.cupy, "_causes", set())
    return lambda *shape, dtype=np.float32: np.arange(np.prod(shape), dtype=dtype).reshape(shape).view(Array)


def test_arrays_of_any_rank_and_both_protocols_are_looked_up(array: Any) -> None:
    pack = FakePack()
    a, b = array(2, 3, 4), array(4, 5)
    for left in (a, Borrowed(a), Borrowed(a, device=2)):
        assert np.array_equal(gemmtune.cupy.matmul(left, b, pack=pack, alpha=1.0), a @ b)
    assert pack.seen == [((6, 4), (4, 5), {"alpha": 1.0})] * 3
    assert gemmtune.cupy.matmul(array(0, 2, 4), b, pack=pack).shape == (0, 2, 5)
    assert gemmtune.cupy.matmul(array(2, 4), b, pack=pack, bias=Borrowed(array(5))).shape == (2, 5)
    assert isinstance(pack.seen[-1][2]["bias"], Array)


def test_what_lies_on_the_host_is_refused(array: Any) -> None:
    for bad in (np.ones((2, 4)), Borrowed(array(2, 4), device=1), [[1.0]]):
        with pytest.raises(ArrayError, match="lies on no GPU"):
            gemmtune.cupy.matmul(bad, array(4, 5), pack=FakePack())
    with pytest.raises(ArrayError, match="out and c are for 2-D"):
        gemmtune.cupy.matmul(array(2, 2, 4), array(4, 5), pack=FakePack(), out=array(4, 5))


def test_other_dtypes_and_ranks_are_cupys_with_one_warning(array: Any) -> None:
    pack = FakePack()
    a, b = array(2, 4, dtype=np.int32), array(4, 5, dtype=np.int32)
    with pytest.warns(gemmtune.cupy.PackWarning, match="a is int32"):
        assert np.array_equal(gemmtune.cupy.matmul(a, b, pack=pack), a @ b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gemmtune.cupy.matmul(a, b, pack=pack)
    with pytest.warns(gemmtune.cupy.PackWarning, match="1 dimensions"):
        assert gemmtune.cupy.matmul(array(4), array(4, 5), pack=pack).shape == (5,)
    with pytest.raises(UnsupportedError, match="int32"):
        gemmtune.cupy.matmul(a, b, pack=pack, strict=True)
    with pytest.raises(UnsupportedError, match="cannot multiply"):
        gemmtune.cupy.matmul(a, b, pack=pack, alpha=2.0)
    assert pack.seen == []
