"""Principals: who asks, and for whom they may speak."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spl.errors import ActorNotCovered, InvalidBody, RunActorNotCovered, ScopeDenied
from spl.kernel.names import ENGINE, label_of

ADMIN = "admin"
RECORDS_READ = "records:read"
RECORDS_WRITE = "records:write"
CONFIG_WRITE = "config:write"
WORK_RUN = "work:run"
METRICS_READ = "metrics:read"

SCOPES = frozenset((ADMIN, RECORDS_READ, RECORDS_WRITE, CONFIG_WRITE, WORK_RUN, METRICS_READ))
"""Every scope there is; `admin` is the operator's alone, for it starts runs as the operator."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Someone who has been authenticated: the actor they are, the scopes they hold, whether they are the operator.

    An operator's token may hold less than `admin`: it reads everything still, and speaks for the operator alone.
    """

    actor: str
    scopes: frozenset[str]
    operator: bool = False

    @property
    def sees(self) -> str | None:
        """Whose threads and runs this principal may know of: the store's `owner`; None is everyone's, an operator's."""
        return None if self.operator or ADMIN in self.scopes else self.actor

    def require(self, scope: str) -> None:
        """Refuse a principal without a scope; raises `ScopeDenied`."""
        if scope not in self.scopes and ADMIN not in self.scopes:
            raise ScopeDenied(f"this needs the scope {scope!r}, which the bearer does not carry")

    def writes_as(self, actor: str) -> None:
        """Refuse an actor this principal may not write as; raises `ActorNotCovered`."""
        if actor == ENGINE:
            raise ActorNotCovered(f"{ENGINE} writes configuration only")
        if actor != self.actor and ADMIN not in self.scopes:
            raise ActorNotCovered(f"the bearer does not cover the actor {actor!r}")

    def runs_as(self, actor: str) -> None:
        """Refuse an actor this principal may not start runs for; raises `RunActorNotCovered` or `InvalidBody`."""
        if label_of(actor) is None:
            raise InvalidBody(
                f"the actor {actor!r} is neither did:sync:user:<label> nor did:sync:agent:<label>"
            )
        if actor != self.actor and ADMIN not in self.scopes:
            raise RunActorNotCovered(f"the bearer may not start runs for {actor!r}")


def operator_did(login: str) -> str:
    """Give the operator's actor for a login name."""
    return f"did:sync:user:{re.sub(r'[^A-Za-z0-9._-]', '_', login)}"
