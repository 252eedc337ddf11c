"""A kernel that saves less than its call costs the host is left alone, but not in a CUDA graph."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import gemmtune.torch as gt  # noqa: E402
from gemmtune.pack.runtime import Pack  # noqa: E402
from gemmtune.pack.schema import Point  # noqa: E402
from gemmtune.space.errors import SettingError, UnsupportedError  # noqa: E402
from gemmtune.space.gemm import Gemm  # noqa: E402
from gemmtune.torch import plans  # noqa: E402
from gemmtune.torch.worth import BUSY_US, FEW_ROWS, HOST_US, worth  # noqa: E402

WAYS = st.sampled_from(["eager", "traced", "recorded"])
TIMES = st.floats(0.5, 5000)


def point(us: float, saves: float, m: int = 8) -> Point:
    return Point({"m": m, "n": 32, "k": 16}, us, us, us, us + saves, (us + saves) / us, 1.0, 9.0)


@pytest.fixture
def short(maker: Any) -> Pack:
    """Kernels of 10 us that save 2, forward and backward, for 8 and for 512 rows."""
    for m in (8, 512):
        maker.add(Gemm(m, 32, 16, "fp32"), 1.2, us=10.0, tag=f"{m}")
        maker.add(Gemm(m, 32, 16, "bf16"), 1.2, us=200.0, tag=f"{m} long")
        maker.add(Gemm(m, 16, 32, "fp32", layout="nn"), 1.2, us=10.0, tag=f"{m} dgrad")
    return Pack(maker.data(), "short")


@pytest.fixture
def layer(host: Any, launches: Any, short: Pack) -> Any:
    made = torch.nn.Linear(16, 32, bias=False)
    gt.optimize_(made, short)
    return made


@given(TIMES, TIMES, st.integers(1, 10_000), WAYS, st.one_of(st.none(), st.floats(0, 100)))
def test_what_is_worth_a_call_stays_so_when_it_saves_more(us: float, saves: float, m: int, way: Any, host: Any) -> None:
    found = worth((point(us, saves),), m, way, host)
    needed = HOST_US[way] if host is None else host
    assert found == (us >= BUSY_US or (us + saves) - us >= needed or (way == "traced" and m <= FEW_ROWS) or needed == 0)
    assert worth((point(us, saves),), m, "graph", host)
    assert worth((), m, way, host)
    if found:
        assert worth((point(us, saves), point(us, saves)), m, way, host)


def test_eager_code_leaves_it_to_torch_and_a_graph_takes_it(
    host: Any, launches: Any, short: Pack, numbers: Any
) -> None:
    a, weight = numbers(8, 16), numbers(32, 16)
    key = gt.use(short)
    assert torch.equal(gt.linear(a, weight, pack=key), a @ weight.T)
    assert launches.calls == []
    assert "saves 2.0 us, less than the 10 us that calling ours in eager code" in gt.explain(a, weight, pack=key)
    host.capturing = True
    assert gt.explain(a, weight, pack=key).startswith("kernel")
    assert torch.equal(gt.linear(a, weight, pack=key), a @ weight.T)
    assert len(launches.calls) == 1
    host.capturing = False
    gt.linear(a, weight, pack=key)
    assert len(launches.calls) == 1
    gt.linear(a.bfloat16(), weight.bfloat16(), pack=key)  # 200 us
    gt.linear(a, weight, pack=gt.use(short, host_us=0))
    assert len(launches.calls) == 3
    with pytest.raises(SettingError, match="host_us is -1"):
        gt.use(short, host_us=-1)


def test_the_report_says_which_rows_serve_in_eager_code(host: Any, launches: Any, short: Pack) -> None:
    def rows(dtype: Any = torch.float32, **terms: Any) -> dict[str, str]:
        report = gt.optimize_(torch.nn.Linear(16, 32, bias=False, dtype=dtype), short, **terms)
        assert report.served == 1  # a CUDA graph takes every kernel that wins
        return {row.partition(":")[0]: row.rpartition("; ")[2] for row in report.layers[0].rows}

    assert rows()["forward m=8"] == "in CUDA graphs, not in eager code, where it would have to save 10 us"
    assert rows()["dgrad m=8"] == "in CUDA graphs, in eager code only where the layer's products save 50 us together"
    assert set(rows(host_us=0).values()) == {"in CUDA graphs, in eager code too"}
    assert set(rows(torch.bfloat16).values()) == {"in CUDA graphs, in eager code too"}  # 200 us each
    assert rows(host_us=1e9)["forward m=512"].endswith("not in eager code, where it would have to save 1e+09 us")


def test_a_layer_with_gradients_counts_what_all_of_them_save(
    host: Any, launches: Any, short: Pack, numbers: Any
) -> None:
    weight = numbers(32, 16, grad=True)
    for needed, kernels in ((4.5, 0), (3.5, 2)):  # forward and dgrad save 2 each
        key = gt.use(short, host_us=needed)
        a = numbers(8, 16, grad=True)
        out = gt.linear(a, weight, pack=key)
        assert (type(out.grad_fn).__name__ == "ProductBackward") == bool(kernels)
        assert any("2 kernels of the layer save 4.0 us" in who for who in gt.served(key).values()) != bool(kernels)
        assert gt.explain(a, weight, pack=key).startswith("kernel" if kernels else "torch: the 2 kernels of the layer")
        out.sum().backward()
        assert len(launches.calls) == kernels  # each, though alone it saves less than that
    launches.calls.clear()
    host.capturing = True
    key = gt.use(short)
    gt.linear(numbers(8, 16, grad=True), weight, pack=key).sum().backward()
    assert len(launches.calls) == 2


def test_autocast_asks_what_a_layer_with_gradients_saves(
    host: Any, launches: Any, short: Pack, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = torch.nn.Linear(16, 32, bias=False, dtype=torch.bfloat16)
    monkeypatch.setattr("gemmtune.torch.worth.BUSY_US", 1e9)
    gt.optimize_(layer, short)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(numbers(8, 16, grad=True))
    assert type(out.grad_fn).__name__ != "ProductBackward"
    assert launches.calls == []


def test_an_operator_that_was_called_takes_what_wins(host: Any, launches: Any, short: Pack, numbers: Any) -> None:
    a, weight = numbers(8, 16), numbers(32, 16)
    assert torch.equal(torch.ops.gemmtune.linear(a, weight, None, gt.use(short)), a @ weight.T)
    assert len(launches.calls) == 1  # the call is paid


def test_a_key_stands_for_its_terms_until_others_are_given(host: Any, short: Pack) -> None:
    key = gt.use(short, host_us=3)
    assert gt.use(key) == key
    other = gt.use(key, host_us=0)
    assert other != key
    layer = torch.nn.Linear(16, 32)
    gt.optimize_(layer, key, host_us=0)
    assert layer.gemmtune_pack == other


def operators_of(layer: Any, a: Any) -> list[str]:
    """What the graph that torch makes of a layer calls."""
    return [str(node.target) for node in nodes_of(layer, a)]


def nodes_of(layer: Any, a: Any) -> list[Any]:
    found: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        from torch._functorch.aot_autograd import aot_module_simplified

        def compiler(inner: Any, _: Any) -> Any:
            found.extend(node for node in inner.graph.nodes if node.op == "call_function")
            return inner

        return aot_module_simplified(graph, examples, fw_compiler=compiler)

    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(layer, backend=backend, fullgraph=True, dynamic=False)(a)
        torch.testing.assert_close(got, a @ layer.weight.T)
    return found


def test_a_traced_product_is_torchs_own_where_nobody_replays_it(layer: Any, numbers: Any) -> None:
    ours = "gemmtune.linear.default"
    assert ours not in operators_of(layer, numbers(512, 16))
    assert ours in operators_of(layer, numbers(8, 16))  # few rows
    import torch._inductor.config as config

    with config.patch({"triton.cudagraphs": True}):
        assert ours in operators_of(layer, numbers(512, 16))


def test_a_traced_training_step_holds_torchs_own_products_and_their_gradients(layer: Any, numbers: Any) -> None:
    torch._dynamo.reset()
    a = numbers(512, 16, grad=True)
    torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=False)(a).sum().backward()
    assert torch.equal(a.grad, torch.ones(512, 32) @ layer.weight)


def test_an_exported_program_keeps_the_operator(layer: Any, numbers: Any) -> None:
    program = torch.export.export(layer, (numbers(512, 16),))
    assert "gemmtune.linear" in str(program.graph)


def test_a_layer_remembers_what_it_leaves_and_forgets_it_where_it_is_moved(
    layer: Any, host: Any, launches: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = numbers(512, 16)
    with torch.no_grad():
        layer(a)
        with monkeypatch.context() as patched:
            patched.setattr("gemmtune.torch.swapped.by_key", None)  # is not asked again
            assert torch.equal(layer(a), a @ layer.weight.T)
            assert torch.equal(copy.deepcopy(layer)(a), a @ layer.weight.T)
            assert torch.equal(pickle.loads(pickle.dumps(layer))(a), a @ layer.weight.T)
        assert launches.calls == []
        host.capturing = True
        layer(a)
        assert len(launches.calls) == 1
        host.capturing = False
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(a).dtype is torch.bfloat16
        assert len(launches.calls) == 2  # the long one
        layer.bfloat16()
        layer(a.bfloat16())
        assert len(launches.calls) == 3
    assert "gemmtune_whose" not in vars(torch.nn.Linear(16, 32))
    assert gt.restore_(layer) == 1
    assert not {"gemmtune_whose", "gemmtune_pack"} & set(vars(layer))


def test_a_layer_under_autocast_asks_once_for_the_dtype_it_casts_to(
    layer: Any, host: Any, launches: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = numbers(512, 16)
    with torch.no_grad():
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert layer(a).dtype is torch.bfloat16  # the long kernel
        assert len(launches.calls) == 2
        with torch.autocast("cpu", dtype=torch.float16):
            assert layer(a).dtype is torch.float16  # no row
            with monkeypatch.context() as patched:
                patched.setattr("gemmtune.torch.swapped.by_key", None)  # is not asked again
                assert layer(a).dtype is torch.float16
        layer(a)  # 2 us are not worth it
        assert len(launches.calls) == 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(a)
        assert len(launches.calls) == 3


@pytest.mark.parametrize("capturing", [False, True])
def test_asking_under_autocast_casts_nothing(layer: Any, host: Any, numbers: Any, capturing: bool) -> None:
    plain = torch.nn.Linear(16, 32, bias=False)
    host.capturing = capturing
    for m in (8, 24, 512):  # no shape has come by before
        a = numbers(m, 16)
        counts = []
        for module in (plain, layer):
            with torch.profiler.profile() as seen, torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                module(a)
            counts.append(sum(event.count for event in seen.key_averages() if event.key == "aten::_to_copy"))
        assert counts[1] <= counts[0]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_sparse_inputs_are_torchs(layer: Any, launches: Any, autocast: bool, grad: bool) -> None:
    a = torch.eye(16)[:8]
    with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = layer(a.to_sparse())
    torch.testing.assert_close(found.float(), (a @ layer.weight.T).float(), atol=2e-3, rtol=1e-2)
    assert launches.calls == []


def test_autocast_of_another_device_casts_nothing(layer: Any, launches: Any, numbers: Any) -> None:
    torch.set_autocast_enabled("cuda", True)  # torch.autocast refuses where there is no GPU
    try:
        with torch.no_grad():
            assert layer(numbers(512, 16)).dtype is torch.float32
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert launches.calls == []


def test_a_layer_whose_weight_is_no_parameter_still_multiplies(layer: Any, numbers: Any) -> None:
    from torch.nn.utils import prune

    prune.l1_unstructured(layer, "weight", amount=0.5)
    for m in (8, 512, 512):
        a = numbers(m, 16)
        torch.testing.assert_close(layer(a), a @ layer.weight.T)


def test_a_layer_on_the_cpu_is_left_to_torch_after_one_warning(
    short: Pack, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, a = torch.nn.Linear(16, 32), numbers(8, 16)
    wanted = layer(a)
    gt.optimize_(layer, short)
    with pytest.warns(gt.PackWarning, match="kernels run on GPUs"):
        assert torch.equal(layer(a), wanted)
    monkeypatch.setattr("gemmtune.torch.swapped.by_key", None)  # is not asked again
    assert torch.equal(layer(a), wanted)
    gt.restore_(layer)
    gt.optimize_(layer, short, strict=True)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="kernels run on GPUs"):
            layer(a)


def test_compiled_graphs_of_other_times_or_terms_are_others(
    layer: Any, host: Any, short: Pack, maker: Any, numbers: Any
) -> None:
    """Torch's caches, which outlive programs, know a graph by the text of its calls."""

    def pack_of(layer: Any) -> str:
        (node,) = [n for n in nodes_of(layer, numbers(8, 16)) if "gemmtune" in str(n.target)]
        return str(node.args[3])

    first = pack_of(layer)
    assert first == pack_of(layer)
    gt.optimize_(layer, short, host_us=1)
    second = pack_of(layer)
    maker.add(Gemm(8, 32, 16, "fp32"), 1.3, us=9.0, tag="8")
    gt.optimize_(layer, Pack(maker.data(), "retuned"))
    assert len({first, second, pack_of(layer)}) == 3


def test_a_copy_that_comes_to_another_program_begins_anew(layer: Any, numbers: Any) -> None:
    with torch.no_grad():
        layer(numbers(512, 16))
    assert layer.gemmtune_whose[0]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.gemmtune_whose == ({}, {})
    state = layer.__getstate__()
    del state["gemmtune_whose"]
    old = torch.nn.Linear.__new__(type(layer))
    old.__setstate__(state)
    assert torch.equal(old(numbers(512, 16) * 0), torch.zeros(512, 32))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning", "ignore:.*prototype stage:UserWarning")
def test_tracers_proxies_and_nested_tensors_get_torchs_own(layer: Any, numbers: Any) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    a = numbers(512, 16)
    wanted = a @ layer.weight.T
    traced = make_fx(lambda x: layer(x), tracing_mode="symbolic", _allow_non_fake_inputs=True)(a)
    assert torch.equal(traced(a), wanted)
    jitted = torch.jit.trace(layer, (a,), check_trace=False)
    assert torch.equal(jitted(a), wanted)
    assert "gemmtune::" not in str(jitted.inlined_graph)
    assert all(type(size) is int for shape in layer.gemmtune_whose[1] for size in shape)
    assert torch.equal(torch.fx.symbolic_trace(torch.nn.Sequential(layer))(a), wanted)
    nested = torch.nested.nested_tensor([a[:3], a[3:8]])
    for got, want in zip(layer(nested).unbind(), (wanted[:3], wanted[3:8]), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(("stream", "asked"), [(0, 0), (7, 1)])
def test_the_default_stream_is_never_captured(stream: int, asked: int) -> None:
    """So the driver is not asked."""
    machine, questions = plans.Machine(), []
    machine.stream = lambda device: stream
    machine._captures = lambda: not questions.append(1)  # type: ignore[func-returns-value]
    tensor = SimpleNamespace(is_cuda=True, get_device=lambda: 0)
    assert machine.captured(tensor) == bool(stream)
    assert not machine.captured(torch.ones(1))
    assert len(questions) == asked
