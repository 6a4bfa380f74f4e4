"""Requests that are not quite HTTP, not quite a route's, or not quite one request: a grammar with a fault in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Literal

from tests.fuzz.documents import PATHS, document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
BEARER = b"{bearer}"
"""Stands in a case for the bearer, until it is known who sends it."""

AT_DOORS = (*[each for each in PATHS if each[1].startswith(b"/v1/worker")] * 9, *PATHS)
AT_ROUTES = (*[each for each in PATHS if not each[1].startswith(b"/v1/worker")] * 9, *PATHS)
"""Methods and paths as they are asked for at the worker's doors, and at the operator's API."""


class Dice(Random):
    """What chooses, and the methods and paths it chooses among."""

    paths = PATHS


End = Literal["half", "close", "reset"]


@dataclass(frozen=True)
class Case:
    """What is sent on one connection, in which pieces, and how the sender leaves.

    `half` closes the sending half and reads on, `close` goes without reading, `reset` goes with a reset (TCP only).
    """

    kind: str
    pieces: tuple[bytes, ...]
    end: End = "half"

    @property
    def sent(self) -> bytes:
        """Everything, in one piece."""
        return b"".join(self.pieces)


@dataclass(frozen=True)
class Parts:
    """A request in its parts, each as it will stand on the wire."""

    method: bytes = b"GET"
    target: bytes = b"/v1/threads"
    version: bytes = b"HTTP/1.1"
    headers: tuple[bytes, ...] = (b"Host: x", b"Authorization: Bearer " + BEARER)
    framing: tuple[bytes, ...] | None = None
    body: bytes = b""
    eol: bytes = b"\r\n"
    tail: bytes = field(default=b"")

    def wire(self) -> bytes:
        """Give the bytes; a body without a framing of its own gets its length."""
        framing = self.framing
        if framing is None:
            framing = (b"Content-Length: %d" % len(self.body),) if self.body else ()
        line = b" ".join(part for part in (self.method, self.target, self.version) if part)
        return self.eol.join((line, *self.headers, *framing, b"", b"")) + self.body + self.tail

    def plus(self, *headers: bytes) -> Parts:
        """Give it with more headers."""
        return replace(self, headers=(*self.headers, *headers))


_METHODS = (b"get", b"", b"G T", b"G\0T", b"GET\t", b"\xff", b"TRACE", b"CONNECT", b"OPTIONS", b"HEAD",
            b"PRI", b"M-SEARCH", b"-", b"PUT", b"G" * 9000, b"PATCH", b"(GET)")  # fmt: skip
_VERSIONS = (b"", b"HTTP/0.9", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"http/1.1", b"HTTP/1.10", b"HTTP/1",
             b"HTTP/1.1 ", b"HTTP/1.1 x", b"HTTP/\xb2.1", b"SPDY/3", b"HTTP/1.1\0")  # fmt: skip
_SEGMENTS = (b"%00", b"%2f", b"%2F..%2f", b"%2e%2e", b"..", b".", b"%ff", b"%ff%fe", b"%u0041", b"%", b"%1",
             b"%zz", b"%25", b"%0d%0aX:%20y", b"%c0%af", b"%ed%a0%80", b"%f4%90%80%80", b"%F0%9F%98%80",
             b"a;b", b"a#b", b"~", b"%20", b"%09", b"%7f", b"%e2%80%ae", b"a" * 300, b"a" * 7000,
             b"'or'1'='1", b"<b>", b"*", b"%3f", b"__class__", b"0", b"-1", b"1e400", b"f" * 64,
             b"operator%00", b"tok_000000000000")  # fmt: skip
_TARGETS = (b"*", b"http://x/v1/threads", b"https://x:99999/", b"localhost:443", b"v1/threads",
            b"//v1/threads", b"///", b"/\xff", b"/v1/threads ", b"/v1/ threads", b"/v1/threads\t", b"/\0",
            b"?", b"#", b"/#x", b"/?", b"/v1/threads?#", b"http://", b"http://[::1", b"x" * 20_000,
            b"/" + b"x" * 15_000, b"/" * 5000, b"/v1/../v1/threads", b"\\v1\\threads",
            b"javascript:alert(1)", b"/health", b"/%68ealth")  # fmt: skip
NUMBERS = (b"0", b"-1", b"1", b"1001", b"9223372036854775807", b"9223372036854775808", b"1e400", b"NaN",
           b"", b"%31", b"%d9%a1", b"%c2%b2", b"\xb2", b"0x10", b"+1", b"1_0", b"00001", b"9" * 4000,
           b"1.0", b"%00", b"%201")  # fmt: skip
_FIELDS = (b"since", b"limit", b"thread", b"actor", b"kind", b"state", b"since_clock", b"%73ince",
           b"unheard", b"", b"since%00", b"limit[]", b"\xff", b"%ff", b"a" * 5000)  # fmt: skip
LISTINGS = (b"/v1/records", b"/v1/threads", b"/v1/runs", b"/v1/threads/th_engine_config/records",
            b"/v1/watch", b"/v1/threads/th_fuzz/watch", b"/v1/tiers", b"/v1/rules", b"/v1/worker/run")  # fmt: skip
_HEADERS = (
    b"X",
    b":",
    b": x",
    b"X : y",
    b" X: y",
    b"\tfold",
    b"X: a\r\n\tfold: b",
    b"X: a\0b",
    b"X\0: a",
    b"X: a\rb",
    b"X: a\nY: b",
    b"X: a\r\n\r\nGET /v1/threads HTTP/1.1",
    b"X\xff: a",
    b"X: \xff\xfe",
    b"X: \x01\x02\x7f",
    b"X: \x0b\x0c",
    b"X: " + b"a" * 15_000,
    b"X: " + b"a" * 20_000,
    b"X" * 17_000 + b": a",
    b"Host: y",
    b"Host: x",
    b"Authorization: Bearer dead",
    b"Authorization: Basic Og==",
    b"Authorization:",
    b"Authorization: Bearer \xff",
    b"Cookie: " + b"a=b; " * 2000,
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    b"Upgrade: TLS/1.0, HTTP/1.1",
    b"Connection: close, keep-alive",
    b"Connection: authorization, content-length",
    b"Connection: \xff",
    b"Expect: 100-continue",
    b"Expect: 200-ok",
    b"Expect: 100-continue, 100-continue",
    b"Accept-Encoding: gzip, \x7f",
    b"Content-Encoding: gzip",
    b"Content-Type: text/html; charset=utf-7",
    b"Last-Event-ID: 99999999999999999999",
    b"Last-Event-ID: \xff",
    b"X-HTTP-Method-Override: DELETE",
    b"X-Forwarded-For: 127.0.0.1",
    b"Trailer: Authorization",
    b"Range: bytes=0-18446744073709551615",
)
_LENGTHS = (b"-1", b"+2", b"0x2", b"2, 2", b"2, 3", b"2 2", b"", b"a", b"\xb2", b"2.0", b"00000002",
            b"9" * 19, b"9" * 21, b"18446744073709551618", b"1e2", b"2;", b"1", b"99")  # fmt: skip
_CODINGS = (b"chunked", b"Chunked", b"gzip, chunked", b"chunked, gzip", b"chunked, chunked", b"identity",
            b" chunked", b"chunked ", b"\x0bchunked", b"xchunked", b"chunked;q=1", b"", b'"chunked"',
            b"chunked\0", b"chunked\r\nTransfer-Encoding: chunked",
            b"identity\r\nTransfer-Encoding: chunked")  # fmt: skip
_SIZES = (b"-1", b"+2", b"0x2", b"2 ", b" 2", b"2\t", b"g", b"", b"02", b"f" * 16, b"f" * 21, b"2;a=b",
          b"2;" + b"a" * 5000, b"2;a=\x00", b'2;a="\r\n"', b"2\n", b"2\r", b"2;\n", b"2_0", b"\xb2",
          b"7fffffff", b"1", b"3", b"2;a" * 9)  # fmt: skip
_TRAILERS = (b"", b"X: y\r\n", b"Authorization: Bearer dead\r\n", b"Content-Length: 9\r\n", b"X", b"\0\r\n",
             b" f\r\n", b"Transfer-Encoding: chunked\r\n", b"X: " + b"a" * 20_000 + b"\r\n", b"\n",
             b"X: y\n")  # fmt: skip
_GARBAGE = (b"", b"\r\n", b"\r\n" * 300, b"\0" * 100, b"\n\n", b"\r", b"GET /\r\n\r\n", b"GET /health\r\n",
            b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
            b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"\xef\xbb\xbfGET / HTTP/1.1\r\n\r\n", b"*1\r\n$4\r\nPING\r\n", b"\xff" * 20_000, b"a" * 40_000,
            b"GET " + b"/" * 40_000)  # fmt: skip


def case(rng: Dice, bearer: str) -> Case:
    """Give the next case, with this bearer in it."""
    made = rng.choice(_MAKERS)(rng)
    made = replace(made, pieces=tuple(piece.replace(BEARER, bearer.encode()) for piece in made.pieces))
    return _left_early(made, rng) if rng.random() < 0.25 else made


def _left_early(whole: Case, rng: Dice) -> Case:
    """Give the same in pieces cut anywhere, or gone from after some of it."""
    sent = whole.sent
    cuts = sorted(rng.randrange(len(sent) + 1) for _ in range(rng.randrange(1, 6)))
    pieces = tuple(sent[start:end] for start, end in zip((0, *cuts), (*cuts, len(sent)), strict=True))
    how = rng.choice(("pieces", "half", "close", "reset"))
    if how == "pieces":
        return replace(whole, pieces=pieces, kind=f"{whole.kind}, in pieces")
    left: End = "half" if how == "half" else "close" if how == "close" else "reset"
    return Case("left early", pieces[:-1], left)


def ordinary(rng: Dice) -> Parts:
    """Give a request with nothing wrong but what it says."""
    method, path = rng.choice(rng.paths)
    if method == b"GET" or rng.random() < 0.1:
        return Parts(method, path)
    return Parts(method, path, body=document(rng, path))


def _line(rng: Dice) -> Case:
    parts = ordinary(rng)
    which = rng.randrange(5)
    if which == 0:
        parts = replace(parts, method=rng.choice(_METHODS))
    elif which == 1:
        parts = replace(parts, target=rng.choice(_TARGETS))
    elif which == 2:
        parts = replace(parts, version=rng.choice(_VERSIONS))
    elif which == 3:
        parts = replace(parts, eol=rng.choice((b"\n", b"\r", b"\r\r\n", b"\n\r", b"\0\r\n", b" \r\n")))
    else:
        parts = replace(parts, target=parts.target + rng.choice(_TARGETS))
    return Case("request line", (parts.wire(),))


def _path(rng: Dice) -> Case:
    parts = ordinary(rng)
    segments = parts.target.split(b"/")
    segments[rng.randrange(1, len(segments))] = rng.choice(_SEGMENTS)
    target = b"/".join(segments)
    if b"operator/rotate" in target or target == b"/v1/tokens/operator":
        return Case("path", (replace(parts, target=b"/v1/records/x").wire(),))
    return Case("path", (replace(parts, target=target).wire(),))


def _query(rng: Dice) -> Case:
    fields = [
        rng.choice(_FIELDS) + rng.choice((b"=", b"", b"==")) + rng.choice((*NUMBERS, *_SEGMENTS))
        for _ in range(rng.choice((1, 1, 2, 3, 400)))
    ]
    target = rng.choice(LISTINGS) + b"?" + rng.choice((b"&", b";", b"&&")).join(fields)
    return Case("query", (Parts(target=target[:15_000]).wire(),))


def _header(rng: Dice) -> Case:
    parts = ordinary(rng)
    if rng.random() < 0.1:
        return Case("headers", (replace(parts, headers=parts.headers[rng.randrange(2) :][:1]).wire(),))
    chosen = [rng.choice(_HEADERS) for _ in range(rng.choice((1, 1, 2)))]
    if rng.random() < 0.05:
        chosen = [b"X%d: y" % each for each in range(rng.choice((200, 4000)))]
    at = rng.randrange(len(parts.headers) + 1)
    headers = (*parts.headers[:at], *chosen, *parts.headers[at:])
    return Case("headers", (replace(parts, headers=headers).wire(),))


def _length(rng: Dice) -> Case:
    values = [rng.choice((b"2", *_LENGTHS)) for _ in range(rng.choice((1, 1, 2, 3)))]
    body = rng.choice((b"{}", b"", b"{", b"{}{}"))
    parts = Parts(b"POST", _document_path(rng), body=body)
    return Case("length", (replace(parts, framing=tuple(b"Content-Length: " + v for v in values)).wire(),))


def _chunks(rng: Dice) -> Case:
    size = rng.choice((b"2", *_SIZES))
    end = rng.choice((b"\r\n", b"\r\n", b"\n", b"", b"\r", b"xx"))
    last = rng.choice((b"0\r\n", b"0\r\n", b"0;x\r\n", b"00\r\n", b"", b"-0\r\n", b"0\n"))
    body = size + b"\r\n{}" + end + last + rng.choice(_TRAILERS) + rng.choice((b"\r\n", b"\r\n", b"", b"\n"))
    parts = Parts(b"POST", _document_path(rng), body=body)
    return Case("chunks", (replace(parts, framing=(b"Transfer-Encoding: " + rng.choice(_CODINGS),)).wire(),))


def _large(rng: Dice) -> Case:
    """Give a body over every limit: announced, sent, or sent in chunks."""
    parts = Parts(b"POST", _document_path(rng), body=b"{" + b" " * 70_000 + b"}")
    how = rng.randrange(3)
    if how == 0:
        parts = replace(parts, body=b"{", framing=(b"Content-Length: 1000000000000",))
    elif how == 1:
        chunk = b"ffff\r\n" + b" " * 0xFFFF + b"\r\n"
        parts = replace(parts, body=chunk * 4, framing=(b"Transfer-Encoding: chunked",))
    return Case("large body", (parts.wire(),))


def _garbage(rng: Dice) -> Case:
    said = rng.choice(_GARBAGE)
    return Case("no HTTP", (said + rng.choice((b"", Parts().wire())),))


def _broken(rng: Dice) -> Case:
    """Give a request with some of its bytes changed, taken away or said twice."""
    said = bytearray(ordinary(rng).wire())
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(said) + 1)
        span = rng.choice((1, 1, 2, 8, 40))
        how = rng.randrange(4)
        if how == 0:
            said[at : at + span] = rng.randbytes(span)
        elif how == 1:
            del said[at : at + span]
        elif how == 2:
            said[at:at] = said[at : at + span]
        else:
            said[at:at] = rng.choice((b"\0", b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\xff", b"%", b"?"))
    if b"operator" in said and b"/v1/tokens" in said:
        return _garbage(rng)
    return Case("broken bytes", (bytes(said),))


def _document_path(rng: Dice) -> bytes:
    return rng.choice([path for method, path in rng.paths if method == b"POST"])


def _document(rng: Dice) -> Case:
    path = _document_path(rng)
    return Case("document", (Parts(b"POST", path, body=document(rng, path)).wire(),))


def _documents(rng: Dice) -> Case:
    many = b"".join(_document(rng).sent for _ in range(rng.choice((2, 5, 20))))
    return Case("documents, pipelined", (many,))


def _pipelined(rng: Dice) -> Case:
    """Give hundreds of requests at once and then one that is bad."""
    many = b"".join(tagged(each).wire() for each in range(rng.choice((3, 50, 300))))
    return Case("pipelined", (many + rng.choice((_line, _header, _chunks, _garbage))(rng).sent,))


def _hidden(rng: Dice) -> Case:
    """Give a request whose body holds another, under a framing that two readers may take two ways, and one after it."""
    hidden = tagged(1).wire()
    length, short = b"Content-Length: %d" % len(hidden), b"Content-Length: %d" % rng.randrange(len(hidden))
    coded = b"Transfer-Encoding: " + rng.choice((b"chunked", *_CODINGS))
    odd = rng.choice((b"Transfer-Encoding : chunked", b" Transfer-Encoding: chunked",
                      b"Transfer-Encoding:\tchunked", b"X: y\r\n Transfer-Encoding: chunked",
                      b"X: y\nTransfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked",
                      b"Transfer_Encoding: chunked", b"transfer-encoding:chunked", b"Content-Length : 0",
                      b"Content-Length:\x0b0", b"Content_Length: 0", b"X: y\0\r\nContent-Length: 0",
                      b"Content-Length: 0\r\n ,0",
                      b"Transfer-Encoding: chunked\r\nConnection: transfer-encoding"))  # fmt: skip
    framing = rng.choice(
        (
            (length, coded),
            (coded, length),
            (short, length),
            (length, short),
            (odd, length),
            (length, odd),
            (coded,),
            (odd,),
            (short,),
            (length, b"Content-Length: 0"),
        )
    )
    size = rng.choice((b"%x" % len(hidden), *_SIZES))
    body = rng.choice(
        (
            hidden,
            b"0\r\n\r\n" + hidden,
            size + b"\r\n" + hidden + b"\r\n0\r\n\r\n",
            b"5\r\nGET /\r\n0\r\n\r\n",
        )
    )
    version = rng.choice((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"))
    method = rng.choice((b"POST", b"POST", b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"CONNECT"))
    outer = replace(tagged(0), method=method, version=version, framing=framing, body=body)
    return Case("one request in another", (outer.wire() + tagged(2).wire(),))


def extremes() -> Iterator[bytes]:
    """Give each listing with each of its numbers at each extreme."""
    for listing in LISTINGS:
        for name in (b"since", b"limit", b"since_clock"):
            for number in NUMBERS:
                yield listing + b"?" + name + b"=" + number


def tagged(number: int) -> Parts:
    """Give a request whose answer says which it was: a listing asked with a field that it does not know."""
    return Parts(target=b"/v1/tiers?t%d=" % number)


_MAKERS: tuple[Callable[[Dice], Case], ...] = (
    _line,
    _path,
    _query,
    _header,
    _length,
    _chunks,
    _large,
    _garbage,
    _broken,
    _document,
    _documents,
    _pipelined,
    _hidden,
    _hidden,
)
