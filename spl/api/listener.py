"""Our own acceptor around Hypercorn's server of one connection, and the sockets it accepts from.

Hypercorn's own `serve` hides who the peer is, hangs at shutdown on Python 3.12.1 and later while an event
stream is open, closes a connection after 1000 requests and unlinks a live daemon's socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections import Counter
from typing import TYPE_CHECKING, Final, cast

import structlog
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.typing import ConnectionState

from spl.api.connection import MAX_HEAD, Connection
from spl.api.pace import Pace
from spl.api.peer import Peer, peer
from spl.api.untaken import MAX_UNTAKEN, Untaken, Writer
from spl.errors import HomeUnsafe, PortInUse
from spl.home import check_socket_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypercorn.typing import ASGIFramework
    from starlette.types import ASGIApp

BACKLOG: Final = 128
# What the kernel buffers for one peer, which would grow to 4 MiB (tcp(7), tcp_wmem); a unix socket has about as much.
_SEND_BUFFER: Final = 256 * 1024
# And of one peer's (tcp_rmem). All of it is read at once, and lies here while the request before it is answered.
_RECEIVE_BUFFER: Final = 32 * 1024
# Connections taken in one turn of the event loop; of the requests on them, see spl.api.pace.
_ACCEPTED_AT_ONCE: Final = 8
_ACCEPT_RETRY: Final = 0.1
_ABORT_SECONDS: Final = 1.0

_log = structlog.get_logger("spl.api")


def bind_unix(path: str, mode: int) -> socket.socket:
    """Give a listening unix socket at `path` whose file has exactly `mode` before anyone can connect.

    A socket that is there already is taken for stale and replaced: the caller holds the home's lock. Raises
    HomeUnsafe if something else is there or the folder cannot be written, SocketPathTooLong past 107 bytes.
    """
    check_socket_path(path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        if _exists_as_socket(path):
            os.unlink(path)
        # The file takes its mode from the descriptor, less the umask (unix_bind in the kernel): it is never
        # wider than asked. What the umask took away is given back before listen(2), while nobody can connect.
        os.fchmod(sock.fileno(), mode)
        sock.bind(path)
        os.chmod(path, mode)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise HomeUnsafe(f"no socket can be made at {path!r}: {error.strerror}") from None
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def bind_tcp(host: str, port: int) -> socket.socket:
    """Give a listening TCP socket on this address; port 0 lets the kernel choose.

    Raises PortInUse if the port cannot be bound, with the reason.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # So that a daemon started again need not wait for its old connections' TIME_WAIT (socket(7)).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # What is accepted inherits all of these. Of a socket that was made without naming its protocol asyncio does not
        # know that it is TCP; an answer in two pieces would wait there for the peer's delayed acknowledgement (tcp(7)).
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise PortInUse(f"port {port} of {host} cannot be bound: {error.strerror}") from None
    sock.setblocking(False)
    return sock


class Listener:
    """Serves one ASGI application to every admitted connection of one listening socket.

    The application finds who connected in `spl.api.peer.peer`. It is spoken to in HTTP/1.1 only; its lifespan
    is not run, since one application may have several listeners. `grace` is how many seconds `stop` gives
    requests to end; `idle` how many a connection may take to send a request's head or to begin another; `patience` how
    many a peer may take over what was written for it. One that takes longer is cut off, and so is the one that has
    taken longest when all of them together are `most_untaken` bytes behind: an answer is kept until it is taken, and
    nobody need read what they asked for.
    A connection whose peer `admit` refuses is closed with nothing read from it and nothing written to it, and so is
    one past `most_each` of one process: the daemon's descriptors are for everyone. Past `most` in all the one goes that
    has been without a request for longest, or the new one where each has one: whoever says nothing keeps nobody out.
    """

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        *,
        grace: float,
        admit: Callable[[Peer], bool] | None = None,
        idle: float = 60.0,
        patience: float = 60.0,
        most: int = 256,
        most_each: int | None = None,
        most_untaken: int = MAX_UNTAKEN,
    ) -> None:
        self._untaken = Untaken(patience, most_untaken)
        self._most = most
        self._most_each = most_each
        self._held: Counter[int | None] = Counter()
        self._app = ASGIWrapper(cast("ASGIFramework", app))
        self._sock = sock
        self._grace = grace
        self._admit = admit
        self._config = _config()
        self._context = WorkerContext(None)
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: dict[Connection, float] = {}
        self._idle_seconds = idle
        self._looking: asyncio.TimerHandle | None = None
        self._leaving: set[Connection] = set()
        self._pace = Pace()
        self._retry: asyncio.TimerHandle | None = None
        self._out_of_room = False

    async def start(self) -> None:
        """Begin to accept connections."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._sock, self._accept)

    async def stop(self) -> None:
        """Close the socket and its file, let requests end for the grace, then cut off what is left.

        Takes the grace and one second at the most, however long an event stream would go on.
        """
        if self._retry is not None:
            self._retry.cancel()
        if self._sock.fileno() != -1:
            self._loop.remove_reader(self._sock)
            name = self._sock.getsockname()
            self._sock.close()
            if isinstance(name, str):
                with contextlib.suppress(OSError):  # gone already, or the disk is read-only
                    os.unlink(name)
        await self._context.terminated.set()
        if self._looking is not None:
            self._looking.cancel()
        for each in self._idle:
            each.leave()
        await self._wait(self._grace)
        for task in self._connections:
            task.cancel()
        await self._wait(_ABORT_SECONDS)

    async def _wait(self, seconds: float) -> None:
        if self._connections:
            await asyncio.wait(self._connections, timeout=seconds)

    def _accept(self) -> None:
        # A few, then the loop's other work gets its turn.
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._sock.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # gone before it was accepted
            except OSError as error:
                # Out of descriptors or memory: the connection stays in the backlog, and select would report
                # it at once, again and again.
                if not self._out_of_room:
                    _log.warning("no connection can be accepted for now", error=error.strerror)
                self._out_of_room = True
                self._loop.remove_reader(self._sock)
                self._retry = self._loop.call_later(
                    _ACCEPT_RETRY, self._loop.add_reader, self._sock, self._accept
                )
                return
            self._out_of_room = False
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        try:
            who = Peer.of(connection)
            if not self._has_room(who) or (self._admit is not None and not self._admit(who)):
                connection.close()
                return
        except OSError:
            connection.close()
            return
        except Exception:  # noqa: BLE001 - logged; one peer must not end the listener
            _log.exception("a connection is refused: its peer could not be judged")
            connection.close()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._serve(connection, who))
        self._connections.add(task)
        self._held[who.pid] += 1
        task.add_done_callback(lambda done: self._let_go(done, who))

    def _has_room(self, who: Peer) -> bool:
        if self._most_each is not None and self._held[who.pid] >= self._most_each:
            return False
        return len(self._connections) - len(self._leaving) < self._most or self._make_room()

    def _make_room(self) -> bool:
        longest = next(iter(self._idle), None)
        if longest is None:
            return False
        del self._idle[longest]
        self._leaving.add(longest)
        longest.writer.transport.abort()
        return True

    def _note(self, connection: Connection, idle: bool) -> None:
        self._idle.pop(connection, None)
        if idle and connection not in self._leaving:
            if self._context.terminated.is_set():
                connection.leave()
                return
            self._idle[connection] = self._loop.time()
            if self._looking is None:
                self._looking = self._loop.call_later(self._idle_seconds, self._look)

    def _look(self) -> None:
        """Close what has been idle for too long, and look again when the next will have been."""
        self._looking = None
        now = self._loop.time()
        for connection, since in tuple(self._idle.items()):
            if since + self._idle_seconds > now:
                self._looking = self._loop.call_at(since + self._idle_seconds, self._look)
                return
            del self._idle[connection]
            connection.leave()

    def _let_go(self, task: asyncio.Task[None], who: Peer) -> None:
        self._connections.discard(task)
        self._held[who.pid] -= 1
        if not self._held[who.pid]:
            del self._held[who.pid]

    async def _serve(self, connection: socket.socket, who: Peer) -> None:
        peer.set(who)  # the tasks of the application are made by this one and inherit it
        # Twice as much is read ahead, and what the kernel has besides, while an earlier request is answered.
        reader = asyncio.StreamReader(limit=MAX_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection)
        writer = Writer(self._untaken, transport, protocol, reader, self._loop)
        served = Connection(
            self._pace,
            self._note,
            self._app,
            self._loop,
            self._config,
            self._context,
            ConnectionState({}),
            reader,
            writer,
        )
        self._note(served, True)
        try:
            await served
        except OSError:
            pass  # the peer is gone
        except Exception:  # noqa: BLE001 - logged; one peer must not end the listener
            _log.exception("a connection is closed: its server failed")
        finally:
            # Hypercorn swallows a cancellation while it waits for a peer that does not read. One that is closed and has
            # nothing more to write may have no loop left to abort on (asyncio, Python 3.11).
            if not transport.is_closing() or transport.get_write_buffer_size():
                transport.abort()
            self._untaken.forget(writer)
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._note(served, False)
            self._leaving.discard(served)


def _config() -> Config:
    config = Config()
    config.errorlog = logging.getLogger("spl.api")
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEAD
    # Not the read timeout: it would cut an event stream, whose reader has nothing more to say.
    config.read_timeout = None
    return config


def _exists_as_socket(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(mode):
        raise HomeUnsafe(
            f"no socket can be made at {path!r}: what is there is not a socket",
            remedy="take it away from there",
        )
    return True
