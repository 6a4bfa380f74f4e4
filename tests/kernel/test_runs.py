from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import (
    InvalidBody,
    ModelUnpriced,
    ProviderFailed,
    RunFinished,
    SplError,
)
from spl.inference.model import Usage
from spl.inference.script import ScriptProvider
from spl.kernel import names
from spl.kernel.outcome import Ending
from spl.kernel.runs import OWN_WORDS_LIMIT, OWN_WORDS_MOST
from tests.kernel.doors import CLEAN, SUM, at_the_doors, own_result, refused
from tests.kernel.instance import (
    MEMBER,
    NOTE,
    OPERATOR,
    Hanging,
    Instance,
    Priced,
    call,
    calls,
    carry_out,
    chained,
    propose,
    replies_of,
    says,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from spl.inference.model import Reply, Request
    from spl.kernel.runs import Run

# --- the run door ---


def test_the_contract_says_the_goal_the_tools_with_their_domain_and_the_ceilings(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        contract = await run.door("run", {})
        assert contract["thread"] == run.terms.thread
        assert contract["opening"][-1] == {"role": "user", "content": "a goal"}
        assert {tool["name"]: tool["domain"] for tool in contract["tools"]} == {
            "record_note": "mediated",
            "read_thread": "mediated",
            "calculate": "sandboxed",
        }
        assert run.terms.narrowed == ("list_dir", "read_file", "search", "write_file")
        assert (contract["max_turns"], contract["budget_usd"]) == (5, 0.25)

    at_the_doors(tmp_path, talk=talk)


def test_each_run_has_a_mark_of_its_own_that_its_model_is_told(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        contracts = [await each.door("run", {}) for each in (run, await here.open())]
        marks = [contract["mark"] for contract in contracts]
        assert len(set(marks)) == 2
        for contract in contracts:
            assert len(contract["mark"]) >= 8
            assert f"[observation {contract['mark']}]" in contract["opening"][0]["content"]

    at_the_doors(tmp_path, talk=talk)


CALL = {"id": "c1", "name": "record_note", "arguments": {}}
SAID = {"role": "assistant", "content": "On it."}
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("door", "payload", "error"),
    [
        ("run", {"x": 1}, InvalidBody),
        ("infer", {}, InvalidBody),
        ("infer", {"messages": []}, InvalidBody),
        ("infer", {"messages": "x"}, InvalidBody),
        ("infer", {"messages": [USER] * 20_001}, InvalidBody),
        ("infer", {"messages": [USER, "x"]}, InvalidBody),
        ("infer", {"messages": [{"role": "root", "content": "x"}]}, InvalidBody),
        ("infer", {"messages": [{"role": ["user"], "content": "x"}]}, InvalidBody),
        ("infer", {"messages": [{"role": "user"}]}, InvalidBody),
        ("infer", {"messages": [{"role": "user", "content": None}]}, InvalidBody),
        ("infer", {"messages": [USER], "model": "other"}, InvalidBody),
        ("infer", {"messages": [{**SAID, "x": "unknown"}]}, InvalidBody),
        ("infer", {"messages": [{**USER, "calls": []}]}, InvalidBody),
        ("infer", {"messages": [{**SAID, "calls": [{**CALL, "x": 1}]}]}, InvalidBody),
        ("infer", {"messages": [{**SAID, "calls": {}}]}, InvalidBody),
        ("infer", {"messages": [{**SAID, "calls": ["x"]}]}, InvalidBody),
        ("infer", {"messages": [{**SAID, "calls": [{**CALL, "id": 1}]}]}, InvalidBody),
        ("infer", {"messages": [{**SAID, "calls": [{**CALL, "name": ""}]}]}, InvalidBody),
        ("infer", {"messages": [{**SAID, "calls": [{**CALL, "arguments": "{}"}]}]}, InvalidBody),
        ("infer", {"messages": [{**SAID, "calls": [CALL] * 129}]}, InvalidBody),
        ("infer", {"messages": [{"role": "tool", "content": "x", "name": "y"}]}, InvalidBody),
        ("infer", {"messages": [{"role": "tool", "content": "x", "call_id": "c1", "name": 1}]}, InvalidBody),
        ("propose", {}, InvalidBody),
        ("propose", {"call_id": 1}, InvalidBody),
        ("propose", {"call_id": ["c1"]}, InvalidBody),
        ("propose", {"call_id": "c1", "decision": "allow"}, InvalidBody),
        ("call", {}, InvalidBody),
        ("call", {"call_id": None}, InvalidBody),
        ("call", {"call_id": "c1", "arguments": {}}, InvalidBody),
        ("record", {}, InvalidBody),
        ("record", {"kind": names.PLAN}, InvalidBody),
        ("record", {"kind": 3, "body": {}}, InvalidBody),
        ("record", {"kind": names.PLAN, "body": []}, InvalidBody),
        ("record", {"kind": names.TOOL_RESULT, "body": {}}, InvalidBody),
        ("record", own_result(status="fine"), InvalidBody),
        ("record", own_result(status=["ok"]), InvalidBody),
        ("record", own_result(output=2), InvalidBody),
        ("record", own_result(fulfills="0" * 64), InvalidBody),
        ("record", own_result(call_id=7), InvalidBody),
    ],
)
def test_a_payload_a_door_does_not_know_is_refused_and_costs_nothing(
    tmp_path: Path, door: str, payload: dict[str, Any], error: type[SplError]
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await propose(run)
        await refused(here, run, door, payload, error)
        assert run.budget.turns == 1
        await run.door("record", own_result())

    at_the_doors(tmp_path, SUM, talk=talk)


# --- infer: turns, tokens, money ---


@pytest.mark.claim("K6")
def test_the_kernel_counts_the_turns_and_ends_the_run_at_its_ceiling(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        assert [(await carry_out(run)).get("turn") for _ in range(2)] == [1, 2]
        assert await turn(run) == {"end": "max_turns"}
        assert await turn(run) == {"end": "max_turns"}
        assert [body["turn"] for body in await here.bodies(run.terms.thread, names.TURN)] == [1, 2]
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["turns"], outcome["success"]) == ("max_turns", 2, False)
        assert outcome["summary"] == "The run used its 2 turns (max_turns)."

    at_the_doors(tmp_path, *[NOTE] * 4, talk=talk, asked={"max_turns": 2})


@pytest.mark.claim("B2")
def test_the_run_ends_when_its_tokens_are_used(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await carry_out(run)
        assert await turn(run) == {"end": "budget_exhausted"}
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["budget_kind"]) == ("budget_exhausted", "tokens")
        assert outcome["summary"] == "The run used its 20000 tokens (token_budget)."

    usage = {"input_tokens": 19_000, "output_tokens": 1_000}
    at_the_doors(tmp_path, {**NOTE, "usage": usage}, says("x"), talk=talk)


class Unpriced(ScriptProvider):
    def price(self, model: str) -> None:  # type: ignore[override]
        return None


@pytest.mark.claim("B2")
def test_a_call_past_the_budget_is_not_made(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(3):
            assert "reply" in await carry_out(run)
        assert await turn(run) == {"end": "budget_exhausted"}
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["budget_kind"]) == ("budget_exhausted", "usd")
        assert (outcome["turns"], outcome["spent_usd"]) == (3, 0.3)
        assert outcome["summary"] == "Nothing is left of the run's budget of 0.25 USD (budget_usd)."
        assert [body["cost_usd"] for body in await here.bodies(run.terms.thread, names.TURN)] == [0.1] * 3

    provider = Priced(replies_of(tmp_path, *[{**NOTE, "usage": {"output_tokens": 1000}}] * 5))
    at_the_doors(tmp_path, provider=provider, talk=talk)


@pytest.mark.claim("B3")
def test_the_operators_run_in_process_without_a_budget_is_stopped_by_no_cost(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        for _ in range(3):
            assert "reply" in await carry_out(run)
        row = await here.kernel.rows.row(run.terms.thread)
        assert (row["budget_usd"], row["spent_usd"]) == (None, 300)

    provider = Priced(replies_of(tmp_path, *[{**NOTE, "usage": {"output_tokens": 1_000_000}}] * 3))
    at_the_doors(tmp_path, provider=provider, talk=talk, asked={"actor": OPERATOR})


def test_a_run_with_a_ceiling_cannot_use_a_model_without_a_price(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        assert run.terms.ceilings.budget_usd is not None
        with pytest.raises(ModelUnpriced, match="no price"):
            await turn(run)
        assert await here.bodies(run.terms.thread, names.TURN) == []

    at_the_doors(tmp_path, provider=Unpriced(replies_of(tmp_path, NOTE)), talk=talk)


def test_a_provider_that_fails_ends_the_run_as_failed(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        with pytest.raises(ProviderFailed):
            await turn(run)
        assert await turn(run) == {"end": "failed"}
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["turns"]) == ("failed", 0)
        assert outcome["summary"] == "Out of order."

    at_the_doors(tmp_path, {"fail": "out of order"}, talk=talk)


class Counting(Priced):
    """A script at ten cents a thousand tokens that counts how often it was asked."""

    asked = 0

    async def complete(self, request: Request) -> Reply:
        self.asked += 1
        return await super().complete(request)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.claim("B2")
@pytest.mark.parametrize(
    "text", [nested(60), 10**310, "a log that is full"], ids=["nested", "digits", "full"]
)
def test_a_reply_the_log_cannot_take_is_charged_and_the_end_of_the_run_and_no_turn(
    tmp_path: Path, text: object
) -> None:
    replies = replies_of(tmp_path, NOTE)
    asks_for = replace(replies[0].calls[0], arguments={"text": text})  # type: ignore[union-attr]
    provider = Counting((replace(replies[0], calls=(asks_for,), usage=Usage(0, 1000)),))  # type: ignore[type-var]

    async def talk(here: Instance, run: Run) -> None:
        here.store.full_for = names.TURN if isinstance(text, str) else None
        with pytest.raises(SplError):
            await turn(run)
        here.store.full_for = None
        assert [await turn(run) for _ in range(3)] == [{"end": "failed"}] * 3
        assert provider.asked == 1
        assert (run.budget.turns, run.calls.reply, run.budget.tokens) == (0, None, 1000)
        assert here.kernel.usage.spent(MEMBER) == Decimal("0.1")
        await here.kernel.finish(run, CLEAN)
        assert await here.kinds(run.terms.thread) == ["loop", "isolation", "loop_outcome"]
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["turns"], outcome["spent_usd"]) == ("failed", 0, 0.1)
        assert outcome["summary"].startswith("A reply of the model cannot be written down: ")

    at_the_doors(tmp_path, provider=provider, talk=talk)


@pytest.mark.claim("B2", "K7")
def test_a_reply_of_no_use_is_charged_to_the_run_and_its_actors_day(tmp_path: Path) -> None:
    replies = replies_of(tmp_path, NOTE)
    twice = replies[0].calls * 2  # type: ignore[union-attr]
    provider = Counting((replace(replies[0], calls=twice, usage=Usage(0, 1000)),))  # type: ignore[type-var]

    async def talk(here: Instance, run: Run) -> None:
        with pytest.raises(ProviderFailed, match="the same id"):
            await turn(run)
        assert await turn(run) == {"end": "failed"}
        assert (provider.asked, here.kernel.usage.spent(MEMBER)) == (1, Decimal("0.1"))
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["spent_usd"]) == ("failed", 0.1)

    at_the_doors(tmp_path, provider=provider, talk=talk)


def test_a_conversation_past_a_ceiling_ends_by_the_ceiling_however_long_it_is(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await carry_out(run)
        assert await run.door("infer", {"messages": [USER] * 20_001}) == {"end": "max_turns"}
        with pytest.raises(InvalidBody):
            await run.door("infer", {"messages": [USER], "more": 1})

    at_the_doors(tmp_path, NOTE, says("x"), talk=talk, asked={"max_turns": 1})


@pytest.mark.parametrize("actor", [OPERATOR, MEMBER], ids=["in process", "sandboxed"])
def test_a_conversation_longer_than_may_be_ends_the_run_with_the_number_and_asks_no_model(
    tmp_path: Path, actor: str
) -> None:
    provider = Counting(replies_of(tmp_path, says("on"), says("on")))

    async def talk(here: Instance, run: Run) -> None:
        half = {"role": "user", "content": "é" * 500_000}
        assert "reply" in await run.door("infer", {"messages": [half, half]})
        assert await run.door("infer", {"messages": [half, half, {**half, "content": "x"}]}) == {
            "end": "failed"
        }
        assert provider.asked == 1
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["turns"]) == ("failed", 1)
        assert "more than 1000000 characters" in outcome["summary"]

    at_the_doors(tmp_path, provider=provider, talk=talk, asked={"actor": actor})


def test_what_a_conversation_asks_for_counts_among_what_it_says(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        long = {**SAID, "calls": [{**CALL, "arguments": {"text": "x" * 500_000}}]}
        assert "reply" in await run.door("infer", {"messages": [USER, long]})
        assert await run.door("infer", {"messages": [USER, long, long]}) == {"end": "failed"}

    at_the_doors(tmp_path, says("on"), says("on"), talk=talk)


# --- shut ---


@pytest.mark.parametrize("ending", [CLEAN, Ending(clean=False, cause="daemon")])
def test_a_finished_run_has_no_doors_left(tmp_path: Path, ending: Ending) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await here.kernel.finish(run, ending)
        for door in ("run", "infer", "propose", "call", "record"):
            await refused(here, run, door, {"call_id": "c1"}, RunFinished)

    at_the_doors(tmp_path, NOTE, talk=talk)


def test_the_end_of_a_run_breaks_off_a_model_call_that_never_answers(tmp_path: Path) -> None:
    provider = Hanging()

    async def talk(here: Instance, run: Run) -> None:
        answer = asyncio.create_task(turn(run))
        waiting = asyncio.create_task(run.door("run", {}))
        await provider.asked.wait()
        await here.kernel.finish(run, Ending(clean=False, cause="wall_clock"))
        for task in (answer, waiting):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await here.kinds(run.terms.thread) == ["loop", "isolation", "loop_outcome"]

    at_the_doors(tmp_path, provider=provider, talk=talk)


@pytest.mark.claim("K6")
@pytest.mark.parametrize(
    ("kind", "door", "payload"),
    [
        (names.TURN, "infer", {"messages": [USER]}),
        (names.TOOL_VERDICT, "propose", {"call_id": "c2"}),
        (names.TOOL_RESULT, "call", {"call_id": "c1"}),
    ],
)
def test_what_is_being_written_when_a_run_ends_is_counted_in_its_outcome(
    tmp_path: Path, kind: str, door: str, payload: dict[str, Any]
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await propose(run)
        if kind == names.TURN:
            await run.door("call", {"call_id": "c1"})
            await propose(run, "c2")
        reached, released = here.store.hold(kind)
        knocking = asyncio.create_task(run.door(door, payload))
        await reached.wait()
        finishing = asyncio.create_task(here.kernel.finish(run, Ending(clean=False, cause="wall_clock")))
        # The run is shut by the time the other task, made after it, has had its turn.
        await asyncio.create_task(asyncio.sleep(0))
        assert run.over
        released.set()
        await finishing
        with pytest.raises(asyncio.CancelledError):
            await knocking
        records = await here.on(run.terms.thread)
        results = [record.body["status"] for record in records if record.kind == names.TOOL_RESULT]
        denied = [record for record in records if record.body.get("decision") == "deny"]
        allowed = [record for record in records if record.body.get("decision") == "allow"]
        outcome = records[-1].body
        assert outcome["kind"] == names.OUTCOME
        assert outcome["turns"] == sum(record.kind == names.TURN for record in records)
        # What was allowed and has no result was broken off, and has failed.
        failed = len(denied) + len(allowed) - len(results)
        assert (outcome["tool_calls_ok"], outcome["tool_calls_failed"]) == (len(results), failed)
        assert outcome["turns"] + len(results) + len(denied) == (4 if kind == names.TURN else 2)
        assert chained(records)

    reply = calls(call("record_note", "c1", text="a note"), call("bash", "c2"))
    at_the_doors(tmp_path, reply, says("x"), talk=talk)


def test_doors_knocked_at_all_at_once_leave_the_chain_whole(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        plan = {"kind": names.PLAN, "body": {}}
        knocks = [run.door("record", {**plan, "body": {"n": number}}) for number in range(8)]
        knocks += [propose(run, f"c{number % 4}") for number in range(8)]
        knocks += [run.door("call", {"call_id": f"c{number}"}) for number in range(4)]
        await asyncio.gather(*knocks)
        await here.kernel.finish(run, CLEAN)
        records = await here.on(run.terms.thread)
        assert len(records) == 3 + 8 + 4 * 2 + 4 * 2 + 1
        assert chained(records)

    notes = [call("record_note", f"c{number}", text=str(number)) for number in range(4)]
    at_the_doors(tmp_path, calls(*notes), talk=talk)


# --- a run's own words ---


def test_a_run_cannot_fill_the_log_with_its_own_words(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await refused(
            here, run, "record", {"kind": names.PLAN, "body": {"x": "y" * OWN_WORDS_LIMIT}}, InvalidBody
        )
        # Seven characters each as they are said, 309 as they would be stored.
        long = {"x": [1e308] * (OWN_WORDS_LIMIT // 300)}
        await refused(here, run, "record", {"kind": names.PLAN, "body": long}, InvalidBody)
        for number in range(OWN_WORDS_MOST):
            await run.door("record", {"kind": names.REPORT, "body": {"n": number}})
        await refused(here, run, "record", {"kind": names.REPORT, "body": {}}, InvalidBody)

    at_the_doors(tmp_path, talk=talk)
