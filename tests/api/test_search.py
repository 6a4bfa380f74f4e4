"""Searching by a filter: what the route takes and gives, to whom, and how much."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spl.api import answers, operator
from tests.api.served import TOKEN, Served, serve
from tests.kernel.instance import OPERATOR

if TYPE_CHECKING:
    from pathlib import Path

KIND = "acme.note.text.v1"


async def write(served: Served, *bodies: dict[str, Any], thread: str = "th_x") -> list[str]:
    """Write records as the operator; gives their ids."""
    found = []
    for body in bodies:
        record = {"thread": thread, "actor": OPERATOR, "act": "KNOW", "body": body}
        found.append((await served.ask("POST", "/v1/records", record)).json["id"])
    return found


async def search(served: Served, filter_: object, *, bearer: str = TOKEN, **more: object) -> Any:
    """Search; gives the answer, which is a listing."""
    answer = await served.ask("POST", "/v1/records/query", {"filter": filter_, **more}, bearer=bearer)
    assert answer.status == 200, answer.body
    return answer.json


def numbers(listing: Any) -> list[int]:
    """Give the numbers of a listing's bodies."""
    return [record["body"]["n"] for record in listing["data"]]


def test_a_search_is_answered_with_a_listing_of_records(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        [id_, _] = await write(served, {"n": 1, "kind": KIND}, {"n": 2})
        answer = await search(served, {"body.n": 1})
        one = (await served.ask("GET", f"/v1/records/{id_}")).json
        assert answer == {"object": "list", "data": [one], "has_more": False}
        assert await search(served, {"body.n": 3}) == {"object": "list", "data": [], "has_more": False}

    serve(tmp_path, talk)


def test_a_search_is_for_a_thread_sorted_and_in_pages(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        await write(served, *({"n": n % 7, "m": n} for n in range(10)))
        await write(served, {"n": 99}, thread="th_y")
        assert numbers(await search(served, {}, thread="th_y")) == [99]
        falling = await search(served, {"body.m": {"$gte": 7}}, thread="th_x", sort={"body.n": -1})
        assert numbers(falling) == [2, 1, 0]
        found: list[int] = []
        while True:
            page = await search(served, {}, sort={"body.n": 1, "body.m": -1}, limit=4, offset=len(found))
            found += [record["body"].get("m", 99) for record in page["data"]]
            if not page["has_more"]:
                break
        assert found == [7, 0, 8, 1, 9, 2, 3, 4, 5, 6, 99]

    serve(tmp_path, talk)


def test_a_page_ends_where_its_text_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (operator, answers):
        monkeypatch.setattr(module, "PAGE_BYTES", 10_000)

    async def talk(served: Served) -> None:
        await write(served, *({"n": n, "text": "x" * 4000} for n in range(7)))
        found: list[int] = []
        sizes = []
        while True:
            page = await search(served, {}, sort={"body.n": -1}, offset=len(found))
            sizes.append(len(page["data"]))
            found += numbers(page)
            if not page["has_more"]:
                break
        assert (found, sizes) == ([6, 5, 4, 3, 2, 1, 0], [3, 3, 1])

    serve(tmp_path, talk)


def test_a_plan_is_told_where_it_is_asked_for(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        await write(served, {"n": 1, "kind": KIND})
        asked = {"body.kind": KIND, "body.secret'name": "a secret"}
        plan = (await search(served, asked, thread="th_x", explain=True))["plan"]
        assert set(plan) == {"sql", "indexed", "steps"}
        assert plan["sql"] == "(thread = ?) AND ((kind = ?) AND (json_extract(body, ?, ?) = ?))"
        assert plan["indexed"] == ["body.kind", "thread"]
        assert "secret" not in str(plan)
        assert "plan" not in await search(served, asked, explain=False)

    serve(tmp_path, talk)


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ({}, "MISSING_FIELD", "filter"),
        ({"filter": None}, "INVALID_BODY", "filter"),
        ({"filter": []}, "INVALID_BODY", "filter"),
        ({"filter": {"body.x": {"$gt": None}}}, "INVALID_BODY", "filter.body.x.$gt: "),
        ({"filter": {}, "sort": {"body.x": 2}}, "INVALID_BODY", "sort.body.x: "),
        ({"filter": {}, "sort": ["clock"]}, "INVALID_BODY", "sort"),
        ({"filter": {}, "limit": 0}, "INVALID_BODY", "limit"),
        ({"filter": {}, "limit": 1001}, "INVALID_BODY", "limit"),
        ({"filter": {}, "limit": "5"}, "INVALID_BODY", "limit"),
        ({"filter": {}, "offset": -1}, "INVALID_BODY", "offset"),
        ({"filter": {}, "offset": 10_001}, "INVALID_BODY", "offset"),
        ({"filter": {}, "thread": 5}, "INVALID_BODY", "thread"),
        ({"filter": {}, "explain": 1}, "INVALID_BODY", "explain"),
        ({"filter": {}, "select": ["body"]}, "INVALID_BODY", "select"),
        ({"filter": {}, "group_by": ["actor"]}, "INVALID_BODY", "group_by"),
    ],
)
def test_what_is_no_search_is_refused_by_its_field(tmp_path: Path, body: Any, code: str, said: str) -> None:
    async def talk(served: Served) -> None:
        answer = await served.ask("POST", "/v1/records/query", body)
        assert answer.refusal == (400 if code == "MISSING_FIELD" else 422, code)
        assert said in answer.json["message"]

    serve(tmp_path, talk)


def test_a_member_finds_what_stands_on_its_own_threads_whatever_it_asks(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        mia = await served.member("mia")
        [theirs] = await write(served, {"n": 1, "kind": KIND}, thread="th_theirs")
        own = {"thread": "th_own", "actor": "did:sync:user:mia", "act": "KNOW", "body": {"n": 2}}
        assert (await served.ask("POST", "/v1/records", own, bearer=mia)).status == 201
        asked: list[dict[str, Any]] = [
            {},
            {"$or": [{"thread": "th_theirs"}, {"body.n": {"$gt": 0}}]},
            {"$not": {"thread": "th_own_not"}},
            {"thread": {"$in": ["th_theirs", "th_own"]}},
            {"$or": [{"id": theirs}, {"thread": "th_own"}]},
        ]
        for filter_ in asked:
            for explain in (False, True):
                found = await search(served, filter_, bearer=mia, explain=explain)
                assert [record["thread"] for record in found["data"]] == ["th_own"], filter_
        for filter_, thread in (({"id": theirs}, None), ({}, "th_theirs"), ({"body.kind": KIND}, None)):
            answer = await search(served, filter_, bearer=mia, thread=thread)
            assert (answer["data"], answer["has_more"]) == ([], False)

    serve(tmp_path, talk)


def test_a_search_that_takes_too_long_is_refused_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "_MEMBERS_SEARCH_SECONDS", 0.001)

    async def talk(served: Served) -> None:
        mia = await served.member("mia")
        own = {"thread": "th_own", "actor": "did:sync:user:mia", "act": "KNOW"}
        for n in range(10):
            body = {"n": n, "text": "a" * 15_000}
            assert (await served.ask("POST", "/v1/records", {**own, "body": body}, bearer=mia)).status == 201
        slow = {"$or": [{"body.text": {"$ilike": f"%{'a' * 200}{n}%"}} for n in range(20)]}
        refused, listed = await asyncio.gather(
            served.ask("POST", "/v1/records/query", {"filter": slow}, bearer=mia),
            served.ask("GET", "/v1/records", bearer=mia),
        )
        assert refused.refusal == (422, "QUERY_EXCEEDED")
        assert refused.json["message"].startswith("the query takes over 0.001 seconds of the log's time")
        assert len(listed.json["data"]) == 10
        # The operator's has longer.
        assert await search(served, slow) == {"object": "list", "data": [], "has_more": False}

    serve(tmp_path, talk)
