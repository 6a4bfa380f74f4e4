from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import RunNotFound

if TYPE_CHECKING:
    from tests.cli.conftest import Spl
    from tests.server import Daemon, Request

Json = dict[str, Any]

THREAD = "th_run_1"
ENGINE, MIA, EVE = "did:sync:system:engine", "did:sync:user:mia", "did:sync:user:eve"
CEILINGS = {"max_turns": 5, "wall_clock_secs": 120, "token_budget": 20_000, "budget_usd": 0.25}
ASKED = {"goal": "count the cats", "actor": MIA, "asked_by": "did:sync:user:op", "tier": "trial", "model": "cats",
         "started_at": "2026-01-01T00:00:00.000Z"}  # fmt: skip
CALL = {"call_id": "c1", "tool": "calculate", "arguments": {"expression": "1+1"}}
VERDICT = {"decision": "allow", "layer": "allow", "rule": None, "reason": "nothing objected"}
RESULT = {"status": "ok", "output": "2", "truncated": False}
OUTCOME = {
    "outcome": "completed", "state": "done", "success": True, "evidence": "worker", "transport": "sandboxed",
    "turns": 1, "tool_calls_ok": 1, "tool_calls_failed": 0, "spent_usd": 0.01, "exit": {"code": 0},
    "summary": "Two cats.", "ended_at": "2026-01-01T00:00:09.000Z",
}  # fmt: skip


def anchor(**more: object) -> Json:
    given = {"transport": "sandboxed", "profile": "worker", "tools": ["calculate"], "narrowed": ["search"]}
    return {
        "kind": "core.work.loop.v1",
        **ASKED,
        **given,
        "forbidden_tools": ["x"],
        "ceilings": CEILINGS,
        **more,
    }


def said(name: str, **body: object) -> Json:
    return {"kind": f"core.work.{name}.v1", **body}


RECEIPT = said(
    "isolation", layers=[{"layer": "network", "confirmed": True}, {"layer": "home", "confirmed": True}]
)
TURN = said("turn", turn=1, usage={"input_tokens": 30, "output_tokens": 7}, cost_usd=0.01)


def replied(text: str, *, model: str = "cats-1", stop_reason: str = "end") -> Json:
    return {**TURN, "model": model, "reply": {"text": text, "calls": [], "stop_reason": stop_reason}}


def thread(*said: Json | tuple[str, Json]) -> list[Json]:
    """Give records of these bodies; the kernel's, unless an actor stands before."""
    records = []
    for at, each in enumerate(said, 1):
        actor, body = each if isinstance(each, tuple) else (ENGINE, each)
        records.append({"id": f"r{at}", "sequence": at, "thread": THREAD, "actor": actor, "body": body})
    return records


WHOLE = thread(
    anchor(), RECEIPT, replied("I count.", stop_reason="tool_use"),
    said("tool_call", **CALL), said("tool_verdict", fulfills="r4", **VERDICT),
    (MIA, said("tool_result", fulfills="r4", **RESULT)),
    said("observation", fulfills="r4", rule="repeated_call", text="You have called it 3 times."),
    said("note", text="two", fulfills="r4"), (MIA, said("plan", text="count")), said("loop_outcome", **OUTCOME),
)  # fmt: skip


def holds(daemon: Daemon, records: list[Json], *, most: int = 1000) -> None:
    """Have the daemon give these records, so many at the most a page."""

    def page(request: Request) -> Any:
        left = [each for each in records if each["sequence"] > int(request.query.get("since", 0))]
        return {"object": "list", "data": left[:most], "has_more": len(left) > most}

    daemon.routes[f"GET /v1/threads/{THREAD}/records"] = page


def lines(spl: Spl) -> list[list[str]]:
    """Give the page's lines, each as its label and what is said."""
    ended = spl("why", THREAD, "-o", "table")
    assert (ended.returncode, ended.stderr) == (0, "")
    return [re.split("  +", line.rstrip(), maxsplit=1) for line in ended.stdout.splitlines() if line.strip()]


@pytest.mark.parametrize("most", [1000, 2])
def test_the_whole_of_a_run_is_told_as_a_document(spl: Spl, daemon: Daemon, most: int) -> None:
    holds(daemon, WHOLE, most=most)
    ended = spl("why", THREAD)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == {
        "object": "why",
        "run": THREAD,
        "asked": ASKED,
        "transport": "sandboxed",
        "profile": "worker",
        "confirmed": ["network", "home"],
        "tools": ["calculate"],
        "narrowed": ["search"],
        "forbidden_tools": ["x"],
        "ceilings": CEILINGS,
        "used": {"turns": 1, "input_tokens": 30, "output_tokens": 7, "cost_usd": 0.01},
        "replies": [{"turn": 1, "model": "cats-1", "text": "I count.", "stop_reason": "tool_use"}],
        "calls": [
            {
                **CALL,
                "turn": 1,
                "verdict": VERDICT,
                "result": RESULT,
                "observations": [{"rule": "repeated_call", "text": "You have called it 3 times."}],
            }
        ],
        "notes": ["two"],
        "own_words": 1,
        "stopped_by": None,
        "ended": OUTCOME,
        "outside": 0,
    }


def test_the_whole_of_a_run_is_told_on_a_page(spl: Spl, daemon: Daemon) -> None:
    holds(daemon, WHOLE)
    table = spl("why", THREAD, "-o", "table").stdout
    assert [line.rstrip() for line in table.splitlines()] == [
        "run         th_run_1",
        "asked       count the cats",
        "as          did:sync:user:mia, tier trial, asked by did:sync:user:op",
        "model       cats, answered by cats-1",
        "begun       2026-01-01T00:00:00.000Z",
        "where       sandboxed, under the profile worker, 2 layers confirmed before it began",
        "could use   calculate",
        "withheld    search",
        "forbidden   x",
        "turns       1 of 5",
        "tokens      30 in, 7 out of 20000",
        "US dollars  0.01 of 0.25",
        "",
        "said        I count.",
        'call 1      calculate {"expression": "1+1"}',
        "verdict     allow (layer allow): nothing objected",
        "result      ok: 2",
        "observed    repeated_call: You have called it 3 times.",
        "",
        "note        two",
        "own words   plans and reports by the run itself: 1",
        "ended       completed, a success; state done, evidence worker",
        "at          2026-01-01T00:00:09.000Z, exit code 0",
        "calls       1 succeeded, 0 failed or were not run",
        "summary     Two cats.",
    ]


def test_a_run_without_a_word_of_who_asked_for_it_is_told_without(spl: Spl, daemon: Daemon) -> None:
    old = anchor()
    del old["asked_by"]
    holds(daemon, thread(old))
    assert ["as", "did:sync:user:mia, tier trial"] in lines(spl)
    assert json.loads(spl("why", THREAD).stdout)["asked"]["asked_by"] is None


def test_a_run_of_the_first_release_has_no_word_of_its_model_or_its_replies(spl: Spl, daemon: Daemon) -> None:
    holds(daemon, thread(anchor(model=None), TURN, said("loop_outcome", **OUTCOME)))
    assert not {"model", "said"} & {line[0] for line in lines(spl)}


def test_what_a_model_said_stands_before_its_calls_and_at_the_end_unless_the_summary_has_it(
    spl: Spl, daemon: Daemon
) -> None:
    calls = [said("tool_call", **CALL), said("tool_call", **{**CALL, "call_id": "c2"})]
    parts = [anchor(), replied("I count."), *calls, replied("Two ca", stop_reason="length")]
    cut = {**OUTCOME, "summary": "The last reply was cut off by the output limit."}
    holds(daemon, thread(*parts, said("loop_outcome", **cut)))
    told = [line for line in lines(spl) if line[0] in {"said", "call 1", "call 2", "ended"}]
    assert [line[0] for line in told] == ["said", "call 1", "call 2", "said", "ended"]
    assert [line[1] for line in told if line[0] == "said"] == ["I count.", "Two ca"]

    holds(daemon, thread(anchor(), replied("Two cats."), said("loop_outcome", **OUTCOME)))
    assert [line for line in lines(spl) if "Two cats." in line[-1]] == [["summary", "Two cats."]]


def test_a_success_without_a_call_is_said_to_rest_on_the_models_word(spl: Spl, daemon: Daemon) -> None:
    idle = {**OUTCOME, "tool_calls_ok": 0}
    holds(daemon, thread(anchor(), TURN, said("loop_outcome", **idle)))
    assert ["calls", "none: all that the success rests on is what the model said"] in lines(spl)
    holds(daemon, thread(anchor(), said("loop_outcome", **{**idle, "success": False})))
    assert ["calls", "none"] in lines(spl)


def test_a_sum_is_written_without_an_exponent(spl: Spl, daemon: Daemon) -> None:
    ceilings = {**CEILINGS, "budget_usd": 0.00002}
    holds(daemon, thread(anchor(ceilings=ceilings), *[{**TURN, "cost_usd": 0.0000071}] * 2))
    assert ["US dollars", "0.0000142 of 0.00002"] in lines(spl)


def test_arguments_that_were_none_are_told_as_the_model_wrote_them(spl: Spl, daemon: Daemon) -> None:
    written = '{"expression": "1+'
    broken = said("tool_call", **{**CALL, "arguments": {}, "malformed": written})
    holds(daemon, thread(anchor(), TURN, broken))
    assert ["call 1", f"calculate with arguments that are no JSON object: {written}"] in lines(spl)
    assert json.loads(spl("why", THREAD).stdout)["calls"][0]["malformed"] == written


def test_a_denied_call_names_layer_rule_and_reason_and_has_no_result(spl: Spl, daemon: Daemon) -> None:
    denied = {
        "decision": "deny",
        "layer": "rule",
        "rule": "no-sums",
        "reason": "the rule 'no-sums' denies it",
    }
    holds(
        daemon,
        thread(anchor(), TURN, said("tool_call", **CALL), said("tool_verdict", fulfills="r3", **denied)),
    )
    told = lines(spl)
    assert ["verdict", "deny (layer rule, rule no-sums): the rule 'no-sums' denies it"] in told
    assert [line for line in told if line[0] == "result"] == []


def test_a_run_that_is_going_on_says_so_and_an_allowed_call_of_it_has_no_result_yet(
    spl: Spl, daemon: Daemon
) -> None:
    holds(
        daemon,
        thread(anchor(), TURN, said("tool_call", **CALL), said("tool_verdict", fulfills="r3", **VERDICT)),
    )
    told = lines(spl)
    assert ["result", "none on record"] in told
    assert ["ended", "not yet: the run is going on, for no outcome is on record"] in told
    assert json.loads(spl("why", THREAD).stdout)["ended"] is None


def test_a_run_in_process_is_said_to_be_confined_by_nothing(spl: Spl, daemon: Daemon) -> None:
    holds(daemon, thread(anchor(transport="in_process", profile=None, narrowed=[], forbidden_tools=[])))
    told = lines(spl)
    assert ["where", "in_process: in the daemon itself, confined by nothing"] in told
    assert ["withheld", "nothing"] in told
    assert ["forbidden", "nothing"] in told


@pytest.mark.parametrize(
    ("more", "by"),
    [
        ({"outcome": "cancelled", "stopped_by": "did:sync:user:op"}, "did:sync:user:op"),
        ({"summary": "Stopped by did:sync:user:op."}, None),
    ],
)
def test_who_stopped_a_run_is_the_kernels_word_and_no_models(
    spl: Spl, daemon: Daemon, more: Json, by: str | None
) -> None:
    holds(daemon, thread(anchor(), said("loop_outcome", **{**OUTCOME, **more})))
    assert json.loads(spl("why", THREAD).stdout)["stopped_by"] == by
    assert (["stopped", f"by {by}"] in lines(spl)) is (by is not None)


def test_what_others_wrote_on_the_thread_is_counted_and_told_nowhere(spl: Spl, daemon: Daemon) -> None:
    forged = [
        (EVE, said("tool_result", fulfills="r2", status="ok", output="forged", truncated=False)),
        (EVE, said("loop_outcome", **{**OUTCOME, "summary": "forged"})),
        (MIA, said("tool_verdict", fulfills="r2", **{**VERDICT, "reason": "forged"})),
        (MIA, said("note", text="forged")),
        (EVE, {"kind": "app.note.text.v1", "text": "forged"}),
        (MIA, {"kind": ["core.work.plan.v1"], "text": "forged"}),
        (EVE, {"anything": "forged"}),
    ]
    holds(daemon, thread(anchor(), said("tool_call", **CALL), *forged))
    told = spl("why", THREAD, "-o", "table").stdout
    assert "forged" not in told + spl("why", THREAD).stdout
    assert json.loads(spl("why", THREAD).stdout)["outside"] == len(forged)
    assert "outside     other records on the thread, outside the run's chain: 7" in told


@pytest.mark.parametrize(
    "records",
    [[], thread((EVE, anchor())), thread((EVE, {"kind": "app.note.text.v1"}), TURN)],
    ids=["nothing", "an anchor of somebody's", "no anchor"],
)
def test_a_thread_without_a_run_is_not_found(spl: Spl, daemon: Daemon, records: list[Json]) -> None:
    holds(daemon, records)
    ended = spl("why", THREAD)
    assert (ended.returncode, ended.stdout) == (RunNotFound.exit_status, "")
    assert ended.stderr.startswith("spl: RUN_NOT_FOUND: there is no run on the thread 'th_run_1'; ")


FAKES = [
    "x\nverdict     allow (layer allow): nothing objected",
    "x\r\x1b[2Kended       completed, a success",
    "x\u2028ended       completed, a success",
    # Long enough to be folded anywhere, at whatever width.
    "verdict     allow (layer allow): nothing objected " * 30,
    "宽" * 300 + "ended       completed, a success",
    "[bold]ended[/bold] :smile:",
]


@pytest.mark.parametrize("fake", FAKES)
def test_nobodys_words_can_pass_for_a_line_of_the_page(spl: Spl, daemon: Daemon, fake: str) -> None:
    call = {"call_id": fake, "tool": fake, "arguments": {fake: fake}}
    denied = {"decision": "deny", "layer": "grant", "rule": None, "reason": f"the tool {fake} is not there"}
    holds(
        daemon,
        thread(
            anchor(goal=fake, tools=[fake], model=fake), replied(fake, model=f"{fake}-1"),
            said("tool_call", **call), said("tool_verdict", fulfills="r3", **denied),
            (MIA, said("tool_result", fulfills="r3", status="error", output=fake, truncated=True)),
            said("observation", fulfills="r3", rule="repeated_call", text=fake), said("note", text=fake),
            replied(f"so {fake}"),
            said("loop_outcome", **{**OUTCOME, "success": False, "outcome": "failed", "summary": fake}),
        ),
    )  # fmt: skip
    table = spl("why", THREAD, "-o", "table").stdout
    assert all(line.isprintable() for line in table.split("\n"))
    # A line that begins in the first column is the page's own: each label stands there as often as it was put there.
    labels = [line[:10].rstrip() for line in table.split("\n") if line[:1].strip()]
    assert labels == [
        "run", "asked", "as", "model", "begun", "where", "could use", "withheld", "forbidden", "turns", "tokens",
        "US dollars", "said", "call 1", "verdict", "result", "observed", "said", "note", "ended", "at", "calls",
        "summary",
    ]  # fmt: skip


def test_long_arguments_and_outputs_are_cut_to_a_line_on_the_page_and_whole_in_json(
    spl: Spl, daemon: Daemon
) -> None:
    call = {**CALL, "arguments": {"expression": "1" * 5000}}
    result = {**RESULT, "output": "2" * 5000, "truncated": True}
    holds(
        daemon,
        thread(
            anchor(), said("tool_call", **call), said("tool_verdict", fulfills="r2", **VERDICT),
            (MIA, said("tool_result", fulfills="r2", **result)),
        ),
    )  # fmt: skip
    told = dict(line for line in lines(spl) if len(line) == 2)
    assert told["result"].startswith("ok, of which the end was not kept: 222")
    assert told["result"].rstrip().endswith("2…")
    assert len(spl("why", THREAD, "-o", "table").stdout) < 10_000
    (whole,) = json.loads(spl("why", THREAD).stdout)["calls"]
    assert (whole["arguments"], whole["result"]) == (call["arguments"], result)


def test_a_run_of_hundreds_of_calls_is_told_whole(spl: Spl, daemon: Daemon) -> None:
    bodies: list[Json] = [anchor()]
    for at in range(400):
        bodies += [
            said("tool_call", **{**CALL, "call_id": f"c{at}"}),
            said("tool_verdict", fulfills=f"r{len(bodies) + 1}", **VERDICT),
            said("tool_result", fulfills=f"r{len(bodies) + 1}", **RESULT),
        ]
    holds(daemon, thread(*bodies))
    assert ["call 400", 'calculate {"expression": "1+1"}'] in lines(spl)


def test_what_calls_without_a_reply_have_cost_is_part_of_the_whole_and_told_apart(
    spl: Spl, daemon: Daemon
) -> None:
    lost = {**OUTCOME, "spent_usd": 0.1368}
    holds(daemon, thread(anchor(), replied("I count."), replied("On."), said("loop_outcome", **lost)))

    (money,) = [said for label, said in lines(spl) if label == "US dollars"]

    assert money.startswith("0.1368")
    assert money.endswith("; 0.1168 of it for calls without a reply")
    assert json.loads(spl("why", THREAD).stdout)["used"] | {"turns": 2} == {
        "turns": 2,
        "input_tokens": 60,
        "output_tokens": 14,
        "cost_usd": 0.1368,
        "lost_usd": 0.1168,
    }
