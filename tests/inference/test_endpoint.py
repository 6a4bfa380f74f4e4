"""A request is made again only where nothing can have been answered, waits as it is told, and lets no key out."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
import socket
import ssl
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from spl import __version__
from spl.errors import HomeUnsafe
from spl.inference.endpoint import ATTEMPTS, ITEMS_MOST, REPLY_MOST, WAIT_MOST, Endpoint
from spl.inference.model import Unanswered
from tests.inference.served import Served, answer, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = "sk-test-4Tq9ZrWm2LxVb8Nc"
NOW = 1_700_000_000.0
OK = answer({"said": "yes"})


def as_it_is(said: Any) -> Any:
    return said


class Client:
    """An endpoint at which no time passes; `waited` is what it would have waited, in seconds."""

    def __init__(
        self, url: str, key: Callable[[], str | None] | str | None = KEY, seconds: float = 30
    ) -> None:
        self.waited: list[float] = []
        self.endpoint = Endpoint(
            url,
            key=key if callable(key) else lambda: key,
            authorize=lambda word: {"x-api-key": word},
            headers={"x-version": "1"},
            seconds=seconds,
            name="some",
            sleep=self._sleep,
            clock=lambda: NOW,
            jitter=lambda: 0.0,
        )

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)

    async def post(self, document: dict[str, Any] | None = None) -> Any:
        try:
            return await self.endpoint.post(
                "/path", lambda: {"a": 1} if document is None else document, as_it_is
            )
        finally:
            await self.endpoint.close()


def posted(*acts: Any, seconds: float = 30, key: Any = KEY) -> tuple[Any, Client, Served]:
    """Post once to a server of these acts; give the reply, or the error in its place."""

    async def post() -> tuple[Any, Client, Served]:
        async with serving(*acts) as served:
            client = Client(served.url, key, seconds)
            try:
                return await client.post(), client, served
            except Unanswered as error:
                return error, client, served

    return asyncio.run(post())


def refused(*acts: Any, seconds: float = 30, key: Any = KEY) -> tuple[Unanswered, Client, Served]:
    error, client, served = posted(*acts, seconds=seconds, key=key)
    assert isinstance(error, Unanswered)
    assert error.message.startswith("the provider 'some' ")
    assert error.message.isprintable()
    assert KEY not in "".join(traceback.format_exception(error))
    return error, client, served


def test_a_request_is_json_under_a_name_of_its_own_with_the_key_in_its_header() -> None:
    said, _, served = posted(OK)

    assert said == {"said": "yes"}
    request = served.seen[0]
    assert (request.line, request.body) == ("POST /path HTTP/1.1", {"a": 1})
    assert request.headers.pop("host") == served.url.removeprefix("http://")
    assert request.headers == {
        "user-agent": f"spl/{__version__}",
        "accept": "application/json",
        "accept-encoding": "identity",
        "connection": "keep-alive",
        "content-type": "application/json",
        "content-length": "8",
        "x-version": "1",
        "x-api-key": KEY,
    }


def test_a_connection_serves_the_next_request_and_no_cookie_is_kept() -> None:
    async def post() -> None:
        async with serving(answer({}, set_cookie="a=b; Path=/"), OK) as served:
            endpoint = Client(served.url).endpoint
            await endpoint.post("/", dict, as_it_is)
            await endpoint.post("/", dict, as_it_is)
            await endpoint.close()
            assert served.connections == 1
            assert "cookie" not in served.seen[1].headers

    asyncio.run(post())


@pytest.mark.claim("B4")
def test_the_environment_sends_a_key_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    netrc.chmod(0o600)
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NETRC", str(netrc))

    said, _, served = posted(OK)

    assert said == {"said": "yes"}
    assert "authorization" not in served.seen[0].headers


# --- again ---


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_asked_again_a_little_later_each_time(status: int) -> None:
    said, client, served = posted(*[answer("", status)] * 3, OK)

    assert said == {"said": "yes"}
    assert (len(served.seen), client.waited) == (4, [0.5, 1.0, 2.0])


def test_after_the_last_attempt_it_is_told_what_was_answered_and_that_nothing_is_owed() -> None:
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down."}}
    error, client, _ = refused(*[answer(body, 429)] * ATTEMPTS)

    assert error.message == "the provider 'some' answered 429 (rate_limit_error): Slow down."
    assert error.unpaid
    assert len(client.waited) == ATTEMPTS - 1


@pytest.mark.parametrize("status", [400, 402, 404, 413, 422, 501])
def test_what_will_not_pass_is_asked_once_and_owes_nothing(status: int) -> None:
    error, client, served = refused(answer("", status))

    hint = "; is provider_url right?" if status == 404 else ""
    assert (error.message, error.unpaid) == (f"the provider 'some' answered {status}{hint}", True)
    assert (len(served.seen), client.waited) == (1, [])


@pytest.mark.parametrize(("status", "should", "attempts"), [(529, "false", 1), (400, "true", 2)])
def test_a_provider_that_says_whether_to_ask_again_is_believed(
    status: int, should: str, attempts: int
) -> None:
    _, _, served = posted(answer("", status, x_should_retry=should), OK)

    assert len(served.seen) == attempts


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after": "60"}, WAIT_MOST),
        ({"retry_after": "7", "retry_after_ms": "250"}, 0.25),
        ({"retry_after": "7", "retry_after_ms": "soon"}, 7),
        ({"retry_after": "Tue, 14 Nov 2023 22:13:30 GMT"}, 10),
        ({"retry_after": "Tue, 14 Nov 2023 22:13:30 -0000"}, 10),
        ({"retry_after": "Tue, 14 Nov 2000 22:13:30 GMT"}, 0),
        ({"retry_after": "-5"}, 0.5),
        ({"retry_after": "nan"}, 0.5),
        ({"retry_after": "soon"}, 0.5),
        ({"retry_after": "Tue, 14 Nov 99999 99:13:30 +999999"}, 0.5),
    ],
)
def test_it_waits_just_as_long_as_it_is_asked_to(headers: dict[str, str], seconds: float) -> None:
    said, client, _ = posted(answer("", 429, **headers), OK)

    assert (said, client.waited) == ({"said": "yes"}, [seconds])


@pytest.mark.parametrize("asked", ["61", "999999999", "Tue, 14 Nov 2023 22:14:21 GMT"])
def test_it_gives_up_where_it_is_asked_to_wait_longer_than_a_run_has(asked: str) -> None:
    error, client, served = refused(answer("", 429, retry_after=asked))

    seconds = asked if asked.isdigit() else "61"
    assert (
        error.message == f"the provider 'some' answered 429; it asks to be left alone for {seconds} seconds"
    )
    assert error.unpaid
    assert (client.waited, len(served.seen)) == ([], 1)


def test_requests_that_are_refused_together_come_back_apart() -> None:
    async def post() -> list[float]:
        async with serving(answer("", 500), OK) as served:
            client = Client(served.url)
            client.endpoint._jitter = lambda: 1.0
            await client.post()
            return client.waited

    assert asyncio.run(post()) == [0.375]


def test_where_nothing_listens_it_is_tried_again_and_owes_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listening: nobody else comes to
        client = Client(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(Unanswered) as raised:
            asyncio.run(client.post())

    assert raised.value.message == "the provider 'some' cannot be reached: Connection refused"
    assert raised.value.unpaid
    assert client.waited == [0.5, 1.0, 2.0]


# --- not again ---


async def never(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def dripping(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 8000000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0)  # no time, but a turn for the one who reads


@pytest.mark.parametrize("act", [never, dripping])
def test_an_answer_that_takes_too_long_may_be_owed_and_is_not_asked_for_again(act: Any) -> None:
    error, client, served = refused(act, OK, seconds=0.2)

    assert error.message == "the provider 'some' did not answer within 0.2 seconds"
    assert not error.unpaid
    assert (len(served.seen), client.waited) == (1, [])


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BROKEN = {
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
    "half the chunks": CHUNKED + b"2\r\n{}\r\n",
    "chunks that are none": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a head without an end": b"HTTP/1.1 200 OK\r\na: " + b"a" * 200_000,
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
def test_a_reply_that_is_lost_on_its_way_may_be_owed_and_is_not_asked_for_again(sent: bytes) -> None:
    error, client, served = refused(sent, OK)

    why = "broke the connection off, or HTTP's rules, before its reply was whole"
    assert error.message == f"the provider 'some' {why}"
    assert not error.unpaid
    assert (len(served.seen), client.waited) == (1, [])


async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CHUNKED)
    piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    while True:
        writer.write(piece)
        await writer.drain()


SQUEEZED = answer(gzip.compress(b" " * 10_000_000 + b"{}"), content_encoding="gzip")
MALFORMED = {
    "endless": (endless, f"it has over {REPLY_MOST} bytes"),
    "squeezed": (SQUEEZED, "it is encoded, which was not asked for"),
    "text": (answer("Hello."), "it is not JSON"),
    "nothing": (answer(""), "it is not JSON"),
    "not UTF-8": (answer(b'"\xff"'), "it is not JSON"),
    "UTF-16": (answer('{"a": 1}'.encode("utf-16")), "it is not JSON"),
    "deep": (answer("[" * 100_000), "it is not JSON"),
}


@pytest.mark.parametrize(("act", "fault"), MALFORMED.values(), ids=MALFORMED)
def test_a_reply_that_cannot_be_read_may_be_owed_and_is_not_asked_for_again(act: Any, fault: str) -> None:
    error, client, served = refused(act, OK)

    assert error.message == f"the provider 'some' gave a malformed reply: {fault}"
    assert not error.unpaid
    assert (len(served.seen), client.waited) == (1, [])


def test_a_reply_of_too_many_small_things_is_not_taken_apart() -> None:
    error, _, _ = refused(answer({"said": [0] * ITEMS_MOST}))

    assert error.message == (
        f"the provider 'some' gave a malformed reply: it has more than {ITEMS_MOST} commas and brackets"
    )
    assert not error.unpaid


def test_an_address_of_http_that_is_asked_for_tls_is_told_as_that() -> None:
    async def bewildered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer("", 400))
        writer.close()

    async def post() -> Unanswered:
        server = await asyncio.start_server(bewildered, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        client = Client(f"https://{host}:{port}")
        with pytest.raises(Unanswered) as raised:
            await client.post()
        server.close()
        await server.wait_closed()
        assert client.waited == []
        return raised.value

    error = asyncio.run(post())
    assert error.message == "the provider 'some' does not speak TLS at its address: is that one of http?"
    assert error.unpaid


def test_one_that_does_not_come_to_answer_a_handshake_is_asked_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Client("https://{}:{}".format(*server.getsockname()), seconds=0.3)
        with pytest.raises(Unanswered, match="cannot be reached: nothing answers there") as raised:
            asyncio.run(client.post())

    assert (raised.value.unpaid, len(client.waited)) == (True, ATTEMPTS - 1)


def test_a_success_of_another_kind_may_be_owed() -> None:
    error, _, _ = refused(answer("", 202))

    assert (error.message, error.unpaid) == ("the provider 'some' answered 202", False)


@pytest.mark.parametrize("said", [float("nan"), object(), {"a": {1, 2}}])
def test_what_is_not_json_is_not_sent(said: object) -> None:
    async def post() -> None:
        async with serving() as served:
            with pytest.raises(
                Unanswered, match="was not asked: what it was to be sent is not JSON"
            ) as raised:
                await Client(served.url).post({"said": said})
            assert raised.value.unpaid
            assert served.connections == 0

    asyncio.run(post())


def test_a_run_that_is_stopped_closes_its_connection_at_once() -> None:
    async def stop() -> None:
        gone = asyncio.Event()

        async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            assert await reader.read() == b""
            gone.set()

        async with serving(wait) as served:
            endpoint = Client(served.url).endpoint
            post = asyncio.create_task(endpoint.post("/", dict, as_it_is))
            await served.came.wait()
            post.cancel()
            with pytest.raises(asyncio.CancelledError):
                await post
            # The endpoint itself stays open: it is the one connection that is closed.
            await asyncio.wait_for(gone.wait(), 10)
            await endpoint.close()

    asyncio.run(stop())


# --- what is told of an error ---


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"error": {"message": "No.", "type": "invalid", "code": "no_model"}}, " (no_model): No."),
        ({"error": {"message": "No.", "type": "invalid", "code": None}}, " (invalid): No."),
        ({"error": {"message": "No.", "type": "invalid", "code": 404}}, " (invalid): No."),
        ({"type": "error", "error": {"type": "too_long", "message": "No."}}, " (too_long): No."),
        ({"error": {"type": "two words", "message": ["No."]}}, ""),
        ({"error": "No."}, ": No."),
        ({"error": 5}, ""),
        ({"detail": "No."}, ""),
        ([], ""),
        ("<html>No.</html>", ""),
        ("No.", ""),
        (b"\xff", ""),
        ({"error": {"message": "One\r\n\x1b[31mtwo\u202e\u2028 three"}}, ": One [31mtwo three"),
        ({"error": {"message": "a" * 300}}, f": {'a' * 199}…"),
        ({"error": {"message": "a" * 70_000}}, ""),
    ],
)
def test_of_an_error_its_kind_and_a_line_of_its_message_are_told(body: Any, told: str) -> None:
    assert refused(answer(body, 400))[0].message == f"the provider 'some' answered 400{told}"


def test_an_error_whose_words_are_squeezed_or_lost_is_told_by_its_status() -> None:
    squeezed = answer(gzip.compress(b'{"error": "No."}'), 400, content_encoding="gzip")
    lost = b'HTTP/1.1 400 No\r\nContent-Length: 100\r\n\r\n{"error": "No."}'

    for act in (squeezed, lost):
        error = refused(act)[0]
        assert (error.message, error.unpaid) == ("the provider 'some' answered 400", True)


# --- the key ---


@pytest.mark.claim("B4")
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "refused the key (401), that of secrets/some.key"),
        (403, "answered 403: it refuses what was asked, or the key of secrets/some.key"),
    ],
)
def test_of_a_refused_key_it_is_told_where_it_is_and_nothing_the_provider_says(
    status: int, said: str
) -> None:
    body = {"error": {"message": f"Incorrect key: {KEY[:6]}***{KEY[-4:]}", "code": "invalid_api_key"}}

    error, _, served = refused(answer(body, status))

    assert error.message == f"the provider 'some' {said}"
    assert error.unpaid
    assert len(served.seen) == 1


def test_where_a_key_is_wanted_and_there_is_none_it_is_told_where_it_belongs() -> None:
    error, _, served = refused(answer("", 401), key=None)

    assert error.message == (
        "the provider 'some' wants a key (401), and there is none in secrets/some.key that may be sent there"
    )
    assert "x-api-key" not in served.seen[0].headers


@pytest.mark.claim("B4")
@pytest.mark.parametrize(
    ("kind", "message", "told"),
    [
        ("invalid", f"You sent {KEY}.", " (invalid)"),
        ("invalid", f"You sent {KEY[5:13]}.", " (invalid)"),
        ("invalid", f"You sent {KEY.upper()}.", " (invalid)"),
        ("invalid", "a" * 190 + KEY, " (invalid)"),
        (KEY, "No.", ": No."),
        ("invalid", f"You sent {KEY[5:12]}.", f" (invalid): You sent {KEY[5:12]}."),
    ],
)
def test_no_part_of_the_key_is_repeated_from_an_error(kind: str, message: str, told: str) -> None:
    error = refused(answer({"error": {"message": message, "type": kind}}, 400))[0]

    assert error.message == f"the provider 'some' answered 400{told}"


@pytest.mark.claim("B4")
@pytest.mark.parametrize(
    "written",
    [
        KEY,
        KEY.replace("s", "\\u0073"),
        json.dumps(json.dumps({"key": KEY}))[1:-1],
        json.dumps(json.dumps(KEY).replace("s", "\\u0073"))[1:-1],
    ],
)
def test_a_reply_that_holds_the_key_goes_no_further(written: str) -> None:
    error = refused(answer(f'{{"said": "{written}"}}'))[0]

    assert error.message == "the provider 'some' gave a malformed reply: it holds the key"
    assert not error.unpaid


@pytest.mark.claim("B4")
def test_a_key_of_characters_that_json_escapes_is_found_in_a_reply() -> None:
    key = 'sk/+="<\\>&-4Tq9ZrWm'
    said = json.dumps({"said": key}).replace("/", "\\/").replace("<", "\\u003c")

    assert "it holds the key" in refused(answer(said), key=key)[0].message


def test_a_word_in_the_place_of_a_key_may_stand_in_a_reply() -> None:
    assert posted(answer({"by": "ollama"}), key="ollama")[0] == {"by": "ollama"}
    assert posted(answer({"by": "any"}), key=None)[0] == {"by": "any"}


@pytest.mark.claim("B4")
def test_a_redirect_is_not_followed_and_the_key_not_sent_on() -> None:
    async def post() -> None:
        async with serving(OK) as other, serving() as served:
            for status in (301, 302, 303, 307, 308):
                served.acts.append(answer("", status, location=other.url))
                with pytest.raises(Unanswered) as raised:
                    await Client(served.url).post()
                why = f"answered {status}, which leads elsewhere and is not followed"
                assert raised.value.message == f"the provider 'some' {why}"
                assert raised.value.unpaid
            assert other.connections == 0

    asyncio.run(post())


def test_a_key_that_is_changed_is_used_by_the_next_attempt() -> None:
    keys = [f"{KEY}-1", f"{KEY}-2"]

    _, _, served = posted(answer("", 500), OK, key=lambda: keys.pop(0))

    assert [each.headers["x-api-key"] for each in served.seen] == [f"{KEY}-1", f"{KEY}-2"]


@pytest.mark.claim("B4")
@pytest.mark.parametrize("key", ["", "two words", "line\r\nx-other: 1", "schlüssel", "\x7f"])
def test_what_can_be_no_key_is_not_sent(key: str) -> None:
    error, _, served = refused(key=key)

    assert error.message == "the provider 'some' was not asked: its key is not one word of visible ASCII"
    assert error.unpaid
    assert served.connections == 0


def test_a_key_that_cannot_be_read_is_told_as_it_is() -> None:
    def unsafe() -> str:
        raise HomeUnsafe("the key file is open to others")

    with pytest.raises(HomeUnsafe, match="open to others"):
        posted(key=unsafe)


@pytest.mark.claim("B4")
def test_nothing_is_logged_of_a_request_and_nothing_shows_the_key(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        _, client, _ = posted(answer({"error": KEY}, 500), OK)
        error = refused(b"")[0]

    assert [each.name for each in caplog.records if each.name.startswith("http")] == []
    assert KEY not in caplog.text
    assert KEY not in repr(client.endpoint)
    # Nor does the error hold on to the request that it is about.
    assert (error.__cause__, error.__context__) == (None, None)


# Of nobody, for 127.0.0.1 and a hundred years: it is there not to be trusted.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgVcjDAmRmXzluUjDm
nFVDxHtnBpfoLFojzahtn8H/pOKhRANCAAS0fgarVBt0bt6TLdklqZgvYFqmlRiH
Bg+oRAhzF+zPb8EXCLfBnlhi1MRmZtmzk6ev248lUY2wxai9WSCA3rvl
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBjzCCATagAwIBAgIUeRJlb1R4odGBTtacdY/JWN1yEVwwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEzMDA2NTUxMVoYDzIxMjYxMTA2
MDY1NTExWjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAS0fgarVBt0bt6TLdklqZgvYFqmlRiHBg+oRAhzF+zPb8EXCLfBnlhi
1MRmZtmzk6ev248lUY2wxai9WSCA3rvlo2QwYjAdBgNVHQ4EFgQUb+6VOt3+D7e6
+h2lqbFucAJR6lYwHwYDVR0jBBgwFoAUb+6VOt3+D7e6+h2lqbFucAJR6lYwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0cAMEQC
ID3LWU2iFswvbnclrcu7AtTNVlZPzlSzRTVKa70x05uGAiBfEcaEGjDDFMOtEYx0
/bAAJHyhjlOW7g6ZjLJlpl6NnQ==
-----END CERTIFICATE-----
"""


@pytest.mark.claim("B4")
def test_who_does_not_prove_who_he_is_is_sent_no_key(tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    pem.write_text(CERTIFICATE)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)

    async def post() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with serving(OK, tls=tls) as served:
            client = Client(served.url)
            with pytest.raises(
                Unanswered, match="does not prove who it is: self-signed certificate"
            ) as raised:
                await client.post()
            assert raised.value.unpaid
            assert (served.seen, client.waited) == ([], [])

    asyncio.run(post())


# --- whatever it sends ---


def test_whatever_bytes_come_back_end_in_json_or_in_a_sentence() -> None:
    dice = random.Random(7)
    parts = [OK, SQUEEZED[:300], CHUNKED + b"2\r\n{}\r\n0\r\n\r\n", *BROKEN.values()]
    parts += [
        answer({"error": KEY}, 400),
        answer("", 302, location="http://[::1"),
        answer("", 429, retry_after="1"),
    ]

    async def post() -> list[str]:
        ends = []
        async with serving() as served:
            client = Client(served.url)
            for _ in range(150):
                sent = bytearray(dice.choice(parts))[:4000]
                for _ in range(dice.randrange(4)):
                    at = dice.randrange(len(sent) + 1)
                    sent[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
                # Closed after it, so that a length that grew is cut off and not waited for.
                served.acts[:] = [_closing(bytes(sent))] * ATTEMPTS
                try:
                    await client.endpoint.post("/", dict, as_it_is)
                    ends.append("JSON")
                except Unanswered as error:
                    ends.append(error.message)
            await client.endpoint.close()
        return ends

    ends = asyncio.run(post())
    assert [end for end in ends if not end.isprintable() or KEY in end] == []
    assert len(set(ends)) > 5


def _closing(sent: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()

    return send
