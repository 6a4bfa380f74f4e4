"""The options that every command takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., Any]")


@dataclass
class Invocation:
    """What the handler of errors has to know of the command that failed."""

    output: str | None = None


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del parameter
    invocation = context.find_object(Invocation)
    if invocation is not None:
        invocation.output = value
    return value


home_option = click.option(
    "--home", metavar="PATH", help="The instance's home; else SPL_HOME, SYNCROPEL_HOME or ~/.syncro."
)

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    callback=_remember,
    help="How to print; a table on a terminal, else JSON, unless the command says otherwise.",
)


def common(command: Command) -> Command:
    """Give a command `--home` and `-o`, passed as `home` and `output`."""
    return home_option(output_option(command))
