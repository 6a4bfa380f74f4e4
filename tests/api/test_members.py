from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from spl.kernel.principals import SCOPES
from tests.api.served import ROTATED, TOKEN, Served, serve
from tests.kernel.instance import OPERATOR, says

if TYPE_CHECKING:
    from pathlib import Path

MIA = "did:sync:user:mia"
USUAL = ["records:read", "records:write", "work:run"]


async def listed(served: Served, what: str) -> list[dict[str, Any]]:
    """Give what is listed of members or tokens; the operator's own token, which is always there, left out."""
    answer = await served.ask("GET", f"/v1/{what}")
    assert (answer.status, answer.json["object"], answer.json["has_more"]) == (200, "list", False)
    return [each for each in answer.json["data"] if each.get("id") != "operator"]


def test_a_member_is_added_listed_and_revoked(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        added = await served.ask("POST", "/v1/members", {"label": "mia", "tier": "paid"})
        assert added.status == 201
        said = added.json
        secret, token_id = said.pop("token"), said.pop("token_id")
        assert {name: said[name] for name in ("object", "label", "actor", "tier", "scopes")} == {
            "object": "member",
            "label": "mia",
            "actor": MIA,
            "tier": "paid",
            "scopes": USUAL,
        }
        assert await listed(served, "members") == [said]
        assert [each["id"] for each in await listed(served, "tokens")] == [token_id]
        assert (await served.ask("GET", "/v1/runs", bearer=secret)).status == 200

        gone = await served.ask("DELETE", "/v1/members/mia")
        assert (gone.status, gone.json) == (200, {**said, "revoked": True, "stopped": []})
        assert await listed(served, "members") == await listed(served, "tokens") == []
        for on in ("tcp", "operator"):
            dead = await served.ask("GET", "/v1/runs", bearer=secret, on=on)
            assert dead.refusal == (401, "TOKEN_REVOKED")
            assert dead.headers["www-authenticate"] == "Bearer"
        assert (await served.ask("DELETE", "/v1/members/mia")).refusal == (404, "NOT_FOUND")

    serve(tmp_path, talk)


def test_an_agent_is_a_member_with_an_actor_of_its_own_kind(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        said = (await served.ask("POST", "/v1/members", {"label": "bot", "agent": True})).json
        assert (said["actor"], said["tier"]) == ("did:sync:agent:bot", "trial")
        taken = await served.ask("POST", "/v1/members", {"label": "BOT"})
        assert taken.refusal == (409, "MEMBER_EXISTS")

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, (400, "MISSING_FIELD")),
        ({"label": ""}, (422, "INVALID_BODY")),
        ({"label": 7}, (422, "INVALID_BODY")),
        ({"label": "../mia"}, (422, "INVALID_BODY")),
        ({"label": "op"}, (422, "INVALID_BODY")),
        ({"label": "mia", "tier": "operator"}, (422, "INVALID_BODY")),
        ({"label": "mia", "tier": "gold"}, (422, "INVALID_BODY")),
        ({"label": "mia", "tier": None}, (422, "INVALID_BODY")),
        ({"label": "mia", "scopes": []}, (422, "INVALID_BODY")),
        ({"label": "mia", "scopes": ["admin"]}, (422, "INVALID_BODY")),
        ({"label": "mia", "scopes": ["records:erase"]}, (422, "INVALID_BODY")),
        ({"label": "mia", "scopes": "work:run"}, (422, "INVALID_BODY")),
        ({"label": "mia", "agent": "yes"}, (422, "INVALID_BODY")),
        ({"label": "mia", "token": "mine"}, (422, "INVALID_BODY")),
        ([], (422, "INVALID_BODY")),
    ],
)
def test_a_member_that_cannot_be_is_refused_and_none_is_added(
    tmp_path: Path, body: object, refusal: tuple[int, str]
) -> None:
    async def talk(served: Served) -> None:
        assert (await served.ask("POST", "/v1/members", body)).refusal == refusal
        assert await served.here.store.count() == 0
        assert await listed(served, "members") == []

    serve(tmp_path, talk)


def test_a_token_is_minted_rotated_and_revoked(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        await served.member()
        minted = await served.ask("POST", "/v1/tokens", {"label": "mia", "scopes": ["records:read"]})
        assert (minted.status, minted.json["actor"], minted.json["scopes"]) == (201, MIA, ["records:read"])
        narrow = minted.json["token"]
        assert (await served.ask("GET", "/v1/runs", bearer=narrow)).status == 200
        start = await served.ask("POST", "/v1/work/loop", {"goal": "x"}, bearer=narrow)
        assert start.refusal == (403, "SCOPE_DENIED")

        path = f"/v1/tokens/{minted.json['id']}"
        rotated = await served.ask("POST", f"{path}/rotate")
        assert (rotated.status, rotated.json["scopes"]) == (201, ["records:read"])
        assert rotated.json["id"] != minted.json["id"]
        assert (await served.ask("GET", "/v1/runs", bearer=narrow)).refusal == (401, "TOKEN_REVOKED")
        assert (await served.ask("GET", "/v1/runs", bearer=rotated.json["token"])).status == 200

        gone = await served.ask("DELETE", f"/v1/tokens/{rotated.json['id']}")
        assert (gone.status, gone.json["revoked"]) == (200, True)
        again = await served.ask("GET", "/v1/runs", bearer=rotated.json["token"])
        assert again.refusal == (401, "TOKEN_REVOKED")
        for method, dead in (("POST", f"{path}/rotate"), ("DELETE", path)):
            assert (await served.ask(method, dead)).refusal == (404, "NOT_FOUND")
        # The member's first is untouched by all that.
        assert len(await listed(served, "tokens")) == 1

    serve(tmp_path, talk)


def test_a_token_for_the_operator_has_what_it_is_given_and_all_of_it_by_default(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        whole = (await served.ask("POST", "/v1/tokens", {})).json
        assert (whole["actor"], whole["scopes"]) == (OPERATOR, sorted(SCOPES))
        reader = await served.token("records:read")
        # It reads everything still, and does nothing else.
        run = await served.here.open(actor=OPERATOR)
        assert (await served.ask("GET", f"/v1/runs/{run.terms.thread}", bearer=reader)).status == 200
        for method, path in (("GET", "/v1/members"), ("POST", "/v1/tokens"), ("POST", "/v1/work/loop")):
            asked = await served.ask(method, path, {"goal": "x"} if "loop" in path else {}, bearer=reader)
            assert asked.refusal == (403, "SCOPE_DENIED")

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"label": "nobody"}, (404, "NOT_FOUND")),
        ({"label": "mia", "scopes": ["admin"]}, (422, "INVALID_BODY")),
        ({"label": "mia", "scopes": ["config:write"]}, (422, "INVALID_BODY")),
        ({"label": "mia", "scopes": []}, (422, "INVALID_BODY")),
        ({"scopes": ["all"]}, (422, "INVALID_BODY")),
        ({"actor": MIA}, (422, "INVALID_BODY")),
    ],
)
def test_a_token_that_cannot_be_is_refused_and_none_is_made(
    tmp_path: Path, body: dict[str, Any], refusal: tuple[int, str]
) -> None:
    async def talk(served: Served) -> None:
        await served.member()
        before = await listed(served, "tokens")
        assert (await served.ask("POST", "/v1/tokens", body)).refusal == refusal
        assert await listed(served, "tokens") == before

    serve(tmp_path, talk)


def test_the_operators_own_token_is_rotated_and_cannot_be_taken_away(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        tokens = (await served.ask("GET", "/v1/tokens")).json["data"]
        assert [(each["id"], each["actor"]) for each in tokens] == [("operator", OPERATOR)]
        assert (await served.ask("DELETE", "/v1/tokens/operator")).refusal == (404, "NOT_FOUND")
        rotated = await served.ask("POST", "/v1/tokens/operator/rotate")
        assert (rotated.status, rotated.json["token"]) == (201, ROTATED)
        assert (await served.ask("GET", "/v1/runs")).refusal == (401, "TOKEN_REVOKED")
        assert (await served.ask("GET", "/v1/runs", bearer=ROTATED)).status == 200
        assert (await served.ask("GET", "/v1/runs", bearer=None, on="operator")).status == 200

    serve(tmp_path, talk)


@pytest.mark.parametrize("how", ["member", "token", "rotation"])
def test_a_members_bearer_that_dies_while_a_body_is_waited_for_does_nothing_with_it(
    tmp_path: Path, how: str
) -> None:
    async def talk(served: Served) -> None:
        mia = await served.member()
        ((_, token),) = [(each["actor"], each["id"]) for each in await listed(served, "tokens")]
        record = {"thread": "th_late", "actor": MIA, "act": "KNOW", "body": {}}
        sends = [
            await served.hold("/v1/records", record, mia),
            await served.hold("/v1/work/loop", {"goal": "x"}, mia),
        ]
        method, path = {
            "member": ("DELETE", "/v1/members/mia"),
            "token": ("DELETE", f"/v1/tokens/{token}"),
            "rotation": ("POST", f"/v1/tokens/{token}/rotate"),
        }[how]
        assert (await served.ask(method, path)).status in (200, 201)
        before = await served.here.store.count()
        for send in sends:
            answer = await send()
            assert answer.startswith(b"HTTP/1.1 401 ")
            assert b"TOKEN_REVOKED" in answer
        assert await served.here.store.count() == before

    serve(tmp_path, talk)


def test_the_operators_token_that_is_rotated_while_a_body_is_waited_for_makes_nobody(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        sends = [
            await served.hold("/v1/tokens", {"scopes": ["admin"]}, TOKEN),
            await served.hold("/v1/members", {"label": "eve"}, TOKEN),
        ]
        assert (await served.ask("POST", "/v1/tokens/operator/rotate")).status == 201
        for send in sends:
            answer = await send()
            assert answer.startswith(b"HTTP/1.1 401 ")
            assert b"TOKEN_REVOKED" in answer
        assert await served.here.store.count() == 0

    serve(tmp_path, talk)


def test_a_body_that_is_held_back_is_taken_from_a_bearer_that_still_lives(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        record = {"thread": "th_slow", "actor": MIA, "act": "KNOW", "body": {}}
        send = await served.hold("/v1/records", record, await served.member())
        assert (await send()).startswith(b"HTTP/1.1 201 ")

    serve(tmp_path, talk)


@pytest.mark.claim("M1")
def test_a_members_token_makes_a_member_on_the_operators_socket_too(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        mia = await served.member()
        assert (await served.ask("GET", "/v1/members", bearer=None, on="operator")).status == 200
        asked = await served.ask("GET", "/v1/members", bearer=mia, on="operator")
        assert asked.refusal == (403, "SCOPE_DENIED")

    serve(tmp_path, talk)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_route_of_members_and_tokens_takes_no_query(tmp_path: Path, method: str) -> None:
    async def talk(served: Served) -> None:
        for what in ("members", "tokens"):
            asked = await served.ask(method, f"/v1/{what}?limit=1", {"label": "mia"})
            assert asked.refusal == (422, "INVALID_BODY")

    serve(tmp_path, talk)


def test_no_token_stands_in_an_answer_but_the_one_that_tells_it_nor_in_the_log_nor_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    planted: list[str] = []
    answers: list[bytes] = []

    async def talk(served: Served) -> None:
        secrets = [await served.member(), await served.token("records:read")]
        (held, _) = await listed(served, "tokens")
        secrets.append((await served.ask("POST", f"/v1/tokens/{held['id']}/rotate")).json["token"])
        for bearer in (TOKEN, *secrets, secrets[0][:-1], secrets[0] + "x"):
            for method, path, body in (
                ("GET", "/v1/members", None),
                ("GET", "/v1/tokens", None),
                ("GET", "/v1/records", None),
                ("GET", "/v1/engine/health", None),
                ("POST", "/v1/work/loop/preview", {"goal": "x"}),
                ("POST", "/v1/work/loop", {"goal": "x"}),
                ("POST", "/v1/members", {"label": "mia"}),
                ("GET", "/v1/no/such", None),
                ("GET", "/v1/runs?actor=x", None),
            ):
                answers.append((await served.ask(method, path, body, bearer=bearer)).body)
        await served.ask("DELETE", "/v1/members/mia")
        answers.append((await served.ask("GET", "/v1/runs", bearer=secrets[2])).body)
        told = [json.dumps(record.wire()).encode() for record in await served.here.store.select(limit=1000)]
        planted.extend((TOKEN, *secrets))
        answers.extend(told)

    serve(tmp_path, talk, says("Done."))

    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    said = [caplog.text.encode(), *(each.encode() for each in capfd.readouterr())]
    assert len(planted) == len(set(planted)) == 4
    for secret in planted:
        assert not [text for text in (*answers, *files, *said) if os.fsencode(secret) in text]
