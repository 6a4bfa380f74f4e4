"""The record: eight fields and an id over seven of them, and the draft it is made from."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, Final

from spl.errors import IngestFailed, InvalidBody
from spl.records.canonical import MAX_DEPTH, canonical

ACTS: Final = ("INTEND", "DO", "KNOW", "LEARN", "GET", "PUT", "CALL", "MAP")
DATA_TYPES: Final = ("SCALAR", "FORMULA", "DISTRIBUTION", "REFERENCE", "MORPHISM", "VOID")

MAX_PARENTS: Final = 64
MAX_CLOCK: Final = 2**63 - 1
MAX_BODY_DEPTH: Final = MAX_DEPTH - 8
"""Less than `parse` takes, so that a body can be read again inside a listing, an event or an export."""

_THREAD = re.compile(r"[A-Za-z0-9._:@-]{1,200}")
_DID = re.compile(r"(?=.{1,300}\Z)did:[a-z0-9]+:[A-Za-z0-9._:%-]+")
_JUDGE = re.compile(r"[!-~]{1,300}")
_ID = re.compile(r"[0-9a-f]{64}")
_KIND = re.compile(r"(?=.{1,200}\Z)[a-z0-9_-]+(?:\.[a-z0-9_-]+){2,}\.v(?:0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Record:
    """One record as the log holds it; `body` is not to be changed by whoever reads it."""

    id: str
    parents: tuple[str, ...]
    thread: str
    actor: str
    act: str
    body: dict[str, Any]
    clock: int
    data_type: str
    judged_by: str | None
    sequence: int

    @property
    def kind(self) -> str | None:
        """The kind named in the body, if it names one."""
        kind = self.body.get("kind")
        return kind if isinstance(kind, str) else None

    def wire(self) -> dict[str, Any]:
        """Give the record as it stands in an HTTP answer."""
        return {
            "object": "record",
            "id": self.id,
            "parents": list(self.parents),
            "thread": self.thread,
            "actor": self.actor,
            "act": self.act,
            "body": self.body,
            "clock": self.clock,
            "data_type": self.data_type,
            "judged_by": self.judged_by,
            "sequence": self.sequence,
        }


@dataclass(frozen=True, slots=True)
class Draft:
    """What a writer asks to have recorded.

    Without a `clock` the store gives the next of this actor on this thread. `canonical` is the body in canonical form,
    from a writer who has needed it before.
    """

    thread: str
    actor: str
    act: str
    body: dict[str, Any]
    parents: tuple[str, ...] = ()
    clock: int | None = None
    data_type: str = "SCALAR"
    judged_by: str | None = None
    canonical: bytes | None = field(default=None, repr=False, compare=False)


def record_id(
    parents: tuple[str, ...] | list[str],
    thread: str,
    actor: str,
    act: str,
    body: dict[str, Any] | bytes,
    clock: int,
    data_type: str,
) -> str:
    """Give the id of a record with these fields: lowercase hex SHA-256 of their canonical JSON.

    The fields are taken literally, so parents out of order give another id than the record's. A `body` in
    bytes is one in canonical form already. Raises InvalidBody where a field has no canonical form.
    """
    if not isinstance(body, bytes):
        body = canonical(body)
    # The canonical form of an object of these, written out: to have it made takes twice as long.
    form = b'{"act":%b,"actor":%b,"body":%b,"clock":%b,"data_type":%b,"parents":%b,"thread":%b}' % (
        canonical(act),
        canonical(actor),
        body,
        canonical(clock),
        canonical(data_type),
        canonical(parents),
        canonical(thread),
    )
    return hashlib.sha256(form).hexdigest()


def is_record_id(value: object) -> bool:
    """Tell whether this is written as a record's id is."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def check(draft: Draft) -> bytes:
    """Refuse a draft that cannot become a record; give its body in canonical form.

    Raises IngestFailed with the field, its value and what it must be.
    """
    _match(_THREAD, draft.thread, "the thread", "1 to 200 of the characters A-Z a-z 0-9 . _ : @ -")
    _match(_DID, draft.actor, "the actor", "a DID of at most 300 characters")
    _one_of(ACTS, draft.act, "the act")
    _one_of(DATA_TYPES, draft.data_type, "the data_type")
    _check_parents(draft.parents)
    if draft.clock is not None:
        _check_clock(draft.clock)
    if draft.judged_by is not None:
        _match(_JUDGE, draft.judged_by, "judged_by", "null or 1 to 300 visible ASCII characters")
    return _check_body(draft.body, draft.canonical)


def _refusal(what: str, value: object, must_be: str) -> IngestFailed:
    # ascii() and a bound: the value may hold surrogates, control characters or a megabyte.
    return IngestFailed(f"{what} {ascii(value)[:120]} is refused: it must be {must_be}")


def _match(pattern: re.Pattern[str], value: object, what: str, must_be: str) -> None:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise _refusal(what, value, must_be)


def _one_of(names: tuple[str, ...], value: object, what: str) -> None:
    if value not in names:
        raise _refusal(what, value, f"one of {' '.join(names)}")


def _check_parents(parents: object) -> None:
    if not isinstance(parents, tuple):
        raise _refusal("the list of parents", parents, "a tuple of record ids")
    for parent in parents:
        _match(_ID, parent, "the parent", "a record's id, 64 lowercase hexadecimal digits")
    if len(set(parents)) > MAX_PARENTS:
        raise IngestFailed(f"{len(set(parents))} parents are refused: a record has at most {MAX_PARENTS}")


def _check_clock(clock: object) -> None:
    if not isinstance(clock, int) or isinstance(clock, bool) or not 0 <= clock <= MAX_CLOCK:
        raise _refusal("the clock", clock, "an integer from 0 to 2^63 - 1")


def _check_body(body: object, form: bytes | None) -> bytes:
    if not isinstance(body, dict):
        raise _refusal("the body", body, "a JSON object")
    if "kind" in body:
        _match(_KIND, body["kind"], "the kind", "of the form scope.category.entity.vN, lowercase")
    try:
        return canonical(body, max_depth=MAX_BODY_DEPTH) if form is None else form
    except InvalidBody as error:
        raise IngestFailed(f"the body is refused: {error.message}") from None
