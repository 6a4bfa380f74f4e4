"""One connection: Hypercorn's server of it, held to HTTP/1.1, to a pace, and to one write for an answer."""

from __future__ import annotations

import time
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import h11
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.events import Request, StreamClosed
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.typing import ConnectionState
from hypercorn.utils import build_and_validate_headers, suppress_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hypercorn.config import Config
    from hypercorn.events import Event

    from spl.api.pace import Pace

MAX_HEAD: Final = 16 * 1024
"""Bytes of a request's line and headers, and of a chunk's."""

_END: Final = h11.EndOfMessage()

_Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


class Connection(TCPServer):
    """Hypercorn's server of one connection, without its timer: `note` is told whenever it is idle, or is not any more.

    Hypercorn has two tasks and a timer for each stretch between two requests, which is half of what a short request
    costs. Whoever is told can look at all connections with one timer, and has the idle one `leave`.
    """

    def __init__(self, pace: Pace, note: Callable[[Connection, bool], None], *connection: Any) -> None:
        super().__init__(*connection)
        self._note = note
        self._tasks = TaskGroup(self.loop)
        self._http = Http1(
            pace,
            self.app,
            self.config,
            self.context,
            self._tasks,
            ConnectionState(self.state),
            False,
            None,  # who is at the other end is in `spl.api.peer`
            None,
            self.protocol_send,
        )
        # Without the wrapper around it, which would switch to HTTP/2 when a request asks for it.
        self.protocol = self._http  # type: ignore[assignment]

    async def run(self) -> None:
        """Serve the connection to its end; see `TCPServer.run`."""
        try:
            async with self._tasks:
                await self._read_data()
        except OSError:
            pass  # the peer is gone
        finally:
            await self._close()

    def leave(self) -> None:
        """Close it, which is idle, as soon as what was written is taken; nothing that comes is begun."""
        self._http.gone = True
        self.writer.close()

    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol says; see `TCPServer.protocol_send`."""
        if isinstance(event, Updated):
            self._note(self, event.idle)
        else:
            await super().protocol_send(event)


class Http1(H11Protocol):
    """HTTP/1.1 that ignores every offer to upgrade (RFC 9110, 7.8).

    A confined worker, or anyone on the loopback, has no business with an HTTP/2 or a WebSocket parser. `gone` says that
    what the peer had asked for beforehand is done for nobody.
    """

    def __init__(self, pace: Pace, *connection: Any) -> None:
        super().__init__(*connection)
        self.gone = False
        self._pace = pace

    async def handle(self, event: Any) -> None:
        """Take what has come; see `H11Protocol.handle`."""
        # It is told when the peer has gone.
        self.gone = self.gone or isinstance(event, Closed)
        await super().handle(event)

    async def send_whole(self, status: int, headers: _Headers, body: bytes) -> None:
        """Send a whole answer, in one write."""
        head = _head(self.config, status, headers, int(time.time()))
        parts = (head, h11.Data(data=body), _END) if body else (head, _END)
        try:
            data = b"".join([self.connection.send(each) or b"" for each in parts])
        except h11.LocalProtocolError:
            # To whoever has not kept to the protocol nothing more can be said.
            if self.connection.their_state is not h11.ERROR:
                raise
        else:
            await self.send(RawData(data))

    async def _check_protocol(self, event: Any) -> None:
        pass

    async def _create_stream(self, request: Any) -> None:
        if self.gone:
            return
        await self._pace.begin()
        headers = list(request.headers)
        # h11 bounds a head that comes in pieces, and not one that is there at once.
        if len(request.target) + sum(len(name) + len(value) for name, value in headers) > MAX_HEAD:
            await self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        if _is_framed_twice(headers, request.http_version):
            await self._refuse(HTTPStatus.BAD_REQUEST)
            return
        # A method is in capitals (RFC 9110, 9.1): what is not is another one, and stays it.
        method = request.method if request.method.isupper() else b"-" + request.method.upper()
        self.stream = Stream(
            self.send_whole,
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=[each for each in headers if each[0] != b"upgrade"],
                http_version=request.http_version.decode(),
                method=method.decode("ascii"),
                raw_path=request.target,
                state=self.connection_state,
            )
        )

    async def _refuse(self, status: HTTPStatus) -> None:
        await self._send_error_response(status)
        await self.send(Closed())


class Stream(HTTPStream):
    """A request and its answer, which goes out in one write where it is said as one.

    That is a head that says how long the body is, and then the body. Hypercorn makes five events of it, which takes
    longer than a verdict is thought about.
    """

    def __init__(self, send_whole: Callable[[int, _Headers, bytes], Awaitable[None]], *request: Any) -> None:
        super().__init__(*request)
        self._send_whole = send_whole
        self._start: Any = None

    async def app_send(self, message: Any) -> None:
        """Send what the application says; see `HTTPStream.app_send`."""
        start, self._start = self._start, None
        if start is not None:
            if message is not None and not message.get("more_body", False):
                await self._answer(start, message.get("body", b""))
                return
            await super().app_send(start)
        elif message is not None and self.state is ASGIHTTPState.REQUEST and _is_measured(message):
            self._start = message
            return
        await super().app_send(message)

    async def _answer(self, start: Any, body: bytes) -> None:
        status, headers = int(start["status"]), tuple(build_and_validate_headers(start["headers"]))
        self.response, self.state = start, ASGIHTTPState.RESPONSE
        await self._send_whole(status, headers, b"" if suppress_body(self.scope["method"], status) else body)
        self.state = ASGIHTTPState.CLOSED
        await self.send(StreamClosed(stream_id=self.stream_id))


def _is_measured(message: Any) -> bool:
    """Tell whether this begins an answer and says how long its body is."""
    return message["type"] == "http.response.start" and any(
        name == b"content-length" for name, _ in message.get("headers", ())
    )


@lru_cache(maxsize=64)
def _head(config: Config, status: int, headers: _Headers, second: int) -> h11.Response:  # noqa: ARG001
    """Give an answer's head, which says the second at which it is made: most answers of a second have the same."""
    return h11.Response(status_code=status, headers=[*headers, *config.response_headers("h11")])


def _is_framed_twice(headers: list[tuple[bytes, bytes]], version: bytes) -> bool:
    """Tell whether two readers could differ over where a request ends, and so over whose the next one is.

    With a length and a coding h11 goes by the coding and keeps the connection, which a server must not (RFC 9112, 6.1);
    HTTP/1.0 has no coding at all.
    """
    names = {name for name, _ in headers}
    return b"transfer-encoding" in names and (b"content-length" in names or version < b"1.1")
