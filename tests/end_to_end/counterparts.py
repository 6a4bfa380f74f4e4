"""Models that others have made: fakellm, which speaks both APIs and answers by rules, and a relay on the way to it.

The relay keeps what a daemon asks and what it is answered, word for word, and may answer in the model's place.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape

Json = dict[str, Any]

_MILLION = 1_000_000


@dataclass(frozen=True)
class Api:
    """One of the two APIs, as a provider of it names and bills things; `model` is the one that runs use here."""

    name: str
    base: str
    path: str
    model: str
    input: str
    output: str

    def __str__(self) -> str:
        return self.name

    def key_in(self, headers: Mapping[str, str]) -> str | None:
        """Give the key that a request carries where this API has it."""
        if self.name == "anthropic":
            return headers.get("x-api-key")
        return headers.get("authorization", "").removeprefix("Bearer ") or None

    def bounded_by(self, asked: Json) -> int:
        """Give the most tokens of output that a request asks for."""
        return int(asked["max_tokens"])

    def usage(self, said: Json) -> tuple[int, int]:
        """Give the tokens of input and output that an answer counts."""
        return said["usage"][self.input], said["usage"][self.output]

    def reply(self, text: str, *calls: Json) -> Json:
        """Give a good answer, in words of this API; calls are `name` and `arguments`."""
        if self.name == "anthropic":
            made = [
                {"type": "tool_use", "id": f"toolu_{n}", "name": call["name"], "input": call["arguments"]}
                for n, call in enumerate(calls)
            ]
            reason: str = "tool_use" if calls else "end_turn"
            said: Json = {"content": [{"type": "text", "text": text}, *made], "stop_reason": reason}
        else:
            called = [
                {
                    "id": f"call_{n}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
                }
                for n, call in enumerate(calls)
            ]
            message = {"role": "assistant", "content": text, "tool_calls": called or None}
            reason = "tool_calls" if calls else "stop"
            said = {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}
        return {**said, "model": self.model, "usage": {self.input: 40, self.output: 4}}

    def error(self, message: str) -> Json:
        """Give the body of an error, in words of this API."""
        error = {"type": "invalid_request_error", "message": message}
        return {"type": "error", "error": error} if self.name == "anthropic" else {"error": error}


OPENAI = Api("openai", "/v1", "/v1/chat/completions", "gpt-4o-mini", "prompt_tokens", "completion_tokens")
ANTHROPIC = Api("anthropic", "", "/v1/messages", "claude-haiku-4-5", "input_tokens", "output_tokens")

PAIRS = {"same-user": ANTHROPIC, "hosted": OPENAI}
"""The API that a shape's daemon asks where one is enough: what an API does is no matter of the shape."""
TRANSPORTS = ("in_process", "sandboxed")


class Price(NamedTuple):
    """US dollars for a million tokens, as config.toml has them."""

    input: str
    output: str

    def cost(self, usage: tuple[int, int]) -> Decimal:
        """Give what these tokens of input and output cost."""
        return (usage[0] * Decimal(self.input) + usage[1] * Decimal(self.output)) / _MILLION


class Answer(NamedTuple):
    """What a provider answers."""

    status: int
    said: Json
    headers: Mapping[str, str] = {}


@dataclass
class Exchange:
    """One request of a daemon's, and what it was answered."""

    path: str
    headers: Mapping[str, str]
    asked: Json
    status: int = 0
    said: Json = field(default_factory=dict)


@contextlib.contextmanager
def fakellm(folder: Path, rules: Sequence[Json]) -> Iterator[int]:
    """Run fakellm on these rules; gives its port."""
    config = folder / "fakellm.yaml"
    # JSON is YAML.
    config.write_text(json.dumps({"version": 1, "rules": rules}))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        # What it accepts takes this over; it takes them for unix sockets, on which there is nothing to be set.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Its own command knows a port alone, which another could have taken by then; this is its application.
        serve = ["uvicorn", "fakellm.server:app", "--fd", str(listening.fileno()), "--log-level", "warning"]
        process = subprocess.Popen(
            [sys.executable, "-m", *serve],
            env={"PATH": "/usr/bin:/bin", "FAKELLM_CONFIG": str(config)},
            pass_fds=[listening.fileno()],
        )
        port = listening.getsockname()[1]
    try:
        yield port
    finally:
        process.terminate()
        process.wait(SECONDS)


class Relay:
    """A provider's address on the way to a counterpart.

    `answer` is asked first, and may answer in its place; what it answers None to is passed on. An error of the
    counterpart's goes on with the word that it may be tried again at once, so that nobody waits.
    """

    def __init__(self, api: Api, upstream: int) -> None:
        self.api = api
        self.exchanges: list[Exchange] = []
        self.answer: Callable[[Exchange], Answer | None] = lambda _: None
        self._upstream = upstream
        self._port = 0
        self.up()

    @property
    def url(self) -> str:
        """What `provider_url` is to say."""
        return f"http://127.0.0.1:{self._port}{self.api.base}"

    def up(self) -> None:
        """Listen; again where it listened before."""
        self._server = _Server(("127.0.0.1", self._port), self._handle)
        self._port = self._server.server_address[1]
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._serving.start()

    def down(self) -> None:
        """Listen no more, and break every connection off."""
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()
        self._server.break_off()

    def of(self, goal: str) -> list[Exchange]:
        """Give the exchanges of the run with a goal."""
        return [each for each in self.exchanges if json.dumps(goal)[1:-1] in json.dumps(each.asked)]

    def daemon(
        self,
        shape: Shape,
        home: Path,
        prices: Mapping[str, Price],
        *,
        key: str | None = None,
        **environment: str,
    ) -> AbstractContextManager[Daemon]:
        """Run a daemon that asks here, in a home that is made for it with these prices and this key."""
        furnish(shape, home, self, prices, key)
        return shape.daemon(home, **environment)

    def key_file(self, home: Path) -> Path:
        """Give the path of this provider's key in a home."""
        return home / "secrets" / f"{self.api.name}.key"

    def _handle(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        exchange = Exchange(path, headers, json.loads(body))
        self.exchanges.append(exchange)
        answer = self.answer(exchange) or self._passed_on(exchange, body)
        exchange.status, exchange.said = answer.status, answer.said
        return answer

    def _passed_on(self, exchange: Exchange, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=SECONDS)
        try:
            connection.request("POST", exchange.path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            status, said = response.status, json.loads(response.read())
        finally:
            connection.close()
        return Answer(status, said, {} if status == 200 else {"retry-after-ms": "1"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handle: Callable[[str, Mapping[str, str], bytes], Answer]
    ) -> None:
        self.handle = handle
        self._connections: list[socket.socket] = []
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted, peer = super().get_request()
        # A second name of it: the first is closed by whoever serves it.
        self._connections.append(accepted.dup())
        return accepted, peer

    def break_off(self) -> None:
        for connection in self._connections:
            with connection, contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        with contextlib.suppress(ConnectionError):
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, said, more = self.server.handle(self.path, headers, body)
            content = json.dumps(said).encode()
            self.send_response(status)
            for name, value in {**more, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has there
        """Say nothing."""


class Held:
    """An answer that waits for the test: `asked` has come once it is waited for, and is answered once it is let go."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._let_go = threading.Event()

    def __call__(self, exchange: Exchange) -> None:
        """Hold a request, to be passed on thereafter."""
        self._asked.set()
        assert self._let_go.wait(SECONDS)

    def wait_until_asked(self) -> None:
        """Wait for the request."""
        assert self._asked.wait(SECONDS), "the provider is not asked"

    def let_go(self) -> None:
        """Let it be answered."""
        self._let_go.set()


@contextlib.contextmanager
def relayed(api: Api, upstream: int) -> Iterator[Relay]:
    """Give a relay for as long as a test needs it."""
    relay = Relay(api, upstream)
    try:
        yield relay
    finally:
        relay.down()


def furnish(
    shape: Shape, home: Path, relay: Relay, prices: Mapping[str, Price], key: str | None = None
) -> None:
    """Make a home as its user would have it: a config.toml that names a relay and prices, and the provider's key."""
    lines = [
        f'provider = "{relay.api.name}"',
        f'provider_url = "{relay.url}"',
        f'model = "{relay.api.model}"',
        *(f'prices."{model}" = {{ input = {p.input}, output = {p.output} }}' for model, p in prices.items()),
    ]
    for folder in (home, home / "secrets"):
        folder.mkdir(mode=0o700)
        os.chown(folder, shape.uid, shape.uid)
    put(home / "config.toml", "\n".join(lines))
    if key is not None:
        put(relay.key_file(home), key)


def put(path: Path, text: str, mode: int = 0o600) -> None:
    """Put a file into a folder, as the folder's owner would, in the place of one that is there."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(f"{text}\n")
    draft.chmod(mode)
    owner = path.parent.stat()
    os.chown(draft, owner.st_uid, owner.st_gid)
    draft.rename(path)


def finished(daemon: Daemon, goal: str, **fields: Any) -> Json:
    """Start a run and give its row once it has ended."""
    return daemon.finish(daemon.start(goal, **fields)["thread"])
