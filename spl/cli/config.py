"""Commands that show the configuration in force and change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from spl.cli.options import common
from spl.cli.output import is_json, print_facts, print_json, print_rows
from spl.client import Client

if TYPE_CHECKING:
    from spl.client import Json

THREAD: Final = "th_engine_config"
ACTOR: Final = "did:sync:system:engine"


@click.group()
def config() -> None:
    """Show the configuration in force, or change it."""


@config.command("show")
@common
def show_config(home: str | None, output: str | None) -> None:
    """Show what the running daemon took, and the records it took it from."""
    client = Client.locate(home)
    in_force = _in_force(client)
    records = [record for page in client.pages("/v1/records", thread=THREAD) for record in page["data"]]
    if is_json(output):
        print_json({"object": "config", "work_loop": in_force, "records": records})
        return
    print_facts({"work_loop": in_force})
    if records:
        click.echo()
        print_rows(
            ("sequence", "topic", "value"),
            ([record["sequence"], record["body"].get("topic"), _value(record["body"])] for record in records),
        )


@config.command("set-transport")
@click.argument("transport", type=click.Choice(["in_process", "sandboxed"]))
@common
@click.option("--members", is_flag=True, help="Everyone's runs but the operator's own.")
def set_transport(transport: str, home: str | None, output: str | None, members: bool) -> None:
    """Choose where the operator's own runs that start from now on take place.

    Prints what the running daemon took. Runs already going keep their transport.
    """
    client = Client.locate(home)
    topic = "work_loop_transport_members" if members else "work_loop_transport"
    body = {"kind": "core.engine.config.v1", "topic": topic, "transport": transport}
    client.request("POST", "/v1/records", {"thread": THREAD, "actor": ACTOR, "act": "LEARN", "body": body})
    in_force = _in_force(client)
    if is_json(output):
        print_json(in_force)
    else:
        print_facts(in_force)


def _in_force(client: Client) -> Json:
    work_loop: Json = client.request("GET", "/v1/engine/health")["work_loop"]
    return work_loop


def _value(body: Json) -> Json:
    return {name: value for name, value in body.items() if name not in {"kind", "topic"}}
