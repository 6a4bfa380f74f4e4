"""A record as a row of the SQLite table, both ways."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, TypeAlias

from spl.records.record import Draft, Record, check

COLUMNS: Final = "sequence, id, parents, thread, actor, act, kind, body, clock, data_type, judged_by"
"""The columns that make a record, in the order that rows are in here."""

BODY: Final = COLUMNS.split(", ").index("body")
"""Where a row's body is."""

_ID_BYTES: Final = 32

Row: TypeAlias = tuple[Any, ...]


class Checked(NamedTuple):
    """A draft that may be written, with what its body says taken down once.

    The draft's body stays the caller's own dict, which may change while the draft waits in the queue.
    """

    draft: Draft
    body: bytes
    kind: str | None

    @classmethod
    def of(cls, draft: Draft) -> Checked:
        """Check a draft; raises IngestFailed as `check` does."""
        return cls(draft, check(draft), draft.body.get("kind"))

    def record(self, sequence: int, id_: str, parents: tuple[str, ...], clock: int) -> Record:
        """Give the record that this is to be; its body is fresh, as one that is read from the log has it."""
        draft = self.draft
        return Record(
            id=id_,
            parents=parents,
            thread=draft.thread,
            actor=draft.actor,
            act=draft.act,
            body=json.loads(self.body),
            clock=clock,
            data_type=draft.data_type,
            judged_by=draft.judged_by,
            sequence=sequence,
        )

    def row(self, id_: str, parents: tuple[str, ...], clock: int) -> Row:
        """Give the row to insert: all columns but the sequence."""
        draft = self.draft
        return (
            bytes.fromhex(id_),
            bytes.fromhex("".join(parents)),
            draft.thread,
            draft.actor,
            draft.act,
            self.kind,
            self.body.decode(),
            clock,
            draft.data_type,
            draft.judged_by,
        )


UNREADABLE: Final = (AttributeError, RecursionError, TypeError, ValueError)
"""What `to_record` raises of a row that no log has written."""


def to_record(row: tuple[Any, ...]) -> Record:
    """Give the record of a row; its body is fresh, so no two readers share one. Raises one of `UNREADABLE`."""
    sequence, id_, parents, thread, actor, act, _, body, clock, data_type, judged_by = row
    return Record(
        id=id_.hex(),
        parents=tuple(parents[at : at + _ID_BYTES].hex() for at in range(0, len(parents), _ID_BYTES)),
        thread=thread,
        actor=actor,
        act=act,
        body=json.loads(body),
        clock=clock,
        data_type=data_type,
        judged_by=judged_by,
        sequence=sequence,
    )
