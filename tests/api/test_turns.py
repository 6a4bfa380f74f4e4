from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from spl.api.turns import Turns

if TYPE_CHECKING:
    import pytest

MIA, NED = "did:sync:user:mia", "did:sync:user:ned"


def test_whoever_asks_more_often_has_no_more_turns_before_another_has_one() -> None:
    order: list[str] = []

    async def run() -> None:
        turns = Turns()

        async def take(who: str) -> None:
            async with turns.of(who):
                order.append(who)

        await asyncio.gather(*(take(who) for who in (*[MIA] * 5, NED)))

    asyncio.run(run())
    # After the one that has the turn and the one that waits for it.
    assert order == [MIA, MIA, NED, MIA, MIA, MIA]


def test_one_turn_is_held_at_a_time_and_the_operator_waits_for_none() -> None:
    async def run() -> None:
        turns = Turns()
        async with turns.of(MIA):
            waiting = asyncio.create_task(turns.of(NED).__aenter__())
            async with turns.of(None), turns.of(None):
                await asyncio.sleep(0)
            assert not waiting.done()
        await waiting

    asyncio.run(run())


def test_after_a_turn_as_long_is_left_to_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        loop, now, rests = asyncio.get_running_loop(), 0.0, []
        monkeypatch.setattr(loop, "time", lambda: now)

        def call_later(delay: float, callback: Any, *arguments: Any) -> None:
            rests.append(delay)
            callback(*arguments)

        monkeypatch.setattr(loop, "call_later", call_later)
        turns = Turns()
        for took in (0.02, 7.0):
            async with turns.of(MIA):
                now += took
        assert [round(rest, 6) for rest in rests] == [0.02, 0.1]

    asyncio.run(run())


def test_a_turn_that_fails_or_is_given_up_is_given_back() -> None:
    async def run() -> None:
        turns = Turns()
        async with turns.of(MIA):
            waiting = asyncio.create_task(turns.of(NED).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait((waiting,))
        try:
            async with turns.of(NED):
                raise ValueError
        except ValueError:
            pass
        async with turns.of(MIA):
            pass

    asyncio.run(run())
