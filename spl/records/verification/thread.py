"""One thread, record by record: each as a record must be, in its place, and the run's among them as a run's must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spl.errors import IngestFailed, InvalidBody
from spl.records.canonical import parse
from spl.records.record import Draft, check, is_record_id, record_id
from spl.records.verification.findings import Finding, Findings, Outside, ThreadVerification, quoted
from spl.records.verification.run import Read, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FIELDS: Final = (
    "object", "id", "parents", "thread", "actor", "act", "body", "clock", "data_type", "judged_by", "sequence",
)  # fmt: skip
"""What a record has on the wire, all of it and no more."""

_DRAFTED: Final = ("thread", "actor", "act", "body", "clock", "data_type", "judged_by")
_MOST_SEQUENCE: Final = 2**63 - 1


def records_of(export: bytes | str) -> list[Any]:
    """Give the records of a thread's export, a listing as `spl thread records -o json` and the API give it.

    What each of them is stands open. Raises InvalidBody where it is no listing, or says that it is not all of it.
    """
    listing = parse(export)
    if not isinstance(listing, dict) or listing.get("object") != "list":
        raise InvalidBody(
            "this is no listing of records: it must be a JSON object whose 'object' is \"list\""
        )
    data, more = listing.get("data"), listing.get("has_more")
    if not isinstance(data, list) or not isinstance(more, bool):
        raise InvalidBody("the listing needs 'data', a list of records, and 'has_more', true or false")
    if more:
        raise InvalidBody("the listing is not whole: it says that more records follow (has_more)")
    if not data:
        raise InvalidBody("the listing has no record, so there is nothing to verify")
    return data


def verify_thread(
    records: Iterable[Any],
    *,
    head: str | None = None,
    outside: bool = True,
    elsewhere: Callable[[str], None] | None = None,
) -> ThreadVerification:
    """Verify the records of one thread, in the order they stand in; each is what the wire form of one should be.

    `head` is the id that the run's chain must end in. Without `outside`, records outside the chain are not kept to be
    told; `elsewhere` is told each parent that is not among the records before. Raises InvalidBody for a `head` that is
    no record's id, and what reading `records` raises.
    """
    if head is not None and not is_record_id(head):
        raise InvalidBody(
            f"the head {quoted(head)} is no record's id, which has 64 lowercase hexadecimal digits"
        )
    thread = _Thread(keep_outside=outside, elsewhere=elsewhere)
    for record in records:
        thread.take(record)
    return thread.finish(head)


class _Thread:
    """A thread as far as it has been read; it keeps ids, clocks and open calls, and no record."""

    def __init__(self, *, keep_outside: bool, elsewhere: Callable[[str], None] | None) -> None:
        self._findings = Findings()
        self._run = Run(self._say)
        self._keep_outside = keep_outside
        self._tell_elsewhere = elsewhere
        self._records = self._elsewhere = 0
        self._thread: str | None = None
        self._sequence = 0
        self._ids: set[str] = set()
        self._clocks: dict[str, int] = {}
        self._outside: list[Outside] = []
        # Of the record that is being looked at, for what is said of it.
        self._at: tuple[int | None, str | None] = (None, None)

    def take(self, record: object) -> None:
        """Look at the next record."""
        self._records += 1
        self._at = _place(record)
        if not isinstance(record, dict):
            self._say("shape", f"it is {quoted(record)}, and a record is a JSON object")
            return
        body = self._check_shape(record)
        if body is not None:
            self._look_at(record, body)

    def finish(self, head: str | None) -> ThreadVerification:
        """Give what it comes to, now that no record follows; `head` is what the chain must end in."""
        self._at = (None, None)
        run = self._run
        run.finish()
        if head is not None and run.head != head:
            ends = "there is no run on the thread" if run.head is None else f"the chain ends in {run.head}"
            self._say("head", f"{ends}, and not in the head given, {head}")
        return ThreadVerification(
            self._records,
            self._elsewhere,
            self._findings,
            thread=self._thread,
            begun=run.begun,
            chain=run.records,
            outside=tuple(self._outside),
            head=run.head,
            ended=run.ended,
            asked=head,
        )

    def _say(self, check: str, text: str) -> None:
        sequence, id_ = self._at
        self._findings.add(Finding(check, text, sequence, id_, self._thread))

    def _check_shape(self, record: dict[str, Any]) -> bytes | None:
        """Give the body of a record in canonical form, or None where something of the record is not a record's."""
        missing = [name for name in FIELDS if name not in record]
        if missing or len(record) != len(FIELDS):
            more = sorted(quoted(name) for name in record if name not in FIELDS)
            wrong = f"it lacks {', '.join(missing)}" if missing else f"it has {', '.join(more[:3])} as well"
            self._say("shape", f"{wrong}, and a record has {', '.join(FIELDS)}")
            return None
        if record["object"] != "record" or None in self._at:
            self._say("shape", "its object, id or sequence is not a record's")
            return None
        parents = record["parents"]
        given = tuple(parents) if isinstance(parents, list) else parents
        draft = Draft(parents=given, **{name: record[name] for name in _DRAFTED})
        try:
            if draft.clock is None:
                raise IngestFailed("its clock is null, and a record's is an integer")
            body = check(draft)
        except IngestFailed as error:
            self._say("shape", error.message)
            return None
        if sorted(set(parents)) != parents:
            self._say("shape", "its parents are not sorted, or one stands there twice")
        return body

    def _look_at(self, record: dict[str, Any], body: bytes) -> None:
        id_, sequence, thread = record["id"], record["sequence"], record["thread"]
        parents, actor, clock = record["parents"], record["actor"], record["clock"]
        recomputed = record_id(parents, thread, actor, record["act"], body, clock, record["data_type"])
        if recomputed != id_:
            self._say("id", f"its fields come to another id, {recomputed}")
        if id_ in self._ids:
            self._say("id", "a record with this id stands here already")
        if sequence <= self._sequence:
            self._say("sequence", f"it follows the sequence {self._sequence}, and sequences rise")
        if self._thread is None:
            self._thread = thread
        elif thread != self._thread:
            self._say("thread", f"it is of the thread {thread}, and those before are of {self._thread}")
        if clock <= self._clocks.get(actor, -1):
            self._say(
                "clock",
                f"its clock {clock} follows {self._clocks[actor]} of the same actor's, and clocks rise",
            )
        self._clocks[actor] = max(clock, self._clocks.get(actor, clock))
        self._sequence = max(sequence, self._sequence)
        read = Read(id_, tuple(parents), thread, actor, record["body"], record["judged_by"])
        if not self._run.take(read, first=self._records == 1):
            self._set_aside(read)
        self._ids.add(id_)

    def _set_aside(self, record: Read) -> None:
        """Take down a record outside the chain; what it names as parents is anybody's word."""
        for parent in record.parents:
            if parent not in self._ids:
                self._elsewhere += 1
                if self._tell_elsewhere is not None:
                    self._tell_elsewhere(parent)
        sequence, _ = self._at
        if self._keep_outside and sequence is not None:
            self._outside.append(Outside(sequence, record.id, record.actor, record.kind or None))


def _place(record: object) -> tuple[int | None, str | None]:
    """Give the sequence and the id that a record gives itself, as far as they are such."""
    if not isinstance(record, dict):
        return None, None
    sequence, id_ = record.get("sequence"), record.get("id")
    return (
        sequence if type(sequence) is int and 1 <= sequence <= _MOST_SEQUENCE else None,
        id_ if is_record_id(id_) else None,
    )
