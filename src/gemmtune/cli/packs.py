"""``gemmtune export``, ``check`` and ``diff``, and ``gemmtune pack``: kernel packs."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gemmtune.cli import inputs, options, output
from gemmtune.cli.groups import group
from gemmtune.cli.output import Column
from gemmtune.space.errors import SettingError
from gemmtune.space.settings import check_cache, check_regime

app = group("Packs: merge those of several GPUs, list exports, write the dispatch table in other forms.")
_TABLE_FORMATS = ("csv", "json", "serving")
_DIFF_FORMATS = ("table", "json", "csv")
_Pack = Annotated[str, typer.Argument(metavar="NAME.kpack", help="A pack: directory or zip file.")]


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
    regret: Annotated[
        bool,
        typer.Option("--regret/--no-regret", help="With --device: measure the look-up at each size held out in turn."),
    ] = True,
    from_export: Annotated[
        str | None,
        typer.Option(
            "--from-export",
            metavar="ID",
            help="Write an earlier export again (see 'gemmtune pack exports'); or latest.",
        ),
    ] = None,
    as_zip: Annotated[bool, typer.Option("--zip", help="Write one zip file, whatever its name.")] = False,
    db: options.Database = None,
) -> None:
    """Write the best kernels of the history as a pack that programs load."""
    if from_export is not None:
        if gpu is not None or device is not None:
            raise SettingError("An earlier export comes back as it was: leave --gpu and --device out.")
        _restore(path, from_export, as_zip, db)
        return

    from gemmtune.pack.export import export_pack

    with output.busy("reading the history") as say:
        report = export_pack(
            path,
            db,
            gpu,
            device=device,
            allow_estimates=estimates,
            as_zip=as_zip or None,
            hold_out=regret,
            observer=say,
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


def _restore(path: str, name: str, as_zip: bool, db: str | None) -> None:
    from gemmtune.db import History
    from gemmtune.pack.restore import restore_pack

    with History(db, create=False) as history:
        found = restore_pack(path, history, name, as_zip=as_zip or None)
    output.say(
        f"{path}: export {found.uuid[:8]} ({found.name}, {_when(found.created)}), "
        f"manifest {found.manifest_sha256[:12]}, byte for byte."
    )


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _say_lines(report: object) -> None:
    """Each line of a report as a paragraph of its own."""
    for line in str(report).splitlines():
        output.say(line, hanging=4)


def check(
    path: _Pack,
    device: options.Runner = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Emulate a kernel's source also where it is not what gemmtune renders.")
    ] = False,
) -> None:
    """Check a pack: every hash, then each kernel anew (emulated, or on the GPU with its time).

    The exit code is 1 where a kernel is wrong or was not verified, but for kernels of another GPU beside verified ones.
    """
    from gemmtune.pack.check import check_pack

    with output.busy("checking the hashes") as say:
        report = check_pack(path, device, trust=trust, observer=say)
    _say_lines(report.text("--trust"))
    if not report.ok:
        raise typer.Exit(1)


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The pack as it was.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The pack as it is.")],
    form: Annotated[str, typer.Option("--format", metavar="|".join(_DIFF_FORMATS), help="How to print it.")] = "table",
    everything: Annotated[bool, typer.Option("--all", help="Also rows that stayed as they were.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 where a row was lost or became slower.")
    ] = False,
) -> None:
    """Compare two packs row by row: lost, slower, faster, added.

    A row is faster or slower only where the 95 % interval of its speed-up leaves out 1.
    """
    if form not in _DIFF_FORMATS:
        raise SettingError(f"The format {form!r} does not exist: choose one of {', '.join(_DIFF_FORMATS)}.")

    from gemmtune.pack.changes import LOST, SAME, SLOWER, Change, pack_changes
    from gemmtune.pack.format import read_pack

    def who(name: str | None) -> str:
        return "-" if name is None else name[:12]

    def cells(c: Change) -> tuple[str, ...]:
        times = f"{output.microseconds(c.old_us)} -> {output.microseconds(c.new_us)}"
        span = "-" if c.low is None or c.high is None else f"{c.low:.3f} to {c.high:.3f}"
        served = who(c.old) if c.old == c.new else f"{who(c.old)} -> {who(c.new)}"
        return c.what, c.problem, c.gpu, c.regime, c.cache, times, output.ratio(c.speedup), span, served, c.note

    changes = pack_changes(read_pack(old), read_pack(new))
    shown = [c for c in changes if everything or c.what != SAME]
    if form != "table":
        output.show_data([vars(c) for c in shown], "json" if form == "json" else "csv")
    else:
        counts = {what: sum(c.what == what for c in changes) for what in dict.fromkeys(c.what for c in changes)}
        if shown:
            titles = ("change", "problem", "gpu", "regime", "cache", "us", "speed-up", "95 % interval", "served by")
            columns = [Column(t, right=t in ("us", "speed-up")) for t in titles]
            output.show_table([*columns, Column("note", long=True)], [cells(c) for c in shown])
            print()
        output.say(", ".join(f"{n} {what}" for what, n in counts.items()) or "Neither pack has a row.")
    if strict and any(c.what in (LOST, SLOWER) for c in changes):
        raise typer.Exit(1)


@app.command("merge", short_help="Write packs of several GPUs as one.")
def merge(
    path: Annotated[str, typer.Argument(metavar="NAME.kpack", help="The pack to write.")],
    packs: Annotated[
        list[str], typer.Argument(metavar="PACK...", help="The packs to merge; a later one has the word.")
    ],
    as_zip: Annotated[bool, typer.Option("--zip", help="Write one zip file, whatever its name.")] = False,
) -> None:
    """Write packs of several GPUs as one, which serves on each of them.

    Where two speak of the same problem on the same GPU, the later has the word, and measurements stand above estimates.
    """
    from gemmtune.pack.combine import merge_packs

    _say_lines(merge_packs(path, packs, as_zip=as_zip or None))


@app.command("exports", short_help="The exports that the history can bring back.")
def exports(db: options.Database = None) -> None:
    """List the exports of the history, the latest first: ``gemmtune export --from-export ID`` brings one back."""
    from gemmtune.db import History

    with History(db, create=False) as history:
        found = history.exports()
    if not found:
        output.say("The history has no export: 'gemmtune export' writes one.")
        return
    columns = (Column("id"), Column("name"), Column("date"), Column("files", right=True), Column("manifest"))
    rows = [(e.uuid[:8], e.name, _when(e.created), str(len(e.cubins)), e.manifest_sha256[:12]) for e in found]
    output.show_table(columns, rows)


@app.command("table", short_help="The dispatch table as CSV, JSON or files for serving engines.")
def table(
    path: _Pack,
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(_TABLE_FORMATS), help="csv, json or serving.")
    ] = "csv",
    to: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="The file to write instead of printing; of 'serving' the folder."
        ),
    ] = None,
    regime: options.Regime = "sustained",
    cache: options.Cache = "cold",
) -> None:
    """Print or write the dispatch table, a line for each measured size; or write it for serving engines.

    ``serving`` writes one JSON file for each N, K, dtype and GPU, named and laid out as those of vLLM and SGLang: M to
    configuration. Regime and cache state choose the rows of these files alone.
    """
    if form not in _TABLE_FORMATS:
        raise SettingError(f"The format {form!r} does not exist: choose one of {', '.join(_TABLE_FORMATS)}.")

    from gemmtune.pack.format import read_pack
    from gemmtune.pack.tables import table_records, write_serving_files

    if form != "serving" and to is not None:
        inputs.check_destination(to)
    data = read_pack(path)
    if form != "serving":
        text = output.data_text(table_records(data), "json" if form == "json" else "csv")
        if to is None:
            sys.stdout.write(text)
        else:
            inputs.write_text(to, text)
            output.say(f"The table is written to {to}.")
        return
    check_regime(regime)
    check_cache(cache)
    for written in write_serving_files(to or f"{Path(path).stem}-serving", data, regime, cache):
        print(written)
