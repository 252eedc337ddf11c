"""How the command line and its groups of commands are made: plain help, and no traceback dressing."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup


def group(text: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """A group of commands that shows its help when it is called without one.

    Help is plain: rich's costs a third of the time that ``gemmtune --help`` may take.
    """
    made = typer.Typer(
        cls=cls,
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


def on_demand(commands: Mapping[str, tuple[str, str]]) -> type[TyperGroup]:
    """What a group is of whose commands are imported and built when they are asked for, since a call runs one of them.

    Args:
        commands: of each name, ``"module:attribute"`` in this package, a function or a group, and a short help.
    """

    class OnDemand(TyperGroup):
        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            # A name that is not there is answered with those that are like it: then all of them are needed.
            for name in [cmd_name] if cmd_name in commands else commands:
                if name not in self.commands:
                    self.commands[name] = _built(name, *commands[name])
            return super().get_command(ctx, cmd_name)

        def list_commands(self, ctx: Any) -> list[str]:
            return list(commands)

    return OnDemand


def _built(name: str, place: str, text: str) -> Any:
    module, attribute = place.split(":")
    found = getattr(importlib.import_module(f"gemmtune.cli.{module}"), attribute)
    alone = found
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        alone.command(name)(found)
    made = typer.main.get_command(alone)
    made.name, made.short_help = name, text
    return made
