"""``gemmtune export`` and ``gemmtune check``: kernel packs."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from gemmtune.cli import options, output


def export(
    path: Annotated[str, typer.Argument(metavar="NAME.kpack", help="A directory, or one file where it ends in .zip.")],
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="Kernels for this GPU alone.")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="cuda:N", help="A GPU to measure on how far each kernel serves beyond its size."
        ),
    ] = None,
    estimates: Annotated[
        bool, typer.Option("--estimates/--no-estimates", help="Whether kernels that were only estimated go in, marked.")
    ] = True,
    as_zip: Annotated[bool, typer.Option("--zip", help="Write one zip file, whatever its name.")] = False,
    db: options.Database = None,
) -> None:
    """Write the best kernels of the history as a pack that programs load."""
    from gemmtune.pack.export import export_pack

    with output.busy("reading the history") as say:
        report = export_pack(
            path, db, gpu, device=device, allow_estimates=estimates, as_zip=as_zip or None, observer=say
        )
    _say_lines(report)
    estimated = bool(report.rows) and all(row.estimated for row in report.rows)
    print()
    if estimated:
        output.say(
            "Its kernels were proved right, but their times are estimates: on a GPU, load_pack takes them only with "
            "allow_estimates=True. 'gemmtune tune' on that GPU measures."
        )
    output.say_next([(f"gemmtune check {shlex.quote(path)}", "every hash again, every kernel anew")])
    asked = ", allow_estimates=True" if estimated else ""
    print(f"In Python:\n  pack = gemmtune.load_pack({path!r}{asked})\n  d = pack.matmul(a, b)")


def _say_lines(report: object) -> None:
    """Each line of a report as a paragraph of its own."""
    for line in str(report).splitlines():
        output.say(line, hanging=4)


def check(
    path: Annotated[str, typer.Argument(metavar="NAME.kpack", help="A pack: directory or zip file.")],
    device: options.Device = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Emulate a kernel's source also where it is not what gemmtune renders.")
    ] = False,
) -> None:
    """Check a pack: every hash, then each kernel anew (emulated, or on the GPU with its time)."""
    from gemmtune.pack.check import check_pack

    with output.busy("checking the hashes") as say:
        report = check_pack(path, device, trust=trust, observer=say)
    _say_lines(report)
    if not report.ok:
        raise typer.Exit(1)
