"""``gemmtune tune``: search, with the course of it on screen, and what to do with the result."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gemmtune.cli import inputs, options, output

if TYPE_CHECKING:
    from gemmtune.device.base import Cache, Regime
    from gemmtune.search.study import StudyResult


def tune(
    shapes: options.Shapes = None,
    m: options.M = None,
    n: options.N = None,
    k: options.K = None,
    shape_files: options.ShapeFiles = None,
    dtype: options.DTypes = None,
    out_dtype: options.OutDType = None,
    layout: options.Layout = "nt",
    epilogue: options.Epilogue = "identity",
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="Search this family alone, e.g. hopper; may be repeated."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option("--trials", metavar="N", help="Trials for each study.  [default: 200; 40 where emulated]"),
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option("--time", metavar="10m", help="Time for the whole command: 90s, 10m, 1h30m.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of everything random.")] = 0,
    strategy: Annotated[
        str, typer.Option("--strategy", metavar="NAME", help="auto, gp, tpe, random or exhaustive.")
    ] = "auto",
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence",
            metavar="P",
            help="End early once the search holds it this likely that nothing is over 1 % faster, e.g. 0.95.",
        ),
    ] = None,
    device: options.Device = None,
    db: options.Database = None,
    regime: options.Regime = "sustained",
    cache: options.Cache = "cold",
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", help="Compile processes.  [default: one a CPU; of 8 or more, all but two]"
        ),
    ] = None,
    compile_timeout: Annotated[
        str, typer.Option("--compile-timeout", metavar="TIME", help="Time one kernel may take to compile.")
    ] = "60s",
) -> None:
    """Find the fastest kernel for one or more shapes.

    Each shape and dtype is a study of its own. Ctrl-C stops cleanly, and the same command goes on.
    """
    wanted = inputs.wanted(shapes or (), m, n, k, shape_files or (), dtype, out_dtype, layout, epilogue)
    seconds = None if time_limit is None else inputs.read_duration(time_limit)

    from gemmtune.cli.display import display
    from gemmtune.db import History
    from gemmtune.search.study import tune as search

    kept = "what was finished is kept, and the same command goes on."
    with (
        output.interruptible(lambda: kept),
        History(db) as history,
        display(len(wanted), seconds) as progress,
    ):
        results = search(
            wanted,
            device,
            trials=trials,
            time_limit=seconds,
            seed=seed,
            families=family,
            strategy=strategy,
            confidence=confidence,
            history=history,
            regime=cast("Regime", regime),  # checked there, with a message that lists the choices
            cache=cast("Cache", cache),
            workers=workers,
            compile_timeout=inputs.read_duration(compile_timeout),
            observer=progress,
        )
        location = history.location
    _say_what_next(results, db, location)
    if any(r.interrupted for r in results):
        raise output.Interrupted(kept)
    if not any(r.best for r in results):
        raise typer.Exit(1)


def _say_what_next(results: list[StudyResult], db: str | None, location: str) -> None:
    kept = f" --db {shlex.quote(db)}" if db else ""
    first = next((r for r in results if r.best), results[0])
    axes = first.problem.axes
    shape = "x".join(str(axes[a]) for a in ("m", "n", "k"))
    narrow = f" --shape {shape}" if len({r.problem for r in results}) == 1 else ""
    print()
    output.say(f"Every trial is kept in {location}.")
    if any(r.best for r in results):
        dtype = first.problem.environment()["dtype"]
        steps = [
            (f"gemmtune export kernels.kpack{kept}", "write the best of the history as a pack"),
            (f"gemmtune query best{narrow}{kept}", "see them again"),
        ]
        if not first.estimated:
            steps.insert(0, (f"gemmtune bench {shape} --dtype {dtype}{kept}", "against cuBLAS and a naive kernel"))
    elif not any(r.trials for r in results):
        return
    else:
        steps = [(f"gemmtune query failures{narrow}{kept}", "what went wrong")]
    output.say_next(steps)
