"""``gemmtune diagnose``: why a kernel is not faster, and what to try first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from gemmtune.cli import kernels, options, output
from gemmtune.space.errors import ProblemError, SettingError

if TYPE_CHECKING:
    from gemmtune.diagnose.verdict import Check, Verdict
    from gemmtune.space.gpu import Gpu


def diagnose(
    kernel: kernels.Kernel,
    ncu: Annotated[
        bool, typer.Option("--ncu", help="Run it once under Nsight Compute on a GPU, and go by what that measures.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="NAME", help="Judge it as a kernel of cuda:N or emulator:GPU.  [default: its own]"
        ),
    ] = None,
    dtype: options.OneDType = "bf16",
    out_dtype: options.OutDType = None,
    layout: options.Layout = "nt",
    epilogue: options.Epilogue = "identity",
    gpu: kernels.Gpu = None,
    regime: kernels.Regime = None,
    cache: kernels.Cache = None,
    form: Annotated[str, typer.Option("--format", metavar="table|json", help="For people or programs.")] = "table",
    db: options.Database = None,
) -> None:
    """Why a kernel is not faster: the engineer's checks in order, what each ailment costs, and what to try first.

    Goes by the compiler's report, the emulator's counters and the machine code, so that no GPU is needed; says what is
    missing.
    """
    if form not in ("table", "json"):
        raise ProblemError(f"The format {form!r} does not exist: choose table or json.")
    index = _index(device) if ncu else None
    from gemmtune.db import History
    from gemmtune.diagnose.report import data, diagnose_trial

    with History(db, create=False) as history:
        record = kernels.named(
            history, kernel, dtype=dtype, out_dtype=out_dtype, layout=layout, epilogue=epilogue, gpu=gpu,
            regime=regime, cache=cache,
        )  # fmt: skip
        with output.busy("looking at the kernel") as say:
            where = _gpu(device) if device is not None else None
            verdict = diagnose_trial(history, record, gpu=where, profiled=index, progress=say)
    if form == "json":
        output.show_data([data(verdict)], "json")
    else:
        show(verdict)


def show(verdict: Verdict) -> None:
    """The report for people: what was looked at in order, then one sentence, then what could not be said."""
    subject = verdict.facts.subject
    output.heading(f"Diagnosis of {subject.label}")
    output.say(f"{subject.problem.key} on {subject.gpu.name}{_time(verdict)}", hanging=2)
    print()
    columns = [output.Column("check"), output.Column("costs", right=True), output.Column("found", long=True)]
    output.show_table(columns, [[check.name, _cost(check), check.found] for check in verdict.checks])
    print()
    if verdict.ailments:
        worst = [f"{a.name} ({'fatal' if math.isinf(a.cost) else f'{a.cost:.1f}x'})" for a in verdict.ailments]
        output.say(f"Held back by {', then '.join(worst)}.", hanging=2)
    output.say(f"{'Try: ' if verdict.ailments else ''}{verdict.advice}", hanging=2)
    if verdict.facts.missing:
        print()
        for sentence in verdict.facts.missing:
            output.say(f"Missing: {sentence}", hanging=2)


def _cost(check: Check) -> str:
    if check.cost is None:
        return "-"
    return "all" if math.isinf(check.cost) else f"{check.cost:.1f}x"


def _time(verdict: Verdict) -> str:
    subject = verdict.facts.subject
    if subject.us is None:
        return ", not timed there"
    ratio = "" if subject.ratio is None else f", {output.ratio(subject.ratio)} the baseline"
    return f", {output.microseconds(subject.us)} us {'estimated' if subject.estimated else 'measured'}{ratio}"


def _index(device: str | None) -> int:
    """The GPU that ``--ncu`` runs on."""
    kind, _, rest = (device or "cuda:0").partition(":")
    if kind != "cuda" or not (rest or "0").isdigit():
        raise SettingError(f"Nsight Compute profiles real GPUs alone, but the device is {device!r}: write cuda:0.")
    return int(rest or 0)


def _gpu(device: str) -> Gpu:
    from contextlib import closing

    from gemmtune.device import open_device

    with closing(open_device(device)) as opened:
        return opened.gpu
