"""``Pack.matmul`` with stand-ins for frameworks and launcher: real addresses, pitches and layouts, on the host."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from products import NUMPY, numbers, place, product, same

from gemmtune.pack.arrays import matrix_layout
from gemmtune.pack.runtime import Pack
from gemmtune.space.errors import ArrayError, UnsupportedError
from gemmtune.space.gemm import Gemm

# -------------------------------------------------------------------------------------------------------- dispatch


def test_known_shape_runs_the_kernel_others_the_baseline(framework: Any, launches: Any, small_pack: Any) -> None:
    pack = Pack(small_pack, "p")
    a, weight = numbers((64, 16), np.float16), numbers((32, 16), np.float16)
    d = pack.matmul(framework.array(a), framework.array(weight.T))
    assert type(d) is framework.array
    assert framework.host(d).dtype == np.float16
    same(framework, d, product(a, weight.T))
    other = numbers((63, 16), np.float16)
    same(framework, pack.matmul(framework.array(other), framework.array(weight.T)), product(other, weight.T))
    lost = numbers((128, 16), np.float16)
    same(framework, pack.matmul(framework.array(lost), framework.array(weight.T)), product(lost, weight.T))
    assert launches.calls == [
        ("kernel", "gemm 64x32x16 fp16 nt", 7), ("baseline", "gemm 63x32x16 fp16 nt", 7),
        ("baseline", "gemm 128x32x16 fp16 nt", 7),
    ]  # fmt: skip


def test_range_serves_any_m_in_it_with_one_load(framework: Any, launches: Any, small_pack: Any) -> None:
    pack = Pack(small_pack, "p")
    b = numbers((16, 48))
    for m in (32, 33, 95, 96):
        a = numbers((m, 16))
        same(framework, pack.matmul(framework.array(a), framework.array(b)), product(a, b))
    assert [kind for kind, *_ in launches.calls] == ["kernel"] * 4
    assert len(launches.loaded) == 1


def test_plans_are_kept_by_shape_alignment_and_stream(framework: Any, launches: Any, small_pack: Any) -> None:
    pack = Pack(small_pack, "p")
    a, b = (
        framework.array(place(numbers((64, 16), np.float16))),
        framework.array(place(numbers((32, 16), np.float16)).T),
    )
    for _ in range(3):
        pack.matmul(a, b)
    assert launches.prepared == 1
    shifted = framework.array(place(numbers((64, 16), np.float16), offset=2))
    pack.matmul(shifted, b)
    assert launches.prepared == 2
    framework.state.stream = 11
    pack.matmul(a, b)
    assert launches.prepared == 3
    assert [stream for *_, stream in launches.calls] == [7, 7, 7, 7, 11]
    assert len(launches.loaded) == 1


def test_an_unaligned_view_falls_to_the_baseline(framework: Any, launches: Any, maker: Any) -> None:
    maker.add(Gemm(64, 32, 16, "fp16"), vector=8)
    pack = Pack(maker.data(), "p")
    a, b = numbers((64, 16), np.float16), numbers((32, 16), np.float16)
    for offset, who in ((0, "kernel"), (2, "baseline"), (16, "kernel"), (8, "baseline")):
        d = pack.matmul(framework.array(place(a, offset)), framework.array(place(b).T))
        same(framework, d, product(a, b.T))
        assert launches.calls[-1][0] == who


def test_a_misaligned_allocator_is_planned_for(framework: Any, launches: Any, small_pack: Any) -> None:
    framework.state.misaligned = 4
    a, b = numbers((64, 16), np.float16), numbers((32, 16), np.float16)
    same(framework, Pack(small_pack, "p").matmul(framework.array(a), framework.array(b.T)), product(a, b.T))


def test_without_a_baseline_an_unmeasured_kernel_serves(
    framework: Any, launches: Any, small_pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(problem: Gemm) -> Any:
        raise UnsupportedError(f"{problem.key} has no baseline.")

    monkeypatch.setattr("gemmtune.pack.executor.baseline_for", none)
    pack = Pack(small_pack, "p")
    b = framework.array(numbers((32, 16), np.float16).T)
    pack.matmul(framework.array(numbers((50, 16), np.float16)), b)
    assert launches.calls == [("kernel", "gemm 50x32x16 fp16 nt", 7)]
    with pytest.raises(UnsupportedError, match="no baseline"):
        pack.matmul(b, framework.array(numbers((32, 5), np.float16)))


def test_threads_share_a_pack(framework: Any, launches: Any, small_pack: Any) -> None:
    pack = Pack(small_pack, "p")
    a, b = numbers((64, 16), np.float16), numbers((32, 16), np.float16)
    found: list[Any] = []
    work = [
        threading.Thread(target=lambda: found.append(pack.matmul(framework.array(a), framework.array(b.T))))
        for _ in range(8)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len(found) == 8
    for d in found:
        same(framework, d, product(a, b.T))
    assert len(launches.loaded) == 1


def test_profile_names_every_stage(
    framework: Any, launches: Any, small_pack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemmtune.pack.profile.BATCHES", 2)
    monkeypatch.setattr("gemmtune.pack.arrays.Arrays.wait", lambda self: None)
    for kind in ("CupyArrays", "TorchArrays"):
        monkeypatch.setattr(f"gemmtune.pack.arrays.{kind}.wait", lambda self: None)
    pack = Pack(small_pack, "p")
    a, b = framework.array(numbers((64, 16), np.float16)), framework.array(numbers((32, 16), np.float16).T)
    times = pack.profile_call(a, b)
    assert list(times) == ["read", "device", "stream", "look_up", "allocate", "launch", "total", "other", "median"]
    assert times["total"] > 0
    with pytest.raises(ArrayError, match="nothing to profile"):
        pack.profile_call(framework.array(numbers((64, 32), np.float16)[:, ::2]), b)


# -------------------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_views_are_read_where_they_lie(layout: str, dtype: str, framework: Any, launches: Any, maker: Any) -> None:
    m, n, k, pad = 24, 40, 16, 8
    maker.add(Gemm(m, n, k, dtype, layout=layout))
    a_store = numbers((m, k + pad) if layout[0] == "n" else (k, m + pad), NUMPY[dtype])
    b_store = numbers((k, n + pad) if layout[1] == "n" else (n, k + pad), NUMPY[dtype])
    a = a_store[:, :-pad] if layout[0] == "n" else a_store[:, :-pad].T
    b = b_store[:, :-pad] if layout[1] == "n" else b_store[:, :-pad].T
    d = Pack(maker.data(), "p").matmul(framework.array(a), framework.array(b))
    same(framework, d, product(a, b))
    pitches = f"lda={a_store.shape[1]} ldb={b_store.shape[1]}"
    assert launches.calls == [("kernel", f"gemm {m}x{n}x{k} {dtype} {layout}", 7)], pitches
    assert framework.state.copied == 0


VIEWS = {
    "steps": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "rows backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "column steps": lambda x: np.repeat(x, 3, 1)[:, ::3],
}


@pytest.mark.parametrize("how", sorted(VIEWS))
def test_other_strides_are_copied(how: str, framework: Any, launches: Any, empty_pack: Pack) -> None:
    if framework.name == "torch" and "backwards" in how:
        pytest.skip("torch has no negative strides")
    a, b = numbers((6, 5)), numbers((5, 7))
    view = VIEWS[how](a)
    assert np.array_equal(view, a)
    same(framework, empty_pack.matmul(framework.array(view), framework.array(b)), product(a, b))
    assert framework.state.copied == 1


def test_broadcast_strides_are_copied(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b = np.broadcast_to(numbers((1, 5)), (6, 5)), np.broadcast_to(numbers((5, 1)), (5, 7))
    same(framework, empty_pack.matmul(framework.array(a), framework.array(b)), product(a, b))
    assert framework.state.copied == 2


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_strides_give_the_product(data: st.DataObject, launches: Any, installer: Any) -> None:
    """Any view of any buffer, either as it lies or copied: the product is right, and inputs are untouched."""
    monkeypatch = pytest.MonkeyPatch()
    try:
        name = data.draw(st.sampled_from(["cupy", "torch"]))
        framework = installer(name, monkeypatch)
        m, n, k = (data.draw(st.integers(1, 5)) for _ in range(3))
        a, b = (_any_view(data, shape, name == "cupy") for shape in ((m, k), (k, n)))
        wanted = product(a, b)
        pack = Pack(_empty(), "p")
        same(framework, pack.matmul(framework.array(a), framework.array(b)), wanted)
        out = _any_out(data, (m, n), name == "cupy")
        got = framework.array(out)
        assert pack.matmul(framework.array(a), framework.array(b), got) is got
        assert np.array_equal(out, wanted)
    finally:
        monkeypatch.undo()


def _empty() -> Any:
    from gemmtune.pack.format import PackData

    return PackData((), {}, {}, {})


def _any_view(data: st.DataObject, shape: tuple[int, int], negative: bool) -> np.ndarray[Any, Any]:
    steps = st.sampled_from([-2, -1, 1, 2, 3] if negative else [1, 2, 3])
    rows, columns = data.draw(steps), data.draw(steps)
    pad = data.draw(st.integers(0, 3))
    buffer = numbers((shape[0] * abs(rows) + pad, shape[1] * abs(columns) + pad))
    if data.draw(st.booleans()):
        buffer = np.asfortranarray(buffer)
    view = buffer[::rows, ::columns][: shape[0], : shape[1]]
    broadcast = data.draw(st.sampled_from([None, 0, 1]))
    if broadcast is not None:
        view = np.broadcast_to(view[:1] if broadcast == 0 else view[:, :1], shape)
    return view


def _any_out(data: st.DataObject, shape: tuple[int, int], negative: bool) -> np.ndarray[Any, Any]:
    rows = data.draw(st.sampled_from([-1, 1, 2] if negative else [1, 2]))
    buffer = numbers((shape[0] * abs(rows) + 1, shape[1] + data.draw(st.integers(0, 2))))
    view = buffer[::rows][: shape[0], : shape[1]]
    if data.draw(st.booleans()):
        view = np.asfortranarray(view)
    return view


def test_matrix_layout_of_a_single_row_or_column() -> None:
    assert matrix_layout((1, 8), (8, 1), "n") == ("n", 8)
    assert matrix_layout((8, 1), (1, 1), "t") == ("t", 8)
    assert matrix_layout((8, 1), (1, 1), "n") == ("n", 1)
    assert matrix_layout((8, 1), (3, 1), "t") == ("n", 3)
    assert matrix_layout((1, 1), (77, 99), "t") == ("t", 1)
    assert matrix_layout((4, 4), (2, 1), "n") is None
    assert matrix_layout((4, 4), None, "n") is None
