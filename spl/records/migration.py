"""A log of an earlier format goes forward: first a backup of it as it is, then every step in one transaction.

Whatever breaks it off, a kill, a loss of power, a full disk, the log is what it was, and the next opening tries again.
A backup that was made for one that was broken off is used again, so that they do not pile up.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from spl.errors import BackupFailed, StoreDamaged, StoreUnavailable
from spl.records.backup import listed, make
from spl.records.durable import sync
from spl.records.examination import examine, last_sequence, rows
from spl.records.formats import FORMAT, statements
from spl.records.schema import (
    connect,
    failure,
    format_of,
    make_durable,
    open_at_rest,
    require_log,
    strangers,
)

if TYPE_CHECKING:
    from spl.records.examination import Found

_MEND: Final = "make room there, or mend what the message names, then start again: nothing was changed"
_NOT_WHOLE: Final = (
    "the release before this one serves it as it is; a backup that is whole is put in its place with 'spl restore', or "
    "with --salvage what this one still holds as well"
)

_log = structlog.get_logger("spl.records")


def migrate(path: str, found: Found, folder: Path) -> None:
    """Take a log to this release's format, once a whole backup of it has reached the disk in the folder of backups.

    `found` is what a look at it gave; nobody may write to it meanwhile. Nothing is changed where this raises
    BackupFailed, because no backup can be made, StoreDamaged, because the log is not whole, or StoreUnavailable.
    """
    _log.info(
        "the log is of an earlier format: it is backed up, and then taken to this one",
        format=found.format,
        to=FORMAT,
        records=found.records,
    )
    left = f"the log is left in format {found.format}"
    try:
        backup = _there_already(path, found, folder) or make(Path(path), folder, way_back=True).path
    except StoreDamaged as error:
        raise StoreDamaged(f"{left}: {error.message}", remedy=_NOT_WHOLE) from error
    except (BackupFailed, StoreUnavailable) as error:
        raise type(error)(f"{left}: {error.message}", remedy=_MEND) from error
    except OSError as error:
        raise BackupFailed(
            f"{left}: a backup in {folder} cannot be made: {error.strerror}", remedy=_MEND
        ) from None
    forward(path, found.records)
    _log.info("the log was taken to this format", format=FORMAT, records=found.records, path=str(backup))


def forward(path: str, records: int | None = None) -> None:
    """Take a log to this release's format, in one transaction, without a backup; one that has it stays as it is.

    With `records` the log must hold as many. Raises StoreDamaged where what comes of it is not what a log of this
    format is made of, StoreUnavailable where it cannot be written; the log is what it was then.
    """
    cannot = f"the log {path} cannot be taken to format {FORMAT}"
    try:
        # What is not committed when the connection is closed never was.
        with closing(connect(path, "rw")) as connection:
            if require_log(connection, path) == FORMAT:
                return
            make_durable(connection, path)
            connection.execute("BEGIN IMMEDIATE")
            # Asked again: from here on nobody else writes to it.
            begun = require_log(connection, path)
            if records is not None and last_sequence(connection) != records:
                raise StoreUnavailable(f"{cannot}: it was written to after it was backed up")
            for statement in statements(begun):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            for part in strangers(connection):
                raise StoreDamaged(f"{cannot}: its {part.type} {part.name!a} {part.fault}")
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise failure(cannot, error) from error


def _there_already(path: str, found: Found, folder: Path) -> Path | None:
    """Give a backup that was made to be the way back to this very log, and is whole; raises `OSError`."""
    for backup in listed(folder):
        if (backup.format, backup.records) != (found.format, found.records):
            continue
        copy = os.fspath(backup.path)
        with suppress(StoreUnavailable):
            if format_of(copy) == found.format and examine(copy, copy) == found.records and _same(copy, path):
                # Whoever made it may have been killed before its name, or the folder's, had reached the disk.
                sync(copy)
                sync(folder)
                sync(folder.parent)
                return backup.path
    return None


def _same(copy: str, path: str) -> bool:
    """Tell whether two logs hold the same records, to the last byte."""
    try:
        with closing(open_at_rest(copy)[0]) as one, closing(open_at_rest(path)[0]) as other:
            return all(row == as_well for row, as_well in zip_longest(rows(one), rows(other)))
    except sqlite3.Error as error:
        raise failure(f"the log {path} cannot be read", error) from error
