"""Epilogues: what happens to the fp32 accumulators on their way out, D = epilogue(A . B).

One entry here and one branch in ``codegen/templates/common/gemm.cuh.j2`` add an epilogue to every family at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemmtune.space.errors import UnknownNameError


@dataclass(frozen=True)
class Epilogue:
    """``formula`` for people; the extra operands it reads: scalars (fp32), a C of D's shape and dtype, a bias [N]."""

    name: str
    formula: str
    scalars: tuple[str, ...] = ()
    reads_c: bool = False
    reads_bias: bool = False


EPILOGUES: dict[str, Epilogue] = {
    e.name: e
    for e in (
        Epilogue("identity", "D = A.B"),
        Epilogue("alpha_beta", "D = alpha * A.B + beta * C", scalars=("alpha", "beta"), reads_c=True),
        Epilogue("bias", "D = A.B + bias[n]", reads_bias=True),
    )
}


def epilogue(name: str) -> Epilogue:
    """The epilogue called ``name``; raises :class:`UnknownNameError` listing the known ones."""
    try:
        return EPILOGUES[name]
    except KeyError:
        raise UnknownNameError(f"Unknown epilogue {name!r}: choose one of {', '.join(EPILOGUES)}.") from None
