"""``gemmtune query``: read the history."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from gemmtune.cli import failed_trials, importance, inputs, options, output
from gemmtune.cli.groups import group
from gemmtune.cli.record_data import study_data, study_row, trial_data
from gemmtune.space.errors import ProblemError

if TYPE_CHECKING:
    from gemmtune.db import History
    from gemmtune.db.records import StudyRecord, TrialRecord
    from gemmtune.space.gpu import Gpu as GpuModel

app = group("Read the history of trials.")

Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="Of this GPU alone, e.g. h200.")]
Shape = Annotated[str | None, typer.Option("--shape", metavar="MxNxK", help="Of this shape alone.")]
DType = Annotated[str | None, typer.Option("--dtype", metavar="TYPE", help="Of this dtype alone.")]
Family = Annotated[str | None, typer.Option("--family", metavar="NAME", help="Of this family alone.")]
Outcome = Annotated[
    str | None, typer.Option("--outcome", metavar="NAME", help="With this outcome alone: correct, wrong, compile, ...")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many rows.")]
Form = Annotated[str, typer.Option("--format", metavar="table|json|csv", help="For people, programs, spreadsheets.")]


@app.command(short_help="The best kernels, ranked.")
def best(
    gpu: Gpu = None,
    shape: Shape = None,
    dtype: DType = None,
    family: Family = None,
    limit: Limit = 20,
    form: Form = "table",
    db: options.Database = None,
) -> None:
    """The best kernels: ranked for each problem, device and regime by itself."""
    kind = chosen_form(form)
    from gemmtune.db import History

    with History(db, create=False) as history:
        records = history.best(gpu=gpu, shape=_shape(shape), dtype=dtype, family=family, limit=limit)
    if kind != "table":
        output.show_data([trial_data(r) for r in records], kind)
        return
    if not records:
        _check_family(family)
        print("No right kernel is known that fits: widen the query, or tune one with 'gemmtune tune MxNxK'.")
        return
    columns = [
        output.Column("rank", right=True),
        output.Column("id", right=True),
        output.Column("us", right=True),
        output.Column("ratio", right=True),
        output.Column("error/bound", right=True),
        output.Column("regs", right=True),
        output.Column("configuration", long=True),
    ]
    _show_boards(
        records,
        columns,
        lambda r: [
            str(r.rank or ""), str(r.id), _time(r), output.ratio(r.timing.ratio if r.timing else None),
            f"{output.small(r.rel_error)}/{output.small(r.error_bound)}", _registers(r), r.configuration,
        ],
    )  # fmt: skip


@app.command(short_help="Every trial with its outcome.")
def trials(
    gpu: Gpu = None,
    shape: Shape = None,
    dtype: DType = None,
    family: Family = None,
    outcome: Outcome = None,
    limit: Limit = 100,
    form: Form = "table",
    db: options.Database = None,
) -> None:
    """Every trial, the newest study first, with its outcome."""
    kind = chosen_form(form)
    from gemmtune.db import History

    with History(db, create=False) as history:
        records = history.trials(gpu=gpu, shape=_shape(shape), dtype=dtype, family=family, outcome=outcome, limit=limit)
    if not records:
        _check_outcome(outcome)
    if kind != "table":
        output.show_data([trial_data(r) for r in records], kind)
        return
    if not records:
        _check_family(family)
        print("No trial fits: widen the query, or make some with 'gemmtune tune MxNxK'.")
        return
    columns = [
        output.Column("id", right=True),
        output.Column("study", right=True),
        output.Column("trial", right=True),
        output.Column("outcome"),
        output.Column("us", right=True),
        output.Column("ratio", right=True),
        output.Column("regs", right=True),
        output.Column("s", right=True),
        output.Column("configuration", long=True),
    ]
    _show_boards(
        records,
        columns,
        lambda r: [
            str(r.id), str(r.study_id), str(r.number), r.outcome.replace("_", " "), _time(r),
            output.ratio(r.timing.ratio if r.timing else None), _registers(r),
            f"{r.seconds.get('wall', 0.0):.2f}", r.configuration,
        ],
    )  # fmt: skip
    if len(records) == limit:
        output.say(f"At most {limit} trials are shown: --limit N shows more.")


@app.command(short_help="What went wrong, by reason, and what to do.")
def failures(
    gpu: Gpu = None,
    shape: Shape = None,
    dtype: DType = None,
    family: Family = None,
    outcome: Outcome = None,
    limit: Limit = 20,
    form: Form = "table",
    db: options.Database = None,
) -> None:
    """What went wrong: failed trials by reason, the most frequent first, each with an example and what to do next.

    Abandoned and pruned ones, which a study cut short, are counted apart; --outcome shows them.
    """
    kind = chosen_form(form)
    from gemmtune.db import History

    with History(db, create=False) as history:
        narrow: dict[str, Any] = {"gpu": gpu, "shape": _shape(shape), "dtype": dtype, "family": family}
        groups = history.failures(**narrow, outcome=outcome, limit=limit)
        counts = history.outcomes(**narrow)
    if not groups:
        _check_outcome(outcome)
    failed = {name: n for name, n in counts.items() if (name == outcome if outcome else failed_trials.is_failure(name))}
    if kind != "table":
        data = [
            {
                "count": g.count,
                "share": g.count / sum(failed.values()),
                "families": dict(g.families),
                "pattern": g.pattern,
                "next": failed_trials.next_step(g.outcome, g.example.id, db),
                **trial_data(g.example),
            }
            for g in groups
        ]
        output.show_data(data, kind)
        return
    if not groups:
        _check_family(family)
        print("No failed trial fits." if counts else "No trial fits: widen the query, or run 'gemmtune tune'.")
        if outcome is None:
            failed_trials.say_stopped(counts)
        return
    failed_trials.show(groups, failed, counts, db)


@app.command(short_help="The studies and their progress.")
def studies(
    gpu: Gpu = None,
    shape: Shape = None,
    dtype: DType = None,
    limit: Limit = 20,
    form: Form = "table",
    db: options.Database = None,
) -> None:
    """The studies with their progress, the newest first."""
    kind = chosen_form(form)
    from gemmtune.db import History

    with History(db, create=False) as history:
        records = history.studies(gpu=gpu, shape=_shape(shape), dtype=dtype, limit=limit)
    if kind != "table":
        output.show_data([study_row(r) if kind == "csv" else study_data(r) for r in records], kind)
        return
    if not records:
        print("No study fits: widen the query, or begin one with 'gemmtune tune MxNxK'.")
        return
    columns = [
        output.Column("study", right=True),
        output.Column("begun"),
        output.Column("trials", right=True),
        output.Column("correct", right=True),
        output.Column("best us", right=True),
        output.Column("ratio", right=True),
        output.Column("what", long=True),
    ]
    rows = [
        [
            str(r.id),
            _moment(r.created),
            str(r.trials),
            str(r.correct),
            _time(r.best) if r.best else "-",
            output.ratio(r.best.timing.ratio if r.best and r.best.timing else None),
            f"{r.problem_key} on {_device(r)}, {r.regime}, {r.cache} cache, {r.strategy}, seed {r.seed}",
        ]
        for r in records
    ]
    output.show_table(columns, rows)


@app.command("importance", short_help="Which knobs mattered, and how the best set them.")
def which_knobs(
    study: importance.Study = None,
    gpu: Gpu = None,
    shape: Shape = None,
    dtype: DType = None,
    family: Family = None,
    form: Form = "table",
    db: options.Database = None,
) -> None:
    """Which knobs mattered in a study, on a GPU, in a family: PED-ANOVA of the best tenth, and how those are set."""
    importance.show(chosen_form(form), db, study, gpu, family, shape=_shape(shape), dtype=dtype)


@app.command(short_help="Why a configuration is invalid, or what became of it.")
def why(
    configuration: Annotated[
        str, typer.Argument(metavar="CONFIG", help="In quotes, as tables print it: 'mma bm=128 bn=128 ...'.")
    ],
    shape: Annotated[str | None, typer.Option("--shape", metavar="MxNxK", help="For this shape.  [required]")] = None,
    dtype: options.OneDType = "bf16",
    out_dtype: options.OutDType = None,
    layout: options.Layout = "nt",
    epilogue: options.Epilogue = "identity",
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="On this GPU.  [default: the one here, else h200]")
    ] = None,
    db: options.Database = None,
) -> None:
    """Why a configuration is invalid, in a sentence; or what became of its trials."""
    if shape is None:
        raise ProblemError("A shape is missing: say for what, e.g. --shape 4096x4096x4096.")
    (problem,) = inputs.problems([inputs.read_shape(shape)], [dtype], out_dtype, layout, epilogue)
    from gemmtune.search.why import why as reasons

    with _history_if_any(db) as history:  # rules answer without one, too
        for sentence in reasons(configuration, problem, _gpu_meant(gpu), history):
            output.say(sentence, hanging=2)


def _history_if_any(db: str | None) -> AbstractContextManager[History | None]:
    """The history; None where the user's own is not there yet. One that was named must be there."""
    from gemmtune.db import History
    from gemmtune.db.engine import file_of, locate

    path = file_of(locate(db))
    named = db is not None or "GEMMTUNE_DB" in os.environ
    return nullcontext() if not named and path is not None and not path.exists() else History(db, create=False)


def _show_boards(
    records: Sequence[TrialRecord], columns: Sequence[output.Column], cells: Callable[[TrialRecord], list[str]]
) -> None:
    """One table for each run of records that were timed alike, under what they were timed for, where and how."""
    boards = [list(run) for _, run in groupby(records, key=lambda r: (_circumstances(r), dict(r.environment)))]
    for i, board in enumerate(boards):
        first = board[0]
        title = _circumstances(first)
        alike = [
            b[0].environment for b in boards if b[0].environment != first.environment and _circumstances(b[0]) == title
        ]
        apart = [
            f"{name} {value}" for name, value in first.environment.items() if any(e.get(name) != value for e in alike)
        ]
        if i:
            print()
        output.show_table(columns, [cells(r) for r in board], ", ".join([title, *apart]))


def _circumstances(record: TrialRecord) -> str:
    return f"{record.problem_key} on {_device(record)}, {record.regime}, {record.cache} cache"


def _gpu_meant(name: str | None) -> GpuModel:
    """The GPU called ``name``, else the one that commands use by default here."""
    from gemmtune.device import open_device
    from gemmtune.space.gpu import gpu

    if name is not None:
        return gpu(name)
    with closing(open_device()) as device:
        return device.gpu


def chosen_form(text: str) -> output.Format:
    """The format called ``text``; ProblemError where there is none."""
    for form in get_args(output.Format):
        if text == form:
            return cast(output.Format, form)
    raise ProblemError(f"Format {text!r} does not exist: choose table, json or csv.")


def _shape(text: str | None) -> str | None:
    return None if text is None else "x".join(map(str, inputs.read_shape(text)))


def _check_outcome(text: str | None) -> None:
    """Raises ProblemError where there is no such outcome; called where the history has nothing that ended so."""
    if text is None:
        return
    from gemmtune.device.base import Outcome

    if text not in {str(o) for o in Outcome}:
        raise ProblemError(f"Outcome {text!r} does not exist: choose one of {', '.join(Outcome)}.")


def _device(record: TrialRecord | StudyRecord) -> str:
    return f"{record.kind} {record.gpu.short or record.gpu.name}"


def _check_family(name: str | None) -> None:
    """Raises UnknownNameError where nobody knows a family of this name; called where the history has nothing of it."""
    if name is None:
        return
    from gemmtune.space import families

    families.family(name)


def _registers(record: TrialRecord) -> str:
    return "-" if record.registers is None else str(record.registers)


def _time(record: TrialRecord) -> str:
    t = record.timing
    return "-" if t is None else output.microseconds(t.us, estimated=t.estimated)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
