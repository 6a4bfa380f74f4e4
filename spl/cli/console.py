"""The command that shows the dashboard."""

from __future__ import annotations

import os
import sys

import click

from spl.cli.options import common, examples
from spl.cli.output import on_terminal, print_json, print_line
from spl.client import Client

_WIDTH_WITHOUT_TERMINAL = 200


@click.command(
    short_help="Watch the daemon and act on it.",
    epilog=examples("spl console", "spl console --once", "spl console --once -o json | jq .runs"),
)
@common
@click.option("--once", is_flag=True, help="Print one frame as plain text and exit.")
@click.option("--no-color", is_flag=True, help="Use no colours; NO_COLOR in the environment says the same.")
def console(home: str | None, output: str | None, once: bool, no_color: bool) -> None:
    """Watch the daemon and act on it: its runs, their verdicts, the layers of this host, the rules and the log.

    Keys are told by '?'. Where standard input or output is no terminal, or a dumb one, it prints one plain frame and
    exits, as it does with --once; with -o json that is a document.
    """
    # rich takes longer to import than the rest of the command line together.
    from spl.console import state, watching  # noqa: PLC0415

    client = Client.locate(home)
    is_dumb = os.environ.get("TERM", "dumb") == "dumb"
    if once or output == "json" or is_dumb or not (on_terminal(0) and on_terminal(1)):
        known = watching.once(client)
        if output == "json":
            print_json(state.document(known))
        else:
            print_line(watching.frame(known, _width()))
        return
    watching.watch(client, color=not (no_color or os.environ.get("NO_COLOR")))


def _width() -> int:
    """Give the width of a plain frame: what COLUMNS says, or the terminal, or enough for a line not to be cut."""
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdigit() and int(said):
        return min(int(said), 10_000)
    if sys.stdout is not None and on_terminal(1):
        return os.get_terminal_size(1).columns or _WIDTH_WITHOUT_TERMINAL
    return _WIDTH_WITHOUT_TERMINAL
