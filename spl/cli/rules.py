"""The commands of `spl config` about permission rules."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import click

from spl.cli import completion
from spl.cli.options import common, examples
from spl.cli.output import print_document, print_listing
from spl.cli.text import shown
from spl.client import Client
from spl.decisions import decide
from spl.errors import NotFound

if TYPE_CHECKING:
    from spl.client import Json

_RULE: Final = ("name", "action", "priority", "enabled", "hits", "expression")
_MOST_PRIORITY: Final = 1_000_000

# `resource` beside a string that it never is: it begins with "tool:". What no pattern can tell passes: an escape, three
# quotes.
_NEVER: Final = re.compile(r"""(?<![\w.])resource\s*(?:[!=]=|in\s*\[)\s*[rR]?(["'])(?!tool:|\\|\1)(.*?)\1""")


@click.command(
    "add-permission-rule",
    short_help="Add a rule, or replace it.",
    epilog=examples(
        "spl config add-permission-rule --name no-notes --action deny --expression 'resource == \"tool:record_note\"'",
        "spl config add-permission-rule --name trial-reads --action deny --priority 10 \\",
        '  --expression \'tier == "trial" && resource == "tool:read_file"\'',
    ),
)
@common
@click.option(
    "--name",
    required=True,
    metavar="NAME",
    help="The rule's name; a rule of this name is replaced.",
    shell_complete=completion.rules,
)
@click.option(
    "--action", required=True, type=click.Choice(["allow", "deny"]), help="What becomes of a call it matches."
)
@click.option(
    "--priority",
    type=click.IntRange(-_MOST_PRIORITY, _MOST_PRIORITY),
    default=0,
    show_default=True,
    help="The highest is asked first.",
)
@click.option("--expression", required=True, metavar="CEL", help="Which calls it matches.")
def add_rule(
    home: str | None, output: str | None, name: str, action: str, priority: int, expression: str
) -> None:
    """Add a permission rule: the first rule that matches a call decides, and a call that none matches is allowed.

    The expression is CEL over `resource` ("tool:NAME"), `args`, `actor`, `tier`, `transport` and `run`. The rule is in
    force for the next call, also of runs already going. Prints the rule as the running daemon took it.
    """
    client = Client.locate(home)
    rule = {"name": name, "action": action, "priority": priority, "expression": expression}
    decide(client, {"topic": "permission_rule", **rule, "enabled": True})
    print_document(_rule(client, name), output)
    for _, text in _NEVER.findall(expression):
        said = f"warning: `resource` is never {text!r}, it is 'tool:' and the tool's name"
        click.echo(f"spl: config add-permission-rule: {shown(said)}", err=True)


_flag = click.option(
    "--name",
    "flag",
    metavar="NAME",
    help="The rule's name, as an option instead.",
    shell_complete=completion.rules,
)


@click.command(
    "remove-permission-rule",
    short_help="Take a rule away.",
    epilog=examples("spl config remove-permission-rule no-notes"),
)
@click.argument("name", required=False, shell_complete=completion.rules)
@common
@_flag
def remove_rule(name: str | None, home: str | None, output: str | None, flag: str | None) -> None:
    """Take a permission rule away, and print what it was."""
    client = Client.locate(home)
    rule = _rule(client, _one(name, flag))
    decide(client, {"topic": "permission_rule", "name": rule["name"], "expression": None})
    print_document({**rule, "removed": True}, output)


@click.command(
    "disable-permission-rule",
    short_help="Have a rule match nothing.",
    epilog=examples("spl config disable-permission-rule no-notes"),
)
@click.argument("name", required=False, shell_complete=completion.rules)
@common
@_flag
def disable_rule(name: str | None, home: str | None, output: str | None, flag: str | None) -> None:
    """Have a permission rule match nothing until it is enabled again; prints it as the running daemon took it."""
    _switch(home, output, _one(name, flag), enabled=False)


@click.command(
    "enable-permission-rule",
    short_help="Have a rule match again.",
    epilog=examples("spl config enable-permission-rule no-notes"),
)
@click.argument("name", required=False, shell_complete=completion.rules)
@common
@_flag
def enable_rule(name: str | None, home: str | None, output: str | None, flag: str | None) -> None:
    """Have a permission rule match again that was disabled; prints it as the running daemon took it."""
    _switch(home, output, _one(name, flag), enabled=True)


@click.command(
    "list-rules",
    short_help="List the permission rules.",
    epilog=examples("spl config list-rules", "spl config list-rules -o json | jq '.data[] | {name, hits}'"),
)
@common
def list_rules(home: str | None, output: str | None) -> None:
    """List the permission rules in the order they are asked, each with how often it has decided."""
    print_listing(Client.locate(home).request("GET", "/v1/rules"), output, *_RULE)


COMMANDS: Final = (add_rule, remove_rule, disable_rule, enable_rule, list_rules)


def _switch(home: str | None, output: str | None, name: str, *, enabled: bool) -> None:
    client = Client.locate(home)
    rule = _rule(client, name)
    kept = {field: rule[field] for field in ("name", "action", "priority", "expression")}
    decide(client, {"topic": "permission_rule", **kept, "enabled": enabled})
    print_document(_rule(client, name), output)


def _one(*names: str | None) -> str:
    given = [name for name in names if name is not None]
    if len(given) != 1:
        raise click.UsageError("Give the name of one rule, as NAME or with --name.")
    return given[0]


def _rule(client: Client, name: str) -> Json:
    """Give a permission rule as the daemon has it."""
    rules: list[Json] = client.request("GET", "/v1/rules")["data"]
    for rule in rules:
        if rule["name"] == name:
            return rule
    raise NotFound(f"there is no permission rule {name!r}", remedy="list them with 'spl config list-rules'")
