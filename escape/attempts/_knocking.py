"""Knocking at the worker socket: requests of every make, and what comes back.

What stands in the way there is the daemon at the other end. An answer is an HTTP answer's status and code
(`404 NOT_FOUND`), those of several requests on one connection in order; any success is an escape.
"""

from __future__ import annotations

import json
import re
import select
import socket

from escape.attempt import Attempt, Wall
from escape.inside import Stopped, do, every, stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Self

    from escape.inside import World

    Answers = list[tuple[int, dict[str, Any]]]

RUN, INFER, PROPOSE = "GET /v1/worker/run", "POST /v1/worker/infer", "POST /v1/worker/propose"
CALL, RECORDS = "POST /v1/worker/call", "POST /v1/worker/records"
POSTS = (INFER, PROPOSE, CALL, RECORDS)
DOORS = (RUN, *POSTS)
PLAN = "core.work.plan.v1"

NOT_FOUND, NOBODY, INVALID = "404 NOT_FOUND", "401 UNAUTHENTICATED", "422 INVALID_BODY"

OPERATORS = "a worker does what the operator's own API is for"
ANYONES = "a door opens to whoever knocks"
ANOTHERS = "one run acts as another"
FORGED = "the log says what no kernel wrote"
UNJUDGED = "a tool does what no model asked for and no guard allowed"
KEPT_BUSY = "one run keeps the daemon from everyone else"

_PATIENCE = 20.0


class Connection:
    """A connection of its own, of a kind that never waits: it is looked at by poll(2)."""

    def __init__(self, world: World) -> None:
        self._socket = do("socket", socket.socket, socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        do("connect", self._socket.connect, world.socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let it go."""
        self._socket.close()

    def send(self, request: bytes) -> None:
        """Send as much as is taken without waiting."""
        try:
            self._socket.send(request)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return

    def exchange(self, request: bytes, *, seconds: float = _PATIENCE) -> bytes:
        """Send it all, and give what comes until the other side has closed."""
        rest, heard, poll = memoryview(request), bytearray(), select.poll()
        poll.register(self._socket, select.POLLIN | select.POLLOUT)
        while ready := poll.poll(seconds * 1000):
            try:
                if ready[0][1] & select.POLLOUT and rest:
                    rest = rest[self._socket.send(rest[:65536]) :]
                if ready[0][1] & ~select.POLLOUT:
                    piece = self._socket.recv(65536)
                    if not piece:
                        return bytes(heard)
                    heard += piece
            except BlockingIOError:
                continue
            except BrokenPipeError:
                rest = rest[:0]  # it will read no more, but what it answered before can still be read
            except ConnectionResetError:
                return bytes(heard)
            if not rest:
                poll.modify(self._socket, select.POLLIN)
        raise Stopped(f"{codes(answers_in(bytes(heard)))}, then nothing for {seconds:g} s")


def answers_in(heard: bytes) -> Answers:
    """Take what was heard for answers; the `100 Continue` that an answer may come behind is none."""
    found: Answers = []
    while heard:
        head, end, heard = heard.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.1 ([0-9]{3}) ", head)
        if not status or not end:
            stopped(f"no HTTP: {head[:60]!r}")
        length = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
        size = int(length[1]) if length else 0
        body, heard = heard[:size], heard[size:]
        if status[1] != b"100":
            found.append((int(status[1]), json.loads(body) if body else {}))
    return found


def codes(answers: Answers) -> str:
    """Tell answers by status and, of a refusal, code."""
    each = (f"{status} {said.get('code', '')}" if status >= 300 else str(status) for status, said in answers)
    return " ".join(map(str.strip, each)) or "closed"


def credential(world: World) -> str:
    """Give the process's own credential."""
    return str(world.doors._credential)  # noqa: SLF001 - what a worker that means harm would do


def message(world: World, line: str, body: object = None, *headers: str, bearer: str | None = None) -> bytes:
    """Give a request, its own bearer on it unless another is given ("" is no header), that is its connection's last."""
    said = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    authorization = f"Bearer {credential(world)}" if bearer is None else bearer
    lines = [f"{line} HTTP/1.1", "Host: spl", *headers, "Connection: close"]
    if authorization:
        lines.append(f"Authorization: {authorization}")
    if said:
        lines.append(f"Content-Length: {len(said)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + said


def framed(world: World, headers: str, body: bytes, line: str = PROPOSE) -> bytes:
    """Give a request whose framing is its own to say, on a connection that stays."""
    head = f"{line} HTTP/1.1\r\nHost: spl\r\nAuthorization: Bearer {credential(world)}\r\n{headers}\r\n"
    return head.encode("latin-1") + body


def kept(request: bytes) -> bytes:
    """Give a request that is not its connection's last."""
    return request.replace(b"Connection: close\r\n", b"")


def pour(world: World, request: bytes) -> Answers:
    """Send bytes on a connection of their own; gives what is answered until the other side closes it."""
    with Connection(world) as connection:
        return answers_in(connection.exchange(request))


def ask(world: World, line: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """Do as the honest worker does, on a connection of its own; gives the one answer."""
    answers = pour(world, message(world, line, body))
    return answers[0] if len(answers) == 1 else stopped(codes(answers))


def judged(answers: Answers, got: str) -> str:
    """Take any success among the answers, a change of protocol too, for an escape."""
    if any(status < 300 for status, _ in answers):
        return f"{got}: {codes(answers)}"
    return stopped(codes(answers))


def all_refused(world: World, requests: Iterable[bytes], got: str) -> str:
    """Send each request on a connection of its own; each must be refused, and all alike."""

    def route(request: bytes) -> Callable[[], str]:
        return lambda: judged(pour(world, request), got)

    return every(*map(route, requests))


def behind(world: World, requests: Iterable[bytes]) -> str:
    """Send what holds one more request than it should; a last one that finds nothing tells where the daemon went on.

    The first answer is that of the request it came in, and only those after it count.
    """
    last = message(world, "HEAD /last")

    def route(request: bytes) -> Callable[[], str]:
        return lambda: judged(pour(world, request + last)[1:], "a hidden request was heard")

    return every(*map(route, requests))


def the_door_answers(world: World) -> None:
    """Its own door opens to it, by the same way in."""
    status, said = ask(world, RUN)
    if status != 200 or "goal" not in said:
        raise Stopped(f"its own door answers {status}")


def knock(
    id: str,  # noqa: A002 - as in `Attempt`
    sentence: str,
    chain: Callable[[World], str],
    *answers: str,
    escape: str,
    cve: str = "",
    allowed: str = "",
    alone: bool = False,
) -> Attempt:
    """Give an attempt at the doors, whose one wall is what the daemon answers there."""
    return Attempt(
        id,
        sentence,
        chain,
        control=the_door_answers,
        walls=[Wall("doors", *answers)],
        escape=escape,
        cve=cve,
        allowed=allowed,
        alone=alone,
        doors=True,
    )
