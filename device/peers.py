"""Peers: what else computes a product on this machine, timed beside the baseline where it is there.

``cublaslt16`` is the quickest of cuBLASLt's first 16 heuristics, ``triton`` is ``torch.compile`` with Triton's
templates autotuned, ``deepgemm`` is DeepGEMM's bf16 kernel. None of them is ever required: whoever asks for one that
is not installed, or does not take the problem, gets a sentence that says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gemmtune.device.cublaslt import LtGemm
from gemmtune.space.errors import ToolchainError, UnknownNameError, UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Problem

Launch = Callable[[Mapping[str, int], int], None]
"""Enqueues the product of the operands at these addresses on the stream of this address."""


@dataclass(frozen=True)
class Way:
    """One way to compute a problem. ``launch`` is what is timed; it may leave the result in memory of its own.
    ``deliver`` computes the same and sees to it that the result is in D.
    """

    launch: Launch
    deliver: Launch


@dataclass(frozen=True)
class Peer:
    """``ways`` to compute one problem, at least one; the quickest of them is the peer's time."""

    name: str
    ways: Sequence[Way]


def known_peers() -> tuple[str, ...]:
    """The names of all peers."""
    return tuple(_MAKERS)


def check_peers(names: Sequence[str], more: Sequence[str] = ()) -> None:
    """Make sure that every name is a peer's, or one of ``more``.

    Raises:
        UnknownNameError: one is neither.
    """
    for name in names:
        if name not in (*_MAKERS, *more):
            raise UnknownNameError(f"Unknown peer {name!r}: known are {', '.join((*_MAKERS, *more))}.")


def make_peer(name: str, problem: Problem, pointers: Mapping[str, int], scalars: Mapping[str, float]) -> Peer:
    """A peer made ready for a problem, which may take seconds (compilers, autotuners).

    Args:
        name: one of :func:`known_peers`.
        problem: what it is to compute.
        pointers: addresses of operands to try itself on; later ones must be at least as aligned.
        scalars: values of alpha and beta.

    Raises:
        UnknownNameError: there is no peer of this name.
        ToolchainError: it is not installed here.
        UnsupportedError: it does not take this problem.
        LaunchError: it fails.
    """
    check_peers([name])
    if not isinstance(problem, Gemm):
        raise UnsupportedError(f"The peer {name} computes matrix products, not problems of kind {problem.kind!r}.")
    return Peer(name, _MAKERS[name](problem, pointers, scalars))


# -------------------------------------------------------------------------------------------------------- cuBLASLt


def _cublaslt16(problem: Gemm, pointers: Mapping[str, int], scalars: Mapping[str, float]) -> list[Way]:
    gemm = LtGemm(problem, scalars)
    launches: list[Launch] = [partial(gemm.launch, one) for one in gemm.heuristics(pointers)]
    return [Way(launch, launch) for launch in launches]


# --------------------------------------------------------------------------------------------------- torch's peers


class Tensors:
    """Torch tensors over the operands at given addresses: as stored, ``a``, ``b`` and ``d`` by name. Copies nothing.

    Args:
        torch: the module.
        problem: shapes, pitches and types.
    """

    def __init__(self, torch: Any, problem: Gemm) -> None:
        self._torch = torch
        self._tensors = [t for t in problem.tensors() if t.name in ("a", "b", "d")]
        self._made: dict[int, dict[str, Any]] = {}

    def of(self, pointers: Mapping[str, int]) -> dict[str, Any]:
        """The tensors over one set of operands, made once."""
        key = pointers["d"]
        if key not in self._made:
            self._made[key] = {t.name: self._tensor(pointers[t.name], t) for t in self._tensors}
        return self._made[key]

    def _tensor(self, address: int, tensor: Any) -> Any:
        # The interface has no bf16: such a tensor is made of 16-bit integers, and then seen as what it is.
        kind = {"float32": "<f4", "float16": "<f2", "bfloat16": "<i2"}[tensor.dtype.numpy]
        size = tensor.dtype.bytes
        interface = {
            "shape": tensor.shape, "strides": (tensor.ld * size, size), "typestr": kind, "data": (address, False),
            "version": 2,
        }  # fmt: skip
        holder = type("DeviceMatrix", (), {"__cuda_array_interface__": interface})()
        made = self._torch.as_tensor(holder, device="cuda")
        return made.view(self._torch.bfloat16) if kind == "<i2" else made


def _triton(problem: Gemm, pointers: Mapping[str, int], scalars: Mapping[str, float]) -> list[Way]:
    if problem.epilogue != "identity" or problem.out_dtype != (
        "fp32" if problem.dtype == "tf32" else problem.dtype
    ) or problem.a != problem.b:  # fmt: skip
        raise UnsupportedError(
            f"The peer triton is timed on plain products with an output of the operands' type, not on {problem.key}."
        )
    torch = _imported("torch", "triton", "pip install torch")
    _imported("triton", "triton", "pip install triton")
    torch.backends.cuda.matmul.allow_tf32 = problem.dtype == "tf32"  # read when the template is compiled
    left, right = problem.layout[0] == "t", problem.layout[1] == "t"

    def product(a: Any, b: Any) -> Any:
        return torch.mm(a.t() if left else a, b.t() if right else b)

    options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "triton.cudagraphs": False}
    compiled = torch.compile(product, fullgraph=True, dynamic=False, options=options)
    tensors = Tensors(torch, problem)

    def launch(pointers: Mapping[str, int], stream: int) -> None:
        it = tensors.of(pointers)
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            compiled(it["a"], it["b"])

    def deliver(pointers: Mapping[str, int], stream: int) -> None:
        it = tensors.of(pointers)
        with torch.no_grad(), torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            it["d"].copy_(compiled(it["a"], it["b"]))

    return [Way(launch, deliver)]


def _deepgemm(problem: Gemm, pointers: Mapping[str, int], scalars: Mapping[str, float]) -> list[Way]:
    if (problem.dtype, problem.b_dtype) != ("bf16", "bf16") or problem.out_dtype not in ("bf16", "fp32"):
        raise UnsupportedError(f"DeepGEMM multiplies bf16 into bf16 or fp32, but this is {problem.key}.")
    if problem.epilogue != "identity":
        raise UnsupportedError(f"DeepGEMM has no epilogue {problem.epilogue!r}.")
    torch = _imported("torch", "deepgemm", "pip install torch")
    module = _imported("deep_gemm", "deepgemm", "install DeepGEMM from its repository")
    gemm = getattr(module, f"bf16_gemm_{problem.layout}", None)
    if gemm is None:
        raise UnsupportedError(f"The installed DeepGEMM has no bf16_gemm_{problem.layout}: version 2.1 or newer does.")
    tensors = Tensors(torch, problem)

    def launch(pointers: Mapping[str, int], stream: int) -> None:
        it = tensors.of(pointers)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            gemm(it["a"], it["b"], it["d"])

    return [Way(launch, launch)]


def _imported(module: str, peer: str, remedy: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # a library that it links against may be missing
        raise ToolchainError(f"The peer {peer} needs {module}, which cannot be imported ({error}): {remedy}.") from None


_MAKERS: dict[str, Callable[[Gemm, Mapping[str, int], Mapping[str, float]], list[Way]]] = {
    "cublaslt16": _cublaslt16,
    "triton": _triton,
    "deepgemm": _deepgemm,
}
