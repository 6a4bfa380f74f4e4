"""A run's records as a person reads them going by: one line each, and the words that other pages say them with.

Goals, arguments, outputs and replies are anybody's words: each is cut to a line and shown with its control characters
as escapes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from spl.cli.text import brief, shown
from spl.decisions import ENGINE

if TYPE_CHECKING:
    from spl.client import Json

LOOP: Final = "core.work.loop.v1"
OUTCOME: Final = "core.work.loop_outcome.v1"

LINE: Final = 120
"""Characters of an argument or an output, which are cut to a line."""

TEXT: Final = 2000
"""Characters of what is told more of; the kernel's own texts are no longer."""

# The kinds that a run may author itself; no one else can, nor anyone but the kernel the others.
RUNS: Final = frozenset(f"core.work.{name}.v1" for name in ("tool_result", "plan", "report"))


def is_beginning(record: Json) -> bool:
    """Tell whether a record is that of a run's start."""
    return bool(record["actor"] == ENGINE and record["body"].get("kind") == LOOP)


def is_outcome(record: Json) -> bool:
    """Tell whether a record is that of a run's end."""
    return bool(record["actor"] == ENGINE and record["body"].get("kind") == OUTCOME)


def step(record: Json) -> str | None:
    """Give the line of a run's record: what it is about and what is said of it; None for any other record."""
    kind = record["body"].get("kind")
    if not isinstance(kind, str) or (record["actor"] != ENGINE and kind not in RUNS):
        return None
    said = _said(kind, record["body"])
    return None if said is None else f"{said[0]:<9}  {shown(said[1])}".rstrip()


def call(tool: str, body: Json) -> str:
    """Say which call was made: the tool, and what it was given as far as a line holds it."""
    if "malformed" in body:
        arguments = f"with arguments that are no JSON object: {body['malformed']}"
    else:
        arguments = json.dumps(body["arguments"], ensure_ascii=False)
    return brief(f"{tool} {arguments}", LINE)


def verdict(body: Json) -> str:
    """Say what was decided of a call, by which layer and which rule, and why."""
    rule = "" if body["rule"] is None else f", rule {body['rule']}"
    return brief(f"{body['decision']} (layer {body['layer']}{rule}): {body['reason']}", TEXT)


def result(body: Json) -> str:
    """Say what came of a call, as far as a line holds it."""
    cut = ", of which the end was not kept" if body["truncated"] else ""
    return f"{body['status']}{cut}: {brief(body['output'], LINE)}"


def observation(body: Json) -> str:
    """Say what was noticed of a call."""
    return f"{body['rule']}: {brief(body['text'], TEXT)}"


def usd(sum_: float) -> str:
    """Write a sum with as many places as a token's price has, and never with an exponent."""
    return f"{sum_:.9f}".rstrip("0").rstrip(".")


def _said(kind: str, body: Json) -> tuple[str, str] | None:
    match kind:
        case "core.work.loop.v1":
            where = f"{body['transport']}, tier {body['tier']}, for {body['actor']}"
            return "run", f"{where}: {brief(body['goal'], LINE)}"
        case "core.work.isolation.v1":
            held = sum(layer["confirmed"] for layer in body["layers"])
            return "isolation", f"{held} of {len(body['layers'])} layers confirmed"
        case "core.work.turn.v1":
            return "turn", _turn(body)
        case "core.work.tool_call.v1":
            return "call", call(body["tool"], body)
        case "core.work.tool_verdict.v1":
            return "verdict", f"{body['tool']}: {verdict(body)}"
        case "core.work.tool_result.v1":
            return "result", f"{body['tool']}: {result(body)}"
        case "core.work.observation.v1":
            return "observed", f"{body['tool']}: {observation(body)}"
        case "core.work.note.v1":
            return "note", brief(body["text"], LINE)
        case "core.work.plan.v1" | "core.work.report.v1":
            own = {name: value for name, value in body.items() if name != "kind"}
            return kind.split(".")[2], brief(json.dumps(own, ensure_ascii=False), LINE)
        case "core.work.loop_outcome.v1":
            by = "" if body.get("stopped_by") is None else f", stopped by {body['stopped_by']}"
            return "ended", f"{body['outcome']}, state {body['state']}{by}: {brief(body['summary'], TEXT)}"
        case _:
            return None


def _turn(body: Json) -> str:
    usage = body["usage"]
    told = (
        f"{usage['input_tokens']} tokens in, {usage['output_tokens']} out, {usd(body['cost_usd'])} US dollars"
    )
    text = body.get("reply", {}).get("text")
    return f"{told}: {brief(text, LINE)}" if text else told
