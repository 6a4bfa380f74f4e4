"""The command that tells a person how a run came out as it did: one page, from the records on its thread alone.

Only what the kernel wrote counts, and of the run's own the kinds that it may author; whatever else stands on the
thread is counted and no more. Goals, arguments, outputs and replies are anybody's words: each stays in the column of
what is said, and no line of theirs can pass for a line of the page.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

import click

from spl.cli import steps
from spl.cli.completion import runs
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_json, print_pairs
from spl.cli.steps import LINE, LOOP, RUNS, TEXT, usd
from spl.cli.text import brief
from spl.client import Client, segment
from spl.decisions import ENGINE
from spl.errors import RunNotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spl.client import Json

    Row = tuple[str, str]

_KERNELS: Final = frozenset(
    f"core.work.{name}.v1"
    for name in (
        "isolation", "turn", "tool_call", "tool_verdict", "tool_result", "observation", "note", "loop_outcome",
    )
)  # fmt: skip


@click.command(epilog=examples("spl why th_run_1", "spl why th_run_1 -o json | jq -r .ended.outcome"))
@click.argument("thread", shell_complete=runs)
@common
def why(thread: str, home: str | None, output: str | None) -> None:
    """Tell of the run on THREAD what was asked, allowed and done, and how it ended.

    It is told by the records that the kernel and the run wrote there; others' are counted and no more. In a table what
    is long is cut, in JSON it stands whole.
    """
    pages = Client.locate(home).pages(f"/v1/threads/{segment(thread)}/records")
    told = tell(record for page in pages for record in page["data"])
    if told is None:
        raise RunNotFound(f"there is no run on the thread {thread!r}")
    if is_json(output):
        print_json(told)
    else:
        print_pairs(page_of(told))


def tell(records: Iterable[Json]) -> Json | None:
    """Give what the records of a thread, in their order, say of the run on it; None if there is none."""
    told: Json | None = None
    calls: dict[str, Json] = {}
    outside = 0
    for record in records:
        kind = record["body"].get("kind")
        if told is None and record["actor"] == ENGINE and kind == LOOP:
            told = _begun(record)
        elif told is not None and _on_chain(record, told["asked"]["actor"]):
            _take(told, calls, record)
        else:
            outside += 1
    return None if told is None else {**told, "outside": outside}


def page_of(told: Json) -> Iterator[Row]:
    """Give the page for people, a row a line: what it is about, and what is said of it."""
    yield from _opening(told)
    texts = {reply["turn"]: reply["text"] for reply in told["replies"]}
    for number, call in enumerate(told["calls"], 1):
        yield "", ""
        yield from _said(texts.pop(call["turn"], ""))
        yield from _call(number, call)
    yield "", ""
    yield from _last_said(told, texts)
    yield from _ending(told)


def _on_chain(record: Json, actor: str) -> bool:
    kind = record["body"].get("kind")
    if not isinstance(kind, str):
        return False
    return (record["actor"] == ENGINE and kind in _KERNELS) or (record["actor"] == actor and kind in RUNS)


def _begun(anchor: Json) -> Json:
    body = anchor["body"]
    asked = ("goal", "actor", "asked_by", "tier", "model", "started_at")
    return {
        "object": "why",
        "run": anchor["thread"],
        "asked": {name: body.get(name) for name in asked},
        "transport": body["transport"],
        "profile": body["profile"],
        "confirmed": None,
        "tools": body["tools"],
        "narrowed": body["narrowed"],
        "forbidden_tools": body.get("forbidden_tools", []),
        "ceilings": body["ceilings"],
        "used": {"turns": 0, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0},
        "replies": [],
        "calls": [],
        "notes": [],
        "own_words": 0,
        "stopped_by": None,
        "ended": None,
    }


def _take(told: Json, calls: dict[str, Json], record: Json) -> None:
    """Take in the next record of a run's chain."""
    body = record["body"]
    match body["kind"]:
        case "core.work.isolation.v1":
            told["confirmed"] = [layer["layer"] for layer in body["layers"] if layer["confirmed"]]
        case "core.work.turn.v1":
            used, usage = told["used"], body["usage"]
            used["turns"] += 1
            used["input_tokens"] += usage["input_tokens"]
            used["output_tokens"] += usage["output_tokens"]
            # As it was written: the sum of two floats is another number than that of two amounts.
            used["cost_usd"] = float(Decimal(str(used["cost_usd"])) + Decimal(str(body["cost_usd"])))
            reply = _parts(body.get("reply", {}), "text", "stop_reason")
            told["replies"].append({"turn": used["turns"], "model": body.get("model"), **reply})
        case "core.work.tool_call.v1":
            call = _parts(body, "call_id", "tool", "arguments")
            call |= _parts(body, "malformed") if "malformed" in body else {}
            call |= {"turn": told["used"]["turns"], "verdict": None, "result": None, "observations": []}
            calls[record["id"]] = call
            told["calls"].append(call)
        case "core.work.tool_verdict.v1":
            calls[body["fulfills"]]["verdict"] = _parts(body, "decision", "layer", "rule", "reason")
        case "core.work.tool_result.v1":
            calls[body["fulfills"]]["result"] = _parts(body, "status", "output", "truncated")
        case "core.work.observation.v1":
            calls[body["fulfills"]]["observations"].append(_parts(body, "rule", "text"))
        case "core.work.note.v1":
            told["notes"].append(body["text"])
        case "core.work.loop_outcome.v1":
            told["ended"] = {name: value for name, value in body.items() if name != "kind"}
            told["stopped_by"] = body.get("stopped_by")
            used = told["used"]
            lost = Decimal(str(body["spent_usd"])) - Decimal(str(used["cost_usd"]))
            if lost > 0:
                # Of calls that broke off, or gave a reply of no use: they left no turn.
                used |= {"cost_usd": body["spent_usd"], "lost_usd": float(lost)}
        case _:
            told["own_words"] += 1


def _parts(body: Json, *names: str) -> Json:
    return {name: body.get(name) for name in names}


def _opening(told: Json) -> Iterator[Row]:
    asked, used, ceilings = told["asked"], told["used"], told["ceilings"]
    yield "run", told["run"]
    yield "asked", brief(asked["goal"], TEXT)
    # A run of the first release has no word of who asked for it.
    by = "" if asked["asked_by"] is None else f", asked by {asked['asked_by']}"
    yield "as", f"{asked['actor']}, tier {asked['tier']}{by}"
    yield from _model(asked["model"], told["replies"])
    yield "begun", asked["started_at"]
    yield "where", _where(told)
    yield "could use", _listed(told["tools"])
    yield "withheld", _listed(told["narrowed"])
    yield "forbidden", _listed(told["forbidden_tools"])
    yield "turns", f"{used['turns']}{_most(ceilings['max_turns'])}"
    tokens = f"{used['input_tokens']} in, {used['output_tokens']} out"
    yield "tokens", tokens + _most(ceilings["token_budget"])
    most = ceilings["budget_usd"]
    lost = f"; {usd(used['lost_usd'])} of it for calls without a reply" if "lost_usd" in used else ""
    yield "US dollars", usd(used["cost_usd"]) + ("" if most is None else f" of {usd(most)}") + lost


def _model(asked: str | None, replies: list[Json]) -> Iterator[Row]:
    """Name the model; a provider may answer with another, or with the name of one of its releases."""
    others = sorted({reply["model"] for reply in replies} - {asked, None})
    answered = f"answered by {', '.join(others)}" if others else ""
    if asked or others:
        yield "model", brief(", ".join(filter(None, (asked, answered))), TEXT)


def _where(told: Json) -> str:
    if told["transport"] != "sandboxed":
        return f"{told['transport']}: in the daemon itself, confined by nothing"
    if told["confirmed"] is None:
        return f"sandboxed, under the profile {told['profile']}, with no receipt of its isolation on record"
    layers = len(told["confirmed"])
    return f"sandboxed, under the profile {told['profile']}, {layers} layers confirmed before it began"


def _call(number: int, call: Json) -> Iterator[Row]:
    yield f"call {number}", steps.call(call["tool"], call)
    verdict, result = call["verdict"], call["result"]
    if verdict is not None:
        yield "verdict", steps.verdict(verdict)
    if result is not None:
        yield "result", steps.result(result)
    elif verdict is not None and verdict["decision"] == "allow":
        yield "result", "none on record"
    for observed in call["observations"]:
        yield "observed", steps.observation(observed)


def _said(text: str | None) -> Iterator[Row]:
    if text:
        yield "said", brief(text, LINE)


def _last_said(told: Json, texts: dict[int, str | None]) -> Iterator[Row]:
    """Give the text of a reply that made no call, unless the summary has it."""
    for text in texts.values():
        if text and (told["ended"] is None or text[:LINE] not in told["ended"]["summary"]):
            yield from _said(text)


def _ending(told: Json) -> Iterator[Row]:
    for note in told["notes"]:
        yield "note", brief(note, LINE)
    if told["own_words"]:
        yield "own words", f"plans and reports by the run itself: {told['own_words']}"
    ended = told["ended"]
    if ended is None:
        yield "ended", "not yet: the run is going on, for no outcome is on record"
    else:
        if told["stopped_by"] is not None:
            yield "stopped", f"by {told['stopped_by']}"
        success = "a success" if ended["success"] else "no success"
        yield "ended", f"{ended['outcome']}, {success}; state {ended['state']}, evidence {ended['evidence']}"
        yield "at", f"{ended['ended_at']}{_exit(ended['exit'])}"
        yield "calls", _calls(ended)
        yield "summary", brief(ended["summary"], TEXT)
    if told["outside"]:
        yield "outside", f"other records on the thread, outside the run's chain: {told['outside']}"


def _calls(ended: Json) -> str:
    ok, failed = ended["tool_calls_ok"], ended["tool_calls_failed"]
    if ok or failed:
        return f"{ok} succeeded, {failed} failed or were not run"
    # A model may say that it has done what it never began.
    return "none: all that the success rests on is what the model said" if ended["success"] else "none"


def _exit(said: Json | None) -> str:
    return "" if said is None else "".join(f", exit {name} {value}" for name, value in said.items())


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "nothing"


def _most(ceiling: float | None) -> str:
    return "" if ceiling is None else f" of {ceiling}"
