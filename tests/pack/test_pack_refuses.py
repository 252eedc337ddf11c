"""Arrays, devices and settings that no product can be made of are refused, in words that name them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from products import numbers, product, same

from gemmtune.pack.arrays import Extent
from gemmtune.pack.runtime import Pack
from gemmtune.space.errors import ArrayError, SettingError, UnknownNameError


def refuses(pack: Pack, framework: Any, a: Any, b: Any, *words: str, **options: Any) -> None:
    with pytest.raises(ArrayError) as caught:
        pack.matmul(a, b, **options)
    for word in words:
        assert word in str(caught.value)


def test_ranks_shapes_and_dtypes(framework: Any, launches: Any, empty_pack: Pack) -> None:
    wrap = framework.array
    a, b = wrap(numbers((6, 5))), wrap(numbers((5, 7)))
    refuses(empty_pack, framework, wrap(numbers((5,))), b, "1 dimensions", "(5,)")
    refuses(empty_pack, framework, wrap(numbers((2, 3, 5))), b, "3 dimensions")
    refuses(empty_pack, framework, a, wrap(numbers((6, 7))), "(6, 5)", "(6, 7)")
    refuses(empty_pack, framework, a, wrap(numbers((5, 7), np.float16)), "fp32", "fp16")
    refuses(empty_pack, framework, wrap(numbers((6, 5), np.int32)), b, "int32")
    refuses(empty_pack, framework, a, b, "(7, 6)", out=wrap(numbers((7, 6))))
    refuses(empty_pack, framework, a, b, "out_dtype", out=wrap(numbers((6, 7))), out_dtype="fp16")
    refuses(empty_pack, framework, a, b, "float8", out_dtype="float8")
    refuses(empty_pack, framework, a, b, "out_dtype", out_dtype=["fp16"])
    refuses(empty_pack, framework, a, b, "7 columns", bias=wrap(numbers((6,))))
    refuses(empty_pack, framework, a, b, "bias is fp16", bias=wrap(numbers((7,), np.float16)))
    refuses(empty_pack, framework, a, b, "c has the shape (7, 6)", c=wrap(numbers((7, 6))))
    refuses(empty_pack, framework, a, b, "bias cannot", bias=wrap(numbers((7,))), alpha=2.0)
    refuses(empty_pack, framework, a, b, "no c", beta=2.0)
    refuses(empty_pack, framework, a, b, "alpha is '2'", alpha="2")


def test_a_result_over_an_input_is_refused(framework: Any, launches: Any, empty_pack: Pack) -> None:
    wrap = framework.array
    store = numbers((8, 24))
    a, b = store[:, :8], numbers((8, 8))
    refuses(empty_pack, framework, wrap(a), wrap(b), "out shares memory with a", out=wrap(a))
    refuses(empty_pack, framework, wrap(a), wrap(b), "with a", out=wrap(store[:, 4:12]))
    refuses(empty_pack, framework, wrap(a), wrap(b), "with a", out=wrap(store[:, 4:12].T))
    c = numbers((8, 8))
    refuses(empty_pack, framework, wrap(a), wrap(b), "with c", out=wrap(c), c=wrap(c))
    side = wrap(store[:, 8:16])  # beside a in the same buffer
    wanted = product(a, b)
    same(framework, empty_pack.matmul(wrap(a), wrap(b), side), wanted)


def test_broadcast_out_is_refused(framework: Any, launches: Any, empty_pack: Pack) -> None:
    out = np.lib.stride_tricks.as_strided(numbers((1, 7)), (6, 7), (0, 4))
    refuses(
        empty_pack, framework, framework.array(numbers((6, 5))), framework.array(numbers((5, 7))), "share memory",
        out=framework.array(out),
    )  # fmt: skip


def test_devices(framework: Any, launches: Any, empty_pack: Pack, small_pack: Any) -> None:
    a, b = numbers((6, 5)), numbers((5, 7))
    refuses(empty_pack, framework, framework.array(a), framework.array(b, 1), "a on 0", "b on 1")
    only = Pack(small_pack, "p", device=1)
    refuses(only, framework, framework.array(a), framework.array(b), "cuda:0", "cuda:1")
    if framework.name == "cupy":  # arrays of another device: it is made current for the call
        pack = Pack(small_pack, "p")
        same(framework, pack.matmul(framework.array(a, 1), framework.array(b, 1)), product(a, b))
        assert framework.state.device == 0


def test_host_arrays_and_other_things(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b = numbers((6, 5)), numbers((5, 7))
    refuses(empty_pack, framework, a, b, "numpy.ndarray", "cupy.asarray")
    refuses(empty_pack, framework, framework.array(a), b, "numpy.ndarray")
    refuses(empty_pack, framework, [[1.0]], [[1.0]], "builtins.list")


def test_torch_tensors_that_no_kernel_may_read(
    launches: Any, empty_pack: Pack, framework: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework.name != "torch":
        pytest.skip("torch alone has these")
    a, b = framework.array(numbers((6, 5))), framework.array(numbers((5, 7)))
    refuses(empty_pack, framework, framework.array(numbers((6, 5)), -1), b, "on cpu", ".cuda()")
    a.requires_grad = True
    refuses(empty_pack, framework, a, b, "gradient", "no_grad")
    framework.state.grad = False
    assert empty_pack.matmul(a, b) is not None
    a.is_neg = lambda: True
    refuses(empty_pack, framework, a, b, "resolve_neg")


def test_loading_for_a_device_by_name(write: Any, small_pack: Any) -> None:
    from gemmtune.pack.runtime import load_pack

    path = write(small_pack)
    for device in (None, 0, 3, "cuda:1"):
        assert len(load_pack(path, device=device).problems) == 3
    for device in ("emulator:h200", "cuda", "gpu0", -1, True):
        with pytest.raises(UnknownNameError, match="cuda:0"):
            load_pack(path, device=device)


@pytest.mark.parametrize("bad", [{"regime": "idle"}, {"scratch_limit": -1}, {"scratch_limit": 1.5}])
def test_settings_out_of_range(bad: dict[str, Any], write: Any, small_pack: Any) -> None:
    from gemmtune.pack.runtime import load_pack

    with pytest.raises(SettingError, match=repr(next(iter(bad.values())))):
        load_pack(write(small_pack), **bad)


@settings(max_examples=200)
@given(
    st.integers(0, 60),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(0, 60),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(9, 12),
)
def test_overlap_agrees_with_counting_bytes(
    start_a: int, rows_a: int, width_a: int, start_b: int, rows_b: int, width_b: int, pitch: int
) -> None:
    one, two = Extent(start_a, rows_a, width_a, pitch), Extent(start_b, rows_b, width_b, pitch)

    def touched(e: Extent) -> set[int]:
        return {e.start + r * e.pitch + i for r in range(e.rows) for i in range(e.width)}

    if touched(one) & touched(two):
        assert one.overlaps(two)
        assert two.overlaps(one)
