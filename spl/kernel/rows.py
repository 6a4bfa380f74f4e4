"""A run's row: from the kernel's own state while it is live, from its records once it has ended.

Only records that the kernel or the run itself wrote on its chain count; what others put on the thread does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spl.kernel.names import ENGINE, LOOP, OUTCOME, TOOL_RESULT, TOOL_VERDICT, TURN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spl.kernel.runs import Run
    from spl.records.record import Record

Json = dict[str, Any]

STATES = ("running", "done", "stopped", "stopped_short")


def live_row(run: Run) -> Json:
    """Give the row of a run that is going on."""
    terms = run.terms
    return {
        "thread": terms.thread,
        "actor": terms.actor,
        "goal": terms.goal,
        "tier": terms.tier,
        "transport": terms.transport,
        "profile": terms.profile,
        "state": "running",
        "model": terms.model,
        "tools": list(terms.tools),
        "narrowed": list(terms.narrowed),
        "turns": run.turns,
        **terms.ceilings.wire(),
        "spent_usd": float(run.spent_usd),
        "tool_calls_ok": run.tally.ok,
        "tool_calls_failed": run.tally.failed,
        "started_at": terms.started_at,
        "ended_at": None,
        "summary": None,
        "outcome": None,
    }


def row_from_records(records: Iterable[Record], row: Json | None = None) -> Json:
    """Give the row that a run's records tell, or tell after those that told `row`; the first of all is the anchor."""
    row = {} if row is None else row
    for record in records:
        body = record.body
        if record.kind == LOOP and record.actor == ENGINE:
            row = _begun(record)
        elif record.kind == TURN and record.actor == ENGINE:
            row["turns"] += 1
            row["spent_usd"] += body["cost_usd"]
        elif record.kind == TOOL_VERDICT and record.actor == ENGINE:
            row["tool_calls_failed"] += body["decision"] != "allow"
        elif record.kind == TOOL_RESULT:
            row["tool_calls_ok" if body["status"] == "ok" else "tool_calls_failed"] += 1
        elif record.kind == OUTCOME and record.actor == ENGINE:
            row |= {name: body[name] for name in _FROM_OUTCOME}
    return row


_FROM_OUTCOME = (
    "state",
    "turns",
    "spent_usd",
    "tool_calls_ok",
    "tool_calls_failed",
    "ended_at",
    "summary",
    "outcome",
)


def _begun(anchor: Record) -> Json:
    body = anchor.body
    named = ("actor", "goal", "tier", "transport", "profile")
    return {
        "thread": anchor.thread,
        **{name: body[name] for name in named},
        "state": "running",
        "model": body["model"],
        "tools": body["tools"],
        "narrowed": body["narrowed"],
        "turns": 0,
        **body["ceilings"],
        "spent_usd": 0.0,
        "tool_calls_ok": 0,
        "tool_calls_failed": 0,
        "started_at": body["started_at"],
        "ended_at": None,
        "summary": None,
        "outcome": None,
    }
