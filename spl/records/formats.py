"""What a log's file is made of, in each format that there has been: the first one, and a step from each to the next.

A new log is made by the very steps that an old one goes forward by, so that the two cannot come to differ. What a
release has written is never changed here: another format is another step.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Final, NamedTuple

# An index ends in the rowid, which is `sequence`: each of these gives its records in sequence order.
# `ordinal` is a record's place on its thread, from 1: the first ones list the threads and the last one counts
# its thread's records, so no second table has to change with every append.
# Being append-only makes `sequence` dense: max(sequence) is the number of records.
_FIRST: Final = """
CREATE TABLE records (
    sequence INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE CHECK (length(id) = 32),
    parents BLOB NOT NULL CHECK (length(parents) % 32 = 0),
    thread TEXT NOT NULL,
    actor TEXT NOT NULL,
    act TEXT NOT NULL,
    kind TEXT,
    body TEXT NOT NULL,
    clock INTEGER NOT NULL CHECK (clock >= 0),
    data_type TEXT NOT NULL,
    judged_by TEXT,
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    UNIQUE (thread, actor, clock)
);
CREATE INDEX records_thread ON records (thread);
CREATE INDEX records_actor ON records (actor);
CREATE INDEX records_kind ON records (kind) WHERE kind IS NOT NULL;
CREATE INDEX records_thread_kind ON records (thread, kind) WHERE kind IS NOT NULL;
CREATE INDEX records_opening ON records (sequence) WHERE ordinal = 1;

CREATE TRIGGER records_are_not_updated BEFORE UPDATE ON records
BEGIN SELECT RAISE(ABORT, 'a record is never changed'); END;

CREATE TRIGGER records_are_not_deleted BEFORE DELETE ON records
BEGIN SELECT RAISE(ABORT, 'a record is never deleted'); END;
"""

OWNER: Final = """CASE WHEN kind = 'core.work.loop.v1' AND json_type(body, '$.actor') = 'text'
    THEN json_extract(body, '$.actor') ELSE actor END"""
"""Whom a thread belongs to, taken over its first record; the index below serves this very expression."""


class Step(NamedTuple):
    """What makes a log of one format one of the next, as SQL; `why` is its reason."""

    why: str
    statements: tuple[str, ...]
    early: frozenset[tuple[str, str]] = frozenset()
    """Parts that a log of the format before may have already, word for word, by type and name."""


STEPS: Final = (
    Step(
        "whose a thread is was looked up by an index that releases of the first format made at each start",
        (f"CREATE INDEX IF NOT EXISTS records_owner ON records ({OWNER}) WHERE ordinal = 1",),
        early=frozenset((("index", "records_owner"),)),
    ),
)
"""The step from format n to the next is the nth."""

FORMAT: Final = 1 + len(STEPS)
"""The file's `user_version`; a higher one was written by a later release, by rules unknown to this one."""

# What SQLite makes for itself, an index over what must be unique, has no text.
_PARTS: Final = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"

Parts = dict[tuple[str, str], str]
"""What a file is made of, by type and name, each as SQLite keeps its text."""


def script(format_: int = FORMAT) -> str:
    """Give the SQL that makes a log of a format of a database that holds nothing."""
    return _FIRST + "".join(f"{statement};\n" for statement in statements(1, format_))


def statements(begun: int, to: int = FORMAT) -> list[str]:
    """Give the SQL that makes a log of one format one of another, statement by statement."""
    return [statement for step in STEPS[begun - 1 : to - 1] for statement in step.statements]


def tables(format_: int = FORMAT) -> Parts:
    """Give what a log of a format is made of."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script(format_))
        return parts(connection)


def early(format_: int) -> Parts:
    """Give what a log of a format may be made of besides."""
    if format_ >= FORMAT:
        return {}
    names = STEPS[format_ - 1].early
    return {part: sql for part, sql in tables(format_ + 1).items() if part in names}


def parts(connection: sqlite3.Connection) -> Parts:
    """Give what a database is made of; may raise `sqlite3.Error`."""
    return {(type_, name): sql for type_, name, sql in connection.execute(_PARTS)}
