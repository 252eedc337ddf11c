"""A kernel that saves less than its call costs the host is left alone, but not in a CUDA graph."""

from __future__ import annotations

import copy
import pickle
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
    host.capturing = True
    key = gt.use(short)
    gt.linear(numbers(8, 16, grad=True), weight, pack=key).sum().backward()
    assert len(launches.calls) == 2


def operators_of(layer: Any, a: Any) -> list[str]:
    """What the graph that torch makes of a layer calls."""
    found: list[str] = []

    def backend(graph: Any, examples: Any) -> Any:
        from torch._functorch.aot_autograd import aot_module_simplified

        def compiler(inner: Any, _: Any) -> Any:
            found.extend(str(node.target) for node in inner.graph.nodes if node.op == "call_function")
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
            patched.setattr("gemmtune.torch.layers.by_key", None)  # is not asked again
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
    monkeypatch.setattr("gemmtune.torch.layers.by_key", None)  # is not asked again
    assert torch.equal(layer(a), wanted)
    gt.restore_(layer)
    gt.optimize_(layer, short, strict=True)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="kernels run on GPUs"):
            layer(a)
