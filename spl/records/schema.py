"""The log's SQLite file: its birth, what tells that it is one, and the connections to it."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from spl.errors import StoreDamaged, StoreNewer, StoreUnavailable
from spl.records.durable import sync
from spl.records.formats import FORMAT, early, parts, script, tables

APPLICATION_ID: Final = 0x73706C31  # "spl1": file(1) and we know a log by it

# So many pages of write-ahead log, 16 MB, are folded into the file at once, four times SQLite's own: whoever appends
# then waits for it, and of the pages that are written again and again only the last is folded in.
_WAL_FOLDED: Final = 4000

# A WAL that grew while a long read held it is cut back to this many bytes once it can be.
_WAL_KEPT: Final = 64 * 1024 * 1024

# How a rollback journal ends that names another file (SQLite's file format, 3).
_NAMES_ANOTHER: Final = bytes.fromhex("d9d505f920a163d7")

# What SQLite says of a file that is not what it wrote.
_DAMAGED: Final = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB))


def open_writer(path: str) -> sqlite3.Connection:
    """Open the log for writing, creating it at need with mode 0600; the caller closes the connection.

    Raises StoreUnavailable when the file cannot be opened, is not a log, or is of an earlier format, which is to be
    taken to this one first; StoreNewer when it is of a later one; StoreDamaged when SQLite finds it damaged.
    """
    _make_private(path)
    connection = connect(path, "rw")
    try:
        # The schema first, in one transaction: a crash leaves an empty file or a whole log.
        _claim(connection, path)
        make_durable(connection, path)
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
    """Give what of a log's parts is not as its format has it, word for word; may raise `sqlite3.Error`."""
    format_ = _pragma(connection, "user_version")
    due, found = tables(format_), parts(connection)
    may = due | early(format_)
    return [
        *(Stranger(*part, Fault.MORE) for part in found if part not in may),
        *(Stranger(*part, Fault.CHANGED) for part, sql in found.items() if may.get(part, sql) != sql),
        *(Stranger(*part, Fault.MISSING) for part in sorted(due.keys() - found.keys())),
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


def require_log(connection: sqlite3.Connection, path: str) -> int:
    """Give the format of a log, which is this release's or an earlier one; may raise `sqlite3.Error`.

    Raises StoreNewer of a log of a later format, StoreUnavailable of what is none.
    """
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreUnavailable(f"the log {path} cannot be opened: it is some other program's database")
    format_ = _pragma(connection, "user_version")
    if format_ > FORMAT:
        raise StoreNewer(
            f"the log {path} is of format {format_}, which a later release has written, and this release knows none "
            f"above {FORMAT}"
        )
    if format_ < 1:
        raise StoreUnavailable(f"the log {path} cannot be opened: its format is {format_}, which is none")
    return format_


def format_of(path: str) -> int:
    """Give the format of a log, whether it is in use or not; nothing is left beside it. Raises as `require_log` does.

    StoreDamaged too, where SQLite finds that it is no database.
    """
    try:
        with closing(open_at_rest(path)[0]) as connection:
            return require_log(connection, path)
    except sqlite3.Error as error:
        raise failure(f"the log {path} cannot be opened", error) from error


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

    Raises StoreUnavailable, also where something beside it is none of its own.
    """
    _require_own_sides(path)
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode={mode}"
    try:
        return sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, factory=_Connection
        )
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the log {path} cannot be opened: {error}") from error


def _require_own_sides(path: str) -> None:
    """See that what SQLite would take for a file of a database's is one, and leads to none of others.

    It waits for ever at a FIFO; and with a rollback journal that names another file, as one of a transaction over
    several databases does, it removes that file, wherever that is. No log was ever part of such a transaction.
    """
    real, cannot = os.path.realpath(path), f"the log {path} cannot be opened"
    for side in ("-wal", "-shm", "-journal"):
        with suppress(OSError):
            if not stat.S_ISREG(os.lstat(f"{real}{side}").st_mode):
                raise StoreUnavailable(f"{cannot}: its {side} file is not a regular file")
    try:
        with open(f"{real}-journal", "rb") as journal:
            journal.seek(max(0, os.fstat(journal.fileno()).st_size - len(_NAMES_ANOTHER)))
            if journal.tell() and journal.read() == _NAMES_ANOTHER:
                raise StoreUnavailable(
                    f"{cannot}: its rollback journal names another file, which SQLite would remove"
                )
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreUnavailable(f"{cannot}: its -journal file: {error.strerror}") from None


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
    """Make an empty file a log; refuse one that is something else, or of another format."""
    if is_new(connection):
        connection.executescript(
            f"BEGIN IMMEDIATE;{script()}"
            f"PRAGMA application_id = {APPLICATION_ID};PRAGMA user_version = {FORMAT};COMMIT;"
        )
    elif (format_ := require_log(connection, path)) != FORMAT:
        raise StoreUnavailable(f"the log {path} cannot be written: it is still of format {format_}")


def make_durable(connection: sqlite3.Connection, path: str) -> None:
    """Have what a connection commits reach the disk before it returns; raises StoreUnavailable, or `sqlite3.Error`."""
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreUnavailable(f"the log {path} cannot be opened: its file system does not support WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # Without it the rows that INSERT OR REPLACE removes pass the DELETE trigger by. A trigger before INSERT
    # would bind other programs too, but halves the speed of appending.
    connection.execute("PRAGMA recursive_triggers = ON")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_FOLDED}")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT}")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    with closing(connection.execute(f"PRAGMA {name}")) as cursor:
        return int(cursor.fetchone()[0])
