"""The bodies of a run's records about one call, and the answer that goes with its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spl.kernel.names import OBSERVATION, TOOL_CALL, TOOL_RESULT, TOOL_VERDICT, TURN
from spl.tools.pieces import OUTPUT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spl.inference.broker import Charged
    from spl.inference.model import Call, Usage
    from spl.kernel.guard import Verdict
    from spl.kernel.observations import Observation

Json = dict[str, Any]


def turn(number: int, charged: Charged) -> Json:
    """Give the record of a model's reply."""
    reply = charged.reply
    return {
        "kind": TURN,
        "turn": number,
        "model": reply.model,
        "usage": _usage(reply.usage),
        "cost_usd": float(charged.cost_usd),
        "stop_reason": reply.stop_reason,
        "reply": reply.wire(),
    }


def tool_call(call: Call) -> Json:
    """Give the record of a call that is proposed."""
    malformed = {} if call.malformed is None else {"malformed": call.malformed}
    return {
        "kind": TOOL_CALL,
        "call_id": call.id,
        "tool": call.name,
        "arguments": dict(call.arguments),
        **malformed,
    }


def tool_verdict(call: Call, verdict: Verdict, ids: Sequence[str]) -> Json:
    """Give the record of a verdict; the first of the ids is that of the call's record."""
    return {"kind": TOOL_VERDICT, **_beside(call, ids), **_judged(verdict)}


def tool_result(call: Call, status: str, output: str, ids: Sequence[str]) -> Json:
    """Give the record of a result, as much of the output as is kept; the first of the ids is the call's."""
    return {
        "kind": TOOL_RESULT,
        **_beside(call, ids),
        "status": status,
        "output": output[:OUTPUT_LIMIT],
        "truncated": len(output) > OUTPUT_LIMIT,
    }


def observation(call: Call, observed: Observation, ids: Sequence[str]) -> Json:
    """Give the record of an observation; the first of the ids is that of the call it stands beside."""
    return {"kind": OBSERVATION, **_beside(call, ids), "rule": observed.rule, "text": observed.text}


def answer(verdict: Verdict, record: str | None, observations: Sequence[str]) -> Json:
    """Give what the door `propose` answers; `record` is the call's, None where nothing could be written."""
    return {
        **_judged(verdict),
        "text": "" if verdict.allowed else verdict.text,
        "observations": list(observations),
        "fulfills": record,
    }


def _usage(usage: Usage) -> Json:
    cached = {"cached_tokens": usage.cached_tokens} if usage.cached_tokens else {}
    return {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, **cached}


def _judged(verdict: Verdict) -> Json:
    return {
        "decision": verdict.decision,
        "layer": verdict.layer,
        "rule": verdict.rule,
        "reason": verdict.reason,
    }


def _beside(call: Call, ids: Sequence[str]) -> Json:
    return {"fulfills": ids[0], "call_id": call.id, "tool": call.name}
