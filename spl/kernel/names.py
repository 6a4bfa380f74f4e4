"""The names the kernel writes under, actors, threads and kinds of the contract, and how it writes a time."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

ENGINE = "did:sync:system:engine"
"""The kernel's own actor, and the one that configuration is written as."""

CONFIG_THREAD = "th_engine_config"
ISOLATION_THREAD = "th_engine_isolation"
PRINCIPALS_THREAD = "th_engine_principals"

CONFIG = "core.engine.config.v1"
TIER = "core.engine.tier.v1"
MEMBER = "core.engine.member.v1"
TOKEN = "core.engine.token.v1"  # noqa: S105 - the name of a kind
LOOP = "core.work.loop.v1"
ISOLATION = "core.work.isolation.v1"
TURN = "core.work.turn.v1"
TOOL_CALL = "core.work.tool_call.v1"
TOOL_VERDICT = "core.work.tool_verdict.v1"
TOOL_RESULT = "core.work.tool_result.v1"
OBSERVATION = "core.work.observation.v1"
PLAN = "core.work.plan.v1"
REPORT = "core.work.report.v1"
OUTCOME = "core.work.loop_outcome.v1"
REFUSAL = "core.work.refusal.v1"

IN_PROCESS = "in_process"
SANDBOXED = "sandboxed"

_RUNNER = re.compile(r"did:sync:(?:user|agent):([A-Za-z0-9._%-]{1,100})")


def label_of(actor: str) -> str | None:
    """Give the label of an actor that runs can be for, `did:sync:user:<label>` or `did:sync:agent:<label>`, or None."""
    found = _RUNNER.fullmatch(actor)
    # It is a folder's name in the data plane as well.
    return None if found is None or found[1] in (".", "..") else found[1]


def instant(now: datetime) -> str:
    """Give a time as every record of the kernel's says it: ISO 8601, in UTC, to the millisecond."""
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def run_thread(now: datetime) -> str:
    """Give a new run's thread: the second that it begins in and 64 random bits, in hexadecimal.

    The log is indexed by thread. So the runs of one time stand side by side there, and what they write together lands
    on few pages; with nothing but chance in it each record would change pages of its own, anywhere in a long log.
    """
    return f"th_run_{int(now.timestamp()):08x}{secrets.token_hex(8)}"
