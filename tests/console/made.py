"""Documents as the daemon writes them, for the console to be told."""

from __future__ import annotations

import itertools
from typing import Any

from spl.console.events import Recorded, Runs, Told
from spl.console.state import State, apply
from spl.decisions import ENGINE

Json = dict[str, Any]

NOW = 1_800_000_000.0
STARTED = "2027-01-15T08:00:00.000Z"
"""Which is NOW."""

_sequence = itertools.count(1)


def row(thread: str = "th_run_a", **more: object) -> Json:
    """Give a run's row as a listing has it."""
    return {
        "thread": thread, "actor": "did:sync:user:ann", "goal": "count", "tier": "trial", "transport": "sandboxed",
        "profile": "worker", "state": "running", "model": "script", "tools": [], "narrowed": [], "turns": 0,
        "max_turns": 5, "budget_usd": 0.25, "spent_usd": 0.0, "started_at": STARTED, "ended_at": None,
        "summary": None, "outcome": None, **more,
    }  # fmt: skip


def record(
    kind: str, thread: str = "th_run_a", *, actor: str = ENGINE, sequence: int | None = None, **body: object
) -> Json:
    """Give a record of a run's thread; each later than the one before."""
    number = next(_sequence) if sequence is None else sequence
    return {
        "thread": thread,
        "actor": actor,
        "sequence": number,
        "body": {"kind": f"core.work.{kind}.v1", **body},
    }


def about(record: Json, more: Json) -> Json:
    """Give a record whose body says more."""
    return {**record, "body": {**record["body"], **more}}


def anchor(thread: str = "th_run_a", **more: object) -> Json:
    """Give a run's first record."""
    known = row(thread, **more)
    body = {
        name: known[name] for name in ("actor", "goal", "tier", "transport", "profile", "model", "started_at")
    }
    return about(record("loop", thread, ceilings={"max_turns": 5, "budget_usd": 0.25}), body)


def turn(number: int, cost: float = 0.1, thread: str = "th_run_a") -> Json:
    """Give the record of a reply."""
    usage = {"input_tokens": 10, "output_tokens": 2}
    return record(
        "turn", thread, turn=number, cost_usd=cost, usage=usage, reply={"text": "I see", "calls": []}
    )


def verdict(
    decision: str, layer: str, rule: str | None = None, *, tool: str = "bash", thread: str = "th_run_a"
) -> Json:
    """Give the record of a verdict."""
    return record(
        "tool_verdict", thread, decision=decision, layer=layer, rule=rule, tool=tool, reason="because"
    )


def outcome(thread: str = "th_run_a", **more: object) -> Json:
    """Give a run's last record."""
    said = {
        "outcome": "completed", "state": "done", "spent_usd": 0.2, "turns": 2, "ended_at": STARTED, "exit": {"code": 0},
        "summary": "done", **more,
    }  # fmt: skip
    return about(record("loop_outcome", thread), said)


def refusal(layer: str = "cgroup", **more: object) -> Json:
    """Give the record of a start that was refused."""
    said = {"expected": "a cgroup", "observed": "none", "remedy": "mount one", "actor": "did:sync:user:ann"}
    made = record("refusal", "th_engine_isolation", layer=layer, profile="worker", refused_at=STARTED)
    return about(made, {**said, **more})


def receipt(*layers: str, thread: str = "th_run_a") -> Json:
    """Give a run's isolation receipt."""
    observed = [{"how": "inside: ptrace", "expected": "EPERM", "observed": "EPERM"}]
    held = [
        {"layer": name, "claim": f"claims {name}", "confirmed": True, "observed": observed} for name in layers
    ]
    return record(
        "isolation", thread, layers=held, pid=4711, uid=60001, profile="worker", shape="hosted", absent=[]
    )


def health(**more: object) -> Json:
    """Give the engine's health."""
    return {
        "version": "1.2.3", "uptime_secs": 5.0, "records": 10,
        "instance": {"host": "tern", "operator": "did:sync:user:root", "home": "/root/.syncro"},
        "work_loop": {
            "transport": "in_process", "member_transport": "sandboxed", "profile": "worker",
            "tier_profiles": {"trial": "strict"}, "admission_capacity": 20, "admission_available": 17,
        },
        "isolation": {"shape": "hosted", "layers": ["syscalls", "network"]},
        "provider": {"name": "script", "model": "tiny", "failing": None},
        "store": {"failing": None}, "spend": {"day": "2027-01-15", "usd": 0.0123}, **more,
    }  # fmt: skip


def known(*records: Json, rows: list[Json] | None = None) -> State:
    """Give what is known after a listing of runs and then these records."""
    state = State(where="/run/spl.sock")
    apply(state, Told("health", health()))
    apply(state, Runs(rows or [], [], [], []))
    for each in records:
        apply(state, Recorded(each))
    return state
