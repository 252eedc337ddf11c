"""How the command line and its groups of commands are made: plain help, and no traceback dressing."""

from __future__ import annotations

import typer


def group(text: str) -> typer.Typer:
    """A group of commands that shows its help when it is called without one.

    Help is plain: rich's costs a third of the time that ``gemmtune --help`` may take.
    """
    made = typer.Typer(
        help=text,
        add_completion=False,
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(show_help)
    return made


def show_help(context: typer.Context) -> None:
    """Print the help where no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit
