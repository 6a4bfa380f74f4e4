"""A group of commands, each loaded when it is called."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from click.shell_completion import CompletionItem


class Group(click.Group):
    """Commands of which a table has the places and the short helps, in the order in which they are listed."""

    def __init__(self, name: str | None = None, *, table: Mapping[str, tuple[str, str]], **more: Any) -> None:
        # Each command by its name, for click to list and to say which one may have been meant.
        named = {each: click.Command(each, short_help=said) for each, (_, said) in table.items()}
        super().__init__(name, named, **more)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the commands' names in the order of their table."""
        del ctx
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None if there is none of this name."""
        del ctx
        return _loaded(self._table[cmd_name][0]) if cmd_name in self._table else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their table."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, said) for name, (_, said) in self._table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Give the commands that begin so from their table, and the group's own options."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - as click does, for a completion alone

        fitting = [name for name in self._table if name.startswith(incomplete)]
        named = [CompletionItem(name, help=self.commands[name].get_short_help_str()) for name in fitting]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]


def _loaded(place: str) -> click.Command:
    """Load a command by its module and its name there.

    What is loaded stays for as long as the process: the collector is not to look through it meanwhile, nor afterwards,
    nor at the end.
    """
    gc.disable()
    module, _, name = place.partition(":")
    command: click.Command = getattr(import_module(module), name)
    gc.freeze()
    gc.enable()
    return command
