"""Layers that are left to torch cost less than nn.Linear, and are nn.Linear in all else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmtune.torch as gt  # noqa: E402
from gemmtune.pack.runtime import Pack  # noqa: E402
from gemmtune.space.errors import UnsupportedError  # noqa: E402
from gemmtune.space.gemm import Gemm  # noqa: E402
from gemmtune.torch import layers  # noqa: E402

Hooks = torch.nn.modules.module


@pytest.fixture
def pack(maker: Any) -> Pack:
    """Kernels of 10 us that save 2 for an fp32 layer of 8 rows, forward and backward; of 200 us in fp16."""
    maker.add(Gemm(8, 32, 16, "fp32"), 1.2, us=10.0)
    maker.add(Gemm(8, 16, 32, "fp32", layout="nn"), 1.2, us=10.0, tag="dgrad")
    maker.add(Gemm(8, 16, 32, "fp16"), 1.2, us=200.0, tag="other layers")
    return Pack(maker.data(), "left")


@pytest.fixture
def made(host: Any, pack: Pack, numbers: Any) -> Callable[..., Any]:
    """Makes layers on the default stream, whose products are exact."""
    host.stream_now = 0

    def make(**terms: Any) -> Any:
        layer = torch.nn.Linear(16, 32, bias=False)
        layer.weight.data = numbers(32, 16)
        gt.optimize_(layer, pack, **terms)
        return layer

    return make


def refuses(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Whoever asks these functions fails."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("was asked")

    for name in names:
        monkeypatch.setattr(layers, name, refused)


def test_what_one_layer_learned_those_of_its_kind_know(
    made: Callable[..., Any], launches: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, alike = made(), made()
    a = numbers(8, 16)
    with torch.no_grad():
        one(a)
        refuses(monkeypatch, "whose", "by_key")
        assert torch.equal(alike(a), a @ alike.weight.T)
        assert torch.equal(one(a.view(2, 4, 16)), (a @ one.weight.T).view(2, 4, 32))  # as many rows
    monkeypatch.setattr(layers.Linear, "forward", None)  # nor is anything else
    for grad, autocast in ((False, False), (True, False), (False, True), (True, True)):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
            out = alike(a)
        assert out.requires_grad is grad
        assert out.dtype is (torch.float16 if autocast else torch.float32)
    assert launches.calls == []


@pytest.mark.parametrize("first", ["plain", "graph", "gradients", "autocast"])
def test_what_serves_anywhere_is_left_nowhere(
    first: str, host: Any, launches: Any, numbers: Any, maker: Any, pack: Pack
) -> None:
    """A size that eager code leaves to torch in one way only is asked for in each."""
    maker.add(Gemm(8, 32, 16, "fp16"), 1.2, us=200.0, tag="autocast")
    host.stream_now = 0
    layer = torch.nn.Linear(16, 32, bias=False)
    gt.optimize_(layer, Pack(maker.data(), "ways"), host_us=3.5)  # forward and dgrad save 4 together
    a = numbers(8, 16, grad=True)

    def plain() -> int:
        with torch.no_grad():
            layer(a.detach())
        return 0

    def graph() -> int:
        host.capturing, host.stream_now = True, 7
        with torch.no_grad():
            layer(a.detach())
        host.capturing, host.stream_now = False, 0
        return 1

    def gradients() -> int:
        layer(a).sum().backward()
        return 2

    def autocast() -> int:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            layer(a.detach())
        return 1

    ways = {"plain": plain, "graph": graph, "gradients": gradients, "autocast": autocast}
    for way in (first, *ways, *ways):
        before = len(launches.calls)
        wanted = ways[way]()
        assert len(launches.calls) - before == wanted, way


def test_a_side_stream_may_be_captured(made: Callable[..., Any], host: Any, launches: Any, numbers: Any) -> None:
    layer, a = made(), numbers(8, 16)
    with torch.no_grad():
        layer(a)
        host.stream_now = 7
        layer(a)
        assert launches.calls == []
        host.capturing = True
        assert torch.equal(layer(a), a @ layer.weight.T)
    assert len(launches.calls) == 1


@pytest.mark.parametrize(
    "register",
    [
        lambda layer, told: layer.register_forward_pre_hook(lambda *_: told.append(1)),
        lambda layer, told: layer.register_forward_hook(lambda *_: told.append(1)),
        lambda layer, told: layer.register_full_backward_pre_hook(lambda *_: told.append(1)),
        lambda layer, told: layer.register_full_backward_hook(lambda *_: told.append(1)),
        lambda layer, told: Hooks.register_module_forward_pre_hook(lambda *_: told.append(1)),
        lambda layer, told: Hooks.register_module_forward_hook(lambda *_: told.append(1)),
        lambda layer, told: Hooks.register_module_full_backward_pre_hook(lambda *_: told.append(1)),
        lambda layer, told: Hooks.register_module_full_backward_hook(lambda *_: told.append(1)),
    ],
)
def test_hooks_are_called(register: Any, made: Callable[..., Any], numbers: Any) -> None:
    layer, told = made(), []
    a = numbers(8, 16, grad=True)
    layer(a).sum().backward()
    handle = register(layer, told)
    try:
        layer(a).sum().backward()
    finally:
        handle.remove()
    assert told == [1]
    layer(a).sum().backward()
    assert told == [1]


def test_pruned_and_parametrized_layers_multiply_what_their_weight_is(made: Callable[..., Any], numbers: Any) -> None:
    from torch.nn.utils import parametrize, prune

    a = numbers(8, 16)

    class Half(torch.nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight / 2

    for change in (
        lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
        lambda layer: parametrize.register_parametrization(layer, "weight", Half()),
    ):
        layer = made()
        with torch.no_grad():
            layer(a)
            change(layer)
            assert torch.equal(layer(a), a @ layer.weight.T)


def test_what_compile_made_of_a_layer_goes_before(made: Callable[..., Any], numbers: Any) -> None:
    layer, a, graphs = made(), numbers(8, 16), []
    with torch.no_grad():
        layer(a)
        torch._dynamo.reset()
        layer.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward)
        assert torch.equal(layer(a), a @ layer.weight.T)
        assert torch.equal(layer(input=a), a @ layer.weight.T)
    assert graphs


def test_a_moved_or_copied_layer_begins_anew(made: Callable[..., Any], host: Any, numbers: Any) -> None:
    layer, a = made(), numbers(8, 16)
    with torch.no_grad():
        layer(a)
        assert layer.gemmtune_left
        layer.double().float()
    assert layer.gemmtune_left == {}
    assert gt.restore_(layer) == 1
    assert not {"gemmtune_left", "gemmtune_whose", "gemmtune_pack"} & set(vars(layer))


def test_gradients_that_torch_makes_are_told_of_while_a_model_trains(
    made: Callable[..., Any], pack: Pack, numbers: Any
) -> None:
    a = numbers(8, 16)
    with torch.no_grad():
        key = made().eval().gemmtune_pack
        made().eval()(a)
        assert len(gt.served(key)) == 1
    other = made(host_us=20)
    with torch.no_grad():
        other(a)
    assert len(gt.served(other.gemmtune_pack)) == 3
    assert all(who.startswith("torch: ") for who in gt.served(other.gemmtune_pack).values())


@pytest.mark.parametrize("strict", [False, True])
def test_a_compiled_layer_on_the_cpu_is_torchs_own(strict: bool, pack: Pack, numbers: Any) -> None:
    """Without a GPU to hand: a call of ours would cost what it cannot save; one that is to raise does."""
    torch._dynamo.reset()
    layer, a, nodes = torch.nn.Linear(16, 32, bias=False), numbers(8, 16), []

    def backend(graph: Any, examples: Any) -> Any:
        from torch._functorch.aot_autograd import aot_module_simplified

        def compiler(inner: Any, _: Any) -> Any:
            nodes.extend(str(node.target) for node in inner.graph.nodes if node.op == "call_function")
            return inner

        return aot_module_simplified(graph, examples, fw_compiler=compiler)

    gt.optimize_(layer, pack, strict=strict)
    with torch.no_grad():
        compiled = torch.compile(layer, backend=backend, fullgraph=True)
        if strict:
            with pytest.raises(UnsupportedError, match="is on cpu"):
                compiled(a)
        else:
            with pytest.warns(gt.PackWarning, match="is on cpu"):
                compiled(a)
            torch.testing.assert_close(compiled(a), a @ layer.weight.T)
            assert "gemmtune.linear.default" not in nodes
