"""Which scope each route needs: all the others together do not do, and that one alone does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from spl.kernel import names
from spl.kernel.principals import (
    ADMIN,
    CONFIG_WRITE,
    METRICS_READ,
    RECORDS_READ,
    RECORDS_WRITE,
    SCOPES,
    WORK_RUN,
)
from tests.api.described import operations
from tests.api.served import Served, serve
from tests.kernel.instance import OPERATOR, TRANSPORT, says

if TYPE_CHECKING:
    from pathlib import Path


class Row(NamedTuple):
    """A route, the scope it needs, and a request of it."""

    method: str
    route: str
    scope: str
    body: dict[str, Any] | None = None

    @property
    def path(self) -> str:
        """A path of the route; there is nothing at it."""
        filled = {"{id}": "x", "{thread}": "th_x", "{label}": "x", "{name}": "x"}
        path = self.route
        for place, value in filled.items():
            path = path.replace(place, value)
        return path


RECORD = {"thread": "th_x", "actor": OPERATOR, "act": "KNOW", "body": {"a": 1}}
TRANSPORT_BODY = {"kind": names.CONFIG, "topic": TRANSPORT, "transport": "sandboxed"}
CONFIG = {"thread": names.CONFIG_THREAD, "actor": names.ENGINE, "act": "LEARN", "body": TRANSPORT_BODY}
TIER = {**CONFIG, "body": {"kind": names.TIER, "tier": "trial", "max_turns": 4}}
GOAL = {"goal": "x"}

ROWS = [
    Row("POST", "/v1/records", RECORDS_WRITE, RECORD),
    Row("POST", "/v1/records", CONFIG_WRITE, CONFIG),
    Row("POST", "/v1/records", CONFIG_WRITE, TIER),
    Row("GET", "/v1/records", RECORDS_READ),
    Row("POST", "/v1/records/query", RECORDS_READ, {"filter": {}}),
    Row("GET", "/v1/records/{id}", RECORDS_READ),
    Row("GET", "/v1/threads", RECORDS_READ),
    Row("GET", "/v1/threads/{thread}/records", RECORDS_READ),
    Row("POST", "/v1/work/loop", WORK_RUN, GOAL),
    Row("POST", "/v1/work/loop/preview", WORK_RUN, GOAL),
    Row("POST", "/v1/work/loop/{thread}/cancel", WORK_RUN),
    Row("GET", "/v1/runs", RECORDS_READ),
    Row("GET", "/v1/runs/{thread}", RECORDS_READ),
    Row("POST", "/v1/runs/{thread}/events", WORK_RUN, {"type": "stop"}),
    Row("POST", "/v1/provider/check", ADMIN, {}),
    Row("GET", "/v1/rules", CONFIG_WRITE),
    Row("GET", "/v1/tiers", RECORDS_READ),
    Row("POST", "/v1/members", ADMIN, {"label": "eve"}),
    Row("GET", "/v1/members", ADMIN),
    Row("DELETE", "/v1/members/{label}", ADMIN),
    Row("POST", "/v1/tokens", ADMIN, {}),
    Row("GET", "/v1/tokens", ADMIN),
    Row("POST", "/v1/tokens/{id}/rotate", ADMIN),
    Row("DELETE", "/v1/tokens/{id}", ADMIN),
    Row("GET", "/v1/profiles", CONFIG_WRITE),
    Row("GET", "/v1/profiles/{name}", CONFIG_WRITE),
    Row("GET", "/metrics", METRICS_READ),
]
ANYONES = {("GET", "/health"), ("GET", "/openapi.json"), ("GET", "/v1/engine/health")}
STREAMS = {("GET", "/v1/watch"), ("GET", "/v1/threads/{thread}/watch"), ("GET", "/v1/engine/watch")}
"""Answers without an end: tests/api/test_watching.py and test_engine.py ask for them."""


def test_every_route_has_its_row() -> None:
    routes = {(operation.method, operation.path) for operation in operations()}
    assert {(row.method, row.route) for row in ROWS} | ANYONES | STREAMS == routes


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.route} {row.scope}")
def test_all_scopes_but_the_one_are_refused_and_change_nothing_and_the_one_alone_does(
    tmp_path: Path, row: Row
) -> None:
    async def talk(served: Served) -> None:
        without, alone = await served.token(*SCOPES - {row.scope, ADMIN}), await served.token(row.scope)
        before = await served.here.store.count()
        assert (await served.ask(row.method, row.path, row.body, bearer=None)).refusal == (
            401,
            "UNAUTHENTICATED",
        )
        denied = await served.ask(row.method, row.path, row.body, bearer=without)
        assert denied.refusal == (403, "SCOPE_DENIED")
        assert repr(row.scope) in denied.json["message"]
        assert await served.here.store.count() == before
        assert served.here.kernel.live == {}
        answer = await served.ask(row.method, row.path, row.body, bearer=alone)
        assert answer.status not in (401, 403, 405, 422, 500), answer.body

    serve(tmp_path, talk, says("Done."))


@pytest.mark.parametrize("path", sorted(path for _, path in ANYONES))
def test_health_is_for_anyone_who_is_known(tmp_path: Path, path: str) -> None:
    async def talk(served: Served) -> None:
        assert (await served.ask("GET", path, bearer=await served.member("mia", RECORDS_WRITE))).status == 200

    serve(tmp_path, talk)


@pytest.mark.claim("K5")
def test_a_member_with_every_scope_there_is_for_members_writes_as_itself_and_configures_as_the_engine_alone(
    tmp_path: Path,
) -> None:
    async def talk(served: Served) -> None:
        mia = await served.member("mia", *SCOPES - {ADMIN})

        async def wrote(**fields: object) -> tuple[int, str | None]:
            answer = await served.ask("POST", "/v1/records", {**RECORD, **fields}, bearer=mia)
            return answer.status, answer.json.get("code")

        assert await wrote(actor="did:sync:user:mia") == (201, None)
        for actor in (OPERATOR, names.ENGINE):
            assert await wrote(actor=actor) == (403, "ACTOR_NOT_COVERED")
        for kind in (names.OUTCOME, names.MEMBER, names.TOKEN, names.TOOL_VERDICT):
            assert await wrote(actor="did:sync:user:mia", body={"kind": kind}) == (403, "KIND_RESERVED")
        assert await wrote(**CONFIG) == (201, None)
        assert (await served.ask("GET", "/v1/members", bearer=mia)).refusal == (403, "SCOPE_DENIED")

    serve(tmp_path, talk)
