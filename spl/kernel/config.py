"""Configuration: the fold of the records on `th_engine_config`, the newest of each topic in force.

It is read from the log once and kept up as records become durable, so that a write is in force for the next run
by the time its writer has the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spl.errors import InvalidBody, MissingField
from spl.kernel.names import CONFIG, CONFIG_THREAD, IN_PROCESS, SANDBOXED
from spl.kernel.tiers import NAMES as TIERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.records.record import Record
    from spl.records.store import Store

TRANSPORTS = (IN_PROCESS, SANDBOXED)

PROFILE = "worker"
"""The profile of a sandboxed run for which nobody chose one."""

MOST_CAPACITY = 4096
"""The most sandboxed runs at once that anyone can ask for."""

_PAGE = 1000
_PROFILE, _CAPACITY = "work_loop_profile", "admission_capacity"


def _check_transport(body: dict[str, Any]) -> None:
    if not isinstance(_field(body, "transport"), str):
        raise InvalidBody("'transport' must be a string")
    _check_fields(body, {"transport"})


def _check_profile(body: dict[str, Any]) -> None:
    if not isinstance(_field(body, "profile"), str | None):
        raise InvalidBody("'profile' must be the name of a profile, or null to choose none")
    if (tier := body.get("tier")) is not None and tier not in TIERS:
        raise InvalidBody(f"the tier {tier!r} is not one of {', '.join(TIERS)}")
    _check_fields(body, {"profile", "tier"})


def _check_capacity(body: dict[str, Any]) -> None:
    said = _field(body, "capacity")
    if said is not None and not _is_capacity(said):
        raise InvalidBody(f"'capacity' must be a whole number from 0 to {MOST_CAPACITY}, or null to set none")
    _check_fields(body, {"capacity"})


def _is_capacity(said: object) -> bool:
    return type(said) is int and 0 <= said <= MOST_CAPACITY


def _field(body: dict[str, Any], name: str) -> object:
    if name not in body:
        raise MissingField(f"the topic {body['topic']!r} needs the field {name!r}")
    return body[name]


def _check_fields(body: dict[str, Any], fields: set[str]) -> None:
    if unknown := sorted(set(body) - fields - {"kind", "topic"}):
        raise InvalidBody(f"the topic {body['topic']!r} has no field {unknown[0]!r}")


# What each topic must look like to be written; an unknown transport is written, and read as the default.
_TOPICS: dict[str, Callable[[dict[str, Any]], None]] = {
    "work_loop_transport": _check_transport,
    "work_loop_transport_members": _check_transport,
    _PROFILE: _check_profile,
    _CAPACITY: _check_capacity,
}


def check(body: dict[str, Any]) -> str | None:
    """Refuse a configuration body that would say nothing, or something else than its writer meant.

    Gives the name of the profile that it chooses, if it chooses one: whether that can be used is not known here.
    Raises `MissingField` or `InvalidBody`.
    """
    topic = body.get("topic")
    if topic is None:
        raise MissingField("a configuration record needs the field 'topic'")
    if not isinstance(topic, str) or topic not in _TOPICS:
        raise InvalidBody(f"the topic {topic!r} is not one of {', '.join(sorted(_TOPICS))}")
    _TOPICS[topic](body)
    return body["profile"] if topic == _PROFILE else None


class Config:
    """What is in force now."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str | None], Record] = {}

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
        topic, tier = record.body.get("topic"), record.body.get("tier")
        if isinstance(topic, str) and isinstance(tier, str | None):
            known = self._newest.get((topic, tier))
            if known is None or known.sequence < record.sequence:
                self._newest[topic, tier] = record

    @property
    def transport(self) -> str:
        """Where the operator's next run goes; anything unrecognised reads as in process."""
        return self._transport("work_loop_transport", IN_PROCESS)

    @property
    def member_transport(self) -> str:
        """Where everyone else's next run goes; anything unrecognised reads as sandboxed."""
        return self._transport("work_loop_transport_members", SANDBOXED)

    @property
    def profile(self) -> str:
        """The profile that confines the next sandboxed run of a tier without one of its own."""
        return self._profile(None) or PROFILE

    @property
    def tier_profiles(self) -> dict[str, str]:
        """The profiles of the tiers that have one of their own."""
        return {tier: name for tier in TIERS if (name := self._profile(tier)) is not None}

    def profile_of(self, tier: str) -> str:
        """Give the profile that confines a tier's next sandboxed run."""
        return self._profile(tier) or self.profile

    @property
    def capacity(self) -> int | None:
        """How many sandboxed runs may go on at once, if somebody said so."""
        said = self._said(_CAPACITY, "capacity")
        return said if isinstance(said, int) and _is_capacity(said) else None

    def _transport(self, topic: str, default: str) -> str:
        said = self._said(topic, "transport")
        return said if isinstance(said, str) and said in TRANSPORTS else default

    def _profile(self, tier: str | None) -> str | None:
        said = self._said(_PROFILE, "profile", tier)
        return said if isinstance(said, str) else None

    def _said(self, topic: str, field: str, tier: str | None = None) -> object:
        record = self._newest.get((topic, tier))
        return None if record is None else record.body.get(field)
