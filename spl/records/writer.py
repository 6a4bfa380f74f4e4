"""The one thread that writes the log: it takes all that waits and commits it as one transaction."""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spl.errors import IngestFailed, SplError, StoreDamaged, StoreUnavailable
from spl.records.heads import Heads
from spl.records.queries import AT_CLOCK, insertion
from spl.records.record import MAX_CLOCK, record_id
from spl.records.rows import UNREADABLE, Checked, Row, to_record
from spl.records.schema import failure
from spl.records.store import Appended

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from spl.records.mark import Mark
    from spl.records.record import Draft, Record

# Enough that the cost of a commit is spread thin; more would only make the first of a group wait longer.
_GROUP: Final = 512

_AT_ONCE: Final = 32
"""Records written by one statement: its text is kept ready for each number of them."""

Outcome: TypeAlias = "list[Appended] | SplError"
_Place: TypeAlias = tuple[str, str, int]  # a thread, an actor and a clock: no two records have the same


class Append(NamedTuple):
    """One caller's drafts, and where its outcome goes."""

    drafts: list[Checked]
    future: asyncio.Future[list[Appended]]


class Writer:
    """Group commit over one connection to the log of this name.

    `deliver` is called in the writer's thread, once a group, with every append's outcome in the order they were
    written and the seconds it took; `ended` once at the very end, however it ended, with the appends that got none.
    `require_there` is asked before each group and raises StoreDamaged when the log's files are no longer those that
    were opened. Once the log is found damaged, here or by `refuse`, nothing more is written.
    """

    def __init__(
        self,
        name: str,
        connection: sqlite3.Connection,
        mark: Mark,
        require_there: Callable[[], None],
        deliver: Callable[[list[tuple[Append, Outcome]], float], None],
        ended: Callable[[], None],
    ) -> None:
        self._name = name
        self._connection = connection
        self._heads = Heads(connection)
        self._mark = mark
        self._require_there = require_there
        self.damaged: StoreDamaged | None = None
        """What was found wrong with the log, after which nothing more is written."""
        self._deliver = deliver
        self._ended = ended
        self._queue: queue.SimpleQueue[list[Append] | Callable[[], object] | None] = queue.SimpleQueue()
        self._group: list[Append] = []
        # A daemon thread: a process that ends without close() must not hang on it. What it was about to
        # write has been acknowledged to no one.
        self._thread = threading.Thread(target=self._run, name="spl-log-writer", daemon=True)
        self._thread.start()

    def put(self, appends: list[Append]) -> None:
        """Queue appends."""
        self._queue.put(appends)

    def ask(self, answer: Callable[[], object]) -> None:
        """Have the writer's thread call this once it has come to it, whatever it can write."""
        self._queue.put(answer)

    def refuse(self, error: StoreDamaged) -> None:
        """Have every later append answered so; the first such error stays. Any thread may say it."""
        self.damaged = self.damaged or error

    def stop(self) -> None:
        """Write what is queued, then wait for the thread to end."""
        self._queue.put(None)
        self._thread.join()

    def unanswered(self) -> list[Append]:
        """Give what the ended thread has left: nothing, unless a fault of our own ended it."""
        left, self._group = self._group, []
        while True:
            try:
                taken = self._queue.get_nowait()
            except queue.Empty:
                return left
            if isinstance(taken, list):
                left += taken

    def _run(self) -> None:
        try:
            going = True
            while going:
                going = self._take()
                if self._group:
                    began = time.perf_counter()
                    outcomes = self._commit(self._group)
                    self._deliver(outcomes, time.perf_counter() - began)
                self._group = []
        finally:
            self._ended()

    def _take(self) -> bool:
        """Wait for appends and take all that have come by then; False when those were the last."""
        taken = self._queue.get()
        while taken is not None:
            if isinstance(taken, list):
                self._group += taken
            else:
                taken()
            if len(self._group) >= _GROUP:
                return True
            try:
                taken = self._queue.get_nowait()
            except queue.Empty:
                return True
        return False

    # A commit is in the write-ahead log and synced (fsync(2)) before the index that readers go by is moved on to it.
    # So one that failed, with the sync or before it, is seen by no reader, and the next lies over the same frames.
    # After a failed fsync the kernel forgets what it could not write, and a second one succeeds without having
    # written it: to sync again would be no proof. Nothing is synced again here: whatever the failed sync was to
    # carry is written anew first, frames by the next commit and pages by the next checkpoint, which counts none as
    # folded in before the file's own sync has succeeded. That is why appending may go on by itself once it can.
    # What is left: a process that dies before another commit lies over it may find the refused one at its next
    # start, whole. It was answered as a failure then, never as written; its caller's next try finds it there.
    def _commit(self, group: list[Append]) -> list[tuple[Append, Outcome]]:
        try:
            return self._write(group)
        except (sqlite3.DataError, sqlite3.IntegrityError):
            # One append has what the log cannot hold, and must take no other with it; or another program has written
            # to the log, and what was known of it is no longer so.
            return [self._write_alone(append) for append in group]
        except (sqlite3.Error, StoreDamaged) as error:
            return [(append, self._unwritten(error)) for append in group]

    def _write_alone(self, append: Append) -> tuple[Append, Outcome]:
        try:
            [written] = self._write([append], locked=True)
        except (sqlite3.Error, StoreDamaged) as error:
            return append, self._unwritten(error)
        return written

    def _require_sound(self) -> None:
        if self.damaged is not None:
            raise StoreDamaged(self.damaged.message)
        self._require_there()

    def _write(self, group: list[Append], *, locked: bool = False) -> list[tuple[Append, Outcome]]:
        """Have a group's records reach the disk, and give what each append is answered.

        With `locked` what they follow is read anew, and no other program writes in between. An append that the log's
        own rules refuse takes no other with it. Raises StoreDamaged, and `sqlite3.Error` where
        the log refuses: none of the group is written then.
        """
        rows: list[Row] = []
        try:
            self._require_sound()
            if locked:
                self._connection.execute("BEGIN IMMEDIATE")
                self._heads.forget()
            self._heads.shorten()
            records: dict[_Place, Record] = {}
            outcomes = [(append, self._prepare(append, records, rows)) for append in group]
            self._insert(rows)
        except (sqlite3.Error, StoreDamaged):
            self._heads.forget()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        if rows:
            # Beside the log it is said how far it goes, before anyone is told.
            self._mark.put(rows[-1][0])
        return outcomes

    # Each statement gives up the interpreter's lock, and must wait for it anew while the event loop has it. So a group
    # is made up first, from what is known, and written by as few as can be: mostly by one, a transaction in itself.
    def _insert(self, rows: list[Row]) -> None:
        pieces = [rows[at : at + _AT_ONCE] for at in range(0, len(rows), _AT_ONCE)]
        if len(pieces) > 1 and not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        for piece in pieces:
            self._connection.execute(insertion(len(piece)), [*chain.from_iterable(piece)])
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def _prepare(self, append: Append, records: dict[_Place, Record], rows: list[Row]) -> Outcome:
        """Make one append's records, and add them to those of the group; or add none, and give the reason."""
        before = len(rows)
        self._heads.begin()
        try:
            return [self._prepare_one(checked, records, rows) for checked in append.drafts]
        except IngestFailed as error:
            self._heads.back()
            del rows[before:]
            while len(records) > before:
                records.popitem()
            return error

    def _prepare_one(self, checked: Checked, records: dict[_Place, Record], rows: list[Row]) -> Appended:
        draft = checked.draft
        parents = tuple(sorted(set(draft.parents)))
        highest = self._heads.highest(draft.thread, draft.actor)
        clock = draft.clock
        if clock is None:
            clock = 1 if highest is None else highest + 1
            if clock > MAX_CLOCK:
                raise IngestFailed(f"{draft.actor} has used the highest clock there is on {draft.thread}")
        id_ = record_id(parents, draft.thread, draft.actor, draft.act, checked.body, clock, draft.data_type)
        if highest is not None and clock <= highest:
            return Appended(self._stored(draft, id_, clock, highest, records), created=False)
        sequence, ordinal = self._heads.take(draft.thread, draft.actor, clock)
        record = checked.record(sequence, id_, parents, clock)
        rows.append((sequence, *checked.row(id_, parents, clock), ordinal))
        records[draft.thread, draft.actor, clock] = record
        return Appended(record, created=True)

    def _unwritten(self, error: sqlite3.Error | StoreDamaged) -> StoreUnavailable:
        """Give what an append is answered, an error of its own, and keep in mind what lasts.

        Raises a misuse of SQLite again: that is a fault of our own, and says nothing of the log.
        """
        if isinstance(error, sqlite3.ProgrammingError):
            raise error
        if isinstance(error, StoreDamaged):
            found: StoreUnavailable = StoreDamaged(error.message)
        else:
            found = failure(f"the log {self._name} cannot be written", error)
        if isinstance(found, StoreDamaged):
            self.refuse(found)
        return found

    def _stored(
        self, draft: Draft, id_: str, clock: int, highest: int, records: dict[_Place, Record]
    ) -> Record:
        """Give the record that already has this clock, in the group or in the log, which the id must be that of."""
        place, where = (draft.thread, draft.actor, clock), f"of {draft.actor} on {draft.thread}"
        record = records.get(place)
        if record is None:
            row = self._connection.execute(AT_CLOCK, place).fetchone()
            if row is None:
                raise IngestFailed(f"ClockNotRising: clock {clock} {where} is below the highest, {highest}")
            try:
                record = to_record(row)
            except UNREADABLE:
                raise StoreDamaged(
                    f"the log {self._name} cannot be read: it holds a record that is none"
                ) from None
        if record.id != id_:
            raise IngestFailed(
                f"DuplicateClock: clock {clock} {where} is taken by a record with other content"
            )
        return record
