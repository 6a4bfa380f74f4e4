from __future__ import annotations

import pytest

from spl.errors import ActorNotCovered, InvalidBody, RunActorNotCovered, ScopeDenied
from spl.kernel.names import ENGINE
from spl.kernel.principals import ADMIN, SCOPES, Principal, operator_did

ADMINISTRATOR = Principal("did:sync:user:op", frozenset((ADMIN,)), operator=True)
LIMITED = Principal("did:sync:user:op", frozenset(("records:read",)), operator=True)
MIA = Principal("did:sync:user:mia", frozenset(("work:run",)))


def test_admin_holds_every_scope_and_others_their_own() -> None:
    ADMINISTRATOR.require("config:write")
    MIA.require("work:run")
    with pytest.raises(ScopeDenied, match="'config:write'"):
        MIA.require("config:write")


def test_only_admin_writes_or_runs_as_someone_else() -> None:
    ADMINISTRATOR.writes_as("did:sync:user:mia")
    ADMINISTRATOR.runs_as("did:sync:user:mia")
    MIA.writes_as("did:sync:user:mia")
    MIA.runs_as("did:sync:user:mia")
    with pytest.raises(ActorNotCovered):
        MIA.writes_as("did:sync:user:op")
    with pytest.raises(RunActorNotCovered):
        MIA.runs_as("did:sync:user:op")


def test_an_operators_token_without_admin_reads_everything_and_speaks_for_the_operator_alone() -> None:
    assert (ADMINISTRATOR.sees, LIMITED.sees, MIA.sees) == (None, None, "did:sync:user:mia")
    LIMITED.require("records:read")
    for scope in SCOPES - {"records:read"}:
        with pytest.raises(ScopeDenied, match=scope):
            LIMITED.require(scope)
    LIMITED.writes_as("did:sync:user:op")
    LIMITED.runs_as("did:sync:user:op")
    with pytest.raises(ActorNotCovered):
        LIMITED.writes_as("did:sync:user:mia")
    with pytest.raises(RunActorNotCovered):
        LIMITED.runs_as("did:sync:user:mia")


@pytest.mark.claim("K5")
def test_nobody_writes_as_the_engine() -> None:
    with pytest.raises(ActorNotCovered):
        ADMINISTRATOR.writes_as(ENGINE)


@pytest.mark.parametrize(
    "actor",
    [
        ENGINE,
        "mia",
        "did:sync:user:",
        "did:sync:user:a/b",
        "did:sync:user:..",
        "did:sync:user:mia\n",
        "did:key:z6M",
        "did:sync:user:a\0",
    ],
)
def test_a_run_is_for_a_user_or_an_agent(actor: str) -> None:
    with pytest.raises(InvalidBody):
        ADMINISTRATOR.runs_as(actor)


def test_a_login_name_becomes_an_actor_that_may_run() -> None:
    assert operator_did("ann.b") == "did:sync:user:ann.b"
    odd = operator_did("DOM\\ann é")
    assert odd == "did:sync:user:DOM_ann__"
    ADMINISTRATOR.runs_as(odd)
