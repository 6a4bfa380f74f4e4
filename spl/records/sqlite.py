"""The log in one SQLite file: group commit for writing, read-only connections beside it for reading."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from spl.errors import QueryExceeded, SplError, StoreDamaged, StoreNewer, StoreUnavailable
from spl.records import queries
from spl.records.backup import newer
from spl.records.conditions import condition
from spl.records.durable import sync
from spl.records.examination import Found, look
from spl.records.formats import FORMAT
from spl.records.mark import Mark
from spl.records.migration import migrate
from spl.records.record import is_record_id
from spl.records.rows import BODY, UNREADABLE, Checked, to_record
from spl.records.schema import failure, open_reader, open_writer
from spl.records.store import Appended, Matches, Plan, ThreadRow
from spl.records.writer import Append, Outcome, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from spl.records.backup import Backup
    from spl.records.filter import Search
    from spl.records.record import Draft, Record

T = TypeVar("T")

_READERS: Final = 2
_STILL: Final = 1.0
"""Seconds after which is said again that the log is still being taken to another format."""
_AGAIN: Final = 0.05
"""Seconds after which a connection is interrupted once more."""
_MANY_THREADS: Final = 1000
"""An owner of more has so much of the log that a page of it is found soonest by walking along the log."""
_WALKED: Final = 5000
_WALKED_OF_KIND: Final = 10
"""How many records are walked along before each of the owner's threads is looked at after all; of a kind, times ten."""
_FURTHER: Final = 4
"""How many times as far is walked for an owner of so many times the threads."""
_MAX_INTEGER: Final = 2**63 - 1  # SQLite's; Python's have no end


class _Readers:
    """Connections for reading only, and as many threads to read in."""

    def __init__(self, connections: list[sqlite3.Connection], name: str) -> None:
        self._name = name
        self._connections = connections
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        for connection in connections:
            self._idle.put(connection)
        self._pool = ThreadPoolExecutor(len(connections), thread_name_prefix="spl-log-reader")

    async def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Have something read in one of the threads; raises StoreUnavailable as `failure` says."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, read)

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._idle.get()  # as many as there are threads: never waits
        try:
            return read(connection)
        except sqlite3.Error as error:
            raise failure(f"the log {self._name} cannot be read", error) from error
        finally:
            self._idle.put(connection)

    def stop(self) -> None:
        """Wait for what is being read; the connections are left to be closed."""
        self._pool.shutdown()

    def break_off(self) -> None:
        """Stop without waiting for more than it takes SQLite to leave off."""
        stopping = threading.Thread(target=self.stop)
        stopping.start()
        while stopping.is_alive():
            for connection in self._connections:
                connection.interrupt()
            stopping.join(_AGAIN)


class SqliteStore:
    """A `Store` in one file, private to its owner; it belongs to the event loop it was opened in."""

    def __init__(
        self,
        path: str,
        found: Found,
        writer: sqlite3.Connection,
        readers: list[sqlite3.Connection],
        mark: Mark,
    ) -> None:
        self.failing: str | None = None
        self.found: Final = found
        """What the log held when it was opened."""
        self.committed: Callable[[float, int | None], None] = lambda *_: None
        """Told of each commit: its seconds, and how many records it wrote; None where the log could not take it."""
        # Without its folder: what is said from now on is said to members too.
        self._name = os.path.basename(path)
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        self._writer_connection = writer
        self._reader_connections = readers
        # A search may take long: it has a reader of its own, and keeps none of the others waiting.
        self._searcher = _Readers(readers[:1], self._name)
        self._readers = _Readers(readers[1:], self._name)
        self._watchers: dict[object, Callable[[Record], None]] = {}
        self._gathered: list[Append] = []
        self._closed = False
        self._closing: asyncio.Future[None] | None = None
        self._writer = Writer(
            self._name,
            writer,
            mark,
            require_there=_same_files(path),
            deliver=self._deliver,
            ended=self._writer_ended,
        )

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        served: bool = False,
        longest: Backup | None = None,
        backups: Path | None = None,
        progress: Callable[[], None] | None = None,
    ) -> Self:
        """Open the log at this path, creating it at need; see `look` for `served` and `longest`.

        One of an earlier format is taken to this one first, see `migrate`, with its backup in the folder `backups`, the
        one beside the log unless given. `progress` is called each second meanwhile, by the event loop, which goes on;
        what it raises ends the opening as a kill would, whenever that is.

        Raises StoreUnavailable when it cannot be opened or is not a log; StoreDamaged when a look shows that it is gone
        or not what was written to it, and StoreNewer when it is of a later format, before anything of it is changed;
        BackupFailed when it is of an earlier one and cannot be backed up.
        """
        path = os.fspath(path)
        folder = Path(path).with_name("backups") if backups is None else backups
        try:
            found = look(path, served=served, longest=longest)
        except StoreNewer as error:
            raise newer(error, folder) from None
        if found.unfolded:
            _settle(path)
        if found.format != FORMAT:
            await _beside(lambda: migrate(path, found, folder), progress)
        connections = [open_writer(path)]
        try:
            connections += [open_reader(path) for _ in range(1 + _READERS)]
            for connection in connections:
                # Opens the write-ahead log too: what is held open is then all there from the start, and the writer,
                # which must have had it open, folds it in when it is closed.
                _fetched(connection, queries.COUNT, (), None)
            mark = Mark.open(path, found.records)
        except (StoreUnavailable, sqlite3.Error) as error:
            for connection in connections:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise failure(f"the log {path} cannot be opened", error) from error
            raise
        return cls(path, found, connections[0], connections[1:], mark)

    async def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """See `Store.append`."""
        self._require_open()
        checked = [Checked.of(draft) for draft in drafts]
        if not checked:
            return []
        append = Append(checked, self._loop.create_future())
        if not self._gathered:
            # What the loop's other tasks append in this turn goes in the same commit.
            self._loop.call_soon(self._hand_over)
        self._gathered.append(append)
        return await append.future

    async def get(self, id: str) -> Record | None:  # noqa: A002 - the field's own name
        """See `Store.get`."""
        self._require_open()
        if not is_record_id(id):
            return None
        rows = await self._read(queries.GET, (bytes.fromhex(id),))
        return next(iter(self._records(rows)), None)

    async def select(
        self,
        *,
        thread: str | None = None,
        actor: str | None = None,
        kind: str | None = None,
        owner: str | None = None,
        since: int = 0,
        limit: int = 100,
        newest_first: bool = False,
        most_bytes: int | None = None,
    ) -> list[Record]:
        """See `Store.select`."""
        since, limit = _bounded(since), _bounded(limit)
        if owner is not None and thread is None:
            rows = await self._walked(actor, kind, owner, since, limit, most_bytes, newest_first=newest_first)
            if rows is not None:
                return self._records(rows)
        query, values = queries.selection(thread, actor, kind, owner, newest_first=newest_first)
        return self._records(await self._read(query, (*values, since, limit), most_bytes))

    async def _walked(
        self,
        actor: str | None,
        kind: str | None,
        owner: str,
        since: int,
        limit: int,
        most_bytes: int | None,
        *,
        newest_first: bool,
    ) -> list[tuple[Any, ...]] | None:
        """Give the page of an owner who has much of the log, found by walking along a part of it; None if it is not.

        The more threads the owner has, the further it goes: to look at each of them instead takes as much longer.
        """
        query, values = queries.walk(actor, kind, owner, newest_first=newest_first)
        part, threads = _WALKED * (1 if kind is None else _WALKED_OF_KIND), _MANY_THREADS
        rows: list[tuple[Any, ...]] = []
        last, left = _MAX_INTEGER, most_bytes
        while await self._read(queries.HAS_MANY, (owner, threads)):
            last = min(last, await self.count())
            low, high = (max(since, last - part), last) if newest_first else (since, min(since + part, last))
            found = await self._read(query, (*values, low, high, limit - len(rows)), left)
            rows += found
            if left is not None:
                left -= sum(len(row[BODY]) for row in found)
            full = len(rows) >= limit or (left is not None and left <= 0)
            if full or (low, high) == (since, last):
                return rows
            since, last = (since, low) if newest_first else (high, last)
            part, threads = part * _FURTHER, threads * _FURTHER
        return None

    async def search(
        self,
        asked: Search,
        *,
        owner: str | None = None,
        most_bytes: int | None = None,
        seconds: float | None = None,
        explain: bool = False,
    ) -> Matches:
        """See `Store.search`."""
        query, values = queries.search(asked, owner)
        plan = None
        if explain:
            steps = [row[3] for row in await self._read(f"EXPLAIN QUERY PLAN {query}", tuple(values))]
            plan = Plan(condition(asked.filter).text, queries.indexed(asked, steps), steps)
        sequences, rows = await self._in(
            self._searcher,
            lambda connection: _found(connection, query, values, asked.limit, most_bytes, seconds),
        )
        return Matches(self._records(rows), len(sequences) > len(rows), plan)

    async def threads(self, *, owner: str | None = None, since: int = 0, limit: int = 100) -> list[ThreadRow]:
        """See `Store.threads`."""
        query, values = queries.openings(owner)
        rows = await self._read(query, (*values, _bounded(since), _bounded(limit)))
        return [ThreadRow(*row) for row in rows]

    async def owner(self, thread: str) -> str | None:
        """See `Store.owner`."""
        rows = await self._read(queries.OWNER_OF, (thread,))
        return rows[0][0] if rows else None

    async def unfinished(self, opening_kind: str, closing_kind: str) -> list[Record]:
        """See `Store.unfinished`."""
        return self._records(await self._read(queries.UNFINISHED, (opening_kind, closing_kind)))

    async def count(self) -> int:
        """See `Store.count`."""
        count: int = (await self._read(queries.COUNT, ()))[0][0]
        return count

    async def answers(self) -> None:
        """See `Store.answers`."""
        answered = asyncio.Event()
        self._writer.ask(lambda: self._call_in_loop(answered.set))
        await answered.wait()

    def subscribe(self, callback: Callable[[Record], None]) -> Callable[[], None]:
        """See `Store.subscribe`."""
        key = object()
        self._watchers[key] = callback

        def unsubscribe() -> None:
            self._watchers.pop(key, None)

        return unsubscribe

    async def close(self) -> None:
        """See `Store.close`."""
        self._closed = True
        if self._closing is None:
            self._hand_over()
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._shut_down))
        # Shielded: a caller that stops waiting must not stop the closing that another waits for.
        await asyncio.shield(self._closing)

    def _hand_over(self) -> None:
        if self._gathered:
            self._writer.put(self._gathered)
            self._gathered = []

    def _shut_down(self) -> None:
        self._writer.stop()
        # No search keeps the daemon from its end.
        self._searcher.break_off()
        self._readers.stop()
        # The writer's connection last: it is then the one to fold the write-ahead log into the file.
        for connection in (*self._reader_connections, self._writer_connection):
            connection.close()
        self._mark.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the log is closed: nothing can be read or written any more")

    async def _read(
        self, query: str, values: tuple[Any, ...], most_bytes: int | None = None
    ) -> list[tuple[Any, ...]]:
        return await self._in(
            self._readers, lambda connection: _fetched(connection, query, values, most_bytes)
        )

    async def _in(self, readers: _Readers, read: Callable[[sqlite3.Connection], T]) -> T:
        self._require_open()
        try:
            return await readers.run(read)
        except StoreDamaged as error:
            self._refuse(error)
            raise

    def _records(self, rows: list[tuple[Any, ...]]) -> list[Record]:
        try:
            return [to_record(row) for row in rows]
        except UNREADABLE:
            error = StoreDamaged(f"the log {self._name} cannot be read: it holds a record that is none")
            self._refuse(error)
            raise error from None

    def _refuse(self, error: StoreDamaged) -> None:
        """Take no append any more: what is added to a damaged log may be lost with it, or make it worse."""
        self._writer.refuse(error)
        self.failing = error.message

    def _deliver(self, outcomes: list[tuple[Append, Outcome]], seconds: float) -> None:
        self._call_in_loop(self._answer, outcomes, seconds)

    def _writer_ended(self) -> None:
        self._call_in_loop(self._answer_the_rest)

    def _call_in_loop(self, function: Callable[..., None], *args: object) -> None:
        # The loop is closed when its program ended without close(): no one is left to be told.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def _answer(self, outcomes: list[tuple[Append, Outcome]], seconds: float) -> None:
        refused = False
        for _, outcome in outcomes:
            if isinstance(outcome, StoreUnavailable):
                self.failing, refused = outcome.message, True
            elif not isinstance(outcome, SplError):
                # Damage that a read has met meanwhile lasts, whatever had been handed over before.
                self.failing = None if self._writer.damaged is None else self._writer.damaged.message
        written = [
            appended.record
            for _, outcome in outcomes
            if not isinstance(outcome, SplError)
            for appended in outcome
            if appended.created
        ]
        # The loop runs what it is given in order: the watchers, then the callers whose futures are set after.
        if written:
            self._loop.call_soon(self._tell, tuple(self._watchers), written)
        for append, outcome in outcomes:
            if append.future.done():  # its caller was cancelled
                continue
            if isinstance(outcome, SplError):
                append.future.set_exception(outcome)
            else:
                append.future.set_result(outcome)
        # The last, before any caller goes on: whatever it does, each has its answer.
        self.committed(seconds, None if refused else len(written))

    def _tell(self, watchers: tuple[object, ...], records: list[Record]) -> None:
        for record in records:
            for key in watchers:
                callback = self._watchers.get(key)
                try:
                    if callback is not None:
                        callback(record)
                except Exception as error:  # noqa: BLE001 - reported; it keeps the record from no other watcher
                    self._loop.call_exception_handler(
                        {"message": f"a watcher of the log failed: {callback!r}", "exception": error}
                    )

    def _answer_the_rest(self) -> None:
        self._closed = True
        for append in (*self._writer.unanswered(), *self._gathered):
            if not append.future.done():
                append.future.set_exception(
                    StoreUnavailable("the log's writer has stopped by a fault of its own")
                )


async def _beside(work: Callable[[], None], progress: Callable[[], None] | None) -> None:
    """Have something done in a thread, and say each second that it goes on."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    while not task.done():
        await asyncio.wait((task,), timeout=_STILL)
        if progress is not None:
            progress()
    await task


def _settle(path: str) -> None:
    """Have a write-ahead log that was left behind reach the disk before the mark says how far it goes.

    Whoever was killed may have written to it and not synced it. Raises StoreUnavailable.
    """
    try:
        sync(f"{path}-wal")
    except OSError as error:
        raise StoreUnavailable(f"the log {path} cannot be opened: {error.strerror}") from None


def _same_files(path: str) -> Callable[[], None]:
    """Give what raises StoreDamaged when the log, or its write-ahead log, is no longer the file that it is now.

    What is written to a file that was removed or replaced meanwhile is read by no later start. SQLite keeps both open,
    and makes neither anew, as long as one connection is there.
    """
    path = os.path.abspath(path)
    before = {name: os.stat(name) for name in (path, f"{path}-wal")}

    def require() -> None:
        for name, then in before.items():
            cannot = f"the log {os.path.basename(name)} cannot be written"
            try:
                now = os.stat(name)
            except FileNotFoundError:
                raise StoreDamaged(f"{cannot}: the file is gone") from None
            except OSError:
                return  # of a disk that fails, SQLite says more
            if (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino):
                raise StoreDamaged(f"{cannot}: another file has been put in its place")

    return require


def _fetched(
    connection: sqlite3.Connection, query: str, values: tuple[Any, ...], most_bytes: int | None
) -> list[tuple[Any, ...]]:
    with closing(connection.execute(query, values)) as rows:
        return rows.fetchall() if most_bytes is None else _first(rows, most_bytes)


def _found(
    connection: sqlite3.Connection,
    query: str,
    values: list[Any],
    limit: int,
    most_bytes: int | None,
    seconds: float | None,
) -> tuple[list[int], list[tuple[Any, ...]]]:
    """Give the sequences that a query finds, and the rows of the first of them, as many as are wanted.

    The rows come after, one by one: a record may have a million characters, and SQLite would put all of them in order.
    """
    with _limited(connection, seconds), closing(connection.execute(query, values)) as found:
        sequences = [sequence for (sequence,) in found]
    wanted = (row for sequence in sequences[:limit] for row in connection.execute(queries.AT, (sequence,)))
    return sequences, list(wanted) if most_bytes is None else _first(wanted, most_bytes)


@contextmanager
def _limited(connection: sqlite3.Connection, seconds: float | None) -> Iterator[None]:
    """Break off what a connection does after so many seconds; raises QueryExceeded then."""
    if seconds is None:
        yield
        return
    over, late = threading.Event(), False

    def interrupt() -> None:
        nonlocal late
        wait = seconds
        # Again and again: an interruption is forgotten where no statement runs yet.
        while not over.wait(wait):
            late = True
            connection.interrupt()
            wait = _AGAIN

    watch = threading.Thread(target=interrupt, name="spl-log-search", daemon=True)
    watch.start()
    try:
        yield
    except sqlite3.OperationalError:
        if not late:
            raise
        raise QueryExceeded(f"the query takes over {seconds:g} seconds of the log's time") from None
    finally:
        # Waited for: whoever has the connection next must not be broken off by what comes too late.
        over.set()
        watch.join()


def _first(rows: Iterable[tuple[Any, ...]], most_bytes: int) -> list[tuple[Any, ...]]:
    """Take records' rows until their bodies come to so many characters: one may have a million, and many are asked."""
    taken: list[tuple[Any, ...]] = []
    for row in rows:
        taken.append(row)
        most_bytes -= len(row[BODY])
        if most_bytes <= 0:
            break
    return taken


def _bounded(number: int) -> int:
    """Bring a number into SQLite's range; below zero, which LIMIT takes as without end, is zero."""
    return min(max(number, 0), _MAX_INTEGER)
