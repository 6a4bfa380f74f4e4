"""Starting, previewing, watching and stopping runs through the API; what a member sees, and what it may use up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from spl.kernel import names
from tests.api.served import LAYER, TOKEN, Served, serve
from tests.api.test_operator import config, ended, refused
from tests.kernel.instance import MEMBERS, NOTE, OPERATOR, Hanging, chained, says

if TYPE_CHECKING:
    from pathlib import Path

MIA, BEN = "did:sync:user:mia", "did:sync:user:ben"
LOOP, PREVIEW = "/v1/work/loop", "/v1/work/loop/preview"
STOP = {"type": "stop"}
DONE = says("Done.")


async def in_process(served: Served) -> None:
    """Have members' runs in process: no worker can be confined here."""
    said = config(topic=MEMBERS, transport="in_process")
    assert (await served.ask("POST", "/v1/records", said)).status == 201


async def change_tier(served: Served, **ceilings: object) -> None:
    """Change the ceilings of the trial tier."""
    said = {**config(), "body": {"kind": names.TIER, "tier": "trial", **ceilings}}
    assert (await served.ask("POST", "/v1/records", said)).status == 201


# --- the preview ---


@pytest.mark.claim("T5")
def test_a_preview_tells_what_a_start_would_be_and_starts_nothing(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        before = await served.here.store.count()
        asked = {
            "goal": "a goal",
            "max_turns": 3,
            "tools": ["bash", "calculate"],
            "forbidden_tools": ["bash"],
        }
        said = (await served.ask("POST", PREVIEW, asked)).json
        assert said == {
            "object": "preview",
            "goal": "a goal",
            "actor": OPERATOR,
            "asked_by": OPERATOR,
            "tier": "operator",
            "transport": "in_process",
            "profile": None,
            "tools": ["calculate", "bash"],
            "forbidden_tools": ["bash"],
            "narrowed": [],
            "ceilings": {"max_turns": 3, "wall_clock_secs": None, "token_budget": None, "budget_usd": None},
            "model": "script",
            "admission": None,
            "would_start": True,
            "refusals": [],
        }
        assert await served.here.store.count() == before
        assert served.here.kernel.live == {}

    serve(tmp_path, talk)


@pytest.mark.claim("T5", "T3", "N2")
def test_a_preview_names_each_refusal_that_a_start_would_meet(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        await served.ask("POST", "/v1/records", config(topic=MEMBERS, transport="in_proces"))
        await change_tier(served, concurrent_runs=0, daily_runs=0, daily_cost_usd=0)
        before = await served.here.store.count()
        mia = await served.member()
        said = (await served.ask("POST", PREVIEW, {"goal": "x"}, bearer=mia)).json
        assert (said["actor"], said["transport"], said["profile"]) == (MIA, "sandboxed", "worker")
        assert said["narrowed"] == ["list_dir", "read_file", "search", "write_file"]
        assert said["would_start"] is False
        refusals = said["refusals"]
        assert [each["code"] for each in refusals] == [
            "WORK_CONCURRENCY_EXCEEDED",
            "WORK_DAILY_COUNT_EXCEEDED",
            "WORK_DAILY_CAP_EXCEEDED",
            "ISOLATION_UNAVAILABLE",
        ]
        assert LAYER.items() <= refusals[-1].items()
        # A start meets the first of them, and is no more written down than the preview was.
        start = await served.ask("POST", LOOP, {"goal": "x"}, bearer=mia)
        assert start.refusal == (429, "WORK_CONCURRENCY_EXCEEDED")
        assert start.json == refusals[0]
        assert await served.here.store.count() == before + 3

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, (400, "MISSING_FIELD")),
        ({"goal": " "}, (422, "INVALID_BODY")),
        ({"goal": "x", "thread": "th_x"}, (422, "INVALID_BODY")),
        ({"goal": "x", "tools": ["launch_rocket"]}, (422, "INVALID_BODY")),
        ({"goal": "x", "forbidden_tools": ["launch_rocket"]}, (422, "INVALID_BODY")),
        ({"goal": "x", "actor": "mia"}, (422, "INVALID_BODY")),
        ([], (422, "INVALID_BODY")),
    ],
)
def test_a_preview_of_what_cannot_be_is_refused_as_its_start_is(
    tmp_path: Path, body: Any, refusal: tuple[int, str]
) -> None:
    async def talk(served: Served) -> None:
        assert await refused(served, "POST", PREVIEW, body) == refusal
        assert await refused(served, "POST", LOOP, body) == refusal

    serve(tmp_path, talk)


# --- the stop ---


@pytest.mark.claim("T7")
@pytest.mark.parametrize(("path", "body"), [("/v1/runs/{}/events", STOP), ("/v1/work/loop/{}/cancel", None)])
def test_a_run_whose_model_never_answers_is_stopped_and_cannot_be_twice(
    tmp_path: Path, path: str, body: object
) -> None:
    hanging = Hanging()

    async def talk(served: Served) -> None:
        started = await served.ask("POST", LOOP, {"goal": "x"})
        thread = started.json["thread"]
        await hanging.asked.wait()
        stopped = await served.ask("POST", path.format(thread), body)
        assert (stopped.status, stopped.json) == (202, {"object": "event", "type": "stop", "thread": thread})
        row = await ended(served, started)
        assert (row["state"], row["outcome"]) == ("stopped", "cancelled")
        assert row["summary"] == f"Stopped by {OPERATOR}."
        assert (await served.ask("POST", path.format(thread), body)).refusal == (409, "RUN_FINISHED")
        assert chained(await served.here.on(thread))

    serve(tmp_path, talk, provider=hanging)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b"", (422, "INVALID_BODY")),
        ({}, (400, "MISSING_FIELD")),
        ({"type": "pause"}, (400, "EVENT_UNKNOWN")),
        ({"type": "Stop"}, (400, "EVENT_UNKNOWN")),
        ({"type": None}, (422, "INVALID_BODY")),
        ({"type": "stop", "reason": "x"}, (422, "INVALID_BODY")),
        (["stop"], (422, "INVALID_BODY")),
    ],
)
def test_an_event_that_no_run_takes_is_refused_and_stops_none(
    tmp_path: Path, body: object, refusal: tuple[int, str]
) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open(actor=OPERATOR)
        answer = await served.ask("POST", f"/v1/runs/{run.terms.thread}/events", body)
        assert answer.refusal == refusal
        assert not run.ending.is_set()

    serve(tmp_path, talk)


def test_the_older_name_of_the_stop_takes_no_body_or_an_empty_one(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        path = f"{LOOP}/{(await served.here.open()).terms.thread}/cancel"
        wrong: tuple[Any, ...] = (STOP, [], b"x")
        for body in wrong:
            assert (await served.ask("POST", path, body)).refusal == (422, "INVALID_BODY")
        assert (await served.ask("POST", f"{path}?x=1")).refusal == (422, "INVALID_BODY")
        assert (await served.ask("POST", path, {})).status == 202
        assert (await served.ask("POST", path)).status == 202

    serve(tmp_path, talk)


@pytest.mark.parametrize("path", ["/v1/runs/{}/events", "/v1/work/loop/{}/cancel"])
def test_a_run_that_is_not_there_cannot_be_stopped(tmp_path: Path, path: str) -> None:
    async def talk(served: Served) -> None:
        body = STOP if "events" in path else None
        assert (await served.ask("POST", path.format("th_none"), body)).refusal == (404, "RUN_NOT_FOUND")

    serve(tmp_path, talk)


# --- a member's view ---


def test_a_member_sees_its_own_runs_and_threads_and_nothing_of_anyone_elses(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        await in_process(served)
        mia, ben = await served.member(), await served.member("ben")
        rows = {}
        for bearer in (mia, ben, TOKEN):
            rows[bearer] = await ended(served, await served.ask("POST", LOOP, {"goal": "x"}, bearer=bearer))
        assert [rows[each]["actor"] for each in (mia, ben, TOKEN)] == [MIA, BEN, OPERATOR]
        own, others = rows[mia]["thread"], [rows[ben]["thread"], rows[TOKEN]["thread"]]

        async def seen(path: str) -> list[Any]:
            data: list[Any] = (await served.ask("GET", path, bearer=mia)).json["data"]
            return data

        assert [each["thread"] for each in await seen("/v1/runs")] == [own]
        assert [each["thread"] for each in await seen(f"/v1/runs?actor={MIA}")] == [own]
        assert [each["thread"] for each in await seen("/v1/threads")] == [own]
        assert {each["thread"] for each in await seen("/v1/records")} == {own}
        mine = await seen(f"/v1/threads/{own}/records")
        assert len(mine) == len(await served.here.on(own))
        assert (await served.ask("GET", f"/v1/records/{mine[0]['id']}", bearer=mia)).json == mine[0]
        for query in (f"kind={names.LOOP}", f"actor={names.ENGINE}"):
            assert {each["thread"] for each in await seen(f"/v1/records?{query}")} == {own}

        for thread in (*others, names.CONFIG_THREAD, names.PRINCIPALS_THREAD):
            assert await seen(f"/v1/threads/{thread}/records") == []
            assert await seen(f"/v1/records?thread={thread}") == []
            (first, *_) = await served.here.on(thread)
            hidden = await served.ask("GET", f"/v1/records/{first.id}", bearer=mia)
            assert hidden.refusal == (404, "NOT_FOUND")
            # In the very words of one that is not there.
            assert hidden.body == (await served.ask("GET", f"/v1/records/{'0' * 64}", bearer=mia)).body
        for thread in others:
            for method, path, body in (
                ("GET", f"/v1/runs/{thread}", None),
                ("POST", f"/v1/runs/{thread}/events", STOP),
                ("POST", f"{LOOP}/{thread}/cancel", None),
            ):
                missing = await served.ask(method, path, body, bearer=mia)
                assert missing.refusal == (404, "RUN_NOT_FOUND")
        assert (await served.ask("GET", f"/v1/runs?actor={BEN}", bearer=mia)).refusal == (
            403,
            "ACTOR_NOT_COVERED",
        )

    serve(tmp_path, talk, NOTE, DONE)


def test_a_member_starts_runs_as_itself_only_and_stops_its_own(tmp_path: Path) -> None:
    hanging = Hanging()

    async def talk(served: Served) -> None:
        await in_process(served)
        mia = await served.member()
        for path in (LOOP, PREVIEW):
            for actor in (BEN, OPERATOR):
                asked = await served.ask("POST", path, {"goal": "x", "actor": actor}, bearer=mia)
                assert asked.refusal == (403, "RUN_ACTOR_NOT_COVERED")
        started = await served.ask("POST", LOOP, {"goal": "x", "actor": MIA}, bearer=mia)
        await hanging.asked.wait()
        path = f"/v1/runs/{started.json['thread']}/events"
        assert (await served.ask("POST", path, STOP, bearer=mia)).status == 202
        row = await ended(served, started)
        assert (row["outcome"], row["summary"]) == ("cancelled", f"Stopped by {MIA}.")

    serve(tmp_path, talk, provider=hanging)


def test_the_runs_of_a_member_that_is_revoked_are_stopped_and_named(tmp_path: Path) -> None:
    hanging = Hanging()

    async def talk(served: Served) -> None:
        await in_process(served)
        started = await served.ask("POST", LOOP, {"goal": "x"}, bearer=await served.member())
        await hanging.asked.wait()
        gone = await served.ask("DELETE", "/v1/members/mia")
        assert gone.json["stopped"] == [started.json["thread"]]
        assert (await ended(served, started))["outcome"] == "cancelled"

    serve(tmp_path, talk, provider=hanging)


# --- what may be used up ---


@pytest.mark.parametrize(
    ("ceiling", "code", "fields"),
    [
        ("concurrent_runs", "WORK_CONCURRENCY_EXCEEDED", {"limit": 0, "running": 0}),
        ("daily_runs", "WORK_DAILY_COUNT_EXCEEDED", {"limit": 0, "started": 0}),
        ("daily_cost_usd", "WORK_DAILY_CAP_EXCEEDED", {"limit_usd": 0, "spent_usd": 0}),
    ],
)
def test_a_ceiling_of_nothing_refuses_a_start_with_its_numbers_and_says_what_helps(
    tmp_path: Path, ceiling: str, code: str, fields: dict[str, object]
) -> None:
    async def talk(served: Served) -> None:
        await in_process(served)
        await change_tier(served, **{ceiling: 0})
        mia = await served.member()
        before = await served.here.store.count()
        answer = await served.ask("POST", LOOP, {"goal": "x"}, bearer=mia)
        assert answer.refusal == (429, code)
        assert fields.items() <= answer.json.items()
        # No wait helps.
        assert "retry-after" not in answer.headers
        assert f"--reset {ceiling.replace('_', '-')}" in answer.json["remedy"]
        assert ceiling in answer.json["message"]
        assert await served.here.store.count() == before
        await change_tier(served, **{ceiling: None})
        row = await ended(served, await served.ask("POST", LOOP, {"goal": "x"}, bearer=mia))
        assert row["state"] == "done"

    serve(tmp_path, talk, DONE)


def test_a_days_runs_that_are_used_up_are_refused_with_when_to_come_again(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        await in_process(served)
        await change_tier(served, daily_runs=1)
        mia = await served.member()
        await ended(served, await served.ask("POST", LOOP, {"goal": "x"}, bearer=mia))
        answer = await served.ask("POST", LOOP, {"goal": "x"}, bearer=mia)
        assert answer.refusal == (429, "WORK_DAILY_COUNT_EXCEEDED")
        assert int(answer.headers["retry-after"]) == answer.json["retry_after_secs"]
        assert 1 <= answer.json["retry_after_secs"] <= 86_400

    serve(tmp_path, talk, DONE)


# --- rules and tiers ---


@pytest.mark.claim("K4")
def test_rules_are_listed_in_the_order_they_are_asked_with_how_often_each_decided(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        for name, priority, expression in (("first", 5, 'resource == "tool:bash"'), ("second", 1, "true")):
            rule = {"topic": "permission_rule", "name": name, "action": "deny", "priority": priority}
            said = {**config(), "body": {"kind": names.CONFIG, **rule, "expression": expression}}
            assert (await served.ask("POST", "/v1/records", said)).status == 201
        await ended(served, await served.ask("POST", LOOP, {"goal": "x"}))
        listed = (await served.ask("GET", "/v1/rules")).json
        rule = {"object": "rule", "action": "deny", "enabled": True}
        assert listed == {
            "object": "list",
            "data": [
                {**rule, "name": "first", "priority": 5, "expression": 'resource == "tool:bash"', "hits": 0},
                {**rule, "name": "second", "priority": 1, "expression": "true", "hits": 1},
            ],
            "has_more": False,
        }

    serve(tmp_path, talk, NOTE, DONE)


def test_an_expression_that_does_not_compile_is_refused_with_its_place(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        rule = {"topic": "permission_rule", "name": "x", "action": "deny", "priority": 0}
        said = {**config(), "body": {"kind": names.CONFIG, **rule, "expression": "resource =="}}
        answer = await served.ask("POST", "/v1/records", said)
        assert answer.refusal == (400, "EXPRESSION_INVALID")
        assert (answer.json["line"], answer.json["column"]) == (1, 12)
        assert answer.json["excerpt"].splitlines() == ["resource ==", " " * 11 + "^"]
        assert await served.here.store.count() == 0

    serve(tmp_path, talk)


def test_tiers_are_listed_with_their_ceilings_as_they_are_now(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        await change_tier(served, max_turns=7, daily_runs=3)
        tiers = (await served.ask("GET", "/v1/tiers")).json["data"]
        assert [each["tier"] for each in tiers] == ["trial", "paid", "team", "operator"]
        assert tiers[0] == {
            "object": "tier",
            "tier": "trial",
            "max_turns": 7,
            "wall_clock_secs": 120,
            "token_budget": 20_000,
            "default_budget_usd": 0.25,
            "daily_cost_usd": 0.5,
            "daily_runs": 3,
            "concurrent_runs": 1,
        }
        assert tiers[-1]["max_turns"] is None

    serve(tmp_path, talk)


RULE = {"topic": "permission_rule", "name": "x", "action": "deny", "priority": 0, "expression": "true"}


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({**RULE, "action": "maybe"}, (422, "INVALID_BODY")),
        ({**RULE, "priority": "high"}, (422, "INVALID_BODY")),
        ({**RULE, "priority": True}, (422, "INVALID_BODY")),
        ({**RULE, "enabled": 1}, (422, "INVALID_BODY")),
        ({**RULE, "name": "a b"}, (422, "INVALID_BODY")),
        ({**RULE, "expression": 7}, (422, "INVALID_BODY")),
        ({**RULE, "expression": "1"}, (400, "EXPRESSION_INVALID")),
        ({**RULE, "hits": 0}, (422, "INVALID_BODY")),
        ({name: value for name, value in RULE.items() if name != "priority"}, (400, "MISSING_FIELD")),
        ({"topic": "actor_tier", "actor": MIA}, (400, "MISSING_FIELD")),
        ({"topic": "actor_tier", "actor": MIA, "tier": "operator"}, (422, "INVALID_BODY")),
        ({"topic": "actor_tier", "actor": "mia", "tier": "paid"}, (422, "INVALID_BODY")),
        ({"kind": names.TIER, "tier": "gold", "max_turns": 1}, (422, "INVALID_BODY")),
        ({"kind": names.TIER, "tier": "trial"}, (400, "MISSING_FIELD")),
        ({"kind": names.TIER, "max_turns": 1}, (400, "MISSING_FIELD")),
        ({"kind": names.TIER, "tier": "trial", "max_turns": 0}, (422, "INVALID_BODY")),
        ({"kind": names.TIER, "tier": "trial", "max_turns": 1.5}, (422, "INVALID_BODY")),
        ({"kind": names.TIER, "tier": "trial", "tools": ["bash"]}, (422, "INVALID_BODY")),
    ],
)
def test_configuration_that_says_nothing_or_something_else_is_refused_and_not_written(
    tmp_path: Path, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    async def talk(served: Served) -> None:
        said = {**config(), "body": {"kind": names.CONFIG, **body}}
        assert await refused(served, "POST", "/v1/records", said) == refusal

    serve(tmp_path, talk)


@pytest.mark.parametrize("path", ["/v1/rules", "/v1/tiers", "/v1/members", "/v1/tokens"])
def test_a_listing_without_pages_takes_no_query(tmp_path: Path, path: str) -> None:
    async def talk(served: Served) -> None:
        assert await refused(served, "GET", f"{path}?limit=1") == (422, "INVALID_BODY")

    serve(tmp_path, talk)
