"""The command that says what each error means and what to do, from the one table of errors there is."""

from __future__ import annotations

from inspect import getdoc
from typing import TYPE_CHECKING, Final

import click

from spl.cli.completion import codes
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_document, print_json, print_line, print_rows
from spl.errors import NotFound, SplError, table

if TYPE_CHECKING:
    from spl.client import Json

STATUSES: Final = (
    ("0", "success, and nothing else"),
    ("1", "whoever read standard output has gone, or a measurement missed its goal"),
    ("2", "the command line itself is wrong"),
    ("10-59", "the error above that has this exit status"),
    ("70", "a fault of spl's own"),
    ("126, 127", "'spl profile try' or 'trace' has no program to run"),
    ("128-192", "a signal of the number above 128 ended the command, or the one that was tried"),
    ("130", "an interrupt, Ctrl-C; of 'spl run' also that the run was stopped by it"),
)
"""What each exit status of the command line says, beside the table of errors."""


@click.command(
    epilog=examples("spl errors", "spl errors ADMISSION_CEILING", "spl errors -o json | jq -r '.data[].code'")
)
@click.argument("code", required=False, shell_complete=codes)
@common
def errors(code: str | None, home: str | None, output: str | None) -> None:
    """List the errors and the exit statuses, or say what CODE means and what to do.

    The daemon's answers have the same codes. No daemon is needed, and no home.
    """
    del home
    if code is not None:
        print_document(_row(_named(code), whole=True), output)
        return
    rows = [_row(kind) for kind in table()]
    if is_json(output):
        statuses = [{"exit_status": status, "meaning": meaning} for status, meaning in STATUSES]
        print_json({"object": "list", "data": rows, "has_more": False, "exit_statuses": statuses})
        return
    columns = ("code", "http_status", "exit_status", "meaning", "remedy")
    print_rows(
        ("code", "HTTP", "exit", "meaning", "what to do"), ([row[name] for name in columns] for row in rows)
    )
    print_line()
    print_rows(("exit status", "meaning"), STATUSES)


def _named(code: str) -> type[SplError]:
    for kind in table():
        if kind.code.casefold() == code.casefold():
            return kind
    raise NotFound(f"there is no error {code!r}", remedy="list them with 'spl errors'")


def _row(kind: type[SplError], *, whole: bool = False) -> Json:
    """Give what the table says of an error; of what its class says the first sentence, or all."""
    said = " ".join((getdoc(kind) or "").split())
    return {
        "object": "error_code",
        "code": kind.code,
        "http_status": kind.status,
        "exit_status": kind.exit_status,
        "meaning": said if whole else said.partition(". ")[0].removesuffix("."),
        "remedy": kind.remedy,
    }
