"""The GEMM problem: D[M,N] = epilogue(A[M,K] . B[K,N]), with BLAS layout letters.

The first letter is A's: ``n`` stores A as [M,K], ``t`` as [K,M]. The second is B's: ``n`` stores B as [K,N], ``t`` as
[N,K]; ``nt`` is the ``nn.Linear`` case. All matrices are row-major with a leading dimension (row pitch) in elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

from gemmtune.space.dtypes import DTYPES, FP32, DType, dtype
from gemmtune.space.epilogue import Epilogue, epilogue
from gemmtune.space.errors import ProblemError
from gemmtune.space.problem import Array, ErrorBound, Tensor, register_problem

LAYOUTS = ("nt", "nn", "tn", "tt")
OUTPUTS = ("fp32", "fp16", "bf16")
_DEFAULT_OUTPUT = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16", "bf16": "bf16"}


@dataclass(frozen=True)
class Gemm:
    """One matrix product.

    Args:
        m, n, k: sizes, positive.
        dtype: element type of A and B: fp32, tf32 (fp32 storage), fp16, bf16. ``b_dtype`` where B's differs.
        out_dtype: fp32, fp16 or bf16; by default A's own (fp32 for tf32).
        layout: nt, nn, tn or tt.
        epilogue: see :mod:`gemmtune.space.epilogue`.
        lda, ldb, ldd: row pitches in elements; 0 means packed.

    Raises:
        ProblemError: a size or pitch that is not a positive integer, a layout or dtype that does not exist, or
            operands whose offsets pass 2**63 bytes.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    out_dtype: str = ""
    layout: str = "nt"
    epilogue: str = "identity"
    lda: int = 0
    ldb: int = 0
    ldd: int = 0
    b_dtype: str = ""

    kind: ClassVar[str] = "gemm"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise ProblemError(
                    f"Size {name} must be an integer, but is {value!r}: write the shape as MxNxK, e.g. 512x512x512."
                )
            if value < 1:
                raise ProblemError(f"Size {name} must be at least 1, but is {value}.")
            object.__setattr__(self, name, int(value))
        if self.layout not in LAYOUTS:
            raise ProblemError(f"Layout {self.layout!r} does not exist: choose one of {', '.join(LAYOUTS)}.")
        if self.dtype not in DTYPES:
            raise ProblemError(f"Dtype {self.dtype!r} does not exist: choose one of {', '.join(DTYPES)}.")
        if not self.out_dtype:
            object.__setattr__(self, "out_dtype", _DEFAULT_OUTPUT[self.dtype])
        if not self.b_dtype:
            object.__setattr__(self, "b_dtype", self.dtype)
        if self.b_dtype not in DTYPES:
            raise ProblemError(f"Dtype {self.b_dtype!r} of B does not exist: choose one of {', '.join(DTYPES)}.")
        if self.out_dtype not in OUTPUTS:
            raise ProblemError(f"Output dtype {self.out_dtype!r} does not exist: choose one of {', '.join(OUTPUTS)}.")
        try:
            epilogue(self.epilogue)
        except LookupError as error:
            raise ProblemError(str(error)) from None
        for name, (_, columns) in (("lda", self._shape_a), ("ldb", self._shape_b), ("ldd", (self.m, self.n))):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or (pitch := int(value)) < 0:
                raise ProblemError(f"Leading dimension {name} must be a positive integer, but is {value!r}.")
            if pitch == columns:  # the packed pitch has one spelling, so that equal problems have equal keys
                object.__setattr__(self, name, 0)
            elif 0 < pitch < columns:
                raise ProblemError(f"Leading dimension {name} is {pitch}, less than the {columns} elements of a row.")
        for t in self.tensors():
            if t.elements * t.dtype.bytes >= 2**63:
                raise ProblemError(
                    f"Tensor {t.name} of {t.shape[0]} x {t.shape[1]} {t.dtype.name} would pass 2**63 bytes: "
                    f"offsets would overflow; use smaller sizes."
                )

    # ------------------------------------------------------------------------------------------------ description

    @property
    def _shape_a(self) -> tuple[int, int]:
        return (self.m, self.k) if self.layout[0] == "n" else (self.k, self.m)

    @property
    def _shape_b(self) -> tuple[int, int]:
        return (self.k, self.n) if self.layout[1] == "n" else (self.n, self.k)

    @property
    def a(self) -> DType:
        """Element type of A."""
        return dtype(self.dtype)

    @property
    def b(self) -> DType:
        """Element type of B."""
        return dtype(self.b_dtype)

    @property
    def out(self) -> DType:
        """Element type of D (and C)."""
        return dtype(self.out_dtype)

    @property
    def epi(self) -> Epilogue:
        """The epilogue."""
        return epilogue(self.epilogue)

    @property
    def key(self) -> str:
        """E.g. ``gemm 512x512x512 bf16 nt``, then what differs from the defaults."""
        parts = [self.kind, f"{self.m}x{self.n}x{self.k}", self.dtype, self.layout]
        if self.b_dtype != self.dtype:
            parts.append(f"b={self.b_dtype}")
        if self.out_dtype != _DEFAULT_OUTPUT[self.dtype]:
            parts.append(f"out={self.out_dtype}")
        if self.epilogue != "identity":
            parts.append(f"epilogue={self.epilogue}")
        parts += [f"{name}={v}" for name in ("lda", "ldb", "ldd") if (v := getattr(self, name))]
        return " ".join(parts)

    def __str__(self) -> str:
        return self.key

    @property
    def axes(self) -> Mapping[str, int]:
        """m, n and k."""
        return {"m": self.m, "n": self.n, "k": self.k}

    @property
    def flops(self) -> int:
        """2 M N K."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """A, B (and C, bias) read once, D written once."""
        return sum(t.bytes for t in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        """a, b, then c and bias where the epilogue reads them, then d."""
        d_pitch = self.ldd or self.n
        out = [
            Tensor("a", self.a, self._shape_a, self.lda or self._shape_a[1]),
            Tensor("b", self.b, self._shape_b, self.ldb or self._shape_b[1]),
        ]
        if self.epi.reads_c:
            out.append(Tensor("c", self.out, (self.m, self.n), d_pitch))
        if self.epi.reads_bias:
            out.append(Tensor("bias", self.out, (1, self.n), self.n))
        out.append(Tensor("d", self.out, (self.m, self.n), d_pitch, output=True))
        return tuple(out)

    def environment(self) -> dict[str, Any]:
        """Axes, ``lda ldb ldd ldc``, ``dtype b_dtype out_dtype layout epilogue`` and bytes ``size_a size_b size_d``."""
        by_name = {t.name: t for t in self.tensors()}
        return {
            **self.axes,
            "lda": by_name["a"].ld,
            "ldb": by_name["b"].ld,
            "ldd": by_name["d"].ld,
            "ldc": by_name["d"].ld,
            "dtype": self.dtype,
            "b_dtype": self.b_dtype,
            "out_dtype": self.out_dtype,
            "layout": self.layout,
            "epilogue": self.epilogue,
            "size_a": self.a.bytes,
            "size_b": self.b.bytes,
            "size_d": self.out.bytes,
        }

    def with_axes(self, **axes: int) -> Gemm:
        """The same problem at other sizes; explicit pitches stay only while they still fit (else packed).

        Raises:
            ProblemError: an axis that a GEMM does not have, or a size out of range.
        """
        sizes = {**self.axes, **axes}
        if len(sizes) > len(self.axes):
            raise ProblemError(f"A GEMM has the axes m, n and k, but {', '.join(sorted(axes))} were given.")
        packed = replace(self, lda=0, ldb=0, ldd=0, m=sizes["m"], n=sizes["n"], k=sizes["k"])
        columns = {"lda": packed._shape_a[1], "ldb": packed._shape_b[1], "ldd": packed.n}
        keep = {name: v if (v := getattr(self, name)) > least else 0 for name, least in columns.items()}
        return replace(packed, lda=keep["lda"], ldb=keep["ldb"], ldd=keep["ldd"])

    # ------------------------------------------------------------------------------------------------- arithmetic

    def inputs(self, seed: int) -> dict[str, Array]:
        """Standard normal A, B, C and bias (rounded to their storage type; tf32 inputs are full fp32), alpha, beta."""
        import numpy as np

        rng = np.random.default_rng(seed)
        arrays: dict[str, Array] = {}
        for t in self.tensors():
            if not t.output:
                arrays[t.name] = rng.standard_normal(t.shape, dtype=np.float32).astype(t.dtype.np)
        for name, value in zip(self.epi.scalars, (1.25, -0.5), strict=False):
            arrays[name] = np.asarray(value, np.float32)
        return arrays

    def reference(self, arrays: Mapping[str, Array], rows: Array, columns: Array) -> tuple[Array, Array]:
        """float64 D and scale |A| |B| (+ |C|, |bias|) at ``rows`` x ``columns``.

        NaN and infinity pass through as IEEE says.
        """
        import numpy as np

        a = arrays["a"][rows, :] if self.layout[0] == "n" else arrays["a"][:, rows].T
        b = arrays["b"][:, columns] if self.layout[1] == "n" else arrays["b"][columns, :].T
        a64, b64 = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            d, scale = a64 @ b64, np.abs(a64) @ np.abs(b64)
            if self.epi.scalars:
                alpha, beta = float(arrays["alpha"]), float(arrays["beta"])
                d, scale = alpha * d, abs(alpha) * scale
                if beta != 0:  # beta = 0 ignores C, NaN and all, as BLAS does
                    c = arrays["c"][np.ix_(rows, columns)].astype(np.float64)
                    d, scale = d + beta * c, scale + abs(beta) * np.abs(c)
            if self.epi.reads_bias:
                bias = arrays["bias"][0, columns].astype(np.float64)
                d, scale = d + bias, scale + np.abs(bias)
        return d, scale

    def error_bound(self) -> ErrorBound:
        """Rounding-error bound of an fp32-accumulating GEMM on random data.

        Accumulation: the probabilistic bound lambda * sqrt(K) * u of Higham and Mary (2019, "A new approach to
        probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5)) with u = 2**-23, since tensor cores truncate
        where FMA rounds, plus 16 u for short sums. The worst case K u would let a dropped product go unnoticed at
        large K. tf32 adds the rounding of both inputs (u = 2**-11 each), which averages out over K in the same way.
        """
        u = 2.0**-23
        accumulation = u * (16 + 2 * math.sqrt(self.k))
        if "tf32" in (self.dtype, self.b_dtype):
            accumulation += 2 * DTYPES["tf32"].roundoff * min(1.0, 6 / math.sqrt(self.k))
        rounding = self.out.roundoff if self.out is not FP32 else 2.0**-24
        return ErrorBound(accumulation=accumulation, rounding=rounding)

    # ------------------------------------------------------------------------------------------------------- JSON

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return {
            "kind": self.kind,
            **self.axes,
            "dtype": self.dtype,
            "b_dtype": self.b_dtype,
            "out_dtype": self.out_dtype,
            "layout": self.layout,
            "epilogue": self.epilogue,
            "lda": self.lda,
            "ldb": self.ldb,
            "ldd": self.ldd,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gemm:
        """Read what :meth:`to_json` wrote."""
        return cls(**{name: value for name, value in data.items() if name != "kind"})


register_problem(Gemm.kind, Gemm.from_json)
