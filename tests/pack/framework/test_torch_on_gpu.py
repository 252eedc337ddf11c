"""The torch operators on a real GPU: values, gradients, graphs on a stream nothing ran on, side streams, compile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmtune.torch as gt  # noqa: E402
from gemmtune.codegen.nvrtc import compile_kernel  # noqa: E402
from gemmtune.codegen.render import render  # noqa: E402
from gemmtune.device.identity import identity  # noqa: E402
from gemmtune.pack.format import PackData  # noqa: E402
from gemmtune.pack.runtime import Pack  # noqa: E402
from gemmtune.pack.schema import Kernel, Point, Table, row_of  # noqa: E402
from gemmtune.space.configuration import Configuration  # noqa: E402
from gemmtune.space.families import family  # noqa: E402
from gemmtune.space.gemm import Gemm  # noqa: E402
from gemmtune.space.space import Space  # noqa: E402
from gemmtune.torch.operators import LINEAR, MATMUL  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]

M, N, K = 96, 80, 256


def split_k(problem: Gemm) -> Configuration:
    from gemmtune.device.cuda.info import gpu_of

    space = Space(problem, gpu_of(0), [family("mma")])
    for i in range(0, len(space), max(1, len(space) // 5000)):
        if space[i]["splits"] != 1:
            return space[i]
    raise AssertionError("no configuration splits K")


@pytest.fixture(scope="module")
def pack() -> Pack:
    """A linear layer [N, K] for any M and its gradients at M; the forward pass splits K."""
    here = identity(0)
    forward = Gemm(M, N, K, "bf16")
    problems = [(forward, split_k(forward))] + [
        (p, Configuration.of("naive", {}))
        for p in (
            Gemm(M, N, K, "bf16", epilogue="bias"), Gemm(M, K, N, "bf16", layout="nn"),
            Gemm(N, K, M, "bf16", layout="tn"), Gemm(M, N, K, "bf16", layout="nn"),
        )
    ]  # fmt: skip
    kernels, cubins, sources, rows = {}, {}, {}, []
    for problem, configuration in problems:
        made = compile_kernel(render(problem, configuration), here.arch)
        sha = made.cubin_sha256
        kernels[sha] = Kernel(
            sha, made.recipe, configuration, problem, here.arch, made.nvrtc, made.source.template_hash, 40, 0
        )
        cubins[sha], sources[sha] = made.cubin, made.source.text
        point = Point(dict(problem.axes), 50.0, 49.0, 51.0, 100.0, 2.0, 1.9, 2.1)
        rows.append(row_of(problem, kernel=sha, points=(point,)))
    table = Table(here.key, here.name, here.arch, "sustained", "cold", {}, tuple(rows))
    return Pack(PackData((table,), kernels, cubins, sources), "gpu")


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=2e-2, atol=0.25)


def made(*shape: int, grad: bool = False) -> Any:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


@pytest.mark.parametrize("bias", [False, True])
def test_layer_and_gradients(pack: Pack, bias: bool) -> None:
    layer = torch.nn.Linear(K, N, bias=bias, device="cuda", dtype=torch.bfloat16)
    a, grad = made(2, M // 2, K, grad=True), made(2, M // 2, N)
    layer(a).backward(grad)
    wanted = [layer(a).detach(), a.grad.clone(), layer.weight.grad.clone()]
    a.grad = layer.weight.grad = None
    gt.optimize_(layer, pack, strict=True)
    out = layer(a)
    out.backward(grad)
    for got, want in zip((out, a.grad, layer.weight.grad), wanted, strict=True):
        close(got, want)
    assert [who.partition(" ")[0] for who in gt.served(pack).values()].count("kernel") >= 3


def test_capture_on_a_stream_that_nothing_ran_on(pack: Pack) -> None:
    """Two graphs of one capture stream, replayed in the other order: workspace and counters are in order for both."""
    key = gt.use(pack, strict=True)
    a, weight = made(M, K), made(N, K)
    wanted = torch.nn.functional.linear(a, weight)
    graphs = []
    stream = torch.cuda.Stream()
    with torch.no_grad():
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                out = gt.linear(a, weight, pack=key)
            graphs.append((graph, out))
    for graph, out in (*reversed(graphs), *graphs):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        close(out, wanted)


def test_what_eager_code_leaves_to_torch_is_taken_by_a_graph(pack: Pack) -> None:
    """Where no call before the capture could load the kernel and find its workspace."""
    layer = torch.nn.Linear(K, N, bias=False, device="cuda", dtype=torch.bfloat16)
    a = made(M, K)
    wanted = layer(a).detach()
    gt.optimize_(layer, pack, strict=True, host_us=1000)
    with torch.no_grad():
        assert torch.equal(layer(a), wanted)
        forward = Gemm(M, N, K, "bf16").key
        assert gt.served(pack)[forward].startswith("torch: the kernel saves 50.0 us")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(a)
        assert gt.served(pack)[forward].startswith("kernel")
    for _ in range(2):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        close(out, wanted)


def test_side_streams_and_threads(pack: Pack) -> None:
    a, weight = made(M, K), made(N, K)
    wanted = torch.nn.functional.linear(a, weight)
    torch.cuda.synchronize()
    found: list[Any] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                out = gt.linear(a, weight, pack=pack)
        stream.synchronize()
        found.append(out)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for out in found:
        close(out, wanted)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(pack: Pack, mode: str) -> None:
    layer = torch.nn.Linear(K, N, device="cuda", dtype=torch.bfloat16)
    a = made(M, K, grad=True)
    wanted = torch.relu(layer(a))
    gt.optimize_(layer, pack)
    step = torch.compile(lambda x: torch.relu(layer(x)), fullgraph=True, mode=mode)
    for _ in range(3):  # as a training loop does: results of a step, gradients too, end with it
        torch.compiler.cudagraph_mark_step_begin()
        a.grad = None
        layer.zero_grad(set_to_none=True)
        out = step(a)
        close(out, wanted)
        out.sum().backward()


def test_autocast_and_views(pack: Pack) -> None:
    a, weight = torch.randn(M, K, device="cuda"), torch.randn(N, K, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = gt.linear(a, weight, pack=pack)
        wanted = torch.nn.functional.linear(a, weight)
    assert out.dtype is torch.bfloat16
    close(out, wanted)
    strange = made(M, 2 * K)[:, ::2]
    close(gt.linear(strange, weight.detach().bfloat16(), pack=pack), strange @ weight.detach().bfloat16().T)


@pytest.mark.parametrize("operator", [LINEAR, MATMUL])
def test_opcheck(pack: Pack, operator: Any) -> None:
    b = made(N, K, grad=True) if operator is LINEAR else made(K, N, grad=True)
    found = torch.library.opcheck(operator, (made(M, K, grad=True), b, None, gt.use(pack)))
    assert set(found.values()) == {"SUCCESS"}


def test_many_calls_leave_memory_as_it_was(pack: Pack) -> None:
    key = gt.use(pack)
    a, b = made(M, K), made(K, N)

    def used() -> tuple[int, int]:
        for _ in range(20_000):
            MATMUL(a, b, None, key)
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096, total - free

    used()
    first, second = used(), used()
    assert second[0] - first[0] < 2**20
    assert second[1] == first[1]
