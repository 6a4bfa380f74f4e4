from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from spl.api.requests import LONG, read_json
from spl.api.worker import DOORS
from spl.kernel import names
from spl.kernel.outcome import Ending
from tests.api.served import LIMIT, TOKEN, Served, serve
from tests.kernel.instance import NOTE, Hanging, chained, says

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = {
    "object": "error",
    "type": "request_error",
    "code": "NOT_FOUND",
    "message": "there is nothing at this path",
}
FIVE = [(method, path.decode()) for method, path in DOORS]


@pytest.mark.claim("I8")
def test_there_are_five_doors() -> None:
    assert set(FIVE) == {
        ("GET", "/v1/worker/run"),
        ("POST", "/v1/worker/infer"),
        ("POST", "/v1/worker/propose"),
        ("POST", "/v1/worker/call"),
        ("POST", "/v1/worker/records"),
    }


@pytest.mark.claim("I8", "K1")
def test_a_run_is_worked_through_its_five_doors(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        bearer = served.entrust(run)

        async def knock(method: str, door: str, body: object = None) -> Any:
            answer = await served.ask(method, f"/v1/worker/{door}", body, bearer=bearer, on="worker")
            assert answer.status == 200
            return answer.json

        contract = await knock("GET", "run")
        reply = (await knock("POST", "infer", {"messages": contract["opening"]}))["reply"]
        call_id = reply["calls"][0]["id"]
        assert (await knock("POST", "propose", {"call_id": call_id}))["decision"] == "allow"
        assert (await knock("POST", "call", {"call_id": call_id}))["status"] == "ok"
        await knock("POST", "records", {"kind": names.REPORT, "body": {"text": "done"}})
        assert (await served.here.kinds(run.terms.thread))[2:] == [
            "turn",
            "tool_call",
            "tool_verdict",
            "note",
            "tool_result",
            "report",
        ]
        assert chained(await served.here.on(run.terms.thread))

    serve(tmp_path, talk, NOTE)


@pytest.mark.claim("I8")
def test_everything_else_is_one_constant_404_whatever_the_bearer(tmp_path: Path) -> None:
    requests = [
        *[
            (method, path)
            for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO")
            for _, path in FIVE
        ],
        ("POST", "/v1/worker/run"),
        ("get", "/v1/worker/run"),
        ("Post", "/v1/worker/infer"),
        *[("GET", path) for method, path in FIVE if method == "POST"],
        ("GET", "/v1/worker/run/"),
        ("GET", "//v1/worker/run"),
        ("GET", "/v1//worker/run"),
        ("GET", "/v1/worker/run?x=1"),
        ("GET", "/v1/worker/run?thread=th_other"),
        ("GET", "/v1/worker/run#x"),
        ("GET", "/v1/worker/run;x"),
        ("GET", "/v1/worker/%72un"),
        ("GET", "/v1/worker%2Frun"),
        ("GET", "/v1/worker/run%00"),
        ("GET", "/v1/worker/run%20"),
        ("GET", "/v1/worker/../worker/run"),
        ("GET", "/v1/worker/./run"),
        ("GET", "/V1/worker/run"),
        ("GET", "/v1/worker/Run"),
        ("GET", "http://localhost/v1/worker/run"),
        ("GET", "v1/worker/run"),
        ("POST", "/v1/worker/records/../infer"),
        ("POST", "/v1/worker/"),
        ("GET", "/"),
        ("OPTIONS", "*"),
        ("GET", "/health"),
        ("GET", "/v1/engine/health"),
        ("POST", "/v1/records"),
        ("GET", "/v1/runs"),
        ("POST", "/v1/work/loop"),
        ("GET", "/v1/threads"),
        ("CONNECT", "localhost:443"),
        ("CONNECT", "/v1/worker/run"),
    ]

    async def talk(served: Served) -> None:
        live = served.entrust(await served.here.open())
        before = await served.here.store.count()
        for method, path in requests:
            for bearer in (None, "dead", TOKEN, live):
                said = f"Authorization: Bearer {bearer}\r\n" if bearer else ""
                answer = await served.raw(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{said}\r\n".encode())
                head, _, body = answer.partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 404 "), (method, path, bearer, answer)
                assert json.loads(body) == NOTHING, (method, path, bearer)
                assert re.sub(rb"\r\ndate: [^\r]*", b"", head.lower()) == (
                    b"http/1.1 404 \r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close"
                    % len(body)
                ), (method, path, bearer, head)
        assert await served.here.store.count() == before

    serve(tmp_path, talk, NOTE)


@pytest.mark.claim("I8")
def test_a_head_request_is_the_same_404_without_a_body(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        live = served.entrust(await served.here.open())
        for method, path in FIVE:
            for bearer in (None, live):
                answer = await served.ask("HEAD", path, bearer=bearer, on="worker")
                assert (answer.status, answer.body) == (404, b""), (method, path, bearer)

    serve(tmp_path, talk)


@pytest.mark.claim("I8", "I14")
def test_a_door_without_a_live_bearer_answers_401(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        live = served.entrust(run)
        assert (await served.ask("GET", "/v1/worker/run", bearer=live, on="worker")).status == 200
        before = await served.here.store.count()
        headers = [
            {},
            {"authorization": ""},
            {"authorization": "Bearer"},
            {"authorization": "Bearer "},
            {"authorization": "Bearer dead"},
            {"authorization": f"Bearer {TOKEN}"},
            {"authorization": f"Bearer {live}x"},
            {"authorization": f"Basic {live}"},
            {"authorization": live},
            {"authorization": "Bearer \xff"},
            {"cookie": f"bearer={live}"},
        ]
        for method, path in FIVE:
            for each in headers:
                body: object = {} if method == "POST" else None
                answer = await served.ask(method, path, body, bearer=None, headers=each, on="worker")
                assert answer.refusal == (401, "UNAUTHENTICATED"), (method, path, each)
        await served.here.kernel.finish(run, Ending(clean=True))
        for method, path in FIVE:
            answer = await served.ask(method, path, {}, bearer=live, on="worker")
            assert answer.refusal == (401, "UNAUTHENTICATED"), (method, path)
        assert await served.here.store.count() == before + 1

    serve(tmp_path, talk, NOTE)


@pytest.mark.claim("I14")
def test_a_credential_is_no_good_to_another_process_or_an_older_connection(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        credentials = served.here.kernel.credentials
        for holder in (lambda pid, _: pid == 1, lambda _, accepted_at: accepted_at > 1e12):
            bearer = credentials.mint(run, holder, seconds=60)
            answer = await served.ask("GET", "/v1/worker/run", bearer=bearer, on="worker")
            assert answer.refusal == (401, "UNAUTHENTICATED")

    serve(tmp_path, talk)


@pytest.mark.claim("I14")
def test_a_credential_is_refused_once_it_has_expired(tmp_path: Path) -> None:
    now = [0.0]

    async def talk(served: Served) -> None:
        bearer = served.entrust(await served.here.open())
        assert (await served.ask("GET", "/v1/worker/run", bearer=bearer, on="worker")).status == 200
        now[0] = 60.0
        answer = await served.ask("GET", "/v1/worker/run", bearer=bearer, on="worker")
        assert answer.refusal == (401, "UNAUTHENTICATED")

    serve(tmp_path, talk, clock=lambda: now[0])


@pytest.mark.claim("I8", "I14")
def test_a_run_credential_is_nothing_to_the_operators_api(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        bearer = served.entrust(await served.here.open())
        for on in ("tcp", "operator"):
            answer = await served.ask("GET", "/v1/runs", bearer=bearer, on=on)
            assert answer.refusal == (401, "UNAUTHENTICATED")

    serve(tmp_path, talk)


@pytest.mark.claim("I8")
@pytest.mark.parametrize(
    ("path", "bearer", "status"),
    [("/v1/worker/infer", "dead", 401), ("/v1/worker/infer", None, 401), ("/v1/worker/inferno", "dead", 404)],
)
def test_no_body_is_read_before_the_bearer_is_known(
    tmp_path: Path, path: str, bearer: str | None, status: int
) -> None:
    async def talk(served: Served) -> None:
        said = f"Authorization: Bearer {bearer}\r\n" if bearer else ""
        # The body that is announced never comes; an answer that waited for it would not either.
        request = f"POST {path} HTTP/1.1\r\nHost: x\r\n{said}Content-Length: 1000\r\n\r\n"
        assert (await served.raw(request.encode())).startswith(b"HTTP/1.1 %d " % status)

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b"", (422, "INVALID_BODY")),
        (b"{", (422, "INVALID_BODY")),
        (b"[]", (422, "INVALID_BODY")),
        (b"null", (422, "INVALID_BODY")),
        (b'"infer"', (422, "INVALID_BODY")),
        (b'{"messages": [], "messages": []}', (422, "INVALID_BODY")),
        (b'{"messages": NaN}', (422, "INVALID_BODY")),
        (b'{"messages": "\\ud800"}', (422, "INVALID_BODY")),
        (b'{"messages": "\xff"}', (422, "INVALID_BODY")),
        (b"[" * 5000, (422, "INVALID_BODY")),
        (b'{"a":' * 100 + b"1" + b"}" * 100, (422, "INVALID_BODY")),
        (b'{"x": "' + b"y" * LIMIT + b'"}', (413, "BODY_TOO_LARGE")),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_at_every_door(
    tmp_path: Path, body: bytes, refusal: tuple[int, str]
) -> None:
    async def talk(served: Served) -> None:
        bearer = served.entrust(await served.here.open())
        before = await served.here.store.count()
        for method, path in FIVE:
            if method == "POST":
                answer = await served.ask(method, path, body, bearer=bearer, on="worker")
                assert answer.refusal == refusal
        assert await served.here.store.count() == before

    serve(tmp_path, talk, NOTE)


def test_the_model_is_told_of_four_times_as_many_commas_as_any_other_door_takes(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        bearer = served.entrust(await served.here.open())

        async def knock(door: str, items: int) -> Any:
            # Beside the commas of the text, one comma and three brackets.
            body = {"messages": [{"role": "user", "content": "," * (items - 4)}]}
            return await served.ask("POST", f"/v1/worker/{door}", body, bearer=bearer, on="worker")

        assert (await knock("infer", 400_000)).status == 200
        for door, most in (("infer", 400_000), ("propose", 100_000), ("call", 100_000), ("records", 100_000)):
            answer = await knock(door, most + 1)
            assert answer.refusal == (422, "INVALID_BODY")
            assert f"more than {most} commas" in answer.json["message"]

    serve(tmp_path, talk, says("Done."), worker_limit=1 << 20)


@pytest.mark.claim("K5", "K7")
@pytest.mark.parametrize(
    ("door", "body", "refusal"),
    [
        ("propose", {"call_id": "c9"}, (409, "CALL_NOT_IN_REPLY")),
        ("call", {"call_id": "c1"}, (409, "CALL_NOT_ALLOWED")),
        ("records", {"kind": names.OUTCOME, "body": {}}, (403, "KIND_RESERVED")),
        ("records", {"kind": "my.own.kind.v1", "body": {}}, (403, "KIND_RESERVED")),
        ("records", {"kind": names.PLAN, "body": {}, "thread": "th_other"}, (422, "INVALID_BODY")),
        ("infer", {"messages": [{"role": {}, "content": ""}]}, (422, "INVALID_BODY")),
    ],
)
def test_what_a_door_refuses_is_answered_with_its_code(
    tmp_path: Path, door: str, body: object, refusal: tuple[int, str]
) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        bearer = served.entrust(run)
        opening = {"messages": [{"role": "user", "content": "x"}]}
        await served.ask("POST", "/v1/worker/infer", opening, bearer=bearer, on="worker")
        before = await served.here.store.count()
        answer = await served.ask("POST", f"/v1/worker/{door}", body, bearer=bearer, on="worker")
        assert answer.refusal == refusal
        assert await served.here.store.count() == before

    serve(tmp_path, talk, NOTE)


@pytest.mark.claim("K7")
def test_of_two_knocks_for_one_call_at_the_same_moment_one_runs_it(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        bearer = served.entrust(run)

        async def knock(door: str, body: object) -> int:
            return (await served.ask("POST", f"/v1/worker/{door}", body, bearer=bearer, on="worker")).status

        await knock("infer", {"messages": [{"role": "user", "content": "x"}]})
        await knock("propose", {"call_id": "c1"})
        statuses = await asyncio.gather(*[knock("call", {"call_id": "c1"}) for _ in range(3)])
        assert sorted(statuses) == [200, 409, 409]
        assert (await served.here.kinds(run.terms.thread)).count("note") == 1

    serve(tmp_path, talk, NOTE)


def test_the_end_of_a_run_closes_the_door_a_model_call_hangs_in(tmp_path: Path) -> None:
    provider = Hanging()

    async def talk(served: Served) -> None:
        run = await served.here.open()
        bearer = served.entrust(run)
        body = json.dumps({"messages": [{"role": "user", "content": "x"}]})
        request = (
            f"POST /v1/worker/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        )
        answer = asyncio.create_task(served.raw(request.encode()))
        await provider.asked.wait()
        await served.here.kernel.finish(run, Ending(clean=False, cause="wall_clock"))
        assert b"200" not in (await answer)[:20]
        assert (await served.here.kinds(run.terms.thread))[-1] == "loop_outcome"

    serve(tmp_path, talk, says("x"), provider=provider)


def test_of_what_runs_say_at_length_one_is_worked_on_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(served: Served) -> None:
        reading: list[str] = []
        opened = asyncio.Event()

        async def gated(body: bytes, **bounds: Any) -> Any:
            payload = await read_json(body, **bounds)
            reading.append(payload["body"]["text"][:5])
            if reading[-1] == "first":
                await opened.wait()
            return payload

        monkeypatch.setattr("spl.api.worker.read_json", gated)

        async def say(text: str) -> int:
            bearer = served.entrust(await served.here.open())
            said = {"kind": names.REPORT, "body": {"text": text}}
            return (await served.ask("POST", "/v1/worker/records", said, bearer=bearer, on="worker")).status

        first = asyncio.create_task(say("first" + "x" * LONG))
        while not reading:  # noqa: ASYNC110 - the listener's turn, not a wait
            await asyncio.sleep(0)
        other = asyncio.create_task(say("other" + "x" * LONG))
        for _ in range(5):
            assert await say("short") == 200
        assert reading == ["first", *["short"] * 5]
        opened.set()
        assert list(await asyncio.gather(first, other)) == [200, 200]

    serve(tmp_path, talk)


def test_one_request_of_a_run_is_read_at_a_time_however_many_connections_it_has(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        head = f"POST /v1/worker/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.entrust(run)}\r\n"
        reader, writer = await asyncio.open_unix_connection(f"{served.folder}/worker.sock")
        try:
            writer.write(f"{head}Content-Length: 2\r\n\r\n{{".encode())
            while not run.entrance.locked():  # noqa: ASYNC110 - the listener's turn, not a wait
                await asyncio.sleep(0)
            second = asyncio.create_task(
                served.raw(f"{head}Connection: close\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            )
            writer.write(b"}")
            # Answered in turn, the first first, though the second was whole before it.
            assert (await reader.readline()).startswith(b"HTTP/1.1 422 ")
            assert (await second).startswith(b"HTTP/1.1 422 ")
        finally:
            writer.close()
            await writer.wait_closed()
        assert not run.entrance.locked()

    serve(tmp_path, talk)
