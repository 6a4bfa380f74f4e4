from __future__ import annotations

import asyncio
import hashlib
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import (
    ActorNotCovered,
    IngestFailed,
    InvalidBody,
    MemberExists,
    NotFound,
    StoreUnavailable,
    TokenRevoked,
    Unauthenticated,
)
from spl.kernel.members import DEFAULT_SCOPES, MEMBER_SCOPES, Members
from spl.kernel.names import CONFIG, CONFIG_THREAD, ENGINE, MEMBER, PRINCIPALS_THREAD, TOKEN
from spl.kernel.principals import ADMIN, SCOPES, Principal
from spl.records.record import Draft
from tests.kernel.instance import Held

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from spl.records.record import Record

Json = dict[str, Any]

OPERATOR = "did:sync:user:Op"
MIA = "did:sync:user:mia"
READ = frozenset(("records:read",))
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@dataclass
class Here:
    """A log and the members it tells of."""

    store: Held
    members: Members

    async def add(self, label: str = "mia", *, agent: bool = False, **fields: Any) -> str:
        """Add a member; give its token."""
        _, _, token = await self.members.add(
            label, agent=agent, **{"tier": "trial", "by": OPERATOR, **fields}
        )
        return token

    async def say(self, *bodies: Json, thread: str = PRINCIPALS_THREAD, actor: str = ENGINE) -> None:
        """Write past the kernel what only the kernel writes, as a log by another hand may have it."""
        await self.store.append([Draft(thread, actor, "LEARN", body) for body in bodies])

    async def again(self) -> Members:
        """Give the members as the next daemon would read them from the log."""
        return await Members.follow(self.store, operator=OPERATOR, now=lambda: NOON)

    async def on(self, thread: str) -> list[Record]:
        """Give a thread's records."""
        return await self.store.select(thread=thread, limit=1000)


@asynccontextmanager
async def opened(folder: Path, operator: str = OPERATOR) -> AsyncIterator[Here]:
    store = await Held.open(folder / "hub.db")
    try:
        yield Here(store, await Members.follow(store, operator=operator, now=lambda: NOON))
    finally:
        await store.close()


def labels(members: Members) -> list[str]:
    """Give the labels of the members, in order."""
    return [member.label for member in members.members()]


def added(**fields: object) -> Json:
    """Give the body that makes Mia a member, but for the fields given."""
    return {"kind": MEMBER, "event": "added", "actor": MIA, "scopes": ["records:read"], **fields}


def minted(actor: str = MIA, **fields: object) -> Json:
    """Give the body that makes `bearer_of(actor)` a token, but for the fields given."""
    return {
        "kind": TOKEN,
        "event": "minted",
        "token": "tok_0123456789ab",
        "actor": actor,
        "scopes": ["records:read"],
        "sha256": hashlib.sha256(bearer_of(actor).encode()).hexdigest(),
        "by": OPERATOR,
        **fields,
    }


def bearer_of(actor: str) -> str:
    """Give a token as one of this actor's is written."""
    return f"spl_local_{hashlib.sha256(actor.encode()).hexdigest()[:8]}_{'A' * 43}"


# --- members ---


def test_a_new_member_speaks_for_itself_with_the_token_it_is_given(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            token = await here.add()
            assert here.members.find(token) == Principal(MIA, DEFAULT_SCOPES, operator=False)
            bot = await here.add("bot-7", agent=True, scopes=READ)
            assert here.members.find(bot) == Principal("did:sync:agent:bot-7", READ, operator=False)
            assert labels(here.members) == ["mia", "bot-7"]

    asyncio.run(run())


def test_a_member_its_tier_and_its_token_are_recorded_together_by_the_engine(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.add(tier="team")
            member, token = await here.on(PRINCIPALS_THREAD)
            [config] = await here.on(CONFIG_THREAD)
            assert [record.actor for record in (member, token, config)] == [ENGINE] * 3
            assert member.body == {
                "kind": MEMBER,
                "event": "added",
                "actor": MIA,
                "scopes": ["records:read", "records:write", "work:run"],
                "by": OPERATOR,
                "at": "2026-01-02T12:00:00.000Z",
            }
            assert (token.kind, token.body["actor"], token.body["event"]) == (TOKEN, MIA, "minted")
            assert config.body == {"kind": CONFIG, "topic": "actor_tier", "actor": MIA, "tier": "team"}

    asyncio.run(run())


def test_members_and_tokens_are_the_same_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            kept, dead, gone = await here.add(), await here.add("ned"), await here.add("old")
            [_, of_ned, _] = here.members.tokens()
            await here.members.revoke("old", by=OPERATOR)
            await here.members.revoke_token(of_ned.id, by=OPERATOR)
            before = (here.members.members(), here.members.tokens())
        async with opened(tmp_path) as here:
            assert (here.members.members(), here.members.tokens()) == before
            assert here.members.find(kept).actor == MIA
            for token in (dead, gone):
                with pytest.raises(TokenRevoked):
                    here.members.find(token)
            await here.add("new")
            assert labels(here.members) == ["mia", "ned", "new"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "label",
    [
        "",
        ".",
        "..",
        ".hidden",
        "-",
        "-h",
        "a" * 65,
        "a/b",
        "a b",
        "mia\n",
        "mïa",
        "a%41",
        "a:b",
        "\u212aay",
        "a\0",
    ],
)
def test_a_label_that_could_be_a_path_or_pass_for_another_is_refused(tmp_path: Path, label: str) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            with pytest.raises(InvalidBody, match="label"):
                await here.add(label)
            assert await here.store.count() == 0

    asyncio.run(run())


@pytest.mark.parametrize("label", ["a", "A.b_c-d", "_x", "7", "a" * 64, "a..b"])
def test_a_plain_label_is_taken_as_it_is_written(tmp_path: Path, label: str) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            assert here.members.find(await here.add(label)).actor == f"did:sync:user:{label}"

    asyncio.run(run())


@pytest.mark.parametrize(("label", "agent"), [("mia", False), ("mia", True), ("MIA", False), ("Mia", True)])
def test_a_label_names_one_member_whatever_its_case_and_kind(tmp_path: Path, label: str, agent: bool) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.add("mia")
            with pytest.raises(MemberExists, match="'mia'"):
                await here.add(label, agent=agent)
            assert len(await here.on(PRINCIPALS_THREAD)) == 2

    asyncio.run(run())


@pytest.mark.parametrize("agent", [False, True])
@pytest.mark.parametrize("label", ["Op", "op", "OP"])
def test_no_member_has_the_operators_label(tmp_path: Path, label: str, agent: bool) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            with pytest.raises(InvalidBody, match="operator's own"):
                await here.add(label, agent=agent)

    asyncio.run(run())


@pytest.mark.parametrize("tier", ["operator", "root", "", "Trial"])
def test_a_member_is_given_a_tier_below_the_operators(tmp_path: Path, tier: str) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            with pytest.raises(InvalidBody, match="tier"):
                await here.add(tier=tier)

    asyncio.run(run())


@pytest.mark.parametrize("scopes", [(), ("admin",), ("records:read", "admin"), ("root",), ("",)])
def test_a_member_is_given_scopes_that_there_are_and_never_admin(
    tmp_path: Path, scopes: tuple[str, ...]
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            with pytest.raises(InvalidBody, match="scope"):
                await here.add(scopes=frozenset(scopes))
            assert labels(here.members) == []
            await here.add(scopes=MEMBER_SCOPES)

    asyncio.run(run())


def test_of_many_who_add_one_label_at_once_exactly_one_does(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            adding = (here.add(label, agent=agent) for label in ("mia", "MIA") for agent in (False, True))
            answers = await asyncio.gather(*adding, return_exceptions=True)
            assert [type(answer) for answer in answers] == [str, MemberExists, MemberExists, MemberExists]
            assert len(here.members.members()) == len(here.members.tokens()) == 1

    asyncio.run(run())


def test_one_who_went_away_while_adding_leaves_room_for_no_second(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            leaving = asyncio.ensure_future(here.add("mia"))
            await asyncio.sleep(0)
            leaving.cancel()
            # The first is still on its way to the disk, and its lock is free.
            with pytest.raises(IngestFailed, match="DuplicateClock"):
                await here.add("MIA")
            assert labels(here.members) == labels(await here.again()) == ["mia"]
            with pytest.raises(MemberExists):
                await here.add("MIA")

    asyncio.run(run())


def test_a_member_that_could_not_be_written_is_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.store.close()
            with pytest.raises(StoreUnavailable):
                await here.add()
            assert (here.members.members(), here.members.tokens()) == ([], [])

    asyncio.run(run())


def test_a_revoked_member_and_all_its_tokens_are_dead_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            first, others = await here.add(), await here.add("ned")
            _, second = await here.members.mint("mia", READ, by=OPERATOR)
            assert here.members.member(MIA).scopes == here.members.most(MIA) == DEFAULT_SCOPES
            assert (await here.members.revoke("Mia", by=OPERATOR)).actor == MIA
            for token in (first, second):
                with pytest.raises(TokenRevoked):
                    here.members.find(token)
            assert here.members.find(others).actor == "did:sync:user:ned"
            assert labels(here.members) == ["ned"]
            with pytest.raises(NotFound):
                here.members.member("mia")
            assert here.members.most(MIA) == frozenset()
            with pytest.raises(NotFound):
                await here.members.revoke("mia", by=OPERATOR)
            with pytest.raises(NotFound):
                await here.members.mint("mia", READ, by=OPERATOR)

    asyncio.run(run())


def test_a_label_that_is_added_again_brings_no_old_token_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            old = await here.add()
            await here.members.revoke("mia", by=OPERATOR)
            new = await here.add()
            for members in (here.members, await here.again()):
                assert members.find(new).actor == MIA
                with pytest.raises(TokenRevoked):
                    members.find(old)
                assert len(members.tokens()) == 1

    asyncio.run(run())


# --- a log that cannot take a revocation ---


async def revoke_in_vain(here: Here) -> None:
    """Revoke Mia while nothing of a member can be written; the log takes everything again after it."""
    here.store.full_for = MEMBER
    with pytest.raises(StoreUnavailable):
        await here.members.revoke("mia", by=OPERATOR)
    here.store.full_for = None


def test_a_revocation_that_the_log_cannot_take_is_in_force_until_the_daemon_ends(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            token, others = await here.add(), await here.add("ned")
            await revoke_in_vain(here)
            with pytest.raises(TokenRevoked):
                here.members.find(token)
            assert here.members.most(MIA) == frozenset()
            assert here.members.find(others).actor == "did:sync:user:ned"
            # It is to be seen that it is not on record: the next daemon knows nothing of it.
            assert labels(here.members) == ["mia", "ned"]
            assert (await here.again()).find(token).actor == MIA

    asyncio.run(run())


def test_a_revocation_is_tried_again_and_the_label_added_again_once_the_log_is_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            old = await here.add()
            await revoke_in_vain(here)
            await here.members.revoke("mia", by=OPERATOR)
            assert labels(here.members) == []
            new = await here.add()
            for members in (here.members, await here.again()):
                assert members.find(new) == Principal(MIA, DEFAULT_SCOPES, operator=False)
                with pytest.raises(TokenRevoked):
                    members.find(old)

    asyncio.run(run())


def test_a_member_whose_revocation_is_not_on_record_is_neither_added_anew_nor_given_a_token(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            old = await here.add()
            (held,) = here.members.tokens()
            await revoke_in_vain(here)
            before = await here.store.count()
            with pytest.raises(MemberExists):
                await here.add()
            with pytest.raises(NotFound, match="revoke it again"):
                await here.members.mint("mia", READ, by=OPERATOR)
            with pytest.raises(NotFound, match="revoke it again"):
                await here.members.rotate(held.id, by=OPERATOR)
            assert await here.store.count() == before
            # One token can still be ended for good, by itself.
            await here.members.revoke_token(held.id, by=OPERATOR)
            with pytest.raises(TokenRevoked):
                (await here.again()).find(old)

    asyncio.run(run())


# --- tokens ---


def test_a_token_names_where_it_is_from_and_whose_it_is_and_holds_256_random_bits(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            token = await here.add()
            assert token.startswith("spl_local_84d9904a_")  # the first 8 digits of the actor's SHA-256
            assert len(token) == len("spl_local_84d9904a_") + 43
            [told] = here.members.tokens()
            assert re.fullmatch(r"tok_[0-9a-f]{12}", told.id)
            _, other = await here.members.mint(MIA, READ, by=OPERATOR)
            assert other != token

    asyncio.run(run())


def test_no_token_stands_in_the_log_and_no_hash_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            tokens = [await here.add()]
            told, secret = await here.members.mint("mia", READ, by=OPERATOR)
            tokens += [secret, (await here.members.rotate(told.id, by=OPERATOR))[1]]
            records = await here.store.select()
            written = str([record.wire() for record in records])
            digests = [record.body["sha256"] for record in records if "sha256" in record.body]
            assert len(digests) == 3
            members, live = here.members.members(), here.members.tokens()
            told_of = f"{members} {live} {[one.wire() for one in members]} {[one.wire() for one in live]}"
            for token in tokens:
                assert token[-43:] not in written
                assert token[-43:] not in told_of
            for digest in digests:
                assert digest not in told_of

    asyncio.run(run())


def test_what_is_listed_says_whose_a_token_is_and_what_it_may(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.add(scopes=READ)
            [member], [token] = here.members.members(), here.members.tokens()
            at = "2026-01-02T12:00:00.000Z"
            assert member.wire() == {
                "object": "member",
                "label": "mia",
                "actor": MIA,
                "scopes": ["records:read"],
                "added_at": at,
            }
            assert token.wire() == {
                "object": "token",
                "id": token.id,
                "actor": MIA,
                "scopes": ["records:read"],
                "minted_at": at,
            }

    asyncio.run(run())


@pytest.mark.parametrize("who", ["mia", "MIA", MIA])
def test_a_members_token_may_have_less_than_the_member_and_never_more(tmp_path: Path, who: str) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.add(scopes=frozenset(("records:read", "work:run")))
            _, token = await here.members.mint(who, READ, by=OPERATOR)
            assert here.members.find(token) == Principal(MIA, READ)
            for more in ({"records:write"}, {"records:read", "config:write"}, {"admin"}, {"root"}, set()):
                with pytest.raises(InvalidBody, match="scope"):
                    await here.members.mint(who, frozenset(more), by=OPERATOR)
            assert len(here.members.tokens()) == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    "who", ["ned", "did:sync:user:ned", "did:sync:agent:mia", ENGINE, "", "did:sync:user:op"]
)
def test_nobody_who_is_not_there_is_given_a_token(tmp_path: Path, who: str) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.add()
            with pytest.raises(NotFound):
                await here.members.mint(who, READ, by=OPERATOR)

    asyncio.run(run())


@pytest.mark.parametrize("who", ["Op", OPERATOR])
@pytest.mark.parametrize("scopes", [READ, frozenset((ADMIN,)), SCOPES])
def test_the_operator_may_make_itself_a_token_with_any_scopes(
    tmp_path: Path, who: str, scopes: frozenset[str]
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            _, token = await here.members.mint(who, scopes, by=OPERATOR)
            for members in (here.members, await here.again()):
                assert members.find(token) == Principal(OPERATOR, scopes, operator=True)

    asyncio.run(run())


def test_nobody_else_makes_a_token_of_the_operators(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.add()
            told, _ = await here.members.mint(OPERATOR, READ, by=OPERATOR)
            with pytest.raises(ActorNotCovered):
                await here.members.mint(OPERATOR, READ, by=MIA)
            with pytest.raises(ActorNotCovered):
                await here.members.rotate(told.id, by=MIA)

    asyncio.run(run())


def test_a_rotated_token_is_dead_and_the_new_one_may_as_much(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.add()
            told, old = await here.members.mint("mia", READ, by=OPERATOR)
            fresh, new = await here.members.rotate(told.id, by=OPERATOR)
            for members in (here.members, await here.again()):
                assert members.find(new) == Principal(MIA, READ)
                with pytest.raises(TokenRevoked):
                    members.find(old)
            assert fresh.id != told.id
            with pytest.raises(NotFound):
                await here.members.rotate(told.id, by=OPERATOR)

    asyncio.run(run())


def test_a_revoked_token_is_dead_and_its_neighbours_are_not(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            first = await here.add()
            told, second = await here.members.mint("mia", READ, by=OPERATOR)
            assert await here.members.revoke_token(told.id, by=OPERATOR) == told
            assert here.members.find(first).actor == MIA
            with pytest.raises(TokenRevoked):
                here.members.find(second)
            for id_ in (told.id, "tok_000000000000", ""):
                with pytest.raises(NotFound):
                    await here.members.revoke_token(id_, by=OPERATOR)

    asyncio.run(run())


def test_a_token_whose_revocation_the_log_cannot_take_is_dead_at_once_and_can_be_revoked_again(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            first = await here.add()
            told, second = await here.members.mint("mia", READ, by=OPERATOR)
            here.store.full_for = TOKEN
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await here.members.revoke_token(told.id, by=OPERATOR)
                with pytest.raises(TokenRevoked):
                    here.members.find(second)
                assert told.id not in [token.id for token in here.members.tokens()]
            assert here.members.find(first).actor == MIA
            assert (await here.again()).find(second).actor == MIA
            here.store.full_for = None
            assert await here.members.revoke_token(told.id, by=OPERATOR) == told
            for members in (here.members, await here.again()):
                assert members.find(first).actor == MIA
                with pytest.raises(TokenRevoked):
                    members.find(second)

    asyncio.run(run())


@pytest.mark.parametrize(
    "change",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: token + "A",
        lambda token: token + "\n",
        lambda token: " " + token,
        lambda token: token.upper(),
        lambda token: token.replace("local", "cloud"),
        lambda token: token * 100_000,
        lambda token: token[:-1] + "é",
        lambda token: token[:-1] + "\ud800",
        lambda token: token[:-1] + "\0",
        lambda token: token[:10] + "00000000" + token[18:],
    ],
)
def test_what_is_nearly_a_token_is_unknown_and_not_quoted(tmp_path: Path, change: Any) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            token = await here.add()
            with pytest.raises(Unauthenticated) as refused:
                here.members.find(change(token))
            assert token[19:60] not in str(refused.value)

    asyncio.run(run())


def test_a_revoked_token_is_not_quoted(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            token = await here.add()
            await here.members.revoke("mia", by=OPERATOR)
            with pytest.raises(TokenRevoked) as refused:
                here.members.find(token)
            assert token[19:] not in str(refused.value)

    asyncio.run(run())


# --- a log by another hand ---


@pytest.mark.claim("K5")
@pytest.mark.parametrize("elsewhere", [{"actor": MIA}, {"actor": OPERATOR}, {"thread": CONFIG_THREAD}])
def test_only_what_the_engine_says_on_the_principals_thread_counts(
    tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.say(added(), minted(), minted(OPERATOR), **elsewhere)
            for members in (here.members, await here.again()):
                assert (members.members(), members.tokens()) == ([], [])

    asyncio.run(run())


def test_whole_records_by_another_hand_say_what_they_say(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.say(added(), minted(), minted(OPERATOR, scopes=["admin"]))
            for members in (here.members, await here.again()):
                assert members.find(bearer_of(MIA)) == Principal(MIA, READ)
                assert members.find(bearer_of(OPERATOR)).operator

    asyncio.run(run())


@pytest.mark.parametrize(
    "odd",
    [
        {"actor": None},
        {"actor": 7},
        {"actor": ENGINE},
        {"actor": "did:sync:system:mia"},
        {"actor": "mia"},
        {"actor": "did:sync:user:.."},
        {"actor": "did:sync:user:a/b"},
        {"actor": OPERATOR},
        {"actor": "did:sync:agent:op"},
        {"scopes": None},
        {"scopes": "records:read"},
        {"scopes": []},
        {"scopes": [["records:read"]]},
        {"scopes": ["records:read", "admin"]},
        {"scopes": ["records:read", "of:later"]},
        {"event": None},
        {"event": "Added"},
    ],
)
def test_an_odd_member_is_none_and_in_nobodys_way(tmp_path: Path, odd: Json) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.say(added(**odd))
            assert here.members.members() == (await here.again()).members() == []
            await here.add()

    asyncio.run(run())


@pytest.mark.parametrize(
    "odd",
    [
        {"actor": None},
        {"actor": ["did:sync:user:mia"]},
        {"actor": "did:sync:user:ned"},
        {"actor": "did:sync:agent:mia"},
        {"actor": "did:sync:user:MIA"},
        {"token": None},
        {"token": "tok_0123456789AB"},
        {"sha256": None},
        {"sha256": "a" * 63},
        {"sha256": "é" * 64},
        {"scopes": None},
        {"scopes": []},
        {"scopes": [7]},
        {"scopes": ["records:read", "work:run"]},
        {"scopes": ["admin"]},
        {"event": None},
        {"event": "Minted"},
    ],
)
def test_an_odd_token_opens_nothing_and_is_in_nobodys_way(tmp_path: Path, odd: Json) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            own = await here.add(scopes=READ)
            await here.say({**minted(), **odd})
            for members in (here.members, await here.again()):
                with pytest.raises(Unauthenticated):
                    members.find(bearer_of(MIA))
                assert members.find(own).actor == MIA
                assert len(members.tokens()) == 1

    asyncio.run(run())


@pytest.mark.parametrize("by", [None, MIA, ENGINE, "did:sync:user:op", [OPERATOR]])
def test_no_record_makes_an_operator_that_the_operator_did_not_make(tmp_path: Path, by: object) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.say(minted(OPERATOR, scopes=["admin"], by=by))
            for members in (here.members, await here.again()):
                with pytest.raises(Unauthenticated):
                    members.find(bearer_of(OPERATOR))

    asyncio.run(run())


def test_a_log_brought_to_a_home_whose_operator_has_a_members_name_makes_no_operator(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            tokens = [await here.add(), (await here.members.mint(OPERATOR, SCOPES, by=OPERATOR))[1]]
        async with opened(tmp_path, operator=MIA) as here:
            assert (here.members.members(), here.members.tokens()) == ([], [])
            for token in tokens:
                with pytest.raises(Unauthenticated):
                    here.members.find(token)

    asyncio.run(run())


def test_a_member_added_twice_holds_what_it_held(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.say(added(), added(scopes=["records:read", "work:run"]), minted(scopes=["work:run"]))
            [member] = here.members.members()
            assert (member.scopes, here.members.tokens()) == (READ, [])

    asyncio.run(run())


def test_a_dead_token_is_not_brought_to_life_by_being_minted_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            end = {"kind": TOKEN, "event": "revoked", "token": "tok_0123456789ab"}
            other = minted(sha256="a" * 64)
            await here.say(added(), minted(), end, minted(), minted(token="tok_cccccccccccc"), other)
            for members in (here.members, await here.again()):
                with pytest.raises(TokenRevoked):
                    members.find(bearer_of(MIA))

    asyncio.run(run())


def test_an_event_of_a_later_release_only_takes_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            tokens = [await here.add("mia"), await here.add("ned")]
            [_, of_ned] = here.members.tokens()
            await here.say(
                {"kind": MEMBER, "event": "suspended", "actor": MIA},
                {"kind": TOKEN, "event": "narrowed", "token": of_ned.id},
            )
            for members in (here.members, await here.again()):
                for token in tokens:
                    with pytest.raises(TokenRevoked):
                        members.find(token)
                assert labels(members) == ["ned"]

    asyncio.run(run())


def test_what_is_written_while_a_long_log_is_read_is_taken_in_in_its_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as here:
            await here.say(*[{"kind": "core.engine.later.v1"}] * 2500)
            await here.add("ned")
            reading = asyncio.ensure_future(here.again())
            tokens = []
            while not reading.done():
                tokens.append(await here.add())
                await here.members.revoke("mia", by=OPERATOR)
            tokens.append(await here.add())
            members = await reading
            assert members.members() == here.members.members()
            assert members.tokens() == here.members.tokens()
            assert members.find(tokens.pop()).actor == MIA
            for token in tokens:
                with pytest.raises(TokenRevoked):
                    members.find(token)

    asyncio.run(run())
