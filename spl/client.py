"""The one HTTP client: of the command line and the tests, in the standard library alone.

It talks to the operator's socket of a home, or over TCP to the daemon that SPL_URL names, with SPL_TOKEN as
the bearer. A bearer stands in no error and in no representation.
"""

from __future__ import annotations

import codecs
import contextlib
import http.client
import ipaddress
import json
import os
import re
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from spl import errors
from spl.errors import DaemonUnreachable, NotFound, SettingsInvalid, SplError
from spl.home import Home, locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Json = dict[str, Any]

TIMEOUT: Final = 30.0
"""Seconds for a connection, and for each wait for more of an answer."""

SILENCE: Final = 120.0
"""Seconds of an event stream's silence after which nobody is taken to be there; a daemon says so far more often."""

MOST_BYTES: Final = 64 << 20
"""Bytes of an answer, or of an event, past which it is no daemon's."""

_LONGEST: Final = 4
"""How many times the wait for more of it a whole answer may take."""

_DONE: Final = "what was asked for may have been done, or be done yet: look before asking again"
_ASKING: Final = frozenset({"/v1/records/query", "/v1/work/loop/preview"})
"""Posted to, and nothing is done by it."""

_HANGS: Final = "it listens and does not answer: look in its log, and at what the host is doing"
_PAGE: Final = 1000
_PIECE: Final = 65536
_END: Final = re.compile(rb"\r\n|\r|\n")
_BEARER: Final = re.compile(r"[!-~]+")
_ENVELOPE: Final = frozenset({"object", "type", "code", "message"})


class Event(NamedTuple):
    """One event of a stream: what it is called, the last id that was told before or with it, and what it says."""

    name: str
    id: int | None
    data: Json


class Client:
    """Sends requests to one daemon, each on a connection of its own.

    `where` is the path of a unix socket, or a host and a port.
    """

    def __init__(
        self, where: str | tuple[str, int], *, bearer: str | None = None, timeout: float = TIMEOUT
    ) -> None:
        self._where = where
        self._bearer = bearer
        self._timeout = timeout

    @classmethod
    def locate(cls, home: str | None, environ: Mapping[str, str] = os.environ) -> Client:
        """Give the client for a `--home` flag (None: not given) and this environment.

        The flag wins over SPL_URL, and SPL_URL over SPL_HOME. That a token is sent for others to read is said on
        standard error: the daemon speaks no TLS, and only a tunnel keeps it secret. Raises SettingsInvalid for a URL
        or token that is not valid, and what `Home.open` raises for a home.
        """
        url = environ.get("SPL_URL")
        if home is not None or not url:
            return cls(str(Home.open(locate(home, environ), create=False).operator_socket))
        bearer = environ.get("SPL_TOKEN")
        if bearer is not None and _BEARER.fullmatch(bearer) is None:
            raise SettingsInvalid(
                "the variable SPL_TOKEN is not a token: it must be visible ASCII characters"
            )
        where = _host_and_port(url)
        # A shell that completes is told values and nothing else.
        heard = sys.stderr is not None and "_SPL_COMPLETE" not in environ
        if bearer is not None and not _stays_here(where[0]) and heard:
            sys.stderr.write(
                "spl: warning: SPL_URL is plain HTTP to another machine, and whoever is on the way can read SPL_TOKEN: "
                "forward the port with 'ssh -L' instead\n"
            )
        return cls(where, bearer=bearer)

    @property
    def name(self) -> str:
        """Where the daemon is, for people."""
        return self._where if isinstance(self._where, str) else f"http://{_joined(self._where)}"

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Json:
        """Send one request and give the answer; what is None in the query is left out.

        `timeout` is in seconds, and the client's own unless given. Raises the error that the daemon answered with,
        and DaemonUnreachable if it did not answer as one.
        """
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        headers = {"Accept": "application/json", "Connection": "close"}
        if self._bearer is not None:
            headers["Authorization"] = f"Bearer {self._bearer}"
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection = _Connection(self._where, self._timeout if timeout is None else timeout)
        try:
            with self._reaching():
                connection.connect()
            harmless = method == "GET" or path in _ASKING
            with self._reaching(asked=None if harmless else f"{method} {path}"):
                status, raw = _exchange(connection, method, target, payload, headers)
        finally:
            connection.close()
        return self._read(status, raw)

    def pages(
        self, path: str, *, since: int | None = None, limit: int | None = None, **query: object
    ) -> Iterator[Json]:
        """Give a listing page by page, each as the daemon answers it: all of it, or `limit` rows in all.

        Only for a listing in sequence order whose `since` is a sequence. Raises what `request` raises.
        """
        left = limit
        while True:
            size = _PAGE if left is None else min(left, _PAGE)
            page = self.request("GET", path, query={**query, "since": since, "limit": size})
            yield page
            rows = page["data"]
            if left is not None:
                left -= len(rows)
            if not page.get("has_more") or not rows or left == 0:
                return
            since = rows[-1]["sequence"]

    def watch(
        self,
        path: str,
        *,
        position: int | None = None,
        opened: Callable[[socket.socket], None] | None = None,
    ) -> Iterator[Event]:
        """Follow an event stream, from after a `position` if given, and give its events as they come.

        `opened` is told of the connection's socket, for another thread to end the stream: by `shutdown`, never `close`.
        Ends where the daemon ends the stream. Raises what `request` raises, and DaemonUnreachable too when the
        connection breaks or says nothing for `SILENCE` seconds; an event that did not come whole is not given.
        """
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._bearer is not None:
            headers["Authorization"] = f"Bearer {self._bearer}"
        if position is not None:
            headers["Last-Event-ID"] = str(position)
        connection = _Connection(self._where, self._timeout)
        try:
            with self._reaching():
                connection.connect()
                # The connection lets go of it where the answer says that it ends with the connection.
                sock = connection.sock
                if opened is not None:
                    opened(sock)
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                if response.status >= 400:
                    raise self._refusal(response.status, _whole(response, self._deadline()))
                if response.headers.get_content_type() != "text/event-stream":
                    raise DaemonUnreachable(f"what answers at {self.name} is no daemon: it gives no events")
                sock.settimeout(SILENCE)
            events = _events(self._pieces(response))
            while True:
                with self._reaching():
                    event = next(events, None)
                if event is None:
                    return
                name, id_, data = event
                yield Event(name, int(id_) if id_.isascii() and id_.isdigit() else None, self._document(data))
        finally:
            connection.close()

    def _deadline(self) -> float:
        return time.monotonic() + _LONGEST * self._timeout

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        while piece := response.read1(_PIECE):
            yield piece

    def _document(self, said: str) -> Json:
        try:
            document = json.loads(said)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise DaemonUnreachable(f"what answers at {self.name} is no daemon: its events hold no JSON")
        return document

    def _refusal(self, status: int, raw: bytes) -> SplError:
        try:
            self._read(status, raw)
        except SplError as error:
            return error
        return DaemonUnreachable(f"what answers at {self.name} is no daemon: status {status}")

    @contextlib.contextmanager
    def _reaching(self, asked: str | None = None) -> Iterator[None]:
        """Say of what fails inside that no daemon answers; of what was `asked` for, that it may be done yet."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if asked is not None:
                raise DaemonUnreachable(
                    f"{self.name} did not answer {asked}: {reason}", remedy=_DONE
                ) from None
            remedy = {"remedy": _HANGS} if isinstance(error, TimeoutError) else {}
            raise DaemonUnreachable(f"no daemon answers at {self.name}: {reason}", **remedy) from None

    def _read(self, status: int, raw: bytes) -> Json:
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise DaemonUnreachable(f"what answers at {self.name} is no daemon: status {status}, no JSON")
        if not document or (status >= 400 and document.get("object") != "error"):
            raise DaemonUnreachable(f"what answers at {self.name} is no daemon: status {status}, other JSON")
        if document.get("object") == "error":
            raise error_of({"message": f"the daemon answered with status {status}", **document})
        return document


def _events(pieces: Iterable[bytes]) -> Iterator[tuple[str, str, str]]:
    """Read an event stream as the WHATWG's HTML standard does; gives each event's name, last id and data."""
    name, id_, data, size = "", "", list[str](), 0
    for line in _lines(pieces):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield name or "message", id_, "\n".join(data)
            name, data, size = "", [], 0
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
            size += len(value) + 1
            if size > MOST_BYTES:
                raise http.client.HTTPException("its event does not end")
        elif field == "id" and "\0" not in value:
            id_ = value


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    """Give the lines that have ended, by CR, LF or both, without a byte order mark before the first."""
    # What has not ended yet, in pieces: a long line is looked through once.
    rest, size, after_cr, first = list[bytes](), 0, False, True
    for piece in pieces:
        # The first half of an end has ended its line already.
        new = piece.removeprefix(b"\n") if after_cr else piece
        after_cr = piece.endswith(b"\r")
        *lines, last = _END.split(new)
        if lines:
            lines[0] = b"".join([*rest, lines[0]])
            rest, size = [], 0
        rest.append(last)
        size += len(last)
        if size > MOST_BYTES:
            raise http.client.HTTPException("its event does not end")
        for line in lines:
            yield (line.removeprefix(codecs.BOM_UTF8) if first else line).decode(errors="replace")
            first = False


def segment(text: str) -> str:
    """Give text as one segment of a path; raises `NotFound` for an empty one, which would be another path."""
    if not text:
        raise NotFound("an empty name names nothing")
    return quote(os.fsencode(text), safe="")


def error_of(document: Json) -> SplError:
    """Turn an error document into the error it is, whatever its code."""
    code = document.get("code")
    message = str(document.get("message"))
    fields = {name: value for name, value in document.items() if name not in _ENVELOPE}
    for kind in errors.table():
        if kind.code == code:
            return kind(message, **fields)
    return SplError(message if code is None else f"{message} ({code})", **fields)


class _Connection(http.client.HTTPConnection):
    """A connection to a host and port, or to a unix socket."""

    def __init__(self, where: str | tuple[str, int], timeout: float) -> None:
        host, port = ("localhost", 80) if isinstance(where, str) else where
        super().__init__(host, port, timeout=timeout)
        self._path = where if isinstance(where, str) else None

    def connect(self) -> None:
        """Connect; raises OSError."""
        if self._path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _exchange(
    connection: _Connection, method: str, target: str, payload: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    # A daemon that refuses a body answers and closes before all of it is sent.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request(method, target, payload, headers)
    response = connection.getresponse()
    return response.status, _whole(response, time.monotonic() + _LONGEST * (connection.timeout or TIMEOUT))


def _whole(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read an answer; raises HTTPException for one that has no end: whoever sends it is no daemon."""
    found = bytearray()
    while piece := response.read1(_PIECE):
        found += piece
        if len(found) > MOST_BYTES or time.monotonic() > deadline:
            raise http.client.HTTPException("its answer does not end")
    if response.length:
        raise http.client.IncompleteRead(bytes(found), response.length)
    return bytes(found)


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    else:
        if parts.scheme != "http" or "@" in parts.netloc or parts.path not in {"", "/"} or parts.query:
            host = None
    if host is None:
        # Not quoted: it may hold a password.
        raise SettingsInvalid("the variable SPL_URL is not of the form http://HOST:PORT")
    return host, 80 if port is None else port


def _stays_here(host: str) -> bool:
    """Tell whether what is sent to a host leaves this machine; a name is looked up nowhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


def _joined(where: tuple[str, int]) -> str:
    host, port = where
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
