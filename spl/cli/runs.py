"""Commands that start runs and look at them."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final

import click

from spl.cli.options import common
from spl.cli.output import is_json, print_document, print_json, print_rows
from spl.cli.text import brief, shown
from spl.client import Client, error_of, segment
from spl.errors import RunNotCompleted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.client import Json

_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 1.0
_SUMMARY: Final = 300
"""Characters of a summary in an error's one line; the row above it has the whole."""
_COLUMNS: Final = ("thread", "actor", "state", "transport", "turns", "spent_usd", "goal")


@click.command()
@click.argument("goal")
@common
@click.option("--actor", metavar="DID", help="Who the run is for; the operator unless given.")
@click.option("--model", metavar="NAME", help="The model to call; the provider's default unless given.")
@click.option("--max-turns", type=click.IntRange(min=1), help="The most model calls.")
@click.option("--budget-usd", type=click.FloatRange(min=0), help="The most it may spend, in US dollars.")
@click.option(
    "--wall-clock-secs",
    type=click.FloatRange(min=0, min_open=True),
    help="The longest it may take, in seconds.",
)
@click.option(
    "--forbid", "forbidden", multiple=True, metavar="TOOL", help="A tool it may not call; repeatable."
)
@click.option(
    "--tool",
    "tools",
    multiple=True,
    metavar="TOOL",
    help="A tool it may call, and none but those given; repeatable.",
)
@click.option("--preview", is_flag=True, help="Say what the start would be, and start nothing.")
def run(
    goal: str,
    home: str | None,
    output: str | None,
    actor: str | None,
    model: str | None,
    max_turns: int | None,
    budget_usd: float | None,
    wall_clock_secs: float | None,
    forbidden: tuple[str, ...],
    tools: tuple[str, ...],
    preview: bool,
) -> None:
    """Start a run towards GOAL and wait until it has ended.

    Prints the run's row, and fails unless the run completed. An interrupt ends the waiting, not the run: 'spl runs
    stop' does that. A preview fails with the first refusal that a start would meet.
    """
    asked = {
        "goal": goal,
        "actor": actor,
        "model": model,
        "max_turns": max_turns,
        "budget_usd": budget_usd,
        "wall_clock_secs": wall_clock_secs,
        "forbidden_tools": list(forbidden) or None,
        "tools": list(tools) or None,
    }
    client = Client.locate(home)
    body = {name: value for name, value in asked.items() if value is not None}
    if preview:
        _preview(client, body, output)
        return
    row = _waited_for(client, client.request("POST", "/v1/work/loop", body))
    print_document(row, output)
    if row["state"] != "done":
        raise RunNotCompleted(
            f"the run {row['thread']} ended {row['state']}, outcome {row.get('outcome')}: "
            f"{brief(str(row.get('summary')), _SUMMARY).removesuffix('.')}",
            thread=row["thread"],
            outcome=row.get("outcome"),
            remedy=f"'spl why {row['thread']}' tells how it came to that",
        )


@click.group()
def runs() -> None:
    """List runs, show one, or stop one."""


@runs.command("list")
@common
@click.option(
    "--state", metavar="STATE", help="Only runs in this state: running, done, stopped or stopped_short."
)
@click.option("--actor", metavar="DID", help="Only this actor's runs.")
@click.option("--limit", type=click.IntRange(1, 1000), help="The most runs to list.")
def list_runs(
    home: str | None, output: str | None, state: str | None, actor: str | None, limit: int | None
) -> None:
    """List the runs."""
    query = {"state": state, "actor": actor, "limit": limit}
    listing = Client.locate(home).request("GET", "/v1/runs", query=query)
    if is_json(output):
        print_json(listing)
    else:
        rows = ({**row, "goal": brief(str(row.get("goal")))} for row in listing["data"])
        print_rows(_COLUMNS, ([row.get(column) for column in _COLUMNS] for row in rows))


@runs.command("show")
@click.argument("thread")
@common
def show_run(thread: str, home: str | None, output: str | None) -> None:
    """Show the row of the run on THREAD."""
    print_document(Client.locate(home).request("GET", f"/v1/runs/{segment(thread)}"), output)


@runs.command("stop", short_help="Have a run end.")
@click.argument("thread")
@common
def stop_run(thread: str, home: str | None, output: str | None) -> None:
    """Have the run on THREAD end, cancelled, at its next step; it may still be going on when this returns."""
    path = f"/v1/runs/{segment(thread)}/events"
    print_document(Client.locate(home).request("POST", path, {"type": "stop"}), output)


def _preview(client: Client, body: Json, output: str | None) -> None:
    told = client.request("POST", "/v1/work/loop/preview", body)
    if is_json(output):
        print_json(told)
    else:
        said = [f"{refusal['code']}: {refusal['message']}" for refusal in told["refusals"]]
        print_document({**told, "refusals": said}, "table")
    if not told["would_start"]:
        raise error_of(told["refusals"][0])


def _waited_for(client: Client, row: Json) -> Json:
    """Give a run's row once it has ended."""
    waits = _waits()
    try:
        while row["state"] == "running":
            time.sleep(next(waits))
            row = client.request("GET", f"/v1/runs/{segment(row['thread'])}")
    except KeyboardInterrupt:
        stop = f"spl runs stop {row['thread']}"
        click.echo(f"spl: run: the run goes on; '{shown(stop)}' stops it", err=True)
        raise
    return row


def _waits() -> Iterator[float]:
    """Give how many seconds to wait before each look: short runs are seen at once, long ones seldom asked."""
    return (min(_FIRST_WAIT * 1.25**number, _LONGEST_WAIT) for number in itertools.count())
