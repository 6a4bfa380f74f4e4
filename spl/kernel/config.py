"""Configuration: the fold of the records on `th_engine_config`, the newest of each topic in force.

It is read from the log once and kept up as records become durable, so that a write is in force for the next run
by the time its writer has the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spl.errors import InvalidBody, MissingField
from spl.kernel.names import CONFIG, CONFIG_THREAD, IN_PROCESS, SANDBOXED

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.records.record import Record
    from spl.records.store import Store

TRANSPORTS = (IN_PROCESS, SANDBOXED)

_PAGE = 1000


def _check_transport(body: dict[str, Any]) -> None:
    if "transport" not in body:
        raise MissingField(f"the topic {body['topic']!r} needs the field 'transport'")
    if not isinstance(body["transport"], str):
        raise InvalidBody("'transport' must be a string")
    _check_fields(body, {"transport"})


def _check_fields(body: dict[str, Any], fields: set[str]) -> None:
    if unknown := sorted(set(body) - fields - {"kind", "topic"}):
        raise InvalidBody(f"the topic {body['topic']!r} has no field {unknown[0]!r}")


# What each topic must look like to be written; an unknown transport is written, and read as the default.
_TOPICS: dict[str, Callable[[dict[str, Any]], None]] = {
    "work_loop_transport": _check_transport,
    "work_loop_transport_members": _check_transport,
}


def check(body: dict[str, Any]) -> None:
    """Refuse a configuration body that would say nothing, or something else than its writer meant.

    Raises `MissingField` or `InvalidBody`.
    """
    topic = body.get("topic")
    if topic is None:
        raise MissingField("a configuration record needs the field 'topic'")
    if not isinstance(topic, str) or topic not in _TOPICS:
        raise InvalidBody(f"the topic {topic!r} is not one of {', '.join(sorted(_TOPICS))}")
    _TOPICS[topic](body)


class Config:
    """What is in force now."""

    def __init__(self) -> None:
        self._newest: dict[str, Record] = {}

    @classmethod
    async def follow(cls, store: Store) -> Config:
        """Read the log's configuration and keep it up with what is written from now on."""
        config = cls()
        store.subscribe(config.take)
        since = 0
        while page := await store.select(thread=CONFIG_THREAD, kind=CONFIG, since=since, limit=_PAGE):
            for record in page:
                config.take(record)
            since = page[-1].sequence
        return config

    def take(self, record: Record) -> None:
        """Take one record in, if it is configuration and newer than what is known."""
        if record.kind != CONFIG or record.thread != CONFIG_THREAD:
            return
        topic = record.body.get("topic")
        if isinstance(topic, str):
            known = self._newest.get(topic)
            if known is None or known.sequence < record.sequence:
                self._newest[topic] = record

    @property
    def transport(self) -> str:
        """Where the operator's next run goes; anything unrecognised reads as in process."""
        return self._transport("work_loop_transport", IN_PROCESS)

    @property
    def member_transport(self) -> str:
        """Where everyone else's next run goes; anything unrecognised reads as sandboxed."""
        return self._transport("work_loop_transport_members", SANDBOXED)

    def _transport(self, topic: str, default: str) -> str:
        record = self._newest.get(topic)
        said = record.body.get("transport") if record is not None else None
        return said if said in TRANSPORTS else default
