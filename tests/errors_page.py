"""The page that lists every error a person can meet, made from the table of spl/errors.py."""

from __future__ import annotations

from inspect import getdoc

from spl import errors

INTRODUCTION = """\
# Errors

Every error the daemon answers with and the command line exits with: over HTTP as
`{"object":"error","type","code","message"}` with the status below, on the command line on standard error with
the code and the remedy. Nothing was written when one is given, except the record of a refusal.

Exit statuses: 0 success, 2 usage, 10-19 the host, 20-29 the request, 30-39 a run, 40-49 the log, 70 a
fault of the daemon's own; 126 and 127 are a shell's, for a command that could not be tried. Made by `make docs` from
spl/errors.py.

| code | HTTP status | exit status | meaning | remedy |
|---|---|---|---|---|
"""


def rows() -> list[type[errors.SplError]]:
    """Give the errors that have a row: the table's, without what a test has derived from them."""
    return [error for error in errors.table() if error.__module__ == errors.__name__]


def page() -> str:
    """Give the text of docs/errors.md."""
    return INTRODUCTION + "".join(f"{_row(error)}\n" for error in rows())


def _row(error: type[errors.SplError]) -> str:
    meaning = (getdoc(error) or "").partition("\n\n")[0].replace("\n", " ")
    cells = [f"`{error.code}`", str(error.status), str(error.exit_status), meaning, error.remedy]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
