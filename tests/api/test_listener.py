from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import resource
import socket
import stat
import struct
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from structlog.testing import capture_logs

from spl.api import listener
from spl.api.limits import body_limit
from spl.api.listener import Listener, bind_tcp, bind_unix
from spl.api.pace import AT_ONCE
from spl.api.peer import peer
from spl.api.untaken import Writer
from spl.errors import HomeUnsafe, PortInUse, SocketPathTooLong

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from spl.api.peer import Peer

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LIMIT = 200_000
SECONDS = 20
"""How long anything here waits for may take before the test fails."""
NEVER = 3600
"""A grace that no stop can wait for: `serve` fails long before it is over."""


async def who(request: Request) -> JSONResponse:
    return JSONResponse(peer.get()._asdict())


async def endless(request: Request) -> StreamingResponse:
    async def events() -> AsyncIterator[bytes]:
        yield b"data: first\n\n"
        await asyncio.Event().wait()

    return StreamingResponse(events(), media_type="text/event-stream")


async def size(request: Request) -> JSONResponse:
    return JSONResponse({"bytes": len(await request.body())})


APP = Starlette(routes=[Route("/", who), Route("/endless", endless), Route("/size", size, methods=["POST"])])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s.sock")


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def serve(
    sock: socket.socket, talk: Callable[[], Awaitable[object]], app: ASGIApp = APP, **options: Any
) -> None:
    """Serve while `talk` runs, then stop; fails if that does not come to its end.

    What `talk` gives back is closed only after that.
    """

    async def main() -> None:
        listener = Listener(app, sock, **{"grace": 0.5, **options})
        await listener.start()
        left = None
        try:
            left = await talk()
        finally:
            await listener.stop()
            if isinstance(left, asyncio.StreamWriter):
                left.transport.abort()
                with contextlib.suppress(OSError):
                    await left.wait_closed()

    asyncio.run(asyncio.wait_for(main(), SECONDS))


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(status.split()[1]), headers, body


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Tell whether the other side closes having written nothing."""
    with contextlib.suppress(ConnectionResetError):
        return await reader.read() == b""
    return True


@pytest.mark.claim("M1")
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o177])
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_unix_socket_has_exactly_its_mode_whatever_the_umask(path: str, mode: int, mask: int) -> None:
    with umask(mask), bind_unix(path, mode) as sock:
        assert stat.S_IMODE(os.lstat(path).st_mode) == mode
        assert not sock.get_inheritable()


BORN = """
import os, sys
from spl.api.listener import bind_unix

path = sys.argv[1]

def look(event, arguments):
    if event == "os.chmod" and arguments[0] == path:
        print(oct(os.lstat(path).st_mode & 0o777))

sys.addaudithook(look)
os.umask(0)
bind_unix(path, 0o600).close()
"""


@pytest.mark.claim("M1")
def test_a_unix_socket_is_born_with_its_mode(path: str) -> None:
    # The hook is called before each chmod of the path, when the file has the mode it was born with.
    born = subprocess.run([sys.executable, "-c", BORN, path], capture_output=True, text=True, timeout=60)
    assert (born.stdout, born.stderr) == ("0o600\n", "")


def test_a_stale_socket_is_replaced(path: str) -> None:
    bind_unix(path, 0o600).close()
    with bind_unix(path, 0o600), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_what_is_no_socket_is_not_replaced(path: str, tmp_path: Path) -> None:
    (tmp_path / "s.sock").write_text("precious")
    with pytest.raises(HomeUnsafe, match=r"s\.sock.* is not a socket"):
        bind_unix(path, 0o600)
    assert (tmp_path / "s.sock").read_text() == "precious"


def test_a_socket_path_over_107_bytes_is_refused_by_its_length(tmp_path: Path) -> None:
    longest = str(tmp_path / ("x" * (107 - len(os.fsencode(tmp_path)) - 1)))
    bind_unix(longest, 0o600).close()
    with pytest.raises(SocketPathTooLong, match="108 bytes"):
        bind_unix(longest + "x", 0o600)


def test_a_port_in_use_is_named() -> None:
    with bind_tcp("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} .*in use"):
            bind_tcp("127.0.0.1", port)


def test_what_is_accepted_sends_at_once() -> None:
    with bind_tcp("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()):
        sock.setblocking(True)
        accepted, _ = sock.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_application_is_told_the_process_at_the_other_end(path: str) -> None:
    began = time.monotonic()

    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET)
        told = json.loads((await answer(reader))[2])
        assert told["kind"] == "unix"
        assert (told["pid"], told["uid"], told["gid"]) == (os.getpid(), os.getuid(), os.getgid())
        assert began <= told["accepted_at"] <= time.monotonic()
        writer.close()

    serve(bind_unix(path, 0o600), talk)


def test_over_tcp_the_application_is_told_no_process() -> None:
    sock = bind_tcp("127.0.0.1", 0)

    async def talk() -> None:
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(GET)
        told = json.loads((await answer(reader))[2])
        assert (told["kind"], told["pid"], told["uid"], told["gid"]) == ("tcp", None, None, None)
        writer.close()

    serve(sock, talk)


@pytest.mark.claim("I8")
def test_a_connection_that_is_not_admitted_is_closed_unread(path: str) -> None:
    seen: list[Peer] = []

    def admit(who: Peer) -> bool:
        seen.append(who)
        return len(seen) > 1

    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        assert await is_closed(reader)
        writer.close()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET)
        assert (await answer(reader))[0] == 200
        writer.close()
        assert [who.pid for who in seen] == [os.getpid()] * 2

    serve(bind_unix(path, 0o600), talk, admit=admit)


@pytest.mark.claim("I8")
def test_a_connection_that_cannot_be_judged_is_closed_and_the_next_one_served(path: str) -> None:
    seen: list[Peer] = []

    def admit(who: Peer) -> bool:
        seen.append(who)
        if len(seen) == 1:
            raise RuntimeError("no verdict")
        return True

    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        assert await is_closed(reader)
        writer.close()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET)
        assert (await answer(reader))[0] == 200
        writer.close()

    serve(bind_unix(path, 0o600), talk, admit=admit)


def test_a_stop_cuts_off_a_stream_that_is_open_when_its_grace_is_over(path: str) -> None:
    async def talk() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"data: first\n\n")
        return writer

    serve(bind_unix(path, 0o600), talk, grace=0.05)
    assert not os.path.lexists(path)


def test_a_request_that_ends_within_the_grace_of_a_stop_gets_its_answer(path: str) -> None:
    async def main() -> None:
        asked, stopping = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> JSONResponse:
            asked.set()
            await stopping.wait()
            return await who(request)

        app = Starlette(routes=[Route("/", who), Route("/slow", slow)])
        listener = Listener(app, bind_unix(path, 0o600), grace=NEVER)
        await listener.start()
        idle, idle_writer = await asyncio.open_unix_connection(path)
        idle_writer.write(GET)
        await answer(idle)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET.replace(b"/", b"/slow", 1))
        await asked.wait()
        stop = asyncio.create_task(listener.stop())
        # What asks for nothing is closed at once: the stop has begun.
        assert await idle.read() == b""
        stopping.set()
        assert (await answer(reader))[0] == 200
        await stop
        for each in (idle_writer, writer):
            each.close()

    asyncio.run(asyncio.wait_for(main(), SECONDS))


def test_a_stop_does_not_wait_for_idle_connections(path: str) -> None:
    async def talk() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET)
        await answer(reader)
        return writer

    serve(bind_unix(path, 0o600), talk, grace=NEVER)


def test_one_connection_serves_1500_requests(path: str) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        for _ in range(1500):
            writer.write(GET)
            assert (await answer(reader))[0] == 200
        writer.close()

    serve(bind_unix(path, 0o600), talk)


def test_a_connection_that_sends_no_whole_head_in_time_is_closed(path: str) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HT")
        assert await is_closed(reader)
        writer.close()

    serve(bind_unix(path, 0o600), talk, idle=0.05)


def test_a_request_that_takes_longer_than_a_connection_may_be_idle_is_answered(path: str) -> None:
    asked, released = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await released.wait()
        await Response("late")(scope, receive, send)

    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET)
        await asked.wait()
        # One begins to be idle after the other, and each has its time.
        for idle, idle_writer in [await asyncio.open_unix_connection(path) for _ in range(20)]:
            assert await is_closed(idle)
            idle_writer.close()
        released.set()
        assert (await answer(reader))[0] == 200
        assert await is_closed(reader)
        writer.close()

    serve(bind_unix(path, 0o600), talk, app, idle=0.05)


def test_an_answer_of_a_known_length_is_written_at_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = Writer.write

    def keeping(writer: Writer, data: bytes) -> None:
        written.append(data)
        write(writer, data)

    monkeypatch.setattr(Writer, "write", keeping)

    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        for request in (GET, GET.replace(b"GET", b"HEAD", 1), GET):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert (head[:12], head.lower().split(b"\r\n")[1]) == (b"HTTP/1.1 200", b"content-length: 4")
            assert request[:4] == b"HEAD" or await reader.readexactly(4) == b"said"
        writer.close()

    serve(bind_unix(path, 0o600), talk, Response("said"))
    assert [each[-4:] for each in written] == [b"said", b"\r\n\r\n", b"said"]


def test_the_head_of_an_answer_without_an_end_does_not_wait_for_what_follows(path: str) -> None:
    seen = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await seen.wait()
        await send({"type": "http.response.body", "body": b"then"})

    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET)
        assert b"chunked" in await reader.readuntil(b"\r\n\r\n")
        seen.set()
        assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\nthen\r\n0\r\n\r\n"
        writer.close()

    serve(bind_unix(path, 0o600), talk, app)


def test_an_answer_of_a_known_length_may_come_in_pieces(path: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"said", "more_body": True})
        await send({"type": "http.response.body", "body": b"then"})

    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        for _ in range(2):
            writer.write(GET)
            assert (await answer(reader))[2] == b"saidthen"
        writer.close()

    serve(bind_unix(path, 0o600), talk, app)


def test_an_answer_that_fails_after_its_head_is_cut_off_there(path: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        raise ValueError("a fault")

    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await is_closed(reader)
        writer.close()

    serve(bind_unix(path, 0o600), talk, app)


def test_a_head_over_the_limit_is_refused(path: str) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000)
        assert (await answer(reader))[0] == 431
        writer.close()

    serve(bind_unix(path, 0o600), talk)


def test_a_head_over_the_limit_is_refused_when_it_is_there_at_once(path: str) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"x" * 20_000 + b"\r\n\r\n")
        assert (await answer(reader))[0] == 431
        assert await reader.read() == b""
        writer.close()

    serve(bind_unix(path, 0o600), talk)


def test_a_method_that_is_not_in_capitals_is_another_method(path: str) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        for method in (b"get", b"Get", b"gET"):
            writer.write(GET.replace(b"GET", method))
            assert (await answer(reader))[0] == 405
        writer.close()

    serve(bind_unix(path, 0o600), talk)


def test_an_answer_that_is_read_after_its_connection_was_closed_leaves_no_word_in_the_log(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def large(request: Request) -> Response:
        return Response(bytes(int(request.path_params["size"])), headers={"connection": "close"})

    async def talk() -> None:
        # Of some size the server has closed and has still to write: how much the socket holds is the kernel to say.
        for size in range(1 << 17, 1 << 19, 1 << 14):
            reader, writer = await asyncio.open_unix_connection(path, limit=1 << 10)
            writer.write(GET.replace(b"/", b"/%d" % size, 1))
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(100):
                await asyncio.sleep(0)  # the server's turns
            assert len(await reader.read()) == size
            writer.close()

    with capture_logs() as said:
        serve(bind_unix(path, 0o600), talk, Starlette(routes=[Route("/{size}", large)]))
    assert (caplog.records, said) == ([], [])


LARGE = 8 << 20
"""Bytes, far more than the kernel buffers for a peer."""


class Large:
    """An application whose every answer is large; it counts those it began, and tells when one is over."""

    def __init__(self) -> None:
        self.began = 0
        self.over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.began += 1
        try:
            await Response(bytes(LARGE))(scope, receive, send)
        finally:
            self.over.set()


async def asks(path: str, request: bytes = GET) -> socket.socket:
    """Give a connection that has asked and takes nothing."""
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, path)
    await asyncio.get_running_loop().sock_sendall(client, request)
    return client


async def taken(client: socket.socket) -> int:
    """Take all that comes until the other side closes; gives how many bytes came."""
    with client:
        size = 0
        while piece := await asyncio.get_running_loop().sock_recv(client, 1 << 16):
            size += len(piece)
        return size


def test_a_peer_that_takes_nothing_is_cut_off(path: str) -> None:
    app = Large()

    async def talk() -> None:
        client = await asks(path)
        await app.over.wait()
        assert 0 < await taken(client) < LARGE

    serve(bind_unix(path, 0o600), talk, app, patience=0.05)


def test_a_peer_that_takes_what_it_is_behind_with_is_given_time_again(path: str) -> None:
    async def main() -> None:
        app = Large()
        listener = Listener(app, bind_unix(path, 0o600), grace=0, patience=NEVER)
        await listener.start()
        client = await asks(path)
        while not listener._untaken._behind:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        ((writer, timer),) = listener._untaken._behind.items()
        timer.cancel()
        due = writer.written - writer.left + 1
        await asyncio.get_running_loop().sock_recv(client, 1 << 16)
        while writer.written - writer.left < due:
            await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError):
                client.recv(1 << 16)
        listener._untaken._look(writer, due)
        assert not writer.transport.is_closing()
        assert [*listener._untaken._behind] == [writer]
        listener._untaken._look(writer, writer.written)
        assert writer.transport.is_closing()
        assert 0 < await taken(client) < LARGE
        await listener.stop()

    asyncio.run(asyncio.wait_for(main(), SECONDS))


def test_of_peers_that_are_too_far_behind_together_the_first_is_cut_off(path: str) -> None:
    app = Large()

    async def talk() -> None:
        first = await asks(path)
        while not app.began:  # noqa: ASYNC110 - nothing tells of it; serve bounds the wait
            await asyncio.sleep(0)
        second = await asks(path)
        await app.over.wait()
        assert 0 < await taken(first) < LARGE
        with second:
            got = 0
            while got < LARGE:
                got += len(await asyncio.get_running_loop().sock_recv(second, 1 << 16))

    serve(bind_unix(path, 0o600), talk, app, patience=NEVER, most_untaken=LARGE + LARGE // 2)


def test_what_a_peer_asked_for_before_it_went_away_is_done_for_nobody(path: str) -> None:
    async def main() -> None:
        app = Large()
        listener = Listener(app, bind_unix(path, 0o600), grace=0)
        await listener.start()
        client = await asks(path, GET * 50)
        await asyncio.get_running_loop().sock_recv(client, 1)
        client.close()
        await asyncio.wait(listener._connections)
        assert app.began <= 2
        await listener.stop()

    asyncio.run(asyncio.wait_for(main(), SECONDS))


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
def test_an_offer_to_upgrade_is_answered_in_plain_http(path: str, offer: bytes) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n")
        assert (await answer(reader))[0] == 200
        writer.close()

    serve(bind_unix(path, 0o600), talk)


def test_http2_is_not_spoken(path: str) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 4")
        writer.close()

    serve(bind_unix(path, 0o600), talk)


def test_two_hundred_connections_leave_no_descriptor_behind(path: str) -> None:
    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def talk() -> None:
        before = open_descriptors()
        for number in range(200):
            reader, writer = await asyncio.open_unix_connection(path)
            if number % 4 == 0:
                writer.transport.abort()  # gone, perhaps before it is accepted
            elif number % 4 == 1:
                writer.write(GET)
                writer.transport.abort()  # gone before its answer
            else:
                end = b"Connection: close\r\n\r\n" if number % 4 == 2 else b"\r\n"
                writer.write(GET[:-2] + end)
                await answer(reader)
                writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        while open_descriptors() > before:  # noqa: ASYNC110 - nothing tells of it; serve bounds the wait
            await asyncio.sleep(0)

    serve(bind_unix(path, 0o600), talk)


def test_running_out_of_descriptors_delays_a_connection_and_ends_nothing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = asyncio.Event()

    class Watch:
        def warning(self, event: str, **fields: str) -> None:
            assert (event, fields) == (
                "no connection can be accepted for now",
                {"error": "Too many open files"},
            )
            refused.set()

    async def talk() -> None:
        client = socket.socket(socket.AF_UNIX)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        taken = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            client.connect(path)
            client.sendall(GET)
            await refused.wait()
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        reader, writer = await asyncio.open_unix_connection(sock=client)
        assert (await answer(reader))[0] == 200
        writer.close()

    monkeypatch.setattr(listener, "_log", Watch())
    serve(bind_unix(path, 0o600), talk)


def request(length: int, *, chunked: bool, path: str = "/size") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode()
    if not chunked:
        return head + b"Content-Length: %d\r\n\r\n" % length + b"x" * length
    chunks = [b"%x\r\n%s\r\n" % (min(1000, length - at), b"x" * min(1000, length - at))
              for at in range(0, length, 1000)]  # fmt: skip
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"


@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
def test_a_body_of_exactly_the_limit_reaches_the_application(path: str, chunked: bool) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        for length in (0, 1, LIMIT):
            writer.write(request(length, chunked=chunked))
            assert json.loads((await answer(reader))[2]) == {"bytes": length}
        writer.close()

    serve(bind_unix(path, 0o600), talk, body_limit(APP, LIMIT))


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
@pytest.mark.parametrize("chunked", [False, True], ids=["content-length", "chunked"])
@pytest.mark.parametrize("length", [LIMIT + 1, 20 * LIMIT])
def test_a_body_over_the_limit_is_refused_and_its_connection_closed(
    path: str, length: int, chunked: bool, tcp: bool
) -> None:
    reached = []
    sock = bind_tcp("127.0.0.1", 0) if tcp else bind_unix(path, 0o600)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)

    def client() -> tuple[int, str | None, dict[str, Any]]:
        with socket.socket(sock.family) as connection:
            connection.settimeout(SECONDS)
            connection.connect(sock.getsockname())
            with contextlib.suppress(ConnectionError):
                connection.sendall(request(length, chunked=chunked))
            response = http.client.HTTPResponse(connection)
            response.begin()
            said = response.status, response.getheader("connection"), json.loads(response.read())
            # The other side closes first; what it did not read makes that a reset.
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
            return said

    async def talk() -> None:
        status, connection, error = await asyncio.to_thread(client)
        assert (status, connection) == (413, "close")
        assert error["object"] == "error"
        assert error["code"] == "BODY_TOO_LARGE"
        assert str(LIMIT) in error["message"]
        assert reached == []

    serve(sock, talk, body_limit(app, LIMIT), grace=NEVER)


def test_a_refusal_does_not_wait_for_what_the_client_goes_on_to_send() -> None:
    # The server ends an exchange by putting a message into a queue which the client's body keeps full.
    answered = []

    async def main() -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue(1)

        async def client() -> None:
            while True:
                await queue.put({"type": "http.request", "body": b"x" * 10, "more_body": True})

        async def send(message: Any) -> None:
            answered.append(message)
            await asyncio.sleep(0)
            if message["type"] == "http.response.body":
                sending.cancel()
                await queue.put({"type": "http.disconnect"})

        sending = asyncio.create_task(client())
        await body_limit(APP, 5)({"type": "http", "headers": []}, queue.get, send)

    asyncio.run(asyncio.wait_for(main(), 20))
    assert answered[0]["status"] == 413


def test_a_body_that_does_not_come_in_time_is_refused(path: str) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(request(10, chunked=False)[:-1])
        status, headers, body = await answer(reader)
        assert (status, headers["connection"]) == (408, "close")
        assert json.loads(body)["code"] == "BODY_TIMEOUT"
        assert await is_closed(reader)
        writer.close()

    serve(bind_unix(path, 0o600), talk, body_limit(APP, LIMIT, seconds=0.05))


def test_a_body_that_the_application_does_not_read_leaves_the_connection_usable(path: str) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        for _ in range(3):
            writer.write(request(LIMIT, chunked=True, path="/nowhere"))
            assert (await answer(reader))[0] == 404
        writer.close()

    serve(bind_unix(path, 0o600), talk, body_limit(APP, LIMIT), grace=NEVER)


def test_an_event_stream_ends_when_its_reader_goes(path: str) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"data: first\n\n")
        writer.close()
        await writer.wait_closed()

    serve(bind_unix(path, 0o600), talk, body_limit(APP, LIMIT), grace=NEVER)


@pytest.mark.parametrize(("bounds", "served"), [({"most": 2}, 2), ({"most_each": 3}, 3)])
def test_connections_past_the_bound_are_closed_unread_and_there_is_room_again_when_others_go(
    path: str, bounds: dict[str, Any], served: int
) -> None:
    async def talk() -> None:
        held = [await asyncio.open_unix_connection(path) for _ in range(served)]
        for reader, writer in held:
            writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"data: first\n\n")
        late, late_writer = await asyncio.open_unix_connection(path)
        assert await late.read() == b""
        late_writer.close()
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        status = 0
        while status != 200:  # until the listener has seen them go
            reader, writer = await asyncio.open_unix_connection(path)
            with contextlib.suppress(ConnectionError):
                writer.write(GET)
                head = await reader.readline()
                status = int(head.split()[1]) if head else 0
            writer.close()

    serve(bind_unix(path, 0o600), talk, **bounds)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: ", GET])
def test_whoever_asks_nothing_keeps_nobody_out_and_goes_who_has_asked_nothing_for_longest(
    path: str, said: bytes
) -> None:
    async def talk() -> None:
        busy, busy_writer = await asyncio.open_unix_connection(path)
        busy_writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        await busy.readuntil(b"data: first\n\n")
        held = []
        for _ in range(20):
            reader, writer = await asyncio.open_unix_connection(path)
            held.append((reader, writer))
            writer.write(said)
            # Served, and idle from then on, before the next.
            if said == GET:
                assert (await answer(reader))[0] == 200
        late, late_writer = await asyncio.open_unix_connection(path)
        late_writer.write(GET)
        assert (await answer(late))[0] == 200
        for reader, _ in held[:18]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        busy_writer.write(b"x")
        assert not busy.at_eof()
        for _, writer in (*held, (late, late_writer), (busy, busy_writer)):
            writer.close()

    serve(bind_unix(path, 0o600), talk, most=4)


def test_of_requests_that_come_at_once_a_few_begin_in_each_turn_of_the_event_loop(path: str) -> None:
    began: list[int] = []
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.append(turns)
        await Response("")(scope, receive, send)

    async def talk() -> None:
        counting = asyncio.create_task(count())
        held = [await asyncio.open_unix_connection(path) for _ in range(40)]
        for _, writer in held:
            writer.write(GET * 2)
        for reader, writer in held:
            assert (await answer(reader))[0] == (await answer(reader))[0] == 200
            writer.close()
        counting.cancel()

    serve(bind_unix(path, 0o600), talk, app)
    assert len(began) == 80
    assert max(Counter(began).values()) <= AT_ONCE


@pytest.mark.parametrize(
    "framing",
    [
        (b"HTTP/1.1", b"Content-Length: 30\r\nTransfer-Encoding: chunked"),
        (b"HTTP/1.1", b"Transfer-Encoding: chunked\r\nContent-Length: 5"),
        (b"HTTP/1.1", b"Content-Length: 5\r\nX: y\nTransfer-Encoding: chunked"),
        (b"HTTP/1.0", b"Transfer-Encoding: chunked"),
    ],
)
def test_a_request_that_two_readers_could_end_at_two_places_is_the_last_of_its_connection(
    path: str, framing: tuple[bytes, bytes]
) -> None:
    async def talk() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        version, headers = framing
        writer.write(b"POST /size %b\r\nHost: x\r\n%b\r\n\r\n0\r\n\r\n%b" % (version, headers, GET))
        status, told, body = await answer(reader)
        assert (status, told["connection"], body) == (400, "close", b"")
        assert await is_closed(reader)
        writer.close()

    serve(bind_unix(path, 0o600), talk)


def test_a_connection_that_was_reset_gives_its_place_back() -> None:
    sock = bind_tcp("127.0.0.1", 0)
    asked = asyncio.Event()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        # It answers once the peer is known to have gone: there is nobody to write to, and no end to read.
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        await Response()(scope, receive, send)

    async def talk() -> None:
        before = asyncio.all_tasks()
        _, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(GET)
        await asked.wait()
        no_time = struct.pack("ii", 1, 0)  # to linger: close(2) resets (socket(7))
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_time)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        while left := asyncio.all_tasks() - before:
            await asyncio.wait(left)

    serve(sock, talk, late, idle=NEVER)
