"""``gemmtune replay`` and ``gemmtune record``: recorded spaces, searched again and exchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmtune.cli import inputs, options, output
from gemmtune.cli.query import Form, chosen_form

if TYPE_CHECKING:
    from gemmtune.search.replay import Replayed
    from gemmtune.space.recorded import RecordedSpace

Space = Annotated[
    str,
    typer.Argument(
        metavar="SPACE",
        help="A recorded space: a recording, Kernel Tuner cache file or T4 results file; study:ID of the history; "
        "FILE#ID of an exported one.",
    ),
]
Family = Annotated[
    list[str] | None, typer.Option("--family", metavar="NAME", help="Its configurations of this family alone.")
]


def replay(
    space: Space,
    strategy: Annotated[
        list[str] | None,
        typer.Option("--strategy", metavar="NAME", help="What to compare; may be repeated.  [default: auto, random]"),
    ] = None,
    budget: Annotated[int, typer.Option("--budget", metavar="N", min=1, help="Evaluations of each run.")] = 200,
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Runs, each of its own seed.")] = 30,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The first seed.")] = 0,
    family: Family = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Hide the problem from the strategies: no cost estimate, times alone.")
    ] = False,
    result_file: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Add the figures to this result file.")
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE.svg", help="Draw the curves; with --output, of all that is in its file."),
    ] = None,
    form: Form = "table",
    db: options.Database = None,
) -> None:
    """Search a recorded space without a GPU, many times, and tell how fast each strategy comes near its optimum."""
    kind = chosen_form(form)
    from gemmtune.search.recorded_study import open_space
    from gemmtune.search.replay import replay as run
    from gemmtune.search.replay_file import add_replays, earlier_replays, space_data
    from gemmtune.search.replay_plot import check_plot, plot_replays
    from gemmtune.search.strategy import check_strategy
    from gemmtune.space.recorded import RecordedSpace

    names = list(dict.fromkeys(strategy or ("auto", "random")))
    for name in names:
        check_strategy(name)
    if result_file is not None:
        inputs.check_destination(result_file)
        earlier_replays(result_file)
    if plot is not None:
        inputs.check_destination(plot)
        check_plot(plot)
    recording = open_space(space, db)
    found = RecordedSpace(recording.times_alone() if blind else recording, family)
    runs: list[Replayed] = []
    kept = f"{result_file} is as it was." if result_file is not None else ""
    with output.interruptible(lambda: kept), output.busy("replaying") as say:
        for name in names:
            say(f"replaying {name}")
            one = run(found, name, budget=budget, repeats=repeats, seed=seed)
            runs.append(replace(one, strategy=f"{name} blind") if blind else one)
    told = {one.strategy: one.to_json() for one in runs}
    spaces: dict[str, Any] = {found.recording.name: space_data(found, told)}
    if result_file is not None:
        spaces = dict(add_replays(result_file, found, told).summary["spaces"])
    if plot is not None:
        plot_replays(plot, spaces)
    _show(found, runs, kind)


def _show(space: RecordedSpace, runs: list[Replayed], kind: output.Format) -> None:
    if kind != "table":
        output.show_data([_line(one) for one in runs], kind)
        return
    recording = space.recording
    unit = "of the baseline's time" if recording.rated else "us"
    marks = list(dict.fromkeys(mark for one in runs for mark in one.to_json()["fraction"]))
    columns = [
        output.Column("strategy"),
        *(output.Column(f"at {mark}", right=True) for mark in marks),
        *([output.Column(f"worst at {marks[-1]}", right=True)] if marks else []),
        output.Column("to 95 %", right=True),
        output.Column("to 99 %", right=True),
        output.Column("ms each", right=True),
    ]
    rows = []
    for one in runs:
        data = one.to_json()
        at = data["fraction"]
        rows.append(
            [
                one.strategy,
                *(f"{at[m]['mean']:.3f} ±{at[m]['standard_error']:.3f}" for m in marks),
                *([f"{at[marks[-1]]['worst']:.3f}"] if marks else []),
                *("-" if n is None else f"{n:.0f}" for n in data["evaluations"].values()),
                f"{data['ms_per_evaluation']:.2f}",
            ]
        )
    repeats, budget = runs[0].curves.shape
    title = (
        f"{recording.name}: {len(space)} configurations on {recording.device_name or 'an unknown GPU'}, "
        f"optimum {recording.optimum:.5g} {unit}; {repeats} runs of {budget} evaluations"
    )
    output.show_table(columns, rows, title)
    print()
    shown = "Fractions of the optimum (mean and standard error); evaluations" if marks else "Evaluations"
    output.say(f"{shown} at which the median run reaches 95, 99 %{'' if marks else ' of the optimum'}.")


def _line(one: Replayed) -> dict[str, Any]:
    """One flat line for programs and spreadsheets."""
    data = one.to_json()
    line: dict[str, Any] = {"strategy": one.strategy, "repeats": data["repeats"], "budget": data["budget"]}
    for mark, values in data["fraction"].items():
        line |= {f"{name}_{mark}": value for name, value in values.items()}
    line |= {f"evaluations_to_{goal}": n for goal, n in data["evaluations"].items()}
    return {**line, "ms_per_evaluation": data["ms_per_evaluation"]}


def record(
    space: Space,
    path: Annotated[str, typer.Argument(metavar="FILE", help="Where to; compressed where it ends in .gz.")],
    form: Annotated[
        str,
        typer.Option("--format", metavar="json|kernel_tuner|t4|csv", help="gemmtune's own, or one to exchange."),
    ] = "json",
    family: Annotated[
        str | None, typer.Option("--family", metavar="NAME", help="Its configurations of this family alone.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What the recording is called.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="TEXT", help="Where it comes from, under which licence.")
    ] = None,
    db: options.Database = None,
) -> None:
    """Write a recorded space to a file: of a study, or of another tool's file in another format."""
    from dataclasses import replace

    from gemmtune.search.recorded_study import open_space
    from gemmtune.space.recorded import write_recording

    inputs.check_destination(path)
    recording = open_space(space, db)
    if family is not None:
        recording = recording.of_family(family)
    recording = replace(recording, name=name or recording.name, source=source or recording.source)
    write_recording(recording, path, form)
    counted = output.counted(len(recording), "configuration")
    output.say(f"{recording.name}: {counted} written to {path}.")
    if form == "json":
        print()
        output.say_next([(f"gemmtune replay {path}", "search it without a GPU")])
