"""Commands that show the configuration in force and change it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from spl.cli.options import common
from spl.cli.output import is_json, print_facts, print_json, print_line, print_rows
from spl.cli.text import shown
from spl.client import Client, segment

if TYPE_CHECKING:
    from spl.client import Json

THREAD: Final = "th_engine_config"
ACTOR: Final = "did:sync:system:engine"
TIERS: Final = ("trial", "paid", "team", "operator")


@click.group()
def config() -> None:
    """Show the configuration in force, or change it."""


@config.command("show", short_help="Show what is in force.")
@common
def show_config(home: str | None, output: str | None) -> None:
    """Show what the running daemon took, and the records it took it from: the newest of each topic and tier."""
    client = Client.locate(home)
    in_force = _in_force(client)
    newest: dict[object, Json] = {}
    for page in client.pages("/v1/records", thread=THREAD):
        for record in page["data"]:
            newest[json.dumps([record["body"].get("topic"), record["body"].get("tier")])] = record
    records = sorted(newest.values(), key=lambda record: record["sequence"])
    if is_json(output):
        print_json({"object": "config", "work_loop": in_force, "records": records})
        return
    print_facts({"work_loop": in_force})
    if records:
        print_line()
        print_rows(
            ("sequence", "topic", "value"),
            ([record["sequence"], record["body"].get("topic"), _value(record["body"])] for record in records),
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


@config.command("unset-profile", short_help="Go by another profile again.")
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


def _write(home: str | None, output: str | None, said: Json) -> Client:
    """Write a configuration record and print what is in force then; gives the client that did."""
    client = Client.locate(home)
    body = {"kind": "core.engine.config.v1", **said}
    client.request("POST", "/v1/records", {"thread": THREAD, "actor": ACTOR, "act": "LEARN", "body": body})
    in_force = _in_force(client)
    if is_json(output):
        print_json(in_force)
    else:
        print_facts(in_force)
    return client


def _in_force(client: Client) -> Json:
    work_loop: Json = client.request("GET", "/v1/engine/health")["work_loop"]
    return work_loop


def _value(body: Json) -> Json:
    return {name: value for name, value in body.items() if name not in {"kind", "topic"}}
