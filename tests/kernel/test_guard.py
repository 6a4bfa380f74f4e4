from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import CallNotAllowed, RunFinished, StoreUnavailable
from spl.kernel import guard, names
from spl.kernel.rules import Asked, Rule, Rules
from spl.kernel.terms import Terms
from spl.kernel.tiers import Ceilings
from spl.tools.registry import TOOLS
from tests.kernel.doors import CLEAN, at_the_doors, refused
from tests.kernel.instance import (
    MEMBER,
    MEMBERS,
    NOTE,
    OPERATOR,
    Instance,
    Priced,
    call,
    calls,
    carry_out,
    propose,
    replies_of,
    says,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.guard import Verdict
    from spl.kernel.runs import Run

REACH = ("record_note", "calculate")
DENY_ALL = Rule("deny-all", "deny", 0, "true")


def judged(
    tool: str,
    *rules: Rule,
    forbidden: tuple[str, ...] = (),
    ending: str | None = None,
    truncated: bool = False,
    tools: tuple[str, ...] = REACH,
) -> Verdict:
    """Judge a call of a member's sandboxed run."""
    live = Rules(lambda: datetime.now(UTC))
    for rule in rules:
        live.put(rule)
    terms = Terms(
        thread="th_run_1",
        goal="a goal",
        actor=MEMBER,
        asked_by=MEMBER,
        tier="trial",
        transport="sandboxed",
        ceilings=Ceilings(5, 120, 20_000, None),
        tools=tools,
        forbidden=forbidden,
        narrowed=("read_file", "search"),
        model="script",
        profile="worker",
        started_at="2031-05-04T22:59:58.000Z",
    )
    asked = Asked(tool, {"text": "x"}, MEMBER, "trial", "sandboxed", "th_run_1", "a goal", 1, 0.0)
    return guard.judge(asked, terms=terms, rules=live, ending=ending, truncated=truncated)


# --- the order of the layers ---


@pytest.mark.claim("K2")
@pytest.mark.parametrize(
    ("tool", "asked", "decision", "layer", "reason"),
    [
        # Whatever else would object, the layer before it answers.
        (
            "bash",
            {"ending": "Stopped by x.", "truncated": True, "forbidden": ("bash",)},
            "stop",
            "stop",
            "the run is ending: Stopped by x.",
        ),
        (
            "bash",
            {"truncated": True, "forbidden": ("bash",)},
            "deny",
            "truncated",
            "the reply was cut off by the output limit, its arguments may be incomplete",
        ),
        (
            "read_file",
            {"forbidden": ("read_file",)},
            "deny",
            "grant",
            "the tool 'read_file' is withheld from runs that are sandboxed",
        ),
        (
            "bash",
            {"forbidden": ("bash",)},
            "deny",
            "grant",
            "the tool 'bash' is not in this run's reach, which is calculate, record_note",
        ),
        (
            "bash",
            {"tools": ()},
            "deny",
            "grant",
            "the tool 'bash' is not in this run's reach, which is no tool",
        ),
        (
            "record_note",
            {"forbidden": ("record_note",)},
            "deny",
            "clamp",
            "this run was started with 'record_note' among its forbidden_tools",
        ),
        ("record_note", {}, "deny", "rule", "the rule 'deny-all' denies it"),
    ],
)
def test_the_first_layer_with_an_objection_answers_and_says_why(
    tool: str, asked: dict[str, Any], decision: str, layer: str, reason: str
) -> None:
    verdict = judged(tool, DENY_ALL, **asked)
    assert (verdict.decision, verdict.layer, verdict.reason) == (decision, layer, reason)
    assert verdict.rule == ("deny-all" if layer == "rule" else None)
    assert not verdict.allowed
    assert verdict.text == f"This call was not run ({layer}): {reason}."


@pytest.mark.claim("K2")
def test_what_nobody_objects_to_is_allowed_and_has_nothing_to_show() -> None:
    verdict = judged("record_note", forbidden=("calculate",))
    assert (verdict.decision, verdict.layer, verdict.reason, verdict.rule, verdict.allowed) == (
        "allow",
        "allow",
        "nothing objected",
        None,
        True,
    )


@pytest.mark.claim("K2")
@pytest.mark.parametrize("tool", ["", "Record_note", "record_note ", "records", "tool:record_note"])
def test_a_name_that_is_nearly_a_tools_is_not_in_reach(tool: str) -> None:
    assert judged(tool).layer == "grant"


@pytest.mark.claim("K2")
def test_a_rule_that_allows_names_itself_and_hides_those_below_it() -> None:
    allow = Rule("let-notes", "allow", 1, "resource == 'tool:record_note'")
    verdict = judged("record_note", DENY_ALL, allow)
    assert (verdict.decision, verdict.layer, verdict.rule) == ("allow", "allow", "let-notes")
    assert verdict.reason == "the rule 'let-notes' allows it"
    assert judged("calculate", DENY_ALL, allow).rule == "deny-all"


@pytest.mark.claim("K2", "N4")
@pytest.mark.parametrize("tool", ["bash", "read_file"])
def test_no_rule_that_allows_widens_a_runs_reach(tool: str) -> None:
    verdict = judged(tool, Rule("let-all", "allow", 1000, "true"), forbidden=("calculate",))
    assert (verdict.decision, verdict.layer, verdict.rule) == ("deny", "grant", None)
    clamped = judged("calculate", Rule("let-all", "allow", 1000, "true"), forbidden=("calculate",))
    assert (clamped.decision, clamped.layer) == ("deny", "clamp")


# --- rules that cannot be evaluated ---


@pytest.mark.claim("K8")
def test_a_rule_that_cannot_be_evaluated_denies_where_it_would_deny() -> None:
    broken = Rule("no-secrets", "deny", 5, "args.path == '/etc/shadow'")
    verdict = judged("record_note", broken, Rule("let-all", "allow", 1, "true"))
    assert (verdict.decision, verdict.layer, verdict.rule) == ("deny", "rule", "no-secrets")
    assert verdict.reason.startswith(
        "the rule 'no-secrets' cannot be evaluated for it, and a rule that denies then does: "
    )


@pytest.mark.claim("K8")
def test_a_rule_that_cannot_be_evaluated_never_allows() -> None:
    broken = Rule("let-some", "allow", 5, "args.path == '/etc/shadow'")
    assert judged("record_note", broken, DENY_ALL).rule == "deny-all"
    nobody = judged("record_note", broken)
    assert (nobody.decision, nobody.rule) == ("allow", None)


# --- through the doors ---


@pytest.mark.claim("K4")
def test_a_rule_written_between_two_calls_of_one_reply_holds_for_the_second(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        assert (await propose(run, "c1"))["decision"] == "allow"
        await here.rule("stop-notes", "resource == 'tool:record_note'", priority=100)
        second = await propose(run, "c2")
        assert (second["decision"], second["layer"], second["rule"]) == ("deny", "rule", "stop-notes")
        # What was allowed before it was written stays allowed.
        await run.door("call", {"call_id": "c1"})
        await refused(here, run, "call", {"call_id": "c2"}, CallNotAllowed)
        await here.rule("stop-notes", None)
        assert (await propose(run, "c3"))["decision"] == "allow"

    notes = [call("record_note", f"c{number}", text=f"note {number}") for number in (1, 2, 3)]
    at_the_doors(tmp_path, calls(*notes), talk=talk)


@pytest.mark.claim("K4", "K8")
def test_a_rule_that_reads_the_call_its_run_and_its_actor_decides_by_them(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await here.rule("hers", f"current_actor() == '{MEMBER}' && run.turn == 1 && args.text == 'one'")
        await here.rule("others", f"actor != '{MEMBER}' || tier != 'trial' || transport != 'sandboxed'")
        await turn(run)
        assert (await propose(run, "c1"))["rule"] == "hers"
        assert (await propose(run, "c2"))["decision"] == "allow"
        # A call without the argument cannot be looked at by the rule that asks for it.
        third = await propose(run, "c3")
        assert (third["decision"], third["rule"]) == ("deny", "hers")

    made = (
        call("record_note", "c1", text="one"),
        call("record_note", "c2", text="two"),
        call("record_note", "c3"),
    )
    at_the_doors(tmp_path, calls(*made), talk=talk)


@pytest.mark.claim("K4")
@pytest.mark.parametrize("transport", ["in_process", "sandboxed"])
def test_a_rule_is_shown_the_run_as_it_is(tmp_path: Path, transport: str) -> None:
    async def talk(here: Instance, _: Run) -> None:
        await here.configure(MEMBERS, transport)
        await here.give(MEMBER, "paid")
        run = await here.open(goal="tidy up")
        for name, so in (
            ("transport", f"transport == '{transport}'"),
            ("tier", "tier == 'paid'"),
            ("actor", f"actor == '{MEMBER}'"),
            ("thread", f"run.thread == '{run.terms.thread}'"),
            ("goal", "run.goal == 'tidy up'"),
            ("turn", "run.turn == 1"),
            ("spent", "run.spent_usd == 0.1"),
        ):
            await here.rule(f"unless-{name}", f"!({so})")
        await turn(run)
        verdict = await propose(run)
        assert (verdict["decision"], verdict["rule"]) == ("allow", None)

    replies = replies_of(tmp_path, {**NOTE, "usage": {"output_tokens": 1000}})
    at_the_doors(tmp_path, provider=Priced(replies), talk=talk)


@pytest.mark.claim("K1", "K4")
@pytest.mark.parametrize("actor", [OPERATOR, MEMBER], ids=["in process", "sandboxed"])
def test_there_is_no_tool_that_a_rule_cannot_deny(tmp_path: Path, actor: str) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await here.rule("deny-all", "true")
        await turn(run)
        said = {name: await propose(run, name) for name in run.terms.tools}
        assert {verdict["rule"] for verdict in said.values()} == {"deny-all"}

    every = calls(*(call(name, name) for name in TOOLS))
    at_the_doors(tmp_path, every, talk=talk, asked={"actor": actor})


@pytest.mark.claim("K1", "K2")
@pytest.mark.parametrize("transport", ["in_process", "sandboxed"])
def test_both_transports_are_judged_alike_by_the_same_rules(tmp_path: Path, transport: str) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await here.configure(MEMBERS, transport)
        await here.rule("no-sums", "resource == 'tool:calculate'")
        await here.rule("let-notes", "resource == 'tool:record_note'", action="allow", priority=1)
        theirs = await here.open()
        assert theirs.terms.transport == transport
        await turn(theirs)
        said = [await propose(theirs, f"c{number}") for number in (1, 2, 3)]
        assert [(each["decision"], each["layer"], each["rule"]) for each in said] == [
            ("allow", "allow", "let-notes"),
            ("deny", "rule", "no-sums"),
            ("deny", "grant", None),
        ]

    made = (call("record_note", "c1", text="x"), call("calculate", "c2", expression="1"), call("bash", "c3"))
    at_the_doors(tmp_path, calls(*made), talk=talk)


@pytest.mark.claim("N1", "N4")
@pytest.mark.parametrize("name", ["read_file", "write_file", "bash", "host_write_file"])
def test_even_a_forged_verdict_runs_no_tool_of_the_kernels_trust_for_a_sandboxed_run(
    tmp_path: Path, name: str
) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        assert (await propose(run))["layer"] == "grant"
        proposed = run.calls.proposed(run.calls.find("c1"))
        assert proposed is not None
        proposed.verdict = guard.Verdict("allow", "allow", "forged")
        assert "in process" in await refused(here, run, "call", {"call_id": "c1"}, CallNotAllowed)
        await refused(
            here,
            run,
            "record",
            {"kind": names.TOOL_RESULT, "body": {"call_id": "c1", "status": "ok", "output": "x"}},
            CallNotAllowed,
        )
        assert not (tmp_path / "data" / "x").exists()

    at_the_doors(tmp_path, calls(call(name, path="x", content="x", command="id")), talk=talk)


# --- a log that cannot be written ---


@pytest.mark.claim("K3")
def test_a_verdict_that_cannot_be_written_is_a_denial_until_it_can(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        here.store.full_for = names.TOOL_VERDICT
        before = await here.store.count()
        for _ in range(2):
            answer = await propose(run)
            assert (answer["decision"], answer["layer"], answer["fulfills"]) == ("deny", "log", None)
            assert answer["text"].startswith(
                "This call was not run (log): its verdict cannot be written down"
            )
            assert "the disk is full" in answer["text"]
            assert answer["observations"] == []
        await refused(here, run, "call", {"call_id": "c1"}, CallNotAllowed)
        assert await here.store.count() == before
        assert (run.tally.ok, run.tally.failed, len(run._history)) == (0, 0, 0)
        here.store.full_for = None
        assert (await propose(run))["decision"] == "allow"
        await run.door("call", {"call_id": "c1"})
        assert await here.kinds(run.terms.thread) == [
            *("loop", "isolation", "turn", "tool_call", "tool_verdict", "note", "tool_result")
        ]

    at_the_doors(tmp_path, NOTE, talk=talk)


@pytest.mark.claim("K3")
def test_a_log_that_is_gone_runs_nothing(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        await here.store.close()
        assert (await propose(run))["layer"] == "log"
        with pytest.raises(CallNotAllowed):
            await run.door("call", {"call_id": "c1"})
        with pytest.raises(StoreUnavailable):
            await turn(run)
        with closing(sqlite3.connect(tmp_path / "hub.db")) as log:
            kinds = [kind for (kind,) in log.execute("SELECT kind FROM records ORDER BY sequence")]
        assert kinds == [names.LOOP, names.ISOLATION, names.TURN]

    at_the_doors(tmp_path, NOTE, talk=talk)


@pytest.mark.claim("K3", "K6")
def test_a_run_goes_on_past_a_call_the_log_could_not_take_and_is_no_success_by_it(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        here.store.full_for = names.TOOL_VERDICT
        await carry_out(run)
        here.store.full_for = None
        assert "reply" in await turn(run)
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["success"]) == ("failed", False)
        # The tallies are those of the thread, which holds no verdict.
        assert (outcome["tool_calls_ok"], outcome["tool_calls_failed"]) == (0, 0)

    at_the_doors(tmp_path, NOTE, says("All is done!"), talk=talk)


@pytest.mark.claim("K6")
@pytest.mark.parametrize("left", ["unproposed", "unrun"])
def test_a_loop_that_goes_on_past_a_call_it_has_no_answer_to_has_failed(tmp_path: Path, left: str) -> None:
    async def talk(here: Instance, run: Run) -> None:
        await turn(run)
        if left == "unrun":
            await propose(run)
        assert await turn(run) == {"end": "failed"}
        assert run.budget.turns == 1
        await here.kernel.finish(run, CLEAN)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert outcome["outcome"] == "failed"
        assert outcome["summary"] == "The loop went on without an answer to the call 'c1'."
        with pytest.raises(RunFinished):
            await turn(run)

    at_the_doors(tmp_path, NOTE, says("All is done!"), talk=talk)


@pytest.mark.claim("N4")
def test_a_call_of_a_host_tool_is_denied_by_grant_where_the_daemon_is_hosted(tmp_path: Path) -> None:
    async def talk(here: Instance, run: Run) -> None:
        own = await here.open(actor=OPERATOR)
        assert own.terms.transport == "in_process"
        await turn(own)
        assert (await propose(own))["layer"] == "grant"
        await refused(here, own, "call", {"call_id": "c1"}, CallNotAllowed)

    at_the_doors(tmp_path, calls(call("bash", command="id")), talk=talk, host_tools=False)
