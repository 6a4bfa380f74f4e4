"""Runs against a model that others have made, on both of its APIs, both transports and both shapes."""

from __future__ import annotations

import json
import secrets
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import ModelUnpriced, ProviderFailed, RunNotCompleted
from tests.end_to_end.counterparts import (
    ANTHROPIC,
    OPENAI,
    TRANSPORTS,
    Api,
    Price,
    Relay,
    fakellm,
    finished,
    relayed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.daemon import Daemon, Shape

Json = dict[str, Any]

TURN = "core.work.turn.v1"

OTHER = "another-model"
CENT, DEAR = "costs-cents", "costs-dollars"
PRICES = {
    OPENAI.model: Price("0.15", "0.6"),
    ANTHROPIC.model: Price("1", "5"),
    OTHER: Price("2.5", "10"),
    CENT: Price("1", "100"),
    DEAR: Price("0", "120000"),
}

SEVERAL, ENDLESS, EIGHT = "Weigh the papers", "Go on and on", "Take eight turns"
SHORT, FLAKY = "Say a word", "Be patient"
SUM = {"name": "calculate", "arguments": {"expression": "17 * 23"}}
READ = {"name": "read_thread", "arguments": {"thread": "th_engine_config"}}


def note(text: str) -> Json:
    """Give a call that records a note."""
    return {"name": "record_note", "arguments": {"text": text}}


def rule(when: Json, content: str, *calls: Json) -> Json:
    """Give a rule of fakellm's."""
    return {
        "name": json.dumps(when),
        "when": when,
        "respond": {"content": content, "tool_calls": list(calls)},
    }


def at(goal: str, turn: int, **more: Any) -> Json:
    """Give the condition of a turn of a goal's conversation."""
    return {"messages_contain": goal, "turn": turn, **more}


# A reply of under 64 characters is under 16 tokens as fakellm counts them, the fewest that a call must have room for:
# it keeps to no bound that it is given.
RULES = [
    rule(at(SEVERAL, 1), "A sum, and that.", note("17 times 23 is worked out"), SUM),
    rule(at(SEVERAL, 2, tool_result_contains="391"), "What is set?", READ),
    rule(at(SEVERAL, 3, tool_result_contains="work_loop_transport"), "It is set.", note("the sum is 391")),
    rule(at(SEVERAL, 4, previous_message_role="assistant"), "391, and a transport is set."),
    *(
        rule(at(ENDLESS, turn), f"Then there is this, number {turn}.", note(f"{turn}"))
        for turn in range(1, 40)
    ),
    *(rule(at(EIGHT, turn), f"Then there is this, number {turn}.", note(f"{turn}")) for turn in range(1, 8)),
    rule(at(EIGHT, 8), "That was all."),
    rule(at(SHORT, 1), "A word."),
    *({**rule(at(FLAKY, turn), ""), "respond": {"status": 429, "error": "not now"}} for turn in (1, 2)),
    rule(at(FLAKY, 3), "Patience pays."),
    *(
        {"name": f"{status}", "when": {"messages_contain": f"Fail with {status}"}, "respond": said}
        for status in (400, 401, 429, 500, 529)
        for said in [{"status": status, "error": f"a mock of {status}"}]
    ),
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    """Give the port of a fakellm with those rules."""
    with tempfile.TemporaryDirectory() as folder, fakellm(Path(folder), RULES) as port:
        yield port


def anew(goal: str) -> str:
    """Give a goal that nobody has had: fakellm tells conversations apart by their first message."""
    return f"{goal} ({secrets.token_hex(4)})"


def billed(daemon: Daemon, relay: Relay, row: Json, price: Price) -> Decimal:
    """Check a run's turns against what the counterpart said of each; gives what they come to."""
    answered = [each.said for each in relay.of(row["goal"]) if each.status == 200]
    usage = [relay.api.usage(said) for said in answered]
    turns = daemon.bodies(row["thread"], TURN)
    assert [(turn["usage"]["input_tokens"], turn["usage"]["output_tokens"]) for turn in turns] == usage
    assert (
        [turn["model"] for turn in turns]
        == [said["model"] for said in answered]
        == [row["model"]] * len(turns)
    )
    assert [turn["cost_usd"] for turn in turns] == [float(price.cost(each)) for each in usage]
    assert row["turns"] == len(turns)
    total = sum(map(price.cost, usage), Decimal(0))
    assert row["spent_usd"] == float(total)
    (outcome,) = daemon.bodies(row["thread"], "core.work.loop_outcome.v1")
    assert outcome["spent_usd"] == row["spent_usd"]
    return total


def spl(shape: Shape, home: Path, *arguments: str) -> Json:
    """Run a command that succeeds and give what it prints."""
    done = shape.run(*arguments, "--home", str(home), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    answer: Json = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=str)
def test_a_run_of_several_turns_is_billed_by_what_the_counterpart_counted(
    shape: Shape, home: Path, api: Api, upstream: int
) -> None:
    with relayed(api, upstream) as relay, relay.daemon(shape, home, PRICES) as daemon:
        for transport, model in zip(TRANSPORTS, (api.model, OTHER), strict=True):
            daemon.set_transport(transport)
            goal = anew(SEVERAL)
            row = spl(shape, home, "run", goal, *(("--model", OTHER) if model == OTHER else ()))
            assert (row["transport"], row["state"], row["outcome"]) == (transport, "done", "completed")
            assert (row["turns"], row["tool_calls_ok"], row["tool_calls_failed"]) == (4, 4, 0)
            assert row["summary"] == "391, and a transport is set."
            notes = [each["text"] for each in daemon.bodies(row["thread"], "core.work.note.v1")]
            assert notes == ["17 times 23 is worked out", "the sum is 391"]
            asked = relay.of(goal)
            assert {(each.path, each.asked["model"]) for each in asked} == {(api.path, model)}
            assert billed(daemon, relay, row, PRICES[model]) > 0
            verified = spl(shape, home, "verify", row["thread"])
            assert (verified["found"], verified["chain"]) == (0, verified["records"])
            told = spl(shape, home, "why", row["thread"])
            assert [call["tool"] for call in told["calls"]] == [
                *("record_note", "calculate"),
                "read_thread",
                "record_note",
            ]
            assert told["ended"]["spent_usd"] == row["spent_usd"]
            assert told["used"]["cost_usd"] == pytest.approx(row["spent_usd"])
        assert daemon.request("GET", "/v1/engine/health")["provider"] == {
            "name": api.name,
            "model": api.model,
            "url": relay.url,
            "priced": True,
            "failing": None,
        }
        checked = spl(shape, home, "provider", "check", "--model", OTHER)
        assert (checked["answered_by"], checked["calls_tools"]) == (OTHER, False)
        assert checked["usd_per_million"] == {"input": 2.5, "output": 10}


@pytest.mark.claim("B2")
def test_a_run_with_a_budget_of_one_cent_ends_in_the_middle_and_has_not_spent_more(
    shape: Shape, home: Path, relay: Relay
) -> None:
    with relay.daemon(shape, home, PRICES) as daemon:
        for transport in TRANSPORTS:
            daemon.set_transport(transport)
            goal = anew(ENDLESS)
            done = shape.run(
                *("run", goal, "--model", CENT, "--budget-usd", "0.01"), "--home", str(home), "-o", "json"
            )
            assert done.returncode == RunNotCompleted.exit_status
            row = json.loads(done.stdout)
            assert (row["transport"], row["state"]) == (transport, "stopped_short")
            assert (row["outcome"], row["budget_usd"]) == ("budget_exhausted", 0.01)
            spent = billed(daemon, relay, row, PRICES[CENT])
            assert row["turns"] >= 2
            # It was not ended early either: what is left does not pay for another call of sixteen tokens.
            assert Decimal("0.005") < spent <= Decimal("0.01")
            why, needed = str(row["summary"]).split(", which can cost ")
            assert why == (
                f"The {Decimal('0.01') - spent:f} USD left of the run's budget of 0.01 USD (budget_usd) "
                "may not pay for another model call"
            )
            assert Decimal(needed.removesuffix(" USD.")) > Decimal("0.01") - spent
            assert row["summary"].removesuffix(".") in done.stderr
            (outcome,) = daemon.bodies(row["thread"], "core.work.loop_outcome.v1")
            assert outcome["budget_kind"] == "usd"
            # No call was given room for a reply that what was left of the cent would not have paid for.
            paid, output = Decimal(0), Decimal(PRICES[CENT].output) / 1_000_000
            for each in relay.of(goal):
                assert paid + relay.api.bounded_by(each.asked) * output <= Decimal("0.01")
                paid += PRICES[CENT].cost(relay.api.usage(each.said))
            assert spl(shape, home, "verify", row["thread"])["found"] == 0


@pytest.mark.claim("B1", "B3")
def test_without_a_budget_a_sandboxed_run_has_that_of_its_tier_and_one_in_process_has_none(
    shape: Shape, home: Path, relay: Relay
) -> None:
    with relay.daemon(shape, home, PRICES) as daemon:
        added = daemon.request("POST", "/v1/members", {"label": "mia", "tier": "trial"})
        mia = daemon.client_of(added["token"])
        rows = {}
        for transport in TRANSPORTS:
            daemon.set_transport(transport)
            rows[transport] = finished(daemon, anew(EIGHT), model=DEAR)
        started = mia.request("POST", "/v1/work/loop", {"goal": anew(EIGHT), "model": DEAR})
        rows["a member's"] = daemon.finish(started["thread"])
        found = {
            whose: (
                row["budget_usd"],
                row["outcome"],
                row["turns"],
                float(billed(daemon, relay, row, PRICES[DEAR])),
            )
            for whose, row in rows.items()
        }
        # Seven tokens a reply, of 0.12 USD each; the last has three. A call needs room for 16.
        assert found == {
            "in_process": (None, "completed", 8, 6.24),
            "sandboxed": (5, "budget_exhausted", 4, 3.36),
            "a member's": (0.25, "budget_exhausted", 0, 0),
        }
        for row in rows.values():
            (anchor,) = daemon.bodies(row["thread"], "core.work.loop.v1")
            assert anchor["ceilings"]["budget_usd"] == row["budget_usd"]


def test_a_model_without_a_price_is_refused_with_the_line_that_gives_it_one(
    same_user: Shape, home: Path, upstream: int
) -> None:
    with relayed(OPENAI, upstream) as relay:
        goal = anew(SHORT)
        with relay.daemon(same_user, home, {}) as daemon:
            assert daemon.request("GET", "/v1/engine/health")["provider"]["priced"] is False
            # In process nothing has to hold, unless it is asked for.
            assert finished(daemon, goal)["outcome"] == "completed"
            with pytest.raises(ModelUnpriced):
                daemon.start(goal, budget_usd=1)
            daemon.set_transport("sandboxed")
            with pytest.raises(ModelUnpriced) as refused:
                daemon.start(goal)
            preview = daemon.request("POST", "/v1/work/loop/preview", {"goal": goal})
            assert [each["code"] for each in preview["refusals"]] == ["MODEL_UNPRICED"]
            done = same_user.run("run", goal, "--home", str(home))
            assert done.returncode == ModelUnpriced.exit_status
            assert done.stdout == ""
        line = str(refused.value.fields["line"])
        assert line in done.stderr
        config = home / "config.toml"
        config.write_text(f"{line}\n{config.read_text()}")
        with same_user.daemon(home) as daemon:
            row = finished(daemon, anew(SHORT))
            assert (row["model"], row["outcome"], row["spent_usd"]) == (relay.api.model, "completed", 0)


def test_an_error_of_the_counterpart_ends_a_run_failed_and_says_so_in_a_sentence(
    shape: Shape, home: Path, relay: Relay
) -> None:
    name = relay.api.name
    with relay.daemon(shape, home, PRICES) as daemon:
        for transport in TRANSPORTS:
            daemon.set_transport(transport)
            for status, tries, said in (
                (400, 1, "answered 400 (mock_error): a mock of 400"),
                (
                    401,
                    1,
                    f"wants a key (401), and there is none in secrets/{name}.key that may be sent there",
                ),
                (429, 4, "answered 429 (mock_error): a mock of 429"),
                (500, 4, "answered 500 (mock_error): a mock of 500"),
                (529, 4, "answered 529 (mock_error): a mock of 529"),
            ):
                row = finished(daemon, goal := anew(f"Fail with {status}"))
                assert (row["state"], row["outcome"]) == ("stopped_short", "failed")
                assert row["summary"] == f"The provider {name!r} {said}."
                assert (row["turns"], row["spent_usd"]) == (0, 0)
                assert [each.status for each in relay.of(goal)] == [status] * tries
                failing = daemon.request("GET", "/v1/engine/health")["provider"]["failing"]
                assert failing == f"the provider {name!r} {said}"
            # Two refusals before the answer: tried again in the same call, which is paid once.
            row = finished(daemon, goal := anew(FLAKY))
            assert (row["outcome"], row["turns"]) == ("completed", 1)
            assert [each.status for each in relay.of(goal)] == [429, 429, 200]
            billed(daemon, relay, row, PRICES[relay.api.model])
            assert daemon.request("GET", "/v1/engine/health")["provider"]["failing"] is None
    assert not [line for line in daemon.log.lines if "Traceback" in line]


def test_a_provider_that_is_down_fails_runs_and_not_the_daemon(
    same_user: Shape, home: Path, upstream: int
) -> None:
    with relayed(OPENAI, upstream) as relay:
        with relay.daemon(same_user, home, PRICES) as daemon:
            relay.down()
            threads = []
            for transport in TRANSPORTS:
                daemon.set_transport(transport)
                threads.append(daemon.start(anew(SHORT))["thread"])
            # While those are trying.
            done = same_user.run("provider", "check", "--home", str(home))
            rows = [daemon.finish(thread) for thread in threads]
            why = "the provider 'openai' cannot be reached: Connection refused"
            assert [row["summary"] for row in rows] == [f"T{why[1:]}."] * 2
            assert {row["outcome"] for row in rows} == {"failed"}
            assert done.returncode == ProviderFailed.exit_status
            assert why in done.stderr
            health = daemon.request("GET", "/v1/engine/health")
            assert (health["status"], health["provider"]["failing"]) == ("ok", why)
            relay.up()
            assert finished(daemon, anew(SHORT))["outcome"] == "completed"
            assert daemon.request("GET", "/v1/engine/health")["provider"]["failing"] is None
        assert not [line for line in daemon.log.lines if "Traceback" in line]
