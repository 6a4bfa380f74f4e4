"""One connection: Hypercorn's server of it, held to HTTP/1.1, to a pace, and to one write for an answer."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.events import Request, Response
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import ConnectionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypercorn.events import Event

    from spl.api.pace import Pace

MAX_HEAD: Final = 16 * 1024
"""Bytes of a request's line and headers, and of a chunk's."""


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
        self._held = b""
        self._holds = False
        self._write, self.send = self.send, self._send

    async def handle(self, event: Any) -> None:
        """Take what has come; see `H11Protocol.handle`."""
        # It is told when the peer has gone.
        self.gone = self.gone or isinstance(event, Closed)
        await super().handle(event)

    async def stream_send(self, event: Any) -> None:
        """Send a part of an answer; a head that says how long its body is goes out with the body's beginning."""
        self._holds = isinstance(event, Response) and any(
            name == b"content-length" for name, _ in event.headers
        )
        await super().stream_send(event)

    async def _send(self, event: Event) -> None:
        data, self._held = self._held, b""
        if isinstance(event, RawData):
            data += event.data
            if self._holds:
                self._held = data
                return
        if data:
            await self._write(RawData(data))
        if not isinstance(event, RawData):
            await self._write(event)

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
        self.stream = HTTPStream(
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


def _is_framed_twice(headers: list[tuple[bytes, bytes]], version: bytes) -> bool:
    """Tell whether two readers could differ over where a request ends, and so over whose the next one is.

    With a length and a coding h11 goes by the coding and keeps the connection, which a server must not (RFC 9112, 6.1);
    HTTP/1.0 has no coding at all.
    """
    names = {name for name, _ in headers}
    return b"transfer-encoding" in names and (b"content-length" in names or version < b"1.1")
