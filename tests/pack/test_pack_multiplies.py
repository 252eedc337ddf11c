"""``Pack.matmul`` with stand-ins for frameworks and launcher: real addresses, pitches and layouts, on the host."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmtune.pack.arrays import Extent, matrix_layout
from gemmtune.pack.runtime import Pack
from gemmtune.space.errors import ArrayError, SettingError, UnknownNameError, UnsupportedError
from gemmtune.space.gemm import Gemm

RNG = np.random.default_rng(0)
NUMPY = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Small integers: every product and sum is exact in fp32, and in fp16 and bf16 for short sums."""
    return RNG.integers(-3, 4, shape).astype(dtype)


def place(values: np.ndarray[Any, Any], offset: int = 0) -> np.ndarray[Any, Any]:
    """The values at an address that is a multiple of 256, plus ``offset`` bytes."""
    size = values.dtype.itemsize
    raw = np.zeros(values.size * size + 512 + offset, np.uint8)
    start = -raw.ctypes.data % 256 + offset
    out = raw[start : start + values.size * size].view(values.dtype).reshape(values.shape)
    out[...] = values
    return out


def same(framework: Any, got: Any, wanted: np.ndarray[Any, Any]) -> None:
    host = framework.host(got)
    assert host.shape == wanted.shape
    assert np.array_equal(host.astype(np.float64), wanted.astype(np.float64), equal_nan=True)


def product(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a.astype(np.float64) @ b.astype(np.float64)


@pytest.fixture
def empty_pack(maker: Any) -> Pack:
    return Pack(maker.data(), "empty")


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


# ------------------------------------------------------------------------------------------------------ epilogues


def test_bias_alpha_beta_and_c(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b, c, bias = numbers((6, 5)), numbers((5, 7)), numbers((6, 7)), numbers((7,))
    wrap = framework.array
    matmul = empty_pack.matmul
    same(framework, matmul(wrap(a), wrap(b), bias=wrap(bias)), product(a, b) + bias)
    same(framework, matmul(wrap(a), wrap(b), bias=wrap(bias[None])), product(a, b) + bias)
    same(framework, matmul(wrap(a), wrap(b), c=wrap(c)), product(a, b) + c)
    same(framework, matmul(wrap(a), wrap(b), c=wrap(c), alpha=2, beta=-1), 2 * product(a, b) - c)
    same(framework, matmul(wrap(a), wrap(b), alpha=0.5), 0.5 * product(a, b))
    same(framework, matmul(wrap(a), wrap(b), c=wrap(np.full_like(c, np.nan)), beta=0), product(a, b))
    same(framework, matmul(wrap(a), wrap(b), c=wrap(c), alpha=3.0), 3 * product(a, b) + c)
    keys = [key for _, key, _ in launches.calls]
    assert [k.partition("epilogue=")[2] for k in keys] == [
        "bias", "bias", "alpha_beta", "alpha_beta", "alpha_beta", "", "alpha_beta",
    ]  # fmt: skip


def test_alpha_changes_without_a_new_plan(framework: Any, launches: Any, maker: Any) -> None:
    maker.add(Gemm(6, 7, 5, "fp32", layout="nn", epilogue="alpha_beta"))
    pack = Pack(maker.data(), "p")
    a, b, c = place(numbers((6, 5))), place(numbers((5, 7))), place(numbers((6, 7)))
    for alpha, beta in ((2.0, 1.0), (3.0, 0.5), (-1.0, 4.0)):
        d = pack.matmul(framework.array(a), framework.array(b), c=framework.array(c), alpha=alpha, beta=beta)
        same(framework, d, alpha * product(a, b) + beta * c)
    assert launches.prepared == 1


@pytest.mark.parametrize("pitch_c", [7, 9])
@pytest.mark.parametrize("pitch_out", [None, 7, 8, 9])
def test_c_and_out_of_any_pitch(
    pitch_c: int, pitch_out: int | None, framework: Any, launches: Any, empty_pack: Pack
) -> None:
    a, b, c = numbers((6, 5)), numbers((5, 7)), numbers((6, pitch_c))[:, :7]
    out = None if pitch_out is None else numbers((6, pitch_out))
    around = None if out is None else out.copy()
    d = empty_pack.matmul(
        framework.array(a),
        framework.array(b),
        None if out is None else framework.array(out[:, :7]),
        c=framework.array(c),
    )
    same(framework, d, product(a, b) + c)
    if out is not None and around is not None:
        assert np.array_equal(out[:, 7:], around[:, 7:])


def test_strided_bias_and_column_major_c(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b, c, bias = numbers((6, 5)), numbers((5, 7)), np.asfortranarray(numbers((6, 7))), numbers((14,))[::2]
    same(
        framework,
        empty_pack.matmul(framework.array(a), framework.array(b), bias=framework.array(bias)),
        product(a, b) + bias,
    )
    same(framework, empty_pack.matmul(framework.array(a), framework.array(b), c=framework.array(c)), product(a, b) + c)


@pytest.mark.parametrize("out_dtype", ["fp32", "fp16", "bf16"])
def test_out_dtype_by_name_or_the_frameworks_own(
    out_dtype: str, framework: Any, launches: Any, empty_pack: Pack
) -> None:
    a, b = numbers((6, 5), np.float16), numbers((5, 7), np.float16)
    for asked in (out_dtype, framework.dtype(out_dtype)):
        d = empty_pack.matmul(framework.array(a), framework.array(b), out_dtype=asked)
        assert framework.host(d).dtype == NUMPY[out_dtype]
        same(framework, d, product(a, b))


def test_tf32_only_where_asked(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b = framework.array(numbers((6, 5))), framework.array(numbers((5, 7)))
    empty_pack.matmul(a, b)
    empty_pack.matmul(a, b, precision="tf32")
    assert [key for _, key, _ in launches.calls] == ["gemm 6x7x5 fp32 nn", "gemm 6x7x5 tf32 nn"]
    half = framework.array(numbers((6, 5), np.float16))
    with pytest.raises(ArrayError, match="tf32"):
        empty_pack.matmul(half, framework.array(numbers((5, 7), np.float16)), precision="tf32")
    with pytest.raises(ArrayError, match="fp32, tf32"):
        empty_pack.matmul(a, b, precision="fp8")


# ----------------------------------------------------------------------------------------------------- empty arrays


def test_empty_results(framework: Any, launches: Any, empty_pack: Pack) -> None:
    for m, n, k in ((0, 7, 5), (6, 0, 5), (0, 0, 0), (0, 7, 0)):
        d = empty_pack.matmul(framework.array(numbers((m, k))), framework.array(numbers((k, n))))
        assert framework.host(d).shape == (m, n)
    assert launches.calls == []


def test_no_terms_to_sum(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b, c, bias = np.zeros((6, 0), np.float32), np.zeros((0, 7), np.float32), numbers((6, 7)), numbers((7,))
    wrap, matmul = framework.array, empty_pack.matmul
    same(framework, matmul(wrap(a), wrap(b)), np.zeros((6, 7)))
    same(framework, matmul(wrap(a), wrap(b), bias=wrap(bias)), np.broadcast_to(bias, (6, 7)))
    same(framework, matmul(wrap(a), wrap(b), c=wrap(c), alpha=float("inf"), beta=2.0), 2 * c)
    out = wrap(numbers((6, 7)))
    assert matmul(wrap(a), wrap(b), out) is out
    same(framework, out, np.zeros((6, 7)))


def test_nan_and_inf_pass_through(framework: Any, launches: Any, empty_pack: Pack) -> None:
    a, b = numbers((4, 4)), numbers((4, 4))
    a[1, 2], b[0, 3] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        same(framework, empty_pack.matmul(framework.array(a), framework.array(b)), product(a, b))


# ------------------------------------------------------------------------------------------------------- bad input


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
