"""``gemmtune bench``: the best known kernel against cuBLAS and a naive kernel, and result files."""

from __future__ import annotations

import shlex
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gemmtune.cli import inputs, options, output
from gemmtune.space.errors import ProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemmtune.device.base import Cache, Regime
    from gemmtune.search.results import BenchRow
    from gemmtune.space.problem import Problem


_ESTIMATES = (
    "ESTIMATES, not measurements: kernels were proved right by an emulator, and their times come from a cost model. "
    "cuBLAS runs on a GPU alone, and is left out."
)


def bench(
    shapes: options.Shapes = None,
    m: options.M = None,
    n: options.N = None,
    k: options.K = None,
    shape_files: options.ShapeFiles = None,
    dtype: options.DTypes = None,
    out_dtype: options.OutDType = None,
    layout: options.Layout = "nt",
    epilogue: options.Epilogue = "identity",
    pack: Annotated[
        str | None, typer.Option("--pack", metavar="NAME.kpack", help="Kernels of this pack instead of the history's.")
    ] = None,
    device: options.Device = None,
    db: options.Database = None,
    regime: options.Regime = "sustained",
    cache: options.Cache = "cold",
    result_file: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Also write the rows as a result file (JSON).")
    ] = None,
    summary: Annotated[
        str | None, typer.Option("--summary", metavar="FILE", help="Only print a result file's table and means.")
    ] = None,
) -> None:
    """Time the best known kernel beside cuBLAS and a naive one, in one interleaved run.

    Shows microseconds, TFLOP/s, the fraction of the floor (what no kernel beats), and the error with its bound.
    """
    if summary is not None:
        _summarise_file(summary)
        return
    wanted = inputs.problems(
        inputs.read_shapes(shapes or (), m, n, k, shape_files or ()), dtype or ["bf16"], out_dtype, layout, epilogue
    )
    if result_file is not None:
        inputs.check_destination(result_file)

    from gemmtune.db import History
    from gemmtune.device import open_device
    from gemmtune.search.benchmark import benchmark, write_result_file

    failures: list[str] = []
    with closing(open_device(device)) as where, History(db) as history:
        with output.busy("looking up the best kernels") as say:
            rows = benchmark(
                wanted,
                where,
                history,
                pack,
                regime=cast("Regime", regime),  # checked there, with a message that lists the choices
                cache=cast("Cache", cache),
                finished=lambda row: say(f"{row.problem.key} done"),
                failed=lambda problem, error: failures.append(_about(problem, error)),
            )
        if rows:
            if any(row.estimated for row in rows):
                output.say(_ESTIMATES)
            show_rows(rows)
        for sentence in failures:
            output.error(sentence)
        if rows and result_file is not None:
            write_result_file(result_file, rows, device=where)
            print()
            output.say(
                f"Written to {result_file}: 'gemmtune bench --summary {shlex.quote(result_file)}' prints it again."
            )
    if failures:
        raise typer.Exit(1)


def _about(problem: Problem, error: Exception) -> str:
    sentence = str(error)
    return sentence if problem.key in sentence else f"{problem.key}: {sentence}"


def show_rows(rows: Sequence[BenchRow]) -> None:
    """The table, then the geometric means where there is more than one row."""
    from gemmtune.search.results import summarise

    peers = list(dict.fromkeys(peer for row in rows for peer in row.peers))
    estimated = all(row.estimated for row in rows)
    columns = [
        output.Column("problem"),
        output.Column("us", right=True),
        *(output.Column(f"vs {peer}", right=True) for peer in peers),
        output.Column("TFLOP/s", right=True),
        output.Column("of floor", right=True),
        *([] if estimated else [output.Column("95 %", right=True)]),
        *(output.Column(f"{peer} us", right=True) for peer in peers),
        output.Column("error/bound", right=True),
        output.Column("configuration", long=True),
    ]
    table = [
        [
            row.problem.key,
            output.microseconds(row.us, estimated=row.estimated),
            *(output.ratio(row.ratio(peer), estimated=row.estimated) for peer in peers),
            output.digits(row.tflops, 3),
            f"{100 * row.floor_fraction:.0f} %",
            *([] if estimated else [_interval(row)]),
            *(output.microseconds(row.peers.get(peer), estimated=row.estimated) for peer in peers),
            f"{output.small(row.rel_error)}/{output.small(row.error_bound)}",
            row.config,
        ]
        for row in rows
    ]
    output.show_table(columns, table)
    if len(rows) < 2:
        return
    means = summarise(rows)
    marked = " (estimated)" if means.estimated else ""
    output.say(
        f"Geometric means of {len(rows)} rows{marked}: {_means(means.ratios)}; "
        f"{100 * means.floor_fraction:.0f} % of the floor."
    )
    if len(means.by_dtype) > 1:
        for dtype, ratios in means.by_dtype.items():
            print(f"  {dtype}: {_means(ratios)}")


def _interval(row: BenchRow) -> str:
    return "-" if row.estimated else f"{output.microseconds(row.us_low)}-{output.microseconds(row.us_high)}"


def _means(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{output.ratio(r)} {peer}" for peer, r in ratios.items())


def _summarise_file(path: str) -> None:
    from gemmtune.search.results import read_result_file

    result = read_result_file(path)
    if not result.rows:
        raise ProblemError(f"The result file {path} has no rows: write it with 'gemmtune bench MxNxK --output {path}'.")
    versions = [f"{name} {value}" for name, value in (("driver", result.driver), ("CUDA", result.cuda)) if value]
    output.say(", ".join([f"{result.name}: {result.gpu}", *versions, result.date]))
    output.say(result.protocol)
    show_rows(result.rows)
