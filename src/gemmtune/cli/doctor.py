"""``gemmtune doctor``: whether this machine is fit to tune on, and a problem suits it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from gemmtune.cli import inputs, options, output
from gemmtune.space.errors import ProblemError

if TYPE_CHECKING:
    from gemmtune.diagnose.check import Check
    from gemmtune.space.gemm import Gemm

_USUAL = (4096, 4096, 4096)
_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "skipped": "dim"}
_STATUS = 7
"""Letters of the longest status."""


def doctor(
    shapes: options.Shapes = None,
    m: options.M = None,
    n: options.N = None,
    k: options.K = None,
    shape_files: options.ShapeFiles = None,
    dtype: options.DTypes = None,
    out_dtype: options.OutDType = None,
    layout: options.Layout = "nt",
    epilogue: options.Epilogue = "identity",
    lda: Annotated[
        int,
        typer.Option("--lda", metavar="N", show_default=False, help="Row pitch of A in elements.  [default: packed]"),
    ] = 0,
    ldb: Annotated[
        int,
        typer.Option("--ldb", metavar="N", show_default=False, help="Row pitch of B in elements.  [default: packed]"),
    ] = 0,
    ldd: Annotated[
        int,
        typer.Option("--ldd", metavar="N", show_default=False, help="Row pitch of D in elements.  [default: packed]"),
    ] = 0,
    pack: Annotated[
        str | None, typer.Option("--pack", metavar="NAME.kpack", help="Also ask whether this pack is for this GPU.")
    ] = None,
    noise: Annotated[
        bool, typer.Option("--noise", help="Also time one kernel against itself: this machine's false differences.")
    ] = False,
    device: options.Runner = None,
    db: options.Database = None,
    form: Annotated[str, typer.Option("--format", metavar="table|json", help="How to print.")] = "table",
) -> None:
    """Check the machine, then ask of a problem what users of low precision should ask, in order.

    Without a shape the problem is 4096x4096x4096. Nothing is changed or recorded. Exit code 1 where there is a problem.
    """
    if form not in ("table", "json"):
        raise ProblemError(f"The format {form!r} does not exist: choose table or json.")
    named = bool(shapes or shape_files or (m, n, k) != (None, None, None))
    sizes = inputs.read_shapes(shapes or (), m, n, k, shape_files or ()) if named else [_USUAL]
    wanted = [
        replace(gemm, lda=lda, ldb=ldb, ldd=ldd)
        for gemm in inputs.problems(sizes, dtype or ["bf16"], out_dtype, layout, epilogue)
    ]

    from gemmtune.diagnose.check import Status
    from gemmtune.diagnose.doctor import examine, worst

    with output.busy("looking at the machine") as say:
        checks = list(examine(wanted, device, history=db, pack=pack, noise=noise, progress=say))
    if form == "json":
        output.show_data([{**asdict(check), "status": str(check.status)} for check in checks], "json")
    else:
        show(checks, wanted)
    if worst(checks) is Status.PROBLEM:
        raise typer.Exit(1)


def show(checks: Sequence[Check], problems: Sequence[Gemm]) -> None:
    """The report for people: a heading a group, a line a check, and below it what to do."""
    keys = {gemm.key for gemm in problems}
    margin = max(len(check.name) for check in checks)
    for group, members in groupby(checks, key=lambda check: check.group):
        _heading(f"Self-check of {group}" if group in keys else group.capitalize())
        for check in members:
            _line(check, margin)
        print()
    counts = {name: sum(check.status == name for check in checks) for name in ("problem", "warning")}
    told = [output.counted(count, name) for name, count in counts.items() if count]
    output.say(f"{' and '.join(told)} in {len(checks)} checks." if told else f"All well: {len(checks)} checks.")


def _heading(text: str) -> None:
    if not output.is_terminal():
        print(text)
        return
    from rich.text import Text

    output.console().print(Text(text, style="bold"))


def _line(check: Check, margin: int) -> None:
    """``status  name  value``, wrapped under the value, then the cure after an arrow."""
    status = str(check.status)
    indent = 2 + _STATUS + 2 + margin + 2
    head = f"  {status:{_STATUS}}  {check.name:{margin}}  "
    if not output.is_terminal():
        print(head + check.value + (f" -> {check.cure}" if check.cure else ""))
        return
    from rich.text import Text

    screen = output.console()
    width = max(30, screen.width - 1 - indent)
    lines = _wrapped(check.value, width) + [
        ("-> " if i == 0 else "   ") + line for i, line in enumerate(_wrapped(check.cure, width - 3)) if check.cure
    ]
    first = Text(head)
    first.stylize(_STYLES[status], 2, 2 + len(status))
    screen.print(first + Text(lines[0]), soft_wrap=True)
    for line in lines[1:]:
        screen.print(Text(" " * indent + line), soft_wrap=True)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False) or [""]
