"""Commands that show the configuration in force and change it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from spl.cli import completion, rules, tiers
from spl.cli.options import common, examples
from spl.cli.output import is_json, print_document, print_facts, print_json, print_line, print_rows
from spl.cli.text import shown
from spl.client import Client, segment
from spl.decisions import ENGINE, THREAD, TIER, TIERS, decide, decided
from spl.errors import ActorNotCovered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.client import Json

# The field that tells records of one topic apart, as the kernel does.
_KEYS: Final = {"work_loop_profile": "tier", "actor_tier": "actor", "permission_rule": "name"}


class _Group(click.Group):
    """The commands, one of which is found by the name that the others would have it bear."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Give a command; None if there is none of this name."""
        return super().get_command(ctx, "list-rules" if cmd_name == "list-permission-rules" else cmd_name)


@click.group(cls=_Group)
def config() -> None:
    """Show the configuration in force, or change it."""


for command in (*rules.COMMANDS, *tiers.COMMANDS):
    config.add_command(command)


@config.command(
    "show",
    short_help="Show what is in force.",
    epilog=examples("spl config show", "spl config show -o json | jq -r .work_loop.transport"),
)
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
            ([record["sequence"], _topic(record["body"]), decided(record["body"])] for record in records),
        )


@config.command(
    "set-transport",
    short_help="Choose where runs take place.",
    epilog=examples("spl config set-transport sandboxed", "spl config set-transport sandboxed --members"),
)
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


@config.command(
    "set-profile",
    short_help="Choose what confines runs.",
    epilog=examples("spl config set-profile strict", "spl config set-profile strict --tier trial"),
)
@click.argument("profile", metavar="NAME", shell_complete=completion.profiles)
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


@config.command(
    "unset-profile",
    short_help="Take the choice of a profile back.",
    epilog=examples("spl config unset-profile", "spl config unset-profile --tier trial"),
)
@common
@_tier
def unset_profile(home: str | None, output: str | None, tier: str | None) -> None:
    """Take the choice of a profile back: a tier goes by that of all again, and all by 'worker'.

    Prints what the running daemon took.
    """
    _write(home, output, {"topic": "work_loop_profile", "profile": None, **({"tier": tier} if tier else {})})


@config.command(
    "set-capacity",
    short_help="Choose how many run at once.",
    epilog=examples("spl config set-capacity 4", "spl config set-capacity 0"),
)
@click.argument("capacity", metavar="NUMBER", type=click.IntRange(0, 4096))
@common
def set_capacity(capacity: int, home: str | None, output: str | None) -> None:
    """Choose how many sandboxed runs may go on at once; with 0 none is started, and those going on go on.

    Prints what the running daemon took.
    """
    _write(home, output, {"topic": "admission_capacity", "capacity": capacity})


@config.command(
    "unset-capacity", short_help="Let the host decide again.", epilog=examples("spl config unset-capacity")
)
@common
def unset_capacity(home: str | None, output: str | None) -> None:
    """Let the daemon's settings decide again how many sandboxed runs go on at once, or else the host's memory.

    Prints what the running daemon took.
    """
    _write(home, output, {"topic": "admission_capacity", "capacity": None})


@config.command(
    "set-standby",
    short_help="Choose how many workers stand by.",
    epilog=examples("spl config set-standby 4", "spl config set-standby 0"),
)
@click.argument("workers", metavar="NUMBER", type=click.IntRange(0, 64))
@common
def set_standby(workers: int, home: str | None, output: str | None) -> None:
    """Choose how many workers of each profile in use are made ahead of the runs that take them; with 0 none is.

    Prints what the running daemon took.
    """
    _write(home, output, {"topic": "standby_workers", "workers": workers})


@config.command(
    "unset-standby", short_help="Let the settings decide again.", epilog=examples("spl config unset-standby")
)
@common
def unset_standby(home: str | None, output: str | None) -> None:
    """Let the daemon's settings decide again how many workers of each profile in use stand by.

    Prints what the running daemon took.
    """
    _write(home, output, {"topic": "standby_workers", "workers": None})


def _write(home: str | None, output: str | None, said: Json) -> Client:
    """Write a configuration record and print what is in force then; gives the client that did."""
    client = Client.locate(home)
    decide(client, said)
    print_document(_in_force(client), output)
    return client


def _in_force(client: Client) -> Json:
    work_loop: Json = client.request("GET", "/v1/engine/health")["work_loop"]
    return work_loop


def _records(client: Client) -> list[Json] | None:
    """Give the newest record of each thing decided; None where the bearer may read but its own."""
    newest: dict[str, Json] = {}
    # Others may write to this thread as well, and configure nothing by it.
    for page in client.pages("/v1/records", thread=THREAD, actor=ENGINE):
        for record in page["data"]:
            newest |= dict.fromkeys(_things(record["body"]), record)
    by_sequence = {record["sequence"]: record for record in newest.values()}
    if by_sequence or _reads_all(client):
        return [by_sequence[sequence] for sequence in sorted(by_sequence)]
    return None


def _reads_all(client: Client) -> bool:
    # What is not the bearer's is left out of records without a word, and of runs with one.
    try:
        client.request("GET", "/v1/runs", query={"actor": ENGINE, "limit": 1})
    except ActorNotCovered:
        return False
    return True


def _things(body: Json) -> Iterator[str]:
    """Give what a record decides, a key for each thing: of a tier every ceiling has a newest of its own."""
    topic = _topic(body)
    if topic == TIER:
        yield from (json.dumps([topic, body.get("tier"), name]) for name in decided(body) if name != "tier")
    else:
        yield json.dumps([topic, body.get(_KEYS.get(topic, ""))])


def _topic(body: Json) -> str:
    """Give what a record is about; one of a tier has no topic but its kind."""
    return str(body.get("topic", body.get("kind")))
