"""What a command prints on standard output: a JSON document, or the same as a table for people."""

from __future__ import annotations

import errno
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from spl.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.table import Table

# A table that is not on a terminal is searched rather than looked at: its lines should not wrap.
_WIDTH_WITHOUT_TERMINAL = 200


def is_json(output: str | None) -> bool:
    """Tell whether to print JSON: asked for, or not asked for a table and not on a terminal."""
    return output == "json" or (output is None and not _terminal())


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
    """Print a table with a line for each row."""
    table = _table(*columns)
    for row in rows:
        table.add_row(*map(_cell, row))
    _print(table)


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
    if is_json(output):
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
    return shown(value if isinstance(value, str) else json.dumps(value))


def _print(table: Table) -> None:
    from rich.console import Console  # noqa: PLC0415

    # What looks like markup in somebody's text is text.
    width = None if _terminal() else _WIDTH_WITHOUT_TERMINAL
    with _printing():
        Console(markup=False, highlight=False, emoji=False, width=width).print(table)


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
