"""The public `syncropel` package against a daemon of ours, unmodified: what it writes, asks for and watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syncropel import (
    Client,
    ClientData,
    ClientMembership,
    Identity,
    InferOptions,
    Ref,
    SyncropelDataError,
    SyncropelKindError,
    SyncropelMembershipError,
)
from syncropel import Record as SdkRecord
from syncropel import record_id as sdk_record_id

from spl.records.record import ACTS, DATA_TYPES, record_id
from tests.end_to_end.conftest import ORDINARY
from tests.end_to_end.daemon import SECONDS, Shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from escape.installation import Installation
    from tests.end_to_end.daemon import Daemon

Json = dict[str, Any]

OPERATOR, MIA = "did:sync:user:op", "did:sync:user:mia"
NOTE, TASK, RESULT = "acme.notes.note.v1", "acme.work.task.v1", "acme.work.result.v1"


@dataclass
class Engine:
    """The one daemon of this file; it may be stopped, and started anew on the same home and port."""

    shape: Shape
    home: Path
    running: contextlib.ExitStack
    daemon: Daemon
    mia: str = ""

    @property
    def token(self) -> str:
        """The operator's token."""
        return (self.home / "token").read_text().strip()

    def sdk(self, *, token: str | None = None, actor: str = OPERATOR, **options: Any) -> Client:
        """Give the SDK's client, as its manual has it."""
        return Client(
            endpoint=f"http://127.0.0.1:{self.daemon.port}",
            identity=Identity.static(actor),
            api_key=self.token if token is None else token,
            timeout=SECONDS,
            **options,
        )

    def members(self, **options: Any) -> Client:
        """Give the SDK's client with a member's token."""
        return self.sdk(token=self.mia, actor=MIA, **options)

    def http(self, token: str | None = None) -> httpx.AsyncClient:
        """Give a client as the SDK makes its own."""
        headers = {"x-api-key": self.token if token is None else token}
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.daemon.port}", headers=headers, timeout=SECONDS
        )

    def stop(self) -> None:
        """Stop the daemon as an operator would."""
        assert self.daemon.stop() == 0

    def start(self) -> None:
        """Start it anew where it was."""
        port = str(self.daemon.port)
        self.running.close()
        self.daemon = self.running.enter_context(self.shape.daemon(self.home, "--port", port))


@pytest.fixture(scope="module")
def engine(world_readable: Installation) -> Iterator[Engine]:
    shape = Shape("same-user", ORDINARY, tuple(world_readable.command), world_readable.env)
    folder = Path(tempfile.mkdtemp(prefix="spl-"))
    folder.chmod(0o777)
    try:
        with contextlib.ExitStack() as running:
            daemon = running.enter_context(shape.daemon(folder / "home"))
            engine = Engine(shape, folder / "home", running, daemon)
            engine.mia = daemon.request("POST", "/v1/members", {"label": "mia"})["token"]
            yield engine
    finally:
        shutil.rmtree(folder)


async def written(client: Client, thread: str, *bodies: Json, kind: str = NOTE) -> list[str]:
    """Emit records; gives their ids."""
    results = [await client.emit(act="KNOW", kind=kind, body=body, thread=thread) for body in bodies]
    assert [result.error for result in results] == [None] * len(bodies)
    return [str(result.record_id) for result in results]


# --- writing ---


def test_what_the_sdk_emits_is_in_the_log_under_the_id_that_it_reckons_itself(engine: Engine) -> None:
    async def talk() -> None:
        told: list[str] = []
        async with engine.sdk(on_emit=lambda result: told.append(str(result.record_id))) as client:
            [first] = await written(client, "th_emit", {"text": "né 😀"})
            result = await client.emit(
                act="PUT",
                kind=NOTE,
                body={"n": 1.0, "big": 2**70, "none": None},
                thread="th_emit",
                refs=[Ref.media_photo(sha256="ab")],
                parents=[first],
                data_type="REFERENCE",
                clock=2**62,
            )
            assert (result.success, result.clock) == (True, 2**62)
            [_, stored] = await client.query_thread("th_emit")
        assert stored["body"] == {
            "n": 1,
            "big": 2**70,
            "none": None,
            "kind": NOTE,
            "_refs": [{"kind": "@media.photo", "id": "sha256:ab"}],
        }
        names = ("act", "actor", "body", "clock", "data_type", "parents", "thread")
        assert (
            stored["id"]
            == result.record_id
            == sdk_record_id({name: stored[name] for name in names}, fields=7)
        )
        assert told == [first, stored["id"]]

    asyncio.run(talk())


def test_the_sdk_emits_without_an_event_loop_and_the_same_record_again_is_the_same(engine: Engine) -> None:
    client = engine.sdk()
    try:
        emitted = [
            client.emit_sync(act="KNOW", kind=NOTE, body={"n": 1}, thread="th_sync", clock=7)
            for _ in range(2)
        ]
        assert [result.success for result in emitted] == [True, True]
        assert emitted[0].record_id == emitted[1].record_id
        other = client.emit_sync(act="KNOW", kind=NOTE, body={"n": 2}, thread="th_sync", clock=7)
        assert (other.success, other.retried) == (False, 0)
        assert "DuplicateClock" in str(other.error)
    finally:
        asyncio.run(client.close())


def test_a_thread_is_opened_and_closed_with_kinds_of_ones_own(engine: Engine) -> None:
    async def talk() -> None:
        async with engine.sdk() as client:
            begun = await client.intend("Count the stars.", kind=TASK)
            assert begun.success, begun.error
            ended = await client.fulfill(
                begun.thread,
                "Too many.",
                fulfills=begun.record_id,
                kind=RESULT,
                parents=[str(begun.record_id)],
            )
            assert ended.success, ended.error
            opened, closed = await client.query_thread(begun.thread)
        assert (opened["act"], opened["body"]["goal"]) == ("INTEND", "Count the stars.")
        assert (closed["act"], closed["body"]["fulfills"], closed["parents"]) == (
            "KNOW",
            begun.record_id,
            [begun.record_id],
        )

    asyncio.run(talk())


def test_a_kind_of_the_engines_or_without_a_version_is_refused_and_the_sdk_is_told_why(
    engine: Engine,
) -> None:
    async def talk() -> None:
        async with engine.sdk() as client:
            with pytest.raises(SyncropelKindError):
                await client.emit(act="PUT", kind="nothing", body={}, thread="th_kinds")
            unversioned = await client.emit(act="PUT", kind="music.catalog.track", body={}, thread="th_kinds")
            assert "INGEST_FAILED" in str(unversioned.error)
            corrected = await client.emit_correction(
                corrects=["0" * 64], revised_fields={"a": 1}, reason="a slip", thread="th_kinds"
            )
            intended = await client.intend("Anything.", thread="th_kinds")
            for result in (unversioned, corrected, intended):
                # Told once: what is refused is not sent again.
                assert (result.success, result.retried) == (False, 0)
                assert str(result.error).startswith("HTTP 4")
            assert await client.query_thread("th_kinds") == []

    asyncio.run(talk())


# --- ids ---

_characters = st.characters(exclude_categories=["Cs"])
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**300), 10**300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(_characters, max_size=20)
)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(_characters, max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
_bodies = st.dictionaries(
    st.text(_characters, max_size=8).filter(lambda key: key != "kind"), _values, max_size=5
)
_records = st.fixed_dictionaries(
    {
        "act": st.sampled_from(ACTS),
        "actor": st.just(OPERATOR),
        "body": _bodies,
        "clock": st.integers(0, 2**63 - 1),
        "data_type": st.sampled_from(DATA_TYPES),
        "parents": st.lists(
            st.integers(0, 2**256 - 1).map(lambda n: f"{n:064x}"), max_size=4, unique=True
        ).map(sorted),
        "thread": st.text("Az09._:@-", min_size=1, max_size=40),
    }
)


@given(_records)
@settings(max_examples=60, deadline=None)
def test_the_sdk_and_this_package_reckon_the_same_id(fields: Json) -> None:
    assert sdk_record_id(SdkRecord(**fields), fields=7) == record_id(**fields)


@given(st.lists(_records, min_size=2, max_size=4))
@settings(max_examples=5, deadline=None)
def test_the_daemon_gives_a_record_the_id_that_the_sdk_reckons(engine: Engine, made: list[Json]) -> None:
    with httpx.Client(
        base_url=f"http://127.0.0.1:{engine.daemon.port}", headers={"x-api-key": engine.token}
    ) as http:
        for n, fields in enumerate(made):
            sent = SdkRecord(**{**fields, "thread": f"th_ids_{sdk_record_id(fields)}_{n}"[:200]})
            answer = http.post("/v1/records", json=sent.to_api_dict())
            assert answer.status_code in (200, 201), answer.text
            assert answer.json()["id"] == sdk_record_id(sent, fields=7)


# --- asking ---


def test_records_are_asked_for_by_thread_actor_kind_and_what_is_in_them(engine: Engine) -> None:
    async def talk() -> None:
        async with engine.sdk() as client, engine.members() as mia:
            first, *_ = await written(client, "th_asked", {"n": 1}, {"n": 2}, {"n": 3})
            await written(client, "th_asked", {"n": 2}, kind=TASK)
            [of_mia] = await written(mia, "th_mias", {"n": 2})

            found = await client.query_thread("th_asked", limit=2)
            assert [record["body"]["n"] for record in found] == [1, 2]
            rest = await client.query_thread("th_asked", since=found[-1]["sequence"])
            assert [record["body"]["n"] for record in rest] == [3, 2]

            found = await client.query(thread="th_asked", kind=NOTE, where={"body.n": 2})
            assert [record["body"]["kind"] for record in found] == [NOTE]
            assert of_mia in [record["id"] for record in await client.query(actor=MIA, limit=1000)]
            assert first not in [record["id"] for record in await mia.query(actor=OPERATOR)]
            assert await mia.query_thread("th_asked") == []
            assert await client.health() == {"status": "ok"}

    asyncio.run(talk())


RICH: list[Json] = [
    {"n": 1, "text": "Alpha", "flag": True, "deep": {"key": {"x y": "here"}}},
    {"n": 2.5, "text": "beta", "flag": False, "none": None},
    {"n": 10, "text": "ALPHABET", "none": 0},
    {"n": "10", "text": "100%"},
    {"n": 2**70, "flag": 1, "é'\"$": [1]},
]


@pytest.fixture(scope="module")
def rich(engine: Engine) -> list[str]:
    """Give the ids of records to be found by what is in them."""

    async def write() -> list[str]:
        async with engine.sdk() as client:
            return await written(client, "th_rich", *RICH)

    return asyncio.run(write())


FILTERS: list[tuple[Json, list[int]]] = [
    ({}, [0, 1, 2, 3, 4]),
    ({"body.n": 10}, [2]),
    ({"body.n": {"$eq": "10"}}, [3]),
    ({"body.n": 2**70}, [4]),
    ({"body.n": {"$ne": 10}}, [0, 1, 3, 4]),
    ({"body.n": {"$gt": 1, "$lte": 10}}, [1, 2]),
    ({"body.n": {"$gte": 2.5}}, [1, 2, 4]),
    ({"body.n": {"$lt": 2.5}}, [0]),
    ({"body.text": {"$gt": "B"}}, [1]),
    ({"body.n": {"$in": [1, "10"]}}, [0, 3]),
    ({"body.n": {"$nin": [1, "10"]}}, [1, 2, 4]),
    ({"body.text": {"$like": "Al%"}}, [0]),
    ({"body.text": {"$ilike": "al_ha%"}}, [0, 2]),
    ({"body.text": {"$like": "%\\%"}}, [3]),
    ({"body.flag": True}, [0]),
    ({"body.flag": 1}, [4]),
    ({"body.none": None}, [1]),
    ({"body.none": {"$exists": True}}, [1, 2]),
    ({"body.text": {"$exists": False}}, [4]),
    ({"body.deep.key.x y": "here"}, [0]),
    ({"$or": [{"body.n": 1}, {"body.text": "beta"}]}, [0, 1]),
    ({"$and": [{"body.flag": {"$exists": True}}, {"body.n": {"$gt": 1}}]}, [1, 4]),
    ({"$not": {"body.flag": {"$exists": True}}}, [2, 3]),
    ({"body.n": {"$not": {"$gt": 1}}}, [0, 3]),
    ({"body.kind": NOTE, "actor": OPERATOR, "act": "KNOW", "data_type": "SCALAR"}, [0, 1, 2, 3, 4]),
    ({"body.kind": "acme.notes.other.v1"}, []),
    ({"clock": {"$gt": 0}, "sequence": {"$gt": 0}, "judged_by": {"$like": "%"}}, []),
]


def test_a_rich_query_finds_what_its_filter_says(engine: Engine, rich: list[str]) -> None:
    async def talk() -> None:
        found = []
        async with engine.sdk() as client:
            for asked, _ in FILTERS:
                answer = await client.rich_query(filter=asked, thread="th_rich")
                found.append((asked, [rich.index(record["id"]) for record in answer["records"]]))
        assert found == FILTERS

    asyncio.run(talk())


def test_a_rich_query_sorts_pages_and_tells_its_plan(engine: Engine, rich: list[str]) -> None:
    async def talk() -> None:
        async with engine.sdk() as client:

            async def found(**asked: Any) -> list[int]:
                answer = await client.rich_query(filter={"thread": "th_rich"}, **asked)
                assert set(answer) == {"records"}
                return [rich.index(record["id"]) for record in answer["records"]]

            assert await found(sort={"sequence": -1}) == [4, 3, 2, 1, 0]
            # Numbers before texts.
            assert await found(sort={"body.n": 1}) == [0, 1, 2, 4, 3]
            assert await found(sort={"body.n": -1}, limit=2) == [3, 4]
            assert await found(sort={"body.n": -1}, limit=2, offset=2) == [2, 1]
            assert await found(limit=2, offset=4) == [4]
            assert await found(offset=5) == []

            answer = await client.rich_query(filter={"body.n": 1}, thread="th_rich", explain=True)
        assert [record["id"] for record in answer["records"]] == rich[:1]
        assert answer["plan"]["indexed"] == ["thread"]
        assert "th_rich" not in json.dumps(answer["plan"])

    asyncio.run(talk())


def test_a_member_finds_what_is_its_own_by_any_filter(engine: Engine, rich: list[str]) -> None:
    async def talk() -> None:
        async with engine.members() as mia:
            [own] = await written(mia, "th_mias_rich", {"n": 1, "mine": True})
            for asked in ({"body.mine": True}, {"$or": [{"body.mine": True}, {"thread": "th_rich"}]}):
                answer = await mia.rich_query(filter=asked, explain=True)
                assert [record["id"] for record in answer["records"]] == [own]
            assert (await mia.rich_query(filter={}, thread="th_rich"))["records"] == []

    asyncio.run(talk())


# --- watching ---


@pytest.mark.parametrize("by", ["x-api-key", "bearer", "both"])
def test_a_subscription_tells_what_is_there_and_what_comes_in_order(engine: Engine, by: str) -> None:
    thread = f"th_subscribed_{by}"

    async def talk() -> None:
        async with engine.sdk() as writer, engine.members() as mia:
            key = "" if by == "bearer" else engine.token
            seen = Seen()
            async with engine.sdk(token=key) as client:
                await written(writer, thread, {"n": 0}, {"n": 1})
                clock = (await writer.query_thread(thread))[0]["clock"]
                client.subscribe(
                    thread, seen, since_clock=clock, bearer=engine.token if by != "x-api-key" else None
                )
                assert await seen.numbers(1) == [1]
                await written(writer, thread, {"n": 2}, {"n": 3})
                await written(mia, "th_mias_own", {"n": 9})
                assert await seen.numbers(3) == [1, 2, 3]

    asyncio.run(talk())


def test_subscriptions_outlive_the_daemon_and_go_on_without_a_gap_or_a_repeat(engine: Engine) -> None:
    async def talk() -> None:
        quickly = {"reconnect_base_s": 0.05, "reconnect_max_s": 0.1}
        async with engine.sdk() as client, engine.members() as mia:
            subscribed = [(client, "th_outlived", Seen()), (mia, "th_mias_outlived", Seen())]
            why = asyncio.Queue[str]()
            for each, thread, seen in subscribed:
                await written(each, thread, {"n": 0}, {"n": 1})
                each.subscribe(thread, seen, on_error=lambda error: why.put_nowait(error.reason), **quickly)
                assert await seen.numbers(2) == [0, 1]
            await asyncio.to_thread(engine.stop)
            for _ in subscribed:
                assert await asyncio.wait_for(why.get(), SECONDS) == "server_shutdown"
            await asyncio.to_thread(engine.start)
            for each, thread, seen in subscribed:
                await written(each, thread, {"n": 2}, {"n": 3})
                assert await seen.numbers(4) == [0, 1, 2, 3]

    asyncio.run(talk())


def test_a_subscription_without_a_token_that_is_live_is_told_so(engine: Engine) -> None:
    async def talk() -> None:
        why = asyncio.Queue[str]()
        async with engine.sdk(token="spl_local_00000000_none") as client:
            client.subscribe(
                "th_x", Seen(), on_error=lambda error: why.put_nowait(error.message), max_reconnects=0
            )
            said = await asyncio.wait_for(why.get(), SECONDS)
        assert said.startswith("HTTP 401")
        assert "UNAUTHENTICATED" in said

    asyncio.run(talk())


class Seen:
    """Keeps the numbers of the records that a subscription is called with."""

    def __init__(self) -> None:
        self._told = asyncio.Queue[int]()
        self._found: list[int] = []

    def __call__(self, record: Json) -> None:
        self._told.put_nowait(record["body"]["n"])

    async def numbers(self, most: int) -> list[int]:
        """Give all that came, once there are so many."""
        while len(self._found) < most or not self._told.empty():
            self._found.append(await asyncio.wait_for(self._told.get(), SECONDS))
        return list(self._found)


# --- what is not ours ---

# By their own classes: in 0.7 `Client.membership` fails before it asks anything, for want of an import.
NOT_OURS: dict[str, Callable[[ClientData, ClientMembership], Awaitable[Any]]] = {
    "data.write": lambda data, _: data.write(path="/files/x", data="x"),
    "data.read": lambda data, _: data.read("/files/x"),
    "data.read_url": lambda data, _: data.read_url("/files/x"),
    "data.list": lambda data, _: data.list("/files", limit=1),
    "data.stat": lambda data, _: data.stat("/files/x"),
    "data.mkdir": lambda data, _: data.mkdir("/files/x"),
    "data.mv": lambda data, _: data.mv("/files/x", "/files/y"),
    "data.rm": lambda data, _: data.rm("/files/x", recursive=True),
    "data.materials": lambda data, _: data.materials(q="x"),
    "data.node": lambda data, _: data.node("/files/x"),
    "data.publish": lambda data, _: data.publish("/files/x"),
    "data.usage": lambda data, _: data.usage(),
    "data.capabilities": lambda data, _: data.capabilities(),
    "data.provenance": lambda data, _: data.provenance(),
    "membership.issue_invite": lambda _, membership: membership.issue_invite(membership={"preset": "reader"}),
    "membership.redeem_invite": lambda _, membership: membership.redeem_invite("x", holder_pubkey="00"),
    "membership.adopt": lambda _, membership: membership.adopt("mia"),
    "membership.mint_agent_grant": lambda _, membership: membership.mint_agent_grant("mia", aud="did:x:y"),
    "membership.revoke_agent_grant": lambda _, membership: membership.revoke_agent_grant("mia", "g"),
}


def test_what_the_sdk_asks_of_another_world_is_not_found(engine: Engine) -> None:
    async def talk() -> None:
        found = {}
        async with engine.http() as http:
            for name, call in NOT_OURS.items():
                with pytest.raises((SyncropelDataError, SyncropelMembershipError)) as refused:
                    await call(ClientData(http), ClientMembership(http))
                found[name] = refused.value.status, refused.value.code
        assert found == dict.fromkeys(NOT_OURS, (404, "NOT_FOUND"))

    asyncio.run(talk())


def test_search_and_inference_are_not_found_and_refused(engine: Engine) -> None:
    async def talk() -> None:
        async with engine.sdk() as client:
            assert (await client.search("stars"))["hits"] == []
            inferred = {
                "input": {"goal": "x"},
                "responders": [{"kind": "llm"}],
                "fold": {"function": "consensus"},
            }
            with pytest.raises(RuntimeError, match="HTTP 400"):
                await client.infer(inferred, InferOptions(wait=False))
        async with engine.http() as http:
            # What `search` makes of an answer tells no 404 from a 405.
            for method, path in (
                ("POST", "/v1/records/search"),
                ("PUT", "/v1/blobs/upload/x"),
                ("POST", "/v1/data/write/complete"),
            ):
                answer = await http.request(method, path, json={"query": "stars"})
                assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")

    asyncio.run(talk())


def test_members_are_listed_and_taken_away_by_the_sdk_too(engine: Engine) -> None:
    async def talk() -> None:
        engine.daemon.request("POST", "/v1/members", {"label": "ben"})
        async with engine.http() as http, engine.http(engine.mia) as mia:
            membership = ClientMembership(http)
            assert [member["label"] for member in await membership.list_members()] == ["mia", "ben"]
            assert (await membership.revoke_member("ben"))["revoked"] is True
            assert [member["label"] for member in await membership.list_members()] == ["mia"]
            with pytest.raises(SyncropelMembershipError) as refused:
                await ClientMembership(mia).list_members()
        assert (refused.value.status, refused.value.code) == (403, "SCOPE_DENIED")

    asyncio.run(talk())
