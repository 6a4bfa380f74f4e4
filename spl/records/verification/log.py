"""A whole log in its SQLite file: the file itself, its tables, its rows, and every thread in it one after another."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from spl.errors import InvalidBody, StoreUnavailable
from spl.records.canonical import canonical, parse
from spl.records.mark import read_mark
from spl.records.rows import COLUMNS
from spl.records.schema import Fault, failure, open_at_rest, require_log, strangers
from spl.records.verification.findings import Finding, Findings, LogVerification, quoted
from spl.records.verification.thread import verify_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

_ID_BYTES: Final = 32
_FAULTS: Final = 20
"""Faults of the file that SQLite is asked for: it stops there."""

# By the index over threads, which ends in the sequence: nothing has to be sorted, and one row is held at a time.
_ROWS: Final = f"SELECT {COLUMNS}, ordinal FROM records ORDER BY thread, sequence"  # noqa: S608 - constants
_SEQUENCES: Final = "SELECT sequence FROM records NOT INDEXED ORDER BY sequence"
_EXISTS: Final = "SELECT 1 FROM records WHERE id = ?"


def verify_log(path: str | os.PathLike[str]) -> LogVerification:
    """Verify a log file as it is at this moment: a backup, or the log of a daemon, running or not.

    Only one thread's ids are held at a time. The file is not written to. Raises StoreUnavailable where it cannot be
    opened, is no log or one of a later release, and where a daemon that was started meanwhile wrote to it; StoreDamaged
    where SQLite cannot even tell that.
    """
    path = os.fspath(path)
    before, mark = _state(path), read_mark(path) or 0
    connection, quiet = open_at_rest(path)
    with closing(connection):
        log = _Log(connection)
        try:
            # One transaction, so that every look is at the same moment.
            connection.execute("BEGIN")
            require_log(connection, path)
            log.known = True
            log.look(mark)
        except sqlite3.Error as error:
            if log.known:
                log.say("file", f"reading it ended with the error {quoted(str(error))}")
            else:
                raise failure(f"the log {path} cannot be read", error) from error
    if quiet and _state(path) != before:
        raise StoreUnavailable(
            f"the log {path} was written to while it was read, so nothing of it is verified"
        )
    return log.comes_to()


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError as error:
        raise StoreUnavailable(f"the log {path} cannot be opened: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise StoreUnavailable(f"the log {path} cannot be opened: it is not a regular file")
    return found.st_ino, found.st_size, found.st_mtime_ns


class _Log:
    """A log as far as it has been read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.known = False
        """Whether the file is a log: from then on what is wrong with it is a finding."""
        self._connection = connection
        # What is no UTF-8 is to be found, and not to end the reading: it comes as lone surrogates, which no record has.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        self._findings = Findings()
        self._records = self._threads = self._runs = self._elsewhere = 0

    def say(self, check: str, text: str, sequence: int | None = None, id_: str | None = None) -> None:
        """Take down a finding that is about no thread."""
        self._findings.add(Finding(check, text, sequence, id_))

    def comes_to(self) -> LogVerification:
        """Give what it all comes to."""
        return LogVerification(
            self._records, self._elsewhere, self._findings, threads=self._threads, runs=self._runs
        )

    def look(self, mark: int) -> None:
        """Look at the file, its tables, its sequences and its threads; `mark` is the least it must hold."""
        if not self._has_our_tables():
            return
        for (fault,) in self._connection.execute(f"PRAGMA integrity_check({_FAULTS})"):
            if fault != "ok":
                self.say("file", f"SQLite's integrity check says {quoted(fault)}")
        count = self._sequences()
        for _, rows in groupby(self._rows(), key=lambda row: row["thread"]):
            self._thread(rows)
        if count < mark:
            self.say("file", f"it holds {count} records, and by the mark beside it {mark} were acknowledged")
        if self._records != count:
            self.say("file", f"it holds {count} records, and {self._records} of them by its threads")

    def _has_our_tables(self) -> bool:
        """Hold what the file is made of against a log; tell whether it can be read, and runs nothing of another's."""
        ours = True
        for part in strangers(self._connection):
            readable = part.fault is Fault.MISSING and part.type != "table"
            ours = ours and readable
            end = "" if readable else ", so no record is read"
            self.say("schema", f"its {quoted(part.type)} {quoted(part.name)} {part.fault}{end}")
        return ours

    def _sequences(self) -> int:
        """Count the records and look for gaps: nothing is ever deleted, and no number given twice."""
        count = last = 0
        for (sequence,) in self._connection.execute(_SEQUENCES):
            count += 1
            if sequence != last + 1:
                self.say(
                    "sequence", f"it follows the sequence {last}, and in a log none is missing", sequence
                )
            last = sequence
        return count

    def _rows(self) -> Iterator[dict[str, Any]]:
        names = [*COLUMNS.split(", "), "ordinal"]
        for row in self._connection.execute(_ROWS):
            self._records += 1
            yield dict(zip(names, row, strict=True))

    def _thread(self, rows: Iterator[dict[str, Any]]) -> None:
        wires = (self._wire(row, ordinal) for ordinal, row in enumerate(rows, 1))
        thread = verify_thread(wires, outside=False, elsewhere=self._look_for)
        self._threads += 1
        self._runs += thread.begun
        self._findings.take(thread.findings)

    def _wire(self, row: dict[str, Any], ordinal: int) -> dict[str, Any]:
        """Give a row as the record it should be, and hold its other columns against that."""
        sequence, text = row["sequence"], row["body"]
        id_ = row["id"].hex() if isinstance(row["id"], bytes) else None
        body: Any = None
        try:
            body = parse(text) if isinstance(text, str) else text
            if isinstance(body, dict) and canonical(body).decode() != text:
                self.say("row", "its body is not written in canonical form", sequence, id_)
        except InvalidBody as error:
            self.say("row", f"its body cannot be read: {error.message}", sequence, id_)
        if isinstance(body, dict) and row["kind"] != body.get("kind"):
            self.say(
                "row", f"its column kind is {quoted(row['kind'])}, and its body says otherwise", sequence, id_
            )
        if row["ordinal"] != ordinal:
            self.say("row", f"its column ordinal is {quoted(row['ordinal'])}, and on its thread it is record {ordinal}",
                     sequence, id_)  # fmt: skip
        kept = ("thread", "actor", "act", "clock", "data_type", "judged_by", "sequence")
        parents = row["parents"]
        return {
            "object": "record",
            "id": id_,
            "parents": _ids(parents) if isinstance(parents, bytes) else parents,
            **{name: row[name] for name in kept},
            "body": body,
        }

    def _look_for(self, parent: str) -> None:
        found = self._connection.execute(_EXISTS, (bytes.fromhex(parent),)).fetchone()
        self._elsewhere += found is None


def _ids(parents: bytes) -> list[str]:
    return [parents[at : at + _ID_BYTES].hex() for at in range(0, len(parents), _ID_BYTES)]
