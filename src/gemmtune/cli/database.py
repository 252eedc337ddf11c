"""``gemmtune db``: carry a history between machines."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmtune.cli import inputs, options, output
from gemmtune.cli.groups import group

app = group("Carry a history between machines.")


@app.command("export", short_help="Write the whole history to one file.")
def export(
    path: Annotated[str, typer.Argument(metavar="FILE", help="Compressed file to write.")],
    db: options.Database = None,
) -> None:
    """Write the whole history to one compressed file."""
    from gemmtune.db import History

    inputs.check_destination(path)
    with History(db, create=False) as history:
        history.export(path)
        output.say(f"{history.location} written to {path}: 'gemmtune db merge {path}' takes it in elsewhere.")


@app.command("merge", short_help="Take the trials of such a file in.")
def merge(
    path: Annotated[str, typer.Argument(metavar="FILE", help="A file that 'gemmtune db export' wrote.")],
    db: options.Database = None,
) -> None:
    """Take the trials of another machine into the history; what is there already stays as it is."""
    from gemmtune.db import History
    from gemmtune.db.engine import file_of, locate
    from gemmtune.db.merge import check_export

    target = file_of(locate(db))
    if target is not None and not target.exists():
        check_export(path)
    with output.interruptible(lambda: "nothing was taken in."), History(db) as history:
        report = history.merge(path)
        added = [
            output.counted(report.studies, "study", "studies"),
            output.counted(report.trials, "trial"),
            output.counted(report.measurements, "measurement"),
            output.counted(report.exports, "export"),
            output.counted(report.cubins, "file of exported packs", "files of exported packs"),
        ]
        counts = ", ".join(text for text in added if not text.startswith("0 "))
        output.say(f"{history.location}: {f'added {counts}' if counts else 'nothing new'} from {path}.")
