"""What a user would run otherwise: one baseline a problem kind, usable by the tuner and by a pack's runtime alike.

Baseline of a GEMM: ``cublasGemmEx`` on the installed libcublas, fp32 accumulation (TF32 off for fp32, on for tf32),
32 MiB of workspace. Alpha and beta go through GemmEx, preceded by the copy of C into D. Types that GemmEx does not
combine go through fp32: operands of two types are widened first, an output type it lacks is converted last.

Of a GEMM with a bias: one call of cuBLASLt that adds it (:mod:`gemmtune.device.fused`), as
``torch.nn.functional.linear`` makes it. GemmEx with an elementwise kernel after it takes its place where torch, too,
does not fuse: operands of two types, an output of neither their type nor fp32, a size of 1, and what the library says
at its first launch that it does not compute.

Both are called ``cublas`` in tables: cuBLASLt is a part of cuBLAS, which of its calls serves is known only once it has
been launched, and whoever reads result files asks for the vendor's own choice, whatever the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gemmtune.device.cublas import COMPUTE_32F, COMPUTE_32F_FAST_TF32, GemmCall, Handle, handle_of
from gemmtune.device.elementwise import Finish
from gemmtune.device.fused import FusedBias, addresses_of, fusible
from gemmtune.device.scratch import allocate
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.problem import Problem

_OUTPUTS = {"float32": ("float32",), "float16": ("float16", "float32"), "bfloat16": ("bfloat16", "float32")}
"""Output types that GemmEx combines with operands of a type, at fp32 compute (cuBLAS documentation, cublasGemmEx)."""


class Baseline(Protocol):
    """The vendor's way to compute one problem."""

    @property
    def name(self) -> str:
        """Short name for tables."""
        ...

    def launch(self, pointers: Mapping[str, int], stream: int = 0, scalars: Mapping[str, float] | None = None) -> None:
        """Enqueue the whole computation on a stream of the current device.

        The first call on a stream allocates what it needs; later calls, so also those under capture, allocate nothing.

        Args:
            pointers: device addresses by tensor name.
            stream: address of the stream.
            scalars: values of the problem's scalars (alpha, beta); 1 and 0 where not given.

        Raises:
            LaunchError: the library refuses, or an address is missing.
            ToolchainError: the library is not installed.
        """
        ...


class CublasGemm:
    """GemmEx for one :class:`Gemm`, its bias added after; may be used on several streams, each with its own scratch.

    Args:
        problem: sizes, types, layout, pitches and epilogue.
        handles: gives the handle of a stream; replaced in tests.
    """

    name = "cublas"

    def __init__(self, problem: Gemm, handles: Callable[[int], Handle] = handle_of) -> None:
        self._problem = problem
        self._handles = handles
        tensors = {t.name: t for t in problem.tensors()}
        self._a, self._b, self._d = tensors["a"], tensors["b"], tensors["d"]
        a_type, b_type, self._out = problem.a.numpy, problem.b.numpy, problem.out.numpy
        self._widen = a_type != b_type
        operand = "float32" if self._widen else a_type
        self._types = (operand, operand)
        self._convert = self._out not in _OUTPUTS[operand]
        tf32 = "tf32" in (problem.dtype, problem.b_dtype)
        self._compute = COMPUTE_32F_FAST_TF32 if tf32 else COMPUTE_32F
        self._calls: dict[tuple[float, float], GemmCall] = {}
        self._temporaries: dict[tuple[int, int, str], Any] = {}

    def launch(self, pointers: Mapping[str, int], stream: int = 0, scalars: Mapping[str, float] | None = None) -> None:
        """See :class:`Baseline`."""
        alpha, beta = (scalars.get("alpha", 1.0), scalars.get("beta", 0.0)) if scalars else (1.0, 0.0)
        a, b, d = addresses_of(self._problem, pointers, "a", "b", "d")
        bias = addresses_of(self._problem, pointers, "bias")[0] if self._problem.epi.reads_bias else 0
        c = addresses_of(self._problem, pointers, "c")[0] if self._problem.epi.reads_c and beta != 0 else 0
        if self._widen:
            a, b = self._widened(stream, "a", a), self._widened(stream, "b", b)
        handle = self._handles(stream)
        if self._convert:
            d32 = self._temporary(stream, "d", self._problem.m * self._problem.n * 4)
            handle.gemm(self._call(alpha, 0.0), a, b, d32)
            self._finish(beta if c else 0.0, "float32", self._problem.n).launch(stream, d32, d, c, bias)
            return
        row = bool(bias) and self._problem.m == 1  # as torch does it: a copy costs less than a kernel that adds
        if c or row:
            self._copy(bias if row else c, d, stream)
        handle.gemm(self._call(alpha, 1.0 if row else beta if c else 0.0), a, b, d)
        if bias and not row:
            self._finish(0.0, self._out, self._d.ld).launch(stream, d, d, 0, bias)

    # -------------------------------------------------------------------------------------------------- internals

    def _call(self, alpha: float, beta: float) -> GemmCall:
        call = self._calls.get((alpha, beta))
        if call is None:
            p = self._problem
            pitches = (self._a.shape[1], self._b.shape[1]) if self._widen else (self._a.ld, self._b.ld)
            d_type, d_pitch = ("float32", p.n) if self._convert else (self._out, self._d.ld)
            call = GemmCall(
                p.layout, (p.m, p.n, p.k), (*pitches, d_pitch), (*self._types, d_type), self._compute, alpha, beta
            )
            if len(self._calls) >= 64:  # a program that changes alpha in every call must not grow for ever
                self._calls.clear()
            self._calls[alpha, beta] = call
        return call

    def _finish(self, beta: float, source: str, pitch: int) -> Finish:
        return Finish((self._problem.m, self._problem.n), (source, pitch), (self._out, self._d.ld), beta)

    def _widened(self, stream: int, name: str, address: int) -> int:
        """An operand as packed fp32, for products of two operand types."""
        tensor = self._a if name == "a" else self._b
        target = self._temporary(stream, name, 4 * tensor.shape[0] * tensor.shape[1])
        finish = Finish(tensor.shape, (tensor.dtype.numpy, tensor.ld), ("float32", tensor.shape[1]))
        finish.launch(stream, address, target)
        return target

    def _temporary(self, stream: int, name: str, nbytes: int) -> int:
        key = (int(require_cupy().cuda.runtime.getDevice()), stream, name)
        if key not in self._temporaries:
            self._temporaries[key] = allocate(nbytes)
        return int(self._temporaries[key].ptr)

    def _copy(self, source: int, target: int, stream: int) -> None:
        """D = C, row by row: cuBLAS adds to what D holds."""
        runtime = require_cupy().cuda.runtime
        size = self._problem.out.bytes
        pitch, width = self._d.ld * size, self._problem.n * size
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpy2DAsync(target, pitch, source, pitch, width, self._problem.m, kind, stream)


def _gemm(problem: Problem) -> Baseline:
    if not isinstance(problem, Gemm):
        raise UnsupportedError(f"Problem {problem.key} calls itself a gemm but is a {type(problem).__name__}.")
    unfused = CublasGemm(problem)
    return FusedBias(problem, unfused) if fusible(problem) else unfused


_REGISTRY: dict[str, Callable[[Problem], Baseline]] = {"gemm": _gemm}


def register_baseline(kind: str, make: Callable[[Problem], Baseline]) -> None:
    """Give a problem kind its baseline."""
    _REGISTRY[kind] = make


def baseline_for(problem: Problem) -> Baseline:
    """The baseline of a problem.

    Raises:
        UnsupportedError: its kind has none.
    """
    make = _REGISTRY.get(problem.kind)
    if make is None:
        raise UnsupportedError(
            f"Problems of kind {problem.kind!r} have no baseline: known are {', '.join(sorted(_REGISTRY))}."
        )
    return make(problem)
