"""An instance behind real sockets: the operator's app on both of its own, the worker's doors on theirs."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bwrap.cgroup import Groups
from bwrap.errors import LayerError
from bwrap.library import Library
from spl.api.authentication import Authenticator
from spl.api.engine import Engine
from spl.api.listener import Listener, bind_tcp, bind_unix
from spl.api.operator import OperatorApi
from spl.api.watching import MOST, MOST_EACH, Watching
from spl.api.worker import worker_app
from spl.backups import Backups
from spl.health import Daemon
from spl.home import Home
from spl.logs import Recent
from spl.metrics import Metrics
from spl.transports.profiles import Profiles
from spl.transports.starting import Transports
from tests.api import described
from tests.kernel.instance import OPERATOR, Instance, instance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from spl.kernel.runs import Run

Json = dict[str, Any]

TOKEN = "spl_test_op_secret"
ROTATED = "spl_test_op_another"
LIMIT = 20_000
NEVER = 3600
"""Seconds that no test waits for."""
RUN_GRACE = 0.1
"""Seconds; nothing that is tested here comes to its next step by itself."""
LAYER = {"layer": "network", "expected": "loopback alone", "observed": "eth0", "remedy": "mend the kernel"}


@dataclass
class Answer:
    """One answer of the API."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def refusal(self) -> tuple[int, str]:
        """The status and code of an error, whose shape is checked."""
        said = self.json
        assert said["object"] == "error"
        assert said["type"]
        assert said["message"]
        return self.status, said["code"]


class Event(NamedTuple):
    """One event of a stream."""

    name: str
    id: int | None
    data: Any


@dataclass
class Watcher:
    """The reader of an event stream."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    path: str

    async def head(self) -> Answer:
        """Read the answer's head, and its whole body unless it is a stream."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)
        status, *lines = head.decode().strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(status.split()[1]), headers, body)

    async def opened(self) -> Event:
        """Read the head of an answer that is a stream; gives the heartbeat it begins with."""
        answer = await self.head()
        assert answer.status == 200, answer.body
        first = await self.next()
        assert first is not None
        assert first.name == "heartbeat"
        return first

    async def next(self) -> Event | None:
        """Read the next event, None where the stream has ended."""
        try:
            said = await asyncio.wait_for(self.reader.readuntil(b"\n\n"), 20)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None
        fields = dict(line.split(": ", 1) for line in said.decode().removesuffix("\n\n").split("\n"))
        described.check_event(self.path, fields["event"], fields["data"])
        id_ = fields.get("id")
        return Event(fields["event"], None if id_ is None else int(id_), json.loads(fields["data"]))

    async def records(self, most: int) -> list[Json]:
        """Read so many records, whatever heartbeats there are between them; each event's id is its sequence."""
        found: list[Json] = []
        while len(found) < most:
            event = await self.next()
            assert event is not None, f"the stream ended after {len(found)} records"
            if event.name == "heartbeat":
                continue
            assert event.name == "record.created", event
            record = event.data["record"]
            assert (event.id, event.data["id"]) == (record["sequence"], record["id"])
            found.append(record)
        return found


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass
class Served:
    """The sockets, and the instance behind them."""

    here: Instance
    port: int
    folder: str
    watching: Watching
    log: Recent

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        bearer: str | None = TOKEN,
        on: str = "tcp",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Make one request on the socket `tcp`, `operator` or `worker`; a body that is not bytes goes as JSON.

        What the operator's API answers is held to its description.
        """
        said = dict(headers or {})
        if bearer is not None:
            said.setdefault("authorization", f"Bearer {bearer}")
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        answer = await asyncio.to_thread(self._ask, method, path, raw, said, on)
        if on != "worker":
            described.check(method, path, answer.status, answer.body)
        return answer

    def _ask(self, method: str, path: str, raw: bytes | None, headers: dict[str, str], on: str) -> Answer:
        if on == "tcp":
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        else:
            connection = _Unix(f"{self.folder}/{on}.sock")
        try:
            # A body that is refused unread leaves its sender with a closed pipe, and an answer all the same.
            with contextlib.suppress(BrokenPipeError):
                connection.request(method, path, raw, headers)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    @contextlib.asynccontextmanager
    async def watch(
        self, path: str = "/v1/watch", *, bearer: str | None = TOKEN, on: str = "tcp", **headers: str
    ) -> AsyncIterator[Watcher]:
        """Open an event stream; a header's name is written with underscores."""
        if on == "tcp":
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        else:
            path_ = f"{self.folder}/{on}.sock"
            reader, writer = await asyncio.open_unix_connection(path_, limit=1 << 20)
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        if bearer is not None:
            said["authorization"] = f"Bearer {bearer}"
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        # In HTTP/1.0 the events stand on the connection as they are, not in chunks.
        writer.write(f"GET {path} HTTP/1.0\r\nHost: x\r\n{lines}\r\n".encode())
        try:
            yield Watcher(reader, writer, path)
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def raw(self, request: bytes, *, on: str = "worker") -> bytes:
        """Send bytes as they are to a unix socket and give all that comes back until it is closed."""
        reader, writer = await asyncio.open_unix_connection(f"{self.folder}/{on}.sock")
        try:
            writer.write(request)
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()
            await writer.wait_closed()

    async def hold(self, path: str, body: object, bearer: str) -> Callable[[], Awaitable[bytes]]:
        """Begin a POST and hold its body back; gives what sends it and gives the whole answer."""
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n"
            f"Expect: 100-continue\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head.encode())
        # It is said once the application has been called, which looks at the bearer before all else.
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")

        async def send() -> bytes:
            writer.write(raw)
            try:
                return await asyncio.wait_for(reader.read(), 20)
            finally:
                writer.close()
                await writer.wait_closed()

        return send

    async def member(self, label: str = "mia", *scopes: str) -> str:
        """Add a member, with these scopes or those that every member has; gives its token."""
        asked = {"label": label, **({"scopes": scopes} if scopes else {})}
        return str((await self.ask("POST", "/v1/members", asked)).json["token"])

    async def token(self, *scopes: str) -> str:
        """Make another token of the operator's; gives it."""
        return str((await self.ask("POST", "/v1/tokens", {"scopes": scopes})).json["token"])

    def entrust(self, run: Run) -> str:
        """Mint a run's credential for this very process."""
        made_at = time.monotonic()
        return self.here.kernel.credentials.mint(
            run, lambda pid, accepted_at: pid == os.getpid() and accepted_at >= made_at, seconds=60
        )


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    *replies: dict[str, Any],
    worker_limit: int = LIMIT,
    heartbeat: float = NEVER,
    patience: float = NEVER,
    streams: tuple[int, int] = (MOST, MOST_EACH),
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve an instance on a host where no worker can be confined.

    `streams` is how many event streams there may be, in all and of one member.
    """
    async with instance(folder, *replies, **options) as here:
        transports = Transports(here.kernel, LayerError(**LAYER), credential_grace=30, run_grace=RUN_GRACE)

        profiles = Profiles(Library(own=folder / "profiles"), LayerError(**LAYER))
        authenticator = Authenticator(OPERATOR, TOKEN, here.kernel.members, rotated=lambda: ROTATED)
        watching = await Watching.follow(
            here.store, heartbeat=heartbeat, most=streams[0], most_each=streams[1]
        )
        log = Recent()
        log.setFormatter(logging.Formatter('{"event":"%(message)s","level":"%(levelname)s"}'))
        home = Home.open(folder / "home", create=True)
        daemon = Daemon(
            home, 0, here.kernel, "", transports, Backups(home, 0), Groups(), began=time.monotonic()
        )
        metrics = Metrics(
            here.kernel, here.store, transports, version="0.0.0", shape="same-user", layers=[LAYER["layer"]]
        )
        engine = Engine(daemon.health, transports.workers, log, metrics.exposition)
        api = OperatorApi(here.kernel, transports, profiles, authenticator, watching, engine)
        app = api.app(max_body_bytes=LIMIT)
        doors = worker_app(here.kernel.credentials, max_body_bytes=worker_limit)
        tcp = bind_tcp("127.0.0.1", 0)
        port = tcp.getsockname()[1]
        listeners = [
            Listener(app, tcp, grace=1, most=1024, patience=patience),
            Listener(app, bind_unix(f"{folder}/operator.sock", 0o600), grace=1, most=1024, patience=patience),
            Listener(doors, bind_unix(f"{folder}/worker.sock", 0o600), grace=1),
        ]
        for listener in listeners:
            await listener.start()
        try:
            yield Served(here, port, str(folder), watching, log)
        finally:
            await transports.stop()
            watching.stop()
            for listener in listeners:
                await listener.stop()


def serve(
    folder: Path, talk: Callable[[Served], Awaitable[None]], *replies: dict[str, Any], **options: Any
) -> None:
    """Serve while `talk` goes on."""

    async def run() -> None:
        async with serving(folder, *replies, **options) as served:
            await talk(served)

    asyncio.run(run())
