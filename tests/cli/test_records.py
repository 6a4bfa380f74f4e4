from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import DaemonUnreachable, IngestFailed, InvalidBody, NotFound, TokenRevoked, WatchersExceeded
from tests.server import error

if TYPE_CHECKING:
    from spl.home import Home
    from tests.cli.conftest import Spl
    from tests.server import Daemon, Request

THREAD = "GET /v1/threads/th_1/records"


def record(sequence: int, **body: object) -> dict[str, Any]:
    return {"object": "record", "id": f"{sequence:064x}", "act": "KNOW", "sequence": sequence, "body": body}


RECORDS = [
    record(3, kind="core.work.note.v1", text="transport-check"),
    record(5, kind="core.work.tool_verdict.v1", decision="allow", layer="allow"),
    record(8, kind="core.work.note.v1", text="\x1b[2J\u202e"),
    record(9, anything=True),
]


@pytest.fixture
def thread(daemon: Daemon) -> Daemon:
    """Give a daemon whose pages hold two records at the most."""

    def page(request: Request) -> Any:
        limit = min(2, int(request.query["limit"]))
        left = [record for record in RECORDS if record["sequence"] > int(request.query.get("since", 0))]
        return {"object": "list", "data": left[:limit], "has_more": len(left) > limit}

    daemon.routes[THREAD] = page
    return daemon


def test_all_of_a_threads_records_are_one_listing(spl: Spl, thread: Daemon) -> None:
    listing = json.loads(spl("thread", "records", "th_1").stdout)
    assert listing == {"object": "list", "data": RECORDS, "has_more": False}
    assert len(thread.requests) == 2


@pytest.mark.parametrize(
    ("options", "sequences", "has_more"),
    [(("--since", "5"), [8, 9], False), (("--limit", "1"), [3], True), (("--limit", "3"), [3, 5, 8], True)],
)
def test_part_of_a_thread_is_listed(
    spl: Spl, thread: Daemon, options: tuple[str, ...], sequences: list[int], has_more: bool
) -> None:
    listing = json.loads(spl("thread", "records", "th_1", *options).stdout)
    assert [record["sequence"] for record in listing["data"]] == sequences
    assert listing["has_more"] is has_more


def test_the_listing_is_read_by_jq_as_the_manual_does(thread: Daemon, environ: dict[str, str]) -> None:
    query = '.data[] | select(.body.kind == "core.work.note.v1") | .body.text'
    spl = subprocess.Popen(
        [sys.executable, "-m", "spl.cli.main", "thread", "records", "th_1", "-o", "json"],
        env=environ, stdout=subprocess.PIPE,
    )  # fmt: skip
    with spl:
        ended = subprocess.run(["jq", query], stdin=spl.stdout, capture_output=True, text=True, timeout=60)
    assert json.loads(ended.stdout.splitlines()[0]) == "transport-check"


def test_a_table_shows_a_word_of_each_record_and_nothing_that_moves_the_cursor(
    spl: Spl, thread: Daemon
) -> None:
    lines = [line.split() for line in spl("thread", "records", "th_1", "-o", "table").stdout.splitlines()]
    assert lines == [
        ["sequence", "kind"],
        ["3", "core.work.note.v1", "transport-check"],
        ["5", "core.work.tool_verdict.v1", "allow"],
        ["8", "core.work.note.v1", r"\x1b[2J\u202e"],
        ["9", "KNOW"],
    ]


def test_json_reaches_the_terminal_in_ascii(spl: Spl, thread: Daemon) -> None:
    assert spl("thread", "records", "th_1").stdout.isascii()


def test_a_record_is_written_and_printed_as_the_log_holds_it(spl: Spl, daemon: Daemon) -> None:
    daemon.routes["POST /v1/records"] = lambda request: {**record(7), **request.body}
    body = {"kind": "app.note.text.v1", "text": "é"}
    ended = spl("know", "--thread", "th_1", "--actor", "did:x:y", "--act", "KNOW", "--body", json.dumps(body))
    assert ended.returncode == 0
    assert daemon.requests[0].body == {"thread": "th_1", "actor": "did:x:y", "act": "KNOW", "body": body}
    assert json.loads(ended.stdout)["sequence"] == 7


def test_a_body_that_is_not_json_is_refused_before_it_is_sent(spl: Spl, daemon: Daemon) -> None:
    ended = spl("know", "--thread", "t", "--actor", "did:x:y", "--act", "KNOW", "--body", "{oops")
    assert ended.returncode == InvalidBody.exit_status
    assert "--body is not valid JSON" in ended.stderr
    assert daemon.requests == []


def test_a_record_that_the_log_refuses_ends_with_the_refusal(spl: Spl, daemon: Daemon) -> None:
    daemon.routes["POST /v1/records"] = error(400, "INGEST_FAILED", "the act 'X' is refused")
    ended = spl("know", "--thread", "t", "--actor", "did:x:y", "--act", "X", "--body", "{}")
    assert (ended.returncode, ended.stdout) == (IngestFailed.exit_status, "")


def told(record: dict[str, Any]) -> bytes:
    """Give the event of a record."""
    data = json.dumps({"id": record["id"], "record": record})
    return f"id: {record['sequence']}\nevent: record.created\ndata: {data}\n\n".encode()


FAILED = b'event: error\ndata: {"object":"error","code":"TOKEN_REVOKED","message":"the bearer has been revoked"}\n\n'
LAGGED = b'event: error\ndata: {"object":"error","code":"lagged","message":"too slow"}\n\n'
SHUTDOWN = b'event: server_shutdown\ndata: {"retry_after_ms":1000}\n\n'
HEARTBEAT = b'id: 7\nevent: heartbeat\ndata: {"sequence":7}\n\n'


@pytest.fixture
def streams(daemon: Daemon) -> list[Any]:
    """Give the answers that one who watches th_1 is given, one after the other; to be filled by the test."""
    answers: list[Any] = []
    daemon.routes["GET /v1/threads/th_1/watch"] = lambda _: answers.pop(0)
    for record in RECORDS:
        daemon.routes[f"GET /v1/records/{record['id']}"] = record
    return answers


def test_a_thread_is_watched_across_whatever_breaks_the_stream_until_nothing_can_mend_it(
    spl: Spl, daemon: Daemon, streams: list[Any]
) -> None:
    streams += [
        told(RECORDS[0]) + told(RECORDS[1]) + HEARTBEAT + SHUTDOWN,
        error(503, "STORE_UNAVAILABLE", "the log cannot be read"),
        told(RECORDS[2]) + LAGGED,
        told(RECORDS[3]) + b"id: 10\nevent: record.created\ndata: {",
        error(429, "WATCHERS_EXCEEDED", "too many"),
        FAILED,
    ]
    ended = spl("thread", "watch", "th_1", "--since", "2", "-o", "table")
    assert ended.stdout.splitlines() == [
        "3  core.work.note.v1  transport-check",
        "5  core.work.tool_verdict.v1  allow",
        r"8  core.work.note.v1  \x1b[2J\u202e",
        "9  KNOW",
    ]
    *said, last = ended.stderr.splitlines()
    assert said == ["spl: thread watch: the stream has broken off; waiting for the daemon"] * 3
    assert (ended.returncode, last.split(": ")[1]) == (TokenRevoked.exit_status, "TOKEN_REVOKED")
    asked = [request.headers.get("last-event-id") for request in daemon.requests if "/watch" in request.path]
    assert asked == ["2", "7", "7", "8", "9", "9"]


def test_a_watch_ends_where_the_log_has_not_what_it_showed_last(
    spl: Spl, daemon: Daemon, streams: list[Any]
) -> None:
    # The log was put back from a backup, and has gone on past where the watch was: by sequences nothing is missing.
    streams += [told(RECORDS[0]) + SHUTDOWN, told(RECORDS[1]) + FAILED]
    del daemon.routes[f"GET /v1/records/{RECORDS[0]['id']}"]
    ended = spl("thread", "watch", "th_1")
    assert [json.loads(line) for line in ended.stdout.splitlines()] == RECORDS[:1]
    assert ended.returncode == NotFound.exit_status
    assert "put back from a backup; begin anew" in ended.stderr


def test_a_watched_thread_is_one_document_a_line(spl: Spl, streams: list[Any]) -> None:
    streams += [b"".join(map(told, RECORDS)) + FAILED]
    ended = spl("thread", "watch", "th_1")
    assert [json.loads(line) for line in ended.stdout.splitlines()] == RECORDS


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (error(422, "INVALID_BODY", "beyond the log"), InvalidBody.exit_status),
        (error(429, "WATCHERS_EXCEEDED", "too many"), WatchersExceeded.exit_status),
    ],
)
def test_a_watch_that_is_refused_from_the_first_is_not_tried_again(
    spl: Spl, daemon: Daemon, streams: list[Any], answer: Any, status: int
) -> None:
    streams += [answer]
    assert spl("thread", "watch", "th_1").returncode == status
    assert len(daemon.requests) == 1


def test_a_watch_without_a_daemon_says_so_at_once(spl: Spl, home: Home) -> None:
    assert spl("thread", "watch", "th_1").returncode == DaemonUnreachable.exit_status
