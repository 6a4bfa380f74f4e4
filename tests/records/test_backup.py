"""Backups of a log and their return: whole or not at all, whatever breaks them off."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from spl.errors import BackupFailed, SplError, StoreDamaged, StoreUnavailable
from spl.records.backup import listed, make, prune, require_room, timestamp
from spl.records.examination import Found, examine, look, unfinished
from spl.records.formats import FORMAT
from spl.records.mark import mark_of, read_mark
from spl.records.restore import begin_anew, finish, restore
from tests.full import full
from tests.records.contract import draft
from tests.records.killed import killed_at
from tests.records.logs import opened, read, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORDS = 120


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write(folder / "hub.db", RECORDS)
    return folder


@pytest.fixture
def log(tmp_path: Path, written: Path) -> Path:
    home = tmp_path / "home"
    shutil.copytree(written, home)
    return home / "hub.db"


@pytest.fixture
def folder(log: Path) -> Path:
    return log.with_name("backups")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def sql(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


# --- making ---


@pytest.mark.claim("M5")
def test_a_backup_holds_what_the_log_holds(log: Path, folder: Path) -> None:
    made = make(log, folder)
    assert made.records == RECORDS
    assert names(folder) == [made.path.name]
    assert made.path.name.endswith(f"-{RECORDS}.db")
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert hashlib.sha256(made.path.read_bytes()).hexdigest() == made.sha256
    assert [(backup.path, backup.records) for backup in listed(folder)] == [(made.path, RECORDS)]
    copy = log.with_name("copy.db")
    shutil.copy(made.path, copy)
    assert read(copy) == read(log)


def test_a_backup_is_of_one_moment_while_the_log_is_written(log: Path, folder: Path) -> None:
    async def run() -> None:
        async with opened(log) as store:
            ended = threading.Event()

            async def append() -> None:
                while not ended.is_set():
                    await store.append([draft("a", thread="th_two"), draft("b", thread="th_two")])

            appending = asyncio.ensure_future(append())
            counts = [(await asyncio.to_thread(make, log, folder)).records for _ in range(3)]
            ended.set()
            await appending
            assert counts == sorted(counts)
            # Both records of an append or neither.
            assert all((count - RECORDS) % 2 == 0 for count in counts)

    asyncio.run(run())
    assert len(listed(folder)) == 3


def test_nothing_is_written_over_and_nothing_is_made_of_nothing(log: Path, folder: Path) -> None:
    to = log.with_name("mine.db")
    assert make(log, folder, to).path == to
    before = to.read_bytes()
    with pytest.raises(BackupFailed, match="there is a file of this name"):
        make(log, folder, to)
    assert to.read_bytes() == before
    with pytest.raises(BackupFailed, match="No such file"):
        make(log, folder, log.with_name("no") / "mine.db")
    for nothing in (log.with_name("none.db"), log.parent):
        with pytest.raises(BackupFailed, match="nothing to back up"):
            make(nothing, folder)
    assert not folder.exists()


def test_a_full_disk_leaves_nothing_of_a_backup(log: Path, folder: Path) -> None:
    for most in (0, 4096, 50_000):
        with full(most), pytest.raises(SplError):
            make(log, folder)
        assert names(folder) == []
    assert make(log, folder).records == RECORDS


CHANGES = {
    "UPDATE records SET body = '{}' WHERE sequence = 9": "record 9 has another id",
    "UPDATE records SET actor = 'did:sync:user:bo' WHERE sequence = 9": "record 9 has another id",
    "UPDATE records SET kind = 'a.b.c.v1' WHERE sequence = 9": "record 9 is kept as of another kind",
    "UPDATE records SET ordinal = 9 WHERE sequence = 1": "counts the thread 'th_0' wrongly",
    "UPDATE records SET body = x'FF' WHERE sequence = 9": "record 9 cannot be read",
    "UPDATE records SET thread = CAST(x'FF' AS TEXT) WHERE sequence = 9": "no text",
    "DELETE FROM records WHERE sequence = 9": "record 9 is not there",
    "DELETE FROM records WHERE sequence = 1": "record 1 is not there",
    "DROP TRIGGER records_are_not_updated": "its trigger 'records_are_not_updated' is missing",
    "CREATE TRIGGER more AFTER INSERT ON records BEGIN SELECT 1; END": "its trigger 'more' is none of a log's",
    "CREATE VIEW more AS SELECT 1": "its view 'more' is none of a log's",
    "CREATE INDEX more ON records (data_type)": "its index 'more' is none of a log's",
    "DROP INDEX records_owner": "its index 'records_owner' is missing",
}


@pytest.mark.claim("M5")
@pytest.mark.parametrize("statement", CHANGES)
def test_no_backup_is_made_of_a_log_that_is_not_whole(log: Path, folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(log)) as connection:
        triggers = dict(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"))
        if statement.startswith(("UPDATE", "DELETE")):
            for name in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute(statement)
            for again in triggers.values():
                connection.execute(again)
        else:
            connection.execute(statement)
        connection.commit()
    with pytest.raises(StoreDamaged, match=CHANGES[statement]) as error:
        make(log, folder)
    assert str(log) in error.value.message
    assert names(folder) == []


def test_only_the_oldest_of_ours_are_removed(log: Path, folder: Path) -> None:
    folder.mkdir()
    ours = [f"hub-2024010{n}T000000.000Z-{n}.db" for n in range(1, 5)]
    others = ["hub-1.db", "hub-20241301T000000.000Z-1.db", "mine.db", "replaced-20240101T000000.000Z"]
    future = "hub-21000101T000000.000Z-7.db"
    for name in (*ours, *others, future):
        (folder / name).touch()
    (folder / "hub-20240106T000000.000Z-1.db").mkdir()
    (folder / "hub-20240107T000000.000Z-1.db").symlink_to("mine.db")
    others += ["hub-20240106T000000.000Z-1.db", "hub-20240107T000000.000Z-1.db"]
    # One made before the clock was set right, years ahead, costs none that was made since.
    assert [path.name for path in prune(folder, 3, folder / ours[3])] == [ours[0], future]
    assert names(folder) == sorted([*others, *ours[1:]])
    assert [path.name for path in prune(folder, 1, folder / ours[3])] == [ours[2], ours[1]]


def test_backups_that_a_wrong_clock_has_named_are_no_newer_than_others(folder: Path) -> None:
    folder.mkdir(parents=True)
    years = (2098, 2024, 2099, 2025)
    for year in years:
        (folder / f"hub-{year}0101T000000.000Z-{year}.db").touch()
    assert [backup.records for backup in listed(folder)] == [2025, 2024, 2099, 2098]


def test_no_room_is_said_before_a_byte_is_written(log: Path) -> None:
    require_room(log, log.parent)
    os.truncate(log, 1 << 43)
    with pytest.raises(BackupFailed, match="bytes are free"):
        require_room(log, log.parent)


# --- restoring ---


@pytest.mark.claim("M5")
def test_the_newest_whole_backup_is_restored_and_the_others_are_named(log: Path, folder: Path) -> None:
    first = make(log, folder)
    kept = read(log)
    write(log, 10, "later")
    second = make(log, folder)
    os.truncate(second.path, 20_000)
    third = folder / f"hub-{timestamp()}-999.db"
    third.write_text("no database at all")
    before = log.read_bytes()
    done = restore(log, folder)
    assert (done.source, done.records, done.salvaged) == (first.path, RECORDS, 0)
    assert [path for path, _ in done.passed_over] == [third, second.path]
    assert (done.held, done.acknowledged) == (RECORDS + 10, RECORDS + 10)
    assert done.replaced is not None
    assert done.replaced.parent == folder
    assert (done.replaced / "hub.db").read_bytes() == before
    assert read_mark(str(log)) == RECORDS
    assert read(log) == kept
    assert not log.with_name("hub.db-restoring").exists()


def test_a_log_whose_last_record_is_not_whole_does_not_say_how_far_it_goes(log: Path, folder: Path) -> None:
    make(log, folder)
    content = log.read_bytes()
    last = f'"text {RECORDS - 1}"'.encode()
    assert last in content
    log.write_bytes(content.replace(last, last.swapcase()))
    done = restore(log, folder)
    assert (done.held, done.acknowledged) == (None, RECORDS)


@pytest.mark.claim("M5")
def test_with_salvage_what_the_old_log_holds_goes_with_the_backup(log: Path, folder: Path) -> None:
    make(log, folder)
    write(log, 30, "later")
    kept = read(log)
    content = log.read_bytes()
    assert b'"later 20"' in content
    log.write_bytes(content.replace(b'"later 20"', b'"later 2O"'))
    with pytest.raises(StoreDamaged):
        read(log)
    done = restore(log, folder, salvage=True)
    # As far as the record that is not whole.
    assert (done.records, done.salvaged, done.held) == (RECORDS + 20, 20, RECORDS + 30)
    assert read(log) == kept[: RECORDS + 20]
    write(log, 1, "more")


def test_without_any_backup_salvage_takes_all_that_is_whole(log: Path, folder: Path) -> None:
    kept = read(log)
    os.truncate(log, log.stat().st_size - 1)
    with pytest.raises(BackupFailed, match="there is no backup") as error:
        restore(log, folder)
    assert "--salvage" in str(error.value.fields["remedy"])
    done = restore(log, folder, salvage=True)
    assert (done.source, done.records) == (None, done.salvaged)
    assert 0 < done.records <= RECORDS
    assert read(log) == kept[: done.records]


def test_salvage_joins_no_two_histories(log: Path, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    write(other, RECORDS - 10, "other")
    before = log.read_bytes()
    with pytest.raises(BackupFailed, match="does not go on where the backup ends"):
        restore(log, folder, other, salvage=True)
    assert log.read_bytes() == before
    assert not log.with_name("hub.db-restoring").exists()


def test_a_log_that_was_not_closed_is_restored_with_its_write_ahead_log(
    log: Path, folder: Path, tmp_path: Path
) -> None:
    for name in ("there.db", "there.db-wal"):
        (tmp_path / name).touch()

    async def run() -> None:
        async with opened(log) as store:
            await store.append([draft("in the write-ahead log alone")])
            for side in ("", "-wal"):
                shutil.copy(f"{log}{side}", tmp_path / f"there.db{side}")

    asyncio.run(run())
    assert restore(log, folder, tmp_path / "there.db").records == RECORDS + 1
    assert read(log)[-1].body["text"] == "in the write-ahead log alone"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    shutil.copy(path.with_name("hub.db"), path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def _later(path: Path) -> None:
    shutil.copy(path.with_name("hub.db"), path)
    sql(path, f"PRAGMA user_version = {FORMAT + 1}")


def _others(path: Path) -> None:
    sql(path, "CREATE TABLE records (a)")


@pytest.mark.parametrize(
    ("make_file", "said"),
    [
        (lambda path: None, "No such file"),
        (_fifo, "not a regular file"),
        (_link, "it is a symlink"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: path.touch(), "some other program's database"),
        (lambda path: path.write_text("a text" * 1000), "not a database"),
        (_later, f"of format {FORMAT + 1}, which a later release"),
        (_others, "some other program's database"),
    ],
)
def test_what_is_no_log_is_not_restored(
    log: Path, folder: Path, make_file: Callable[[Path], None], said: str
) -> None:
    file = log.with_name("file")
    make_file(file)
    before = log.read_bytes()
    with pytest.raises(SplError, match=said) as error:
        restore(log, folder, file)
    assert isinstance(error.value, BackupFailed | StoreUnavailable)
    assert log.read_bytes() == before
    assert set(names(log.parent)) <= {"file", "hub.db", "hub.db-mark", "other"}


def test_the_log_itself_is_not_restored_to_its_own_place(log: Path, folder: Path) -> None:
    with pytest.raises(BackupFailed, match="the log itself"):
        restore(log, folder, log)


def test_an_empty_log_is_put_in_place_on_purpose_alone(log: Path, folder: Path) -> None:
    done = begin_anew(log, folder)
    assert (done.records, done.held, done.acknowledged) == (0, RECORDS, RECORDS)
    assert done.replaced is not None
    assert examine(str(done.replaced / "hub.db"), "it") == RECORDS
    assert look(str(log), served=True) == Found(0, 0)
    assert read(log) == []
    write(log, 1)


def test_the_backups_of_a_log_that_is_gone_are_moved_away_all_the_same(log: Path, folder: Path) -> None:
    old = make(log, folder).path
    for path in log.parent.glob("hub.db*"):
        path.unlink()

    done = begin_anew(log, folder)

    assert done.replaced is not None
    assert (listed(folder), [backup.path.name for backup in listed(done.replaced)]) == ([], [old.name])


def test_a_full_disk_leaves_the_old_log_in_place(log: Path, folder: Path) -> None:
    make(log, folder)
    write(log, 1000, "later")
    before = log.read_bytes()
    for most, salvage in ((0, False), (4096, False), (50_000, False), (150_000, True)):
        with full(most), pytest.raises(SplError):
            restore(log, folder, salvage=salvage)
        assert log.read_bytes() == before
        assert not log.with_name("hub.db-restoring").exists()


@pytest.mark.claim("M5")
def test_what_is_salvaged_is_in_the_new_log_or_the_old_one_stays(log: Path, folder: Path) -> None:
    size = make(log, folder).path.stat().st_size
    write(log, 10, "later")
    kept = read(log)
    # Enough for the backup and for a write-ahead log, and not for folding the one into the other.
    with full(size), pytest.raises(BackupFailed, match="nothing can be put in the place"):
        restore(log, folder, salvage=True)
    assert read(log) == kept
    with full(size + 10 * 4096):
        assert restore(log, folder, salvage=True).salvaged == 10
    assert read(log) == kept


def test_where_the_backups_cannot_take_the_old_log_it_stays_beside_the_new_one(
    log: Path, folder: Path, tmp_path: Path
) -> None:
    make(log, tmp_path, tmp_path / "away.db")
    write(log, 1, "later")
    folder.touch()
    for held in (RECORDS + 1, RECORDS):
        done = restore(log, folder, tmp_path / "away.db")
        assert done.replaced is not None
        assert done.replaced.parent == log.parent
        assert done.replaced.name.startswith("hub.db-replaced-")
        assert examine(str(done.replaced / "hub.db"), "it") == held
        assert look(str(log), served=True).records == RECORDS
        assert finish(log, folder) is None


def test_a_mark_goes_with_its_log_whatever_is_there_in_its_place(log: Path, folder: Path) -> None:
    make(log, folder)
    write(log, 1, "later")
    done = restore(log, folder)
    assert done.replaced is not None
    assert read_mark(str(done.replaced / "hub.db")) == RECORDS + 1
    os.unlink(mark_of(str(log)))
    os.mkdir(mark_of(str(log)))
    done = restore(log, folder)
    assert done.acknowledged is None
    assert done.replaced is not None
    assert os.path.isdir(mark_of(str(done.replaced / "hub.db")))
    assert read_mark(str(log)) == look(str(log), served=True).records == RECORDS


# --- killed at any moment ---


@pytest.mark.claim("M5")
def test_a_backup_that_is_killed_leaves_nothing_that_counts(log: Path, folder: Path) -> None:
    for moment in range(1, 1000):
        ended = killed_at(moment, lambda: make(log, folder))
        for backup in listed(folder):
            assert examine(str(backup.path), "it") == RECORDS
        if ended:
            break
    assert moment > 5
    # The last one has cleared away what the others left.
    assert [name for name in names(folder) if not name.startswith("hub-")] == []
    assert look(str(log)).records == RECORDS


def test_a_backup_leaves_the_draft_of_one_that_is_going_on(log: Path, folder: Path) -> None:
    folder.mkdir()
    draft = folder / ".spl-backup-0123456789abcdef.draft"
    draft.touch()
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        make(log, folder)
        assert draft.exists()
    finally:
        os.close(descriptor)
    make(log, folder)
    assert not draft.exists()


@pytest.mark.claim("M5")
def test_a_restore_that_is_killed_anywhere_leaves_a_log_or_is_finished_later(
    log: Path, folder: Path, tmp_path: Path
) -> None:
    make(log, folder)
    write(log, 10, "later")
    # SQLite leaves the files beside it that one who only reads has needed.
    look(str(log))
    assert log.with_name("hub.db-wal").exists()
    old, new = RECORDS + 10, RECORDS
    whole = tmp_path / "whole"
    shutil.copytree(log.parent, whole)
    seen = set()
    for moment in range(1, 1000):
        shutil.rmtree(log.parent)
        shutil.copytree(whole, log.parent)
        ended = killed_at(moment, lambda: restore(log, folder))
        if os.path.exists(unfinished(str(log))):
            with pytest.raises(StoreDamaged, match="was broken off"):
                look(str(log), served=True)
            done = finish(log, folder)
            assert done is not None
            assert done.records == look(str(log), served=True).records == new
            assert done.held == done.acknowledged == old
            seen.add("refused")
        else:
            seen.add({old: "old", new: "new"}[look(str(log), served=True).records])
            assert finish(log, folder) is None
        # Whichever it is, the old one is somewhere.
        olds = [log, *folder.glob("replaced-*/hub.db")]
        assert any(os.path.exists(path) and look(str(path)).records == old for path in olds)
        assert not log.with_name("hub.db-restoring").exists()
        if ended:
            break
    assert seen == {"old", "refused", "new"}
