"""The recorded kernel that a command line means: by a name of its own, or as the best one for a shape."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from gemmtune.cli import inputs

if TYPE_CHECKING:
    from gemmtune.db import History, TrialRecord

Kernel = Annotated[
    str,
    typer.Argument(
        metavar="KERNEL",
        help="A trial's id (17), study.trial (3.12), the start of a uuid or cubin hash, or MxNxK for its best kernel.",
    ),
]
Trial = Annotated[
    str,
    typer.Argument(
        metavar="TRIAL", help="A trial's id (17), study.trial (3.12), or the start of a uuid or cubin hash."
    ),
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="With MxNxK: of this GPU alone, e.g. h200.")]
Regime = Annotated[str | None, typer.Option("--regime", metavar="sustained|burst", help="With MxNxK: timed so.")]
Cache = Annotated[str | None, typer.Option("--cache", metavar="cold|warm", help="With MxNxK: timed so.")]
_SHAPE = re.compile(r"\s*[+-]?\d+\s*[xX×*,].*")


def named(
    history: History,
    text: str,
    *,
    dtype: str = "bf16",
    out_dtype: str | None = None,
    layout: str = "nt",
    epilogue: str = "identity",
    gpu: str | None = None,
    regime: str | None = None,
    cache: str | None = None,
) -> TrialRecord:
    """The trial whose kernel is meant; every option but ``text`` narrows down the best kernel for a shape.

    Raises:
        UnknownNameError: nothing, or more than one thing, is called so.
        ProblemError: a malformed shape, or a dtype, layout or epilogue out of range.
    """
    from gemmtune.search.lookup import best_kernel, find_kernel

    if not _SHAPE.fullmatch(text):
        return find_kernel(history, text)
    (problem,) = inputs.problems([inputs.read_shape(text)], [dtype], out_dtype, layout, epilogue)
    return best_kernel(history, problem, gpu_key=gpu, regime=regime, cache=cache)
