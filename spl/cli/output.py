"""What a command prints on standard output: a JSON document, or the same as a table for people."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from spl.cli.options import STREAM
from spl.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.table import Table

# A table that is not on a terminal is searched rather than looked at: its lines should not wrap.
_WIDTH_WITHOUT_TERMINAL = 200

# What is left to each column but the first, and to the gap before it, however narrow the terminal is.
_LEAST = 7


def is_json(output: str | None) -> bool:
    """Tell whether to print JSON: asked for, or not asked for a table and not on a terminal."""
    return output == "json" or (output is None and not _terminal())


def on_terminal(descriptor: int) -> bool:
    """Tell whether a descriptor is open and a terminal's."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _terminal() -> bool:
    # None when the command was started with standard output closed.
    return sys.stdout is not None and sys.stdout.isatty()


def print_json(document: object) -> None:
    """Print a document as JSON in ASCII, so that nothing in it can reach the terminal as a command."""
    print_line(json.dumps(document, indent=2))


def print_line(text: str = "") -> None:
    """Print a line of text as it is."""
    with _printing():
        click.echo(text)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table with a line for each row.

    What stands first, an id or a name, is to be copied: it is never folded, though the lines be longer than the
    terminal is wide.
    """
    from rich.cells import cell_len  # noqa: PLC0415

    table = _table(*columns)
    widest = cell_len(columns[0])
    for row in rows:
        cells = [_cell(value) for value in row]
        table.add_row(*cells)
        widest = max(widest, cell_len(cells[0]))
    table.columns[0].no_wrap = True
    _print(table, least=widest + _LEAST * (len(columns) - 1))


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values as a table of two columns; a long value is folded inside its own."""
    table = _table("", "")
    table.show_header = False
    for name, value in pairs:
        table.add_row(_cell(name), _cell(value))
    _print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print a document as a table of names and values, what is nested under dotted names."""
    print_pairs(_flat(facts, ""))


def print_document(document: Mapping[str, Any], output: str | None) -> None:
    """Print an answer of the daemon's as it was asked for; a table does without what it is called, its `object`."""
    if output == STREAM:
        print_line(json.dumps(document))
    elif is_json(output):
        print_json(document)
    else:
        print_facts({name: value for name, value in document.items() if name != "object"})


def print_listing(listing: Mapping[str, Any], output: str | None, *columns: str) -> None:
    """Print a listing as it was asked for, these columns of it in a table."""
    if is_json(output):
        print_json(listing)
    else:
        print_rows(columns, ([row.get(column) for column in columns] for row in listing["data"]))


def _flat(facts: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, object]]:
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _table(*columns: str) -> Table:
    # rich takes longer to import than the rest of the command line together, and JSON does without it.
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _cell(value: object) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    if value is None:
        value = ""
    if isinstance(value, float) and math.isfinite(value):
        from decimal import Decimal  # noqa: PLC0415 - for a table alone

        # Small sums of money as a person writes them: 0.00008 and not 8e-05.
        value = f"{Decimal(repr(value)):f}"
    return shown(value if isinstance(value, str) else json.dumps(value))


def _print(table: Table, least: int = 0) -> None:
    """Print a table as wide as the terminal, or as the least that it needs; no line ends in blanks."""
    from rich.console import Console  # noqa: PLC0415

    # What looks like markup in somebody's text is text.
    width = None if _terminal() else _WIDTH_WITHOUT_TERMINAL
    console = Console(markup=False, highlight=False, emoji=False, width=width)
    console.width = max(console.width, least)
    with _printing():
        with console.capture() as captured:
            console.print(table)
        click.echo("\n".join(line.rstrip() for line in captured.get().split("\n")), nl=False)


@contextmanager
def _printing() -> Iterator[None]:
    """Make sure that nobody takes what was never printed for an empty answer; raises `OSError` that says what failed.

    A reader that has gone (EPIPE) has seen what it wanted, and is click's to handle.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed", "standard output")
    try:
        yield
    except OSError as error:
        if error.errno != errno.EPIPE and error.filename is None:
            error.filename = "standard output"
        raise
