"""The log's SQLite file: its birth, what tells that it is one, its tables, and the connections to it."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from spl.errors import StoreDamaged, StoreUnavailable
from spl.records.durable import sync

APPLICATION_ID: Final = 0x73706C31  # "spl1": file(1) and we know a log by it
FORMAT: Final = 1
"""The file's `user_version`; a higher one was written by a later release, by rules unknown to this one."""

# A WAL that grew while a long read held it is cut back to this many bytes once it can be.
_WAL_KEPT: Final = 64 * 1024 * 1024

# An index ends in the rowid, which is `sequence`: each of these gives its records in sequence order.
# `ordinal` is a record's place on its thread, from 1: the first ones list the threads and the last one counts
# its thread's records, so no second table has to change with every append.
# Being append-only makes `sequence` dense: max(sequence) is the number of records.
_SCHEMA: Final = """
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

# Came after the format did, and leaves it as it is: an earlier release reads and writes a file with this index.
_OWNERS: Final = f"CREATE INDEX IF NOT EXISTS records_owner ON records ({OWNER}) WHERE ordinal = 1"

# What SQLite makes for itself, an index over what must be unique, has no text.
_PARTS: Final = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"

# What SQLite says of a file that is not what it wrote.
_DAMAGED: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))


def open_writer(path: str) -> sqlite3.Connection:
    """Open the log for writing, creating it at need with mode 0600; the caller closes the connection.

    Raises StoreUnavailable when the file cannot be opened, is not a log, or is one of a later release; StoreDamaged
    when SQLite finds it damaged.
    """
    _make_private(path)
    connection = connect(path, "rw")
    try:
        # The schema first, in one transaction: a crash leaves an empty file or a whole log.
        _claim(connection, path)
        _make_durable(connection, path)
        connection.execute(_OWNERS)
    except sqlite3.Error as error:
        connection.close()
        raise failure(f"the log {path} cannot be opened", error) from error
    except StoreUnavailable:
        connection.close()
        raise
    return connection


def open_reader(path: str) -> sqlite3.Connection:
    """Open a log for reading only, which others may write; the caller closes the connection.

    A write-ahead log that was left behind is read, and neither folded into the file nor removed. Raises
    StoreUnavailable when the file cannot be opened.
    """
    connection = connect(path, "ro")
    try:
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        connection.close()
        raise failure(f"the log {path} cannot be opened", error) from error
    return connection


def open_at_rest(path: str) -> tuple[sqlite3.Connection, bool]:
    """Open a log for reading only, whether a writer holds it open or none does; the caller closes the connection.

    Tells too whether it is read as a file that nobody writes to, of which the caller makes sure: where no write-ahead
    log stands beside it, none is made (SQLite would leave one behind, and needs to be able to), and nothing is locked.
    The file may be anyone's making: ask `strangers` about it before anything else is asked of it. Raises
    StoreUnavailable when the file cannot be opened.
    """
    path = os.path.realpath(path)
    quiet = not os.path.exists(f"{path}-wal") and not os.path.exists(f"{path}-journal")
    connection = connect(path, "ro&immutable=1" if quiet else "ro")
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cell_size_check = ON")
    except sqlite3.Error as error:
        connection.close()
        raise failure(f"the log {path} cannot be opened", error) from error
    return connection, quiet


def tables() -> dict[tuple[str, str], str]:
    """Give what a log's file is made of, by type and name, each as SQLite keeps its text."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(f"{_SCHEMA}{_OWNERS};")
        return _parts(connection)


def _parts(connection: sqlite3.Connection) -> dict[tuple[str, str], str]:
    return {(type_, name): sql for type_, name, sql in connection.execute(_PARTS)}


class Fault(StrEnum):
    """What is wrong with a part of a file, to be read after its name."""

    MORE = "is none of a log's"
    CHANGED = "is not as a log has it"
    MISSING = "is missing"


class Stranger(NamedTuple):
    """A table, an index, a trigger or a view that is not as a log has it."""

    type: str
    name: str
    fault: Fault


def strangers(connection: sqlite3.Connection) -> list[Stranger]:
    """Give what of a file's parts is not a log's, word for word; may raise `sqlite3.Error`."""
    due, found = tables(), _parts(connection)
    # Came later: a log that only an earlier release has opened has none.
    missing = due.keys() - found.keys() - {("index", "records_owner")}
    return [
        *(Stranger(*part, Fault.MORE) for part in found if part not in due),
        *(Stranger(*part, Fault.CHANGED) for part, sql in found.items() if due.get(part, sql) != sql),
        *(Stranger(*part, Fault.MISSING) for part in sorted(missing)),
    ]


def roll_back(path: str) -> None:
    """Undo what a creation that was broken off has left in the file; raises StoreUnavailable when it cannot be."""
    try:
        with closing(connect(path, "rw")) as connection:
            is_new(connection)
    except sqlite3.Error as error:
        raise failure(f"the log {path} cannot be opened", error) from error


def failure(what: str, error: sqlite3.Error) -> StoreUnavailable:
    """Give the error for what SQLite refused: StoreDamaged where the file is not what was written to it.

    `what` is the beginning of its sentence. All else (no room, no permission, an input or output error) may pass.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if code is None and str(error).startswith("Could not decode to UTF-8"):
        # Python's own word, which quotes all of the text.
        return StoreDamaged(f"{what}: it holds a text that is no text")
    damaged = code is not None and code & 0xFF in _DAMAGED
    return (StoreDamaged if damaged else StoreUnavailable)(f"{what}: {error}")


def is_new(connection: sqlite3.Connection) -> bool:
    """Tell whether a database holds nothing and says it is nothing yet; may raise `sqlite3.Error`."""
    names = ("application_id", "user_version", "schema_version")
    return not any(_pragma(connection, name) for name in names)


def require_log(connection: sqlite3.Connection, path: str) -> None:
    """Raise StoreUnavailable of a database that is not a log, or one of a later release; may raise `sqlite3.Error`."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreUnavailable(f"the log {path} cannot be opened: it is some other program's database")
    version = _pragma(connection, "user_version")
    if version != FORMAT:
        raise StoreUnavailable(
            f"the log {path} cannot be opened: its format is {version}, this release knows only {FORMAT}"
        )


class _Connection(sqlite3.Connection):
    """A connection whose errors are SQLite's own, also of a schema that is no text."""

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """See `sqlite3.Connection.execute`."""
        try:
            return super().execute(sql, parameters)
        except UnicodeDecodeError:
            # SQLite quotes the schema in its message, and Python cannot read it.
            raise sqlite3.DatabaseError("Could not decode to UTF-8: the schema") from None


def connect(path: str, mode: str) -> sqlite3.Connection:
    """Connect to a database in a mode of SQLite's, `ro` or `rw`, without transactions of Python's own making.

    Raises StoreUnavailable.
    """
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode={mode}"
    try:
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, factory=_Connection
        )
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the log {path} cannot be opened: {error}") from error


def _make_private(path: str) -> None:
    """Create the file as 0600, or take from an older one what others may do with it.

    SQLite gives its side files the mode of the file.
    """
    try:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            # Never by opening it: closing any descriptor of the file drops SQLite's locks in this process.
            for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
                with suppress(FileNotFoundError):
                    _tighten(name)
        else:
            sync(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise StoreUnavailable(f"the log {path} cannot be opened: {error.strerror}") from error


def _tighten(path: str) -> None:
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode):
        raise StoreUnavailable(f"the log {path} cannot be opened: it is not a regular file")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        os.chmod(path, stat.S_IMODE(mode) & stat.S_IRWXU)
    # SQLite would quietly open it read-only, and the first append would be the one to fail.
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreUnavailable(f"the log {path} cannot be opened: this user may not write it")


def _claim(connection: sqlite3.Connection, path: str) -> None:
    """Make an empty file a log; refuse one that is something else."""
    if is_new(connection):
        connection.executescript(
            f"BEGIN IMMEDIATE;{_SCHEMA}"
            f"PRAGMA application_id = {APPLICATION_ID};PRAGMA user_version = {FORMAT};COMMIT;"
        )
    else:
        require_log(connection, path)


def _make_durable(connection: sqlite3.Connection, path: str) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreUnavailable(f"the log {path} cannot be opened: its file system does not support WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # Without it the rows that INSERT OR REPLACE removes pass the DELETE trigger by. A trigger before INSERT
    # would bind other programs too, but halves the speed of appending.
    connection.execute("PRAGMA recursive_triggers = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT}")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    with closing(connection.execute(f"PRAGMA {name}")) as cursor:
        return int(cursor.fetchone()[0])
