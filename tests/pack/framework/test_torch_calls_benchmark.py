"""What of ``benchmarks/torch_calls.py`` needs no GPU: which problems it takes, its calls, memory and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmtune.torch as gt  # noqa: E402
from gemmtune.pack import profile  # noqa: E402
from gemmtune.pack.runtime import Pack  # noqa: E402
from gemmtune.space.gemm import Gemm  # noqa: E402


@pytest.fixture
def script(host: Any, launches: Any, monkeypatch: pytest.MonkeyPatch, load_benchmark: Callable[[str], Any]) -> Any:
    """The script, on a machine that takes CPU tensors for those of a GPU."""
    module = load_benchmark("torch_calls.py")
    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3, 5))
    monkeypatch.setattr(profile, "BATCHES", 1)
    return module


def test_the_smallest_problems_that_torch_can_ask_for(script: Any, maker: Any) -> None:
    for rows in (64, 8, 32, 16):
        maker.add(Gemm(rows, 32, 16, "bf16"), 1.2)
    maker.add(Gemm(4, 32, 16, "bf16", epilogue="bias"), 1.2, tag="bias")
    maker.add(Gemm(2, 32, 16, "bf16"), 0.8, won=False, tag="slow")
    maker.add(Gemm(1, 32, 16, "bf16", out_dtype="fp32"), 1.2, tag="other")
    found = script.smallest(Pack(maker.data(), "sizes"))
    assert [problem.m for problem in found] == [8, 16, 32]
    with pytest.raises(SystemExit, match="no kernel for this GPU"):
        script.smallest(Pack(type(maker)().data(), "empty"))


def test_calls_run_the_kernel_and_memory_is_watched(script: Any, tuned: Any, launches: Any) -> None:
    key = gt.use(tuned, strict=True)
    problem = Gemm(8, 32, 16, "bf16")
    found = script.host(problem, key)
    ways = {"torch.mm", "torch.ops", "gemmtune.torch", "nn.Linear", "swapped nn.Linear"}
    assert set(found) == {*ways, "median turn"}
    assert all(found[way] <= found["median turn"][way] for way in ways)
    assert {kind for kind, *_ in launches.calls} == {"kernel"}
    launches.calls.clear()
    memory = script.memory([script.tensors(problem)], key, 20)
    assert len(launches.calls) == 20
    assert (len(memory["host"]), memory["device"]) == (3, [2, 2, 2])


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_tensors_have_the_layout_of_the_problem(script: Any, layout: str) -> None:
    from gemmtune.torch.plans import call_of

    call = call_of(*script.tensors(Gemm(8, 32, 16, "bf16", layout=layout)), None, False, 0)
    assert not isinstance(call, str)
    assert call.problem == Gemm(8, 32, 16, "bf16", layout=layout)


def test_every_operator_is_checked_and_its_kernel_too(script: Any, tuned: Any, launches: Any) -> None:
    found = script.opchecks(gt.use(tuned, strict=True), Gemm(8, 32, 16, "fp32"))
    assert set(found) == {"linear tuned", "matmul tuned", "linear", "linear bias", "matmul", "matmul bias"}
    assert {said for one in found.values() for said in one.values()} == {"SUCCESS"}
    assert launches.calls
