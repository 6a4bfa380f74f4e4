from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import ExpressionInvalid, InvalidBody, NotFound
from tests.server import error

if TYPE_CHECKING:
    from tests.cli.conftest import Spl
    from tests.server import Daemon, Request

EXPRESSION = 'resource == "tool:bash"'
RULE = {"object": "rule", "name": "stop-that", "action": "deny", "priority": 100, "expression": EXPRESSION,
        "enabled": True, "hits": 7}  # fmt: skip
WRITE, RULES, TIERS = "POST /v1/records", "GET /v1/rules", "GET /v1/tiers"
TIER = {"object": "tier", "tier": "trial", "max_turns": 3, "wall_clock_secs": 120, "token_budget": None,
        "default_budget_usd": 0.25, "daily_cost_usd": 0.5, "daily_runs": 10, "concurrent_runs": 1}  # fmt: skip


@pytest.fixture(autouse=True)
def _routes(daemon: Daemon) -> None:
    """Have a daemon that takes any record and has one rule and one tier."""
    daemon.routes[WRITE] = lambda request: {"object": "record", "sequence": 9, **request.body}
    daemon.routes[RULES] = {"object": "list", "data": [{**RULE, "name": "other"}, RULE], "has_more": False}
    daemon.routes[TIERS] = {
        "object": "list",
        "data": [{**TIER, "tier": "paid", "max_turns": 4}, TIER],
        "has_more": False,
    }


def written(daemon: Daemon) -> list[Any]:
    """Give what was written, each to the place of configuration."""
    records = [request.body for request in daemon.requests if request.method == "POST"]
    for record in records:
        where = (record["thread"], record["actor"], record["act"])
        assert where == ("th_engine_config", "did:sync:system:engine", "LEARN")
    return [record["body"] for record in records]


def test_a_rule_is_added_as_the_manual_writes_it_and_printed_as_the_daemon_has_it(
    spl: Spl, daemon: Daemon
) -> None:
    ended = spl("config", "add-permission-rule", "--name", "stop-that", "--action", "deny", "--priority", "100",
                "--expression", EXPRESSION)  # fmt: skip
    assert (ended.returncode, json.loads(ended.stdout)) == (0, RULE)
    assert daemon.asked() == [WRITE, RULES]
    assert written(daemon) == [
        {
            "kind": "core.engine.config.v1", "topic": "permission_rule", "name": "stop-that", "action": "deny",
            "priority": 100, "expression": EXPRESSION, "enabled": True,
        }
    ]  # fmt: skip


def test_a_rule_without_a_priority_has_the_priority_0_and_may_have_one_below(
    spl: Spl, daemon: Daemon
) -> None:
    add = (
        "config",
        "add-permission-rule",
        "--name",
        "stop-that",
        "--action",
        "allow",
        "--expression",
        "-1 < 2",
    )
    spl(*add)
    spl(*add, "--priority", "-5")
    assert [(body["priority"], body["expression"]) for body in written(daemon)] == [
        (0, "-1 < 2"),
        (-5, "-1 < 2"),
    ]


@pytest.mark.parametrize(
    "expression",
    [
        'resource == "bash"',
        "args.n > 1 && resource=='bash'",
        'resource == "bash\x1b[2J"',
        'resource != r"bash"',
        'resource in ["bash", "calculate"]',
        'resource == "tools:bash"',
    ],
)
def test_a_rule_that_compares_the_resource_with_what_it_never_is_is_taken_with_a_warning(
    spl: Spl, expression: str
) -> None:
    ended = spl(
        "config", "add-permission-rule", "--name", "stop-that", "--action", "deny", "--expression", expression
    )
    assert (ended.returncode, json.loads(ended.stdout)) == (0, RULE)
    assert ended.stderr.startswith("spl: config add-permission-rule: warning: `resource` is never ")
    assert ended.stderr.endswith(", it is 'tool:' and the tool's name\n")
    assert ended.stderr.removesuffix("\n").isprintable()


@pytest.mark.parametrize(
    "expression",
    [
        'resource == "tool:bash"',
        "resource in ['tool:bash', 'tool:calculate']",
        'resource == r"tool:bash" && args.path == "bash"',
        'resource == """tool:bash"""',
        'resource.startsWith("tool:host_")',
        'args.resource == "bash"',
        'has(args.my_resource) && args.my_resource == "bash"',
    ],
)
def test_a_rule_that_can_match_is_taken_without_a_warning(spl: Spl, expression: str) -> None:
    ended = spl(
        "config", "add-permission-rule", "--name", "stop-that", "--action", "deny", "--expression", expression
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_refused_expression_is_shown_with_a_caret_under_the_place(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[WRITE] = error(
        400, "EXPRESSION_INVALID", "line 1, column 13: Syntax error", line=1, column=13,
        excerpt="resource == \x1b[2J\n            ^",
    )  # fmt: skip
    add = ("config", "add-permission-rule", "--name", "x", "--action", "deny", "--expression", "resource == ")
    ended = spl(*add)
    assert (ended.returncode, ended.stdout) == (ExpressionInvalid.exit_status, "")
    said, line, caret = ended.stderr.splitlines()
    assert said.startswith("spl: EXPRESSION_INVALID: line 1, column 13: Syntax error; ")
    assert (line, caret) == (r"resource == \x1b[2J", "            ^")
    document = json.loads(spl(*add, "-o", "json").stderr.splitlines()[-1])
    assert (document["line"], document["column"]) == (1, 13)


@pytest.mark.parametrize("named", [("stop-that",), ("--name", "stop-that")])
@pytest.mark.parametrize(
    ("command", "said", "printed"),
    [
        ("remove", {"name": "stop-that", "expression": None}, {**RULE, "removed": True}),
        ("disable", {"enabled": False}, RULE),
        ("enable", {"enabled": True}, RULE),
    ],
)
def test_a_rule_is_taken_away_or_switched_by_one_record(
    spl: Spl,
    daemon: Daemon,
    named: tuple[str, ...],
    command: str,
    said: dict[str, Any],
    printed: dict[str, Any],
) -> None:
    ended = spl("config", f"{command}-permission-rule", *named)
    assert (ended.returncode, json.loads(ended.stdout)) == (0, printed)
    kept = {"name": "stop-that", "action": "deny", "priority": 100, "expression": EXPRESSION}
    body = {"kind": "core.engine.config.v1", "topic": "permission_rule", **said}
    assert written(daemon) == [body if command == "remove" else {**body, **kept}]


@pytest.mark.parametrize("command", ["remove", "disable", "enable"])
def test_a_rule_that_is_not_there_is_not_found_and_nothing_is_written(
    spl: Spl, daemon: Daemon, command: str
) -> None:
    ended = spl("config", f"{command}-permission-rule", "stop-\x1b[2Jthat")
    assert (ended.returncode, ended.stdout, written(daemon)) == (NotFound.exit_status, "", [])
    assert ended.stderr == (
        r"spl: NOT_FOUND: there is no permission rule 'stop-\x1b[2Jthat'; "
        "list them with 'spl config list-rules'\n"
    )


def test_rules_are_listed_in_the_order_they_are_asked(spl: Spl) -> None:
    listed = json.loads(spl("config", "list-rules").stdout)
    assert [rule["name"] for rule in listed["data"]] == ["other", "stop-that"]
    lines = spl("config", "list-rules", "-o", "table").stdout.splitlines()
    assert lines[0].split() == ["name", "action", "priority", "enabled", "hits", "expression"]
    assert lines[2].split(maxsplit=5) == ["stop-that", "deny", "100", "true", "7", EXPRESSION]


def test_the_rules_are_listed_by_the_name_that_goes_with_the_others_too_which_help_does_not_list(
    spl: Spl,
) -> None:
    ended = spl("config", "list-permission-rules")
    assert (ended.returncode, ended.stdout) == (0, spl("config", "list-rules").stdout)
    assert "list-permission-rules" not in spl("config", "--help").stdout


def test_a_tiers_ceilings_are_changed_and_reset_by_one_record_and_what_is_in_force_is_printed(
    spl: Spl, daemon: Daemon
) -> None:
    ended = spl("config", "set-tier", "trial", "--max-turns", "3", "--wall-clock-secs", "60.5", "--token-budget",
                "1000", "--default-budget-usd", "0.1", "--daily-cost-usd", "1", "--daily-runs", "0",
                "--concurrent-runs", "2")  # fmt: skip
    assert (ended.returncode, json.loads(ended.stdout)) == (0, TIER)
    spl("config", "set-tier", "trial", "--max-turns", "4", "--reset", "daily-runs", "--reset", "token-budget")
    kind = {"kind": "core.engine.tier.v1", "tier": "trial"}
    assert written(daemon) == [
        {
            **kind, "max_turns": 3, "wall_clock_secs": 60.5, "token_budget": 1000, "default_budget_usd": 0.1,
            "daily_cost_usd": 1, "daily_runs": 0, "concurrent_runs": 2,
        },
        {**kind, "max_turns": 4, "daily_runs": None, "token_budget": None},
    ]  # fmt: skip


def test_tiers_are_listed_a_column_each_with_a_line_for_each_ceiling(spl: Spl) -> None:
    lines = [line.split() for line in spl("config", "list-tiers", "-o", "table").stdout.splitlines()]
    assert lines[0] == ["paid", "trial"]
    assert [line[0] for line in lines[1:]] == list(TIER)[2:]
    assert lines[1:4] == [["max_turns", "4", "3"], ["wall_clock_secs", "120", "120"], ["token_budget"]]
    assert [row["tier"] for row in json.loads(spl("config", "list-tiers").stdout)["data"]] == [
        "paid",
        "trial",
    ]


@pytest.mark.parametrize(
    ("command", "tier"),
    [
        (("set-actor-tier", "did:sync:user:a", "team"), "team"),
        (("unset-actor-tier", "did:sync:user:a"), None),
    ],
)
def test_an_actor_is_given_a_tier_by_one_record(
    spl: Spl, daemon: Daemon, command: tuple[str, ...], tier: str | None
) -> None:
    ended = spl("config", *command)
    given = {"actor": "did:sync:user:a", "tier": tier}
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"object": "actor_tier", **given})
    assert written(daemon) == [{"kind": "core.engine.config.v1", "topic": "actor_tier", **given}]


def test_what_the_daemon_refuses_of_a_tier_is_said(spl: Spl, daemon: Daemon) -> None:
    daemon.routes[WRITE] = error(422, "INVALID_BODY", "the ceiling 'max_turns' must be a whole number")
    ended = spl("config", "set-tier", "trial", "--max-turns", "1000000")
    assert (ended.returncode, ended.stdout) == (InvalidBody.exit_status, "")


@pytest.mark.parametrize(
    "command",
    [
        ("add-permission-rule", "--name", "x", "--action", "deny"),
        ("add-permission-rule", "--name", "x", "--action", "ask", "--expression", "true"),
        ("remove-permission-rule",),
        ("remove-permission-rule", "stop-that", "--name", "stop-that"),
        ("set-tier", "trial"),
        ("set-tier", "gold", "--max-turns", "3"),
        ("set-tier", "trial", "--max-turns", "0"),
        ("set-tier", "trial", "--wall-clock-secs", "0"),
        ("set-tier", "trial", "--token-budget", "0"),
        ("set-tier", "trial", "--daily-runs", "-1"),
        ("set-tier", "trial", "--max-turns", "3", "--reset", "max-turns"),
        ("set-tier", "trial", "--reset", "reach"),
        ("set-actor-tier", "did:sync:user:a", "operator"),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage_and_is_not_written(
    spl: Spl, daemon: Daemon, command: tuple[str, ...]
) -> None:
    ended = spl("config", *command)
    assert (ended.returncode, ended.stdout, daemon.requests) == (2, "", [])


def test_a_rule_that_the_daemon_took_and_does_not_list_is_an_error(spl: Spl, daemon: Daemon) -> None:
    def nothing(request: Request) -> Any:
        return {"object": "list", "data": [], "has_more": False}

    daemon.routes[RULES] = nothing
    ended = spl("config", "add-permission-rule", "--name", "x", "--action", "deny", "--expression", "true")
    assert ended.returncode == NotFound.exit_status
