"""``gemmtune bench``: the best known kernel against cuBLAS and a naive kernel, and result files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmtune.cli import inputs, options, output
from gemmtune.space.errors import ProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gemmtune.search.results import BenchRow


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
    from gemmtune.search.benchmark import benchmark, write_result_file

    rows = benchmark(wanted, device, history=db, pack=pack, regime=regime, cache=cache)
    show_rows(rows)
    if result_file is not None:
        write_result_file(result_file, rows, name=Path(result_file).stem, device=device)
        print(f"\nWritten to {result_file}: 'gemmtune bench --summary {result_file}' prints it again.")


def show_rows(rows: Sequence[BenchRow], *, estimated: bool = False) -> None:
    """The table, then the geometric means where there is more than one row."""
    from gemmtune.search.results import summarise

    peers = list(dict.fromkeys(peer for row in rows for peer in row.peers))
    columns = [
        output.Column("problem"),
        output.Column("us", right=True),
        output.Column("95 %", right=True),
        output.Column("TFLOP/s", right=True),
        output.Column("of floor", right=True),
        *(output.Column(f"{peer} us", right=True) for peer in peers),
        *(output.Column(f"vs {peer}", right=True) for peer in peers),
        output.Column("error/bound", right=True),
        output.Column("configuration", long=True),
    ]
    table = [
        [
            row.problem.key,
            output.microseconds(row.us, estimated=estimated),
            "-" if estimated else f"{output.microseconds(row.us_low)}-{output.microseconds(row.us_high)}",
            f"{row.tflops:.3g}",
            f"{100 * row.floor_fraction:.0f} %",
            *(output.microseconds(row.peers.get(peer)) for peer in peers),
            *(output.ratio(row.ratio(peer)) for peer in peers),
            f"{output.small(row.rel_error)}/{output.small(row.error_bound)}",
            row.config,
        ]
        for row in rows
    ]
    output.show_table(columns, table)
    if len(rows) < 2:
        return
    means = summarise(rows)
    print(
        f"Geometric means of {len(rows)} rows: {_means(means.ratios)}; {100 * means.floor_fraction:.0f} % of the floor."
    )
    if len(means.by_dtype) > 1:
        for dtype, ratios in means.by_dtype.items():
            print(f"  {dtype}: {_means(ratios)}")


def _means(ratios: Mapping[str, float]) -> str:
    return ", ".join(f"{output.ratio(r)} {peer}" for peer, r in ratios.items())


def _summarise_file(path: str) -> None:
    from gemmtune.search.results import read_result_file

    result = read_result_file(path)
    if not result.rows:
        raise ProblemError(f"The result file {path} has no rows: write it with 'gemmtune bench MxNxK --output {path}'.")
    print(f"{result.name}: {result.gpu}, driver {result.driver or '-'}, CUDA {result.cuda}, {result.date}")
    print(result.protocol)
    show_rows(result.rows, estimated=result.estimated)
