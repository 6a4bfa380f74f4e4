"""A log as a release of the first format has left it, closed: three runs that ended, and one that was broken off."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from spl.records.mark import Mark

# Written by that release's own kernel, and dumped by SQLite.
_DUMP = Path(__file__).with_name("format_1.sql")

RECORDS, RUNS = 43, 4

ROWS = "SELECT * FROM records ORDER BY sequence"


def lay(path: Path, *, owners: bool = True) -> None:
    """Put the log at a path; without `owners` it is one that the first releases alone have opened."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_DUMP.read_text())
        if not owners:
            connection.execute("DROP INDEX records_owner")
    path.chmod(0o600)
    Mark.open(str(path), RECORDS).close()


def rows(path: Path) -> list[tuple[Any, ...]]:
    """Give every row, column by column, as the file has it."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(ROWS).fetchall()
