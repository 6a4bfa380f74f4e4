"""Money under every ceiling: calls side by side cannot pass one, and a run that is out of it says which it was."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from spl.inference.model import Call, Reply, Usage
from spl.inference.prices import FREE
from spl.inference.script import ScriptProvider
from spl.kernel import names
from spl.kernel.outcome import Ending
from tests.kernel.doors import at_the_doors
from tests.kernel.instance import (
    MEMBER,
    NED,
    NOTE,
    OPERATOR,
    Gated,
    Instance,
    Priced,
    carry_out,
    instance,
    propose,
    replies_of,
    says,
    turn,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from spl.inference.model import Request
    from spl.inference.prices import Price
    from spl.kernel.runs import Run
    from tests.kernel.instance import Replies

CLEAN = Ending(clean=True)

_T = TypeVar("_T")


async def bounded(talk: Awaitable[_T]) -> _T:
    """Have a wait that would never end fail where it is."""
    async with asyncio.timeout(10):
        return await talk


class Greedy(Priced):
    """A script whose every reply takes all the output that it may have."""

    async def complete(self, request: Request) -> Reply:
        reply = await super().complete(request)
        # Others may come between what is reserved and what is settled.
        await asyncio.sleep(0)
        assert request.max_output_tokens is not None
        return replace(reply, usage=Usage(0, request.max_output_tokens))


@pytest.mark.claim("B2")
def test_runs_of_one_actor_side_by_side_cannot_pass_the_money_of_its_day(tmp_path: Path) -> None:
    provider = Greedy(replies_of(tmp_path, *[says("on")] * 20))

    async def spend(run: Run) -> None:
        while "reply" in await turn(run):
            pass

    async def talk() -> None:
        async with instance(tmp_path, provider=provider) as here:
            await here.tier("trial", daily_cost_usd=5, default_budget_usd=1, token_budget=10**9, max_turns=99)
            runs = [await here.open() for _ in range(12)]
            await asyncio.gather(*map(spend, runs))
            spent = sum(run.budget.spent_usd for run in runs)
            assert here.kernel.usage.spent(MEMBER) == spent
            assert Decimal("4.99") < spent <= 5
            assert {run.end.budget_kind for run in runs if run.end} == {"usd"}

    asyncio.run(talk())


class Half(Gated, Priced):
    """A gated script whose every reply takes half of the output that it may have."""

    async def complete(self, request: Request) -> Reply:
        reply = await super().complete(request)
        assert request.max_output_tokens is not None
        return replace(reply, usage=Usage(0, request.max_output_tokens // 2))


@pytest.mark.claim("B2")
def test_a_call_waits_for_the_money_that_another_run_of_the_actor_may_give_back(tmp_path: Path) -> None:
    provider = Half(replies_of(tmp_path, says("on")))

    async def talk() -> None:
        async with instance(tmp_path, provider=provider) as here:
            await here.tier("trial", daily_cost_usd=1.3, default_budget_usd=1)
            await here.tier("trial", token_budget=10**9)
            first, second = await here.open(), await here.open()
            ned = await here.open(actor=NED.actor)
            calls = [asyncio.create_task(turn(run)) for run in (first, second, ned)]
            await provider.asked.wait()
            # The first has reserved 0.8192 USD of the day's 1.30: what is left would cut the second's reply off.
            assert here.kernel.usage.left(MEMBER, Decimal("1.3")) == Decimal("0.4808")
            provider.released.set()
            for answer in await bounded(asyncio.gather(*calls)):
                assert answer["reply"]["text"] == "on"
            assert [run.budget.tokens for run in (first, second, ned)] == [4096] * 3

    asyncio.run(talk())


@pytest.mark.parametrize("told", ["to leave", "to stop"])
def test_a_run_that_is_told_to_end_while_it_waits_for_money_spends_none(tmp_path: Path, told: str) -> None:
    provider = Half(replies_of(tmp_path, says("on")))

    async def talk() -> None:
        async with instance(tmp_path, provider=provider) as here:
            await here.tier("trial", daily_cost_usd=1.3, default_budget_usd=1)
            await here.tier("trial", token_budget=10**9)
            runs = [await here.open() for _ in range(3)]
            calls = [asyncio.create_task(turn(run)) for run in runs]
            await provider.asked.wait()
            # The second waits for what the first has reserved, and the third for its turn.
            for run in runs:
                run.leave() if told == "to leave" else run.stop(MEMBER)
            provider.released.set()
            first, *others = await bounded(asyncio.gather(*calls))
            assert first["reply"]["text"] == "on"
            assert others == [{"end": "failed" if told == "to leave" else "cancelled"}] * 2
            assert [run.budget.tokens for run in runs] == [4096, 0, 0]
            assert here.kernel.usage.spent(MEMBER) == runs[0].budget.spent_usd

    asyncio.run(talk())


def test_runs_of_one_actor_go_on_side_by_side_where_their_model_costs_nothing(tmp_path: Path) -> None:
    class Meeting(ScriptProvider):
        meet = asyncio.Barrier(3)

        async def complete(self, request: Request) -> Reply:
            await self.meet.wait()
            return await super().complete(request)

    async def talk() -> None:
        async with instance(tmp_path, provider=Meeting(replies_of(tmp_path, says("on")))) as here:
            calls = [turn(await here.open()) for _ in range(3)]
            assert ["reply" in answer for answer in await bounded(asyncio.gather(*calls))] == [True] * 3

    asyncio.run(talk())


@pytest.mark.claim("B2")
def test_a_call_that_costs_nothing_waits_for_nobodys_money(tmp_path: Path) -> None:
    class Both(Endless):
        def price(self, model: str) -> Price:
            return FREE if model == "free" else super().price(model)

        async def complete(self, request: Request) -> Reply:
            return (
                await ScriptProvider.complete(self, request)
                if request.model == "free"
                else await super().complete(request)
            )

    provider = Both(replies_of(tmp_path, says("on")))

    async def talk() -> None:
        async with instance(tmp_path, provider=provider) as here:
            await here.tier("trial", daily_cost_usd=1, default_budget_usd=1)
            paid = [asyncio.create_task(turn(await here.open())) for _ in range(2)]
            await provider.asked.wait()
            free = await here.open(model="free")
            assert "reply" in await bounded(turn(free))
            for each in paid:
                each.cancel()
            await asyncio.gather(*paid, return_exceptions=True)

    asyncio.run(talk())


@pytest.mark.claim("B2")
@pytest.mark.parametrize(
    ("ceiling", "kind", "whole"),
    [
        ({"default_budget_usd": 0.05}, "usd", "the run's budget of 0.05 USD (budget_usd)"),
        (
            {"daily_cost_usd": 0.05},
            "usd",
            f"the 0.05 USD a day that its tier allows to {MEMBER} (daily_cost_usd)",
        ),
        ({"token_budget": 300}, "tokens", "the run's 300 tokens (token_budget)"),
    ],
)
def test_a_run_whose_reply_a_ceiling_cut_off_ends_exhausted_and_says_which(
    tmp_path: Path, ceiling: dict[str, Any], kind: str, whole: str
) -> None:
    cut_off = {**NOTE, "stop_reason": "length", "usage": {"output_tokens": 200}}

    async def talk() -> None:
        async with instance(tmp_path, provider=Priced(replies_of(tmp_path, cut_off))) as here:
            await here.tier("trial", **ceiling)
            run = await here.open()
            assert (await turn(run))["reply"]["stop_reason"] == "length"
            assert (await propose(run))["decision"] == "stop"
            await here.kernel.finish(run, CLEAN)
            (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
            assert (outcome["outcome"], outcome["budget_kind"]) == ("budget_exhausted", kind)
            assert outcome["summary"] == f"The last reply was cut off where {whole} would have been passed."

    asyncio.run(talk())


def test_a_reply_that_ran_into_the_usual_bound_is_no_lack_of_money(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        assert (await propose(run))["layer"] == "truncated"

    cut_off = {**NOTE, "stop_reason": "length"}
    at_the_doors(tmp_path, cut_off, talk=talk)


@pytest.mark.claim("B2")
def test_what_is_left_and_does_not_pay_for_a_call_is_told(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        assert await turn(run) == {"end": "budget_exhausted"}
        assert run.end is not None
        assert run.end.summary == (
            "The 0.001 USD left of the run's budget of 0.25 USD (budget_usd) may not pay for another model call, "
            "which can cost 0.0016 USD."
        )

    reply = {**says("on"), "usage": {"output_tokens": 2490}}
    at_the_doors(tmp_path, provider=Priced(replies_of(tmp_path, reply)), talk=talk)


def test_a_budget_that_pays_for_no_call_at_all_says_what_one_can_cost(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        assert await turn(run) == {"end": "budget_exhausted"}
        assert run.end is not None
        assert run.end.summary == (
            "The 0.0001 USD left of the run's budget of 0.0001 USD (budget_usd) may not pay for a model call, "
            "which can cost 0.0016 USD."
        )

    at_the_doors(
        tmp_path,
        provider=Priced(replies_of(tmp_path, NOTE)),
        talk=talk,
        asked={"budget_usd": Decimal("0.0001")},
    )


class Endless(Priced):
    """A priced script that never answers; `asked` is set once it has been."""

    def __init__(self, replies: Replies) -> None:
        super().__init__(replies)
        self.asked = asyncio.Event()

    async def complete(self, request: Request) -> Reply:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            # A connection takes its time to be closed.
            for _ in range(20):
                await asyncio.sleep(0)
        raise AssertionError


@pytest.mark.claim("B2")
@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (Ending(clean=False, cause="stop"), "cancelled"),
        (Ending(clean=False, cause="wall_clock"), "budget_exhausted"),
        (Ending(clean=False, exit={"signal": 9}), "failed"),
        (CLEAN, "failed"),
    ],
    ids=["stopped", "wall clock", "killed", "left by itself"],
)
def test_a_run_that_ends_in_the_middle_of_a_call_has_cost_what_was_reserved_also_after_a_restart(
    tmp_path: Path, ending: Ending, outcome: str
) -> None:
    provider = Endless(replies_of(tmp_path, NOTE))

    async def talk() -> None:
        async with instance(tmp_path, provider=provider) as here:
            run = await here.open()
            call = asyncio.create_task(turn(run))
            await provider.asked.wait()
            if ending.cause == "stop":
                run.stop(OPERATOR)
            await here.kernel.finish(run, ending)
            (told,) = await here.bodies(run.terms.thread, names.OUTCOME)
            assert (told["outcome"], told["success"], told["spent_usd"]) == (outcome, False, 0.25)
            if ending is CLEAN:
                assert told["summary"] == "The loop ended while a model call was under way."
            await asyncio.gather(call, return_exceptions=True)
            # Whatever comes of the call after that changes nothing, and nothing stays reserved.
            assert run.budget.spent_usd == Decimal("0.25") == here.kernel.usage.spent(MEMBER)
            assert here.kernel.usage.left(MEMBER, Decimal("0.5")) == Decimal("0.25")
        async with instance(tmp_path) as again:
            assert again.kernel.usage.spent(MEMBER) == Decimal("0.25")

    asyncio.run(talk())


@pytest.mark.claim("B2")
def test_a_run_short_of_its_own_budget_waits_for_nobody(tmp_path: Path) -> None:
    provider = Endless(replies_of(tmp_path, NOTE))

    async def talk() -> None:
        async with instance(tmp_path, provider=provider) as here:
            await here.tier("trial", daily_cost_usd=100)
            other = asyncio.create_task(turn(await here.open()))
            await provider.asked.wait()
            here.kernel.broker.provider = Priced(replies_of(tmp_path, NOTE))
            assert "reply" in await bounded(turn(await here.open()))
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)

    asyncio.run(talk())


@pytest.mark.claim("B2")
def test_of_runs_that_wait_for_money_none_is_passed_over(tmp_path: Path) -> None:
    provider = Half(replies_of(tmp_path, says("on")))

    async def talk() -> None:
        async with instance(tmp_path, provider=provider) as here:
            await here.tier("trial", daily_cost_usd=1, default_budget_usd=1)
            first, big, small = await here.open(), await here.open(), await here.open()
            small.terms = small.budget.terms = replace(
                small.terms, ceilings=replace(small.terms.ceilings, token_budget=100)
            )
            order: list[Run] = []

            async def go(run: Run) -> None:
                await turn(run)
                order.append(run)

            calls = []
            for run in (first, big, small):
                calls.append(asyncio.create_task(go(run)))
                await asyncio.sleep(0)
            await provider.asked.wait()
            # There is money for the small one, and the big one came before it.
            assert here.kernel.usage.left(MEMBER, Decimal(1)) == Decimal("0.1808")
            provider.released.set()
            await bounded(asyncio.gather(*calls))
            assert order == [first, big, small]

    asyncio.run(talk())


@pytest.mark.claim("B2")
@pytest.mark.parametrize("transport", ["in_process", "sandboxed"])
def test_a_sandboxed_run_that_has_no_ceiling_gets_no_call(tmp_path: Path, transport: str) -> None:
    async def talk() -> None:
        async with instance(tmp_path, says("Done.")) as here:
            await here.configure("work_loop_transport", transport)
            run = await here.open(actor=OPERATOR)
            # No start makes such a run; this is the broker's own word on it.
            ceilings = replace(run.terms.ceilings, budget_usd=None)
            run.terms = run.budget.terms = replace(run.terms, ceilings=ceilings)
            if transport == "in_process":
                assert "reply" in await turn(run)
                return
            with pytest.raises(Exception, match="no call for a credential that has no ceiling"):
                await turn(run)

    asyncio.run(talk())


@pytest.mark.claim("K1")
def test_a_call_whose_arguments_are_no_json_object_is_denied_and_what_was_written_is_on_record(
    tmp_path: Path,
) -> None:
    reply = replies_of(tmp_path, NOTE)[0]
    assert isinstance(reply, Reply)
    malformed = Call("c1", "record_note", {}, malformed="{'text': oops")

    async def talk(here: Instance, run: Run) -> None:
        await carry_out(run)
        (call,) = await here.bodies(run.terms.thread, names.TOOL_CALL)
        assert (call["arguments"], call["malformed"]) == ({}, "{'text': oops")
        (verdict,) = await here.bodies(run.terms.thread, names.TOOL_VERDICT)
        assert (verdict["decision"], verdict["layer"]) == ("deny", "malformed")
        assert verdict["reason"] == "its arguments are not a JSON object"
        assert await here.bodies(run.terms.thread, "core.work.note.v1") == []

    provider = Priced((replace(reply, calls=(malformed,)),))
    at_the_doors(tmp_path, provider=provider, talk=talk)


def test_a_model_that_declines_ends_its_run_as_failed_in_its_own_words(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["success"]) == ("failed", False)
        assert outcome["summary"] == "The model declined to go on. I would rather not."

    at_the_doors(tmp_path, says("I would rather not.", stop_reason="refusal"), talk=talk)


def test_a_run_has_the_model_that_it_is_asked_on_its_anchor_also_where_it_named_none(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        (anchor,) = await here.bodies(run.terms.thread, names.LOOP)
        assert anchor["model"] == (await here.kernel.rows.row(run.terms.thread))["model"] == "script"

    at_the_doors(tmp_path, says("Done."), talk=talk)
