from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from spl.api.watching import MOST_EVENTS
from spl.client import Client
from spl.errors import StoreUnavailable
from spl.records.record import Draft
from tests.api.served import TOKEN, serve
from tests.kernel.instance import MEMBER, OPERATOR

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spl.records.record import Record
    from tests.api.served import Served

NED = "did:sync:user:ned"
ALL, ONE = "/v1/watch", "/v1/threads/th_1/watch"


def note(thread: str = "th_1", actor: str = OPERATOR, **body: object) -> Draft:
    return Draft(thread, actor, "KNOW", body)


async def write(served: Served, *drafts: Draft) -> list[Record]:
    return [appended.record for appended in await served.here.store.append(drafts)]


async def until(true: Callable[[], bool]) -> None:
    """Let the loop go on until something has become true."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - what becomes true is the daemon's, which tells nobody
            await asyncio.sleep(0)


def sequences(records: list[dict[str, Any]]) -> list[int]:
    return [record["sequence"] for record in records]


@pytest.mark.parametrize("seed", range(2))
def test_what_is_there_and_what_comes_is_told_once_and_in_order_whenever_one_begins_to_watch(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    writers, bursts = 8, 60

    async def talk(served: Served) -> None:
        first = served.watching.last

        async def writing(writer: int) -> None:
            for number in range(bursts):
                burst = [
                    note(chance.choice(("th_1", "th_2")), at=[writer, number, k])
                    for k in range(chance.randint(1, 5))
                ]
                await write(served, *burst)

        async def watching() -> tuple[str, int, list[int]]:
            path, since = chance.choice((ALL, ONE)), chance.randint(0, served.watching.last)
            async with served.watch(f"{path}?since={since}", on="operator", bearer=None) as watcher:
                await watcher.opened()
                found: list[int] = []
                while not found or found[-1] < last:
                    found += sequences(await watcher.records(1))
            return path, since, found

        last = first + 100_000
        writing_ = [asyncio.create_task(writing(writer)) for writer in range(writers)]
        watching_ = []
        for _ in range(30):
            goal = served.watching.last + chance.randint(0, 40)
            await until(lambda goal=goal: served.watching.last >= goal or all(w.done() for w in writing_))  # type: ignore[misc]
            watching_.append(asyncio.create_task(watching()))
        await asyncio.gather(*writing_)
        last = (await write(served, note("th_1", end=True)))[0].sequence
        told = await asyncio.gather(*watching_)

        records = await served.here.store.select(limit=10_000)
        there = {ALL: [each.sequence for each in records]}
        there[ONE] = [each.sequence for each in records if each.thread == "th_1"]
        for path, since, found in told:
            assert found == [sequence for sequence in there[path] if sequence > since]

    serve(tmp_path, talk)


def test_an_event_is_one_record_under_its_sequence_and_the_stream_is_kept_by_nobody(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(ONE) as watcher:
            head = await watcher.head()
            assert head.status == 200
            assert head.headers["content-type"].startswith("text/event-stream")
            assert head.headers["cache-control"] == "no-store"
            assert head.headers["x-accel-buffering"] == "no"
            assert await watcher.next() == ("heartbeat", 0, {"sequence": 0})
            written = (await write(served, note(text="é")))[0]
            event = await watcher.next()
            assert event == (
                "record.created",
                written.sequence,
                {"id": written.id, "record": written.wire()},
            )

    serve(tmp_path, talk)


def test_no_text_of_a_record_ends_a_line_of_its_event(tmp_path: Path) -> None:
    text = "a\nb\rc\r\nd\x0be\x0cf\x1cg\x1dh\x1ei\x85j\u2028k\u2029\n\ndata: forged\n\n"

    async def talk(served: Served) -> None:
        await write(served, note(text=text))
        async with served.watch(ONE) as watcher:
            await watcher.opened()
            said = await watcher.reader.readuntil(b"\n\n")
            assert len(said.decode().removesuffix("\n\n").splitlines()) == 3
        async with served.watch(ONE) as watcher:
            await watcher.opened()
            assert (await watcher.records(1))[0]["body"]["text"] == text

    serve(tmp_path, talk)


def test_a_reader_that_comes_again_goes_on_after_its_last_event_whatever_the_query_says(
    tmp_path: Path,
) -> None:
    async def talk(served: Served) -> None:
        written = [each.sequence for each in await write(served, *(note(n=n) for n in range(5)))]
        async with served.watch(f"{ONE}?since=0", last_event_id=str(written[2])) as watcher:
            assert (await watcher.opened()).id == written[2]
            assert sequences(await watcher.records(2)) == written[3:]

    serve(tmp_path, talk)


def test_records_at_or_below_the_clock_are_left_out_both_those_there_and_those_to_come(
    tmp_path: Path,
) -> None:
    async def talk(served: Served) -> None:
        await write(served, *(note(n=n) for n in range(4)))
        async with (
            served.watch(f"{ALL}?since_clock=3") as all_,
            served.watch(f"{ONE}?since_clock=3") as one,
        ):
            for watcher in (all_, one):
                await watcher.opened()
                assert [each["clock"] for each in await watcher.records(1)] == [4]
            await write(served, note(actor=NED, early=True), note(late=True))
            for watcher in (all_, one):
                assert [(each["actor"], each["clock"]) for each in await watcher.records(1)] == [
                    (OPERATOR, 5)
                ]

    serve(tmp_path, talk)


def test_a_number_that_is_none_is_named(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        for query, headers, named in (
            ("since=-1", {}, "since"),
            ("since=x", {}, "since"),
            ("since_clock=1.5", {}, "since_clock"),
            ("limit=5", {}, "limit"),
            ("since=1&since=2", {}, "since"),
            ("", {"last_event_id": "abc"}, "Last-Event-ID"),
            ("", {"last_event_id": ""}, "Last-Event-ID"),
            ("", {"last_event_id": str(2**63)}, "Last-Event-ID"),
        ):
            for path in (ALL, ONE):
                async with served.watch(f"{path}?{query}", **headers) as watcher:
                    answer = await watcher.head()
                    assert answer.refusal == (422, "INVALID_BODY")
                    assert named in answer.json["message"]

    serve(tmp_path, talk)


@pytest.mark.parametrize("at", [{"path": f"{ALL}?since=7"}, {"path": ONE, "last_event_id": "7"}])
def test_a_position_beyond_the_log_is_refused_and_never_a_silent_gap(
    tmp_path: Path, at: dict[str, str]
) -> None:
    async def talk(served: Served) -> None:
        await write(served, *(note(n=n) for n in range(6)))
        async with served.watch(**at) as watcher:
            answer = await watcher.head()
            assert answer.refusal == (422, "INVALID_BODY")
            assert "restored" in answer.json["message"]
            assert "begin anew" in answer.json["remedy"]
        await write(served, note(n=6))
        async with served.watch(**at) as watcher:
            assert (await watcher.opened()).id == 7

    serve(tmp_path, talk)


def test_there_is_nothing_but_get(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        for method in ("HEAD", "POST", "DELETE"):
            for path in (ALL, ONE):
                answer = await served.ask(method, path)
                assert (answer.status, answer.headers["allow"]) == (405, "GET")

    serve(tmp_path, talk)


def test_who_may_not_read_may_not_watch(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        writes = await served.member("mia", "records:write")
        for path in (ALL, ONE):
            for bearer, refusal in (
                (None, (401, "UNAUTHENTICATED")),
                (writes, (403, "SCOPE_DENIED")),
            ):
                async with served.watch(path, bearer=bearer) as watcher:
                    assert (await watcher.head()).refusal == refusal
        assert served.watching.open == 0

    serve(tmp_path, talk)


def test_a_quiet_stream_says_how_far_the_log_has_come_so_that_it_is_resumed_from_there(
    tmp_path: Path,
) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(ONE) as watcher:
            await watcher.opened()
            last = (await write(served, *(note("th_2", n=n) for n in range(9))))[-1].sequence
            while (event := await watcher.next()) != ("heartbeat", last, {"sequence": last}):
                assert event is not None
                assert event.name == "heartbeat"

    serve(tmp_path, talk, heartbeat=0.02)


def test_a_member_is_told_of_its_own_threads_and_of_no_others(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        mia = await served.member("mia")
        before = await write(served, note("th_mia", MEMBER), note("th_ned", NED), note("th_op"))
        async with (
            served.watch(ALL, bearer=mia) as all_,
            served.watch("/v1/threads/th_ned/watch", bearer=mia) as neds,
            served.watch("/v1/threads/th_later/watch", bearer=mia) as later,
        ):
            for watcher in (all_, neds, later):
                await watcher.opened()
            # The operator writes on her thread too, which stays hers, and she never on ned's that she sees.
            after = await write(
                served,
                *(note("th_later", NED), note("th_ned", NED), note("th_mia"), note("th_new", MEMBER)),
            )
            said = await served.ask("GET", "/v1/records?thread=th_ned", bearer=mia)
            assert said.json["data"] == []
            assert sequences(await all_.records(3)) == [
                before[0].sequence,
                after[2].sequence,
                after[3].sequence,
            ]
            for watcher in (neds, later):
                # Nothing but silence up to the last record of all.
                while (event := await watcher.next()) is not None and event.id != after[-1].sequence:
                    assert event.name == "heartbeat"
                assert event is not None
                assert event.name == "heartbeat"

    serve(tmp_path, talk, heartbeat=0.02)


@pytest.mark.parametrize("silent", [True, False])
def test_a_bearer_that_is_revoked_is_told_so_and_nothing_more(tmp_path: Path, silent: bool) -> None:
    async def talk(served: Served) -> None:
        mia = await served.member("mia")
        await write(served, note("th_mia", MEMBER))
        async with served.watch(ALL, bearer=mia) as watcher:
            await watcher.opened()
            await watcher.records(1)
            await served.ask("DELETE", "/v1/members/mia")
            if not silent:
                await write(served, note("th_mia", secret="of the days after"))
            while (event := await watcher.next()) is not None and event.name == "heartbeat":
                pass
            assert event is not None
            assert (event.name, event.id, event.data["code"]) == ("error", None, "TOKEN_REVOKED")
            assert event.data["object"] == "error"
            assert await watcher.next() is None
        await until(lambda: served.watching.open == 0)

    serve(tmp_path, talk, heartbeat=0.05 if silent else 3600)


def test_the_operators_token_is_judged_again_too(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(ALL) as watcher, served.watch(ALL, on="operator", bearer=None) as own:
            await watcher.opened()
            await own.opened()
            await served.ask("POST", "/v1/tokens/operator/rotate")
            await write(served, note())
            event = await watcher.next()
            assert event is not None
            assert (event.name, event.data["code"]) == ("error", "TOKEN_REVOKED")
            assert await watcher.next() is None
            await own.records(1)

    serve(tmp_path, talk)


BEYOND = 12 << 20
"""Bytes: more than the kernel holds for both ends, and a queue besides."""


async def stall(served: Served, *, size: int = 300_000) -> list[int]:
    """Write more for a reader that takes nothing than may wait for it; gives the sequences."""
    found: list[int] = []
    while len(found) * size < BEYOND:
        found += [each.sequence for each in await write(served, note(n=len(found), text="x" * size))]
    return found


def test_a_reader_that_takes_less_than_comes_is_told_so_and_has_all_of_it_when_it_comes_again(
    tmp_path: Path,
) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(ONE) as watcher, served.watch(ONE) as other:
            await watcher.opened()
            await other.opened()
            reading = asyncio.create_task(other.records(42))
            written = await stall(served)
            # It keeps from nobody else what it does not take.
            assert sequences(await reading) == written
            found = []
            while (event := await watcher.next()) is not None and event.name == "record.created":
                found.append(event.id)
            assert event is not None
            assert (event.name, event.id, event.data["code"]) == ("error", None, "lagged")
            assert await watcher.next() is None
            assert 0 < len(found) < len(written)
        async with served.watch(ONE, last_event_id=str(found[-1])) as watcher:
            await watcher.opened()
            assert found + sequences(await watcher.records(len(written) - len(found))) == written

    serve(tmp_path, talk)


def test_reading_what_is_there_is_never_called_lagging(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        written = [
            each.sequence for each in await write(served, *(note(n=n, text="x" * 300_000) for n in range(20)))
        ]
        async with served.watch(ONE) as watcher:
            await watcher.opened()
            written += await stall(served)
            assert sequences(await watcher.records(len(written))) == written

    serve(tmp_path, talk)


def test_more_at_once_than_may_wait_is_read_from_the_log_by_whoever_reads(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(ONE) as watcher:
            await watcher.opened()
            written = await write(served, *(note(n=n) for n in range(3 * MOST_EVENTS)))
            assert sequences(await watcher.records(len(written))) == [each.sequence for each in written]

    serve(tmp_path, talk)


def test_one_members_stream_has_the_log_read_at_a_time_and_the_operator_waits_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(served: Served) -> None:
        mia, select = await served.member("mia"), served.here.store.select
        going, most, opened = 0, 0, asyncio.Event()

        async def gated(**query: Any) -> list[Record]:
            nonlocal going, most
            going += query["owner"] is not None
            most = max(most, going)
            try:
                if query["owner"] is not None:
                    await opened.wait()
                return await select(**query)
            finally:
                going -= query["owner"] is not None

        monkeypatch.setattr(served.here.store, "select", gated)
        await write(served, note("th_mia", MEMBER))
        async with contextlib.AsyncExitStack() as stack:
            watchers = [await stack.enter_async_context(served.watch(ALL, bearer=mia)) for _ in range(9)]
            for watcher in watchers:
                await watcher.opened()
            async with served.watch(ALL) as operators:
                await operators.opened()
                await operators.records(served.watching.last)
            opened.set()
            for watcher in watchers:
                await watcher.records(1)
            assert most == 1

    serve(tmp_path, talk)


def test_a_log_that_cannot_be_read_is_told_of_and_ends_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unread(**_: object) -> list[Record]:
        raise StoreUnavailable("the log cannot be read: the disk is gone")

    async def talk(served: Served) -> None:
        monkeypatch.setattr(served.here.store, "select", unread)
        async with served.watch(ALL) as watcher:
            await watcher.opened()
            event = await watcher.next()
            assert event is not None
            assert (event.name, event.id, event.data["code"]) == ("error", None, "STORE_UNAVAILABLE")
            assert await watcher.next() is None

    serve(tmp_path, talk)


def test_a_reader_that_never_takes_anything_is_cut_off_and_its_place_is_free_again(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(ONE) as watcher:
            await watcher.opened()
            assert served.watching.open == 1
            await stall(served)
            await until(lambda: served.watching.open == 0)

    serve(tmp_path, talk, patience=0.1)


def test_a_reader_that_has_gone_leaves_its_place(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(ONE) as watcher:
            await watcher.opened()
        await until(lambda: served.watching.open == 0)

    serve(tmp_path, talk)


def test_there_are_so_many_streams_of_a_member_and_so_many_in_all(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        mia, ned, cat = [await served.member(name) for name in ("mia", "ned", "cat")]

        async def refused(bearer: str) -> str:
            async with served.watch(ALL, bearer=bearer) as watcher:
                answer = await watcher.head()
                assert answer.refusal == (429, "WATCHERS_EXCEEDED")
                assert int(answer.headers["retry-after"]) > 0
                return str(answer.json["message"])

        async with contextlib.AsyncExitStack() as stack:
            for bearer in (mia, mia):
                await (await stack.enter_async_context(served.watch(ALL, bearer=bearer))).opened()
            assert MEMBER in await refused(mia)
            for bearer in (ned, ned):
                await (await stack.enter_async_context(served.watch(ALL, bearer=bearer))).opened()
            assert "the rest for the operator" in await refused(cat)
            for bearer in (TOKEN, TOKEN):
                await (await stack.enter_async_context(served.watch(ALL, bearer=bearer))).opened()
            assert "as many as the daemon carries" in await refused(cat)
            assert "as many as the daemon carries" in await refused(TOKEN)
        await until(lambda: served.watching.open == 0)
        async with served.watch(ALL, bearer=mia) as watcher:
            await watcher.opened()

    serve(tmp_path, talk, streams=(6, 2))


def test_a_daemon_that_stops_tells_all_that_came_and_then_that_it_stops(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        async with served.watch(ONE) as watcher, served.watch(ALL, on="operator", bearer=None) as other:
            await watcher.opened()
            await other.opened()
            written = await write(served, *(note(n=n) for n in range(50)))
            served.watching.stop()
            for each in (watcher, other):
                assert sequences(await each.records(50)) == [record.sequence for record in written]
                assert await each.next() == ("server_shutdown", None, {"retry_after_ms": 1000})
                assert await each.next() is None
        # One that comes now is told the same.
        async with served.watch(ONE) as watcher:
            await watcher.opened()
            event = await watcher.next()
            assert event is not None
            assert event.name == "server_shutdown"

    serve(tmp_path, talk)


def test_five_hundred_watchers_of_one_thread_are_told_everything_in_order(tmp_path: Path) -> None:
    class Reader(asyncio.Protocol):
        said = b""

        def data_received(self, data: bytes) -> None:
            self.said += data

    async def talk(served: Served) -> None:
        loop = asyncio.get_running_loop()
        readers = []
        for number in range(500):
            transport, reader = await loop.create_connection(Reader, "127.0.0.1", served.port)
            transport.write(
                f"GET {ONE} HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\nHost: x\r\n\r\n".encode()
            )
            readers.append((transport, reader))
            if number % 50 == 0:
                await write(served, note(at=number))
        for number in range(20):
            await write(served, note(n=number))
        written = [f"id: {each.sequence}\nevent: record.created" for each in await served.here.on("th_1")]
        assert len(written) == 30
        for transport, reader in readers:
            await until(lambda reader=reader: written[-1].encode() in reader.said)  # type: ignore[misc]
            ids = [part.split("\ndata")[0] for part in reader.said.decode().split("\n\n")]
            assert [id_ for id_ in ids if "record.created" in id_] == written
            transport.close()

    serve(tmp_path, talk)


def test_the_projects_own_client_follows_a_stream_in_chunks(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        written = await write(served, *(note(n=n, text="é" * 40_000) for n in range(10)))
        client = Client(f"{served.folder}/operator.sock")

        def read() -> list[tuple[str, int | None]]:
            events = client.watch(ONE, position=written[3].sequence)
            return [(event.name, event.id) for event in itertools.islice(events, 7)]

        assert await asyncio.to_thread(read) == [
            ("heartbeat", 4),
            *(("record.created", each.sequence) for each in written[4:]),
        ]

    serve(tmp_path, talk)
