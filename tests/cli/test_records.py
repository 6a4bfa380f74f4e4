from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import IngestFailed, InvalidBody
from tests.server import error

if TYPE_CHECKING:
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
