"""Putting another log in the place of one: a backup, with what the old log still holds, or an empty one.

The caller holds the home's lock, so that no daemon has the log open. What is put there is made and examined in a folder
beside the log first, and gets the name `new.db` in it once it is whole and has reached the disk. From then on a start
is refused until the old log's files have been moved into that folder and the new one has the log's name: whatever
breaks it off, the old log is in place, or the new one, or `finish` goes on where it ended. Nothing of the old log is
deleted: its folder is moved among the backups.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from shutil import copyfileobj
from typing import TYPE_CHECKING, Final, NamedTuple

from spl.errors import BackupFailed, StoreNewer, StoreUnavailable
from spl.records.backup import listed, remove_with_sides, timestamp
from spl.records.durable import sync
from spl.records.examination import examine, flaw, last_sequence, unfinished
from spl.records.formats import FORMAT
from spl.records.mark import Mark, mark_of, read_mark
from spl.records.migration import forward
from spl.records.queries import LAST_ORDINAL, insertion
from spl.records.rows import COLUMNS
from spl.records.schema import (
    connect,
    failure,
    format_of,
    open_at_rest,
    open_reader,
    open_writer,
    require_log,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# The log itself last: as long as it is there, its write-ahead log has either not been moved or a start is refused.
_SIDES: Final = ("-journal", "-shm", "-wal", "")
_SHARED: Final = 100
_ID, _THREAD = (COLUMNS.split(", ").index(name) for name in ("id", "thread"))

_ANOTHER: Final = "name another backup, or none: then the newest that is whole is taken"

_ROW = f"SELECT {COLUMNS} FROM records NOT INDEXED WHERE sequence = ?"  # noqa: S608 - constants
_NEWEST = f"SELECT {COLUMNS} FROM records NOT INDEXED ORDER BY sequence DESC LIMIT 1"  # noqa: S608 - constants
_ID_AT = "SELECT id FROM records WHERE sequence = ?"


class PassedOver(NamedTuple):
    """A backup that did not pass its examination, and why."""

    path: Path
    why: str


class Restored(NamedTuple):
    """What was put in a log's place."""

    source: Path | None
    """The backup; None where all is salvaged from the old log, and where the log begins anew."""
    format: int
    """The format of what was put there; the next start takes one of an earlier release's to its own."""
    records: int
    salvaged: int
    """How many of the records the backup did not hold and the old log did."""
    replaced: Path | None
    """The folder that holds the old log now, or what was there of it; None where there was nothing."""
    held: int | None
    """The last sequence of the old log, None where it cannot be read."""
    acknowledged: int | None
    """The sequence up to which its records were acknowledged, None where nothing says so."""
    passed_over: list[PassedOver]


def restore(log: Path, folder: Path, file: Path | None = None, *, salvage: bool = False) -> Restored:
    """Put a backup in the place of a log: this file, or the newest in the folder of backups that is whole.

    With `salvage` each later record goes with it that the old log still holds whole, up to the first that it does
    not; where there is no backup, from the first record on. Raises BackupFailed where there is nothing to restore,
    StoreUnavailable and StoreDamaged where the file is not a whole log, StoreNewer where it, or what is to be salvaged,
    is of a later format; nothing is changed then.
    """
    if file is not None and os.path.exists(log) and os.path.exists(file) and os.path.samefile(log, file):
        raise BackupFailed(f"the file {file} cannot be restored: it is the log itself")
    source, passed_over = file, list[PassedOver]()
    with _draft(log) as draft:
        if source is None:
            source, passed_over = _take_newest(folder, draft, salvage=salvage)
        else:
            _take_named(source, draft)
        salvaged = _salvage(log, draft) if salvage else 0
        records = examine(os.fspath(draft), f"to be put in the place of {log}") if salvaged else _end(draft)
        format_ = format_of(os.fspath(draft))
        held, acknowledged = _held(log), read_mark(os.fspath(log))
        replaced = _swap(log, folder, draft, records)
    return Restored(source, format_, records, salvaged, replaced, held, acknowledged, passed_over)


def begin_anew(log: Path, folder: Path) -> Restored:
    """Put an empty log in the place of a log, whose backups go with it; raises BackupFailed and StoreUnavailable."""
    with _draft(log) as draft:
        open_writer(os.fspath(draft)).close()
        held, acknowledged = _held(log), read_mark(os.fspath(log))
        replaced = _swap(log, folder, draft, 0)
    return Restored(None, FORMAT, 0, 0, _retire(folder, replaced), held, acknowledged, [])


def finish(log: Path, folder: Path) -> Restored | None:
    """Put to its end what was broken off; None where there was nothing, or where the old log is in place.

    Raises BackupFailed where it cannot be.
    """
    whole = Path(unfinished(os.fspath(log)))
    if not os.path.isdir(whole.parent):
        return None
    try:
        if os.path.lexists(whole):
            records, format_ = _end(whole), format_of(os.fspath(whole))
            replaced = _move(log, folder, records)
            if replaced is None:
                return Restored(None, format_, records, 0, None, None, None, [])
            old = replaced / log.name
            return Restored(None, format_, records, 0, replaced, _held(old), read_mark(os.fspath(old)), [])
        remove_with_sides(_draft_of(log))
        _put_away(log, folder)
    except (OSError, sqlite3.Error) as error:
        raise BackupFailed(f"what was broken off in {whole.parent} cannot be finished: {error}") from None
    return None


def _draft_of(log: Path) -> Path:
    return Path(unfinished(os.fspath(log))).with_name("draft.db")


@contextmanager
def _draft(log: Path) -> Iterator[Path]:
    """Give the path of what is to become a log's successor; it is removed again if it has not become that."""
    draft = _draft_of(log)
    try:
        os.mkdir(draft.parent, 0o700)
        try:
            yield draft
        finally:
            remove_with_sides(draft)
            # Not where something of the old log lies in it, or the whole new one.
            with suppress(OSError):
                os.rmdir(draft.parent)
    except (OSError, sqlite3.Error) as error:
        raise BackupFailed(f"nothing can be put in the place of the log {log}: {error}") from None


def _take_newest(folder: Path, draft: Path, *, salvage: bool) -> tuple[Path | None, list[PassedOver]]:
    passed_over = []
    for backup in listed(folder):
        try:
            _take(backup.path, draft)
        except (BackupFailed, StoreUnavailable) as error:
            remove_with_sides(draft)
            passed_over.append(PassedOver(backup.path, error.message))
        else:
            return backup.path, passed_over
    if not salvage:
        found = (
            f"none of {len(passed_over)} backups in {folder} is whole"
            if passed_over
            else "there is no backup"
        )
        why = f": {passed_over[0].why}" if passed_over else f" in {folder}"
        raise BackupFailed(
            f"{found}{why}", remedy="name another backup, or take what the log still holds with --salvage"
        )
    open_writer(os.fspath(draft)).close()
    return None, passed_over


def _take_named(file: Path, draft: Path) -> None:
    try:
        _take(file, draft)
    except StoreUnavailable as error:
        # Its own remedy is about a daemon's log, and nothing is to be put in the place of this file.
        raise type(error)(error.message, remedy=_ANOTHER) from error


def _take(file: Path, draft: Path) -> None:
    """Copy a log's file, with a write-ahead log beside it, and examine the copy."""
    _copy(file, draft)
    if os.path.lexists(f"{file}-wal"):
        _copy(Path(f"{file}-wal"), Path(f"{draft}-wal"))
    try:
        with closing(connect(os.fspath(draft), "rw")) as connection:
            require_log(connection, os.fspath(file))
            _fold_in(connection)
    except sqlite3.Error as error:
        raise failure(f"the log {file} cannot be read", error) from error
    examine(os.fspath(draft), os.fspath(file))


def _copy(file: Path, draft: Path) -> None:
    with (
        open(_opened(file), "rb") as source,
        open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as copy,
    ):
        copyfileobj(source, copy, 1 << 20)


def _opened(path: Path) -> int:
    """Open what is to be a log's file, and give the descriptor; raises BackupFailed of what is none."""
    cannot = f"the file {path} cannot be restored"
    try:
        # Not blocking, for what should be a file and is a FIFO.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        reason = "it is a symlink" if os.path.islink(path) else error.strerror
        raise BackupFailed(f"{cannot}: {reason}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BackupFailed(f"{cannot}: it is not a regular file")
    return descriptor


def _end(path: Path) -> int:
    with closing(open_at_rest(os.fspath(path))[0]) as connection:
        return last_sequence(connection)


def _held(log: Path) -> int | None:
    """Give the last sequence of a log that may be damaged; None where its last record is not whole."""
    if not os.path.isfile(log):
        return None
    try:
        with closing(open_at_rest(os.fspath(log))[0]) as connection:
            last = connection.execute(_NEWEST).fetchone()
    except (StoreUnavailable, sqlite3.Error):
        return None
    if last is None:
        return 0
    # A page that is torn has numbers as well, and any.
    return None if flaw(last) else last[0]


def _salvage(log: Path, draft: Path) -> int:
    """Add to a draft the records that follow its own in a log that may be damaged; give their number."""
    if not os.path.isfile(log):
        return 0
    _require_not_newer(log)
    try:
        old = open_reader(os.fspath(log))
    except StoreUnavailable:
        return 0
    # Records are added by the rules of this release's format alone.
    forward(os.fspath(draft))
    with closing(old), closing(open_writer(os.fspath(draft))) as new:
        end = last_sequence(new)
        for sequence in range(max(end - _SHARED, 0) + 1, end + 1):
            row = _whole_row(old, sequence)
            if row is not None and row[_ID] != new.execute(_ID_AT, (sequence,)).fetchone()[0]:
                raise BackupFailed(
                    f"the log {log} does not go on where the backup ends: record {sequence} is another there"
                )
        sequence = end
        new.execute("BEGIN IMMEDIATE")
        while (row := _whole_row(old, sequence + 1)) is not None:
            last = new.execute(LAST_ORDINAL, (row[_THREAD],)).fetchone()
            try:
                new.execute(insertion(1), (*row, 1 if last is None else last[0] + 1))
            except sqlite3.IntegrityError:
                break
            sequence += 1
        new.execute("COMMIT")
        _fold_in(new)
        return sequence - end


def _require_not_newer(log: Path) -> None:
    """Raise StoreNewer of a log of a later format: what its records come to is by rules that are unknown here."""
    try:
        format_of(os.fspath(log))
    except StoreNewer as error:
        raise StoreNewer(
            error.message, remedy="install the later release again, or restore without --salvage"
        ) from None
    except StoreUnavailable:
        # Damaged, which is what there is to salvage from: each of its records is looked at by itself.
        return


def _fold_in(connection: sqlite3.Connection) -> None:
    """Have all of a database in its one file, with nothing beside it; raises `sqlite3.Error`.

    Closing does it too, and says nothing where it could not: on a full disk, what was committed would be left behind.
    """
    if connection.execute("PRAGMA journal_mode = DELETE").fetchone() != ("delete",):
        raise sqlite3.OperationalError("its write-ahead log cannot be folded in")


def _whole_row(connection: sqlite3.Connection, sequence: int) -> tuple[Any, ...] | None:
    try:
        row: tuple[Any, ...] | None = connection.execute(_ROW, (sequence,)).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None or flaw(row) else row


def _swap(log: Path, folder: Path, draft: Path, records: int) -> Path | None:
    """Put a draft, which is whole, into a log's place; give the folder of what was there."""
    sync(draft)
    os.rename(draft, unfinished(os.fspath(log)))
    sync(draft.parent)
    sync(log.parent)
    return _move(log, folder, records)


def _move(log: Path, folder: Path, records: int) -> Path | None:
    """Move the old log away and the new one into its place, from wherever that was broken off."""
    whole = Path(unfinished(os.fspath(log)))
    mark, away = mark_of(os.fspath(log)), mark_of(os.fspath(whole.with_name(log.name)))
    # Whatever is there in its place. Once it has been moved, what is there is the new log's.
    if os.path.lexists(mark) and not os.path.lexists(away):
        os.rename(mark, away)
    for side in _SIDES:
        if os.path.lexists(f"{log}{side}"):
            os.rename(f"{log}{side}", whole.with_name(f"{log.name}{side}"))
    sync(whole.parent)
    sync(log.parent)
    Mark.open(os.fspath(log), records).close()
    os.rename(whole, log)
    sync(log.parent)
    sync(whole.parent)
    return _put_away(log, folder)


def _retire(folder: Path, replaced: Path | None) -> Path | None:
    """Move the backups of a log that was put away to it; give where it is with them, None where there is nothing.

    Among those of the log that follows they would be the newest for a while, and then be removed for its own. What
    cannot be moved stays: the new log is in place by now.
    """
    with suppress(OSError):
        if old := listed(folder):
            # Where the log could not be moved among its backups, they cannot be moved to it either.
            into = replaced if replaced and replaced.parent == folder else folder / f"replaced-{timestamp()}"
            with suppress(FileExistsError):
                os.mkdir(into, 0o700)
            for backup in old:
                os.rename(backup.path, into / backup.path.name)
            sync(into)
            sync(folder)
            return replaced or into
    return replaced


def _put_away(log: Path, folder: Path) -> Path | None:
    """Move the old log's folder among the backups; None where it is empty, and gone then.

    Where it cannot be moved there (the folder of backups is another file system's, or nobody may write to it), it stays
    beside the log under such a name.
    """
    into = _draft_of(log).parent
    with suppress(OSError):
        os.rmdir(into)
        return None
    name = f"replaced-{timestamp()}"
    away = folder / name
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        os.rename(into, away)
    except OSError:
        away = log.with_name(f"{log.name}-{name}")
        os.rename(into, away)
    sync(away.parent)
    sync(log.parent)
    return away
