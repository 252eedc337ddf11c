"""``gemmtune bench``: the best known kernel against cuBLAS and other peers, suites of shapes, and result files."""

from __future__ import annotations

import shlex
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gemmtune.cli import inputs, options, output
from gemmtune.cli.bench_table import show_rows
from gemmtune.space.errors import ProblemError, SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gemmtune.device.base import Cache, Regime
    from gemmtune.search.results import BenchRow
    from gemmtune.search.suite import Suite
    from gemmtune.space.problem import Problem


_ESTIMATES = (
    "ESTIMATES, not measurements: kernels were proved right by an emulator, and their times come from a cost model. "
    "cuBLAS runs on a GPU alone, and is left out."
)
_LAUNCHES = {"any": None, "plain": False, "programmatic": True}
_SUITE_PEERS = "cublaslt16,triton,deepgemm"


def bench(
    shapes: options.Shapes = None,
    m: options.M = None,
    n: options.N = None,
    k: options.K = None,
    shape_files: options.ShapeFiles = None,
    suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="FILE", help="Every shape of a TOML file, with means for each of its tables."),
    ] = None,
    groups: Annotated[
        str | None, typer.Option("--groups", metavar="A,B", help="Only these tables of the suite.")
    ] = None,
    dtype: options.DTypes = None,
    out_dtype: options.OutDType = None,
    layout: options.Layout = "nt",
    epilogue: options.Epilogue = "identity",
    pack: Annotated[
        str | None, typer.Option("--pack", metavar="NAME.kpack", help="Kernels of this pack instead of the history's.")
    ] = None,
    candidate: Annotated[
        bool, typer.Option("--candidate", help="Time our own kernel too where the pack dispatches to the baseline.")
    ] = False,
    peers: Annotated[
        str | None,
        typer.Option(
            "--peers",
            metavar="A,B",
            help="Beside cuBLAS: naive, cublaslt16 (best of cuBLASLt's first 16), triton, deepgemm, or none; what is "
            f"not installed is left out.  [default: naive; of a suite {_SUITE_PEERS}]",
        ),
    ] = None,
    launch: Annotated[
        str,
        typer.Option(
            "--launch",
            metavar="any|plain|programmatic",
            help="Only kernels that overlap their launches (programmatic), or only such that do not.",
        ),
    ] = "any",
    device: options.Runner = None,
    db: options.Database = None,
    regime: options.Regime = "sustained",
    cache: options.Cache = "cold",
    result_file: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Also write the rows as a result file (JSON); rows of a suite join those of another regime, type "
            "or layout in it, and replace those of the same.",
        ),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Time only what --output lacks; all its rows stay.")
    ] = False,
    summary: Annotated[
        str | None, typer.Option("--summary", metavar="FILE", help="Only print a result file's table and means.")
    ] = None,
) -> None:
    """Time the best known kernel beside cuBLAS and other peers, in one interleaved run.

    Shows microseconds, TFLOP/s, the fraction of the floor, and the error with its bound.
    """
    if summary is not None:
        others = {
            "a shape": shapes or m or n or k or shape_files, "--suite": suite, "--groups": groups, "--dtype": dtype,
            "--pack": pack, "--candidate": candidate, "--peers": peers, "--device": device, "--output": result_file,
            "--missing": missing,
        }  # fmt: skip
        _summarise_file(summary, [name for name, given in others.items() if given])
        return
    if launch not in _LAUNCHES:
        raise SettingError(f"The launch {launch!r} does not exist: choose one of {', '.join(_LAUNCHES)}.")
    listed = _suite(suite, groups)
    extra = [] if listed is None else listed.shapes
    given = shapes or m or n or k or shape_files
    wanted = inputs.problems(extra, dtype or ["bf16"], out_dtype, layout, epilogue)
    if given or listed is None:
        typed = inputs.wanted(shapes or (), m, n, k, shape_files or (), dtype, out_dtype, layout, epilogue)
        wanted = list(dict.fromkeys([*typed, *wanted]))
    if result_file is not None:
        inputs.check_destination(result_file)
    elif missing:
        raise ProblemError("The option --missing completes a result file: give --output FILE too.")

    from gemmtune.db import History
    from gemmtune.device import open_device
    from gemmtune.search.benchmark import benchmark, check_bench_peers
    from gemmtune.search.result_file import completed, earlier_file, joined, lacking, write_result_file

    beside = _peers(peers, "naive" if listed is None else _SUITE_PEERS)
    check_bench_peers(beside)
    failures: list[str] = []
    notes: list[str] = []
    rows: list[BenchRow] = []
    written: list[int] = []

    def kept() -> str:
        if result_file is None:
            return ""
        if not written:
            return f"nothing was written to {result_file}."
        return f"what was timed is in {result_file}, and the same command with --missing times the rest."

    with (
        output.interruptible(kept),
        closing(open_device(device, running=True)) as where,
        History(db, create=pack is not None) as history,  # of a pack's kernels it only tells the trials
    ):
        found = earlier_file(result_file, where) if result_file is not None else None
        joins = missing or listed is not None
        asked = wanted
        if missing and found is not None:
            wanted = lacking(found, asked, regime, cache, _LAUNCHES[launch])
            if not wanted:
                output.say(f"{result_file} lacks none of these {output.counted(len(asked), 'problem')}.")
                return

        def write() -> None:
            if result_file is None or not rows:
                return
            if missing and found is not None:
                everything, said = completed(found, rows, asked)
            else:
                everything, said = joined(found.rows if found is not None and joins else (), rows), []
            write_result_file(result_file, everything, device=where, notes=[*said, *notes, *failures])
            written.append(len(rows))

        with output.busy("looking up the best kernels") as say:

            def finished(row: BenchRow) -> None:
                rows.append(row if listed is None else listed.grouped(row))
                if listed is not None:
                    write()  # a suite takes minutes: whoever stops it keeps what is there
                say(f"{row.problem.key} done")

            benchmark(
                wanted,
                where,
                history,
                pack,
                regime=cast("Regime", regime),  # checked there, with a message that lists the choices
                cache=cast("Cache", cache),
                peers=beside,
                candidate=candidate,
                programmatic=_LAUNCHES[launch],
                finished=finished,
                failed=lambda problem, error: failures.append(_about(problem, error)),
                noted=notes.append,
            )
        if rows:
            if any(row.estimated for row in rows):
                output.say(_ESTIMATES)
            show_rows(rows)
        for sentence in _once(notes):
            output.note(sentence)
        for sentence in failures:
            output.error(sentence)
        if rows and result_file is not None:
            write()
            print()
            output.say(
                f"Written to {result_file}: 'gemmtune bench --summary {shlex.quote(result_file)}' prints it again."
            )
    if failures:
        raise typer.Exit(1)


def _suite(path: str | None, groups: str | None) -> Suite | None:
    if path is None:
        if groups is not None:
            raise ProblemError("The option --groups chooses tables of a suite: give --suite FILE too.")
        return None
    from gemmtune.search.suite import read_suite

    return read_suite(path, _listed(groups or ""))


def _peers(text: str | None, default: str) -> list[str]:
    return [] if text == "none" else _listed(default if text is None else text)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _once(notes: Sequence[str]) -> list[str]:
    """What was said of several problems in the same words, once."""
    said: dict[str, list[str]] = {}
    for sentence in notes:
        key, mark, rest = sentence.partition(": ")
        said.setdefault(rest if mark else sentence, []).append(key)
    return [f"{keys[0]}: {rest}" if len(keys) == 1 else f"{len(keys)} problems: {rest}" for rest, keys in said.items()]


def _about(problem: Problem, error: Exception) -> str:
    sentence = str(error)
    return sentence if problem.key in sentence else f"{problem.key}: {sentence}"


def _summarise_file(path: str, others: Sequence[str]) -> None:
    from gemmtune.search.results import read_result_file

    if others:
        raise ProblemError(
            f"The option --summary only prints what {path} holds and times nothing: leave {', '.join(others)} out, or "
            f"--summary."
        )
    result = read_result_file(path)
    if not result.rows:
        raise ProblemError(
            f"The result file {path} ({result.name}) holds no table of times to print: name one that 'gemmtune bench "
            f"MxNxK --output FILE' wrote."
        )
    versions = [f"{name} {value}" for name, value in (("driver", result.driver), ("CUDA", result.cuda)) if value]
    output.say(", ".join([f"{result.name}: {result.gpu}", *versions, result.date]))
    output.say(result.protocol)
    show_rows(result.rows)
