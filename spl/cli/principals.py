"""Commands about who may ask: the members, and everyone's tokens."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import click

from spl.cli import completion
from spl.cli.instance import own_home
from spl.cli.options import common, examples, home_option, output_option
from spl.cli.output import is_json, print_document, print_facts, print_json, print_line, print_listing
from spl.cli.text import shown
from spl.client import Client, segment
from spl.decisions import GIVEN
from spl.home import login, running_pid

if TYPE_CHECKING:
    from spl.client import Json
    from spl.home import Home

OPERATORS: Final = "operator"
"""The id of the token in the home's token file."""

_scopes = click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help="A scope it is to hold, and none but those given: records:read, records:write, work:run, config:write, "
    "metrics:read; repeatable.",
)


@click.group()
def member() -> None:
    """Add members, list them, or take one away."""


@member.command(
    "add",
    short_help="Add a member and print its token.",
    epilog=examples(
        "spl member add mia --tier paid", "spl member add bot --agent --scope work:run -o json | jq -r .token"
    ),
)
@click.argument("label")
@common
@click.option("--tier", type=click.Choice(GIVEN), help="Its tier; trial unless given.")
@_scopes
@click.option("--agent", is_flag=True, help="It is a program, and its actor did:sync:agent:LABEL.")
def add_member(
    label: str, home: str | None, output: str | None, tier: str | None, scopes: tuple[str, ...], agent: bool
) -> None:
    """Add the member LABEL, whose actor is did:sync:user:LABEL, and print its token.

    The token is shown this once. Without a scope the member may read and write records and start runs, as itself.
    """
    asked = {"label": label, "tier": tier, "scopes": list(scopes) or None, "agent": agent or None}
    _print_token(Client.locate(home).request("POST", "/v1/members", _said(asked)), output)


@member.command(
    "list",
    short_help="List the members.",
    epilog=examples("spl member list", "spl member list -o json | jq -r '.data[].actor'"),
)
@common
def list_members(home: str | None, output: str | None) -> None:
    """List the members, each with its tier and the most that its tokens may hold."""
    listing = Client.locate(home).request("GET", "/v1/members")
    print_listing(listing, output, "label", "actor", "tier", "scopes", "added_at")


@member.command("revoke", short_help="Take a member away.", epilog=examples("spl member revoke mia"))
@click.argument("label", shell_complete=completion.members)
@common
def revoke_member(label: str, home: str | None, output: str | None) -> None:
    """Take the member LABEL away, and with it each of its tokens; its runs are told to stop."""
    print_document(Client.locate(home).request("DELETE", f"/v1/members/{segment(label)}"), output)


@click.group()
def token() -> None:
    """Show the operator's token; make, replace or end anyone's."""


@token.command(
    "show",
    short_help="Print the operator's token.",
    epilog=examples("spl token show", "SPL_URL=http://127.0.0.1:9100 SPL_TOKEN=$(spl token show) spl status"),
)
@home_option
@output_option
def show_token(home: str | None, output: str | None) -> None:
    """Print the operator's token and nothing else.

    It is read from the home; no daemon is needed. It is plain text unless JSON is asked for.
    """
    value = own_home(home).read_token()
    if output == "json":
        print_json({"token": value})
    else:
        print_line(value)


@token.command(
    "mint",
    short_help="Make another token and print it.",
    epilog=examples(
        "spl token mint --scope records:read", "spl token mint --member mia -o json | jq -r .token"
    ),
)
@common
@click.option(
    "--member",
    "label",
    metavar="LABEL",
    help="Whose it is to be; the operator's unless given.",
    shell_complete=completion.members,
)
@_scopes
def mint_token(home: str | None, output: str | None, label: str | None, scopes: tuple[str, ...]) -> None:
    """Make another token of a member's or the operator's, and print it; it is shown this once.

    Without a scope it holds all that its holder may have.
    """
    asked = {"label": label, "scopes": list(scopes) or None}
    _print_token(Client.locate(home).request("POST", "/v1/tokens", _said(asked)), output)


@token.command("list", short_help="List the tokens.", epilog=examples("spl token list"))
@common
def list_tokens(home: str | None, output: str | None) -> None:
    """List the tokens there are, by their ids; none of them is shown."""
    listing = Client.locate(home).request("GET", "/v1/tokens")
    print_listing(listing, output, "id", "actor", "scopes", "minted_at")


@token.command(
    "rotate",
    short_help="Put a new token in the place of one.",
    epilog=examples("spl token rotate", "spl token rotate 3f2a9c -o json | jq -r .token"),
)
@click.argument("identifier", metavar="[ID]", default=OPERATORS, shell_complete=completion.tokens)
@common
def rotate_token(identifier: str, home: str | None, output: str | None) -> None:
    """Put a new token in the place of one, which is good for nothing from then on, and print the new one.

    Without an ID it is the operator's own, in the home's token file; for that no daemon need run.
    """
    unserved = _unserved(home) if identifier == OPERATORS else None
    if unserved is None:
        path = f"/v1/tokens/{segment(identifier)}/rotate"
        _print_token(Client.locate(home).request("POST", path), output)
        return
    # Under the lock, so that no daemon starts with the old one meanwhile.
    with unserved.lock():
        value = unserved.rotate_token(login())
    _print_token({"object": "token", "id": OPERATORS, "token": value}, output)


@token.command("revoke", short_help="End a token.", epilog=examples("spl token revoke 3f2a9c"))
@click.argument("identifier", metavar="ID", shell_complete=completion.tokens)
@common
def revoke_token(identifier: str, home: str | None, output: str | None) -> None:
    """End the token ID, which is good for nothing from then on."""
    print_document(Client.locate(home).request("DELETE", f"/v1/tokens/{segment(identifier)}"), output)


def _unserved(flag: str | None) -> Home | None:
    """Give the home on this machine if no daemon runs in it; a daemon that SPL_URL names is another's business."""
    if flag is None and os.environ.get("SPL_URL"):
        return None
    home = own_home(flag)
    return home if running_pid(home) is None else None


def _said(asked: Json) -> Json:
    return {name: value for name, value in asked.items() if value is not None}


def _print_token(document: Json, output: str | None) -> None:
    """Print a new token: beside its facts and whole, on a line of its own that no table folds."""
    if is_json(output):
        print_json(document)
        return
    print_facts({name: value for name, value in document.items() if name not in {"object", "token"}})
    print_line()
    operators = document.get("id") == OPERATORS
    print_line(
        "The operator's token, as 'spl token show' prints it:" if operators else "The token, shown this once:"
    )
    print_line(shown(str(document["token"])))
