"""Commands that show the configuration in force and change it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import click

from spl.cli.options import Command, common
from spl.cli.output import (
    is_json,
    print_document,
    print_facts,
    print_json,
    print_line,
    print_listing,
    print_rows,
)
from spl.cli.text import shown
from spl.client import Client, segment
from spl.errors import ActorNotCovered, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.client import Json

THREAD: Final = "th_engine_config"
ACTOR: Final = "did:sync:system:engine"
CONFIG: Final = "core.engine.config.v1"
TIER: Final = "core.engine.tier.v1"
GIVEN: Final = ("trial", "paid", "team")
"""The tiers that an actor can be given."""

TIERS: Final = (*GIVEN, "operator")

# The field that tells records of one topic apart, as the kernel does.
_KEYS: Final = {"work_loop_profile": "tier", "actor_tier": "actor", "permission_rule": "name"}

_RULE: Final = ("name", "action", "priority", "enabled", "hits", "expression")
_MOST_PRIORITY: Final = 1_000_000

# `resource` beside a string that it never is: it begins with "tool:". What no pattern can tell passes: an escape, three
# quotes.
_NEVER: Final = re.compile(r"""(?<![\w.])resource\s*(?:[!=]=|in\s*\[)\s*[rR]?(["'])(?!tool:|\\|\1)(.*?)\1""")

_WHOLE, _NUMBER = click.IntRange(min=0), click.FloatRange(min=0)
_SOME, _SECONDS = click.IntRange(min=1), click.FloatRange(min=1)
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


class _Group(click.Group):
    """The commands, one of which is found by the name that the others would have it bear."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Give a command; None if there is none of this name."""
        return super().get_command(ctx, "list-rules" if cmd_name == "list-permission-rules" else cmd_name)


@click.group(cls=_Group)
def config() -> None:
    """Show the configuration in force, or change it."""


@config.command("show", short_help="Show what is in force.")
@common
def show_config(home: str | None, output: str | None) -> None:
    """Show what the running daemon took, and the records it took it from: the newest of each thing decided.

    The records are the operator's to read: with anyone else's token they are null, which standard error says.
    """
    client = Client.locate(home)
    in_force = _in_force(client)
    records = _records(client)
    if records is None:
        click.echo("spl: config show: the records are the operator's to read, and not this token's", err=True)
    if is_json(output):
        print_json({"object": "config", "work_loop": in_force, "records": records})
        return
    print_facts({"work_loop": in_force})
    if records:
        print_line()
        print_rows(
            ("sequence", "topic", "value"),
            ([record["sequence"], _topic(record["body"]), _value(record["body"])] for record in records),
        )


@config.command("set-transport", short_help="Choose where runs take place.")
@click.argument("transport", type=click.Choice(["in_process", "sandboxed"]))
@common
@click.option("--members", is_flag=True, help="Everyone's runs but the operator's own.")
def set_transport(transport: str, home: str | None, output: str | None, members: bool) -> None:
    """Choose where the operator's own runs that start from now on take place.

    Prints what the running daemon took. Runs already going keep their transport.
    """
    topic = "work_loop_transport_members" if members else "work_loop_transport"
    _write(home, output, {"topic": topic, "transport": transport})


_tier = click.option("--tier", type=click.Choice(TIERS), help="The runs of this tier, and no others.")


@config.command("set-profile", short_help="Choose what confines runs.")
@click.argument("profile", metavar="NAME")
@common
@_tier
def set_profile(profile: str, home: str | None, output: str | None, tier: str | None) -> None:
    """Choose the profile that sandboxed runs are confined by from now on; a tier's own goes before that of all.

    Prints what the running daemon took, and on standard error what lint warns of. It refuses a profile that cannot be
    used, or that lies below the floor. Runs already going keep theirs.
    """
    choice = {"topic": "work_loop_profile", "profile": profile, **({"tier": tier} if tier else {})}
    client = _write(home, output, choice)
    for remark in client.request("GET", f"/v1/profiles/{segment(profile)}").get("remarks", ()):
        where = ":".join(str(remark[key]) for key in ("file", "line", "column") if remark[key] is not None)
        said = f"{remark['severity']}: {where}: {remark['place']}: {remark['reason']}"
        click.echo(f"spl: config set-profile: {shown(said)}", err=True)


@config.command("unset-profile", short_help="Take the choice of a profile back.")
@common
@_tier
def unset_profile(home: str | None, output: str | None, tier: str | None) -> None:
    """Take the choice of a profile back: a tier goes by that of all again, and all by 'worker'.

    Prints what the running daemon took.
    """
    _write(home, output, {"topic": "work_loop_profile", "profile": None, **({"tier": tier} if tier else {})})


@config.command("set-capacity", short_help="Choose how many run at once.")
@click.argument("capacity", metavar="NUMBER", type=click.IntRange(0, 4096))
@common
def set_capacity(capacity: int, home: str | None, output: str | None) -> None:
    """Choose how many sandboxed runs may go on at once; with 0 none is started, and those going on go on.

    Prints what the running daemon took.
    """
    _write(home, output, {"topic": "admission_capacity", "capacity": capacity})


@config.command("unset-capacity", short_help="Let the host decide again.")
@common
def unset_capacity(home: str | None, output: str | None) -> None:
    """Let the daemon's settings decide again how many sandboxed runs go on at once, or else the host's memory.

    Prints what the running daemon took.
    """
    _write(home, output, {"topic": "admission_capacity", "capacity": None})


@config.command("add-permission-rule", short_help="Add a rule, or replace it.")
@common
@click.option(
    "--name", required=True, metavar="NAME", help="The rule's name; a rule of this name is replaced."
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
    _record(client, {"topic": "permission_rule", **rule, "enabled": True})
    print_document(_rule(client, name), output)
    for _, text in _NEVER.findall(expression):
        said = f"warning: `resource` is never {text!r}, it is 'tool:' and the tool's name"
        click.echo(f"spl: config add-permission-rule: {shown(said)}", err=True)


_flag = click.option("--name", "flag", metavar="NAME", help="The rule's name, as an option instead.")


@config.command("remove-permission-rule", short_help="Take a rule away.")
@click.argument("name", required=False)
@common
@_flag
def remove_rule(name: str | None, home: str | None, output: str | None, flag: str | None) -> None:
    """Take a permission rule away, and print what it was."""
    client = Client.locate(home)
    rule = _rule(client, _one(name, flag))
    _record(client, {"topic": "permission_rule", "name": rule["name"], "expression": None})
    print_document({**rule, "removed": True}, output)


@config.command("disable-permission-rule", short_help="Have a rule match nothing.")
@click.argument("name", required=False)
@common
@_flag
def disable_rule(name: str | None, home: str | None, output: str | None, flag: str | None) -> None:
    """Have a permission rule match nothing until it is enabled again; prints it as the running daemon took it."""
    _switch(home, output, _one(name, flag), enabled=False)


@config.command("enable-permission-rule", short_help="Have a rule match again.")
@click.argument("name", required=False)
@common
@_flag
def enable_rule(name: str | None, home: str | None, output: str | None, flag: str | None) -> None:
    """Have a permission rule match again that was disabled; prints it as the running daemon took it."""
    _switch(home, output, _one(name, flag), enabled=True)


@config.command("list-rules", short_help="List the permission rules.")
@common
def list_rules(home: str | None, output: str | None) -> None:
    """List the permission rules in the order they are asked, each with how often it has decided."""
    print_listing(Client.locate(home).request("GET", "/v1/rules"), output, *_RULE)


def _ceilings(command: Command) -> Command:
    for name, (kind, text) in reversed(_CEILINGS.items()):
        command = click.option(f"--{name.replace('_', '-')}", type=kind, help=text)(command)
    return command


@config.command("set-tier", short_help="Change a tier's ceilings.")
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
    _record(client, {"tier": tier, **said, **again}, kind=TIER)
    tiers = client.request("GET", "/v1/tiers")["data"]
    print_document(next(row for row in tiers if row["tier"] == tier), output)


@config.command("list-tiers", short_help="List the tiers.")
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


@config.command("set-actor-tier", short_help="Give an actor a tier.")
@click.argument("actor", metavar="DID")
@click.argument("tier", type=click.Choice(GIVEN))
@common
def set_actor_tier(actor: str, tier: str, home: str | None, output: str | None) -> None:
    """Give an actor a tier for its runs that start from now on; the operator's own comes with the instance."""
    _give_tier(home, output, actor, tier)


@config.command("unset-actor-tier", short_help="Take an actor's tier back.")
@click.argument("actor", metavar="DID")
@common
def unset_actor_tier(actor: str, home: str | None, output: str | None) -> None:
    """Take the tier of an actor back: it is trial again."""
    _give_tier(home, output, actor, None)


def _give_tier(home: str | None, output: str | None, actor: str, tier: str | None) -> None:
    record = _record(Client.locate(home), {"topic": "actor_tier", "actor": actor, "tier": tier})
    print_document({"object": "actor_tier", **_value(record["body"])}, output)


def _switch(home: str | None, output: str | None, name: str, *, enabled: bool) -> None:
    client = Client.locate(home)
    rule = _rule(client, name)
    kept = {field: rule[field] for field in ("name", "action", "priority", "expression")}
    _record(client, {"topic": "permission_rule", **kept, "enabled": enabled})
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


def _write(home: str | None, output: str | None, said: Json) -> Client:
    """Write a configuration record and print what is in force then; gives the client that did."""
    client = Client.locate(home)
    _record(client, said)
    print_document(_in_force(client), output)
    return client


def _record(client: Client, said: Json, *, kind: str = CONFIG) -> Json:
    body = {"kind": kind, **said}
    return client.request(
        "POST", "/v1/records", {"thread": THREAD, "actor": ACTOR, "act": "LEARN", "body": body}
    )


def _in_force(client: Client) -> Json:
    work_loop: Json = client.request("GET", "/v1/engine/health")["work_loop"]
    return work_loop


def _records(client: Client) -> list[Json] | None:
    """Give the newest record of each thing decided; None where the bearer may read but its own."""
    newest: dict[str, Json] = {}
    # Others may write to this thread as well, and configure nothing by it.
    for page in client.pages("/v1/records", thread=THREAD, actor=ACTOR):
        for record in page["data"]:
            newest |= dict.fromkeys(_decided(record["body"]), record)
    by_sequence = {record["sequence"]: record for record in newest.values()}
    if by_sequence or _reads_all(client):
        return [by_sequence[sequence] for sequence in sorted(by_sequence)]
    return None


def _reads_all(client: Client) -> bool:
    # What is not the bearer's is left out of records without a word, and of runs with one.
    try:
        client.request("GET", "/v1/runs", query={"actor": ACTOR, "limit": 1})
    except ActorNotCovered:
        return False
    return True


def _decided(body: Json) -> Iterator[str]:
    """Give what a record decides, a key for each thing: of a tier every ceiling has a newest of its own."""
    topic = _topic(body)
    if topic == TIER:
        yield from (json.dumps([topic, body.get("tier"), name]) for name in _value(body) if name != "tier")
    else:
        yield json.dumps([topic, body.get(_KEYS.get(topic, ""))])


def _topic(body: Json) -> str:
    """Give what a record is about; one of a tier has no topic but its kind."""
    return str(body.get("topic", body.get("kind")))


def _value(body: Json) -> Json:
    return {name: value for name, value in body.items() if name not in {"kind", "topic"}}
