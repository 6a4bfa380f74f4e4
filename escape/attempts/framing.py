"""Out by the worker socket: one request, heard as two, or as another, by how HTTP frames it."""

from __future__ import annotations

from escape.attempts._knocking import (
    ANYONES,
    DOORS,
    KEPT_BUSY,
    NOBODY,
    NOT_FOUND,
    POSTS,
    RUN,
    all_refused,
    behind,
    codes,
    credential,
    framed,
    kept,
    knock,
    message,
    pour,
)
from escape.inside import stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from escape.attempt import Attempt
    from escape.inside import World


_TWO_MEASURES = "a request with a length and with chunks was read"


def _hidden(world: World) -> tuple[bytes, ...]:
    """Give requests that must not be heard where a body or a header is meant: the operator's, and one for nobody."""
    return kept(message(world, "GET /v1/records")), kept(message(world, RUN, bearer=""))


def _length_and_chunks(world: World) -> str:
    orders = (
        "Content-Length: {0}\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: {0}\r\n",
    )
    bodies = [b"0\r\n\r\n" + hidden for hidden in _hidden(world)]
    asked = (framed(world, order.format(len(body)), body) for body in bodies for order in orders)
    return all_refused(world, asked, _TWO_MEASURES)


def _chunks_within_a_length(world: World) -> str:
    asked = []
    for hidden in _hidden(world):
        chunk = f"{len(hidden):x}\r\n".encode() + hidden + b"\r\n0\r\n\r\n"
        asked.append(framed(world, "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", chunk))
    return all_refused(world, asked, _TWO_MEASURES)


def _encodings(world: World) -> str:
    names = (
        "gzip", "identity", "xchunked", "chunked, identity", "chunked, gzip", "gzip, chunked", "chunked;a=b",
        '"chunked"', "chunked\r\nTransfer-Encoding: identity", "identity\r\nTransfer-Encoding: chunked", "",
        "chunked, chunked",
    )  # fmt: skip
    return all_refused(
        world,
        (
            framed(world, f"Content-Length: 5\r\nTransfer-Encoding: {name}\r\n", b"0\r\n\r\n" + hidden)
            for name in names
            for hidden in _hidden(world)
        ),
        "an encoding was guessed",
    )


def _header_names(world: World) -> str:
    headers = (
        "Transfer-Encoding : chunked", "Transfer-Encoding\t: chunked", "Transfer\x0bEncoding: chunked",
        " X: a", "Transfer Encoding: chunked", ": chunked", "Transfer-Encoding", "X: a\0b", "X\0: a",
        "X: a\rY: b", "X: \x0b", "X: a\rTransfer-Encoding: chunked", "\xa0X: a", "X\xff: a", "(X): a",
        "X: a\x0c", "[X]: a", "X: \x00",
    )  # fmt: skip
    asked = (
        framed(world, f"{each}\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + hidden)
        if not each.startswith(" ")
        else b"GET /v1/worker/run HTTP/1.1\r\n" + f"{each}\r\nHost: spl\r\n\r\n".encode() + hidden
        for each in headers
        for hidden in _hidden(world)
    )
    return all_refused(world, asked, "a header that is none was read")


def _folded(world: World) -> str:
    asked = [
        framed(
            world, f"X: a\r\n{space}Transfer-Encoding: chunked\r\nContent-Length: {len(hidden)}\r\n", hidden
        )
        for space in (" ", "\t", "  ")
        for hidden in _hidden(world)
    ]
    return behind(world, asked)


def _lengths(world: World) -> str:
    lengths = (
        "2\r\nContent-Length: 3", "2, 3", "2 3", "-1", "-0", "+2", "0x2", "2.0", "2e0", "1_0", "", "a",
        "\xb2", "2;2", "9" * 21, "1" + "0" * 30, "2\r\nContent-Length: 02", "0,1",
        "2\r\nContent-Length:",
    )  # fmt: skip
    asked = (
        framed(world, f"Content-Length: {length}\r\n", b"{}" + hidden)
        for length in lengths
        for hidden in _hidden(world)
    )
    return all_refused(world, asked, "a length was guessed")


def _chunk_sizes(world: World) -> str:
    sizes = (
        "0x2", "+2", "-2", "2_0", " 2", "\t2", "", "g", "f" * 21, "1" + "0" * 20, "2 2", "2\0", "2,2", "2\r",
        "\xb2", "-0", "2.0",
    )  # fmt: skip
    asked = (
        framed(
            world,
            "Transfer-Encoding: chunked\r\n",
            f"{size}\r\n".encode("latin-1") + b"{}\r\n0\r\n\r\n" + hidden,
        )
        for size in sizes
        for hidden in _hidden(world)
    )
    return all_refused(world, asked, "a chunk's size was guessed")


def _chunk_ends(world: World) -> str:
    # h11 before 0.16 took any two bytes there, which is where a proxy and it would part.
    ends = (b"XX", b"\n\n", b"\r\r", b"  ", b"00", b"\n", b"\r", b"")
    asked = (
        framed(world, "Transfer-Encoding: chunked\r\n", b"2\r\n{}" + end + b"0\r\n\r\n" + hidden)
        for end in ends
        for hidden in _hidden(world)
    )
    return all_refused(world, asked, "what is no end was taken for one")


def _trailers(world: World) -> str:
    own = credential(world)
    trailers = (
        f"Authorization: Bearer {own}", f"Content-Length: 2\r\nAuthorization: Bearer {own}",
        f"Cookie: {own}",
    )  # fmt: skip
    heads = [
        f"{line} HTTP/1.1\r\nHost: spl\r\nConnection: close\r\nTrailer: Authorization\r\n".encode()
        for line in DOORS
    ]
    body = "Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n{}\r\n\r\n"
    asked = [head + body.format(trailer).encode() for head in heads for trailer in trailers]
    return all_refused(world, asked, "a trailer was believed")


def _extensions(world: World) -> str:
    extensions = (b";a=b", b";" + b"a" * 15_000, b';a="\r', b"; GET /v1/records HTTP/1.1", b";\xff")
    asked = (
        framed(world, "Transfer-Encoding: chunked\r\n", b"2" + each + b"\r\n{}\r\n0\r\n\r\n" + hidden)
        for each in extensions
        for hidden in _hidden(world)
    )
    return behind(world, asked)


def _body_of_a_get(world: World) -> str:
    asked = (framed(world, f"Content-Length: {len(each)}\r\n", each, RUN) for each in _hidden(world))
    return behind(world, asked)


def _request_lines(world: World) -> str:
    rest = f"\r\nHost: spl\r\nAuthorization: Bearer {credential(world)}\r\n\r\n"
    lines = (
        "GET /v1/worker/run", "GET /v1/worker/run ", "GET  /v1/worker/run HTTP/1.1",
        "GET\t/v1/worker/run\tHTTP/1.1", "GET /v1/worker/run SPL/1.1", "GET /v1/worker/run http/1.1",
        "GET /v1/worker/run HTTP/1", "/v1/worker/run", "GET /v1/worker/run HTTP/1.1 HTTP/1.1",
        "GET /v1/worker/run HTTP/11.1", "GET /v1/worker/run HTTP/-1.1", "GET",
        "GET /v1/worker/ru\0n HTTP/1.1", "GET /v1/worker/ru\xfen HTTP/1.1", "GET /v1/worker/ru\rn HTTP/1.1",
        "\0\0", "G\0ET /v1/worker/run HTTP/1.1", "GET /v1/worker /run HTTP/1.1",
        " GET /v1/worker/run HTTP/1.1", "\x16\x03\x01",
    )  # fmt: skip
    return all_refused(
        world, ((line + rest).encode("latin-1") for line in lines), "a line that is none was read"
    )


def _versions(world: World) -> str:
    lines = [
        f"{line} HTTP/{version}" for line in DOORS for version in ("1.0", "0.9", "2.0", "3.0", "1.9", "9.9")
    ]
    return all_refused(
        world,
        (f"{line}\r\nHost: spl\r\nConnection: close\r\n\r\n".encode() for line in lines),
        "a door opened",
    )


def _preface(world: World) -> str:
    frames = b"\0\0\0\4\0\0\0\0\0" + b"\0\0\5\1\5\0\0\0\1\x82\x84\x86\x41\0"  # SETTINGS, and HEADERS of a GET
    return all_refused(world, [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames], "HTTP/2 is spoken")


def _upgrades(world: World) -> str:
    settings = "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13"
    offers = [
        ("h2c", settings),
        ("websocket", key),
        ("h2c, websocket", settings),
        ("TLS/1.3, HTTP/1.1", "A: b"),
    ]
    asked = [
        message(world, line, None, f"Upgrade: {name}", f"Connection: Upgrade, HTTP2-Settings\r\n{more}")
        for name, more in offers
        for line in ("GET /v1/records", "OPTIONS *", "GET /v1/worker/infer")
    ]
    return all_refused(world, asked, "the protocol was changed")


def _expecting(world: World) -> str:
    expect = "Content-Length: 100000000\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    asked = (f"{line} HTTP/1.1\r\nHost: spl\r\n{expect}".encode() for line in POSTS)
    return all_refused(world, asked, "a body was waited for")


def _pipelined(world: World) -> str:
    first = kept(message(world, RUN))
    answers = pour(world, first * 49 + message(world, RUN))
    return stopped(
        f"works: {len(answers)} answers of {codes(answers[:1])}"
        if len({codes([a]) for a in answers}) == 1
        else codes(answers)
    )


def _behind_its_own(world: World) -> str:
    own = kept(message(world, RUN))
    asked = (own + kept(message(world, line, {}, bearer="")) * 50 for line in DOORS)
    return behind(world, asked)


def _long_heads(world: World) -> str:
    rest, own = b"\r\nHost: spl\r\n", f"Authorization: Bearer {credential(world)}\r\n".encode()
    asked = (
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1" + rest + own + b"\r\n",
        b"GET /v1/worker/run HTTP/1.1" + rest + own + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /v1/worker/run HTTP/1.1" + rest + b"X-Any: a\r\n" * 20_000 + own + b"\r\n",
        b"GET /v1/worker/run HTTP/1.1" + rest + own + b"X: a\r\n " + b"b\r\n " * 20_000 + b"\r\n\r\n",
        b"A" * 100_000,
    )  # fmt: skip
    return all_refused(world, asked, "a head without an end was read")


_HIDDEN = f"{NOT_FOUND}, {NOBODY}"
_LAST = "404"
"""What the request that finds nothing is answered: no other was heard before it."""

_ROWS = (
    (
        "both",
        "hides a request behind chunks that a length denies",
        _length_and_chunks,
        "400",
        "CVE-2026-40561",
    ),
    ("within", "hides a request in a chunk that a shorter length denies", _chunks_within_a_length, "400", ""),
    (
        "encodings",
        "names encodings that are nearly chunked",
        _encodings,
        "501",
        "CVE-2019-18277, CVE-2024-1135, CVE-2024-6827",
    ),
    (
        "names",
        "spells header lines that only some parsers take for one",
        _header_names,
        "400",
        "CVE-2018-6560, CVE-2023-30589",
    ),
    ("folded", "hides an encoding in a folded header", _folded, _LAST, "CVE-2018-6560"),
    (
        "lengths",
        "gives lengths twice, signed, hexadecimal, endless",
        _lengths,
        "400",
        "CVE-2022-24801, CVE-2023-38697",
    ),
    (
        "sizes",
        "gives chunk sizes that are signed, prefixed, endless",
        _chunk_sizes,
        "400",
        "CVE-2022-24801, CVE-2023-38697",
    ),
    ("ends", "ends a chunk with what is no end", _chunk_ends, "400", "CVE-2025-43859"),
    (
        "extensions",
        "hides requests in a chunk's extensions",
        _extensions,
        _HIDDEN,
        "CVE-2022-24801, CVE-2023-38697, CVE-2023-39326",
    ),
    ("get", "hides requests in the body of a GET", _body_of_a_get, _LAST, ""),
    ("lines", "sends request lines that are none", _request_lines, "400", ""),
)
_NOBODYS = (
    ("trailers", "gives its credential in a trailer", _trailers),
    ("versions", "knocks in other versions, without a bearer", _versions),
    ("behind", "sends fifty requests without a bearer behind one with its own", _behind_its_own),
    ("expecting", "announces a body and waits to be asked for it", _expecting),
)
_SMUGGLED = "what one request holds is heard as another, under whatever the daemon took it for"
_PARSER = "a second parser is within reach, and past it nothing asks for a bearer"

ATTEMPTS: tuple[Attempt, ...] = (
    *(
        knock(f"framing.{name}", sentence, chain, answer, escape=_SMUGGLED, cve=cve)
        for name, sentence, chain, answer, cve in _ROWS
    ),
    *(
        knock(f"framing.{name}", sentence, chain, NOBODY, escape=ANYONES)
        for name, sentence, chain in _NOBODYS
    ),
    knock("framing.preface", "begins in HTTP/2", _preface, NOT_FOUND, escape=_PARSER),
    knock(
        "framing.upgrades", "asks to go on in HTTP/2 or by WebSocket", _upgrades, NOT_FOUND, escape=_PARSER
    ),
    knock("framing.heads", "sends heads of a hundred kilobytes", _long_heads, "431", escape=KEPT_BUSY),
    knock(
        "framing.pipelined",
        "sends fifty requests at once",
        _pipelined,
        "works: 50 answers of 200",
        escape="fifty requests are taken in their order, one at a time",
        allowed="HTTP/1.1 has it so, and they are the run's own",
    ),
)
