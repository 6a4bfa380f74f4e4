from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from starlette.requests import Request

from spl.api.authentication import Authenticator, bearer
from spl.api.peer import Peer, peer
from spl.errors import Unauthenticated
from tests.api.served import TOKEN, Served, serve
from tests.kernel.instance import OPERATOR

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("BEARER  abc ", "abc"),
        ("Bearer", ""),
        ("", ""),
        ("Basic abc", ""),
        ("abc", ""),
        ("Bearer\tabc", ""),
        ("Bearer abc\xa0", "abc\xa0"),
    ],
)
def test_the_token_of_a_header(header: str, token: str) -> None:
    assert bearer(header) == token


def test_no_header_has_no_token_and_two_have_none_that_is_anyones() -> None:
    assert bearer() is None
    assert bearer("Bearer abc", "Bearer abc") == ""
    assert bearer("Basic x", "Bearer abc") == ""


@pytest.mark.claim("M1")
def test_tcp_needs_the_bearer_and_the_operators_socket_does_not(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        assert (await served.ask("GET", "/v1/runs")).status == 200
        answer = await served.ask("GET", "/v1/runs", bearer=None)
        assert answer.refusal == (401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await served.ask("GET", "/v1/runs", bearer=None, on="operator")).status == 200

    serve(tmp_path, talk)


@pytest.mark.claim("M1")
@pytest.mark.parametrize(
    "header",
    ["Bearer wrong", "Bearer", "Bearer ", "", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \xff"],
)
def test_a_wrong_bearer_is_refused_wherever_it_is_presented(tmp_path: Path, header: str) -> None:
    async def talk(served: Served) -> None:
        for on in ("tcp", "operator"):
            answer = await served.ask(
                "GET", "/v1/runs", bearer=None, headers={"authorization": header}, on=on
            )
            assert answer.refusal == (401, "UNAUTHENTICATED")
            assert TOKEN not in answer.json["message"]

    serve(tmp_path, talk)


@pytest.mark.claim("M1")
def test_a_token_is_taken_as_x_api_key_too_and_never_where_it_is_in_doubt_which_is_meant(
    tmp_path: Path,
) -> None:
    async def talk(served: Served) -> None:
        mia = await served.member()
        for token, status in ((TOKEN, 200), (mia, 403), ("wrong", 401)):
            answer = await served.ask("GET", "/v1/members", bearer=None, headers={"x-api-key": token})
            assert answer.status == status
            assert token not in answer.body.decode()

        async def whose(*headers: tuple[str, str]) -> int:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
            request = f"GET /v1/members HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n"
            return int((await served.raw(request.encode("latin-1"), on="operator")).split()[1])

        key, bearer_ = ("X-API-Key", TOKEN), ("Authorization", f"Bearer {TOKEN}")
        assert [await whose(key), await whose(bearer_), await whose(key, bearer_)] == [200] * 3
        # The member is known, and lacks the scope.
        of_mia = ("x-api-key", mia)
        assert await whose(of_mia) == 403
        assert await whose(of_mia, ("authorization", f"Bearer {mia}")) == 403
        for headers in (
            (of_mia, bearer_),
            (key, ("authorization", f"Bearer {mia}")),
            (key, key),
            (of_mia, key),
            (bearer_, bearer_, key),
            (key, ("authorization", "Basic x")),
            (key, ("authorization", "")),
            (("x-api-key", ""),),
            (("x-api-key", ""), bearer_),
            (("x-api-key", f"Bearer {TOKEN}"),),
            (("x-api-key", f"{TOKEN}x"),),
            (("x-api-key", "\xff"), bearer_),
        ):
            assert await whose(*headers) == 401, headers

    serve(tmp_path, talk)


def test_the_workers_doors_know_no_x_api_key(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        run = await served.here.open()
        credential = served.entrust(run)
        asked = await served.ask(
            "GET", "/v1/worker/run", bearer=None, headers={"x-api-key": credential}, on="worker"
        )
        assert asked.refusal == (401, "UNAUTHENTICATED")
        assert (await served.ask("GET", "/v1/worker/run", bearer=credential, on="worker")).status == 200

    serve(tmp_path, talk)


@pytest.mark.claim("M1")
def test_without_a_bearer_only_the_daemons_own_user_on_a_unix_socket_is_the_operator(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        authenticator = Authenticator(OPERATOR, TOKEN, served.here.kernel.members, rotated=lambda: "")
        request = Request({"type": "http", "headers": []})
        uid = os.geteuid()
        assert authenticated(authenticator, request, Peer("unix", 1, uid, uid, 0)) == OPERATOR
        for other in (
            Peer("unix", 1, uid + 1, uid, 0),
            Peer("tcp", None, None, None, 0),
            Peer("tcp", 1, uid, uid, 0),
        ):
            with pytest.raises(Unauthenticated):
                authenticated(authenticator, request, other)

    serve(tmp_path, talk)


def authenticated(authenticator: Authenticator, request: Request, other: Peer) -> str:
    """Give whom a peer is taken for."""
    token = peer.set(other)
    try:
        return authenticator.principal(request).actor
    finally:
        peer.reset(token)


def test_a_refused_write_or_start_writes_nothing(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        record = {"thread": "th_x", "actor": OPERATOR, "act": "KNOW", "body": {}}
        for path, body in (("/v1/records", record), ("/v1/work/loop", {"goal": "x"})):
            assert (await served.ask("POST", path, body, bearer="wrong")).refusal == (401, "UNAUTHENTICATED")
            assert (await served.ask("POST", path, b"{", bearer="wrong")).refusal == (401, "UNAUTHENTICATED")
        assert await served.here.store.count() == 0

    serve(tmp_path, talk)


def test_liveness_needs_nobody_and_the_engines_health_does(tmp_path: Path) -> None:
    async def talk(served: Served) -> None:
        answer = await served.ask("GET", "/health", bearer=None)
        assert (answer.status, answer.json) == (200, {"status": "ok"})
        assert (await served.ask("GET", "/v1/engine/health", bearer=None)).refusal == (401, "UNAUTHENTICATED")

    serve(tmp_path, talk)
