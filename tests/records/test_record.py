from __future__ import annotations

import hashlib
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from spl.errors import IngestFailed
from spl.records.canonical import canonical
from spl.records.record import (
    ACTS,
    DATA_TYPES,
    MAX_BODY_DEPTH,
    MAX_CLOCK,
    MAX_PARENTS,
    Draft,
    Record,
    check,
    is_record_id,
    record_id,
)
from tests.records.contract import draft

RECORD = Record(
    id="a" * 64,
    parents=("0" * 64,),
    thread="th_1",
    actor="did:sync:user:ana",
    act="KNOW",
    body={"kind": "acme.note.text.v1", "text": "né"},
    clock=7,
    data_type="SCALAR",
    judged_by=None,
    sequence=3,
)


def ids(count: int) -> tuple[str, ...]:
    return tuple(f"{n:064x}" for n in range(count))


def test_the_id_is_the_sha256_of_the_seven_fields_in_canonical_form() -> None:
    text = (
        '{"act":"KNOW","actor":"did:sync:user:ana","body":{"a":1,"text":"né"},"clock":7,'
        f'"data_type":"SCALAR","parents":["{"0" * 64}"],"thread":"th_1"}}'
    )
    expected = hashlib.sha256(text.encode()).hexdigest()
    fields = (["0" * 64], "th_1", "did:sync:user:ana", "KNOW")
    assert record_id(*fields, {"text": "né", "a": 1.0}, 7, "SCALAR") == expected
    assert record_id(*fields, canonical({"text": "né", "a": 1.0}), 7, "SCALAR") == expected
    assert is_record_id(expected)


def test_an_id_known_from_elsewhere_is_the_same_here() -> None:
    # By sha256sum(1), which knows nothing of this package.
    text = b'{"act":"DO","actor":"did:a:b","body":{},"clock":1,"data_type":"VOID","parents":[],"thread":"t"}'
    expected = "e19487533e2a2faba0a67840b64edb8c3f05b9a09fa9f3be1698589db65652b4"
    assert hashlib.sha256(text).hexdigest() == expected
    assert record_id((), "t", "did:a:b", "DO", {}, 1, "VOID") == expected


def test_every_one_of_the_seven_fields_changes_the_id() -> None:
    base: dict[str, Any] = {
        "parents": ids(2),
        "thread": "t",
        "actor": "did:a:b",
        "act": "DO",
        "body": {"a": 1},
        "clock": 1,
        "data_type": "VOID",
    }
    others: dict[str, Any] = {
        "parents": ids(2)[::-1],
        "thread": "u",
        "actor": "did:a:c",
        "act": "GET",
        "body": {"a": 2},
        "clock": 2,
        "data_type": "SCALAR",
    }
    found = {record_id(**{**base, name: other}) for name, other in others.items()}
    assert len(found | {record_id(**base)}) == 8


def test_no_field_can_pass_itself_off_as_another() -> None:
    forged = 'did:a:b","body":{},"clock":1,"data_type":"VOID","parents":[],"thread":"t'
    assert record_id((), "t", forged, "DO", {}, 1, "VOID") != record_id(
        (), "t", "did:a:b", "DO", {}, 1, "VOID"
    )


def test_a_record_on_the_wire_has_its_eight_fields_id_and_sequence() -> None:
    assert RECORD.wire() == {
        "object": "record",
        "id": "a" * 64,
        "parents": ["0" * 64],
        "thread": "th_1",
        "actor": "did:sync:user:ana",
        "act": "KNOW",
        "body": {"kind": "acme.note.text.v1", "text": "né"},
        "clock": 7,
        "data_type": "SCALAR",
        "judged_by": None,
        "sequence": 3,
    }


def test_a_record_knows_the_kind_its_body_names() -> None:
    assert RECORD.kind == "acme.note.text.v1"
    assert replace(RECORD, body={}).kind is None
    assert replace(RECORD, body={"kind": 5}).kind is None


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        RECORD.clock = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    "good",
    [
        *(draft(act=act) for act in ACTS),
        *(draft(data_type=name) for name in DATA_TYPES),
        draft(thread="A" * 200),
        draft(thread="th_engine_config"),
        draft(actor="did:sync:system:engine"),
        draft(actor="did:key:" + "z" * 292),
        draft(actor="did:web:example.org%3A8080:a-b_c"),
        draft(clock=0),
        draft(clock=MAX_CLOCK),
        draft(parents=ids(MAX_PARENTS)),
        draft(parents=ids(MAX_PARENTS) * 2),
        draft(body={}),
        draft(body={"kind": "core.work.loop_outcome.v1"}),
        draft(body={"kind": "acme.note.sub.text-2.v10"}),
        draft(judged_by="did:sync:system:engine"),
    ],
)
def test_a_good_draft_is_taken_and_its_body_given_in_canonical_form(good: Draft) -> None:
    assert check(good) == canonical(good.body)


def test_a_body_whose_form_the_writer_had_is_put_in_it_no_second_time() -> None:
    form = canonical({"a": 1})
    assert check(draft(body={"a": 1}, canonical=form)) is form
    with pytest.raises(IngestFailed, match="the kind"):
        check(draft(body={"kind": "note"}, canonical=canonical({"kind": "note"})))


def deep_body(depth: int) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for _ in range(depth - 1):
        body = {"a": body}
    return body


def test_a_body_is_bounded_below_what_a_listing_of_it_may_be() -> None:
    check(draft(body=deep_body(MAX_BODY_DEPTH)))
    with pytest.raises(IngestFailed, match="too deep"):
        check(draft(body=deep_body(MAX_BODY_DEPTH + 1)))


BAD: dict[str, list[Any]] = {
    "thread": ["", "a/b", "a\x00b", "a b", "th_1\n", "A" * 201, "thé", "\ud800", 5, None],
    "actor": [
        *("", "ana", "did:", "did:sync:", "did:Sync:a", "did:a:b\n", "did:a:b c", "did:a:é", None),
        "did:key:" + "z" * 293,
    ],
    "act": ["", "know", "KNOW ", "SAY", None, []],
    "data_type": ["", "scalar", "TEXT", None],
    "clock": [-1, MAX_CLOCK + 1, 1.0, True, "1"],
    "parents": [
        *((bad,) for bad in ("", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", "g" * 64, None)),
        "0" * 64,
        ids(MAX_PARENTS + 1),
    ],
    "body": [None, [], "{}", {1: 2}, {"a": float("nan")}, {"a": "\ud800"}, {"a": {1}}],
    "judged_by": ["", "a b", "a\n", "é", "x" * 301, 5],
}
BAD_KINDS: list[Any] = [
    *(None, 5, "", "note", "acme.note.v1", "acme.note.text", "acme.note.text.1", "acme.note.text.v"),
    *(
        "acme.note.text.v01",
        "acme.Note.text.v1",
        "acme..text.v1",
        "acme.note.text.v1\n",
        ".acme.note.text.v1",
    ),
    "a" * 200 + ".note.text.v1",
]


@pytest.mark.parametrize(
    "fields",
    [
        *({name: value} for name, values in BAD.items() for value in values),
        *({"body": {"kind": kind}} for kind in BAD_KINDS),
    ],
)
def test_a_bad_field_is_refused_in_one_printable_sentence(fields: dict[str, Any]) -> None:
    with pytest.raises(IngestFailed) as refused:
        check(draft(**fields))
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"thread": "a/b"}, "the thread 'a/b'"),
        ({"actor": "ana"}, "the actor 'ana'"),
        ({"act": "SAY"}, "the act 'SAY'"),
        ({"data_type": "X"}, "the data_type 'X'"),
        ({"clock": -1}, "the clock -1"),
        ({"parents": ("x",)}, "the parent 'x'"),
        ({"body": {"kind": "x"}}, "the kind 'x'"),
        ({"body": {"a": float("nan")}}, "the body is refused: .* nan"),
    ],
)
def test_a_refusal_names_the_field_and_its_value(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(IngestFailed, match=words):
        check(draft(**fields))
