from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import IngestFailed, InvalidBody, RunFinished
from spl.kernel.chain import Chain, Entry
from spl.kernel.names import ENGINE
from spl.records.canonical import canonical
from spl.records.record import MAX_BODY_DEPTH, Draft
from tests.kernel.instance import MEMBER, Instance, chained, instance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from spl.records.store import Appended

THREAD = "th_run_1"
KIND = "core.work.step.v1"


def step(number: int, **fields: Any) -> Entry:
    return Entry("DO", {"kind": KIND, "number": number, **fields})


def on_chain(tmp_path: Path, talk: Callable[[Instance, Chain], Awaitable[None]]) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await talk(here, Chain(here.store, THREAD))

    asyncio.run(run())


def test_each_record_names_the_one_before_within_a_batch_and_between(tmp_path: Path) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        await chain.append(step(1), step(2))
        await chain.append(step(3))
        await chain.append(step(4), step(5), step(6))
        records = await here.on(THREAD)
        assert chained(records)
        assert [record.body["number"] for record in records] == [1, 2, 3, 4, 5, 6]
        assert [record.clock for record in records] == [1, 2, 3, 4, 5, 6]

    on_chain(tmp_path, talk)


def test_a_body_may_be_made_from_the_ids_of_those_before_it(tmp_path: Path) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        await chain.append(step(1))
        first, second = await chain.append(step(2), Entry("KNOW", lambda ids: {"fulfills": ids[0]}))
        assert second.body == {"fulfills": first.id}

    on_chain(tmp_path, talk)


def test_a_runs_own_words_stand_on_its_chain(tmp_path: Path) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        # The actor has written elsewhere on this thread, so its clock is not the chain's to know.
        await here.store.append([Draft(THREAD, MEMBER, "KNOW", {"said": "before"}, clock=70)])
        await chain.append(step(1))
        (own,) = await chain.append(step(2), actor=MEMBER)
        await chain.append(step(3))
        assert (own.actor, own.clock) == (MEMBER, 71)
        assert chained([record for record in await here.on(THREAD) if record.kind])

    on_chain(tmp_path, talk)


def test_nothing_follows_the_record_that_closes_the_chain(tmp_path: Path) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        await chain.append(step(1))
        await chain.append(step(2), close=True)
        for actor in (ENGINE, MEMBER):
            with pytest.raises(RunFinished, match=THREAD):
                await chain.append(step(3), actor=actor)
        assert await here.store.count() == 2

    on_chain(tmp_path, talk)


@pytest.mark.parametrize(
    ("body", "error"), [({"kind": "no kind"}, IngestFailed), ({"x": float("nan")}, InvalidBody)]
)
def test_a_batch_the_log_refuses_writes_nothing_and_leaves_the_chain_whole(
    tmp_path: Path, body: dict[str, Any], error: type[Exception]
) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        await chain.append(step(1))
        with pytest.raises(error):
            await chain.append(step(2), Entry("DO", body), close=True)
        assert await here.store.count() == 1
        await chain.append(step(3))
        assert chained(await here.on(THREAD))

    on_chain(tmp_path, talk)


def test_a_cancelled_append_is_written_and_breaks_no_chain(tmp_path: Path) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        await chain.append(step(1))
        reached, released = here.store.hold(KIND)
        counted: list[int] = []
        append = asyncio.create_task(chain.append(step(2), then=lambda: counted.append(2)))
        await reached.wait()
        append.cancel()
        following = asyncio.create_task(chain.append(step(3)))
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await append
        # The records of a cancelled caller are durable, and counted, when it goes.
        assert counted == [2]
        await following
        records = await here.on(THREAD)
        assert chained(records)
        assert [record.body["number"] for record in records] == [1, 2, 3]

    on_chain(tmp_path, talk)


def test_a_cancelled_append_that_cannot_be_written_is_no_fault_that_nobody_saw(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    async def talk(here: Instance, chain: Chain) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        reached, released = here.store.hold("no kind")
        append = asyncio.create_task(chain.append(Entry("DO", {"kind": "no kind"})))
        await reached.wait()
        append.cancel()
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await append
        del append
        gc.collect()

    on_chain(tmp_path, talk)
    assert told == []


def test_what_is_not_written_is_not_counted(tmp_path: Path) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        counted: list[int] = []
        with pytest.raises(IngestFailed):
            await chain.append(Entry("DO", {"kind": "no kind"}), then=lambda: counted.append(1))
        assert counted == []

    on_chain(tmp_path, talk)


def test_the_log_is_given_each_body_in_the_form_that_its_id_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        given: list[Draft] = []
        append = here.store.append

        async def keeping(drafts: Sequence[Draft]) -> list[Appended]:
            given.extend(drafts)
            return await append(drafts)

        monkeypatch.setattr(here.store, "append", keeping)
        await chain.append(step(1, text="é", part=2.0), Entry("KNOW", lambda ids: {"fulfills": ids[0]}))
        assert [each.canonical for each in given] == [canonical(each.body) for each in given]
        assert [record.body["text"] for record in await here.on(THREAD) if "text" in record.body] == ["é"]

    on_chain(tmp_path, talk)


def test_a_body_without_a_canonical_form_is_refused_as_it_ever_was(tmp_path: Path) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        deep: list[Any] = []
        for _ in range(MAX_BODY_DEPTH - 1):
            deep = [deep]
        with pytest.raises(IngestFailed, match="nested too deep"):
            await chain.append(step(1, deep=deep))
        with pytest.raises(InvalidBody, match="surrogate"):
            await chain.append(step(1, text="\ud800"))
        await chain.append(step(1))
        assert chained(await here.on(THREAD))

    on_chain(tmp_path, talk)


def test_many_writers_at_once_make_one_chain(tmp_path: Path) -> None:
    async def talk(here: Instance, chain: Chain) -> None:
        writers = [chain.append(step(number), step(-number)) for number in range(10)]
        writers += [chain.append(step(number), actor=MEMBER) for number in range(10, 20)]
        await asyncio.gather(*writers)
        records = await here.on(THREAD)
        assert len(records) == 30
        assert chained(records)

    on_chain(tmp_path, talk)
