"""The transformers of the model benchmark: decoding agrees with prefill, on a pack too, and compiles in one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmtune.torch as gt  # noqa: E402
from gemmtune.space.gemm import Gemm  # noqa: E402


@pytest.fixture(scope="module")
def small(load_benchmark: Callable[[str], Any]) -> Any:
    return load_benchmark("small_transformers.py")


@pytest.fixture(params=["tiny", "tiny-gpt2"])
def model(small: Any, request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return small.Transformer(small.MODELS[request.param])


@pytest.fixture
def pack(maker: Any) -> Any:
    """A row for the inner layers of both models at the tokens of these tests."""
    from gemmtune.pack.runtime import Pack

    for tokens in (2, 24):
        maker.add(Gemm(tokens, 128, 64, "fp32"), tag="up")
        maker.add(Gemm(tokens, 256, 64, "fp32", epilogue="bias"), tag="up")
    return Pack(maker.data(), "models")


def test_decoding_agrees_with_prefill_on_a_pack_too(model: Any, host: Any, launches: Any, pack: Any) -> None:
    tokens = torch.randint(256, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = model(tokens)
        gt.optimize_(model, pack)
        torch.testing.assert_close(model(tokens), wanted)
        caches = model.caches(2, 16)
        steps = [model(tokens[:, i : i + 1], caches, torch.tensor([i])) for i in range(tokens.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), wanted)
    assert {kind for kind, *_ in launches.calls} == {"kernel"}


def test_a_swapped_model_compiles_in_one_graph_and_trains_alike(
    small: Any, model: Any, host: Any, launches: Any, pack: Any
) -> None:
    tuned = copy.deepcopy(model)
    gt.optimize_(tuned, pack)
    compiled = torch.compile(tuned, fullgraph=True, backend="aot_eager")
    tokens = torch.randint(256, (2, 13), generator=torch.Generator().manual_seed(0))
    losses = [small.loss_of(one, tokens) for one in (model, compiled)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    for (name, plain), swapped in zip(model.named_parameters(), tuned.parameters(), strict=True):
        torch.testing.assert_close(swapped.grad, plain.grad, msg=lambda text, name=name: f"{name}: {text}")
    assert launches.calls


def test_compiled_blocks_share_one_graph_for_each_case(model: Any) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False, backend=counter)
    tokens = torch.zeros(2, 12, dtype=torch.int64)
    caches = model.caches(2, 16)
    with torch.no_grad():
        for _ in range(2):
            model(tokens)
            for i in range(3):
                model(tokens[:, :1], caches, torch.tensor([i]))
    assert counter.frame_count == 2


def test_batches_are_the_same_for_equal_seeds_and_are_real_source(small: Any) -> None:
    data = small.library_bytes(2**18)
    first, again = (list(small.batches(data, 2, 3, 64, 5, "cpu")) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first[0].shape == (3, 64)
    assert b"import" in bytes(data.tolist())
