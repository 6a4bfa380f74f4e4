"""The one thread that writes the log: it takes all that waits and commits it as one transaction."""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spl.errors import IngestFailed, SplError, StoreDamaged, StoreUnavailable
from spl.records.queries import INSERT, LAST_ORDINAL
from spl.records.record import MAX_CLOCK, record_id
from spl.records.rows import COLUMNS, UNREADABLE, Checked, to_record
from spl.records.schema import failure
from spl.records.store import Appended

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from spl.records.mark import Mark
    from spl.records.record import Draft, Record

# Enough that the cost of a commit is spread thin; more would only make the first of a group wait longer.
_GROUP: Final = 512

Outcome: TypeAlias = "list[Appended] | SplError"

_HIGHEST = "SELECT max(clock) FROM records WHERE thread = ? AND actor = ?"
_AT_CLOCK = f"SELECT {COLUMNS} FROM records WHERE thread = ? AND actor = ? AND clock = ?"  # noqa: S608 - constants


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
            self._require_sound()
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [(append, self._attempt(append)) for append in group]
            self._connection.execute("COMMIT")
        except (sqlite3.Error, StoreDamaged) as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return [(append, self._unwritten(error)) for append in group]
        self._put_mark(outcomes)
        return outcomes

    def _require_sound(self) -> None:
        if self.damaged is not None:
            raise StoreDamaged(self.damaged.message)
        self._require_there()

    def _put_mark(self, outcomes: list[tuple[Append, Outcome]]) -> None:
        """Say beside the log how far it goes, before anyone is told."""
        written = [
            appended.record.sequence
            for _, outcome in outcomes
            if not isinstance(outcome, SplError)
            for appended in outcome
            if appended.created
        ]
        if written:
            self._mark.put(max(written))

    def _attempt(self, append: Append) -> Outcome:
        """Write one append inside the group's transaction, or undo it and give the reason."""
        self._connection.execute("SAVEPOINT append")
        outcome: Outcome
        try:
            outcome = self._write(append)
        except IngestFailed as error:
            outcome = error
        except sqlite3.Error as error:
            # Out of space, SQLite undoes the whole transaction: the group's other appends are gone too. And nothing is
            # written to a log that is damaged.
            outcome = self._unwritten(error)
            if isinstance(outcome, StoreDamaged) or not self._connection.in_transaction:
                raise
        if isinstance(outcome, SplError):
            self._connection.execute("ROLLBACK TO append")
        self._connection.execute("RELEASE append")
        return outcome

    def _write(self, append: Append) -> list[Appended]:
        return [
            self._write_one(checked, tuple(sorted(set(checked.draft.parents)))) for checked in append.drafts
        ]

    def _write_one(self, checked: Checked, parents: tuple[str, ...]) -> Appended:
        draft = checked.draft
        highest: int | None = self._connection.execute(_HIGHEST, (draft.thread, draft.actor)).fetchone()[0]
        clock = draft.clock
        if clock is None:
            clock = 1 if highest is None else highest + 1
            if clock > MAX_CLOCK:
                raise IngestFailed(f"{draft.actor} has used the highest clock there is on {draft.thread}")
        id_ = record_id(parents, draft.thread, draft.actor, draft.act, checked.body, clock, draft.data_type)
        if highest is not None and clock <= highest:
            return Appended(self._stored(draft, id_, clock, highest), created=False)
        row = checked.row(id_, parents, clock)
        last = self._connection.execute(LAST_ORDINAL, (draft.thread,)).fetchone()
        ordinal = 1 if last is None else last[0] + 1
        sequence = self._connection.execute(INSERT, (None, *row, ordinal)).lastrowid
        return Appended(to_record((sequence, *row)), created=True)

    def _unwritten(self, error: sqlite3.Error | StoreDamaged) -> StoreUnavailable:
        """Give what an append is answered, an error of its own, and keep in mind what lasts."""
        if isinstance(error, StoreDamaged):
            found: StoreUnavailable = StoreDamaged(error.message)
        else:
            found = failure(f"the log {self._name} cannot be written", error)
        if isinstance(found, StoreDamaged):
            self.refuse(found)
        return found

    def _stored(self, draft: Draft, id_: str, clock: int, highest: int) -> Record:
        """Give the record that already has this clock, which the id must be that of."""
        row = self._connection.execute(_AT_CLOCK, (draft.thread, draft.actor, clock)).fetchone()
        where = f"of {draft.actor} on {draft.thread}"
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
