"""What the command line and the console change the configuration with: one record, on one thread, as the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spl.client import Client, Json

THREAD: Final = "th_engine_config"
ENGINE: Final = "did:sync:system:engine"
"""Whom a configuration record is by, and each that tells of a run in the kernel's words."""

CONFIG: Final = "core.engine.config.v1"
TIER: Final = "core.engine.tier.v1"
GIVEN: Final = ("trial", "paid", "team")
"""The tiers that an actor can be given."""

TIERS: Final = (*GIVEN, "operator")


def record(said: Json, *, kind: str = CONFIG) -> Json:
    """Give a configuration record, as it is written."""
    return {"thread": THREAD, "actor": ENGINE, "act": "LEARN", "body": {"kind": kind, **said}}


def decide(client: Client, said: Json, *, kind: str = CONFIG) -> Json:
    """Write a configuration record; gives it as the daemon took it, and raises what `Client.request` raises."""
    return client.request("POST", "/v1/records", record(said, kind=kind))


def decided(body: Json) -> Json:
    """Give what a configuration record decides: its body without what it is about."""
    return {name: value for name, value in body.items() if name not in {"kind", "topic"}}
