"""What the shell completes: the command that prints the shell's part of it, and the values that can be known.

A completion says nothing but values: no error, nothing started, nothing waited for over a second. A value is put on the
command line as it stands, so one that a shell would take for more than a word is none: a rule's name may be anything.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from spl.cli.options import COMPLETE, examples, output_option
from spl.cli.output import print_json, print_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType
    from typing import NoReturn

    Values = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

_SECONDS: Final = 1.0
_MOST: Final = 200
_RUNS: Final = 50

# No colon either: bash takes it for the end of a word, and would put what follows there twice.
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@/+-]*")


class _TooLate(BaseException):
    """The second is over; no handler of errors on the way may take it for one."""


@click.command(
    epilog=examples('eval "$(spl completion bash)"', "spl completion fish | source"),
    short_help="Print what a shell needs to complete commands.",
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@output_option
def completion(shell: str, output: str | None) -> None:
    """Print what a shell needs to complete commands, their options and the values that can be known.

    To be read by the shell at its start, as in the examples. It is plain text unless JSON is asked for.
    """
    from spl.cli.calling import commands  # noqa: PLC0415 - which names this module

    found = get_completion_class(shell)
    # One of the choices: click has all three.
    if found is None:
        raise click.UsageError(f"There is no completion for {shell}.")
    script = found(commands, {}, "spl", COMPLETE).source()
    if output == "json":
        print_json({"shell": shell, "script": script})
    else:
        print_line(script)


def values(known: Callable[[click.Context], Iterable[object]], *, or_file: bool = False) -> Values:
    """Give the completion of a parameter by all the values that it may have, as far as they can be had at once.

    With `or_file` the shell completes the path of a file where none of them fits.
    """

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del parameter
        found: list[str] = []
        try:
            with _at_once():
                found = [value for value in map(str, known(context)) if _WORD.fullmatch(value)]
        except (_TooLate, Exception):  # noqa: BLE001 - a person who presses a key is told no errors
            found = []
        fitting = [CompletionItem(value) for value in dict.fromkeys(found) if value.startswith(incomplete)]
        return fitting or ([CompletionItem(incomplete, type="file")] if or_file else [])

    return complete


@contextmanager
def _at_once() -> Iterator[None]:
    """End what is inside when it takes too long, whatever it is that it waits for."""
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _give_up(_: int, __: FrameType | None) -> NoReturn:
    raise _TooLate


def _asked(context: click.Context, path: str, **query: object) -> list[dict[str, Any]]:
    """Give the rows of a listing of the daemon that the command line so far is about."""
    from spl.client import Client  # noqa: PLC0415

    client = Client.locate(context.params.get("home"))
    rows: list[dict[str, Any]] = client.request("GET", path, query=query)["data"]
    return rows


def _runs(context: click.Context, **query: object) -> Iterable[object]:
    rows = _asked(context, "/v1/runs", order="newest", limit=_RUNS, **query)
    return (row["thread"] for row in rows)


def _profiles(context: click.Context) -> Iterable[object]:
    from bwrap.library import Library  # noqa: PLC0415
    from spl.home import Home, locate  # noqa: PLC0415

    path = locate(context.params.get("home"), os.environ)
    own = Home.open(path, create=False).profiles if os.path.lexists(path) else None
    library = Library(own=own)
    return [*library.shipped(), *library.own()]


def _codes(_: click.Context) -> Iterable[object]:
    from spl.errors import table  # noqa: PLC0415

    return (kind.code for kind in table())


runs: Final = values(_runs)
runs_or_file: Final = values(_runs, or_file=True)
going: Final = values(lambda context: _runs(context, state="running"))
profiles: Final = values(_profiles)
members: Final = values(lambda context: (row["label"] for row in _asked(context, "/v1/members")))
tokens: Final = values(lambda context: (row["id"] for row in _asked(context, "/v1/tokens")))
rules: Final = values(lambda context: (row["name"] for row in _asked(context, "/v1/rules")))
codes: Final = values(_codes)
acts: Final = values(lambda _: ("INTEND", "DO", "KNOW", "LEARN", "GET", "PUT", "CALL", "MAP"))
providers: Final = values(lambda _: ("anthropic", "openai", "echo"))
