"""The commands of `spl config` about tiers: their ceilings, and who has which."""

from __future__ import annotations

from typing import Final

import click

from spl.cli.options import Command, Number, common, examples
from spl.cli.output import is_json, print_document, print_json, print_rows
from spl.client import Client
from spl.decisions import GIVEN, TIER, TIERS, decide, decided

_WHOLE, _NUMBER = click.IntRange(min=0), Number(min=0)
_SOME, _SECONDS = click.IntRange(min=1), Number(min=1)
_CEILINGS: Final = {
    "max_turns": (_SOME, "The most model calls of a run."),
    "wall_clock_secs": (_SECONDS, "The longest a run may take, in seconds."),
    "token_budget": (_SOME, "The most tokens of a run, in and out."),
    "default_budget_usd": (
        _NUMBER,
        "The most a run may spend, in US dollars; the operator's may ask for more.",
    ),
    "daily_cost_usd": (_NUMBER, "What an actor's runs may cost a day (UTC), in US dollars."),
    "daily_runs": (_WHOLE, "How many runs an actor may start a day (UTC)."),
    "concurrent_runs": (_WHOLE, "How many runs of an actor may go on at once."),
}


def _ceilings(command: Command) -> Command:
    for name, (kind, text) in reversed(_CEILINGS.items()):
        command = click.option(f"--{name.replace('_', '-')}", type=kind, help=text)(command)
    return command


@click.command(
    "set-tier",
    short_help="Change a tier's ceilings.",
    epilog=examples(
        "spl config set-tier trial --max-turns 8 --daily-runs 20",
        "spl config set-tier trial --reset max-turns",
    ),
)
@click.argument("tier", type=click.Choice(TIERS))
@common
@_ceilings
@click.option(
    "--reset",
    multiple=True,
    metavar="CEILING",
    type=click.Choice([name.replace("_", "-") for name in _CEILINGS]),
    help="A ceiling to have its shipped value again, such as max-turns; repeatable.",
)
def set_tier(
    tier: str, home: str | None, output: str | None, reset: tuple[str, ...], **ceilings: float | None
) -> None:
    """Change ceilings of a tier for the runs that start from now on.

    Prints the tier as the running daemon took it. Runs already going keep their ceilings.
    """
    said = {name: value for name, value in ceilings.items() if value is not None}
    again = {name.replace("-", "_"): None for name in reset}
    if not said and not again:
        raise click.UsageError("Say at least one ceiling to change.")
    if both := said.keys() & again.keys():
        raise click.UsageError(f"The ceiling {min(both)} is both changed and reset.")
    client = Client.locate(home)
    decide(client, {"tier": tier, **said, **again}, kind=TIER)
    tiers = client.request("GET", "/v1/tiers")["data"]
    print_document(next(row for row in tiers if row["tier"] == tier), output)


@click.command("list-tiers", short_help="List the tiers.", epilog=examples("spl config list-tiers"))
@common
def list_tiers(home: str | None, output: str | None) -> None:
    """List the tiers with their ceilings in force; where nothing stands there is no ceiling."""
    listing = Client.locate(home).request("GET", "/v1/tiers")
    if is_json(output):
        print_json(listing)
    else:
        tiers = listing["data"]
        rows = ([ceiling, *(tier.get(ceiling) for tier in tiers)] for ceiling in _CEILINGS)
        print_rows(("", *(tier["tier"] for tier in tiers)), rows)


@click.command(
    "set-actor-tier",
    short_help="Give an actor a tier.",
    epilog=examples("spl config set-actor-tier did:sync:user:mia paid"),
)
@click.argument("actor", metavar="DID")
@click.argument("tier", type=click.Choice(GIVEN))
@common
def set_actor_tier(actor: str, tier: str, home: str | None, output: str | None) -> None:
    """Give an actor a tier for its runs that start from now on; the operator's own comes with the instance."""
    _give_tier(home, output, actor, tier)


@click.command(
    "unset-actor-tier",
    short_help="Take an actor's tier back.",
    epilog=examples("spl config unset-actor-tier did:sync:user:mia"),
)
@click.argument("actor", metavar="DID")
@common
def unset_actor_tier(actor: str, home: str | None, output: str | None) -> None:
    """Take the tier of an actor back: it is trial again."""
    _give_tier(home, output, actor, None)


COMMANDS: Final = (set_tier, list_tiers, set_actor_tier, unset_actor_tier)


def _give_tier(home: str | None, output: str | None, actor: str, tier: str | None) -> None:
    record = decide(Client.locate(home), {"topic": "actor_tier", "actor": actor, "tier": tier})
    print_document({"object": "actor_tier", **decided(record["body"])}, output)
