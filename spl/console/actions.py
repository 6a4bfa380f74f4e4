"""What a person can have done from the console: each one request, told in full before it is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spl import decisions
from spl.client import segment
from spl.console.text import PAGE, taken

if TYPE_CHECKING:
    from spl.client import Json

_WHOSE: Final = {False: "the operator's own", True: "members'"}


@dataclass(frozen=True, slots=True)
class StopRun:
    """Have a run end at its next step."""

    thread: str
    actor: str

    @property
    def title(self) -> str:
        """What is asked."""
        return f"stop the run {taken(self.thread)} of {taken(self.actor)}?"

    @property
    def means(self) -> tuple[str, ...]:
        """What comes of it."""
        return ("Its next call is answered with a stop verdict, and it ends cancelled.",)

    @property
    def warning(self) -> str:
        """What speaks against it."""
        return ""

    @property
    def doing(self) -> str:
        """What is said while it is done."""
        return "telling the run to stop"

    @property
    def done(self) -> str:
        """What is said once it is done."""
        return "the run was told to stop"

    def request(self) -> tuple[str, str, Json]:
        """Give the one request that does it."""
        return "POST", f"/v1/runs/{segment(self.thread)}/events", {"type": "stop"}


@dataclass(frozen=True, slots=True)
class SetTransport:
    """Choose where runs that start from now on take place: the operator's own, or everyone else's."""

    transport: str
    members: bool

    @property
    def title(self) -> str:
        """What is asked."""
        return f"have {_WHOSE[self.members]} runs take place {self.transport}?"

    @property
    def means(self) -> tuple[str, ...]:
        """What comes of it."""
        return ("It holds for runs that start from now on; those already going keep their transport.",)

    @property
    def warning(self) -> str:
        """What speaks against it."""
        if self.transport != "in_process":
            return ""
        if self.members:
            return (
                "Work of people and agents that are not you would run inside the daemon itself: no layer would "
                "confine it."
            )
        return "Your own runs would take place inside the daemon itself: no layer would confine them."

    @property
    def doing(self) -> str:
        """What is said while it is done."""
        return "setting the transport"

    @property
    def done(self) -> str:
        """What is said once it is done."""
        return f"{_WHOSE[self.members]} runs start {self.transport} from now on"

    def request(self) -> tuple[str, str, Json]:
        """Give the one request that does it."""
        topic = "work_loop_transport_members" if self.members else "work_loop_transport"
        return _record({"topic": topic, "transport": self.transport})


@dataclass(frozen=True, slots=True)
class PutRule:
    """Write a permission rule, in the place of the one of its name if there is one."""

    name: str
    action: str
    priority: int
    expression: str
    enabled: bool

    @property
    def title(self) -> str:
        """What is asked."""
        return f"write the rule {taken(self.name, 80)}, {'enabled' if self.enabled else 'disabled'}?"

    @property
    def means(self) -> tuple[str, ...]:
        """What comes of it."""
        return (
            "It holds for the next call, also of runs already going, and replaces a rule of the same name.",
        )

    @property
    def warning(self) -> str:
        """What speaks against it."""
        if self.action == "deny" and not self.enabled:
            return "What it denies would be allowed, unless another rule denies it."
        return ""

    @property
    def doing(self) -> str:
        """What is said while it is done."""
        return "writing the rule"

    @property
    def done(self) -> str:
        """What is said once it is done."""
        return f"the rule {taken(self.name, 80)} is written, {'enabled' if self.enabled else 'disabled'}"

    def request(self) -> tuple[str, str, Json]:
        """Give the one request that does it."""
        rule = {
            "name": self.name,
            "action": self.action,
            "priority": self.priority,
            "expression": self.expression,
        }
        return _record({"topic": "permission_rule", **rule, "enabled": self.enabled})


@dataclass(frozen=True, slots=True)
class SetProfile:
    """Choose the profile that confines sandboxed runs from now on, of a tier or of all."""

    profile: str
    tier: str | None

    @property
    def title(self) -> str:
        """What is asked."""
        whose = "sandboxed runs" if self.tier is None else f"sandboxed runs of the tier {self.tier}"
        return f"confine {whose} by the profile {taken(self.profile, 80)}?"

    @property
    def means(self) -> tuple[str, ...]:
        """What comes of it."""
        return (
            "It holds for runs that start from now on; those already going keep theirs.",
            "The daemon refuses a profile below the floor, or one that this host cannot confine by.",
        )

    @property
    def warning(self) -> str:
        """What speaks against it."""
        return ""

    @property
    def doing(self) -> str:
        """What is said while it is done."""
        return "setting the profile"

    @property
    def done(self) -> str:
        """What is said once it is done."""
        return f"the profile {taken(self.profile, 80)} is in force for runs that start from now on"

    def request(self) -> tuple[str, str, Json]:
        """Give the one request that does it."""
        tier = {} if self.tier is None else {"tier": self.tier}
        return _record({"topic": "work_loop_profile", "profile": self.profile, **tier})


Action = StopRun | SetTransport | PutRule | SetProfile


def told(action: Action) -> tuple[str, ...]:
    """Give what an action sends, a line each: the request, where its record stands, and what it says."""
    method, path, body = action.request()
    lines = [f"{method} {taken(path)}"]
    said = body
    if "body" in body:
        lines.append(f"a record by {body['actor']} on {body['thread']}:")
        said = body["body"]
    written = {name: json.dumps(value, ensure_ascii=False) for name, value in said.items()}
    lines += [f"  {taken(name, 40)}: {taken(value, PAGE)}" for name, value in written.items()]
    return tuple(lines)


def _record(said: Json) -> tuple[str, str, Json]:
    return "POST", "/v1/records", decisions.record(said)
