"""A product with a bias as one call of cuBLASLt, the way frameworks compute it.

``torch.nn.functional.linear`` hands product and bias to cuBLASLt together (``gemm_and_bias`` of ATen): the first
algorithm of the heuristics, which are told how the operands and the bias are aligned, fp32 compute (TF32 for tf32),
the workspace that cuBLAS has too. So does this module, in all but two points: parts of a split K are always added up
in fp32 (torch with ``allow_bf16_reduced_precision_reduction`` off), and what the heuristics said is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gemmtune.device.cublas import RefusedError, workspace_of
from gemmtune.device.cublaslt import Heuristic, LtGemm, lt_of_device, unsupported
from gemmtune.device.driver import relaxed_capture
from gemmtune.device.toolchain import require_cupy
from gemmtune.space.errors import LaunchError
from gemmtune.space.gemm import Gemm

if TYPE_CHECKING:
    from gemmtune.device.baselines import Baseline

_COARSEST = 255
"""Low bits that say how an address is aligned: the heuristics ask no further than 256 bytes."""


def addresses_of(problem: Gemm, pointers: Mapping[str, int], *names: str) -> tuple[int, ...]:
    """The addresses of the named tensors.

    Raises:
        LaunchError: one is missing.
    """
    try:
        return tuple(pointers[name] for name in names)
    except KeyError as error:
        raise LaunchError(f"The baseline of {problem} needs the address of {error}, but got none.") from None


def fusible(problem: Gemm) -> bool:
    """Whether frameworks hand the problem to cuBLASLt: it adds a bias and nothing else, in types that the library
    combines, and no size is 1. Torch keeps sizes of 1 away from cuBLASLt, whose heuristics refuse some of them.
    """
    epilogue = problem.epi
    only_bias = epilogue.reads_bias and not epilogue.reads_c and not epilogue.scalars
    return only_bias and unsupported(problem) is None and min(problem.m, problem.n, problem.k) > 1


def lt_gemm_of(problem: Gemm, stream: int) -> LtGemm:
    """The product on the current device, with the workspace of a stream; allocated where it is the stream's first."""
    return LtGemm(problem, None, lt_of_device(), workspace_of(stream))


class FusedBias:
    """cuBLASLt for one :func:`fusible` problem; may be used on several streams and devices, and from several threads.

    Where the library refuses the problem at addresses aligned as the given ones are (it knows no algorithm, or says
    "invalid value" or "not supported"), ``unfused`` computes it, as torch's own second way does. That is found out by
    the first launch on a device at such addresses, and holds from then on.

    Args:
        problem: sizes, types, layout and pitches.
        unfused: the second way.
        make: makes the product for a stream of the current device; replaced in tests.
    """

    name = "cublas"

    def __init__(self, problem: Gemm, unfused: Baseline, make: Callable[[Gemm, int], LtGemm] = lt_gemm_of) -> None:
        self._problem = problem
        self._unfused = unfused
        self._make = make
        self._gemms: dict[tuple[int, int], LtGemm] = {}
        self._algorithms: dict[tuple[int, ...], Heuristic | None] = {}
        """By device and alignments; None where the library refuses."""

    def launch(self, pointers: Mapping[str, int], stream: int = 0, scalars: Mapping[str, float] | None = None) -> None:
        """See :class:`gemmtune.device.baselines.Baseline`."""
        key = self._key(pointers)
        gemm = self._gemms.get((key[0], stream))
        algorithm = self._algorithms.get(key)
        if gemm is not None and algorithm is not None:
            gemm.launch(algorithm, pointers, stream)
        elif algorithm is None and key in self._algorithms:
            self._unfused.launch(pointers, stream, scalars)
        else:
            with relaxed_capture():  # other addresses than before may come while a graph is captured
                self._first(key, pointers, stream, scalars)

    def is_fused(self, pointers: Mapping[str, int]) -> bool:
        """Whether launches at such addresses are one call of cuBLASLt; known once there was one.

        Raises:
            LaunchError: an address is missing.
        """
        return self._algorithms.get(self._key(pointers)) is not None

    # -------------------------------------------------------------------------------------------------- internals

    def _key(self, pointers: Mapping[str, int]) -> tuple[int, ...]:
        """The device, and the alignment of each tensor in bytes, 0 where it is 256 or more."""
        addresses = addresses_of(self._problem, pointers, "a", "b", "bias", "d")
        device = int(require_cupy().cuda.runtime.getDevice())
        return (device, *(address & -address & _COARSEST for address in addresses))

    def _first(
        self, key: tuple[int, ...], pointers: Mapping[str, int], stream: int, scalars: Mapping[str, float] | None
    ) -> None:
        """The first launch on a stream, or at such addresses."""
        try:
            gemm = self._gemms.get((key[0], stream))
            if gemm is None:
                gemm = self._gemms.setdefault((key[0], stream), self._make(self._problem, stream))
            algorithm = self._algorithms.get(key)
            if algorithm is None:
                (algorithm,) = gemm.heuristics(pointers, 1, sums_in_fp32=True)
            gemm.launch(algorithm, pointers, stream)
        except RefusedError:
            algorithm = None
            self._unfused.launch(pointers, stream, scalars)
        self._algorithms[key] = algorithm
