"""Configuration: the fold of the records on `th_engine_config`, the newest of each topic in force.

It is read from the log once and kept up as records become durable, so that a write is in force for the next run, and
a rule for the next call, by the time its writer has the answer.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from spl.errors import InvalidBody, MissingField
from spl.kernel import expressions, tiers
from spl.kernel.following import follow
from spl.kernel.names import CONFIG, CONFIG_THREAD, ENGINE, IN_PROCESS, SANDBOXED, TIER, label_of
from spl.kernel.rules import Rule, Rules

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from spl.kernel.tiers import Tier
    from spl.records.record import Record
    from spl.records.store import Store

TRANSPORTS = (IN_PROCESS, SANDBOXED)

PROFILE = "worker"
"""The profile of a sandboxed run for which nobody chose one."""

MOST_CAPACITY = 4096
"""The most sandboxed runs at once that anyone can ask for."""

MOST_STANDBY = 64
"""The most standby workers of one profile that anyone can ask for."""

_PROFILE, _CAPACITY, _STANDBY = "work_loop_profile", "admission_capacity", "standby_workers"
_ACTOR_TIER, _RULE = "actor_tier", "permission_rule"
_RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MOST_PRIORITY = 1_000_000

MOST_RULES = 1000
"""The most permission rules at once, those that are disabled included."""

MOST_EXPRESSIONS = 1 << 20
"""The most characters in the expressions of all of them."""

# The field that tells records of one topic apart: each value of it has a newest of its own.
_KEYS = {_PROFILE: "tier", _ACTOR_TIER: "actor"}


def _check_transport(body: dict[str, Any]) -> None:
    if not isinstance(_field(body, "transport"), str):
        raise InvalidBody("'transport' must be a string")
    _check_fields(body, {"transport"})


def _check_profile(body: dict[str, Any]) -> None:
    if not isinstance(_field(body, "profile"), str | None):
        raise InvalidBody("'profile' must be the name of a profile, or null to choose none")
    if (tier := body.get("tier")) is not None and tier not in tiers.NAMES:
        raise InvalidBody(f"the tier {tier!r} is not one of {', '.join(tiers.NAMES)}")
    _check_fields(body, {"profile", "tier"})


def _check_number(field: str, most: int, body: dict[str, Any]) -> None:
    said = _field(body, field)
    if said is not None and not _is_number(said, most):
        raise InvalidBody(f"'{field}' must be a whole number from 0 to {most}, or null to set none")
    _check_fields(body, {field})


def _check_actor_tier(body: dict[str, Any]) -> None:
    actor, tier = _field(body, "actor"), _field(body, "tier")
    if not isinstance(actor, str) or label_of(actor) is None:
        raise InvalidBody("'actor' must be did:sync:user:<label> or did:sync:agent:<label>")
    if tier is not None and tier not in tiers.GIVEN:
        raise InvalidBody(
            f"'tier' must be one of {', '.join(tiers.GIVEN)}, or null to give none: "
            "the operator's comes with the instance"
        )
    _check_fields(body, {"actor", "tier"})


def _check_rule(body: dict[str, Any]) -> None:
    """Check a rule; an expression of null takes the rule of that name away, and nothing else is needed for it."""
    name, expression = _field(body, "name"), _field(body, "expression")
    if not isinstance(name, str) or not _RULE_NAME.fullmatch(name):
        raise InvalidBody("a rule's 'name' must be 1 to 64 letters, digits, dots, dashes and underscores")
    _check_fields(body, {"name", "action", "priority", "expression", "enabled"})
    if expression is None:
        return
    if _field(body, "action") not in ("allow", "deny"):
        raise InvalidBody("a rule's 'action' must be allow or deny")
    if type(_field(body, "priority")) is not int or abs(body["priority"]) > _MOST_PRIORITY:
        raise InvalidBody(
            f"a rule's 'priority' must be a whole number from -{_MOST_PRIORITY} to {_MOST_PRIORITY}"
        )
    if not isinstance(body.get("enabled", True), bool):
        raise InvalidBody("a rule's 'enabled' must be true or false")
    if not isinstance(expression, str):
        raise InvalidBody("a rule's 'expression' must be a string, or null to take the rule away")
    expressions.check(expression)


def _is_number(said: object, most: int) -> bool:
    return type(said) is int and 0 <= said <= most


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
    _CAPACITY: partial(_check_number, "capacity", MOST_CAPACITY),
    _STANDBY: partial(_check_number, "workers", MOST_STANDBY),
    _ACTOR_TIER: _check_actor_tier,
    _RULE: _check_rule,
}


def check(body: dict[str, Any]) -> str | None:
    """Refuse a configuration body that would say nothing, or something else than its writer meant.

    Gives the name of the profile that it chooses, if it chooses one: whether that can be used is not known here.
    Raises `MissingField`, `InvalidBody` or `ExpressionInvalid`.
    """
    if body["kind"] == TIER:
        tiers.check(body)
        return None
    topic = body.get("topic")
    if topic is None:
        raise MissingField("a configuration record needs the field 'topic'")
    if not isinstance(topic, str) or topic not in _TOPICS:
        raise InvalidBody(f"the topic {topic!r} is not one of {', '.join(sorted(_TOPICS))}")
    _TOPICS[topic](body)
    return body["profile"] if topic == _PROFILE else None


class Config:
    """What is in force now; `now` is the time of day that rules may ask for."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self.rules = Rules(now)
        self._newest: dict[tuple[str, str | None], Record] = {}
        self._tiers = dict(tiers.SHIPPED)
        self.changed: Callable[[], None] = lambda: None
        """Told of each decision on where and how runs start, once it is in force."""

    @classmethod
    async def follow(cls, store: Store, now: Callable[[], datetime]) -> Config:
        """Read the log's configuration and keep it up with what is written from now on."""
        config = cls(now)
        await follow(store, CONFIG_THREAD, config.take)
        # Before another release may be installed over this one: rules need a package that is not imported without them.
        config.rules.compile()
        return config

    def check(self, body: dict[str, Any]) -> str | None:
        """Refuse what `check` does, and a rule for which there is no room; raises as it does.

        A rule that is there can always be taken away, and replaced by one that is no longer.
        """
        profile = check(body)
        if body["kind"] == CONFIG and body["topic"] == _RULE and body["expression"] is not None:
            self._refuse_crowd(body["name"], body["expression"])
        return profile

    def take(self, record: Record) -> None:
        """Take in the next record, if it is configuration; what this release would not have written says nothing."""
        if record.actor != ENGINE:
            return
        if record.kind == TIER:
            self._change_tier(record)
        elif record.kind == CONFIG and isinstance(topic := record.body.get("topic"), str):
            if topic == _RULE:
                self._change_rule(record.body)
            elif isinstance(key := record.body.get(_KEYS[topic]) if topic in _KEYS else None, str | None):
                self._newest[topic, key] = record
                self.changed()

    def tier_of(self, actor: str, operator: str) -> Tier:
        """Give an actor's tier: only the instance's own operator is operator, and an unknown actor is trial."""
        if actor == operator:
            return self._tiers[tiers.OPERATOR]
        said = self._said(_ACTOR_TIER, "tier", actor)
        return self._tiers[said if isinstance(said, str) and said in tiers.GIVEN else tiers.TRIAL]

    def tiers(self) -> list[Tier]:
        """Give every tier with the ceilings in force."""
        return list(self._tiers.values())

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
        return {tier: name for tier in tiers.NAMES if (name := self._profile(tier)) is not None}

    def profile_of(self, tier: str) -> str:
        """Give the profile that confines a tier's next sandboxed run."""
        return self._profile(tier) or self.profile

    @property
    def capacity(self) -> int | None:
        """How many sandboxed runs may go on at once, if somebody said so."""
        return self._number(_CAPACITY, "capacity", MOST_CAPACITY)

    @property
    def standby(self) -> int | None:
        """How many standby workers there are to be of each profile, if somebody said so."""
        return self._number(_STANDBY, "workers", MOST_STANDBY)

    @property
    def sandboxed_profiles(self) -> list[str]:
        """The profiles that sandboxed runs starting now would be confined by, each once."""
        going = {
            tiers.OPERATOR: self.transport,
            **dict.fromkeys(tiers.GIVEN, self.member_transport),
        }
        return list(
            dict.fromkeys(
                self.profile_of(tier) for tier, transport in going.items() if transport == SANDBOXED
            )
        )

    def _refuse_crowd(self, name: str, expression: str) -> None:
        sizes = {rule.name: len(rule.expression) for rule, _ in self.rules.listed()}
        if name not in sizes and len(sizes) >= MOST_RULES:
            raise InvalidBody(f"there are {len(sizes)} permission rules, and {MOST_RULES} is the most")
        more = len(expression) - sizes.get(name, 0)
        if more > 0 and (total := sum(sizes.values()) + more) > MOST_EXPRESSIONS:
            raise InvalidBody(
                f"the expressions of all permission rules would have {total} characters, "
                f"and {MOST_EXPRESSIONS} is the most"
            )

    def _change_tier(self, record: Record) -> None:
        name = record.body.get("tier")
        if isinstance(name, str) and name in self._tiers:
            self._tiers[name] = tiers.changed(self._tiers[name], record.body)

    def _change_rule(self, body: dict[str, Any]) -> None:
        name, action, priority = body.get("name"), body.get("action"), body.get("priority")
        expression, enabled = body.get("expression"), body.get("enabled", True)
        if not isinstance(name, str):
            return
        if expression is None:
            self.rules.drop(name)
        elif isinstance(expression, str):
            # A later release may have written what this one does not know: it denies, and is asked first.
            action = "allow" if action == "allow" else "deny"
            priority = priority if type(priority) is int else _MOST_PRIORITY
            self.rules.put(Rule(name, action, priority, expression, enabled is not False))

    def _transport(self, topic: str, default: str) -> str:
        said = self._said(topic, "transport")
        return said if isinstance(said, str) and said in TRANSPORTS else default

    def _profile(self, tier: str | None) -> str | None:
        said = self._said(_PROFILE, "profile", tier)
        return said if isinstance(said, str) else None

    def _number(self, topic: str, field: str, most: int) -> int | None:
        said = self._said(topic, field)
        return said if isinstance(said, int) and _is_number(said, most) else None

    def _said(self, topic: str, field: str, key: str | None = None) -> object:
        record = self._newest.get((topic, key))
        return None if record is None else record.body.get(field)
