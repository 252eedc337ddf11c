"""A real pack on a real GPU, called with real CuPy arrays and torch tensors."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmtune.codegen.kernel import CompiledKernel
from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.device.identity import identity
from gemmtune.device.toolchain import device_count
from gemmtune.pack.format import PackData, check_launch, write_pack
from gemmtune.pack.runtime import Pack, load_pack
from gemmtune.pack.schema import Kernel, Point, Table, row_of
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import ArrayError, ToolchainError
from gemmtune.space.families import family
from gemmtune.space.gemm import LAYOUTS, Gemm
from gemmtune.space.space import Space


def _missing() -> str:
    try:
        device_count()
    except ToolchainError as error:
        return str(error)
    return ""


MISSING = _missing()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(MISSING), reason=MISSING or "there is a GPU")]

M, N, K = 96, 80, 64
DTYPES = ("fp32", "fp16", "bf16")
PROBLEMS = [
    *(Gemm(M, N, K, dtype, layout=layout) for dtype in DTYPES for layout in LAYOUTS),
    *(Gemm(M, N, K, "bf16", epilogue=e) for e in ("bias", "alpha_beta")),
    Gemm(M, N, K, "fp16", "fp32"),
]
SPLIT = Gemm(M, 48, 256)
"""Served by a split-K kernel of the mma family: workspace and counters."""


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Naive kernels for every layout and dtype, and one mma kernel that needs alignment, workspace and counters."""
    here = identity(0)
    made = [(p, compile_kernel(render(p, Configuration.of("naive", {})), here.arch)) for p in PROBLEMS]
    made.append((SPLIT, compile_kernel(render(SPLIT, _split_configuration()), here.arch)))
    kernels = {k.cubin_sha256: _kernel(p, k) for p, k in made}
    rows = []
    for problem, compiled in made:
        point = Point(dict(problem.axes), 10.0, 9.0, 11.0, 20.0, 2.0, 1.9, 2.1)
        axes = {name: (size, size) for name, size in problem.axes.items()} | {"m": (1, 4096)}
        rows.append(row_of(problem, axes=axes, kernel=compiled.cubin_sha256, points=(point,)))
    table = Table(here.key, here.name, here.arch, "sustained", "cold", {}, tuple(rows))
    data = PackData(
        (table,), kernels, {k.cubin_sha256: k.cubin for _, k in made}, {k.cubin_sha256: k.source.text for _, k in made}
    )
    path: Path = tmp_path_factory.mktemp("packs") / "gpu.kpack"
    write_pack(path, data)
    return load_pack(path)


def _split_configuration() -> Configuration:
    from gemmtune.device.cuda.info import gpu_of

    space = Space(SPLIT, gpu_of(0), [family("mma")])
    for i in range(0, len(space), max(1, len(space) // 5000)):
        if space[i]["splits"] != 1:
            return space[i]
    raise AssertionError("the mma family has no split-K configuration for this problem")


def _kernel(problem: Gemm, compiled: CompiledKernel) -> Kernel:
    kernel = Kernel(
        compiled.cubin_sha256, compiled.recipe, compiled.configuration, problem, compiled.arch, compiled.nvrtc,
        compiled.source.template_hash, 0, 0,
    )  # fmt: skip
    check_launch(kernel, problem, identity(0).key)
    return kernel


# ------------------------------------------------------------------------------------------------- two frameworks


class Cupy:
    def __init__(self) -> None:
        import cupy

        self.xp = cupy

    def make(self, host: np.ndarray[Any, Any]) -> Any:
        return self.xp.asarray(host)

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        self.xp.cuda.get_current_stream().synchronize()
        return self.xp.asnumpy(array)  # type: ignore[no-any-return]

    def side_stream(self) -> Any:
        return self.xp.cuda.Stream(non_blocking=True)


class Torch:
    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch", reason="torch is not installed")
        if not self.torch.cuda.is_available():
            pytest.skip("torch has no CUDA here")

    def make(self, host: np.ndarray[Any, Any]) -> Any:
        if host.dtype.name == "bfloat16":
            strides = [s // 2 for s in host.strides]
            base = self.torch.from_numpy(np.ascontiguousarray(host).view(np.int16)).cuda().view(self.torch.bfloat16)
            out = self.torch.empty_strided(host.shape, strides, dtype=self.torch.bfloat16, device="cuda")
            return out.copy_(base)
        return self.torch.from_numpy(np.ascontiguousarray(host)).cuda()

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        self.torch.cuda.current_stream().synchronize()
        return array.float().cpu().numpy()  # type: ignore[no-any-return]

    def side_stream(self) -> Any:
        return self.torch.cuda.stream(self.torch.cuda.Stream())


@pytest.fixture(params=[Cupy, Torch])
def arrays(request: pytest.FixtureRequest) -> Any:
    return request.param()


def right(problem: Gemm, got: np.ndarray[Any, Any], operands: dict[str, np.ndarray[Any, Any]]) -> None:
    reference, scale = problem.reference(operands, np.arange(problem.m), np.arange(problem.n))
    bound = problem.error_bound()
    limit = bound.accumulation * scale + bound.rounding * np.abs(reference)
    assert np.all(np.abs(got.astype(np.float64) - reference) <= limit)


def operands_of(arrays: Any, problem: Gemm) -> tuple[dict[str, np.ndarray[Any, Any]], Any, Any]:
    """Host inputs as stored, and A [M,K] and B [K,N] on the GPU as views of them."""
    host = problem.inputs(3)
    a, b = arrays.make(host["a"]), arrays.make(host["b"])
    return host, a.T if problem.layout[0] == "t" else a, b.T if problem.layout[1] == "t" else b


# ----------------------------------------------------------------------------------------------------------- tests


def test_the_device_key_is_the_tuners() -> None:
    from gemmtune.device.cuda.info import gpu_of

    assert (identity(0).key, identity(0).arch) == (gpu_of(0).key, gpu_of(0).arch)


@pytest.mark.parametrize("problem", PROBLEMS[: len(DTYPES) * len(LAYOUTS)], ids=str)
def test_every_layout_and_dtype(problem: Gemm, arrays: Any, pack: Pack) -> None:
    host, a, b = operands_of(arrays, problem)
    right(problem, arrays.host(pack.matmul(a, b)), host)
    assert pack.explain(M, N, K, problem.dtype, problem.layout).how == "range"


@pytest.mark.parametrize("m", [1, 17, 96, 1000, 5000])
def test_any_m_by_kernel_or_baseline(m: int, arrays: Any, pack: Pack) -> None:
    problem = Gemm(m, N, K)
    host, a, b = operands_of(arrays, problem)
    right(problem, arrays.host(pack.matmul(a, b)), host)
    assert pack.explain(m, N, K).how == ("range" if m <= 4096 else "baseline")


def test_a_kernel_with_workspace_and_counters(arrays: Any, pack: Pack) -> None:
    for m in (M, 33, M):
        problem = SPLIT.with_axes(m=m)
        host, a, b = operands_of(arrays, problem)
        right(problem, arrays.host(pack.matmul(a, b)), host)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pitched_unaligned_and_strided_views(dtype: str, arrays: Any, pack: Pack) -> None:
    problem = Gemm(M, N, K, dtype)
    wide = Gemm(M, N, K + 7, dtype).inputs(5)
    a, b = arrays.make(wide["a"]), arrays.make(wide["b"])
    for start in (0, 1, 7):  # pitch K + 7 elements, addresses 0, 1 and 7 elements off
        part = {name: wide[name][:, start : start + K] for name in ("a", "b")}
        right(problem, arrays.host(pack.matmul(a[:, start : start + K], b[:, start : start + K].T)), part)
    big = Gemm(2 * M, N, 2 * K, dtype).inputs(6)
    a, b = arrays.make(big["a"])[::2, ::2], arrays.make(big["b"])[:, ::2]
    part = {"a": big["a"][::2, ::2], "b": big["b"][:, ::2]}
    right(problem, arrays.host(pack.matmul(a, b.T)), part)


def test_negative_and_broadcast_strides(pack: Pack) -> None:
    cupy = Cupy()
    problem = Gemm(M, N, K)
    host = problem.inputs(7)
    a, b = cupy.make(host["a"]), cupy.make(host["b"])
    turned = {"a": host["a"][::-1, ::-1], "b": host["b"][::-1]}
    right(problem, cupy.host(pack.matmul(a[::-1, ::-1], b[::-1].T)), turned)
    row = cupy.xp.broadcast_to(a[:1], a.shape)
    right(problem, cupy.host(pack.matmul(row, b.T)), {**host, "a": np.broadcast_to(host["a"][:1], (M, K))})


def test_bias_c_alpha_beta_and_out(arrays: Any, pack: Pack) -> None:
    problem = Gemm(M, N, K, epilogue="bias")
    host, a, b = operands_of(arrays, problem)
    right(problem, arrays.host(pack.matmul(a, b, bias=arrays.make(host["bias"]))), host)
    problem = Gemm(M, N, K, epilogue="alpha_beta")
    host, a, b = operands_of(arrays, problem)
    c = arrays.make(host["c"])
    out = arrays.make(np.zeros_like(host["c"]))
    for alpha, beta in ((1.25, -0.5), (3.0, 0.0), (0.0, 1.0)):
        scaled = {**host, "alpha": np.float32(alpha), "beta": np.float32(beta)}
        assert pack.matmul(a, b, out, c=c, alpha=alpha, beta=beta) is out
        right(problem, arrays.host(out), scaled)
    with pytest.raises(ArrayError, match="shares memory with c"):
        pack.matmul(a, b, c, c=c)


def test_out_of_other_strides(arrays: Any, pack: Pack) -> None:
    problem = Gemm(M, N, K, "fp32")
    host, a, b = operands_of(arrays, problem)
    wide = arrays.make(np.full((M, N + 5), 7, np.float32))
    pack.matmul(a, b, wide[:, :N])
    right(problem, arrays.host(wide)[:, :N], host)
    assert np.all(arrays.host(wide)[:, N:] == 7)
    turned = arrays.make(np.zeros((N, M), np.float32))
    pack.matmul(a, b, turned.T)
    right(problem, arrays.host(turned).T, host)


def test_output_types(arrays: Any, pack: Pack) -> None:
    for dtype in DTYPES:
        for out in DTYPES:
            problem = Gemm(M, N, K, dtype, out)
            host, a, b = operands_of(arrays, problem)
            right(problem, arrays.host(pack.matmul(a, b, out_dtype=out)).astype(np.float64), host)


def test_tf32_only_where_asked(arrays: Any, pack: Pack) -> None:
    host, a, b = operands_of(arrays, Gemm(M, N, K, "fp32"))
    right(Gemm(M, N, K, "fp32"), arrays.host(pack.matmul(a, b)), host)
    right(Gemm(M, N, K, "tf32"), arrays.host(pack.matmul(a, b, precision="tf32")), host)


def test_empty_arrays(arrays: Any, pack: Pack) -> None:
    for m, n, k in ((0, N, K), (M, 0, K), (M, N, 0)):
        a, b = arrays.make(np.zeros((m, k), np.float32)), arrays.make(np.zeros((k, n), np.float32))
        d = arrays.host(pack.matmul(a, b))
        assert d.shape == (m, n)
        assert not d.any()
    bias = arrays.make(np.arange(N, dtype=np.float32))
    a, b = arrays.make(np.zeros((M, 0), np.float32)), arrays.make(np.zeros((0, N), np.float32))
    assert np.array_equal(arrays.host(pack.matmul(a, b, bias=bias)), np.broadcast_to(np.arange(N), (M, N)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity(dtype: str, arrays: Any, pack: Pack) -> None:
    problem = Gemm(M, N, K, dtype)
    host = problem.inputs(8)
    host["a"][3, 5], host["a"][4, 6], host["b"][7, 8] = np.nan, np.inf, -np.inf
    got = arrays.host(pack.matmul(arrays.make(host["a"]), arrays.make(host["b"]).T)).astype(np.float64)
    reference, _ = problem.reference(host, np.arange(M), np.arange(N))
    assert np.array_equal(np.isnan(got), np.isnan(reference))
    infinite = np.isinf(reference)
    assert np.array_equal(got[infinite], reference[infinite])
    assert np.array_equal(np.isinf(got), infinite)


def test_the_current_stream_is_used(arrays: Any, pack: Pack) -> None:
    for problem in (Gemm(M, N, K), SPLIT, Gemm(5000, N, K)):  # a kernel, one with scratch memory, the baseline
        host, a, b = operands_of(arrays, problem)
        arrays.host(a)
        with arrays.side_stream():
            d = pack.matmul(a, b)
            for _ in range(20):  # each reads what the one before wrote: out of order, the numbers would be others
                d = pack.matmul(a, b, out_dtype="bf16")
            right(problem, arrays.host(d), host)


@pytest.mark.parametrize("problem", [Gemm(M, N, K), SPLIT, Gemm(5000, N, K)], ids=str)
def test_cupy_graph_capture(problem: Gemm, pack: Pack) -> None:
    cupy = Cupy()
    host, a, b = operands_of(cupy, problem)
    out = cupy.xp.zeros((problem.m, problem.n), a.dtype)
    stream = cupy.xp.cuda.Stream(non_blocking=True)
    cupy.xp.cuda.Device().synchronize()
    with stream:
        pack.matmul(a, b, out)  # the first call loads and allocates
        out[...] = 0
        stream.begin_capture()
        pack.matmul(a, b, out)
        graph = stream.end_capture()
        for _ in range(3):
            out[...] = 0
            graph.launch(stream)
        right(problem, cupy.host(out), host)


@pytest.mark.parametrize("problem", [Gemm(M, N, K), SPLIT, Gemm(5000, N, K)], ids=str)
def test_torch_graph_capture(problem: Gemm, pack: Pack) -> None:
    arrays = Torch()
    torch = arrays.torch
    host, a, b = operands_of(arrays, problem)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        pack.matmul(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        d = pack.matmul(a, b)
    for _ in range(3):
        d.zero_()
        graph.replay()
    right(problem, arrays.host(d), host)


def test_a_fresh_thread_with_an_out_array(arrays: Any, pack: Pack) -> None:
    problem = Gemm(M, N, K)
    host, a, b = operands_of(arrays, problem)
    out = arrays.make(np.zeros((M, N), host["a"].dtype))
    arrays.host(out)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            pack.matmul(a, b, out)
            arrays.host(out)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
    right(problem, arrays.host(out), host)


def test_arrays_that_a_pack_refuses(pack: Pack) -> None:
    cupy = Cupy()
    a = cupy.xp.zeros((M, K), np.float32)
    with pytest.raises(ArrayError, match="float64"):
        pack.matmul(cupy.xp.zeros((M, K)), cupy.xp.zeros((K, N)))
    with pytest.raises(ArrayError, match="numpy"):
        pack.matmul(a, np.zeros((K, N), np.float32))
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        with pytest.raises(ArrayError, match="one framework"):
            pack.matmul(a, torch.zeros((K, N), device="cuda"))
        with pytest.raises(ArrayError, match="on cpu"):
            pack.matmul(torch.zeros((M, K)), torch.zeros((K, N)))
        weight = torch.zeros((K, N), device="cuda", requires_grad=True)
        with pytest.raises(ArrayError, match="gradient"):
            pack.matmul(torch.zeros((M, K), device="cuda"), weight)
        with torch.no_grad():
            pack.matmul(torch.zeros((M, K), device="cuda"), weight)


def test_profile_of_a_call(arrays: Any, pack: Pack) -> None:
    _, a, b = operands_of(arrays, Gemm(M, N, K))
    times = pack.profile_call(a, b)
    assert set(times) == {"read", "device", "stream", "look_up", "allocate", "launch", "total", "other", "median"}
    assert all(times[name] > 0 for name in times if name != "other")
