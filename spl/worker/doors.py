"""The five doors, over the worker socket, in as much of HTTP/1.1 (RFC 9112) as they need.

`http.client` would double the worker's memory.
"""

from __future__ import annotations

import select
from _socket import AF_UNIX, SOCK_STREAM, socket

from spl.loop.machine import DoorError
from spl.worker.jsontext import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spl.loop.machine import Json

ANSWER_LIMIT = 16 * 1024 * 1024
"""Bytes in the body of an answer."""
HEAD_LIMIT = 64 * 1024
"""Bytes in a line of an answer's head, or of a chunk's."""
HEADERS_LIMIT = 100
"""Headers, or trailers, in an answer."""

ROUTES = {
    "run": "GET /v1/worker/run",
    "infer": "POST /v1/worker/infer",
    "propose": "POST /v1/worker/propose",
    "call": "POST /v1/worker/call",
    "record": "POST /v1/worker/records",
}


class Doors:
    """One kept connection to the worker socket at `path`, with the run's credential as the bearer.

    There is no time limit here: a model may think for long, and the kernel ends what takes too long.
    """

    def __init__(self, path: str, credential: str) -> None:
        self._path = path
        self._credential = credential
        self._connection: socket | None = None
        self._received = bytearray()

    def perform(self, door: str, payload: Json) -> Json:
        """Take a step to its door and give the JSON object it answers.

        Raises DoorError with the code and message of a refusal; `DOOR_UNREACHABLE`, `DOOR_CLOSED`,
        `ANSWER_TOO_LARGE` or `ANSWER_MALFORMED` where there is no usable answer. A request of which the other
        side may have heard anything is never sent twice.
        """
        try:
            self._send(self._request(door, payload))
            status, body = self._answer()
        except OSError as error:
            self.close()
            why = error.strerror or type(error).__name__
            raise DoorError(
                "DOOR_UNREACHABLE", f"the worker socket failed at the door {door!r}: {why}"
            ) from None
        except DoorError as unusable:
            self.close()
            message = f"the answer at the door {door!r} {unusable.message}"
            raise DoorError(unusable.code, message) from None
        try:
            answer = loads(body)
        except ValueError:
            answer = None
        if not 200 <= status < 300:
            raise self._refusal(door, status, answer)
        if not isinstance(answer, dict):
            raise DoorError("ANSWER_MALFORMED", f"the answer at the door {door!r} is not a JSON object")
        return answer

    def close(self) -> None:
        """Close the connection, if there is one; the next step opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._received.clear()

    def _request(self, door: str, payload: Json) -> bytes:
        route = ROUTES[door]
        head = f"{route} HTTP/1.1\r\nHost: spl\r\nAuthorization: Bearer {self._credential}\r\n"
        if route.startswith("GET "):
            return f"{head}\r\n".encode("ascii")
        # A lone surrogate, which is no UTF-8, goes as Python writes it: that is JSON's own escape.
        said = dumps(payload)
        body = said.encode("utf-8", "backslashreplace")
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode("ascii") + body

    def _refusal(self, door: str, status: int, answer: object) -> DoorError:
        fields = answer if isinstance(answer, dict) else {}
        code = str(fields.get("code") or f"HTTP_{status}")
        message = str(fields.get("message") or f"the door {door!r} answered {status}")
        # It goes to a log: whatever was answered, the bearer does not.
        return DoorError(code, message.replace(self._credential, "[credential]"))

    def _send(self, request: bytes) -> None:
        # Nothing is owed to a connection that rests: what it holds is its end, or no answer to this request.
        if self._connection is not None and (self._received or _readable(self._connection)):
            self.close()
        kept = self._connection is not None
        rest = memoryview(request)
        while rest:
            if self._connection is None:
                self._connection = _connect(self._path)
            try:
                rest = rest[self._connection.send(rest) :]
            except (BrokenPipeError, ConnectionResetError):
                if not kept or len(rest) < len(request):
                    # The other side may have heard enough to answer, as with a body it will not read.
                    return
                self.close()
                kept = False

    def _answer(self) -> tuple[int, bytes]:
        version, _, rest = self._line().partition(b" ")
        if version != b"HTTP/1.1" or not rest[:3].isdigit():
            raise DoorError("ANSWER_MALFORMED", "is not HTTP/1.1")
        headers = self._headers()
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            body = self._chunks()
        elif b"content-length" in headers:
            body = self._exactly(_length(headers[b"content-length"], 10))
        else:
            raise DoorError("ANSWER_MALFORMED", "does not say how long it is")
        if headers.get(b"connection", b"").lower() == b"close":
            self.close()
        return int(rest[:3]), body

    def _headers(self) -> dict[bytes, bytes]:
        headers: dict[bytes, bytes] = {}
        for _ in range(HEADERS_LIMIT + 1):
            line = self._line()
            if not line:
                return headers
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        raise DoorError("ANSWER_TOO_LARGE", f"has more than {HEADERS_LIMIT} headers")

    def _chunks(self) -> bytes:
        body = bytearray()
        while size := _length(self._line().partition(b";")[0], 16):
            body += self._exactly(size, already=len(body))
            if self._line():
                raise DoorError("ANSWER_MALFORMED", "has a chunk that is longer than it says")
        self._headers()
        return bytes(body)

    def _exactly(self, size: int, already: int = 0) -> bytes:
        if already + size > ANSWER_LIMIT:
            raise DoorError("ANSWER_TOO_LARGE", f"is over {ANSWER_LIMIT} bytes")
        while len(self._received) < size:
            self._fill()
        return self._cut(size, size)

    def _line(self) -> bytes:
        while (end := self._received.find(b"\r\n")) < 0:
            if len(self._received) > HEAD_LIMIT:
                raise DoorError("ANSWER_TOO_LARGE", f"has a line over {HEAD_LIMIT} bytes in its head")
            self._fill()
        return self._cut(end, end + 2)

    def _cut(self, size: int, consumed: int) -> bytes:
        taken = bytes(self._received[:size])
        del self._received[:consumed]
        return taken

    def _fill(self) -> None:
        data = self._connection.recv(65536) if self._connection is not None else b""
        if not data:
            raise DoorError("DOOR_CLOSED", "broke off: the worker socket closed the connection")
        self._received += data


def _connect(path: str) -> socket:
    connection = socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def _readable(connection: socket) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _length(text: bytes, base: int) -> int:
    try:
        length = int(text, base)
    except ValueError:
        length = -1
    if length < 0:
        raise DoorError("ANSWER_MALFORMED", "has a length that is not a number")
    return length
