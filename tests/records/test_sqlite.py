from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from spl.errors import IngestFailed, StoreUnavailable
from spl.records.formats import FORMAT
from spl.records.schema import APPLICATION_ID
from spl.records.sqlite import SqliteStore
from tests.records.contract import (
    OPENING,
    MakeStore,
    StoreContract,
    draft,
    in_store,
    of_kind,
    texts,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from spl.records.record import Record
    from spl.records.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
def make_store(path: Path) -> Callable[[], AbstractAsyncContextManager[SqliteStore]]:
    @asynccontextmanager
    async def make() -> AsyncIterator[SqliteStore]:
        store = await SqliteStore.open(path)
        try:
            yield store
        finally:
            await store.close()

    return make


class TestSqliteStore(StoreContract):
    pass


def connect(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(path, isolation_level=None))


async def write_two(store: Store) -> None:
    await store.append([draft("a"), draft("b")])


def refused(path: Path) -> str:
    async def run() -> None:
        await SqliteStore.open(path)

    with pytest.raises(StoreUnavailable) as error:
        asyncio.run(run())
    return error.value.message


# --- append-only ---


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET body = '{}' WHERE sequence = 1",
        "UPDATE records SET sequence = 9 WHERE sequence = 1",
        "UPDATE OR REPLACE records SET sequence = 2 WHERE sequence = 1",
        "DELETE FROM records",
        "DELETE FROM records WHERE sequence = 1",
    ],
)
def test_no_program_can_change_or_delete_a_record(path: Path, make_store: MakeStore, statement: str) -> None:
    in_store(make_store, write_two)
    with connect(path) as connection, pytest.raises(sqlite3.IntegrityError, match="a record is never"):
        connection.execute(statement)
    assert in_store(make_store, texts) == ["a", "b"]


def test_the_stores_own_connection_cannot_replace_a_record(path: Path, make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        await write_two(store)
        with pytest.raises(sqlite3.IntegrityError, match="a record is never deleted"):
            store._writer_connection.execute("INSERT OR REPLACE INTO records SELECT * FROM records LIMIT 1")
        assert await texts(store) == ["a", "b"]

    in_store(make_store, scenario)


def test_the_reading_connections_cannot_write(make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        for connection in store._reader_connections:
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.execute("CREATE TABLE more (a)")
            connection.execute("PRAGMA query_only = OFF")
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                connection.execute("CREATE TABLE more (a)")

    in_store(make_store, scenario)


# --- durability ---


@pytest.mark.claim("M5", "K3")
def test_each_commit_reaches_the_disk_before_it_is_acknowledged(make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        settings = [
            store._writer_connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous")
        ]
        assert settings == ["wal", 2]

    in_store(make_store, scenario)


def test_what_is_acknowledged_is_what_another_program_reads(path: Path, make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        with connect(path) as other:
            seen: list[int] = []
            store.subscribe(
                lambda record: seen.append(other.execute("SELECT count(*) FROM records").fetchone()[0])
            )
            await write_two(store)
            assert seen == [2, 2]

    in_store(make_store, scenario)


ACKNOWLEDGE = """
import asyncio, sys
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore

async def writer(store, number):
    while True:
        drafts = [Draft(f"th_{number}", "did:sync:user:ana", "KNOW", {"pad": "x" * 200}) for _ in range(2)]
        ids = [appended.record.id for appended in await store.append(drafts)]
        print(*ids, sep="\\n", flush=True)

async def main():
    store = await SqliteStore.open(sys.argv[1])
    await asyncio.gather(*(writer(store, number) for number in range(8)))

asyncio.run(main())
"""


@pytest.mark.claim("M5")
def test_no_acknowledged_record_is_lost_when_the_process_is_killed(path: Path, make_store: MakeStore) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ACKNOWLEDGE, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        acknowledged = [child.stdout.readline().strip() for _ in range(300)]
        child.send_signal(signal.SIGKILL)
        # The last line may have been cut off by the kill.
        acknowledged += [line.strip() for line in child.stdout if line.endswith("\n")]
    assert child.returncode == -signal.SIGKILL

    async def scenario(store: Store) -> None:
        assert all([await store.get(id_) for id_ in acknowledged])
        count = await store.count()
        assert count >= len(acknowledged) >= 300
        # Two drafts an append, all or none.
        assert all(row.records % 2 == 0 for row in await store.threads())
        await store.append([draft()])
        assert await store.count() == count + 1

    in_store(make_store, scenario)


# --- group commit ---


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file's write lock, as another program's transaction would."""
    with connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def test_appends_that_wait_together_are_committed_together(path: Path, make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        commits: list[str] = []

        def trace(statement: str) -> None:
            if statement == "COMMIT":
                commits.append(statement)

        store._writer_connection.set_trace_callback(trace)
        await asyncio.gather(*(store.append([draft(thread=f"th_{n}")]) for n in range(200)))
        assert len(commits) == 1
        assert [record.thread for record in await store.select(limit=200)] == [f"th_{n}" for n in range(200)]

    in_store(make_store, scenario)


def test_whoever_is_told_of_a_commit_keeps_no_answer_from_an_append(make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        failed = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda *_: failed.set())

        def fail(seconds: float, records: int | None) -> None:
            raise ValueError((seconds, records))

        store.committed = fail
        assert [each.created for each in await asyncio.wait_for(store.append([draft("a")]), 10)] == [True]
        assert failed.is_set()

    in_store(make_store, scenario)


def test_a_commit_that_fails_acknowledges_none_of_its_appends(path: Path, make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        told: list[Record] = []
        store.subscribe(told.append)
        store._writer_connection.execute("PRAGMA busy_timeout = 0")
        with locked(path):
            results = await asyncio.gather(
                *(store.append([draft(thread=f"th_{n}")]) for n in range(20)), return_exceptions=True
            )
        assert [type(result) for result in results] == [StoreUnavailable] * 20
        assert "locked" in str(results[0])
        assert (told, await store.count()) == ([], 0)
        await store.append([draft()])
        assert (len(told), await store.count()) == (1, 1)

    in_store(make_store, scenario)


def test_a_read_does_not_wait_for_a_writer_that_waits(path: Path, make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        await write_two(store)
        with locked(path):
            waiting = asyncio.ensure_future(store.append([draft("c")]))
            await asyncio.sleep(0)
            assert await texts(store) == ["a", "b"]
            assert not waiting.done()
        await waiting
        assert await texts(store) == ["a", "b", "c"]

    in_store(make_store, scenario)


def test_a_fault_in_the_writer_answers_every_caller_and_shuts_the_log(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: faults.append(args.exc_value))

    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        store._writer_connection.close()
        results = await asyncio.gather(*(store.append([draft()]) for _ in range(3)), return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailable] * 3
        with pytest.raises(StoreUnavailable):
            await store.append([draft()])

    in_store(make_store, scenario)
    assert [type(fault) for fault in faults] == [sqlite3.ProgrammingError]


def test_an_append_that_sqlite_cannot_hold_fails_alone(make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        store._writer_connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        first, long, last = await asyncio.gather(
            *(store.append([draft("start"), draft(text)]) for text in ("first", "x" * 20_000, "last")),
            return_exceptions=True,
        )
        assert isinstance(long, StoreUnavailable)
        assert isinstance(first, list)
        assert isinstance(last, list)
        assert await texts(store) == ["start", "first", "start", "last"]

    in_store(make_store, scenario)


# --- space ---


def test_a_full_log_refuses_and_still_reads_and_writes_again_when_there_is_room(
    make_store: MakeStore,
) -> None:
    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        await write_two(store)
        failing = [store.failing]
        [(pages,)] = store._writer_connection.execute("PRAGMA page_count").fetchall()
        store._writer_connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        results = await asyncio.gather(
            *(store.append([draft(text)]) for text in ("small", "x" * 100_000)), return_exceptions=True
        )
        assert [type(result) for result in results] == [StoreUnavailable] * 2
        assert "full" in str(results[1])
        # It is no less alive for that, and no less full for having answered.
        await store.answers()
        failing.append(store.failing)
        assert await texts(store) == ["a", "b"]
        store._writer_connection.execute("PRAGMA max_page_count = 1000000")
        await store.append([draft("x" * 100_000)])
        assert [*failing, store.failing] == [None, str(results[1]), None]
        assert await store.count() == 3

    in_store(make_store, scenario)


def test_a_writer_that_hangs_does_not_answer(make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        assert isinstance(store, SqliteStore)
        goes_on = threading.Event()
        store._writer.ask(lambda: goes_on.wait(30))
        asked = asyncio.ensure_future(store.answers())
        # The readers are other threads: what they answer tells nothing of the writer.
        assert await store.count() == 0
        assert not asked.done()
        goes_on.set()
        await asked

    in_store(make_store, scenario)


OUT_OF_SPACE = """
import asyncio, resource, sys
from spl.errors import StoreUnavailable
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore

def draft():
    return Draft("th_1", "did:sync:user:ana", "KNOW", {"pad": "x" * 5000})

async def main():
    store = await SqliteStore.open(sys.argv[1])
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    acknowledged = []
    try:
        while True:
            acknowledged += [appended.record for appended in await store.append([draft(), draft()])]
    except StoreUnavailable as error:
        print(error.message, file=sys.stderr)
    assert acknowledged
    assert await store.select(limit=1000) == acknowledged
    try:
        await store.append([draft()] * 100)
    except StoreUnavailable:
        assert await store.count() == len(acknowledged)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    acknowledged += [appended.record for appended in await store.append([draft()])]
    assert await store.select(limit=1000) == acknowledged
    await store.close()
    print(len(acknowledged))

asyncio.run(main())
"""


def test_a_disk_that_takes_no_more_loses_nothing_acknowledged(path: Path, make_store: MakeStore) -> None:
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", OUT_OF_SPACE, str(path)], capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    assert child.stderr.startswith("the log hub.db cannot be written: ")

    async def count(store: Store) -> int:
        return await store.count()

    assert in_store(make_store, count) == int(child.stdout)


# --- the file ---


def test_the_file_and_its_side_files_are_private_whatever_the_umask(
    path: Path, make_store: MakeStore
) -> None:
    async def scenario(store: Store) -> None:
        await write_two(store)
        modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}
        assert modes == dict.fromkeys(("hub.db", "hub.db-wal", "hub.db-shm", "hub.db-mark"), 0o600)

    before = os.umask(0)
    try:
        in_store(make_store, scenario)
    finally:
        os.umask(before)


def test_a_log_that_others_could_read_is_made_private_when_it_is_opened(
    path: Path, make_store: MakeStore
) -> None:
    in_store(make_store, write_two)
    path.chmod(0o644)
    assert in_store(make_store, texts) == ["a", "b"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_closing_leaves_the_file_and_its_mark_and_no_thread(path: Path, make_store: MakeStore) -> None:
    in_store(make_store, write_two)
    assert {found.name for found in path.parent.iterdir()} == {"hub.db", "hub.db-mark"}
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("spl-log")] == []


def test_a_path_with_the_marks_of_a_uri_is_only_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory#%41 é"

    async def run() -> None:
        await (await SqliteStore.open(path)).close()

    asyncio.run(run())
    assert {found.name for found in tmp_path.iterdir()} == {path.name, f"{path.name}-mark"}


def test_a_log_is_known_by_its_application_id_and_format(path: Path, make_store: MakeStore) -> None:
    in_store(make_store, write_two)
    with connect(path) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT,)


def test_another_programs_database_is_not_opened_and_not_touched(path: Path) -> None:
    with connect(path) as connection:
        connection.execute("CREATE TABLE theirs (a)")
    before = path.read_bytes()
    assert "some other program's database" in refused(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_not_opened_and_not_touched(path: Path) -> None:
    path.write_bytes(b"dear diary\n" * 1000)
    assert "not a database" in refused(path)
    assert path.read_bytes() == b"dear diary\n" * 1000


def test_a_link_a_directory_or_a_missing_directory_is_not_opened(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    assert "not a regular file" in refused(path)
    assert "not a regular file" in refused(tmp_path)
    assert "No such file or directory" in refused(tmp_path / "no" / "hub.db")
    assert not (tmp_path / "elsewhere").exists()


def test_a_first_start_that_was_cut_short_leaves_nothing_in_the_way(
    path: Path, make_store: MakeStore
) -> None:
    path.touch()
    in_store(make_store, write_two)
    assert in_store(make_store, texts) == ["a", "b"]


# --- the count ---


def test_a_refused_append_leaves_no_hole_for_the_count(make_store: MakeStore) -> None:
    async def scenario(store: Store) -> None:
        await store.append([of_kind(OPENING, clock=5)])
        for _ in range(3):
            with pytest.raises(IngestFailed):
                await store.append([draft(thread="th_2"), draft(clock=1)])
        [(record, _)] = await store.append([draft()])
        assert record.sequence == await store.count() == len(await store.select()) == 2

    in_store(make_store, scenario)
