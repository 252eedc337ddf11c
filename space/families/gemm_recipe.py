"""What the launch recipes of all GEMM families share: argument order, tile order, alignment preconditions.

The argument order is that of the macro ``parameters`` in ``codegen/templates/common/gemm.cuh.j2``.
"""

from __future__ import annotations

from gemmtune.space.constraint import Constraint
from gemmtune.space.errors import UnsupportedError
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import Gpu
from gemmtune.space.problem import Problem
from gemmtune.space.recipe import Argument, Precondition, Tile

THREADS = Constraint(
    "threads",
    "threads <= threads_per_block and threads * blocks <= threads_per_sm",
    "{blocks} blocks of {threads} threads were asked for, but {gpu_name} allows {threads_per_block} a block "
    "and {threads_per_sm} an SM",
)
"""The rule of families with a knob ``blocks``: so many are to be on an SM at once."""


def arguments(problem: Gemm, *, workspace: bool = False) -> tuple[Argument, ...]:
    """Kernel arguments in order: pointers, m, pitches, the epilogue's operands, then workspace and counters."""
    out = [
        Argument("pointer", "a"),
        Argument("pointer", "b"),
        Argument("pointer", "d"),
        Argument("scalar", "m", "i32", "m"),
        Argument("scalar", "lda", "i64", "lda"),
        Argument("scalar", "ldb", "i64", "ldb"),
        Argument("scalar", "ldd", "i64", "ldd"),
    ]
    if problem.epi.reads_c:
        out += [Argument("pointer", "c"), Argument("scalar", "ldc", "i64", "ldc")]
    out += [Argument("scalar", name, "f32") for name in problem.epi.scalars]
    if problem.epi.reads_bias:
        out.append(Argument("pointer", "bias"))
    if workspace:
        out += [Argument("workspace"), Argument("counters")]
    return tuple(out)


def grid(bm: int, bn: int, splits: int = 1) -> tuple[str, str, str]:
    """One block a tile in x, the splits of K in z."""
    return f"ceil_div(m, {bm}) * ceil_div(n, {bn})", "1", str(splits)


def tile(bm: int, bn: int, group: int) -> Tile:
    """Origin of block ``bx``: the arithmetic of ``tile_of`` in the template, as expressions."""
    tiles_n = f"ceil_div(n, {bn})"
    if group == 1:
        return Tile(bm, bn, f"bx // {tiles_n} * {bm}", f"bx % {tiles_n} * {bn}")
    width = f"({group} * {tiles_n})"
    first = f"(bx // {width} * {group})"
    rows = f"min(ceil_div(m, {bm}) - {first}, {group})"
    inside = f"(bx % {width})"
    return Tile(bm, bn, f"({first} + {inside} % {rows}) * {bm}", f"({inside} // {rows}) * {bn}")


def aligned(name: str, size: int, elements: int) -> tuple[Precondition, ...]:
    """Tensor ``name`` (a, b, d or c) is accessed ``elements`` at a time: its address and pitch must be multiples."""
    if elements == 1:
        return ()
    return (
        Precondition(
            f"ptr_{name} % {size * elements} == 0",
            f"the address of {name} is not a multiple of {size * elements} bytes",
        ),
        Precondition(
            f"ld{name} % {elements} == 0", f"the leading dimension of {name} is not a multiple of {elements} elements"
        ),
    )


RUNTIME_M = Precondition("m >= 1 and m < 2147483648 - 1024", "m is out of the range of a 32-bit row index")


def unsupported(problem: Problem, gpu: Gpu, family: str, capability: tuple[int, int]) -> str | None:
    """What no GEMM kernel of ours can do: other problems, older GPUs, sizes past the 32-bit indices of a tile."""
    if not isinstance(problem, Gemm):
        return f"{family} computes GEMMs, not problems of kind {problem.kind!r}"
    if gpu.capability < capability:
        have, need = (".".join(map(str, c)) for c in (gpu.capability, capability))
        return f"{family} needs compute capability {need}, but {gpu.name} has {have}"
    for name, size in problem.axes.items():
        if size >= 2**31 - 1024:
            return f"{family} indexes {name} with 32 bits, but {name} is {size}: split the problem"
    return None


def as_gemm(problem: Problem) -> Gemm:
    """``problem``, known to be a GEMM.

    Raises:
        UnsupportedError: it is of another kind.
    """
    if not isinstance(problem, Gemm):
        raise UnsupportedError(
            f"A GEMM kernel cannot be planned for a problem of kind {problem.kind!r}: give it a Gemm."
        )
    return problem
