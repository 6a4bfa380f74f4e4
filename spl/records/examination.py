"""Whether a log is what was written to it: a look at every opening, and a whole examination of one that rests.

The look costs the same whatever the log's size: it reads the newest records, and what is kept beside the log about
where it must end. The examination reads all of it: SQLite's own check, and each record against its id.

`judged_by` lies outside a record's id, so that a change of it alone is noticed by neither.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spl.errors import InvalidBody, StoreDamaged, StoreUnavailable
from spl.records.formats import FORMAT
from spl.records.mark import read_mark
from spl.records.queries import COUNT
from spl.records.record import record_id
from spl.records.rows import BODY, COLUMNS, UNREADABLE, to_record
from spl.records.schema import (
    failure,
    is_new,
    open_at_rest,
    open_reader,
    require_log,
    roll_back,
    strangers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.records.backup import Backup

_NEWEST: Final = 100
_MOST_BODIES: Final = 1 << 20  # characters: a hundred bodies may have a hundred times that

_FRAME: Final = 24  # bytes before the page in each frame of a write-ahead log, its number first
_HEADER: Final = 32  # bytes of a write-ahead log before its first frame
_LOCK_BYTE: Final = 1 << 30  # the page at this offset is never written (SQLite's file format, 1.4)

_BEGIN_ANEW: Final = (
    "stop the daemon, then put a backup in its place with 'spl restore'; 'spl init --new-log' begins with an empty "
    "log, without members, rules, tiers or runs"
)

_NEWEST_ROWS = f"SELECT {COLUMNS} FROM records ORDER BY sequence DESC LIMIT {_NEWEST}"  # noqa: S608 - constants
_ALL_ROWS = f"SELECT {COLUMNS} FROM records ORDER BY sequence"  # noqa: S608 - constants
# Walked in the order of an index, so that nothing is sorted.
_ORDINALS = """
SELECT thread FROM (
    SELECT thread, ordinal - row_number() OVER (PARTITION BY thread ORDER BY sequence) AS off FROM records
) WHERE off <> 0 LIMIT 1
"""


class Found(NamedTuple):
    """What a look found; `unfolded` is how many bytes of write-ahead log were left behind."""

    records: int
    unfolded: int
    format: int = FORMAT


def look(path: str, *, served: bool = False, longest: Backup | None = None) -> Found:
    """Look at a log that is about to be opened for writing.

    Nothing of it is changed, but that a creation that was broken off is undone. With `served` there must be one.
    `longest` is the backup with the most records: where no mark says how far the log went, that does. Raises
    StoreDamaged where the file is gone, empty, shorter than it says, ends below its mark or that backup, is made of
    other parts than a log, or where one of its newest records is not whole; StoreUnavailable where it cannot be opened
    or is not a log; StoreNewer where it is of a later format, beside which not even a file of SQLite's is left that was
    not there, unless it was not closed: what is in its write-ahead log is found by an index of SQLite's, hub.db-shm,
    which is made anew.
    """
    if os.path.lexists(unfinished(path)):
        raise StoreDamaged(f"the log {path} cannot be opened: putting another in its place was broken off")
    marked = read_mark(path)
    mark = marked or 0
    size, wal = _size(path), _size(f"{path}-wal") or 0
    if size and _size(f"{path}-journal"):
        roll_back(path)
        size = _size(path)
    if size is None and os.path.lexists(path):
        raise StoreUnavailable(f"the log {path} cannot be opened: it is not a regular file")
    if not size:
        if wal > _HEADER:
            raise _gone(path, size, "and its write-ahead log is there")
        if mark or served:
            raise _gone(path, size, f"and held {mark} records" if mark else "and has been in use before")
        return Found(0, 0)
    try:
        with closing(open_at_rest(path)[0]) as connection:
            if is_new(connection) and not (mark or served):
                return Found(0, 0)
            require_log(connection, path)
        with closing(open_reader(path)) as connection:
            format_ = require_log(connection, path)
            # Before anything is asked of it: a view in the place of the records may be without an end. The rest of an
            # earlier format is judged before it goes forward, by who can tell the way back too.
            _require_schema(connection, path, only=None if format_ == FORMAT else "records")
            _look_at_pages(connection, path)
            records = _look_at_newest(connection, path)
            if records < mark:
                raise StoreDamaged(
                    f"the log {path} ends at record {records} and held {mark}: what was acknowledged is gone"
                )
            # With a mark it is an older log that was put there on purpose: 'spl restore' sets the mark anew.
            if marked is None and longest is not None and records < longest.records:
                raise StoreDamaged(
                    f"the log {path} ends at record {records}, and the backup {longest.path} holds {longest.records}"
                )
    except sqlite3.Error as error:
        raise failure(f"the log {path} cannot be opened", error) from error
    except OSError as error:
        raise StoreUnavailable(f"the log {path} cannot be opened: {error.strerror}") from None
    return Found(records, wal, format_)


def examine(path: str, named: str) -> int:
    """Examine all of a log that nobody writes, called `named` in what is raised; give the number of its records.

    Raises StoreDamaged with the first thing that is not as it must be; StoreUnavailable where it cannot be read or is
    not a log; StoreNewer where it is of a later format.
    """
    try:
        with closing(open_at_rest(path)[0]) as connection:
            require_log(connection, named)
            _require_schema(connection, named)
            [(said,)] = connection.execute("PRAGMA integrity_check(1)").fetchall()
            if said != "ok":
                raise StoreDamaged(f"the log {named} is damaged: {said}")
            expected = 1
            for row in rows(connection):
                _require_whole(row, expected, named)
                expected += 1
            if wrong := connection.execute(_ORDINALS).fetchone():
                raise StoreDamaged(f"the log {named} is damaged: it counts the thread {wrong[0]!a} wrongly")
    except sqlite3.Error as error:
        raise failure(f"the log {named} cannot be examined", error) from error
    return expected - 1


def rows(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Give every record's row, in sequence order; raises `sqlite3.Error`."""
    return connection.execute(_ALL_ROWS)


def unfinished(path: str) -> str:
    """Give the path of the file that is there while another log is put in the place of this one."""
    return f"{path}-restoring/new.db"


def last_sequence(connection: sqlite3.Connection) -> int:
    """Give the sequence of a log's last record, 0 without any; raises `sqlite3.Error`."""
    last: int = connection.execute(COUNT).fetchone()[0]
    return last


def flaw(row: tuple[Any, ...]) -> str | None:
    """Say what is wrong with a record's row; None of one whose id and kind are those that its content gives."""
    _, id_, parents, thread, actor, act, kind, body, clock, data_type, _ = row
    try:
        record = to_record(row)
        by_content = record_id(record.parents, thread, actor, act, body.encode(), clock, data_type)
        by_body = record.kind
    except (InvalidBody, *UNREADABLE):
        return "cannot be read"
    if len(parents) % 32 or id_ != bytes.fromhex(by_content):
        return "has another id than its content gives"
    return None if by_body == kind else "is kept as of another kind than its body says"


def _size(path: str) -> int | None:
    """Give the bytes of a regular file, None where there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _gone(path: str, size: int | None, why: str) -> StoreDamaged:
    return StoreDamaged(f"the log {path} is {'gone' if size is None else 'empty'} {why}", remedy=_BEGIN_ANEW)


def _look_at_newest(connection: sqlite3.Connection, path: str) -> int:
    """Give the last sequence, once the newest records are seen to be whole and to follow each other."""
    last = expected = last_sequence(connection)
    characters = 0
    for row in connection.execute(_NEWEST_ROWS):
        _require_whole(row, expected, path)
        expected -= 1
        characters += len(row[BODY])
        if characters > _MOST_BODIES:
            return last
    if last - expected < _NEWEST and expected:
        raise StoreDamaged(f"the log {path} is damaged: record {expected} is not there")
    return last


def _require_whole(row: tuple[Any, ...], expected: int, named: str) -> None:
    if row[0] != expected:
        raise StoreDamaged(f"the log {named} is damaged: record {expected} is not there")
    if wrong := flaw(row):
        raise StoreDamaged(f"the log {named} is damaged: record {expected} {wrong}")


def _look_at_pages(connection: sqlite3.Connection, path: str) -> None:
    """See that each page is in the file or in the write-ahead log.

    SQLite sees to it itself, but only as long as there is nothing in a write-ahead log.
    """
    pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    there = os.stat(path).st_size // size
    lock_page = _LOCK_BYTE // size + 1
    # Page by page, and no further than the first that is missing: the number may be as wrong as all else.
    ahead = {lock_page, *_pages_ahead(f"{path}-wal", size)} if pages > there else set()
    if not all(page in ahead for page in range(there + 1, pages + 1)):
        raise StoreDamaged(f"the log {path} is damaged: it has {pages} pages and its file ends after {there}")


def _pages_ahead(path: str, size: int) -> Iterator[int]:
    """Give the numbers of the pages in a write-ahead log, of frames that no longer count too."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        end = os.fstat(descriptor).st_size
        for at in range(_HEADER, end - 3, _FRAME + size):
            yield int.from_bytes(os.pread(descriptor, 4, at), "big")
    finally:
        os.close(descriptor)


def _require_schema(connection: sqlite3.Connection, named: str, *, only: str | None = None) -> None:
    """See that the tables, indexes and triggers are a log's own: a trigger more could change what is written.

    `only` is the one name to be looked at.
    """
    for part in strangers(connection):
        if only in (None, part.name):
            raise StoreDamaged(f"the log {named} is damaged: its {part.type} {part.name!a} {part.fault}")
