"""The command line: what each command is called, and how every failure ends.

Errors are one line on standard error that starts with ``error:``. Exit codes: 0 done, 2 bad input, 1 any other failure,
130 after Ctrl-C. Commands import what they need when they run, so that ``gemmtune --help`` answers at once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from gemmtune.cli import output
from gemmtune.cli.groups import group, on_demand, show_help
from gemmtune.space.errors import (
    ConfigurationError,
    EmptySpaceError,
    ExpressionError,
    GemmtuneError,
    ProblemError,
    RecordingError,
    SettingError,
    UnknownNameError,
    UnsupportedError,
)

BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130
_INPUT_ERRORS = (
    ProblemError,
    RecordingError,
    SettingError,
    ExpressionError,
    ConfigurationError,
    EmptySpaceError,
    UnsupportedError,
    UnknownNameError,
)

_COMMANDS = {
    "tune": ("tune:tune", "Find the fastest kernel for one or more shapes."),
    "shapes": ("shapes:shapes", "The multiplications of a model, the most valuable first."),
    "bench": ("bench:bench", "Time the best known kernel beside cuBLAS and a naive one."),
    "show": ("show:show", "All that is known of a kernel; its source, SASS, recipe."),
    "report": ("report:report", "A study as one page to open in a browser."),
    "dashboard": ("report:dashboard", "Open studies in optuna-dashboard."),
    "rerun": ("rerun:rerun", "Run a recorded trial again, alone, or under compute-sanitizer."),
    "export": ("packs:export", "Write the best kernels as a pack that programs load."),
    "check": ("packs:check", "Check a pack: hashes, then every kernel anew."),
    "diff": ("packs:diff", "Compare two packs: rows lost, slower, faster, added."),
    "record": ("replay:record", "Write a recorded space to a file; other tools' formats."),
    "replay": ("replay:replay", "Compare search strategies on a recorded space, without a GPU."),
    "doctor": ("doctor:doctor", "Check this machine, and whether a problem suits it."),
    "diagnose": ("diagnose:diagnose", "Why a kernel is not faster, and what to try first."),
    "devices": ("devices:devices", "GPUs, toolchain, what each family can do here."),
    "query": ("query:app", "Read the history: best, trials, failures, studies, importance, why."),
    "pack": ("packs:app", "Packs: merge, list exports, write the table in other forms."),
    "db": ("database:app", "Carry a history between machines: export, merge."),
    "cache": ("cache:app", "What the kernel cache holds: list, prune."),
}
"""Each command by its name: its module and function (or group of commands) there, and what lists of commands say."""

app = group(
    "Find the fastest correct matrix-multiplication kernel for a GPU, remember every trial, ship the winners.",
    cls=on_demand(_COMMANDS),
)


def _version(wanted: bool) -> None:
    if wanted:
        from gemmtune import __version__

        print(f"gemmtune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    show_help(context)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors are told on standard error."""
    if sys.stderr is None:  # the program was started with it closed
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the end
    if sys.stdout is None:  # a file that a command opens would take its place, and get what is printed
        output.error("Standard output is closed, so that nothing can be printed: open it, or send it to /dev/null.")
        return FAILURE
    try:
        words = None if arguments is None else list(arguments)
        result = app(args=words, prog_name="gemmtune", standalone_mode=False)
        if result == INTERRUPTED:  # typer turns Ctrl-C into this code by itself
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except GemmtuneError as error:
        output.error(str(error))
        return BAD_INPUT if isinstance(error, _INPUT_ERRORS) else FAILURE
    except output.Interrupted as stop:
        output.error(f"interrupted; {stop}" if str(stop) else "interrupted.")
        return INTERRUPTED
    except (typer.Abort, KeyboardInterrupt):
        output.error("interrupted.")
        return INTERRUPTED
    except OSError as error:
        lost = error if isinstance(error, BrokenPipeError) else _unprinted("\n")  # what failed may be kept nowhere
        if lost is None:  # then it was something else that failed, and nobody saw it coming
            raise
        _drop(lost)
        return FAILURE
    except Exception as error:
        sentence = _usage(error)
        if sentence is None:
            raise
        output.error(sentence)
        return BAD_INPUT


def _usage(error: Exception) -> str | None:
    """What typer found wrong with options or arguments, in a sentence; None for any other error."""
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    if getattr(error, "option_name", "")[1:2].isdigit():
        return "A shape was taken for an option, since it begins with '-': sizes are at least 1, e.g. 4096x4096x1024."
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "gemmtune"
    return f"{format_message().rstrip('.')}; see '{path} --help'."


def main() -> None:
    """The ``gemmtune`` command."""
    gc.set_threshold(20_000)  # what imports make stays: to look for garbage there delays every short command
    code = run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and kept: a second Ctrl-C must not change the exit code
    lost = _unprinted()
    if lost is not None:
        _drop(lost)
        code = code if isinstance(lost, BrokenPipeError) else FAILURE
    sys.exit(code)


def _unprinted(more: str = "") -> OSError | None:
    """Write out what was printed and ``more``; where that fails, why."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(more)
            sys.stdout.flush()
    except OSError as error:
        return error
    return None


def _drop(lost: OSError) -> None:
    """Say why what was printed cannot be written, and let the rest of it go."""
    if not isinstance(lost, BrokenPipeError):  # the reader of a pipe has seen enough, and knows
        output.error(
            f"Standard output cannot be written ({lost.strerror or lost}): free some space, or send it elsewhere."
        )
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
