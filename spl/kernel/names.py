"""The names the kernel writes under: actors, threads and kinds of the contract."""

from __future__ import annotations

ENGINE = "did:sync:system:engine"
"""The kernel's own actor, and the one that configuration is written as."""

CONFIG_THREAD = "th_engine_config"
ISOLATION_THREAD = "th_engine_isolation"

CONFIG = "core.engine.config.v1"
LOOP = "core.work.loop.v1"
ISOLATION = "core.work.isolation.v1"
TURN = "core.work.turn.v1"
TOOL_CALL = "core.work.tool_call.v1"
TOOL_VERDICT = "core.work.tool_verdict.v1"
TOOL_RESULT = "core.work.tool_result.v1"
PLAN = "core.work.plan.v1"
REPORT = "core.work.report.v1"
OUTCOME = "core.work.loop_outcome.v1"
REFUSAL = "core.work.refusal.v1"

IN_PROCESS = "in_process"
SANDBOXED = "sandboxed"
