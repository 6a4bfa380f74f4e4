from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.server import error

if TYPE_CHECKING:
    from tests.cli.conftest import Spl
    from tests.server import Daemon

WORK_LOOP = {"transport": "in_process", "member_transport": "sandboxed", "admission_capacity": 4}
BODY = {"kind": "core.engine.config.v1", "topic": "work_loop_transport", "transport": "sandboxed"}
REMARK = {
    "severity": "warning", "row": "address_space", "file": "/h/profiles/strict.toml", "line": 4, "column": 1,
    "place": "limits.address_space", "reason": "under 48M\x1b[2J an interpreter may not start", "excerpt": "",
}  # fmt: skip
RECORD = {"object": "record", "sequence": 4, "body": BODY}


@pytest.fixture(autouse=True)
def _routes(daemon: Daemon) -> None:
    daemon.routes["GET /v1/engine/health"] = {"version": "x", "work_loop": WORK_LOOP}
    daemon.routes["GET /v1/records"] = {"object": "list", "data": [RECORD], "has_more": False}
    daemon.routes["POST /v1/records"] = RECORD
    daemon.routes["GET /v1/profiles/strict"] = {"object": "profile", "remarks": [REMARK]}


def test_config_show_tells_what_is_in_force_beside_what_was_written(spl: Spl, daemon: Daemon) -> None:
    shown = json.loads(spl("config", "show").stdout)
    assert shown == {"object": "config", "work_loop": WORK_LOOP, "records": [RECORD]}
    # What others write to that thread configures nothing.
    query = daemon.requests[1].query
    assert (query["thread"], query["actor"]) == ("th_engine_config", "did:sync:system:engine")
    table = spl("config", "show", "-o", "table").stdout
    assert ["work_loop.transport", "in_process"] in [line.split() for line in table.splitlines()]
    assert '4         work_loop_transport  {"transport": "sandboxed"}' in table


@pytest.mark.parametrize("output", ["json", "table"])
def test_config_show_says_that_the_records_are_not_the_bearers_to_read_and_not_that_there_are_none(
    spl: Spl, daemon: Daemon, output: str
) -> None:
    nothing = {"object": "list", "data": [], "has_more": False}
    daemon.routes["GET /v1/records"] = nothing
    daemon.routes["GET /v1/runs"] = error(403, "ACTOR_NOT_COVERED", "the bearer does not cover the runs")
    ended = spl("config", "show", "-o", output)
    assert ended.returncode == 0
    assert ended.stderr == "spl: config show: the records are the operator's to read, and not this token's\n"
    if output == "json":
        assert json.loads(ended.stdout) == {"object": "config", "work_loop": WORK_LOOP, "records": None}
    # An operator is told that nothing was decided.
    daemon.routes["GET /v1/runs"] = nothing
    ended = spl("config", "show", "-o", output)
    assert (ended.returncode, ended.stderr) == (0, "")
    if output == "json":
        assert json.loads(ended.stdout)["records"] == []


@pytest.mark.parametrize(
    ("options", "topic"), [((), "work_loop_transport"), (("--members",), "work_loop_transport_members")]
)
def test_set_transport_writes_one_record_and_prints_what_the_daemon_took(
    spl: Spl, daemon: Daemon, options: tuple[str, ...], topic: str
) -> None:
    ended = spl("config", "set-transport", "sandboxed", *options)
    assert (ended.returncode, json.loads(ended.stdout)) == (0, WORK_LOOP)
    assert daemon.asked() == ["POST /v1/records", "GET /v1/engine/health"]
    assert daemon.requests[0].body == {
        "thread": "th_engine_config",
        "actor": "did:sync:system:engine",
        "act": "LEARN",
        "body": {"kind": "core.engine.config.v1", "topic": topic, "transport": "sandboxed"},
    }


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("set-profile", "strict"), {"topic": "work_loop_profile", "profile": "strict"}),
        (
            ("set-profile", "strict", "--tier", "trial"),
            {"topic": "work_loop_profile", "profile": "strict", "tier": "trial"},
        ),
        (("unset-profile",), {"topic": "work_loop_profile", "profile": None}),
        (
            ("unset-profile", "--tier", "team"),
            {"topic": "work_loop_profile", "profile": None, "tier": "team"},
        ),
        (("set-capacity", "3"), {"topic": "admission_capacity", "capacity": 3}),
        (("unset-capacity",), {"topic": "admission_capacity", "capacity": None}),
        (("set-standby", "3"), {"topic": "standby_workers", "workers": 3}),
        (("unset-standby",), {"topic": "standby_workers", "workers": None}),
    ],
)
def test_a_choice_is_one_record_and_what_the_daemon_took_is_printed(
    spl: Spl, daemon: Daemon, command: tuple[str, ...], said: dict[str, object]
) -> None:
    ended = spl("config", *command)
    assert (ended.returncode, json.loads(ended.stdout)) == (0, WORK_LOOP)
    assert daemon.asked()[:2] == ["POST /v1/records", "GET /v1/engine/health"]
    written = daemon.requests[0].body
    assert (written["thread"], written["actor"]) == ("th_engine_config", "did:sync:system:engine")
    assert written["body"] == {"kind": "core.engine.config.v1", **said}


@pytest.mark.parametrize(
    ("said", "newest"),
    [
        (
            [
                {"topic": "work_loop_profile", "profile": "worker"},
                {"topic": "work_loop_profile", "profile": "strict", "tier": "trial"},
                {"topic": "work_loop_profile", "profile": "own"},
                {"topic": "admission_capacity", "capacity": 1},
                {"topic": "work_loop_profile", "profile": "strict"},
            ],
            [2, 4, 5],
        ),
        (
            [
                {"topic": "actor_tier", "actor": "did:sync:user:a", "tier": "paid"},
                {"topic": "actor_tier", "actor": "did:sync:user:b", "tier": "paid"},
                {"topic": "actor_tier", "actor": "did:sync:user:a", "tier": "team"},
                {"topic": "permission_rule", "name": "one", "expression": "true"},
                {"topic": "permission_rule", "name": "two", "expression": "true"},
                {"topic": "permission_rule", "name": "one", "expression": None},
            ],
            [2, 3, 5, 6],
        ),
        (
            [
                {"kind": "core.engine.tier.v1", "tier": "trial", "max_turns": 3},
                {"kind": "core.engine.tier.v1", "tier": "trial", "max_turns": 4, "daily_runs": 5},
                {"kind": "core.engine.tier.v1", "tier": "paid", "max_turns": 3},
                {"kind": "core.engine.tier.v1", "tier": "trial", "max_turns": None},
            ],
            [2, 3, 4],
        ),
    ],
    ids=["profiles", "actors and rules", "tiers"],
)
def test_config_show_tells_the_newest_record_of_each_thing_decided_alone(
    spl: Spl, daemon: Daemon, said: list[dict[str, Any]], newest: list[int]
) -> None:
    data = [
        {"object": "record", "sequence": at, "body": {"kind": "core.engine.config.v1", **body}}
        for at, body in enumerate(said, 1)
    ]
    daemon.routes["GET /v1/records"] = {"object": "list", "data": data, "has_more": False}
    shown = json.loads(spl("config", "show").stdout)
    assert [record["sequence"] for record in shown["records"]] == newest
    assert spl("config", "show", "-o", "table").returncode == 0


def test_what_lint_says_of_a_profile_that_was_chosen_is_told_on_standard_error(
    spl: Spl, daemon: Daemon
) -> None:
    ended = spl("config", "set-profile", "strict")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, WORK_LOOP)
    assert daemon.asked()[2:] == ["GET /v1/profiles/strict"]
    assert ended.stderr == (
        "spl: config set-profile: warning: /h/profiles/strict.toml:4:1: limits.address_space: "
        r"under 48M\x1b[2J an interpreter may not start" + "\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("set-profile",),
        ("set-profile", "strict", "--tier", "gold"),
        ("set-capacity", "-1"),
        ("set-capacity", "4097"),
        ("set-capacity", "many"),
        ("set-standby", "65"),
    ],
)
def test_a_choice_that_cannot_be_is_not_written(spl: Spl, daemon: Daemon, command: tuple[str, ...]) -> None:
    assert (spl("config", *command).returncode, daemon.requests) == (2, [])


def test_set_transport_does_not_write_a_typo(spl: Spl, daemon: Daemon) -> None:
    ended = spl("config", "set-transport", "sandboxd")
    assert (ended.returncode, daemon.requests) == (2, [])
