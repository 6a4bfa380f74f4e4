"""The routes of members and tokens: who may speak to this daemon besides its operator. All of them need `admin`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from spl.api.answers import JsonAnswer, listing
from spl.api.requests import Body
from spl.errors import NotFound
from spl.kernel.members import DEFAULT_SCOPES
from spl.kernel.principals import SCOPES

if TYPE_CHECKING:
    from starlette.responses import Response

    from spl.api.authentication import Authenticator
    from spl.api.operations import Asked, Plain
    from spl.api.queries import Query
    from spl.kernel.kernel import Kernel
    from spl.kernel.members import Member

OWN = "operator"
"""The id of the one token that no record holds: the operator's, in the home's token file."""

_Short = Annotated[str, Field(min_length=1, max_length=200)]
_Scopes = Annotated[list[_Short], Field(min_length=1, max_length=20)]


class MemberBody(Body):
    """`POST /v1/members`."""

    label: _Short
    tier: _Short = "trial"
    scopes: _Scopes = sorted(DEFAULT_SCOPES)
    agent: bool = False


class TokenBody(Body):
    """`POST /v1/tokens`; without a label it is for the operator, without scopes it has all of its holder's."""

    label: _Short | None = None
    scopes: _Scopes | None = None


@dataclass(frozen=True)
class MembersApi:
    """The handlers."""

    kernel: Kernel
    authenticator: Authenticator

    async def add(self, asked: Asked[Query, MemberBody]) -> Response:
        """Answer `POST /v1/members`: the member and its first token, which is told this once."""
        body = await asked.body()
        member, token, secret = await self.kernel.members.add(
            body.label,
            agent=body.agent,
            tier=body.tier,
            scopes=frozenset(body.scopes),
            by=asked.principal.actor,
        )
        return JsonAnswer({**self._row(member), "token_id": token.id, "token": secret}, 201)

    async def members(self, _: Plain) -> Response:
        """Answer `GET /v1/members`."""
        return listing([self._row(member) for member in self.kernel.members.members()], has_more=False)

    async def revoke(self, asked: Plain) -> Response:
        """Answer `DELETE /v1/members/{label}`: its tokens are dead, and its runs told to stop."""
        member, stopped = await self.kernel.revoke_member(asked.path["label"], asked.principal.actor)
        return JsonAnswer({**self._row(member), "revoked": True, "stopped": stopped})

    async def mint(self, asked: Asked[Query, TokenBody]) -> Response:
        """Answer `POST /v1/tokens`: the token, which is told this once."""
        body = await asked.body()
        holder = self.kernel.operator if body.label is None else body.label
        scopes = None if body.scopes is None else frozenset(body.scopes)
        token, secret = await self.kernel.members.mint(holder, scopes, by=asked.principal.actor)
        return JsonAnswer({**token.wire(), "token": secret}, 201)

    async def tokens(self, _: Plain) -> Response:
        """Answer `GET /v1/tokens`: those that are live, and none of them itself."""
        own = {"object": "token", "id": OWN, "actor": self.kernel.operator, "scopes": sorted(SCOPES)}
        kept = [token.wire() for token in self.kernel.members.tokens()]
        return listing([{**own, "minted_at": None}, *kept], has_more=False)

    async def rotate(self, asked: Plain) -> Response:
        """Answer `POST /v1/tokens/{id}/rotate`: a new token, and the old one dead."""
        id_ = asked.path["id"]
        if id_ == OWN:
            secret = self.authenticator.rotate()
            answer: dict[str, Any] = {"object": "token", "id": OWN, "actor": self.kernel.operator}
            return JsonAnswer({**answer, "scopes": sorted(SCOPES), "minted_at": None, "token": secret}, 201)
        token, secret = await self.kernel.members.rotate(id_, by=asked.principal.actor)
        return JsonAnswer({**token.wire(), "token": secret}, 201)

    async def revoke_token(self, asked: Plain) -> Response:
        """Answer `DELETE /v1/tokens/{id}`; the operator's own is rotated, never taken away."""
        id_ = asked.path["id"]
        if id_ == OWN:
            raise NotFound(
                "the operator's own token is not taken away",
                remedy="put another in its place: 'spl token rotate'",
            )
        token = await self.kernel.members.revoke_token(id_, by=asked.principal.actor)
        return JsonAnswer({**token.wire(), "revoked": True})

    def _row(self, member: Member) -> dict[str, Any]:
        return {**member.wire(), "tier": self.kernel.tier_of(member.actor).name}
