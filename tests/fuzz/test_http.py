from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from spl.api.requests import EventBody, RecordBody, StartBody, read_json
from spl.errors import SplError
from spl.kernel.config import check
from spl.records.canonical import canonical, parse
from tests.api.served import TOKEN, serving
from tests.fuzz import documents, http
from tests.fuzz.attacked import attacked
from tests.fuzz.judge import Wrong, judge, understood
from tests.fuzz.requests import BEARER, Case, Dice, Parts, case, extremes
from tests.kernel.instance import NOTE, OPERATOR, instance, says, turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from tests.fuzz.attacked import Attacked

SEEDS = {file.stem: file.read_bytes() for file in (Path(__file__).parent / "seeds" / "http").iterdir()}
"""Requests that were once found red, as they stand on the wire."""

ROUTES = sorted({path for method, path in documents.PATHS if method == b"POST"})
LEAST_KIB = 256
SECONDS = 30
"""Of silence on an event stream, whose tests take no longer."""

quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**309) + 1, 10**309 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), JSON, max_size=4)


JSON_TYPE = b"content-type: application/json"


def said(status: int, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((b"HTTP/1.1 %d " % status, b"content-length: %d" % len(body), *headers, b"", body))


def error(code: str, message: str) -> bytes:
    return json.dumps({"object": "error", "type": "t", "code": code, "message": message}).encode()


def attack(folder: Path, talk: Callable[[Attacked], Awaitable[None]]) -> None:
    async def run() -> None:
        async with attacked(folder) as under:
            await talk(under)
            under.look()

    asyncio.run(run())


@pytest.mark.parametrize("seed", [1, 2])
def test_bad_requests_are_refused_by_their_codes_write_nothing_and_leave_nothing_behind(
    tmp_path: Path, seed: int
) -> None:
    figures = http.Figures()

    async def talk(under: Attacked) -> None:
        await under.send(100, 0, http.Figures())
        before = len(os.listdir("/proc/self/fd"))
        await under.send(600, seed, figures)
        assert len(os.listdir("/proc/self/fd")) <= before

    attack(tmp_path, talk)
    assert figures.requests.total() == 600
    # Refused for all that there is to refuse, and not for one reason.
    assert {answer.partition(" ")[0] for answer in figures.answers} >= {
        "200", "201", "400", "401", "403", "404", "405", "409", "413", "422", "431", "501"
    }  # fmt: skip


@pytest.mark.parametrize("seed", sorted(SEEDS))
def test_what_was_once_found_is_refused_on_every_socket(tmp_path: Path, seed: str) -> None:
    async def talk(under: Attacked) -> None:
        async with under.a_run() as (run, credential):
            await turn(run)
            target, before = under.target(credential), asyncio.all_tasks()
            for on, bearer in (("tcp", target.bearers["tcp"][0]), ("operator", ""), ("worker", credential)):
                sent = SEEDS[seed].replace(BEARER, bearer.encode())
                await http.exchange(target.sockets[on], Case(seed, (sent,)))
                under.look(sent)
            await under.settle(before)

    attack(tmp_path, talk)


def test_a_request_is_answered_however_it_comes_in_pieces_and_a_peer_may_leave_at_every_byte(
    tmp_path: Path,
) -> None:
    async def talk(under: Attacked) -> None:
        async with under.a_run() as (_, credential):
            target = under.target(credential)
            body = b'{"call_id": "c1"}'
            head = (
                b"POST /v1/worker/propose HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + credential.encode()
            )
            sent = head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            before = asyncio.all_tasks()
            for cut in range(len(sent)):
                for on in ("worker", "tcp"):
                    await http.exchange(target.sockets[on], Case("half", (sent[:cut],)))
                    await http.exchange(target.sockets[on], Case("left", (sent[:cut],), "close"))
                await http.exchange(target.sockets["tcp"], Case("reset", (sent[:cut],), "reset"))
            bytewise = Case("bytewise", tuple(sent[at : at + 1] for at in range(len(sent))))
            [answer] = await http.exchange(target.sockets["worker"], bytewise)
            assert answer.code == "CALL_NOT_IN_REPLY"
            await under.settle(before)

    attack(tmp_path, talk)


def test_hundreds_of_requests_at_once_are_answered_in_their_order_on_every_kind_of_socket(
    tmp_path: Path,
) -> None:
    async def talk(under: Attacked) -> None:
        target = under.target("dead")
        request = "GET /v1/tiers?t%d= HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n"
        sent = "".join(request % (n, target.bearers["tcp"][0]) for n in range(400)).encode()
        for on in ("tcp", "operator"):
            answers = await http.exchange(target.sockets[on], Case("many", (sent, b"\0\r\n\r\n")))
            assert [answer.status for answer in answers] == [422] * 400 + [400]

    attack(tmp_path, talk)


@pytest.mark.parametrize("path", ROUTES, ids=lambda path: path.decode())
def test_no_field_of_a_route_takes_what_is_not_meant_for_it(tmp_path: Path, path: bytes) -> None:
    async def talk(under: Attacked) -> None:
        async with under.a_run() as (run, credential):
            await turn(run)
            target, before = under.target(credential), asyncio.all_tasks()
            on, bearer = ("worker", credential) if b"/worker/" in path else ("operator", TOKEN)
            headers = (b"Host: x", b"Authorization: Bearer " + bearer.encode())
            for documents_ in batched(documents.confused(path), 200):
                sent = b"".join(
                    Parts(b"POST", path, headers=headers, body=each).wire() for each in documents_
                )
                answers = await http.exchange(target.sockets[on], Case("confused", (sent,)))
                assert len(answers) == len(documents_)
            await under.settle(before)

    attack(tmp_path, talk)


def test_no_listing_fails_by_a_number_at_its_extreme(tmp_path: Path) -> None:
    async def talk(under: Attacked) -> None:
        address = under.target("").sockets["operator"]
        for targets in batched((each for each in extremes() if b"watch" not in each), 200):
            sent = b"".join(Parts(target=each, headers=(b"Host: x",)).wire() for each in targets)
            await http.exchange(address, Case("extremes", (sent,)))

    attack(tmp_path, talk)


def batched(many: Iterable[bytes], number: int) -> Iterator[list[bytes]]:
    rest = iter(many)
    while batch := list(itertools.islice(rest, number)):
        yield batch


def test_refusing_takes_no_memory_that_is_not_given_back(tmp_path: Path) -> None:
    async def talk(under: Attacked) -> None:
        async with under.a_run() as (_, credential):
            target = under.target(credential)

            async def refuse(seed: int) -> None:
                rng = Dice(seed)
                for _ in range(150):
                    tried = case(rng, "dead")
                    await http.exchange(target.sockets[rng.choice(("tcp", "worker"))], tried)
                under.look()

            await refuse(1)
            tracemalloc.start()
            try:
                await refuse(1)
                before, _ = tracemalloc.get_traced_memory()
                await refuse(1)
                after, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert after - before < LEAST_KIB * 1024

    attack(tmp_path, talk)


@pytest.mark.parametrize(
    ("got", "why"),
    [
        (said(500), "without a document"),
        (said(400), "gone on with"),
        (said(400, b"connection: close") * 2, "after the last"),
        (said(404, body=b"{}")[:-1], "half an answer"),
        (said(404, b"x: a\nb"), "malformed head"),
        (said(404, JSON_TYPE, body=error("INVALID_BODY", "m")), "not its code's"),
        (said(500, JSON_TYPE, body=error("INTERNAL", "m")), "a fault of the daemon's own"),
        (said(422, JSON_TYPE, body=error("INVALID_BODY", "m\n").replace(b"\\n", b"\n")), "echoed as it came"),
        (said(422, JSON_TYPE, body=error("INVALID_BODY", "no field 't2'")), "another request"),
    ],
)
def test_the_judge_sees_what_is_wrong(got: bytes, why: str) -> None:
    with pytest.raises(Wrong, match=why):
        judge(b"GET /a?t1=1 HTTP/1.1\r\nHost: x\r\n\r\n", got)


def test_the_judge_takes_no_request_out_of_anothers_body() -> None:
    hidden = b"GET /b?t1= HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"POST /a?t0= HTTP/1.1\r\nHost: x\r\n"
    length, chunked = b"Content-Length: %d\r\n" % len(hidden), b"Transfer-Encoding: chunked\r\n"
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)
    for sent, tags in (
        (head + length + b"\r\n" + hidden + hidden, ["t0", "t1"]),
        (head + chunked + b"\r\n" + chunks + hidden, ["t0", "t1"]),
        (head + chunked + length + b"\r\n" + chunks + hidden, ["t0"]),
        (head + b"Transfer-Encoding: xchunked\r\n\r\n" + chunks + hidden, ["t0"]),
        (head + b"Content-Length: 0\r\n" + length + b"\r\n" + hidden + hidden, ["t0"]),
        (head + b"Connection: close\r\n\r\n" + hidden, ["t0"]),
        (head.replace(b"1.1", b"1.0") + b"\r\n" + hidden, ["t0"]),
        (head + b"X : y\r\n\r\n" + hidden, []),
    ):
        assert [each.tag for each in understood(sent)] == tags, sent


@quick
@given(JSON)
def test_what_is_read_is_the_same_when_it_is_read_again_from_its_canonical_form(value: Any) -> None:
    text = canonical(value)
    assert parse(text) == value
    assert canonical(parse(text)) == text
    assert parse(json.dumps(value)) == value


@settings(quick, max_examples=300)
@given(st.randoms(use_true_random=False), st.sampled_from(ROUTES))
def test_only_an_error_of_the_table_comes_of_a_document(random: Any, path: bytes) -> None:
    text = documents.document(random, path)
    with contextlib.suppress(SplError):
        said = asyncio.run(read_json(text))
        assert canonical(parse(canonical(said))) == canonical(said)
        if isinstance(said, dict):
            for form in (RecordBody, StartBody, EventBody):
                with contextlib.suppress(ValidationError):
                    form.model_validate(said)
            body = said.get("body")
            if isinstance(body, dict) and body.get("kind") in (
                "core.engine.config.v1",
                "core.engine.tier.v1",
            ):
                check(body)


def test_a_door_answers_any_payload_with_an_error_of_the_table(tmp_path: Path) -> None:
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        context = instance(tmp_path, NOTE, says("x"))
        here = runner.run(context.__aenter__())
        stack.callback(lambda: runner.run(context.__aexit__(None, None, None)))
        run = runner.run(here.open())
        runner.run(turn(run))

        @settings(quick, max_examples=200)
        @given(
            st.sampled_from(("run", "infer", "propose", "call", "record")),
            OBJECTS
            | st.fixed_dictionaries({"call_id": JSON})
            | st.fixed_dictionaries({"kind": JSON, "body": JSON})
            | st.fixed_dictionaries({"kind": st.just("core.work.plan.v1"), "body": OBJECTS})
            | st.fixed_dictionaries({"messages": JSON | st.lists(OBJECTS, min_size=1, max_size=3)})
            | st.fixed_dictionaries(
                {
                    "kind": st.just("core.work.tool_result.v1"),
                    "body": st.fixed_dictionaries({"call_id": JSON, "status": JSON, "output": JSON}),
                }
            ),
        )
        def knock(name: str, payload: dict[str, Any]) -> None:
            with contextlib.suppress(SplError):
                canonical(runner.run(run.door(name, payload)))

        knock()


def test_whatever_is_accepted_as_a_record_is_read_back_equal_everywhere(tmp_path: Path) -> None:
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        serving_ = serving(tmp_path, heartbeat=SECONDS)
        served = runner.run(serving_.__aenter__())
        stack.callback(lambda: runner.run(serving_.__aexit__(None, None, None)))
        watch = served.watch()
        watcher = runner.run(watch.__aenter__())
        stack.callback(lambda: runner.run(watch.__aexit__(None, None, None)))
        runner.run(watcher.opened())

        async def there_and_back(body: dict[str, Any]) -> None:
            said = {"thread": "th_fuzz", "actor": OPERATOR, "act": "DO", "body": body}
            answer = await served.ask("POST", "/v1/records", said)
            if answer.status != 201:
                assert answer.refusal in ((400, "INGEST_FAILED"), (422, "INVALID_BODY"))
                return
            record = answer.json
            assert record["body"] == body
            assert (await served.ask("GET", f"/v1/records/{record['id']}")).json == record
            since = record["sequence"] - 1
            for listing in ("threads/th_fuzz/records?", "records?", f"records?actor={OPERATOR}&"):
                assert (await served.ask("GET", f"/v1/{listing}since={since}")).json["data"] == [record]
            assert await watcher.records(1) == [record]

        @settings(quick, max_examples=50)
        @given(OBJECTS)
        def write(body: dict[str, Any]) -> None:
            runner.run(there_and_back(body))

        write()
