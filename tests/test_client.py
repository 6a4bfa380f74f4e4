from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from spl import errors
from spl.client import Client, _events, segment
from spl.errors import (
    BodyTooLarge,
    DaemonUnreachable,
    HomeUnsafe,
    IngestFailed,
    InvalidBody,
    IsolationUnavailable,
    NotFound,
    SettingsInvalid,
    SplError,
)
from spl.home import Home
from tests.server import Daemon, error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.server import Request


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home", create=True)


@pytest.fixture
def daemon(home: Home) -> Iterator[Daemon]:
    daemon = Daemon()
    daemon.start(str(home.operator_socket))
    yield daemon
    daemon.stop()


@pytest.fixture
def client(home: Home, daemon: Daemon) -> Client:
    return Client.locate(str(home.path), {})


def test_a_request_reaches_the_homes_operator_socket(client: Client, daemon: Daemon) -> None:
    daemon.routes["POST /v1/records"] = lambda request: {"got": request.body, "query": request.query}
    answer = client.request("POST", "/v1/records", {"a": "é"}, query={"n": 1, "x": "a&b", "none": None})
    assert answer == {"got": {"a": "é"}, "query": {"n": "1", "x": "a&b"}}
    assert "authorization" not in daemon.requests[0].headers


def test_the_home_is_found_in_the_environment(home: Home, daemon: Daemon) -> None:
    daemon.routes["GET /health"] = {"status": "ok"}
    assert Client.locate(None, {"SPL_HOME": str(home.path)}).request("GET", "/health") == {"status": "ok"}


def test_a_url_names_a_daemon_over_tcp_and_the_token_is_the_bearer(home: Home) -> None:
    daemon = Daemon({"GET /health": {"status": "ok"}})
    host, port = daemon.start(("127.0.0.1", 0))
    try:
        environ = {"SPL_URL": f"http://{host}:{port}/", "SPL_TOKEN": "spl_x", "SPL_HOME": str(home.path)}
        client = Client.locate(None, environ)
        assert client.request("GET", "/health") == {"status": "ok"}
        assert daemon.requests[0].headers["authorization"] == "Bearer spl_x"
        assert client.name == f"http://{host}:{port}"
    finally:
        daemon.stop()


def test_the_flag_wins_over_the_url(home: Home, daemon: Daemon) -> None:
    daemon.routes["GET /health"] = {"status": "ok"}
    client = Client.locate(str(home.path), {"SPL_URL": "http://127.0.0.1:1", "SPL_TOKEN": "x"})
    assert client.request("GET", "/health") == {"status": "ok"}
    assert "authorization" not in daemon.requests[0].headers


@pytest.mark.parametrize(
    "url",
    ["https://h:1", "h:1", "http://", "http://u:hunter2@h:1", "http://h:x", "http://h:1/v1", "http://["],
)
def test_a_url_of_another_form_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(SettingsInvalid, match="SPL_URL") as refused:
        Client.locate(None, {"SPL_URL": url})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("token", ["hunter2\r\nX: y", "hunter2 ", "huntér2", ""])
def test_a_token_that_cannot_stand_in_a_header_is_refused_and_not_quoted(token: str) -> None:
    with pytest.raises(SettingsInvalid, match="SPL_TOKEN") as refused:
        Client.locate(None, {"SPL_URL": "http://h:1", "SPL_TOKEN": token})
    assert "hunt" not in str(refused.value)


def test_a_bearer_stands_in_no_error() -> None:
    client = Client(("127.0.0.1", 1), bearer="hunter2")
    with pytest.raises(DaemonUnreachable) as refused:
        client.request("GET", "/health")
    assert "hunter2" not in repr((refused.value, refused.value.fields, client))


@pytest.mark.parametrize("kind", [IngestFailed, IsolationUnavailable, BodyTooLarge, errors.Internal])
def test_an_error_answer_is_raised_as_the_error_it_is(
    client: Client, daemon: Daemon, kind: type[SplError]
) -> None:
    daemon.routes["GET /x"] = error(kind.status, kind.code, "what failed", layer="network")
    with pytest.raises(SplError) as raised:
        client.request("GET", "/x")
    assert type(raised.value) is kind
    assert raised.value.message == "what failed"
    assert raised.value.fields["layer"] == "network"


def test_an_error_with_a_code_from_elsewhere_keeps_its_message_and_code(
    client: Client, daemon: Daemon
) -> None:
    daemon.routes["GET /x"] = error(418, "TEAPOT", "short and stout")
    with pytest.raises(SplError, match=r"short and stout \(TEAPOT\)") as raised:
        client.request("GET", "/x")
    assert type(raised.value) is SplError


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"", b"\xff", b"[" * 100_000])
def test_an_answer_that_is_no_json_object_is_no_daemon(client: Client, daemon: Daemon, body: bytes) -> None:
    daemon.routes["GET /x"] = body
    with pytest.raises(DaemonUnreachable, match="is no daemon: status 200"):
        client.request("GET", "/x")


def test_without_a_daemon_the_socket_is_named(home: Home) -> None:
    with pytest.raises(DaemonUnreachable, match=r"no daemon answers at .*/run/spl\.sock: No such file"):
        Client.locate(str(home.path), {}).request("GET", "/health")


def test_a_home_that_is_not_there_has_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachable, match="there is no home"):
        Client.locate(str(tmp_path / "home"), {})


def test_a_home_open_to_others_is_not_talked_to(home: Home) -> None:
    home.path.chmod(0o755)
    with pytest.raises(HomeUnsafe, match="mode is 0755"):
        Client.locate(str(home.path), {})


def _ignore(value: object) -> None:
    pass


def serve_once(path: str, talk: Callable[[socket.socket], None]) -> threading.Thread:
    """Accept one connection on a unix socket and hand it to `talk`, in a thread."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def run() -> None:
        with listener, listener.accept()[0] as connection:
            talk(connection)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_daemon_that_does_not_answer_in_time_is_unreachable(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    over = threading.Event()
    thread = serve_once(path, lambda connection: _ignore(over.wait()))
    with pytest.raises(DaemonUnreachable, match="timed out"):
        Client(path, timeout=0.05).request("GET", "/health")
    over.set()
    thread.join()


def test_what_was_asked_of_a_daemon_that_does_not_answer_may_be_done_and_the_error_says_so(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "s")
    over = threading.Event()
    thread = serve_once(path, lambda connection: _ignore(over.wait()))
    with pytest.raises(DaemonUnreachable, match="did not answer POST /v1/work/loop: timed out") as refused:
        Client(path, timeout=0.05).request("POST", "/v1/work/loop", {})
    over.set()
    thread.join()
    assert "may have been done" in str(refused.value.fields["remedy"])


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/watch"])
def test_an_answer_without_an_end_is_given_up(
    client: Client, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("spl.client.MOST_BYTES", 1000)
    daemon.routes[f"GET {path}"] = b"x" * 2000
    with pytest.raises(DaemonUnreachable, match="does not end"):
        list(client.watch(path)) if path == "/v1/watch" else client.request("GET", path)


def test_an_event_or_a_refusal_without_an_end_is_given_up(
    tmp_path: Path, client: Client, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spl.client.MOST_BYTES", 1000)
    daemon.routes["GET /v1/watch"] = b"data: xxxxxxxxx\n" * 200
    with pytest.raises(DaemonUnreachable, match="its event does not end"):
        list(client.watch("/v1/watch"))

    def talk(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 503 X\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000)

    path = str(tmp_path / "s")
    thread = serve_once(path, talk)
    with pytest.raises(DaemonUnreachable, match="its answer does not end"):
        list(Client(path).watch("/v1/watch"))
    thread.join()


def test_a_long_line_of_a_stream_is_looked_through_once() -> None:
    whole = b"data: " + b"x" * 300_000
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    assert [data for _, _, data in _events(iter([*pieces, b"\r", b"\n\r\n"]))] == ["x" * 300_000]


def test_a_search_and_a_preview_do_nothing_that_could_have_been_done(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    over = threading.Event()
    thread = serve_once(path, lambda connection: _ignore(over.wait()))
    with pytest.raises(DaemonUnreachable, match="no daemon answers at") as refused:
        Client(path, timeout=0.05).request("POST", "/v1/work/loop/preview", {})
    over.set()
    thread.join()
    assert "it listens and does not answer" in str(refused.value.fields["remedy"])


def test_an_answer_that_comes_a_byte_at_a_time_is_given_up(
    client: Client, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spl.client._LONGEST", 0)
    daemon.routes["GET /v1/runs"] = {"object": "list", "data": [], "has_more": False}
    with pytest.raises(DaemonUnreachable, match="does not end"):
        client.request("GET", "/v1/runs")


@pytest.mark.parametrize(("status", "document"), [(200, {}), (404, {"detail": "Not Found"})])
def test_json_that_is_none_of_a_daemons_is_no_daemons(
    tmp_path: Path, status: int, document: dict[str, str]
) -> None:
    body = json.dumps(document)

    def talk(connection: socket.socket) -> None:
        connection.recv(1000)
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(f"{head}{body}".encode())

    path = str(tmp_path / "s")
    thread = serve_once(path, talk)
    with pytest.raises(DaemonUnreachable, match="is no daemon"):
        Client(path).request("GET", "/v1/engine/health")
    thread.join()


def test_a_stream_that_is_a_document_is_no_daemons(client: Client, daemon: Daemon) -> None:
    daemon.routes["GET /v1/watch"] = {"object": "list"}
    with pytest.raises(DaemonUnreachable, match="it gives no events"):
        list(client.watch("/v1/watch"))


def test_an_empty_name_is_no_path(client: Client) -> None:
    with pytest.raises(NotFound, match="an empty name names nothing"):
        segment("")


def test_a_daemon_that_hangs_up_is_unreachable(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    thread = serve_once(path, lambda connection: None)
    with pytest.raises(DaemonUnreachable, match=path):
        Client(path).request("GET", "/health")
    thread.join()


def test_a_refusal_that_comes_before_the_whole_body_was_sent_is_read(tmp_path: Path) -> None:
    document = json.dumps(error(413, "BODY_TOO_LARGE", "too large")).encode()

    def refuse(connection: socket.socket) -> None:
        connection.recv(100)
        head = b"HTTP/1.1 413 No\r\ncontent-length: %d\r\n\r\n" % len(document)
        connection.sendall(head + document)

    path = str(tmp_path / "s")
    thread = serve_once(path, refuse)
    with pytest.raises(BodyTooLarge, match="too large"):
        Client(path).request("POST", "/v1/records", {"text": "x" * 5_000_000})
    thread.join()


def listing(rows: int) -> Callable[[Request], Any]:
    def page(request: Request) -> Any:
        since, limit = int(request.query.get("since", 0)), int(request.query["limit"])
        data = [{"sequence": n} for n in range(since + 1, min(rows, since + limit) + 1)]
        return {"object": "list", "data": data, "has_more": since + limit < rows}

    return page


@pytest.mark.parametrize(
    ("since", "limit", "expected", "requests"),
    [(None, None, range(1, 2502), 3), (2400, None, range(2401, 2502), 1), (None, 1001, range(1, 1002), 2),
     (None, 5, range(1, 6), 1), (9000, None, range(0), 1)],
)  # fmt: skip
def test_a_listing_is_followed_to_its_end_or_its_limit(
    client: Client, daemon: Daemon, since: int | None, limit: int | None, expected: range, requests: int
) -> None:
    daemon.routes["GET /rows"] = listing(2501)
    pages = list(client.pages("/rows", since=since, limit=limit))
    assert [row["sequence"] for page in pages for row in page["data"]] == list(expected)
    assert len(daemon.requests) == requests


@pytest.mark.parametrize(
    ("text", "quoted"), [("th_a.b", "th_a.b"), ("a/b", "a%2Fb"), ("?#", "%3F%23"), ("\udcff", "%FF")]
)
def test_text_stays_one_segment_of_a_path(text: str, quoted: str) -> None:
    assert segment(text) == quoted


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b'event: a\nid: 7\ndata: {"n":1}\n\n', [("a", 7, {"n": 1})]),
        (b'\xef\xbb\xbfevent:a\rid:7\rdata:{"n":1}\r\r', [("a", 7, {"n": 1})]),
        (b'event: a\r\ndata: {"n":\r\ndata: 1}\r\n\r\n', [("a", None, {"n": 1})]),
        (b": a comment\nretry: 9\nunknown\ndata: {}\n\n", [("message", None, {})]),
        # An id holds for what follows, and none is one that is empty or holds a NUL.
        (
            b"id: 7\ndata: {}\n\nid: 8\n\ndata: {}\n\nid: 9\0\ndata: {}\n\nid\ndata: {}\n\n",
            [("message", 7, {}), ("message", 8, {}), ("message", 8, {}), ("message", None, {})],
        ),
        # An event without data is none, and so is one that did not come whole; a name is for one event alone.
        (b"event: a\n\ndata: {}\n\nevent: b\ndata: {}\n", [("message", None, {})]),
        ('data: {"a":"\u2028é"}\n\n'.encode(), [("message", None, {"a": "\u2028é"})]),
    ],
)
def test_an_event_stream_is_read_as_the_standard_says(
    client: Client, daemon: Daemon, stream: bytes, events: list[Any]
) -> None:
    daemon.routes["GET /v1/watch"] = stream
    assert list(client.watch("/v1/watch")) == events


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_event_stream_may_come_in_any_pieces(size: int) -> None:
    said = b'event: a\r\nid: 7\rdata: {"n":\ndata: 1}\r\n\r\ndata: {}\r\r\n'
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    assert list(_events(pieces)) == [("a", "7", '{"n":\n1}'), ("message", "7", "{}")]


def test_a_stream_is_asked_for_from_a_position(client: Client, daemon: Daemon) -> None:
    daemon.routes["GET /v1/watch"] = b""
    assert list(client.watch("/v1/watch", position=0)) == []
    assert daemon.requests[0].headers["last-event-id"] == "0"


def test_a_stream_may_end_with_its_connection(tmp_path: Path) -> None:
    def tell(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Connection: close\r\n\r\nid: 7\ndata: {}\n\n"
        )

    path = str(tmp_path / "s")
    thread = serve_once(path, tell)
    assert list(Client(path).watch("/v1/watch")) == [("message", 7, {})]
    thread.join()


def test_a_stream_that_is_refused_raises_the_refusal(client: Client, daemon: Daemon) -> None:
    daemon.routes["GET /v1/watch"] = error(422, "INVALID_BODY", "no such position")
    with pytest.raises(InvalidBody, match="no such position"):
        list(client.watch("/v1/watch"))


def test_events_that_are_no_daemons_are_no_daemons(client: Client, daemon: Daemon) -> None:
    daemon.routes["GET /v1/watch"] = b"data: hello\n\n"
    with pytest.raises(DaemonUnreachable, match="no daemon"):
        list(client.watch("/v1/watch"))
