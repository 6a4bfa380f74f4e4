from __future__ import annotations

import json
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import DaemonUnreachable, MemberExists, NotFound
from tests.server import error

if TYPE_CHECKING:
    from spl.home import Home
    from tests.cli.conftest import Spl
    from tests.server import Daemon

SECRET = f"spl_local_0123abcd_{'s' * 43}"
MEMBER = {"object": "member", "label": "mia", "actor": "did:sync:user:mia", "tier": "paid",
          "scopes": ["records:read", "work:run"], "added_at": "2026-01-01T00:00:00.000Z"}  # fmt: skip
ADDED = {**MEMBER, "token_id": "tok_1", "token": SECRET}
TOKEN = {
    "object": "token",
    "id": "tok_1",
    "actor": "did:sync:user:mia",
    "scopes": ["work:run"],
    "minted_at": "2026-01-01T00:00:00.000Z",
}
MINTED = {**TOKEN, "token": SECRET}


def listing(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": list(rows), "has_more": False}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ((), {}),
        (("--tier", "paid", "--agent"), {"tier": "paid", "agent": True}),
        (("--scope", "work:run", "--scope", "records:read"), {"scopes": ["work:run", "records:read"]}),
    ],
)
def test_a_member_is_added_as_asked_and_its_token_stands_in_the_answer(
    spl: Spl, daemon: Daemon, options: tuple[str, ...], asked: dict[str, object]
) -> None:
    daemon.routes["POST /v1/members"] = ADDED
    ended = spl("member", "add", "mia", *options)
    assert (ended.returncode, ended.stderr, json.loads(ended.stdout)) == (0, "", ADDED)
    assert daemon.requests[0].body == {"label": "mia", **asked}


def test_for_people_a_new_token_stands_whole_on_the_last_line_and_nowhere_else(
    spl: Spl, daemon: Daemon
) -> None:
    daemon.routes["POST /v1/members"] = ADDED
    lines = spl("member", "add", "mia", "-o", "table").stdout.splitlines()
    assert lines[-3:] == ["", "The token, shown this once:", SECRET]
    assert ["label", "mia"] in [line.split() for line in lines]
    assert sum(SECRET in line for line in lines) == 1


def test_a_member_of_a_tier_that_nobody_is_given_is_wrong_usage(spl: Spl, daemon: Daemon) -> None:
    assert (spl("member", "add", "mia", "--tier", "operator").returncode, daemon.requests) == (2, [])


def test_a_label_that_is_taken_is_refused_with_what_to_do(spl: Spl, daemon: Daemon) -> None:
    daemon.routes["POST /v1/members"] = error(409, "MEMBER_EXISTS", "there is a member 'mia' already")
    ended = spl("member", "add", "mia")
    assert (ended.returncode, ended.stdout) == (MemberExists.exit_status, "")
    assert ended.stderr.startswith(
        "spl: MEMBER_EXISTS: there is a member 'mia' already; choose another label"
    )


def test_members_and_tokens_are_listed(spl: Spl, daemon: Daemon) -> None:
    daemon.routes |= {"GET /v1/members": listing(MEMBER), "GET /v1/tokens": listing(TOKEN)}
    assert json.loads(spl("member", "list").stdout) == listing(MEMBER)
    assert json.loads(spl("token", "list").stdout) == listing(TOKEN)
    members = spl("member", "list", "-o", "table").stdout.splitlines()
    assert members[1].split() == ["mia", "did:sync:user:mia", "paid", "records:read,", "work:run",
                                  "2026-01-01T00:00:00.000Z"]  # fmt: skip
    tokens = spl("token", "list", "-o", "table").stdout.splitlines()
    assert tokens[1].split() == ["tok_1", "did:sync:user:mia", "work:run", "2026-01-01T00:00:00.000Z"]


def test_a_member_is_revoked_and_its_stopped_runs_are_named(spl: Spl, daemon: Daemon) -> None:
    row = {**MEMBER, "revoked": True, "stopped": ["th_run_1", "th_run_2"]}
    daemon.routes["DELETE /v1/members/mia"] = row
    assert json.loads(spl("member", "revoke", "mia").stdout) == row
    assert "th_run_1, th_run_2" in spl("member", "revoke", "mia", "-o", "table").stdout


def test_token_show_prints_the_token_and_nothing_else_without_a_daemon(spl: Spl, home: Home) -> None:
    token = home.ensure_token("alice")
    assert spl("token", "show").stdout == f"{token}\n"
    assert json.loads(spl("token", "show", "-o", "json").stdout) == {"token": token}


def test_token_show_without_a_token_says_that_no_daemon_has_run(spl: Spl) -> None:
    refused = spl("token", "show")
    assert (refused.returncode, refused.stdout) == (DaemonUnreachable.exit_status, "")
    assert "no daemon has run in this home" in refused.stderr


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ((), {}),
        (("--member", "mia", "--scope", "work:run"), {"label": "mia", "scopes": ["work:run"]}),
    ],
)
def test_a_token_is_minted_as_asked(
    spl: Spl, daemon: Daemon, options: tuple[str, ...], asked: dict[str, object]
) -> None:
    daemon.routes["POST /v1/tokens"] = MINTED
    assert json.loads(spl("token", "mint", *options).stdout) == MINTED
    assert daemon.requests[0].body == asked


def test_a_token_is_rotated_and_revoked_by_its_id_which_stays_one_segment(spl: Spl, daemon: Daemon) -> None:
    daemon.routes["POST /v1/tokens/a%2Fb/rotate"] = MINTED
    daemon.routes["DELETE /v1/tokens/a%2Fb"] = {**TOKEN, "revoked": True}
    assert json.loads(spl("token", "rotate", "a/b").stdout) == MINTED
    assert json.loads(spl("token", "revoke", "a/b").stdout)["revoked"] is True


def test_the_operators_token_is_rotated_by_the_daemon_that_runs(spl: Spl, home: Home, daemon: Daemon) -> None:
    token = home.ensure_token("alice")
    daemon.routes["POST /v1/tokens/operator/rotate"] = {"object": "token", "id": "operator", "token": SECRET}
    with home.lock():
        ended = spl("token", "rotate", "-o", "table")
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-2:] == [
        "The operator's token, as 'spl token show' prints it:",
        SECRET,
    ]
    # The file is the daemon's to rewrite.
    assert home.read_token() == token


def test_without_a_daemon_the_operators_token_is_rotated_on_the_home(spl: Spl, home: Home) -> None:
    old = home.ensure_token("alice")
    ended = spl("token", "rotate")
    token = json.loads(ended.stdout)["token"]
    assert (ended.returncode, spl("token", "show").stdout) == (0, f"{token}\n")
    assert token != old
    assert stat.S_IMODE(home.token.lstat().st_mode) == 0o600


def test_a_home_that_is_in_use_keeps_its_token_though_no_daemon_answers(spl: Spl, home: Home) -> None:
    token = home.ensure_token("alice")
    with home.lock():
        ended = spl("token", "rotate")
    assert (ended.returncode, home.read_token()) == (DaemonUnreachable.exit_status, token)


def test_a_daemon_elsewhere_rotates_its_own_token_and_not_the_homes(
    spl: Spl, home: Home, daemon: Daemon
) -> None:
    token = home.ensure_token("alice")
    where = daemon.__class__({"POST /v1/tokens/operator/rotate": MINTED})
    host, port = where.start(("127.0.0.1", 0))
    try:
        ended = spl("token", "rotate", SPL_URL=f"http://{host}:{port}", SPL_TOKEN="spl_x")
    finally:
        where.stop()
    assert (json.loads(ended.stdout), home.read_token()) == (MINTED, token)


@pytest.mark.parametrize("command", [("mint",), ("list",), ("rotate", "tok_1"), ("revoke", "tok_1")])
def test_other_tokens_need_a_daemon(spl: Spl, command: tuple[str, ...]) -> None:
    assert spl("token", *command).returncode == DaemonUnreachable.exit_status


def test_a_token_that_is_not_there_is_not_found(spl: Spl, daemon: Daemon) -> None:
    daemon.routes["DELETE /v1/tokens/tok_9"] = error(404, "NOT_FOUND", "there is no live token 'tok_9'")
    ended = spl("token", "revoke", "tok_9")
    assert (ended.returncode, ended.stdout) == (NotFound.exit_status, "")


@pytest.mark.parametrize(
    ("command", "route"),
    [
        (("token", "revoke", "operator"), "DELETE /v1/tokens/operator"),
        (("token", "rotate", "tok_9"), "POST /v1/tokens/tok_9/rotate"),
        (("token", "mint", "--member", "eve"), "POST /v1/tokens"),
        (("member", "revoke", "eve"), "DELETE /v1/members/eve"),
    ],
)
def test_what_the_daemon_says_to_do_about_a_token_or_a_member_is_what_is_said(
    spl: Spl, daemon: Daemon, command: tuple[str, ...], route: str
) -> None:
    daemon.routes[route] = error(404, "NOT_FOUND", "it is not there", remedy="do\x1b[2J that")
    ended = spl(*command)
    assert (ended.returncode, ended.stdout) == (NotFound.exit_status, "")
    assert ended.stderr == "spl: NOT_FOUND: it is not there; do\\x1b[2J that\n"


def test_a_token_that_cannot_be_printed_stands_in_no_error(daemon: Daemon, environ: dict[str, str]) -> None:
    daemon.routes["POST /v1/tokens"] = MINTED
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "spl.cli.main", "token", "mint"],
            env=environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert ended.returncode != 0
    assert SECRET not in ended.stderr
    # There is such a token now: another would be a second.
    assert "look at what was done" in ended.stderr
