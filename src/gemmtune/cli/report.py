"""``gemmtune report`` and ``gemmtune dashboard``: read a study in a browser."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemmtune.cli import inputs, options, output
from gemmtune.space.errors import ProblemError, UnknownNameError

if TYPE_CHECKING:
    from gemmtune.db import History, StudyRecord

_SHAPE = re.compile(r"\s*[+-]?\d+\s*[xX×*,].*")

Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="With MxNxK: of this GPU alone, e.g. h200.")]
DType = Annotated[str | None, typer.Option("--dtype", metavar="TYPE", help="With MxNxK: of this dtype alone.")]
_STUDY = "A study's number, as 'gemmtune query studies' lists it, or MxNxK for the newest study of that shape"


def report(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY[.html]", help=f"{_STUDY}; or a file to write: DIR/3.html, or NAME.html for the newest study."
        ),
    ],
    to: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write here.  [default: study-NUMBER.html]")
    ] = None,
    gpu: Gpu = None,
    dtype: DType = None,
    db: options.Database = None,
) -> None:
    """Write a study as one self-contained page: what was tried, what mattered, what won.

    The page has the history, the importance of the knobs, parallel coordinates, heat maps of the tiles, a roofline, the
    outcomes, and the winner's source and resources. It needs no network.
    """
    from gemmtune.db import History
    from gemmtune.search.report import write_report

    named, target = _read(study, to)
    with History(db, create=False) as history:
        found = _study(history, named, gpu, dtype)
        target = target or f"study-{found.id}.html"
        inputs.check_destination(target)
        with output.busy(f"study {found.id}"):
            write_report(history, found, target)
    output.say(
        f"Study {found.id} ({found.problem_key} on {found.kind} {found.gpu.short or found.gpu.name}, "
        f"{output.counted(found.trials, 'trial')}) is written to {target}: open it in a browser."
    )


def dashboard(
    studies: Annotated[
        list[str] | None, typer.Argument(metavar="[STUDY]...", help=f"{_STUDY}.  [default: the newest study]")
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="NAME", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 takes a free one.")] = 8080,
    to: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Serve nothing: write a new SQLite file of Optuna's."),
    ] = None,
    gpu: Gpu = None,
    dtype: DType = None,
    db: options.Database = None,
) -> None:
    """Open studies in optuna-dashboard. They are copies: what is changed there does not reach the history."""
    from gemmtune.db import History
    from gemmtune.search.report.dashboard import hand_over, server, write_storage
    from gemmtune.search.report.material import gather

    if to is not None and not Path(to).exists():  # of one that does, the writer says more
        inputs.check_destination(to)
    with History(db, create=False) as history:
        wanted: list[str | None] = [*studies] if studies else [None]
        found = {s.id: s for s in (_study(history, name, gpu, dtype) for name in wanted)}
        materials = [gather(history, one) for one in found.values()]
    said = output.counted(len(materials), "study", "studies")
    if to is not None:
        write_storage(materials, to)
        output.say(f"{said} written to {to}: open it with optuna-dashboard {shlex.quote(f'sqlite:///{to}')}")
        return
    with server(hand_over(materials), host, port) as serving:
        output.say(f"{said} at http://{host}:{serving.server_port}/ until Ctrl-C.")
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            output.say("Stopped; the history is as it was.")


def _read(text: str, to: str | None) -> tuple[str | None, str | None]:
    """Which study is meant, None for the newest, and the file to write, None for the usual one."""
    path = Path(text)
    if path.suffix.lower() not in (".html", ".htm"):
        return text, to
    stem = path.stem.removeprefix("study-")
    return (stem if (stem.isascii() and stem.isdigit()) or _SHAPE.fullmatch(stem) else None), to or text


def _study(history: History, name: str | None, gpu: str | None, dtype: str | None) -> StudyRecord:
    """The study that is meant: by number, or the newest one, of a shape where one is given.

    Raises:
        UnknownNameError: there is none, or the shape's studies are for several problems, devices or ways of timing.
        ProblemError: a malformed shape, or neither a number nor a shape.
    """
    if name is None or _SHAPE.fullmatch(name):
        shape = None if name is None else "x".join(map(str, inputs.read_shape(name)))
        found = history.studies(gpu=gpu, shape=shape, dtype=dtype, limit=None if shape else 1)
        if not found:
            raise UnknownNameError(
                f"The history has no study{f' of {shape}' if shape else ''} that fits: 'gemmtune query studies' lists "
                f"those there are."
            )
        apart = {(s.problem_key, s.kind, s.gpu.key, s.regime, s.cache): s for s in reversed(found)}
        if len(apart) > 1:
            each = "; ".join(
                f"{s.id} ({s.problem_key} on {s.kind} {s.gpu.short or s.gpu.name}, {s.regime}, {s.cache} cache)"
                for s in list(apart.values())[:5]
            )
            raise UnknownNameError(f"{name} has studies that do not compare: name one by its number, such as {each}.")
        return found[0]
    if not (name.strip().isascii() and name.strip().isdigit()):
        raise ProblemError(f"{name!r} names no study: give its number, as 'gemmtune query studies' lists it, or MxNxK.")
    one = history.study(int(name)) if len(name.strip()) < 19 else None
    if one is None:
        raise UnknownNameError(f"There is no study {name}: 'gemmtune query studies' lists those there are.")
    return one
