"""A log that is not what was written to it: seen at its opening, or when it is met, and never added to."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spl.errors import SplError, StoreDamaged, StoreUnavailable
from spl.records.backup import Backup
from spl.records.examination import Found, examine, look
from spl.records.mark import mark_of, read_mark
from spl.records.sqlite import SqliteStore
from tests.records.contract import draft, texts
from tests.records.logs import opened, read, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.records.record import Record
    from spl.records.writer import Append, Outcome

RECORDS = 300


# One record a commit, up to the number; then it dies as by a kill.
KILLED = """
import asyncio, os, signal, sys
from tests.records.contract import draft
from spl.records.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    for n in range(int(sys.argv[2])):
        await store.append([draft(f"late {n}", thread="th_late")])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def rested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a log that was closed."""
    folder = tmp_path_factory.mktemp("rested")
    write(folder / "hub.db", RECORDS)
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, rested: Path) -> Path:
    """Give the folder of a log whose writer was killed: forty of its records are in the write-ahead log alone."""
    folder = tmp_path_factory.mktemp("killed")
    shutil.copytree(rested, folder, dirs_exist_ok=True)
    child = subprocess.run([sys.executable, "-c", KILLED, str(folder / "hub.db"), "40"], timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert (folder / "hub.db-wal").stat().st_size > 40 * 4096
    return folder


@pytest.fixture
def log(tmp_path: Path, rested: Path) -> Path:
    """Give a log that was closed, for this test alone."""
    shutil.copytree(rested, tmp_path, dirs_exist_ok=True)
    return tmp_path / "hub.db"


@pytest.fixture
def unclosed(tmp_path: Path, killed: Path) -> Path:
    """Give a log whose writer was killed, for this test alone."""
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    return tmp_path / "hub.db"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


def refused(path: Path) -> StoreDamaged:
    """Give why a log is not opened; what is there of it is as it was."""
    before = contents(path.parent)

    async def run() -> None:
        await SqliteStore.open(path)

    with pytest.raises(StoreDamaged) as error:
        asyncio.run(run())
    after = contents(path.parent)
    assert {name: after[name] for name in before} == before
    assert str(path) in error.value.message
    return error.value


def page(path: Path, name: str) -> int:
    """Give the offset of the root page of a table or an index."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        [(root,)] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,))
        [(size,)] = connection.execute("PRAGMA page_size")
        return (int(root) - 1) * int(size)


def overwrite(path: Path, at: int, content: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(content)


def replace(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new))


def delete(path: Path, sequence: int) -> None:
    """Delete a record and leave all that keeps others from it as it was."""
    trigger = "records_are_not_deleted"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        [(said,)] = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (trigger,))
        connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("DELETE FROM records WHERE sequence = ?", (sequence,))
        connection.execute(said)


def lay_journal(log: Path, *, names: Path) -> None:
    """Put a rollback journal beside a log that is to be undone, as of a transaction over it and another database.

    See SQLite's file format, 3: it holds the first page as it is, and the path of what SQLite is to remove after that.
    """
    size, nonce, magic = 4096, 1, bytes.fromhex("d9d505f920a163d7")
    content = log.read_bytes()
    checked = nonce + sum(content[at] for at in range(size - 200, 0, -200))
    head = magic + struct.pack(">5I", 1, nonce, len(content) // size, 512, size)
    first = struct.pack(">I", 1) + content[:size] + struct.pack(">I", checked)
    name = os.fsencode(names)
    last = struct.pack(">I", (1 << 30) // size + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    Path(f"{log}-journal").write_bytes(head.ljust(512, b"\0") + first + last)


# --- at rest ---

AT_REST: dict[str, Callable[[Path], None]] = {
    "its header is no database's": lambda path: overwrite(path, 0, b"x" * 64),
    "its header is gone": lambda path: overwrite(path, 0, b"\0" * 100),
    "it is cut off in the middle": lambda path: os.truncate(path, path.stat().st_size // 2 // 4096 * 4096),
    "it is cut off by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "it is empty": lambda path: os.truncate(path, 0),
    "it is gone": lambda path: path.unlink(),
    "a text of the newest records is another": lambda path: replace(path, b"text 290", b"text 29O"),
    "its table's first page is garbage": lambda path: overwrite(path, page(path, "records"), b"\xff" * 4096),
    "the last record is gone": lambda path: delete(path, RECORDS),
    "one of the newest records is gone": lambda path: delete(path, RECORDS - 50),
}


@pytest.mark.claim("M5")
@pytest.mark.parametrize("damage", AT_REST)
def test_a_log_that_was_damaged_at_rest_is_not_opened_and_not_touched(log: Path, damage: str) -> None:
    AT_REST[damage](log)
    error = refused(log)
    assert error.exit_status == 42
    assert "spl restore" in str(error.fields.get("remedy", error.remedy))


@pytest.mark.claim("M5")
def test_an_older_copy_in_the_place_of_the_log_is_noticed(log: Path) -> None:
    older = log.read_bytes()

    write(log, 1, "more")
    log.write_bytes(older)
    assert f"ends at record {RECORDS} and held {RECORDS + 1}" in refused(log).message


def test_a_log_that_must_be_there_and_is_not_is_no_new_one(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    for empty in (False, True):
        if empty:
            path.touch()
        with pytest.raises(StoreDamaged) as error:
            look(str(path), served=True)
        assert "init --new-log" in str(error.value.fields["remedy"])
    assert look(str(path)) == Found(0, 0)


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("elsewhere"), lambda path: path.mkdir()])
def test_what_is_no_file_in_the_place_of_the_log_is_not_called_gone(
    log: Path, make: Callable[[Path], None]
) -> None:
    log.rename(log.with_name("elsewhere"))
    make(log)
    with pytest.raises(StoreUnavailable, match="it is not a regular file") as error:
        look(str(log), served=True)
    assert type(error.value) is StoreUnavailable


@pytest.mark.parametrize("side", ["-wal", "-shm", "-journal"])
def test_what_is_no_file_beside_the_log_is_refused_and_not_waited_for(log: Path, side: str) -> None:
    os.mkfifo(f"{log}{side}")
    with pytest.raises(StoreUnavailable, match=f"its {side} file is not a regular file"):
        look(str(log))


def test_a_rollback_journal_cannot_have_a_file_elsewhere_removed(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("somebody's")
    lay_journal(log, names=other)
    with pytest.raises(StoreUnavailable, match="its rollback journal names another file"):
        look(str(log))
    assert other.read_text() == "somebody's"


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (
            """
            DROP TABLE records;
            CREATE VIEW records AS WITH RECURSIVE without_end (sequence) AS (
                SELECT 1 UNION ALL SELECT sequence + 1 FROM without_end
            ) SELECT * FROM without_end;
            """,
            "view 'records' is none of a log's",
        ),
        (
            "CREATE TRIGGER lost BEFORE INSERT ON records BEGIN SELECT RAISE(IGNORE); END",
            "trigger 'lost' is none of a log's",
        ),
    ],
)
def test_nothing_is_asked_of_or_written_to_what_is_made_otherwise_than_a_log(
    log: Path, statements: str, said: str
) -> None:
    with closing(sqlite3.connect(log)) as connection:
        connection.executescript(statements)
    assert said in refused(log).message


def test_without_its_mark_a_log_is_measured_by_the_longest_backup(log: Path) -> None:
    backup = Backup(log.with_name("b.db"), datetime.now(UTC), RECORDS + 1)
    assert look(str(log), longest=backup).records == RECORDS
    mark = log.with_name("hub.db-mark")
    overwrite(mark, 12, b"\xff")
    for gone in (False, True):
        if gone:
            mark.unlink()
        assert read_mark(str(log)) is None
        with pytest.raises(StoreDamaged, match=r"ends at record 300, and the backup .*b\.db holds 301"):
            look(str(log), longest=backup)
        assert look(str(log), longest=backup._replace(records=RECORDS)).records == RECORDS


def test_a_mark_that_is_behind_accuses_no_log(log: Path) -> None:
    os.unlink(mark_of(str(log)))

    async def run() -> None:
        async with opened(log) as store:
            assert await store.count() == RECORDS
        assert read_mark(str(log)) == RECORDS

    asyncio.run(run())


# --- the write-ahead log ---


@pytest.mark.claim("M5")
def test_a_log_whose_writer_was_killed_is_whole_and_says_what_was_left(unclosed: Path) -> None:
    async def run() -> None:
        async with opened(unclosed) as store:
            assert store.found.records == await store.count() == RECORDS + 40
            assert store.found.unfolded > 40 * 4096
        async with opened(unclosed) as store:
            assert store.found == Found(RECORDS + 40, 0)

    asyncio.run(run())


AHEAD: dict[str, Callable[[Path], None]] = {
    "a byte in its middle is another": lambda wal: overwrite(wal, wal.stat().st_size // 2, b"\xff\xfe\xfd"),
    "its header is garbage": lambda wal: overwrite(wal, 0, b"x" * 32),
    "its last frame is garbage": lambda wal: overwrite(wal, wal.stat().st_size - 100, b"x" * 100),
    "it is cut off in the middle": lambda wal: os.truncate(wal, wal.stat().st_size // 2),
    "it is empty": lambda wal: os.truncate(wal, 0),
    "it is gone": lambda wal: wal.unlink(),
}


@pytest.mark.claim("M5")
@pytest.mark.parametrize("damage", AHEAD)
def test_records_that_were_acknowledged_in_a_write_ahead_log_are_missed(unclosed: Path, damage: str) -> None:
    AHEAD[damage](unclosed.with_name("hub.db-wal"))
    assert f"and held {RECORDS + 40}: what was acknowledged is gone" in refused(unclosed).message


def test_a_write_ahead_log_without_its_file_is_no_new_log(unclosed: Path) -> None:
    os.unlink(mark_of(str(unclosed)))
    os.truncate(unclosed, 0)
    assert "its write-ahead log is there" in refused(unclosed).message
    unclosed.unlink()
    assert "its write-ahead log is there" in refused(unclosed).message


def test_a_file_that_is_cut_off_under_its_write_ahead_log_is_noticed(unclosed: Path) -> None:
    os.truncate(unclosed, 4096)
    assert "its file ends after 1" in refused(unclosed).message


def test_an_index_of_the_write_ahead_log_that_is_garbage_is_made_anew(unclosed: Path) -> None:
    unclosed.with_name("hub.db-shm").write_bytes(random.Random(1).randbytes(32768))

    async def run() -> None:
        async with opened(unclosed) as store:
            assert await store.count() == RECORDS + 40

    asyncio.run(run())


# --- in use ---


def test_damage_that_is_read_ends_the_writing_and_not_the_reading(log: Path) -> None:
    async def run() -> None:
        async with opened(log) as store:
            # The table itself stays as it is, and is read by sequence.
            overwrite(log, page(log, "records_thread"), b"\xff" * 4096)
            with pytest.raises(StoreDamaged, match=r"^the log hub\.db cannot be read: ") as error:
                await store.select(thread="th_3")
            assert store.failing == error.value.message
            for _ in range(2):
                with pytest.raises(StoreDamaged, match="cannot be read"):
                    await store.append([draft("after")])
            assert store.failing == error.value.message
            assert len(await texts(store, limit=1000)) == RECORDS

    asyncio.run(run())


def test_damage_that_a_write_meets_ends_the_writing(log: Path) -> None:
    async def run() -> None:
        async with opened(log) as store:
            overwrite(log, page(log, "sqlite_autoindex_records_2"), b"\xff" * 4096)
            results = await asyncio.gather(
                *(store.append([draft(thread=f"th_{n}")]) for n in range(3)), return_exceptions=True
            )
            assert [type(result) for result in results] == [StoreDamaged] * 3
            assert store.failing is not None
            assert store.failing.startswith("the log hub.db cannot be written: ")
            with pytest.raises(StoreDamaged):
                await store.append([draft()])
            assert await store.count() == RECORDS

    asyncio.run(run())


def test_a_record_that_cannot_be_read_as_one_is_damage(log: Path) -> None:
    # Long ago: no look at the opening comes there.
    replace(log, b'{"text":"text 17"}', b'{"text":"text 17" ')

    async def run() -> None:
        async with opened(log) as store:
            with pytest.raises(StoreDamaged, match="it holds a record that is none"):
                await store.select(limit=20)
            with pytest.raises(StoreDamaged):
                await store.append([draft()])

    asyncio.run(run())


def last_leaf(path: Path, name: str) -> int:
    """Give the offset of the last page of an index's entries (SQLite's file format, 1.6)."""
    root, content = page(path, name), path.read_bytes()
    assert content[root] == 2
    return (int.from_bytes(content[root + 8 : root + 12], "big") - 1) * 4096


@pytest.mark.claim("M5")
@pytest.mark.parametrize("met", ["a record that is none", "a page that is none"])
def test_of_appends_that_are_written_together_none_is_added_to_a_log_that_one_of_them_finds_damaged(
    log: Path, met: str
) -> None:
    if met == "a record that is none":
        # The one that is there, as far as its thread, its actor and its clock say.
        replace(log, b'{"text":"text 17"}', b'{"text":"text 17" ')
        meets = draft("text 17", thread="th_3", clock=3)
    else:
        overwrite(log, last_leaf(log, "sqlite_autoindex_records_2"), b"\xff" * 4096)
        meets = draft(thread="th_6")

    async def run() -> None:
        async with opened(log) as store:
            results = await asyncio.gather(
                store.append([draft(thread="th_0")]), store.append([meets]), return_exceptions=True
            )
            assert [type(result) for result in results] == [StoreDamaged] * 2
            assert await store.count() == RECORDS

    asyncio.run(run())


def test_damage_that_was_met_while_records_were_written_is_said_after_they_are_answered(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with opened(log) as store:
            deliver = store._writer._deliver

            def met(outcomes: list[tuple[Append, Outcome]], seconds: float) -> None:
                store._call_in_loop(store._refuse, StoreDamaged("it is damaged"))
                deliver(outcomes, seconds)

            monkeypatch.setattr(store._writer, "_deliver", met)
            assert (await store.append([draft("before")]))[0].created
            assert store.failing == "it is damaged"

    asyncio.run(run())


@pytest.mark.claim("M5")
@pytest.mark.parametrize("side", ["", "-wal"])
@pytest.mark.parametrize("moved", ["is gone", "has been put in its place"])
def test_nothing_is_acknowledged_once_a_file_is_another(log: Path, moved: str, side: str) -> None:
    def move() -> None:
        file = log.with_name(f"{log.name}{side}")
        file.rename(log.with_name("elsewhere"))
        if moved != "is gone":
            shutil.copy(log.with_name("elsewhere"), file)

    async def run() -> None:
        async with opened(log) as store:
            await store.append([draft("before")])
            move()
            with pytest.raises(StoreDamaged, match=moved):
                await store.append([draft("after")])

    asyncio.run(run())


# --- whatever it is ---


def without_judge(records: list[Record]) -> list[dict[str, object]]:
    """Give what of the records their ids stand for."""
    return [{**record.wire(), "judged_by": None} for record in records]


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_is_harmless_or_noticed(log: Path, rested: Path, seed: int) -> None:
    whole = without_judge(read(log))
    content = bytearray(log.read_bytes())
    chosen = random.Random(seed)
    noticed = 0
    for _ in range(25):
        at, bit = chosen.randrange(len(content)), 1 << chosen.randrange(8)
        spoilt = bytearray(content)
        spoilt[at] ^= bit
        log.write_bytes(spoilt)
        try:
            records = examine(str(log), "it")
        except StoreUnavailable:
            noticed += 1
            records = None
        # A log in use may give another record than was written, and nothing worse; an examined one may not.
        try:
            found = read(log)
        except SplError:
            assert records is None, (at, bit)
        else:
            assert records is None or without_judge(found) == whole, (at, bit)
        for name in ("hub.db-wal", "hub.db-shm", "hub.db-mark"):
            log.with_name(name).unlink(missing_ok=True)
    assert noticed


@pytest.mark.parametrize("seed", range(2))
def test_a_log_cut_off_anywhere_is_noticed(log: Path, seed: int) -> None:
    content = log.read_bytes()
    chosen = random.Random(seed)
    for _ in range(15):
        log.write_bytes(content[: chosen.randrange(len(content))])
        refused(log)


@pytest.mark.parametrize("seed", range(2))
def test_a_write_ahead_log_cut_off_anywhere_is_noticed(unclosed: Path, seed: int) -> None:
    wal = unclosed.with_name("hub.db-wal")
    content = wal.read_bytes()
    chosen = random.Random(seed)
    for _ in range(10):
        wal.write_bytes(content[: chosen.randrange(len(content))])
        refused(unclosed)
