"""Backups of a log: whole copies in files of their own, made while it is in use and examined before they count.

A backup's name in the folder of backups says when it was made and the sequence of its last record. A file that bears
no such name is nobody's to list or to remove. One that was made before a log went to another format says that format
too, and is listed and never removed: it is the way back.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shlex
import sqlite3
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from spl.errors import BackupFailed, StoreDamaged, StoreNewer, StoreUnavailable
from spl.records.durable import sync
from spl.records.examination import examine
from spl.records.schema import failure, format_of, open_at_rest, open_reader, require_log

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME: Final = re.compile(r"hub-(?:format-(\d{1,9})-)?(\d{8}T\d{6}\.\d{3}Z)-(\d{1,19})\.db")
_DRAFT: Final = re.compile(r"\.spl-backup-[0-9a-f]{16}\.draft(-journal|-wal|-shm)?")
_TIME: Final = "%Y%m%dT%H%M%S"
_SIDES: Final = ("-journal", "-wal", "-shm")


class Backup(NamedTuple):
    """A backup in the folder of backups; `at` is in UTC, by the clock of the host it was made on."""

    path: Path
    at: datetime
    records: int
    format: int | None = None
    """The format that its log had before it went to the next; None of one that was made for no such reason."""


class Made(NamedTuple):
    """A backup that was made just now; `sha256` is its file's."""

    path: Path
    records: int
    sha256: str


def listed(folder: Path) -> list[Backup]:
    """Give the backups in a folder, the newest first; none of a folder that is not there.

    Those dated later than now come last: a clock that was wrong has named them, and says nothing of how new they are.
    """
    found: list[Backup] = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            backup = _named(folder / entry.name)
            if backup is not None and entry.is_file(follow_symlinks=False):
                found.append(backup)
    now = datetime.now(UTC)
    return sorted(found, key=lambda backup: (backup.at <= now, backup.at, backup.records), reverse=True)


def make(log: Path, folder: Path, to: Path | None = None, *, way_back: bool = False) -> Made:
    """Copy a log, in use or not, as it is at one moment; to a new file in the folder of backups, or to `to`.

    One that is to be the way back from another format is named by the format that it has.

    The copy is examined as if it were to be restored, and has reached the disk when this returns. Nothing is written
    over, and nothing stays of a copy that fails. Raises StoreDamaged where the log is not what was written to it,
    StoreUnavailable where it cannot be read, StoreNewer where it is of a later format, and BackupFailed where there is
    none or the copy cannot be written.
    """
    if to is not None and os.path.lexists(to):
        raise BackupFailed(f"the backup {to} cannot be made: there is a file of this name")
    if not os.path.isfile(log):
        raise BackupFailed(f"there is nothing to back up: the log {log} is not there, or no file")
    into = folder if to is None else Path(os.path.abspath(to)).parent
    try:
        # First: nothing is to be left beside a log of a later format, which reading it as one in use would.
        format_of(str(log))
        if to is None:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            # Also of one that was there: whoever made it may have been killed before this.
            sync(folder.parent)
        with _drafted(into) as draft:
            format_ = _copy(log, draft)
            records = examine(str(draft), str(log))
            digest = _settle(draft)
            path = to or folder / _name(records, format_ if way_back else None)
            _publish(draft, path)
            sync(into)
    except StoreNewer as error:
        raise newer(error, folder) from None
    except OSError as error:
        raise BackupFailed(f"a backup in {into} cannot be made: {error.strerror}") from None
    return Made(path, records, digest)


def prune(folder: Path, kept: int, spared: Path) -> list[Path]:
    """Remove all but the newest backups of a folder, never the one that is spared; give what was removed.

    Those that are the way back from another format are neither removed nor counted. Raises BackupFailed where one
    cannot be removed.
    """
    removed = []
    others = [backup.path for backup in listed(folder) if backup.format is None and backup.path != spared]
    for path in others[max(kept - 1, 0) :]:
        try:
            os.unlink(path)
        except OSError as error:
            raise BackupFailed(f"the old backup {path} cannot be removed: {error.strerror}") from None
        removed.append(path)
    return removed


def newer(error: StoreNewer, folder: Path) -> StoreNewer:
    """Give the error of a log of a later format with the newest backup in a folder that this release can restore."""
    for backup in listed(folder):
        with suppress(StoreUnavailable):
            format_of(str(backup.path))
            return StoreNewer(
                f"{error.message}; the newest backup of a format that it reads is {backup.path}",
                remedy=(
                    f"install the later release again, or type 'spl restore {shlex.quote(str(backup.path))}', which "
                    "loses what was written since"
                ),
            )
    return StoreNewer(
        f"{error.message}; no backup in {folder} is of a format that it reads",
        remedy="install the later release again",
    )


def require_room(log: Path, folder: Path) -> None:
    """Raise BackupFailed where fewer bytes than twice the log's are free, or where that cannot be told."""
    try:
        size = sum(os.stat(name).st_size for name in (log, f"{log}-wal") if os.path.exists(name))
        state = os.statvfs(folder)
    except OSError as error:
        raise BackupFailed(f"a backup in {folder} cannot be made: {error.strerror}") from None
    free = state.f_bavail * state.f_frsize
    if free < 2 * size:
        raise BackupFailed(
            f"no backup is made in {folder}: {free} bytes are free, and twice the log's {size} are asked for"
        )


def remove_with_sides(path: Path) -> None:
    """Remove a database of our own making and whatever SQLite has left beside it."""
    for side in ("", *_SIDES):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{side}")


def timestamp() -> str:
    """Give this moment, in UTC, as names have it."""
    now = datetime.now(UTC)
    return f"{now.strftime(_TIME)}.{now.microsecond // 1000:03}Z"


def _name(records: int, format_: int | None) -> str:
    return f"hub-{'' if format_ is None else f'format-{format_}-'}{timestamp()}-{records}.db"


def _named(path: Path) -> Backup | None:
    """Give the backup that a file is by its name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    try:
        at = datetime.strptime(match[2], f"{_TIME}.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return Backup(path, at, int(match[3]), None if match[1] is None else int(match[1]))


@contextmanager
def _drafted(folder: Path) -> Iterator[Path]:
    """Give a new file, 0600, for a backup in a folder; it is removed afterwards if it is still there.

    Drafts of backups that were killed go first: whoever makes one here holds the folder's lock (flock(2)), shared.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in filter(_DRAFT.fullmatch, os.listdir(folder)):
                os.unlink(folder / name)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        draft = folder / f".spl-backup-{secrets.token_hex(8)}.draft"
        os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            yield draft
        finally:
            remove_with_sides(draft)
    finally:
        os.close(descriptor)


def _copy(log: Path, draft: Path) -> int:
    """Copy a log in one transaction of SQLite's, into a file that needs none beside it; give its format."""
    with closing(_opened(log)) as source:
        try:
            source.execute("BEGIN")
            format_ = require_log(source, os.fspath(log))
        except sqlite3.Error as error:
            raise failure(f"the log {log} cannot be read", error) from error
        try:
            with closing(sqlite3.connect(draft, isolation_level=None)) as copy:
                # What a crash leaves of a draft is nothing: it is synced once, when it is whole.
                copy.execute("PRAGMA synchronous = OFF")
                source.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            found = failure(f"the log {log} cannot be read", error)
            if isinstance(found, StoreDamaged):
                raise found from error
            raise BackupFailed(f"a backup in {draft.parent} cannot be made: {error}") from error
    return format_


def _opened(log: Path) -> sqlite3.Connection:
    """Open a log for reading, in use or not; also on a disk that has become read-only, which is when it is wanted most.

    SQLite needs files beside a log that may be in use, and cannot make them there; but nobody writes to it either.
    """
    read_only = os.statvfs(log).f_flag & os.ST_RDONLY
    return open_at_rest(os.fspath(log))[0] if read_only else open_reader(os.fspath(log))


def _settle(draft: Path) -> str:
    """Have a draft reach the disk; give the SHA-256 of what it holds."""
    sync(draft)
    with open(draft, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _publish(draft: Path, path: Path) -> None:
    """Give a draft its name, which nothing may have yet."""
    try:
        os.link(draft, path, follow_symlinks=False)
    except FileExistsError:
        raise BackupFailed(f"the backup {path} cannot be made: there is a file of this name") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        # A file system without links (FAT): a name that comes between these two would be written over.
        if os.path.lexists(path):
            raise BackupFailed(f"the backup {path} cannot be made: there is a file of this name") from None
        os.rename(draft, path)
