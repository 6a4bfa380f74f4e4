"""What may come back on a connection, whatever was sent: the judge of one exchange.

It reads requests by the letter of RFC 9112 and nobody's parser, so that a request which another would see in the middle
of one's body is seen to have been answered.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from spl.errors import table

STATUSES = {error.code: error.status for error in table()}

_LINE = re.compile(rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+) ([!-~]+) HTTP/(\d)\.(\d)")
_FIELD = re.compile(rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,20})[ \t]*(;[^\r\n]*)?\r\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [ -~]*")
_ANSWER_FIELD = re.compile(rb"([-A-Za-z]+): ([ -~]*)")
_TAG = re.compile(rb"[?&](t\d+)=")
_TOLD = re.compile(r"no field '(t\d+)'")
_PROTOCOL = {400, 431, 501}
"""Statuses of what is no HTTP, which has no document: it never was anybody's request."""


@dataclass(frozen=True)
class Understood:
    """A request that stands in a stream of bytes."""

    method: bytes
    tag: str | None
    last: bool
    """Nothing after it on its connection may be answered."""


@dataclass(frozen=True)
class Answer:
    """One answer as it came."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def code(self) -> str | None:
        """The code of an error document."""
        return (
            None
            if self.headers.get(b"content-type") != b"application/json" or not self.body
            else self._code()
        )

    def _code(self) -> str | None:
        said: Any = json.loads(self.body)
        code = said.get("code")
        return code if said.get("object") == "error" else None


class Wrong(AssertionError):
    """Something came back that must not."""


def require(holds: object, what: str, *facts: object) -> None:
    """Fail unless something holds; raises `Wrong`."""
    if not holds:
        raise Wrong(f"{what}: {' | '.join(repr(fact)[:2000] for fact in facts)}")


def understood(raw: bytes) -> list[Understood]:
    """Give the requests that stand in these bytes, up to what is none or where two readers could differ."""
    found: list[Understood] = []
    at = 0
    while True:
        while raw[at : at + 2] == b"\r\n":
            at += 2
        end = _HEAD_END.search(raw, at)
        if end is None:
            return found
        lines = re.split(rb"\r?\n", raw[at : end.start()])
        line = _LINE.fullmatch(lines[0])
        fields = _fields(lines[1:])
        if line is None or fields is None:
            return found
        at = _after_body(raw, end.end(), fields, old=line[3] + line[4] < b"11")
        closes = any(b"close" in value.lower() for name, value in fields if name == b"connection")
        tag = _TAG.search(line[2])
        last = at < 0 or closes or line[3] + line[4] < b"11"
        found.append(Understood(line[1], tag[1].decode() if tag else None, last))
        if last:
            return found


def _fields(lines: list[bytes]) -> list[tuple[bytes, bytes]] | None:
    unfolded: list[bytes] = []
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            if not unfolded:
                return None
            unfolded[-1] += b" " + line.lstrip(b" \t")
        else:
            unfolded.append(line)
    matches = [_FIELD.fullmatch(line) for line in unfolded]
    return [(m[1].lower(), m[2]) for m in matches if m] if all(matches) else None


def _after_body(raw: bytes, at: int, fields: list[tuple[bytes, bytes]], *, old: bool) -> int:
    """Give where the next request may begin; -1 where nobody can tell, or the body is not all there."""
    codings = [value for name, value in fields if name == b"transfer-encoding"]
    lengths = [value for name, value in fields if name == b"content-length"]
    if codings:
        # Both are a reason to close (RFC 9112, 6.1), and so is a coding of an older client.
        if lengths or old or [each.lower() for each in codings] != [b"chunked"]:
            return -1
        return _after_chunks(raw, at)
    values = {each.strip(b" \t") for value in lengths for each in value.split(b",")}
    if len(values) > 1 or not all(re.fullmatch(rb"[0-9]{1,20}", each) for each in values):
        return -1
    end = at + sum(int(each) for each in values)
    return end if end <= len(raw) else -1


def _after_chunks(raw: bytes, at: int) -> int:
    while chunk := _CHUNK.match(raw, at):
        size = int(chunk[1], 16)
        at = chunk.end() + size
        if size == 0:
            if ended := re.compile(rb"\r?\n").match(raw, at):
                return ended.end()
            end = _HEAD_END.search(raw, at)
            return (
                end.end() if end and _fields(re.split(rb"\r?\n", raw[at : end.start()])) is not None else -1
            )
        if raw[at : at + 2] != b"\r\n":
            return -1
        at += 2
    return -1


def judge(sent: bytes, got: bytes, *, cut: bool = False) -> list[Answer]:
    """Give the answers to what was sent; raises `Wrong`.

    `cut` says that the connection was reset, by which the end of what came may be lost.
    """
    requests = understood(sent)
    answers: list[Answer] = []
    at = 0
    while at < len(got):
        method = requests[len(answers)].method if len(answers) < len(requests) else b""
        answer, at = _answer(got, at, head=method == b"HEAD")
        if answer is None:
            # A stream has no end of its own: it is broken off when its reader goes.
            require(cut or b"\r\ncontent-type: text/event-stream" in got[at:], "half an answer", sent, got)
            break
        if answer.status < 200:
            require(answer.status == 100, "an interim answer nobody asked for", sent, got)
            continue
        _check(answer, head=method == b"HEAD")
        answers.append(answer)
        if answer.headers.get(b"connection") == b"close":
            require(at == len(got), "an answer after the last", sent, got)
    require(len(answers) <= len(requests) + 1, "more answers than requests", sent, got)
    for answer in answers[len(requests) :]:
        require(not answer.body and answer.status in _PROTOCOL, "an answer to what is no request", sent, got)
    if len(answers) > len(requests) and requests:
        require(not requests[-1].last, "an answer after the last request", sent, got)
    for request, answer in zip(requests, answers, strict=False):
        told = _TOLD.search(answer.body.decode()) if answer.code == "INVALID_BODY" else None
        require(told is None or told[1] == request.tag, "the answer to another request", sent, got)
    return answers


def _answer(got: bytes, at: int, *, head: bool) -> tuple[Answer | None, int]:
    end = got.find(b"\r\n\r\n", at)
    if end < 0:
        return None, at
    status, *lines = got[at:end].split(b"\r\n")
    matched, fields = _STATUS.fullmatch(status), [_ANSWER_FIELD.fullmatch(line) for line in lines]
    require(matched and all(fields), "a malformed head of an answer", got[at:end])
    assert matched is not None
    headers = {field[1].lower(): field[2] for field in fields if field}
    require(len(headers) == len(lines), "a header twice", got[at:end])
    code, at = int(matched[1]), end + 4
    if code < 200 or head:
        return Answer(code, headers, b""), at
    if headers.get(b"transfer-encoding") == b"chunked":
        body, after = b"", at
        while chunk := _CHUNK.match(got, after):
            size = int(chunk[1], 16)
            body += got[chunk.end() : chunk.end() + size]
            after = chunk.end() + size + 2
            if size == 0:
                return Answer(code, headers, body), after
        return None, at
    if b"content-length" not in headers:
        # Of a stream to an older client, which knows no chunks: it ends with the connection.
        require(headers.get(b"connection") == b"close", "an answer without a length", got)
        require(
            headers.get(b"content-type", b"").startswith(b"text/event-stream"),
            "a document without a length",
            got,
        )
        return Answer(code, headers, got[at:]), len(got)
    after = at + int(headers[b"content-length"])
    return (Answer(code, headers, got[at:after]), after) if after <= len(got) else (None, at)


def _check(answer: Answer, *, head: bool) -> None:
    if head:
        require(answer.status != 500, "a fault of the daemon's own", answer)
        return
    if answer.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        require(answer.status == 200, "an error that is no document", answer)
        return
    if not answer.body:
        require(answer.status in _PROTOCOL, "an answer without a document", answer)
        require(answer.headers.get(b"connection") == b"close", "what is no HTTP is gone on with", answer)
        return
    require(answer.headers.get(b"content-type") == b"application/json", "no document", answer)
    require(not re.search(rb"[\x00-\x1f]", answer.body), "something echoed as it came", answer)
    said = json.loads(answer.body)
    if answer.status < 400:
        require(answer.status in (200, 201, 202) and said.get("object") != "error", "an odd success", answer)
        return
    require(
        said.get("object") == "error" and said.get("message") and said.get("type"),
        "no error document",
        answer,
    )
    require(STATUSES.get(said["code"]) == answer.status, "a status that is not its code's", answer)
    require(said["code"] != "INTERNAL", "a fault of the daemon's own", answer)
    require("Traceback" not in said["message"] and "Error:" not in said["message"], "a fault told", answer)
