"""The options that every command takes, and the examples that end its help."""

from __future__ import annotations

import errno
import math
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Command = TypeVar("Command", bound="Callable[..., Any]")

STREAM: Final = "stream-json"
STREAMING: Final = ("run", "runs list", "runs tail", "thread records", "thread watch")
"""The commands that print one JSON document a line, each as soon as it is there."""

EXAMPLES: Final = "Examples:"

COMPLETE: Final = "_SPL_COMPLETE"
"""The variable that click's scripts for the shell set: the command is not run, but asked how it may go on."""


WITHOUT_OUTPUT: Final = frozenset({"serve", "try", "trace"})
"""Commands that do with standard output closed, or see to it themselves."""


class Number(click.FloatRange):
    """A number within bounds, and a number: `nan` is within all of them, and `inf` within those without an end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it; wrong usage where it is none."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class Invocation:
    """What the handler of errors has to know of the command that failed.

    Each line of an error `begins` with its priority, where standard error is systemd's journal.
    """

    def __init__(self, begins: str = "") -> None:
        self.output: str | None = None
        self.begins = begins


class _Format(click.Choice[str]):
    """How to print; what only some commands know is refused by the others with their names."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give the format; raises `BadParameter`."""
        if value == STREAM and STREAM not in self.choices:
            self.fail(f"{STREAM!r} is known to {', '.join(map(repr, STREAMING))} alone.", param, ctx)
        return super().convert(value, param, ctx)


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    del parameter
    if sys.stdout is None and context.command.name not in WITHOUT_OUTPUT and not context.resilient_parsing:
        # Before anything is done: the token that is told once would be lost.
        raise OSError(errno.EBADF, "it is closed", "standard output")
    invocation = context.find_object(Invocation)
    if invocation is not None:
        invocation.output = value
    return value


def _output(formats: Sequence[str], more: str = "") -> Callable[[Command], Command]:
    return click.option(
        "-o",
        "--output",
        type=_Format(formats),
        callback=_remember,
        help=f"How to print; a table on a terminal, else JSON, unless the command says otherwise.{more}",
    )


home_option = click.option(
    "--home", metavar="PATH", help="The instance's home; else SPL_HOME, SYNCROPEL_HOME or ~/.syncro."
)

output_option = _output(("table", "json"))

_stream_option = _output(
    ("table", "json", STREAM), " With stream-json one document a line, each as soon as it is there."
)


def common(command: Command) -> Command:
    """Give a command `--home` and `-o`, passed as `home` and `output`."""
    return home_option(output_option(command))


def streaming(command: Command) -> Command:
    """Give one of the commands of `STREAMING` what `common` gives, its `-o` with stream-json."""
    return home_option(_stream_option(command))


def examples(*lines: str, before: str = "") -> str:
    r"""Give the end of a command's help: each example on a line of its own, and a sentence before them if given.

    Click leaves a paragraph that begins with \b as it is.
    """
    told = "\n".join(["\b", EXAMPLES, *(f"  {line}" for line in lines)])
    return f"{before}\n\n{told}" if before else told
