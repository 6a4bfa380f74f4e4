from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spl.api import operator
from spl.api.operator import OperatorApi
from spl.api.requests import LONG
from spl.kernel import names
from tests.api.served import LAYER, TOKEN, Served, serve
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MEMBERS,
    MIA,
    NED,
    NOTE,
    OPERATOR,
    TRANSPORT,
    instance,
    says,
)

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.principals import Principal
    from spl.records.record import Draft, Record
    from spl.records.store import Appended
    from tests.api.served import Answer

CONFIG_BODY = {"kind": names.CONFIG, "topic": TRANSPORT, "transport": "sandboxed"}
CORE_KINDS = [
    names.LOOP,
    names.ISOLATION,
    names.TURN,
    names.TOOL_CALL,
    names.TOOL_VERDICT,
    names.TOOL_RESULT,
    names.PLAN,
    names.REPORT,
    names.OUTCOME,
    names.REFUSAL,
    "core.work.note.v1",
    "core.work.observation.v1",
    names.MEMBER,
    names.TOKEN,
    "core.engine.tier.v2",
    "core.engine.config.v2",
    "core.made.up.v1",
]


def record(**fields: object) -> dict[str, Any]:
    return {"thread": "th_x", "actor": OPERATOR, "act": "KNOW", "body": {"a": 1}, **fields}


def config(**fields: object) -> dict[str, Any]:
    body = {**CONFIG_BODY, **fields}
    return record(thread=names.CONFIG_THREAD, actor=names.ENGINE, act="LEARN", body=body)


def without(document: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != field}


async def refused(served: Served, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Give the refusal of a request that must write nothing, and start nothing."""
    before = await served.here.store.count()
    answer = await served.ask(method, path, body)
    assert await served.here.store.count() == before
    assert served.here.kernel.live == {}
    return answer.refusal


# --- records ---


def test_a_record_is_written_once_and_read_back_as_it_stands(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        said = record(clock=7, body={"é": [1, 2.5, None]}, judged_by="someone")
        first = await served.ask("POST", "/v1/records", said)
        again = await served.ask("POST", "/v1/records", said)
        assert (first.status, again.status) == (201, 200)
        assert first.json == again.json
        assert said.items() <= first.json.items()
        assert (first.json["object"], first.json["sequence"]) == ("record", 1)
        assert (await served.ask("GET", f"/v1/records/{first.json['id']}")).json == first.json
        assert (await served.ask("GET", "/v1/threads/th_x/records")).json["data"] == [first.json]
        assert (await served.ask("GET", "/v1/threads")).json["data"] == [
            {"object": "thread", "thread": "th_x", "records": 1, "first_sequence": 1, "last_sequence": 1}
        ]

    serve(tmp_path, talk)


def test_records_are_listed_by_what_is_asked_in_pages(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        for number in range(4):
            body = {"kind": f"my.own.kind.v{number % 2}"}
            said = record(thread=f"th_{number // 2}", actor=(OPERATOR, MEMBER)[number % 2], body=body)
            assert (await served.ask("POST", "/v1/records", said)).status == 201

        async def listed(query: str) -> tuple[list[int], bool]:
            said = (await served.ask("GET", f"/v1/records{query}")).json
            return [each["sequence"] for each in said["data"]], said["has_more"]

        assert await listed("") == ([1, 2, 3, 4], False)
        assert await listed("?limit=3") == ([1, 2, 3], True)
        assert await listed("?limit=3&since=3") == ([4], False)
        assert await listed("?thread=th_1") == ([3, 4], False)
        assert await listed(f"?actor={MEMBER}&kind=my.own.kind.v1") == ([2, 4], False)
        assert await listed("?thread=th_none") == ([], False)

    serve(tmp_path, talk)


@pytest.mark.claim("K5")
@pytest.mark.parametrize("kind", CORE_KINDS)
def test_no_core_kind_but_configuration_is_taken_from_anyone(tmp_path: Path, kind: str) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        served.here.kernel.live.clear()
        for thread in ("th_x", run.terms.thread, names.CONFIG_THREAD, names.ISOLATION_THREAD):
            for actor in (OPERATOR, MEMBER, names.ENGINE):
                said = record(thread=thread, actor=actor, body={"kind": kind})
                assert await refused(served, "POST", "/v1/records", said) == (403, "KIND_RESERVED")

    serve(tmp_path, talk)


@pytest.mark.claim("K5", "T2")
def test_configuration_is_taken_as_the_engine_on_its_thread_and_is_in_force(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        for said in (
            config() | {"actor": OPERATOR},
            config() | {"thread": "th_x"},
            config() | {"actor": MEMBER, "thread": "th_x"},
        ):
            assert await refused(served, "POST", "/v1/records", said) == (403, "KIND_RESERVED")
        assert (await served.ask("GET", "/v1/engine/health")).json["work_loop"]["transport"] == "in_process"
        assert (await served.ask("POST", "/v1/records", config())).status == 201
        assert (await served.ask("GET", "/v1/engine/health")).json["work_loop"]["transport"] == "sandboxed"
        assert served.here.kernel.config.transport == "sandboxed"

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        (config(topic=None), (400, "MISSING_FIELD")),
        (config() | {"body": {"kind": names.CONFIG}}, (400, "MISSING_FIELD")),
        (config() | {"body": without(CONFIG_BODY, "transport")}, (400, "MISSING_FIELD")),
        (config(topic="no such"), (422, "INVALID_BODY")),
        (config(transport=7), (422, "INVALID_BODY")),
        (config(other=1), (422, "INVALID_BODY")),
        *[(without(record(), field), (400, "MISSING_FIELD")) for field in ("thread", "actor", "act", "body")],
        ({"wrong": 1}, (400, "MISSING_FIELD")),
        (record(other=1), (422, "INVALID_BODY")),
        (record(kind="my.own.kind.v1"), (422, "INVALID_BODY")),
        (record(thread=7), (422, "INVALID_BODY")),
        (record(thread=None), (422, "INVALID_BODY")),
        (record(body=[]), (422, "INVALID_BODY")),
        (record(body="{}"), (422, "INVALID_BODY")),
        (record(clock="7"), (422, "INVALID_BODY")),
        (record(clock=7.0), (422, "INVALID_BODY")),
        (record(clock=True), (422, "INVALID_BODY")),
        (record(parents="0" * 64), (422, "INVALID_BODY")),
        (record(parents=[1]), (422, "INVALID_BODY")),
        (record(thread="a/b"), (400, "INGEST_FAILED")),
        (record(thread="a\0b"), (400, "INGEST_FAILED")),
        (record(thread=""), (400, "INGEST_FAILED")),
        (record(thread="x" * 201), (400, "INGEST_FAILED")),
        (record(actor="op"), (400, "INGEST_FAILED")),
        (record(act="SAY"), (400, "INGEST_FAILED")),
        (record(data_type="TEXT"), (400, "INGEST_FAILED")),
        (record(clock=-1), (400, "INGEST_FAILED")),
        (record(clock=2**63), (400, "INGEST_FAILED")),
        (record(clock=10**300), (400, "INGEST_FAILED")),
        (record(parents=["x"]), (400, "INGEST_FAILED")),
        (record(body={"kind": "nokind"}), (400, "INGEST_FAILED")),
        (record(body={"kind": 7}), (400, "INGEST_FAILED")),
        (record(actor=names.ENGINE), (403, "ACTOR_NOT_COVERED")),
    ],
)
def test_a_record_that_cannot_be_is_refused_and_not_written(
    tmp_path: Path, said: dict[str, Any], refusal: tuple[int, str]
) -> None:
    async def talk(served: Served) -> None:
        assert await refused(served, "POST", "/v1/records", said) == refusal

    serve(tmp_path, talk)


def test_a_clock_that_is_used_or_past_is_refused(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        assert (await served.ask("POST", "/v1/records", record(clock=7))).status == 201
        for clock, name in ((7, "DuplicateClock"), (6, "ClockNotRising"), (0, "ClockNotRising")):
            answer = await served.ask("POST", "/v1/records", record(clock=clock, body={"b": clock}))
            assert answer.refusal == (400, "INGEST_FAILED")
            assert name in answer.json["message"]
        assert await served.here.store.count() == 1

    serve(tmp_path, talk)


# --- bodies, queries, routes ---

POSTS = ["/v1/records", "/v1/work/loop"]
MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"7",
    b"null",
    b'{"goal": "x"} {}',
    b"{'goal': 'x'}",
    b'{"goal": "x", "goal": "y"}',
    b'{"goal": NaN}',
    b'{"goal": 1e999}',
    b'{"goal": "\\ud800"}',
    b'{"goal": "\xff"}',
    b'\xef\xbb\xbf{"goal": "x"}',
    b"[" * 10_000,
    b'{"goal":' * 200 + b"1" + b"}" * 200,
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: ascii(body)[:30])
@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_no_json_object_is_refused(tmp_path: Path, path: str, body: bytes) -> None:
    async def talk(served: Served) -> None:
        assert await refused(served, "POST", path, body) == (422, "INVALID_BODY")

    serve(tmp_path, talk)


@pytest.mark.parametrize("path", POSTS)
def test_a_body_over_the_limit_is_refused(tmp_path: Path, path: str) -> None:
    async def talk(served: Served) -> None:
        announced = await served.raw(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 20001\r\n\r\n".encode(), on="operator"
        )
        chunk = b"4e21\r\n" + b"x" * 20_001 + b"\r\n0\r\n\r\n"
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        for answer in (announced, await served.raw(head + chunk, on="operator")):
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b'"BODY_TOO_LARGE"' in answer
        assert await served.here.store.count() == 0

    serve(tmp_path, talk)


@pytest.mark.parametrize("body", [{"a": [[]]}, {"kind": "my.own.kind.v1"}])
def test_a_body_nested_deeper_than_the_log_takes_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    deep: Any = body
    for _ in range(58):
        deep = {"in": deep}

    async def talk(served: Served) -> None:
        assert (await refused(served, "POST", "/v1/records", record(body=deep)))[0] in (400, 422)

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/records?limit=0",
        "/v1/records?limit=1001",
        "/v1/records?limit=-1",
        "/v1/records?limit=x",
        "/v1/records?limit=",
        "/v1/records?limit=1.0",
        "/v1/records?limit=%D9%A1",
        "/v1/records?limit=99999999999999999999999",
        "/v1/records?since=-1",
        "/v1/records?since=9223372036854775808",
        "/v1/records?limit=1&limit=2",
        "/v1/records?lim=1",
        "/v1/records?thread=a&thread=b",
        "/v1/threads?limit=1001",
        "/v1/threads?thread=x",
        "/v1/threads/th_x/records?kind=x",
        "/v1/threads/th_x/records?limit=0",
        "/v1/runs?states=done",
        "/v1/runs?limit=1001",
        "/v1/runs/th_x?x=1",
        "/v1/engine/health?x=1",
        f"/v1/records/{'0' * 64}?x=1",
    ],
)
def test_a_query_a_route_does_not_know_is_refused(tmp_path: Path, path: str) -> None:
    async def talk(served: Served) -> None:
        assert await refused(served, "GET", path) == (422, "INVALID_BODY")

    serve(tmp_path, talk)


@pytest.mark.parametrize("path", [f"{path}?x=1" for path in POSTS])
def test_a_write_takes_no_query(tmp_path: Path, path: str) -> None:
    async def talk(served: Served) -> None:
        said = {"goal": "x"} if "loop" in path else record()
        assert await refused(served, "POST", path, said) == (422, "INVALID_BODY")

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/health/",
        "/v1/records/",
        "/v1/runs/",
        "/v1/threads/th_x",
        "/v1/threads/a%2Fb/records",
        "/v2/records",
        "//v1/records",
        "/v1/worker/run",
        "/v1/records/x",
        "/v1/records/" + "0" * 64,
        "/v1/records/" + "0" * 64 + "/x",
        "/v1/records/%00",
    ],
)
def test_what_is_not_there_is_not_found(tmp_path: Path, path: str) -> None:
    async def talk(served: Served) -> None:
        assert await refused(served, "GET", path) == (404, "NOT_FOUND")

    serve(tmp_path, talk)


@pytest.mark.parametrize("thread", ["th_none", "a%00b", "%FF", "%ED%A0%80", "x" * 3000])
def test_a_run_that_is_not_there_is_not_found(tmp_path: Path, thread: str) -> None:
    async def talk(served: Served) -> None:
        assert await refused(served, "GET", f"/v1/runs/{thread}") == (404, "RUN_NOT_FOUND")
        assert (await served.ask("GET", f"/v1/threads/{thread}/records")).json["data"] == []

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/records", {"GET", "HEAD", "POST"}),
        ("PUT", "/v1/records/query", {"POST"}),
        ("GET", "/v1/work/loop", {"POST"}),
        ("POST", "/v1/runs", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("OPTIONS", "/v1/threads", {"GET", "HEAD"}),
        ("FOO", "/v1/engine/health", {"GET", "HEAD"}),
    ],
)
def test_another_method_is_refused_with_those_that_are_allowed(
    tmp_path: Path, method: str, path: str, allowed: set[str]
) -> None:
    async def talk(served: Served) -> None:
        answer = await served.ask(method, path)
        assert answer.refusal == (405, "METHOD_NOT_ALLOWED")
        assert set(answer.headers["allow"].split(", ")) == allowed

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/records/search"),
        ("PUT", "/v1/records/" + "0" * 64),
        ("POST", "/v1/members/adopt"),
        ("GET", "/v1/members/mia"),
        ("POST", "/v1/members/mia/grants"),
        ("PATCH", "/v1/runs/th_x"),
        ("OPTIONS", "/v1/profiles/worker"),
    ],
)
def test_another_method_at_a_name_finds_nothing_since_nobody_looks_for_it(
    tmp_path: Path, method: str, path: str
) -> None:
    async def talk(served: Served) -> None:
        answer = await served.ask(method, path, {})
        assert answer.refusal == (404, "NOT_FOUND")
        assert "allow" not in answer.headers
        assert (await served.ask(method, path, {}, bearer=None)).refusal == (401, "UNAUTHENTICATED")

    serve(tmp_path, talk)


# --- runs ---


async def ended(served: Served, answer: Answer) -> dict[str, Any]:
    """Give the row of a started run once its outcome is there."""
    thread = answer.json["thread"]
    written = served.here.written(names.OUTCOME)
    if not await served.here.bodies(thread, names.OUTCOME):
        await written
    row: dict[str, Any] = (await served.ask("GET", f"/v1/runs/{thread}")).json
    return row


def test_a_run_is_started_goes_to_its_end_and_is_listed(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        started = await served.ask(
            "POST", "/v1/work/loop", {"goal": "a goal", "max_turns": 3, "budget_usd": 0.05}
        )
        assert started.status == 201
        asked = {
            "goal": "a goal",
            "actor": OPERATOR,
            "transport": "in_process",
            "max_turns": 3,
            "budget_usd": 0.05,
        }
        assert asked.items() <= started.json.items()
        row = await ended(served, started)
        assert (row["state"], row["outcome"], row["tool_calls_ok"]) == ("done", "completed", 1)
        assert set(row) == set(started.json)
        listed = (await served.ask("GET", f"/v1/runs?state=done&actor={OPERATOR}")).json["data"]
        assert [each["thread"] for each in listed] == [row["thread"]]
        assert (await served.ask("GET", "/v1/runs?state=running")).json["data"] == []

    serve(tmp_path, talk, NOTE, says("Done."))


@pytest.mark.claim("T1", "T3", "I12")
def test_a_member_with_a_typo_stays_sandboxed_and_is_refused_by_layer_where_none_can_be(
    tmp_path: Path,
) -> None:
    async def talk(served: Served) -> None:
        assert (
            await served.ask("POST", "/v1/records", config(topic=MEMBERS, transport="in_proces"))
        ).status == 201
        before = await served.here.store.count()
        answer = await served.ask("POST", "/v1/work/loop", {"goal": "x", "actor": MEMBER})
        assert answer.refusal == (503, "ISOLATION_UNAVAILABLE")
        assert LAYER.items() <= answer.json.items()
        assert await served.here.store.count() == before + 1
        assert (await served.ask("GET", "/v1/runs")).json["data"] == []

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"goal": ...}, (400, "MISSING_FIELD")),
        ({"goal": ""}, (422, "INVALID_BODY")),
        ({"goal": " \n\t\u2003"}, (422, "INVALID_BODY")),
        ({"goal": None}, (422, "INVALID_BODY")),
        ({"goal": ["x"]}, (422, "INVALID_BODY")),
        ({"goals": "x"}, (422, "INVALID_BODY")),
        ({"transport": "in_process"}, (422, "INVALID_BODY")),
        ({"tier": "operator"}, (422, "INVALID_BODY")),
        ({"profile": "none"}, (422, "INVALID_BODY")),
        ({"max_turns": 0}, (422, "INVALID_BODY")),
        ({"max_turns": "3"}, (422, "INVALID_BODY")),
        ({"max_turns": 3.0}, (422, "INVALID_BODY")),
        ({"max_turns": True}, (422, "INVALID_BODY")),
        ({"max_turns": 10**300}, (422, "INVALID_BODY")),
        ({"budget_usd": -1}, (422, "INVALID_BODY")),
        ({"budget_usd": "0.05"}, (422, "INVALID_BODY")),
        ({"budget_usd": True}, (422, "INVALID_BODY")),
        ({"budget_usd": 10**308}, (422, "INVALID_BODY")),
        ({"budget_usd": int("9" * 309)}, (422, "INVALID_BODY")),
        ({"wall_clock_secs": 0}, (422, "INVALID_BODY")),
        ({"wall_clock_secs": 1e9}, (422, "INVALID_BODY")),
        ({"actor": ""}, (422, "INVALID_BODY")),
        ({"actor": "mia"}, (422, "INVALID_BODY")),
        ({"actor": names.ENGINE}, (422, "INVALID_BODY")),
        ({"actor": "did:sync:user:a/b"}, (422, "INVALID_BODY")),
        ({"model": ""}, (422, "INVALID_BODY")),
        ({"model": "a\x7fb"}, (422, "INVALID_BODY")),
        ({"tools": ["launch_rocket"]}, (422, "INVALID_BODY")),
        ({"tools": ["bash"], "actor": MEMBER}, (422, "INVALID_BODY")),
        ({"tools": "record_note"}, (422, "INVALID_BODY")),
        ({"tools": [""]}, (422, "INVALID_BODY")),
        ({"tools": ["record_note"] * 101}, (422, "INVALID_BODY")),
        ({"forbidden_tools": None}, (422, "INVALID_BODY")),
        ({"forbidden_tools": [1]}, (422, "INVALID_BODY")),
    ],
)
def test_a_start_that_cannot_be_is_refused_and_starts_nothing(
    tmp_path: Path, fields: dict[str, Any], refusal: tuple[int, str]
) -> None:
    said = {name: value for name, value in {"goal": "x", **fields}.items() if value is not ...}

    async def talk(served: Served) -> None:
        assert await refused(served, "POST", "/v1/work/loop", said) == refusal

    serve(tmp_path, talk, says("Done."))


def test_a_fault_of_our_own_is_answered_without_its_text_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(served: Served) -> None:
        async def broken(**_: object) -> None:
            raise RuntimeError("secret detail")

        served.here.kernel.rows.page = broken  # type: ignore[method-assign, assignment]
        answer = await served.ask("GET", "/v1/runs")
        assert answer.refusal == (500, "INTERNAL")
        assert b"secret detail" not in answer.body
        assert "secret detail" in caplog.text
        assert (await served.ask("GET", "/health")).status == 200

    serve(tmp_path, talk)


def test_a_log_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        await served.here.store.close()
        for method, path, body in (
            ("POST", "/v1/records", record()),
            ("GET", "/v1/records", None),
            ("POST", "/v1/work/loop", {"goal": "x"}),
        ):
            assert (await served.ask(method, path, body)).refusal == (503, "STORE_UNAVAILABLE")

    serve(tmp_path, talk)


def test_nothing_of_a_body_is_read_for_someone_who_is_not_known(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        # The body that is announced never comes; an answer that waited for it would not either.
        head = "POST /v1/records HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 1000\r\n\r\n"
        assert (await served.raw(head.encode(), on="operator")).startswith(b"HTTP/1.1 401 ")
        for framing in ("Content-Length: 1000", "Transfer-Encoding: chunked"):
            head = f"GET /health HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n"
            assert (await served.raw(head.encode(), on="operator")).startswith(b"HTTP/1.1 413 ")

    serve(tmp_path, talk)


def test_a_member_has_so_many_requests_under_way_and_no_more_whatever_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "_MOST_EACH", 3)

    async def talk(served: Served) -> None:
        mia, ned = await served.member("mia"), await served.member("ned")
        body = record(actor="did:sync:user:mia", thread="th_mia")
        held = [await served.hold("/v1/records", body, mia) for _ in range(3)]
        refused = await served.ask("GET", "/v1/threads", bearer=mia)
        assert refused.refusal == (429, "REQUESTS_EXCEEDED")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        for bearer in (ned, TOKEN):
            assert (await served.ask("GET", "/v1/threads", bearer=bearer)).status == 200
        for send in held:
            assert (await send()).startswith(b"HTTP/1.1 201 ")
        assert (await served.ask("GET", "/v1/threads", bearer=mia)).status == 200

    serve(tmp_path, talk)


def test_what_members_say_at_length_is_worked_on_in_turn_and_what_the_operator_says_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(served: Served) -> None:
        mia, ned = await served.member("mia"), await served.member("ned")
        begun: list[str] = []
        opened, write = asyncio.Event(), served.here.kernel.write

        async def gated(principal: Principal, draft: Draft) -> Appended:
            begun.append(draft.thread)
            if draft.thread == "th_mia":
                await opened.wait()
            return await write(principal, draft)

        monkeypatch.setattr(served.here.kernel, "write", gated)

        async def say(who: str, bearer: str, size: int, thread: str) -> int:
            said = record(thread=thread, actor=f"did:sync:user:{who}", body={"text": "x" * size})
            return (await served.ask("POST", "/v1/records", said, bearer=bearer)).status

        first = asyncio.create_task(say("mia", mia, LONG, "th_mia"))
        while not begun:  # noqa: ASYNC110 - the listener's turn, not a wait
            await asyncio.sleep(0)
        second = asyncio.create_task(say("ned", ned, LONG, "th_ned"))
        for number in range(5):
            assert await say("ned", ned, 1, f"th_short_{number}") == 201
            assert await say("operator", TOKEN, LONG, f"th_operators_{number}") == 201
        assert "th_ned" not in begun
        opened.set()
        assert list(await asyncio.gather(first, second)) == [201, 201]

    serve(tmp_path, talk)


def test_a_state_that_no_run_can_have_is_refused(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        assert (await served.ask("GET", "/v1/runs?state=bogus")).refusal == (422, "INVALID_BODY")
        assert (await served.ask("GET", "/v1/runs?state=stopped")).json["data"] == []

    serve(tmp_path, talk)


def test_a_tool_that_does_not_exist_cannot_be_forbidden(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        body = {"goal": "a goal", "forbidden_tools": ["record_nose"]}
        assert (await served.ask("POST", "/v1/work/loop", body)).refusal == (422, "INVALID_BODY")
        assert await served.here.store.count() == 0

    serve(tmp_path, talk)


def test_a_page_of_large_records_ends_early_and_is_read_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spl.api.answers.PAGE_BYTES", 30_000)

    async def talk(served: Served) -> None:
        body = {"kind": "test.large.note.v1", "text": "x" * 10_000}
        record = {"thread": "th_large", "actor": OPERATOR, "act": "KNOW", "body": body}
        written = [(await served.ask("POST", "/v1/records", record)).json["id"] for _ in range(7)]
        read: list[str] = []
        since, pages, more = 0, 0, True
        while more:
            page = (await served.ask("GET", f"/v1/threads/th_large/records?since={since}")).json
            read += [each["id"] for each in page["data"]]
            since, pages, more = page["data"][-1]["sequence"], pages + 1, page["has_more"]
        assert (read, pages) == (written, 3)

    serve(tmp_path, talk)


def test_a_page_of_runs_with_long_goals_ends_early_and_is_read_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spl.api.operator.PAGE_BYTES", 30_000)

    async def talk(served: Served) -> None:
        opened = [await served.here.open(goal="x" * 10_000) for _ in range(7)]
        read: list[str] = []
        since, pages, more = 0, 0, True
        while more:
            page = (await served.ask("GET", f"/v1/runs?since={since}")).json
            read += [each["thread"] for each in page["data"]]
            since, pages, more = page["data"][-1]["sequence"], pages + 1, page["has_more"]
        assert (read, pages) == ([each.terms.thread for each in opened], 3)

    serve(tmp_path, talk)


def test_of_members_listings_one_is_made_at_a_time_and_the_operators_waits_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            going, most, opened = 0, 0, asyncio.Event()
            select = here.store.select

            async def gated(**query: Any) -> list[Record]:
                nonlocal going, most
                going += 1
                most = max(most, going)
                await opened.wait()
                try:
                    return await select(**query)
                finally:
                    going -= 1

            monkeypatch.setattr(here.store, "select", gated)
            api: Any = OperatorApi(here.kernel, *[None] * 5)  # type: ignore[arg-type]
            asked = [api._listing(whose, 0, 10, thread=None) for whose in (*[MIA, NED] * 6, ADMINISTRATOR)]
            listings = [asyncio.create_task(each) for each in asked]
            # Each has come as far as it may by the time that a task made after all of them has had its turn.
            await asyncio.create_task(asyncio.sleep(0))
            assert going == 2
            opened.set()
            assert [answer.status_code for answer in await asyncio.gather(*listings)] == [200] * 13
            assert most == 2

    asyncio.run(run())


@pytest.mark.claim("T2")
def test_no_clock_can_be_used_that_would_let_no_configuration_follow(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        body = {"kind": names.CONFIG, "topic": TRANSPORT, "transport": "sandboxed"}
        record = {"thread": names.CONFIG_THREAD, "actor": names.ENGINE, "act": "LEARN", "body": body}
        for clock in (2**63 - 1, 1_000_001):
            assert (await served.ask("POST", "/v1/records", {**record, "clock": clock})).refusal == (
                400,
                "INGEST_FAILED",
            )
        assert await served.here.store.count() == 0
        assert (await served.ask("POST", "/v1/records", {**record, "clock": 7})).status == 201
        assert (await served.ask("POST", "/v1/records", record)).json["clock"] == 8

    serve(tmp_path, talk)


# --- profiles ---


def test_profiles_are_listed_and_each_is_described(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        (tmp_path / "profiles").mkdir()
        (tmp_path / "profiles" / "own.toml").write_text("[limits")
        listing = (await served.ask("GET", "/v1/profiles")).json
        assert (listing["object"], listing["has_more"]) == ("list", False)
        rows = {row["name"]: row for row in listing["data"]}
        assert set(rows) == {"base", "own", "strict", "worker"}
        assert rows["own"]["error"]["line"] == 1
        worker = (await served.ask("GET", "/v1/profiles/worker")).json
        assert (worker["object"], worker["name"], worker["digest"]) == (
            "profile",
            "worker",
            rows["worker"]["digest"],
        )
        # On this host nobody can be confined: it comes to nothing, and says why.
        assert worker["refused"] == LAYER
        assert (await served.ask("GET", "/v1/profiles/nobody")).refusal == (404, "NOT_FOUND")
        unusable = await served.ask("GET", "/v1/profiles/own")
        assert unusable.refusal == (422, "PROFILE_INVALID")
        assert unusable.json["file"].endswith("own.toml")
        assert (await served.ask("GET", "/v1/profiles?x=1")).refusal == (422, "INVALID_BODY")

    serve(tmp_path, talk)


def test_a_profile_that_cannot_be_chosen_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        for body, refusal in (
            ({"profile": "wroker"}, (422, "PROFILE_INVALID")),
            ({"profile": "worker", "tier": "gold"}, (422, "INVALID_BODY")),
            ({"tier": "trial"}, (400, "MISSING_FIELD")),
        ):
            said = record(
                thread=names.CONFIG_THREAD,
                actor=names.ENGINE,
                act="LEARN",
                body={"kind": names.CONFIG, "topic": "work_loop_profile", **body},
            )
            assert await refused(served, "POST", "/v1/records", said) == refusal

    serve(tmp_path, talk)
