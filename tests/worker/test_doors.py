"""The five doors over a real unix socket: what is sent, what is understood, and what is never sent twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from spl.loop.machine import DoorError
from spl.worker.doors import ANSWER_LIMIT, HEAD_LIMIT, ROUTES, Doors
from tests.worker.conftest import Answer, chunked, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.worker.conftest import DoorServer

SECRET = "run-credential-1"


@pytest.fixture
def doors(server: DoorServer) -> Iterator[Doors]:
    doors = Doors(server.path, SECRET)
    yield doors
    doors.close()


def refusal(doors: Doors, door: str = "infer") -> DoorError:
    with pytest.raises(DoorError) as raised:
        doors.perform(door, {})
    return raised.value


def test_each_step_goes_to_its_own_door_with_the_bearer(server: DoorServer, doors: Doors) -> None:
    server.answers += [plain({"n": n}) for n in range(5)]

    answers = [doors.perform(door, {"call_id": door}) for door in ROUTES]

    assert answers == [{"n": n} for n in range(5)]
    assert [request.line for request in server.requests] == [
        "GET /v1/worker/run HTTP/1.1",
        "POST /v1/worker/infer HTTP/1.1",
        "POST /v1/worker/propose HTTP/1.1",
        "POST /v1/worker/call HTTP/1.1",
        "POST /v1/worker/records HTTP/1.1",
    ]
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {SECRET}"}
    assert server.requests[0].body == b""
    assert [json.loads(request.body) for request in server.requests[1:]] == [
        {"call_id": door} for door in ("infer", "propose", "call", "record")
    ]


def test_what_is_said_goes_as_utf8_and_what_is_none_as_an_escape(server: DoorServer, doors: Doors) -> None:
    server.answers.append(plain({}))
    payload = {"messages": ["é宽😀", "\ud800", "\\ud800", "\0\n"]}

    doors.perform("infer", payload)

    (request,) = server.requests
    assert request.body == ('{"messages":["é宽😀","'.encode() + rb'\ud800","\\ud800","\u0000\n"]}')
    assert json.loads(request.body) == payload


def test_one_connection_serves_every_step(server: DoorServer, doors: Doors) -> None:
    server.answers += [plain({}), chunked({}), plain({})]

    for _ in range(3):
        doors.perform("infer", {})

    assert server.connections == 1


def test_a_chunked_answer_is_put_together(server: DoorServer, doors: Doors) -> None:
    answer = {"text": "é" * 50_000}
    server.answers += [chunked(answer, size=999), plain({"next": True})]

    assert doors.perform("infer", {}) == answer
    assert doors.perform("infer", {}) == {"next": True}


def test_an_answer_that_asks_for_it_is_the_connections_last(server: DoorServer, doors: Doors) -> None:
    last = Answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
    server.answers += [last, plain({})]

    doors.perform("infer", {})
    doors.perform("infer", {})

    assert [request.connection for request in server.requests] == [1, 2]


def test_a_rested_connection_that_was_closed_is_opened_again(server: DoorServer, doors: Doors) -> None:
    server.answers += [Answer(plain({}).raw, close=True), plain({"again": True})]
    doors.perform("infer", {})
    server.closed.wait()

    assert doors.perform("infer", {}) == {"again": True}
    assert [request.connection for request in server.requests] == [1, 2]


def test_bytes_nobody_asked_for_are_never_taken_for_the_next_answer(server: DoorServer, doors: Doors) -> None:
    server.answers += [Answer(plain({}).raw + plain({"forged": True}).raw), plain({"next": True})]
    doors.perform("infer", {})

    assert doors.perform("propose", {}) == {"next": True}


def test_a_connection_that_closes_as_the_request_is_sent_is_opened_again_if_no_byte_left(
    server: DoorServer, doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The moment between the look at the connection and the first byte: look and see nothing.
    monkeypatch.setattr("spl.worker.doors._readable", lambda connection: False)
    server.answers += [Answer(plain({}).raw, close=True), plain({"again": True})]
    doors.perform("infer", {})
    server.closed.wait()

    assert doors.perform("infer", {}) == {"again": True}


def test_a_request_that_may_have_been_heard_is_never_sent_twice(server: DoorServer, doors: Doors) -> None:
    server.answers += [plain({}), Answer(close=True), plain({})]
    doors.perform("infer", {})

    assert refusal(doors, "call").code == "DOOR_CLOSED"
    assert [request.line.split()[1] for request in server.requests] == [
        "/v1/worker/infer",
        "/v1/worker/call",
    ]


def test_an_answer_cut_off_in_its_middle_is_not_asked_for_again(server: DoorServer, doors: Doors) -> None:
    server.answers += [Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{", close=True), plain({})]

    assert refusal(doors).code == "DOOR_CLOSED"
    assert len(server.requests) == 1


def test_a_refusal_carries_the_code_and_message_of_its_body(server: DoorServer, doors: Doors) -> None:
    error = {
        "object": "error",
        "type": "request_error",
        "code": "CALL_NOT_ALLOWED",
        "message": "It was denied.",
    }
    server.answers.append(plain(error, status=409))

    refused = refusal(doors, "call")

    assert (refused.code, refused.message) == ("CALL_NOT_ALLOWED", "It was denied.")


@pytest.mark.parametrize("body", ["Bad gateway", [], {}, None])
def test_a_refusal_without_a_code_is_named_by_its_status(
    server: DoorServer, doors: Doors, body: object
) -> None:
    server.answers.append(plain(body, status=502))

    refused = refusal(doors)

    assert (refused.code, refused.message) == ("HTTP_502", "the door 'infer' answered 502")


@pytest.mark.claim("I7")
def test_a_refusal_that_repeats_the_bearer_does_not_carry_it_on(server: DoorServer, doors: Doors) -> None:
    server.answers.append(plain({"code": "UNAUTHENTICATED", "message": f"no bearer {SECRET}"}, status=401))

    assert refusal(doors).message == "no bearer [credential]"


def test_a_body_refused_unread_still_has_its_refusal_heard(server: DoorServer, doors: Doors) -> None:
    raw = plain({"code": "BODY_TOO_LARGE", "message": "It is over the limit."}, status=413).raw
    server.answers.append(Answer(raw, close=True, read_body=False))

    with pytest.raises(DoorError) as raised:
        doors.perform("infer", {"messages": "x" * 4_000_000})

    assert raised.value.code == "BODY_TOO_LARGE"


@pytest.mark.parametrize(
    "raw",
    [
        f"HTTP/1.1 200 OK\r\nContent-Length: {ANSWER_LIMIT + 1}\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\n{ANSWER_LIMIT:x}\r\n".encode(),
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (HEAD_LIMIT + 1),
        b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * 200,
    ],
    ids=["length", "chunks", "line", "headers"],
)
def test_an_answer_over_the_bounds_is_refused_before_it_is_read(
    server: DoorServer, doors: Doors, raw: bytes
) -> None:
    server.answers.append(Answer(raw))

    assert refusal(doors).code == "ANSWER_TOO_LARGE"


def test_an_answer_of_just_the_limit_is_taken(server: DoorServer, doors: Doors) -> None:
    body = b'{"x":"' + b"x" * (ANSWER_LIMIT - 8) + b'"}'
    server.answers.append(Answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)))

    assert len(doors.perform("infer", {})["x"]) == ANSWER_LIMIT - 8


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{[",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_an_answer_that_is_not_a_json_object_over_http_is_malformed(
    server: DoorServer, doors: Doors, raw: bytes
) -> None:
    server.answers.append(Answer(raw))

    assert refusal(doors).code == "ANSWER_MALFORMED"


def test_a_socket_that_is_not_there_is_unreachable() -> None:
    refused = refusal(Doors("/nonexistent/w.sock", SECRET), "run")

    assert str(refused) == (
        "DOOR_UNREACHABLE: the worker socket failed at the door 'run': No such file or directory"
    )
