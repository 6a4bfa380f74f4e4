"""Members: who besides the operator may speak here, and by which tokens; the fold of `th_engine_principals`.

Only the kernel writes that thread. It holds the SHA-256 of each token and never the token: with 256 random bits in
it, its hash gives nothing away.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spl.errors import ActorNotCovered, InvalidBody, MemberExists, NotFound, TokenRevoked, Unauthenticated
from spl.kernel.following import follow
from spl.kernel.names import CONFIG, CONFIG_THREAD, ENGINE, MEMBER, PRINCIPALS_THREAD, TOKEN, instant
from spl.kernel.principals import ADMIN, RECORDS_READ, RECORDS_WRITE, SCOPES, WORK_RUN, Principal
from spl.kernel.tiers import GIVEN as TIERS
from spl.records.record import Draft

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from spl.records.record import Record
    from spl.records.store import Store

MEMBER_SCOPES = SCOPES - {ADMIN}
"""The most that a member can hold."""

DEFAULT_SCOPES = frozenset((RECORDS_READ, RECORDS_WRITE, WORK_RUN))
"""What a member holds of whom nothing else is said."""

_LABEL = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
_ACTOR = re.compile(rf"did:sync:(?:user|agent):({_LABEL})")
_BEARER = re.compile(r"spl_[a-z0-9]{1,16}_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_TOKEN_ID = re.compile(r"tok_[0-9a-f]{12}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ENVIRONMENT = "local"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its actor, the most that its tokens may hold, and when it was added."""

    actor: str
    scopes: frozenset[str]
    added_at: str

    @property
    def label(self) -> str:
        """The member's name, which its actor ends in."""
        return _label(self.actor)

    def wire(self) -> Json:
        """Give the member as it stands in an HTTP answer."""
        return {
            "object": "member",
            "label": self.label,
            "actor": self.actor,
            "scopes": sorted(self.scopes),
            "added_at": self.added_at,
        }


@dataclass(frozen=True, slots=True)
class Token:
    """What may be told of one live token: neither it nor its hash."""

    id: str
    actor: str
    scopes: frozenset[str]
    minted_at: str

    def wire(self) -> Json:
        """Give the token as it stands in an HTTP answer."""
        return {
            "object": "token",
            "id": self.id,
            "actor": self.actor,
            "scopes": sorted(self.scopes),
            "minted_at": self.minted_at,
        }


class Members:
    """The members and the live tokens; `now` is the time of day in UTC, `by` everywhere the actor who asks.

    A record that this release would not have written gives nobody anything, and none makes an operator: a token
    for the operator's actor counts only where the operator minted it.
    """

    def __init__(self, store: Store, operator: str, now: Callable[[], datetime]) -> None:
        self._store = store
        self._operator = operator
        self._now = now
        self._members: dict[str, Member] = {}  # by label, in lower case
        self._actors: dict[str, str] = {}  # by label likewise: whoever was the first to have it, for good
        self._live: dict[str, Token] = {}  # by digest
        self._digests: dict[str, list[str]] = {}  # by account id; those of dead tokens too
        self._revoking: set[str] = (
            set()
        )  # actors, and ids of tokens, that are dead already and not on record yet
        self._clock = 0
        self._changing = asyncio.Lock()

    @classmethod
    async def follow(cls, store: Store, *, operator: str, now: Callable[[], datetime]) -> Members:
        """Read the log's members and tokens and keep them up with what is written from now on."""
        members = cls(store, operator, now)
        await follow(store, PRINCIPALS_THREAD, members.take)
        return members

    def members(self) -> list[Member]:
        """Give the members there are now, in the order they were added."""
        return list(self._members.values())

    def tokens(self) -> list[Token]:
        """Give the tokens that are live now, in the order they were minted."""
        return [token for token in self._live.values() if not self._is_dead(token)]

    def member(self, who: str) -> Member:
        """Give the member with this actor or this label, in whatever case; raises `NotFound`."""
        for label, member in self._members.items():
            if who == member.actor or who.lower() == label:
                return member
        raise NotFound(f"there is no member {who!r}", remedy="list them with 'spl member list'")

    def most(self, actor: str) -> frozenset[str]:
        """Give the most that a token of this actor may hold: nothing where there is no such member."""
        if actor == self._operator:
            return SCOPES
        if actor in self._revoking:
            return frozenset()
        member = self._members.get(_label(actor).lower())
        return member.scopes if member is not None and member.actor == actor else frozenset()

    def find(self, bearer: str) -> Principal:
        """Give who presents a token; raises `Unauthenticated`, or `TokenRevoked` for one that was live once."""
        if found := _BEARER.fullmatch(bearer):
            digest = _digest(bearer)
            for known in self._digests.get(found[1], ()):
                if hmac.compare_digest(known, digest):
                    return self._principal(known)
        raise Unauthenticated("the bearer is not known here")

    def refuse_namesake(self, actor: str) -> None:
        """Refuse an actor with the label of another that is or was a member; raises `InvalidBody`.

        A label names a member's folder in the data plane, so it stays with the actor who had it.
        """
        known = self._actors.get(_label(actor).lower(), actor)
        if known != actor:
            raise InvalidBody(f"the label of {actor!r} is that of {known!r}", remedy="choose another label")

    async def add(
        self, label: str, *, agent: bool, tier: str, scopes: frozenset[str] = DEFAULT_SCOPES, by: str
    ) -> tuple[Member, Token, str]:
        """Add a member, give it its tier and a token with all of its scopes; the token is told this once.

        Raises `MemberExists`, whatever the case of the letters and whether that one is a user or an agent, and
        `InvalidBody`.
        """
        if not re.fullmatch(_LABEL, label):
            raise InvalidBody(
                f"the label {label!r} is not 1 to 64 letters, digits, dots, dashes and underscores, "
                "the first a letter, digit or underscore"
            )
        if tier not in TIERS:
            raise InvalidBody(f"the tier {tier!r} is not one of {', '.join(TIERS)}")
        _check_scopes(scopes, MEMBER_SCOPES, label)
        async with self._changing:
            if label.lower() == _label(self._operator).lower():
                raise InvalidBody(f"the label {label!r} is the operator's own")
            if label.lower() in self._members:
                raise MemberExists(f"there is a member {self._members[label.lower()].label!r} already")
            actor = f"did:sync:{'agent' if agent else 'user'}:{label}"
            self.refuse_namesake(actor)
            secret, minted = _mint(actor, scopes)
            member = {"kind": MEMBER, "event": "added", "actor": actor, "scopes": sorted(scopes)}
            config = {"kind": CONFIG, "topic": "actor_tier", "actor": actor, "tier": tier}
            await self._write(by, member, minted, config=config)
            return self._members[label.lower()], self._live[minted["sha256"]], secret

    async def revoke(self, who: str, by: str) -> Member:
        """Take a member away, named by actor or label, and with it every token it has; raises `NotFound`.

        Its label can be added again, for the same actor, who owns the same threads then; the old tokens stay dead.
        It is in force at once: where the log cannot take it now, until the daemon ends.
        """
        async with self._changing:
            member = self.member(who)
            self._revoking.add(member.actor)
            await self._write(by, {"kind": MEMBER, "event": "revoked", "actor": member.actor})
            return member

    async def mint(self, who: str, scopes: frozenset[str] | None, by: str) -> tuple[Token, str]:
        """Make a token for a member or the operator, named by actor or label; the token is told this once.

        Without scopes it has all that they hold.

        Raises `NotFound`, `InvalidBody` for scopes that they do not hold, and `ActorNotCovered` where anyone but the
        operator would make one of the operator's.
        """
        async with self._changing:
            own = who in (self._operator, _label(self._operator))
            actor = self._operator if own else self.member(who).actor
            self._refuse_minting(actor, by)
            most = self.most(actor)
            scopes = most if scopes is None else scopes
            _check_scopes(scopes, most, who)
            secret, minted = _mint(actor, scopes)
            await self._write(by, minted)
            return self._live[minted["sha256"]], secret

    async def rotate(self, id: str, by: str) -> tuple[Token, str]:  # noqa: A002 - the field's own name
        """Make a token for the same actor with the same scopes, and end the old one; raises as `mint` does."""
        async with self._changing:
            old = self._token(id)
            self._refuse_minting(old.actor, by)
            secret, minted = _mint(old.actor, old.scopes)
            await self._write(by, minted, _revocation(old))
            return self._live[minted["sha256"]], secret

    async def revoke_token(self, id: str, by: str) -> Token:  # noqa: A002 - the field's own name
        """End one token, at once as `revoke` does; raises `NotFound` when none that is live has this id."""
        async with self._changing:
            token = self._token(id)
            self._revoking.add(token.id)
            await self._write(by, _revocation(token))
            return token

    def take(self, record: Record) -> None:
        """Take in the thread's next record, if it is the kernel's own word on members and tokens."""
        if record.actor != ENGINE:
            return
        self._clock = record.clock
        # Whatever else than a giving is said takes away: a later release may say what this one does not know.
        event = record.body.get("event")
        if record.kind == MEMBER:
            (self._take_member if event == "added" else self._drop_member)(record.body)
        elif record.kind == TOKEN:
            (self._take_token if event == "minted" else self._drop_token)(record.body)

    def _take_member(self, body: Json) -> None:
        actor, scopes = body.get("actor"), _scopes(body)
        if (
            not isinstance(actor, str)
            or not _ACTOR.fullmatch(actor)
            or not scopes
            or not scopes <= MEMBER_SCOPES
        ):
            return
        label = _label(actor).lower()
        if label not in self._members and label != _label(self._operator).lower():
            self._revoking.discard(actor)
            self._members[label] = Member(actor, scopes, str(body.get("at")))
            self._actors.setdefault(label, actor)

    def _drop_member(self, body: Json) -> None:
        actor = body.get("actor")
        self._members = {key: member for key, member in self._members.items() if member.actor != actor}
        self._live = {digest: token for digest, token in self._live.items() if token.actor != actor}

    def _take_token(self, body: Json) -> None:
        id_, actor, digest, scopes = body.get("token"), body.get("actor"), body.get("sha256"), _scopes(body)
        if not (isinstance(id_, str) and isinstance(actor, str) and isinstance(digest, str)):
            return
        if not _TOKEN_ID.fullmatch(id_) or not _DIGEST.fullmatch(digest):
            return
        if not scopes or not scopes <= self.most(actor):
            return
        if actor == self._operator and body.get("by") != self._operator:
            return
        known = self._digests.setdefault(_account(actor), [])
        # One that was known is not brought to life by being minted again.
        if digest not in known:
            known.append(digest)
            self._live[digest] = Token(id_, actor, scopes, str(body.get("at")))

    def _drop_token(self, body: Json) -> None:
        self._live = {digest: token for digest, token in self._live.items() if token.id != body.get("token")}

    def _is_dead(self, token: Token) -> bool:
        return token.actor in self._revoking or token.id in self._revoking

    def _principal(self, digest: str) -> Principal:
        token = self._live.get(digest)
        if token is None or self._is_dead(token):
            raise TokenRevoked("the bearer has been revoked, or the member it was made for")
        return Principal(token.actor, token.scopes, operator=token.actor == self._operator)

    def _token(self, id_: str) -> Token:
        for token in self._live.values():
            if token.id == id_:
                return token
        raise NotFound(f"there is no live token {id_!r}", remedy="list them with 'spl token list'")

    def _refuse_minting(self, actor: str, by: str) -> None:
        if actor in self._revoking:
            raise NotFound(f"{actor} has been revoked, which is not on record yet: revoke it again")
        if actor == self._operator != by:
            raise ActorNotCovered(f"{by} may not make a token for {actor}")

    async def _write(self, by: str, *bodies: Json, config: Json | None = None) -> None:
        """Write all of the bodies or none; they are in force when this returns."""
        at = instant(self._now())
        drafts = [Draft(PRINCIPALS_THREAD, ENGINE, "LEARN", {**body, "by": by, "at": at}) for body in bodies]
        # With its clock given, a change cannot overtake one whose caller went away, letting go of the lock, before it
        # was durable: what it was checked against would no longer be so.
        drafts[0] = replace(drafts[0], clock=self._clock + 1)
        if config is not None:
            drafts.append(Draft(CONFIG_THREAD, ENGINE, "LEARN", config))
        await self._store.append(drafts)


def _mint(actor: str, scopes: frozenset[str]) -> tuple[str, Json]:
    """Give a new token and the body that makes it known."""
    secret = f"spl_{_ENVIRONMENT}_{_account(actor)}_{secrets.token_urlsafe(32)}"
    return secret, {
        "kind": TOKEN,
        "event": "minted",
        "token": f"tok_{secrets.token_hex(6)}",
        "actor": actor,
        "scopes": sorted(scopes),
        "sha256": _digest(secret),
    }


def _revocation(token: Token) -> Json:
    return {"kind": TOKEN, "event": "revoked", "token": token.id, "actor": token.actor}


def _check_scopes(scopes: frozenset[str], most: frozenset[str], who: str) -> None:
    if not scopes:
        raise InvalidBody(f"{who!r} needs at least one scope, of {', '.join(sorted(most))}")
    if beyond := sorted(scopes - most):
        raise InvalidBody(
            f"the scope {beyond[0]!r} cannot be given to {who!r}: only {', '.join(sorted(most))}"
        )


def _scopes(body: Json) -> frozenset[str]:
    said = body.get("scopes")
    if isinstance(said, list) and all(isinstance(scope, str) for scope in said):
        return frozenset(said)
    return frozenset()


def _label(actor: str) -> str:
    return actor.rpartition(":")[2]


def _account(actor: str) -> str:
    return hashlib.sha256(actor.encode()).hexdigest()[:8]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
