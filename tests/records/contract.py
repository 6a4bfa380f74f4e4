"""What every store must do. A backend's test module inherits `StoreContract` and gives it `make_store`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from itertools import product
from typing import Any, TypeAlias, TypeVar

import pytest

from spl.errors import IngestFailed, QueryExceeded, StoreUnavailable
from spl.records.filter import Search, filter_of, sort_of
from spl.records.record import MAX_CLOCK, Draft, Record, record_id
from spl.records.store import Store, ThreadRow

MakeStore: TypeAlias = Callable[[], AbstractAsyncContextManager[Store]]
"""Opens the test's own store, closed at the end of the block; the next call opens the same one again."""

T = TypeVar("T")

ANCHOR = "core.work.loop.v1"
OPENING = "acme.work.opening.v1"
CLOSING = "acme.work.closing.v1"


def draft(text: str = "hello", **fields: Any) -> Draft:
    """Give a draft that a store takes, but for the fields given."""
    given = {"thread": "th_1", "actor": "did:sync:user:ana", "act": "KNOW", "body": {"text": text}, **fields}
    return Draft(**given)


def of_kind(kind: str, **fields: Any) -> Draft:
    """Give a draft with this kind."""
    return draft(body={"kind": kind}, **fields)


def run_of(whose: object, **fields: Any) -> Draft:
    """Give a draft of a run's anchor, whose body names this actor."""
    return draft(body={"kind": ANCHOR, "actor": whose}, **{"actor": "did:sync:system:engine", **fields})


def in_store(make_store: MakeStore, scenario: Callable[[Store], Awaitable[T]]) -> T:
    """Run a scenario on the test's store in a loop of its own."""

    async def run() -> T:
        async with make_store() as store:
            return await scenario(store)

    return asyncio.run(run())


async def texts(store: Store, **query: Any) -> list[str]:
    """Give the texts of the records that a query finds."""
    return [record.body["text"] for record in await store.select(**query)]


class StoreContract:
    """The contract; the name keeps pytest from collecting it here."""

    def test_a_record_comes_back_as_it_was_written(self, make_store: MakeStore) -> None:
        parents = ("f" * 64, "0" * 64, "f" * 64)
        wanted = draft(
            thread="th_a:b@c.d-e",
            act="LEARN",
            body={"kind": "acme.note.text.v1", "né": ["😀", 1.5, None, {"b": True, "a": []}]},
            parents=parents,
            data_type="MORPHISM",
            judged_by="did:sync:system:engine",
        )

        async def scenario(store: Store) -> None:
            [(record, created)] = await store.append([wanted])
            assert created
            assert record.parents == ("0" * 64, "f" * 64)
            assert (record.thread, record.actor, record.act) == (wanted.thread, wanted.actor, "LEARN")
            assert (record.body, record.data_type) == (wanted.body, "MORPHISM")
            assert (record.judged_by, record.clock, record.sequence) == (wanted.judged_by, 1, 1)
            assert record.kind == "acme.note.text.v1"
            assert await store.get(record.id) == record
            assert await store.select() == [record]

        in_store(make_store, scenario)

    def test_the_id_is_the_hash_of_the_record_given_back(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            [(r, _)] = await store.append(
                [draft(body={"n": 2.0, "z": {"b": 1, "a": -0.0}}, parents=("e" * 64,))]
            )
            assert r.id == record_id(r.parents, r.thread, r.actor, r.act, r.body, r.clock, r.data_type)
            assert [type(r.body["n"]), type(r.body["z"]["a"])] == [int, int]

        in_store(make_store, scenario)

    def test_a_body_changed_after_the_append_was_asked_for_changes_no_record(
        self, make_store: MakeStore
    ) -> None:
        async def scenario(store: Store) -> None:
            body: dict[str, Any] = {"kind": OPENING, "list": [1]}
            waiting = asyncio.ensure_future(store.append([draft(body=body)]))
            await asyncio.sleep(0)
            body["kind"] = CLOSING
            body["list"].append(2)
            [(record, _)] = await waiting
            assert record.body == {"kind": OPENING, "list": [1]}
            assert await store.select(kind=OPENING) == [record]
            record.body["list"].append(3)
            assert (await store.select())[0].body == {"kind": OPENING, "list": [1]}

        in_store(make_store, scenario)

    def test_nothing_to_append_is_nothing_appended(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            assert await store.append([]) == []
            assert await store.count() == 0

        in_store(make_store, scenario)

    def test_records_are_there_when_the_store_is_opened_again(self, make_store: MakeStore) -> None:
        async def write(store: Store) -> list[Record]:
            return [record for record, _ in await store.append([draft("a"), draft("b")])]

        async def read(store: Store) -> list[Record]:
            [(third, _)] = await store.append([draft("c")])
            assert (third.sequence, third.clock) == (3, 3)
            return await store.select(limit=2)

        assert in_store(make_store, write) == in_store(make_store, read)

    # --- clocks ---

    def test_clocks_left_out_count_from_one_for_each_actor_on_each_thread(
        self, make_store: MakeStore
    ) -> None:
        async def scenario(store: Store) -> None:
            written = await store.append(
                [
                    draft(),
                    draft(),
                    draft(actor="did:sync:user:bo"),
                    draft(thread="th_2"),
                    draft(clock=10),
                    draft(),
                ]
            )
            assert [appended.record.clock for appended in written] == [1, 2, 1, 1, 10, 11]
            assert [appended.record.sequence for appended in written] == [1, 2, 3, 4, 5, 6]

        in_store(make_store, scenario)

    def test_a_first_clock_may_be_zero(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            written = await store.append([draft(clock=0), draft()])
            assert [appended.record.clock for appended in written] == [0, 1]

        in_store(make_store, scenario)

    def test_a_clock_used_with_other_content_is_a_duplicate(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft("a", clock=5), draft("b", clock=6)])
            for clock in (5, 6):
                with pytest.raises(IngestFailed, match="DuplicateClock"):
                    await store.append([draft("other", clock=clock)])
            assert await texts(store) == ["a", "b"]

        in_store(make_store, scenario)

    def test_an_unused_clock_below_the_highest_is_not_rising(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft("a", clock=5)])
            with pytest.raises(IngestFailed, match="ClockNotRising"):
                await store.append([draft("b", clock=4)])
            assert await store.count() == 1

        in_store(make_store, scenario)

    def test_after_the_highest_clock_there_is_no_next(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft(clock=MAX_CLOCK)])
            with pytest.raises(IngestFailed, match="highest clock"):
                await store.append([draft()])

        in_store(make_store, scenario)

    # --- the same record again ---

    def test_the_same_record_again_is_the_one_that_stands(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            [first] = await store.append([draft("a", clock=3, judged_by="did:sync:user:first")])
            await store.append([draft("b")])
            [again] = await store.append([draft("a", clock=3, judged_by="did:sync:user:second")])
            assert again == (first.record, False)
            assert await store.count() == 2

        in_store(make_store, scenario)

    def test_the_same_record_twice_in_one_append_is_one_record(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            first, second = await store.append([draft(clock=1), draft(clock=1)])
            assert first.created
            assert second == (first.record, False)

        in_store(make_store, scenario)

    def test_an_append_sent_again_writes_nothing_new(self, make_store: MakeStore) -> None:
        batch = [draft("a", clock=1), draft("b", clock=2)]

        async def scenario(store: Store) -> None:
            first = await store.append(batch)
            assert await store.append(batch) == [(record, False) for record, _ in first]

        in_store(make_store, scenario)

    # --- all or none ---

    @pytest.mark.parametrize("bad", [draft(clock=1), draft(clock=-1), draft(thread="a/b"), draft(act="SAY")])
    def test_one_bad_draft_keeps_the_whole_append_out(self, make_store: MakeStore, bad: Draft) -> None:
        async def scenario(store: Store) -> None:
            with pytest.raises(IngestFailed):
                await store.append([draft(clock=2), draft(thread="th_2"), bad])
            assert await store.count() == 0
            assert await store.threads() == []

        in_store(make_store, scenario)

    def test_one_bad_append_leaves_its_neighbours_alone(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            drafts = [draft(str(n), clock=n) for n in range(1, 6)]
            drafts[2] = draft("bad", clock=1)
            results = await asyncio.gather(*(store.append([d]) for d in drafts), return_exceptions=True)
            assert [isinstance(result, IngestFailed) for result in results] == [
                False,
                False,
                True,
                False,
                False,
            ]
            assert await texts(store) == ["1", "2", "4", "5"]
            assert [record.sequence for record in await store.select()] == [1, 2, 3, 4]

        in_store(make_store, scenario)

    # --- reading ---

    def test_select_finds_by_thread_actor_and_kind_in_every_combination(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append(
                [
                    of_kind(name, thread=place, actor=author)
                    for place in ("th_1", "th_2")
                    for author in ("did:a:1", "did:a:2")
                    for name in (OPENING, CLOSING)
                ]
            )
            everything = await store.select()
            assert len(everything) == 8
            for thread in (None, "th_2"):
                for actor in (None, "did:a:2"):
                    for kind in (None, CLOSING):
                        expected = [
                            record
                            for record in everything
                            if record.thread == (thread or record.thread)
                            and record.actor == (actor or record.actor)
                            and record.kind == (kind or record.kind)
                        ]
                        assert await store.select(thread=thread, actor=actor, kind=kind) == expected
                        newest = await store.select(thread=thread, actor=actor, kind=kind, newest_first=True)
                        assert newest == expected[::-1]
            assert await store.select(thread="th_3") == []

        in_store(make_store, scenario)

    def test_pages_follow_each_other_without_a_gap_or_a_repeat(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft(str(n), thread=f"th_{n % 2}") for n in range(10)])
            read: list[Record] = []
            while page := await store.select(thread="th_1", since=read[-1].sequence if read else 0, limit=2):
                read += page
            assert [record.body["text"] for record in read] == ["1", "3", "5", "7", "9"]
            assert await texts(store, since=7, newest_first=True, limit=2) == ["9", "8"]
            assert await texts(store, since=8, newest_first=True) == ["9", "8"]

        in_store(make_store, scenario)

    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_limit_below_one_gives_nothing(self, make_store: MakeStore, limit: int) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft()])
            assert await store.select(limit=limit) == []
            assert await store.threads(limit=limit) == []

        in_store(make_store, scenario)

    def test_numbers_beyond_any_sequence_are_no_fault(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft("a")])
            assert await texts(store, limit=10**30) == ["a"]
            assert await texts(store, since=-(10**30)) == ["a"]
            assert await texts(store, since=10**30) == []

        in_store(make_store, scenario)

    @pytest.mark.parametrize("id_", ["", "0" * 64, "0" * 63, "g" * 64, "A" * 64, "0" * 64 + "\n"])
    def test_an_id_of_no_record_finds_none(self, make_store: MakeStore, id_: str) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft()])
            assert await store.get(id_) is None

        in_store(make_store, scenario)

    def test_threads_are_listed_in_the_order_they_began(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            for thread in ("th_b", "th_a", "th_b", "th_c", "th_a", "th_b"):
                await store.append([draft(thread=thread)])
            b, a, c = ThreadRow("th_b", 3, 1, 6), ThreadRow("th_a", 2, 2, 5), ThreadRow("th_c", 1, 4, 4)
            assert await store.threads() == [b, a, c]
            assert await store.threads(limit=2) == [b, a]
            assert await store.threads(since=2) == [c]

        in_store(make_store, scenario)

    def test_unfinished_gives_the_openings_whose_thread_was_never_closed(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            for thread in ("th_1", "th_2", "th_3"):
                await store.append([of_kind(OPENING, thread=thread), draft(thread=thread)])
            await store.append([of_kind(CLOSING, thread="th_2"), of_kind(CLOSING, thread="th_4")])
            assert [record.thread for record in await store.unfinished(OPENING, CLOSING)] == ["th_1", "th_3"]

        in_store(make_store, scenario)

    # --- whose a thread is ---

    def test_a_thread_belongs_to_whom_its_first_record_says(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append(
                [
                    draft(thread="th_own", actor="did:a:ana"),
                    draft(thread="th_own", actor="did:a:bo"),
                    run_of("did:a:ana", thread="th_run"),
                    draft(thread="th_run", actor="did:a:bo"),
                    # An anchor that is not the first record gives nothing away.
                    draft(thread="th_late", actor="did:a:bo"),
                    run_of("did:a:ana", thread="th_late"),
                    of_kind("acme.work.loop.v1", thread="th_named", actor="did:a:bo"),
                ]
            )
            owners = {
                thread: await store.owner(thread) for thread in ("th_own", "th_run", "th_late", "th_named")
            }
            assert owners == {
                "th_own": "did:a:ana",
                "th_run": "did:a:ana",
                "th_late": "did:a:bo",
                "th_named": "did:a:bo",
            }

        in_store(make_store, scenario)

    def test_a_body_gives_a_thread_away_only_as_an_anchor(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft(actor="did:a:bo", body={"kind": OPENING, "actor": "did:a:ana"})])
            assert await store.owner("th_1") == "did:a:bo"

        in_store(make_store, scenario)

    @pytest.mark.parametrize("said", [None, 7, True, ["did:a:ana"], {"did:a:ana": 1}])
    def test_an_anchor_that_names_nobody_leaves_its_thread_to_its_writer(
        self, make_store: MakeStore, said: object
    ) -> None:
        async def scenario(store: Store) -> None:
            await store.append(
                [run_of(said, actor="did:a:bo"), of_kind(ANCHOR, thread="th_2", actor="did:a:bo")]
            )
            assert [await store.owner(thread) for thread in ("th_1", "th_2")] == ["did:a:bo"] * 2

        in_store(make_store, scenario)

    def test_a_thread_that_has_not_begun_is_nobodys(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            assert [await store.owner(thread) for thread in ("th_1", "", "a\0b")] == [None] * 3

        in_store(make_store, scenario)

    def test_what_is_read_for_an_owner_is_what_stands_on_its_threads(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            for place, owner in (("th_1", "did:a:ana"), ("th_2", "did:a:bo"), ("th_3", "did:a:ana")):
                await store.append([run_of(owner, thread=place)])
            # Each writes on each thread, out of the order the threads began in.
            for place in ("th_3", "th_1", "th_2"):
                for author in ("did:a:ana", "did:a:bo"):
                    await store.append(
                        [of_kind(name, thread=place, actor=author) for name in (OPENING, CLOSING)]
                    )
            everything = await store.select()
            assert len(everything) == 15
            for thread, actor, kind in product(
                (None, "th_1", "th_2"), (None, "did:a:bo"), (None, CLOSING, ANCHOR)
            ):
                expected = [
                    record
                    for record in everything
                    if record.thread in ("th_1", "th_3")
                    and record.thread == (thread or record.thread)
                    and record.actor == (actor or record.actor)
                    and record.kind == (kind or record.kind)
                ]
                asked: Any = {"thread": thread, "actor": actor, "kind": kind, "owner": "did:a:ana"}
                assert await store.select(**asked) == expected
                assert await store.select(**asked, newest_first=True) == expected[::-1]
            assert await store.select(owner="did:a:nobody") == []
            assert await store.select(owner="") == []

        in_store(make_store, scenario)

    def test_an_owners_pages_follow_each_other_without_a_gap_or_a_repeat(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            owners = {"th_0": "did:a:ana", "th_1": "did:a:bo", "th_2": "did:a:ana"}
            await store.append(
                [draft(str(n), thread=f"th_{n % 3}", actor=owners[f"th_{n % 3}"]) for n in range(12)]
            )
            read: list[Record] = []
            while page := await store.select(
                owner="did:a:ana", since=read[-1].sequence if read else 0, limit=3
            ):
                read += page
            assert [record.body["text"] for record in read] == ["0", "2", "3", "5", "6", "8", "9", "11"]
            assert await texts(store, owner="did:a:ana", since=7, newest_first=True, limit=2) == ["11", "9"]

        in_store(make_store, scenario)

    def test_threads_are_listed_for_their_owner_alone(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append(
                [
                    run_of("did:a:ana", thread="th_c"),
                    draft(thread="th_b", actor="did:a:bo"),
                    draft(thread="th_a", actor="did:a:ana"),
                    draft(thread="th_b", actor="did:a:ana"),
                    draft(thread="th_c", actor="did:a:bo"),
                ]
            )
            c, b, a = ThreadRow("th_c", 2, 1, 5), ThreadRow("th_b", 2, 2, 4), ThreadRow("th_a", 1, 3, 3)
            assert await store.threads(owner="did:a:ana") == [c, a]
            assert await store.threads(owner="did:a:bo") == [b]
            assert await store.threads(owner="did:a:ana", limit=1) == [c]
            assert await store.threads(owner="did:a:ana", since=1) == [a]
            assert await store.threads(owner="did:a:nobody") == []

        in_store(make_store, scenario)

    # --- searching ---

    def test_a_search_gives_what_its_filter_matches_as_it_is_sorted_and_from_its_offset(
        self, make_store: MakeStore
    ) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft(str(n), thread=f"th_{n % 2}") for n in range(10)])
            even = filter_of({"body.text": {"$nin": ["0", "4"]}}, "th_0")
            falling = sort_of({"body.text": -1})

            async def found(**asked: Any) -> tuple[list[str], bool]:
                records, has_more, plan = await store.search(Search(even, **asked))
                assert plan is None
                return [record.body["text"] for record in records], has_more

            assert await found() == (["2", "6", "8"], False)
            assert await found(sort=falling) == (["8", "6", "2"], False)
            assert await found(sort=falling, limit=2) == (["8", "6"], True)
            assert await found(sort=falling, limit=2, offset=1) == (["6", "2"], False)
            assert await found(offset=3) == ([], False)
            assert len((await store.search(Search())).records) == 10

        in_store(make_store, scenario)

    def test_a_search_for_an_owner_gives_what_stands_on_its_threads(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            for place, owner in (("th_1", "did:a:ana"), ("th_2", "did:a:bo"), ("th_3", "did:a:ana")):
                await store.append([run_of(owner, thread=place)])
            for place in ("th_3", "th_1", "th_2"):
                for author in ("did:a:ana", "did:a:bo"):
                    await store.append([of_kind(OPENING, thread=place, actor=author)])
            everything = await store.select()
            asked: tuple[tuple[dict[str, Any], str | None], ...] = (
                ({}, None),
                ({}, "th_1"),
                ({}, "th_2"),
                ({"thread": {"$in": ["th_2", "th_3"]}}, None),
                ({"$or": [{"thread": "th_2"}, {"body.kind": OPENING}]}, None),
                ({"id": {"$in": [record.id for record in everything]}}, None),
                ({"sequence": {"$gt": 0}}, None),
                ({"actor": "did:a:bo"}, None),
                ({"$not": {"thread": "th_1"}}, None),
            )
            for document, thread in asked:
                search = Search(filter_of(document, thread))
                wanted = (await store.search(search)).records
                assert wanted
                own = [record for record in wanted if record.thread in ("th_1", "th_3")]
                assert (await store.search(search, owner="did:a:ana")).records == own
                assert (await store.search(search, owner="did:a:nobody")).records == []

        in_store(make_store, scenario)

    def test_a_search_under_a_bound_in_bytes_says_that_there_is_more(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft("x" * 1000) for _ in range(4)])
            for offset, wanted, more in ((0, [1, 2], True), (2, [3, 4], False), (3, [4], False)):
                found = await store.search(Search(offset=offset), most_bytes=1100)
                assert [record.sequence for record in found.records] == wanted
                assert found.has_more == more

        in_store(make_store, scenario)

    def test_a_search_that_takes_too_long_is_refused_and_keeps_the_store_from_nothing(
        self, make_store: MakeStore
    ) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft("a" * 500) for _ in range(300)])
            slow = filter_of(
                {"$or": [{"body.text": {"$ilike": f"%{'a%' * 100}{n}"}} for n in range(45)]}, "th_1"
            )
            with pytest.raises(QueryExceeded, match=r"takes over 0\.001 seconds"):
                await store.search(Search(slow), seconds=0.001)
            assert len((await store.search(Search(limit=1000), seconds=60)).records) == 300
            assert len(await texts(store, limit=1000)) == 300

        in_store(make_store, scenario)

    # --- a bound on what is read at once ---

    def test_a_bound_in_bytes_ends_after_the_record_that_reaches_it(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft("x" * 1000) for _ in range(5)])
            # A body is its text and the object around it: a little over a thousand characters.
            for most, found in ((1, 1), (1000, 1), (1100, 2), (2500, 3), (10_000, 5)):
                assert len(await store.select(most_bytes=most)) == found
            assert len(await store.select(most_bytes=10_000, limit=2)) == 2

        in_store(make_store, scenario)

    def test_what_is_read_under_a_bound_is_read_on_until_nothing_comes(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            sizes = (1, 5000, 1, 1, 3000, 1)
            await store.append([draft("x" * size, thread=f"th_{at % 2}") for at, size in enumerate(sizes)])
            for query in ({}, {"thread": "th_1"}, {"owner": "did:sync:user:ana"}, {"kind": None}):
                whole = await store.select(**query)
                read: list[Record] = []
                since = 0
                while page := await store.select(**query, since=since, most_bytes=2000):
                    read += page
                    since = page[-1].sequence
                assert read == whole

        in_store(make_store, scenario)

    def test_a_bound_in_bytes_keeps_the_newest_where_the_newest_come_first(
        self, make_store: MakeStore
    ) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft(str(n) * 1000) for n in range(4)])
            for owner in (None, "did:sync:user:ana"):
                found = await store.select(owner=owner, newest_first=True, most_bytes=1100)
                assert [record.sequence for record in found] == [4, 3]

        in_store(make_store, scenario)

    # --- watching ---

    def test_a_watcher_is_told_of_each_new_record_in_order_before_the_append_returns(
        self, make_store: MakeStore
    ) -> None:
        async def scenario(store: Store) -> None:
            told: list[int] = []
            store.subscribe(lambda record: told.append(record.sequence))

            async def append(n: int) -> None:
                for appended in await store.append([draft(thread=f"th_{n}"), draft(thread=f"th_{n}")]):
                    assert appended.record.sequence in told

            await asyncio.gather(*(append(n) for n in range(50)))
            assert told == list(range(1, 101))

        in_store(make_store, scenario)

    def test_what_a_watcher_is_told_can_be_read(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            reads: list[asyncio.Task[Record | None]] = []
            store.subscribe(lambda record: reads.append(asyncio.ensure_future(store.get(record.id))))
            [(record, _)] = await store.append([draft()])
            assert await asyncio.gather(*reads) == [record]

        in_store(make_store, scenario)

    def test_a_watcher_is_not_told_of_what_was_there_or_was_refused(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            await store.append([draft(clock=1)])
            told: list[Record] = []
            store.subscribe(told.append)
            await store.append([draft(clock=1)])
            with pytest.raises(IngestFailed):
                await store.append([draft(thread="th_2"), draft("other", clock=1)])
            assert told == []

        in_store(make_store, scenario)

    def test_a_watcher_that_left_is_told_nothing_more(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            told: list[Record] = []
            unsubscribe = store.subscribe(told.append)

            def leave(record: Record) -> None:
                unsubscribe()

            store.subscribe(leave)
            await store.append([draft("a"), draft("b")])
            unsubscribe()
            assert [record.body["text"] for record in told] == ["a"]

        in_store(make_store, scenario)

    def test_a_watcher_that_fails_keeps_no_record_from_anyone(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            failures: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            told: list[Record] = []

            def fail(record: Record) -> None:
                raise ValueError(record.id)

            store.subscribe(fail)
            store.subscribe(told.append)
            records = [record for record, _ in await store.append([draft("a"), draft("b")])]
            assert told == records
            assert [str(each["exception"]) for each in failures] == [record.id for record in records]

        in_store(make_store, scenario)

    # --- callers that go away, and the end ---

    def test_a_cancelled_caller_does_not_take_its_record_back_or_harm_the_next(
        self, make_store: MakeStore
    ) -> None:
        async def scenario(store: Store) -> None:
            waiting = asyncio.ensure_future(store.append([draft("cancelled")]))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await store.append([draft("next")])
            assert await texts(store) == ["cancelled", "next"]

        in_store(make_store, scenario)

    def test_closing_writes_what_is_queued_and_lets_nothing_in_after(self, make_store: MakeStore) -> None:
        async def scenario(store: Store) -> None:
            queued = [asyncio.ensure_future(store.append([draft(str(n))])) for n in range(20)]
            await asyncio.sleep(0)
            await store.close()
            await asyncio.gather(store.close(), store.close())
            assert [(await append)[0].record.sequence for append in queued] == list(range(1, 21))
            with pytest.raises(StoreUnavailable):
                await store.append([draft()])
            with pytest.raises(StoreUnavailable):
                await store.append([])
            reads = (
                store.get("0" * 64),
                store.select(),
                store.threads(),
                store.search(Search()),
                store.owner("th_1"),
                store.unfinished(OPENING, CLOSING),
                store.count(),
            )
            for read in await asyncio.gather(*reads, return_exceptions=True):
                assert isinstance(read, StoreUnavailable)

        in_store(make_store, scenario)

        async def count(store: Store) -> int:
            return await store.count()

        assert in_store(make_store, count) == 20
