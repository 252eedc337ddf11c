"""What layers remember of what they leave to torch, and when that must not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmtune.torch as gt  # noqa: E402
from gemmtune.pack.runtime import Pack  # noqa: E402
from gemmtune.space.gemm import Gemm  # noqa: E402
from gemmtune.torch import swapped  # noqa: E402


def refuses(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Whoever asks these functions fails."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("was asked")

    for name in names:
        monkeypatch.setattr(swapped, name, refused)


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
    monkeypatch.setattr(swapped.Linear, "forward", None)  # nor is anything else
    for grad, autocast in ((False, False), (True, False), (False, True), (True, True)):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
            out = alike(a)
        assert out.requires_grad is grad
        assert out.dtype is (torch.float16 if autocast else torch.float32)
    assert launches.calls == []


@pytest.mark.parametrize("first", ["plain", "graph", "gradients", "autocast"])
def test_what_serves_anywhere_is_left_nowhere(
    first: str, host: Any, launches: Any, numbers: Any, maker: Any, left_pack: Pack
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


def test_what_may_be_computed_in_tf32_is_asked_anew(host: Any, launches: Any, numbers: Any, maker: Any) -> None:
    maker.add(Gemm(8, 32, 16, "tf32"), 1.2, us=1000.0)
    host.stream_now = 0
    layer, a = torch.nn.Linear(16, 32, bias=False), numbers(8, 16)
    gt.optimize_(layer, Pack(maker.data(), "tf32"))
    with torch.no_grad():
        for allowed in (False, True, False, True):
            before = len(launches.calls)
            torch.backends.cuda.matmul.allow_tf32 = allowed
            try:
                layer(a)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False
            assert len(launches.calls) - before == allowed


def test_strided_inputs_do_not_speak_for_others(host: Any, launches: Any, numbers: Any, maker: Any) -> None:
    maker.add(Gemm(8, 32, 16, "fp32", layout="tt"), 1.2, us=1000.0)
    host.stream_now, strided = 0, Pack(maker.data(), "strides")
    for a in (numbers(8, 16), numbers(16, 8).t(), numbers(8, 16)):
        layer = torch.nn.Linear(16, 32, bias=False)
        gt.optimize_(layer, strided)
        before = len(launches.calls)
        with torch.no_grad():
            layer(a)
        assert (len(launches.calls) > before) is not a.is_contiguous()


def test_another_weight_is_another_kind(host: Any, launches: Any, numbers: Any, maker: Any) -> None:
    """As many elements of an input are other rows."""
    maker.add(Gemm(4, 32, 32, "fp32"), 1.2, us=1000.0)
    host.stream_now = 0
    layer = torch.nn.Linear(16, 32, bias=False)
    gt.optimize_(layer, Pack(maker.data(), "weights"))
    with torch.no_grad():
        layer(numbers(8, 16))
        layer.weight = torch.nn.Parameter(numbers(32, 32))
        layer(numbers(4, 32))
    assert len(launches.calls) == 1


@pytest.mark.filterwarnings("ignore::gemmtune.torch.PackWarning")
@pytest.mark.parametrize("wrong", ["bias", "input"])
def test_a_call_that_torch_refuses_teaches_nothing(
    wrong: str, host: Any, launches: Any, numbers: Any, tuned: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.stream_now = 0
    monkeypatch.setattr(host, "index", lambda tensor: -1 if tensor.device.type == "meta" else 0)
    layer, alike = (torch.nn.Linear(16, 32) for _ in range(2))
    for one in (layer, alike):
        gt.optimize_(one, tuned)
    a = numbers(8, 16)
    with torch.no_grad():
        if wrong == "bias":
            layer.bias = torch.nn.Parameter(layer.bias.double())
        with pytest.raises(RuntimeError):
            layer(a if wrong == "bias" else a.to("meta"))
        layer.bias = torch.nn.Parameter(alike.bias.float())
        for one in (alike, layer):
            before = len(launches.calls)
            one(a)
            assert len(launches.calls) > before


def test_some_gradients_may_be_worth_what_all_are_not(host: Any, launches: Any, numbers: Any, maker: Any) -> None:
    maker.add(Gemm(8, 32, 16, "fp32"), 1.2, us=10.0)
    maker.add(Gemm(8, 16, 32, "fp32", layout="nn"), 1.2, us=10.0, tag="dgrad")
    maker.add(Gemm(32, 16, 8, "fp32", layout="tn"), 0.8, us=10.0, tag="wgrad")
    host.stream_now = 0
    layer = torch.nn.Linear(16, 32, bias=False)
    gt.optimize_(layer, Pack(maker.data(), "some"), least_ratio=0.5, host_us=3.5)
    layer.weight.requires_grad_(False)
    with torch.no_grad():
        layer(numbers(8, 16))
    assert launches.calls == []
    layer(numbers(8, 16, grad=True)).sum().backward()
    assert len(launches.calls) == 2


def test_what_is_remembered_is_bounded(made: Callable[..., Any], numbers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gemmtune.torch import registry

    monkeypatch.setattr(swapped, "MAX_SHAPES", 4)
    layer = made()
    left = registry._HANDLES[layer.gemmtune_pack].left
    with torch.no_grad():
        for n in range(2, 12):
            layer.weight = torch.nn.Parameter(numbers(n, 16))
            for m in range(1, 10):
                layer(numbers(m, 16))
    assert 1 <= len(left) <= 4
    assert all(1 <= len(known) <= 4 for known in (*left.values(), layer.gemmtune_whose[0]))


def test_gradients_that_torch_makes_are_told_of_while_a_model_trains(
    made: Callable[..., Any], left_pack: Pack, numbers: Any
) -> None:
    a = numbers(8, 16)
    with torch.no_grad():
        key = made().eval().gemmtune_pack
        made().eval()(a)
        assert len(gt.served(key)) == 1
    other = made(host_us=20)
    with torch.no_grad():
        other(a)
    told = gt.served(other.gemmtune_pack)
    assert len(told) == 3
    assert all(who.startswith("torch: ") for who in told.values())
    assert "saves 2.0 us, less than the 20 us that calling ours in eager code" in told["gemm 8x32x16 fp32 nt"]
    assert "of the layer save 4.0 us" in told["gemm 8x16x32 fp32 nn"]


def test_a_graph_takes_what_eager_code_leaves_and_that_is_told(
    host: Any, made: Callable[..., Any], launches: Any, numbers: Any
) -> None:
    layer, a = made(host_us=1000), numbers(8, 16)
    with torch.no_grad():
        layer(a)
        told = gt.served(layer.gemmtune_pack)
        assert told["gemm 8x32x16 fp32 nt"].startswith("torch: the kernel saves 2.0 us")
        host.stream_now, host.capturing = 7, True
        assert torch.equal(layer(a), a @ layer.weight.T)
    assert len(launches.calls) == 1
    assert gt.served(layer.gemmtune_pack)["gemm 8x32x16 fp32 nt"].startswith("kernel")
