"""A layer that is left to torch is called past nn.Module's own call, and is nn.Linear in all that this does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmtune.torch as gt  # noqa: E402
from gemmtune.pack.runtime import Pack  # noqa: E402
from gemmtune.space.errors import UnsupportedError  # noqa: E402
from gemmtune.torch import swapped  # noqa: E402

Hooks = torch.nn.modules.module


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


def test_a_forward_of_the_layers_own_is_called(made: Callable[..., Any], numbers: Any) -> None:
    """Hooks that offload, adapters and loggers put one in its place, before a layer is used or after."""
    a = numbers(8, 16)
    for used in (False, True):
        layer, called = made(), []
        if used:
            layer(a)
        own = layer.forward
        layer.forward = lambda x, own=own, called=called: (called.append(1), own(x))[1]
        for count in (1, 2, 3):
            assert torch.equal(layer(a), a @ layer.weight.T)
            assert len(called) == count

        class Twice(swapped.Linear):
            def forward(self, input: Any) -> Any:  # noqa: A002
                return super().forward(input) * 2

        other = made()
        if used:
            other(a)
        other.__class__ = Twice
        for _ in range(3):
            assert torch.equal(other(a), 2 * a @ other.weight.T)


@pytest.mark.parametrize("used", [False, True])
def test_traces_see_the_weight_as_it_is(used: bool, made: Callable[..., Any], numbers: Any) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    layer, a = made(), numbers(8, 16)
    if used:
        layer(a)

    def call(parameters: Any, x: Any) -> Any:
        return torch.func.functional_call(layer, parameters, (x,))

    parameters = dict(layer.named_parameters())
    graph = make_fx(call, tracing_mode="symbolic")(parameters, a)
    assert torch.equal(graph(parameters, a), a @ layer.weight.T)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_weights_are_torchs(made: Callable[..., Any], numbers: Any) -> None:
    layer, a = made(), numbers(8, 16)
    wanted = layer(a).detach()
    for kind in ("to_sparse", "to_sparse_csr"):
        other = made()
        other.weight = torch.nn.Parameter(getattr(layer.weight.detach(), kind)(), requires_grad=False)
        torch.testing.assert_close(other(a), wanted)


@pytest.mark.parametrize("between", ["same", "alike"])
def test_a_checkpoint_that_chooses_what_it_saves_computes_the_same_again(
    between: str, host: Any, left_pack: Pack, numbers: Any
) -> None:
    """Whatever the layer, or another of its kind, has learned in between."""
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    host.stream_now = 0
    layer, alike = (torch.nn.Linear(16, 16, bias=False) for _ in range(2))
    for one in (layer, alike):
        gt.optimize_(one, left_pack)
    x = numbers(8, 16, grad=True)
    out = checkpoint(
        lambda z: layer(z).relu(),
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE),
    )
    {"same": layer, "alike": alike}[between](out).sum().backward()
    assert x.grad is not None


def test_an_export_of_a_constant_keeps_the_operator(made: Callable[..., Any], numbers: Any) -> None:
    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.constant = made(), numbers(8, 16)

        def forward(self, x: Any) -> Any:
            return self.layer(self.constant) + x

    model = Constant()
    with torch.no_grad():
        model.layer(model.constant)
    program = torch.export.export(model, (numbers(8, 32),), strict=False)
    assert "gemmtune.linear" in str(program.graph)


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


@pytest.mark.parametrize("strict", [False, True])
def test_a_compiled_layer_on_the_cpu_is_torchs_own(strict: bool, left_pack: Pack, numbers: Any) -> None:
    """Without a GPU to hand: a call of ours would cost what it cannot save; one that is to raise does."""
    torch._dynamo.reset()
    layer, a, nodes = torch.nn.Linear(16, 32, bias=False), numbers(8, 16), []

    def backend(graph: Any, examples: Any) -> Any:
        from torch._functorch.aot_autograd import aot_module_simplified

        def compiler(inner: Any, _: Any) -> Any:
            nodes.extend(str(node.target) for node in inner.graph.nodes if node.op == "call_function")
            return inner

        return aot_module_simplified(graph, examples, fw_compiler=compiler)

    gt.optimize_(layer, left_pack, strict=strict)
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
