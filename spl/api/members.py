"""The routes of members and tokens: who may speak to this daemon besides its operator. All of them need `admin`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from spl.api.answers import JsonAnswer, listing
from spl.api.requests import Body, query, read_body
from spl.errors import NotFound
from spl.kernel.members import DEFAULT_SCOPES
from spl.kernel.principals import ADMIN, SCOPES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from spl.api.authentication import Authenticator
    from spl.kernel.kernel import Kernel
    from spl.kernel.members import Member
    from spl.kernel.principals import Principal

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

    async def add(self, request: Request, principal: Principal) -> Response:
        """Answer `POST /v1/members`: the member and its first token, which is told this once."""
        principal.require(ADMIN)
        query(request)
        body = await read_body(request, MemberBody)
        member, token, secret = await self.kernel.members.add(
            body.label, agent=body.agent, tier=body.tier, scopes=frozenset(body.scopes), by=principal.actor
        )
        return JsonAnswer({**self._row(member), "token_id": token.id, "token": secret}, 201)

    async def members(self, request: Request, principal: Principal) -> Response:
        """Answer `GET /v1/members`."""
        principal.require(ADMIN)
        query(request)
        return listing([self._row(member) for member in self.kernel.members.members()], has_more=False)

    async def revoke(self, request: Request, principal: Principal) -> Response:
        """Answer `DELETE /v1/members/{label}`: its tokens are dead, and its runs told to stop."""
        principal.require(ADMIN)
        query(request)
        member, stopped = await self.kernel.revoke_member(request.path_params["label"], principal.actor)
        return JsonAnswer({**self._row(member), "revoked": True, "stopped": stopped})

    async def mint(self, request: Request, principal: Principal) -> Response:
        """Answer `POST /v1/tokens`: the token, which is told this once."""
        principal.require(ADMIN)
        query(request)
        body = await read_body(request, TokenBody)
        holder = self.kernel.operator if body.label is None else body.label
        scopes = None if body.scopes is None else frozenset(body.scopes)
        token, secret = await self.kernel.members.mint(holder, scopes, by=principal.actor)
        return JsonAnswer({**token.wire(), "token": secret}, 201)

    async def tokens(self, request: Request, principal: Principal) -> Response:
        """Answer `GET /v1/tokens`: those that are live, and none of them itself."""
        principal.require(ADMIN)
        query(request)
        own = {"object": "token", "id": OWN, "actor": self.kernel.operator, "scopes": sorted(SCOPES)}
        kept = [token.wire() for token in self.kernel.members.tokens()]
        return listing([{**own, "minted_at": None}, *kept], has_more=False)

    async def rotate(self, request: Request, principal: Principal) -> Response:
        """Answer `POST /v1/tokens/{id}/rotate`: a new token, and the old one dead."""
        principal.require(ADMIN)
        query(request)
        id_ = request.path_params["id"]
        if id_ == OWN:
            secret = self.authenticator.rotate()
            answer: dict[str, Any] = {"object": "token", "id": OWN, "actor": self.kernel.operator}
            return JsonAnswer({**answer, "scopes": sorted(SCOPES), "minted_at": None, "token": secret}, 201)
        token, secret = await self.kernel.members.rotate(id_, by=principal.actor)
        return JsonAnswer({**token.wire(), "token": secret}, 201)

    async def revoke_token(self, request: Request, principal: Principal) -> Response:
        """Answer `DELETE /v1/tokens/{id}`; the operator's own is rotated, never taken away."""
        principal.require(ADMIN)
        query(request)
        id_ = request.path_params["id"]
        if id_ == OWN:
            raise NotFound(
                "the operator's own token is not taken away",
                remedy="put another in its place: 'spl token rotate'",
            )
        token = await self.kernel.members.revoke_token(id_, by=principal.actor)
        return JsonAnswer({**token.wire(), "revoked": True})

    def _row(self, member: Member) -> dict[str, Any]:
        return {**member.wire(), "tier": self.kernel.tier_of(member.actor).name}
