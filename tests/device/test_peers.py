"""Peers: ready where installed and able, else a typed error that says why; those of torch see our memory."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gemmtune.device import peers
from gemmtune.device.peers import Tensors, check_peers, known_peers, make_peer
from gemmtune.space.errors import ToolchainError, UnknownNameError, UnsupportedError
from gemmtune.space.gemm import Gemm

PLACES = {"a": 0x1000, "b": 0x2000, "d": 0x3000}
OTHER = {"a": 0x4000, "b": 0x5000, "d": 0x6000}


class Matrix:
    """A torch tensor over someone's memory."""

    def __init__(self, interface: dict[str, Any], kind: str = "", transposed: bool = False) -> None:
        self.interface, self.kind, self.transposed = interface, kind, transposed
        self.copied: Any = None

    def view(self, kind: str) -> Matrix:
        return Matrix(self.interface, kind)

    def t(self) -> Matrix:
        return Matrix(self.interface, self.kind, not self.transposed)

    def copy_(self, other: Any) -> None:
        self.copied = other


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A torch that only writes down what it is asked for."""
    fake: Any = ModuleType("torch")
    fake.bfloat16 = "bfloat16"
    fake.as_tensor = lambda holder, device: Matrix(holder.__cuda_array_interface__)
    fake.streams = []
    fake.cuda = SimpleNamespace(ExternalStream=lambda s: s, stream=lambda s: fake.streams.append(s) or nullcontext())
    fake.no_grad = nullcontext
    fake.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=None)))
    fake.mm = lambda a, b: ("product", a, b)
    fake.compiled = []

    def compile_(function: Any, **settings: Any) -> Any:
        fake.compiled.append(settings)
        return function

    fake.compile = compile_
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    return fake


def test_names_are_known_or_refused() -> None:
    assert known_peers() == ("cublaslt16", "triton", "deepgemm")
    check_peers(["triton", "naive"], ["naive"])
    with pytest.raises(UnknownNameError, match="Unknown peer 'cutlass': known are cublaslt16, triton, deepgemm"):
        make_peer("cutlass", Gemm(8, 8, 8), PLACES, {})


@pytest.mark.parametrize("name", ["triton", "deepgemm"])
def test_what_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in ("torch", "triton", "deep_gemm"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ToolchainError, match=f"The peer {name} needs torch, which cannot be imported"):
        make_peer(name, Gemm(8, 8, 8), PLACES, {})


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("triton", Gemm(8, 8, 8, epilogue="bias")),
        ("triton", Gemm(8, 8, 8, "bf16", "fp32")),
        ("triton", Gemm(8, 8, 8, "fp16", b_dtype="bf16")),
        ("deepgemm", Gemm(8, 8, 8, "fp16")),
        ("deepgemm", Gemm(8, 8, 8, epilogue="alpha_beta")),
        ("cublaslt16", Gemm(8, 8, 8, "fp16", b_dtype="bf16")),
    ],
)
def test_problems_that_a_peer_does_not_take_are_refused(torch: Any, name: str, problem: Gemm) -> None:
    with pytest.raises(UnsupportedError):
        make_peer(name, problem, PLACES, {})
    strange: Any = SimpleNamespace(kind="convolution")
    with pytest.raises(UnsupportedError, match="'convolution'"):
        make_peer(name, strange, PLACES, {})


def test_cublaslt16_has_a_way_for_each_heuristic(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []

    class Lt:
        def __init__(self, problem: Gemm, scalars: Any) -> None:
            assert scalars == {"alpha": 2.0}

        def heuristics(self, pointers: Any) -> list[str]:
            assert pointers == PLACES
            return ["first", "second"]

        def launch(self, heuristic: str, pointers: Any, stream: int) -> None:
            launched.append((heuristic, pointers["a"], stream))

    monkeypatch.setattr(peers, "LtGemm", Lt)
    peer = make_peer("cublaslt16", Gemm(8, 8, 8), PLACES, {"alpha": 2.0})
    assert (peer.name, len(peer.ways)) == ("cublaslt16", 2)
    peer.ways[1].launch(OTHER, 5)
    assert peer.ways[1].deliver is peer.ways[1].launch
    assert launched == [("second", 0x4000, 5)]


@pytest.mark.parametrize(
    ("dtype", "typestr", "size", "seen"),
    [("bf16", "<i2", 2, "bfloat16"), ("fp16", "<f2", 2, ""), ("tf32", "<f4", 4, "")],
)
def test_tensors_lie_over_our_memory_with_its_pitches(
    torch: Any, dtype: str, typestr: str, size: int, seen: str
) -> None:
    problem = Gemm(4, 6, 8, dtype, layout="nt", lda=10, ldd=7)
    tensors = Tensors(torch, problem)
    made = tensors.of(PLACES)
    assert made["a"].interface == {
        "shape": (4, 8), "strides": (10 * size, size), "typestr": typestr, "data": (0x1000, False), "version": 2,
    }  # fmt: skip
    assert (made["b"].interface["shape"], made["d"].interface["strides"]) == ((6, 8), (7 * size, size))
    assert made["a"].kind == seen
    assert tensors.of(PLACES) is made
    assert tensors.of(OTHER)["d"].interface["data"] == (0x6000, False)


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_triton_multiplies_what_the_layout_says_on_the_given_stream(torch: Any, layout: str) -> None:
    (way,) = make_peer("triton", Gemm(4, 6, 8, "tf32", layout=layout), PLACES, {}).ways
    assert torch.backends.cuda.matmul.allow_tf32 is True
    assert torch.compiled[0]["options"]["max_autotune_gemm_backends"] == "TRITON"
    way.launch(PLACES, 5)
    way.deliver(OTHER, 6)
    assert torch.streams == [5, 6]
    made = way.launch.__closure__  # the tensors are kept by the way
    assert made is not None
    found = next(cell.cell_contents for cell in made if isinstance(cell.cell_contents, Tensors))
    assert found.of(PLACES)["d"].copied is None
    _, a, b = found.of(OTHER)["d"].copied
    assert (a.transposed, b.transposed) == (layout[0] == "t", layout[1] == "t")


def test_fp32_is_not_multiplied_in_tf32(torch: Any) -> None:
    make_peer("triton", Gemm(4, 6, 8, "fp32"), PLACES, {})
    assert torch.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_deepgemm_is_called_by_its_own_name_for_the_layout(
    torch: Any, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    module: Any = ModuleType("deep_gemm")
    monkeypatch.setitem(sys.modules, "deep_gemm", module)
    with pytest.raises(UnsupportedError, match=f"no bf16_gemm_{layout}"):
        make_peer("deepgemm", Gemm(4, 6, 8, layout=layout), PLACES, {})
    calls: list[Any] = []
    setattr(module, f"bf16_gemm_{layout}", lambda a, b, d: calls.append((a, b, d)))
    (way,) = make_peer("deepgemm", Gemm(4, 6, 8, layout=layout), PLACES, {}).ways
    way.deliver(OTHER, 4)
    assert [m.interface["data"][0] for m in calls[0]] == [0x4000, 0x5000, 0x6000]
    assert torch.streams == [4]
