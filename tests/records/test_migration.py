"""A log of an earlier format goes forward, whole or not at all, and one of a later format is left as it is."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from spl.errors import BackupFailed, StoreDamaged, StoreNewer, StoreUnavailable
from spl.records import migration, sqlite
from spl.records.backup import listed, make, prune
from spl.records.examination import Found, examine, look
from spl.records.formats import FORMAT, parts, tables
from spl.records.mark import read_mark
from spl.records.migration import forward, migrate
from spl.records.restore import restore
from spl.records.schema import format_of
from spl.records.sqlite import SqliteStore
from spl.records.verification import verify_log
from tests.claims import ROOT
from tests.disk import disk
from tests.full import full
from tests.records.contract import draft
from tests.records.earlier import RECORDS, ROWS, RUNS, lay, rows
from tests.records.killed import killed_at
from tests.records.logs import opened, read, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OWNERS = pytest.mark.parametrize("owners", [True, False], ids=["with owners", "without owners"])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log of the first format, as its first releases wrote it."""
    home = tmp_path / "home"
    home.mkdir()
    lay(home / "hub.db", owners=False)
    return home / "hub.db"


@pytest.fixture
def folder(log: Path) -> Path:
    return log.with_name("backups")


def made_of(path: Path) -> dict[tuple[str, str], str]:
    with closing(sqlite3.connect(path)) as connection:
        return parts(connection)


def sql(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Give all that there is of the files in a folder, but when they were read."""
    return {
        path.name: (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.iterdir()
        if path.is_file()
    }


def open_once(path: Path) -> None:
    async def run() -> None:
        async with opened(path):
            pass

    asyncio.run(run())


# --- forward ---


@pytest.mark.claim("M5")
@OWNERS
def test_a_log_of_the_first_format_goes_forward_and_holds_what_it_held(tmp_path: Path, owners: bool) -> None:
    path = tmp_path / "hub.db"
    lay(path, owners=owners)
    before, kept, mark = path.read_bytes(), rows(path), read_mark(str(path))
    told: list[Found] = []

    async def run() -> None:
        async with opened(path) as store:
            told.append(store.found)
            # Whoever watches goes on where they were.
            assert [record.sequence for record in await store.select(since=40)] == [41, 42, 43]
            [appended] = await store.append([draft("after")])
            assert appended.record.sequence == RECORDS + 1

    asyncio.run(run())
    assert told == [Found(RECORDS, 0, 1)]
    assert format_of(str(path)) == FORMAT
    assert made_of(path) == tables()
    assert rows(path)[:-1] == kept
    assert verify_log(path).verdict == "internally consistent"
    [backup] = listed(tmp_path / "backups")
    assert (backup.format, backup.records) == (1, RECORDS)
    assert backup.path.name.startswith("hub-format-1-")
    assert stat.S_IMODE(backup.path.stat().st_mode) == 0o600
    assert (rows(backup.path), format_of(str(backup.path))) == (kept, 1)
    # The log was closed, and all of it in its file: but for where SQLite counts its changes the backup is that file.
    assert backup.path.stat().st_size == len(before)
    assert (mark, read_mark(str(path))) == (RECORDS, RECORDS + 1)
    open_once(path)
    assert listed(tmp_path / "backups") == [backup]


def test_a_log_that_was_not_closed_goes_forward_with_its_write_ahead_log(log: Path, folder: Path) -> None:
    with closing(sqlite3.connect(log)) as writer, closing(sqlite3.connect(log)) as other:
        other.execute("SELECT 1 FROM records").fetchall()
        writer.execute("DROP INDEX IF EXISTS records_owner")
        writer.execute("CREATE INDEX more ON records (act)")
        writer.execute("DROP INDEX more")
        shutil.copytree(log.parent, log.parent.with_name("killed"))
    path = log.parent.with_name("killed") / "hub.db"
    assert path.with_name("hub.db-wal").stat().st_size > 0
    open_once(path)
    assert (format_of(str(path)), rows(path)) == (FORMAT, rows(log))
    assert [backup.records for backup in listed(path.with_name("backups"))] == [RECORDS]


@pytest.mark.claim("M5")
def test_a_migration_that_is_killed_anywhere_is_made_by_the_next_opening_with_one_backup(
    log: Path, folder: Path, tmp_path: Path
) -> None:
    kept = rows(log)
    whole = tmp_path / "whole"
    shutil.copytree(log.parent, whole)
    seen = set()
    for moment in range(1, 1000):
        shutil.rmtree(log.parent)
        shutil.copytree(whole, log.parent)
        ended = killed_at(moment, lambda: migrate(str(log), look(str(log)), folder), statements=True)
        found = look(str(log), served=True)
        backups = listed(folder)
        seen.add((found.format, len(backups)))
        assert made_of(log) == {1: made_of(whole / "hub.db"), FORMAT: tables()}[found.format]
        # Never a step without a whole backup.
        assert [examine(str(backup.path), "it") for backup in backups] == [RECORDS] * len(backups)
        open_once(log)
        assert (format_of(str(log)), rows(log)) == (FORMAT, kept)
        assert [(backup.format, backup.records) for backup in listed(folder)] == [(1, RECORDS)]
        if backups:
            assert listed(folder) == backups
        if ended:
            break
    assert seen == {(1, 0), (1, 1), (FORMAT, 1)}


# Takes a log forward, and is killed before the nth statement that changes it.
KILLED = """
import os, signal, sys
from pathlib import Path
from spl.records import migration
from spl.records.examination import look

connect, left = migration.connect, int(sys.argv[2])

def counted(path, mode):
    def count(statement):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    connection = connect(path, mode)
    connection.set_trace_callback(count)
    return connection

migration.connect = counted
migration.migrate(sys.argv[1], look(sys.argv[1]), Path(sys.argv[1]).with_name("backups"))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.claim("M5")
@pytest.mark.skipif(os.getuid() != 0, reason="a disk of the test's own needs root")
def test_the_backup_is_there_when_the_power_goes_after_the_first_step_or_the_last(
    log: Path, tmp_path: Path
) -> None:
    kept = rows(log)
    with disk(tmp_path, 64) as drive:
        for moment in (1, 1000):
            home = drive.path / str(moment)
            shutil.copytree(log.parent, drive.seen(home))
            drive.sync()
            command = [*drive.prefix, sys.executable, "-c", KILLED, str(home / "hub.db"), str(moment)]
            ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60)
            assert ended.returncode == -signal.SIGKILL
            drive.cut()
            drive.unmount()
            drive.mount()
            shutil.copytree(drive.seen(home), tmp_path / str(moment))
    for moment, format_ in ((1, 1), (1000, FORMAT)):
        path = tmp_path / str(moment) / "hub.db"
        [backup] = listed(path.with_name("backups"))
        assert examine(str(backup.path), "it") == RECORDS
        assert look(str(path), served=True).format == format_
        open_once(path)
        assert (format_of(str(path)), rows(path)) == (FORMAT, kept)
        assert len(listed(path.with_name("backups"))) == 1


OPEN = """
import asyncio, sys
from spl.records.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    print(await store.count())
    await store.close()

sys.stdin.readline()
asyncio.run(main())
"""


def test_of_two_that_open_a_log_at_once_each_has_it_whole_or_is_refused(log: Path, folder: Path) -> None:
    kept = rows(log)
    command = [sys.executable, "-c", OPEN, str(log)]
    pipe = subprocess.PIPE
    both = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    for each in both:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    said = [each.communicate(timeout=60) for each in both]
    # The home's lock keeps two daemons from it; where it is not taken, both may choose one name for their backups.
    assert [each for each in said if each[0].endswith(f"\n{RECORDS}\n")]
    assert all("there is a file of this name" in errors for _, errors in said if errors)
    assert (format_of(str(log)), made_of(log), rows(log)) == (FORMAT, tables(), kept)
    assert {backup.records for backup in listed(folder)} == {RECORDS}


def test_nothing_goes_forward_that_was_written_to_after_its_backup(log: Path) -> None:
    for said in (RECORDS - 1, RECORDS + 1):
        with pytest.raises(StoreUnavailable, match="written to after it was backed up"):
            forward(str(log), said)
    assert format_of(str(log)) == 1


# --- what is in the way ---


@pytest.mark.claim("M5")
def test_a_full_disk_leaves_the_log_and_nothing_of_a_backup(log: Path, folder: Path) -> None:
    before = state(log.parent)
    for most in (0, 4096, 50_000):
        with (
            capture_logs(),
            full(most),
            pytest.raises((BackupFailed, StoreUnavailable), match="is left in format 1") as error,
        ):
            migrate(str(log), Found(RECORDS, 0, 1), folder)
        assert "make room" in str(error.value.fields["remedy"])
        assert {name: found for name, found in state(log.parent).items() if name in before} == before
        assert list(folder.iterdir()) == []
    open_once(log)


@pytest.mark.claim("M5")
def test_a_disk_that_is_full_in_the_middle_of_a_step_leaves_the_log_as_it_was(
    log: Path, folder: Path
) -> None:
    made = make(log, folder, way_back=True)
    kept, before = rows(log), made_of(log)
    # With it open, what SQLite keeps beside it is there already: it is the step's own writing that fails, which takes
    # 8272 bytes.
    with closing(sqlite3.connect(log)) as reader:
        reader.execute(f"SELECT 1 FROM ({ROWS})").fetchone()
        for most in (0, 4096, 8200):
            with (
                capture_logs(),
                full(most),
                pytest.raises(StoreUnavailable, match=f"cannot be taken to format {FORMAT}"),
            ):
                migrate(str(log), Found(RECORDS, 0, 1), folder)
            assert (format_of(str(log)), made_of(log), rows(log)) == (1, before, kept), most
    open_once(log)
    assert format_of(str(log)) == FORMAT
    assert [backup.path for backup in listed(folder)] == [made.path]


@pytest.mark.claim("M5")
def test_without_a_backup_a_log_stays_in_its_format(log: Path, folder: Path) -> None:
    folder.touch()
    before = state(log.parent)
    with pytest.raises(
        BackupFailed, match=r"is left in format 1: a backup in .* cannot be made: Not a directory"
    ):
        open_once(log)
    after = state(log.parent)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE INDEX more ON records (act)", "its index 'more' is none of a log's"),
        ("CREATE INDEX records_owner ON records (actor)", "its index 'records_owner' is not as a log has it"),
        ("DROP TRIGGER records_are_not_deleted", "its trigger 'records_are_not_deleted' is missing"),
    ],
)
def test_a_log_that_is_not_what_its_format_says_does_not_go_forward(
    log: Path, folder: Path, statement: str, said: str
) -> None:
    sql(log, statement)
    before = made_of(log)
    with pytest.raises(StoreDamaged, match=f"is left in format 1: .*{said}") as error:
        open_once(log)
    assert "--salvage" in str(error.value.fields["remedy"])
    # The step itself looks again, at what has come of it.
    with pytest.raises(StoreDamaged, match=f"cannot be taken to format {FORMAT}: {said}"):
        forward(str(log))
    assert (format_of(str(log)), made_of(log), listed(folder)) == (1, before, [])


def test_before_a_log_goes_forward_its_backup_has_reached_the_disk_with_every_folder_that_leads_to_it(
    log: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, synced = os.fsync, list[str]()

    def told(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def broken_off(path: str, records: int | None = None) -> None:
        raise StoreUnavailable("broken off")

    # As one that was killed has left it: nobody knows whether it is on the disk.
    folder.mkdir()
    monkeypatch.setattr(os, "fsync", told)
    with monkeypatch.context() as patch:
        patch.setattr(migration, "forward", broken_off)
        with pytest.raises(StoreUnavailable, match="broken off"):
            open_once(log)
    home = str(folder.parent)
    assert {str(folder), home} <= set(synced)
    synced.clear()
    open_once(log)
    (backup,) = listed(folder)
    assert synced.index(str(backup.path)) < synced.index(str(folder)) < synced.index(home)


def test_only_a_whole_backup_of_the_same_records_is_used_again(log: Path, folder: Path) -> None:
    cut, other = (make(log, folder, way_back=True).path for _ in range(2))
    os.truncate(cut, cut.stat().st_size - 4096)
    # Whole as well, and of another history: its last record is another's.
    alone = log.with_name("other.db")
    write(alone, RECORDS)
    sql(alone, "DROP INDEX records_owner; PRAGMA user_version = 1")
    shutil.copy(alone, other)
    open_once(log)
    used = [backup.path for backup in listed(folder) if backup.path not in (cut, other)]
    assert len(used) == 1
    assert rows(used[0]) == rows(log)


@contextmanager
def held(folder: Path) -> Iterator[Callable[[], None]]:
    """Have whoever makes a backup in a folder wait; gives what lets them go on."""
    folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def test_it_is_said_again_and_again_that_a_migration_goes_on_and_what_that_raises_ends_it(
    log: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_STILL", 0.01)
    said = 0

    def progress() -> None:
        nonlocal said
        said += 1
        if said == 3:
            raise StoreUnavailable("it is told to stop")

    async def run() -> None:
        try:
            with pytest.raises(StoreUnavailable, match="told to stop"):
                await asyncio.wait_for(SqliteStore.open(log, progress=progress), 10)
        finally:
            release()

    with held(folder) as release:
        asyncio.run(run())
    assert said == 3
    open_once(log)
    assert format_of(str(log)) == FORMAT


# --- the way back ---


def later(path: Path) -> None:
    """Make a log of a later format, which others may read, and whose file is a year old."""
    sql(path, f"PRAGMA user_version = {FORMAT + 1}")
    for name in (path, path.with_name("hub.db-mark")):
        name.chmod(0o644)
        os.utime(name, (1_600_000_000, 1_600_000_000))


@pytest.mark.claim("M5")
def test_a_log_of_a_later_format_is_refused_by_all_and_not_touched(tmp_path: Path) -> None:
    path, folder, another = tmp_path / "hub.db", tmp_path / "backups", tmp_path / "another.db"
    write(path, 5)
    first = make(path, folder).path
    write(path, 5, "later")
    later(path)
    shutil.copy(path, folder / "hub-20990101T000000.000Z-10.db")
    shutil.copy(path, another)
    before = state(tmp_path)
    formats = f"of format {FORMAT + 1}, which a later release has written, and this release knows none above {FORMAT}"
    for refuse in (
        lambda: open_once(path),
        lambda: make(path, folder),
        lambda: make(path, folder, tmp_path / "to.db"),
    ):
        with pytest.raises(StoreNewer, match=f"{formats}; the newest backup .* is {first}") as error:
            refuse()
        assert f"'spl restore {first}'" in str(error.value.fields["remedy"])
        assert state(tmp_path) == before
    for also in (
        lambda: verify_log(path),
        lambda: restore(path, folder, another),
        lambda: restore(path, folder, salvage=True),
    ):
        with pytest.raises(StoreNewer, match=formats):
            also()
        assert state(tmp_path) == before
    assert StoreNewer.exit_status == 45
    # One whose daemon was killed: what it left is left, but for SQLite's own index of it.
    (path.with_name("hub.db-wal")).write_bytes(b"")
    before = state(tmp_path)
    with pytest.raises(StoreNewer, match=formats):
        open_once(path)
    assert {name: found for name, found in state(tmp_path).items() if name != "hub.db-shm"} == before
    first.unlink()
    with pytest.raises(StoreNewer, match=r"no backup in .* is of a format that it reads") as error:
        open_once(path)
    assert error.value.fields["remedy"] == "install the later release again"


def test_the_way_back_restores_what_the_log_was_before(log: Path, folder: Path) -> None:
    kept = rows(log)
    open_once(log)
    later(log)
    done = restore(log, folder)
    assert (done.format, done.records) == (1, RECORDS)
    assert rows(log) == kept
    # The backup that was restored is the way back again: no other is made.
    open_once(log)
    assert (format_of(str(log)), rows(log), len(listed(folder))) == (FORMAT, kept, 1)


def test_what_a_log_holds_after_a_backup_of_an_earlier_format_is_salvaged(log: Path, folder: Path) -> None:
    open_once(log)
    write(log, 10, "later")
    kept = read(log)
    [backup] = listed(folder)
    done = restore(log, folder, backup.path, salvage=True)
    assert (done.format, done.records, done.salvaged) == (FORMAT, RECORDS + 10, 10)
    assert read(log) == kept


@pytest.mark.parametrize("kept", [1, 3])
def test_what_is_the_way_back_is_never_removed_and_costs_no_other_its_place(
    log: Path, folder: Path, kept: int
) -> None:
    open_once(log)
    made = [make(log, folder).path for _ in range(5)]
    assert len(prune(folder, kept, made[-1])) == 5 - kept
    left = listed(folder)
    assert [backup.format for backup in left] == [None] * kept + [1]


# --- as it is ---


@pytest.mark.claim("V2")
@OWNERS
def test_a_log_of_an_earlier_format_is_verified_and_backed_up_as_it_is(tmp_path: Path, owners: bool) -> None:
    path = tmp_path / "hub.db"
    lay(path, owners=owners)
    before = state(tmp_path)
    found = verify_log(path)
    assert [finding.text for finding in found.findings] == []
    assert (found.records, found.runs) == (RECORDS, RUNS)
    assert state(tmp_path) == before
    to = tmp_path / "copy.db"
    assert make(path, tmp_path, to).records == RECORDS
    assert (format_of(str(to)), made_of(to), rows(to)) == (1, made_of(path), rows(path))
    assert verify_log(to).findings.count == 0
    sql(to, "CREATE INDEX more ON records (act)")
    assert [finding.check for finding in verify_log(to).findings] == ["schema"]
