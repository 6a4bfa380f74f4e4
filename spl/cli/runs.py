"""Commands that start runs and look at them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from spl.cli import completion
from spl.cli.attending import Attended
from spl.cli.following import follow
from spl.cli.options import STREAM, Number, common, examples, streaming
from spl.cli.output import is_json, on_terminal, print_document, print_json, print_line, print_rows
from spl.cli.steps import is_outcome, step
from spl.cli.text import brief, shown
from spl.client import Client, error_of, segment
from spl.errors import RunNotCompleted

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.client import Json

_SUMMARY: Final = 300
"""Characters of a summary in an error's one line; the row above it has the whole."""
_COLUMNS: Final = ("thread", "actor", "state", "transport", "turns", "spent_usd", "goal")
_STATES: Final = ("running", "done", "stopped", "stopped_short")


@click.command(
    epilog=examples(
        "spl run 'say what is in this folder'",
        "spl run --max-turns 3 --forbid record_note -o json 'say hello' | jq -r .thread",
        "spl run --detach 'say hello'",
    )
)
@click.argument("goal")
@streaming
@click.option("--actor", metavar="DID", help="Who the run is for; the operator unless given.")
@click.option("--model", metavar="NAME", help="The model to call; the provider's default unless given.")
@click.option("--max-turns", type=click.IntRange(min=1), help="The most model calls.")
@click.option("--budget-usd", type=Number(min=0), help="The most it may spend, in US dollars.")
@click.option(
    "--wall-clock-secs",
    type=Number(min=0, min_open=True),
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
@click.option("-d", "--detach", is_flag=True, help="Print its row as soon as it has begun, and do not wait.")
@click.option(
    "--patience-secs",
    type=Number(min=0),
    default=30,
    show_default=True,
    help="How long to wait for a daemon that no longer answers, in seconds.",
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
    detach: bool,
    patience_secs: float,
    preview: bool,
) -> None:
    """Start a run towards GOAL and wait until it has ended.

    Prints the run's row, and fails unless the run completed. Where standard error is a terminal the run's steps are
    shown there as they happen, unless JSON is asked for; with stream-json they are printed, a record a line, and the
    row last. A daemon that stops is waited for: the next one closes the run.

    An interrupt (Ctrl-C) stops the run and waits for its end, and the exit status is 130 if that is why it ended. A
    second interrupt, or any other end of this command, ends the waiting alone; 'spl runs stop' stops a run from
    anywhere. A preview fails with the first refusal that a start would meet.
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
    if detach and preview:
        raise click.UsageError("Nothing is begun with --preview: leave out --detach.")
    client = Client.locate(home)
    body = {name: value for name, value in asked.items() if value is not None}
    if preview:
        _preview(client, body, output)
        return
    with Attended.to(client) as attended:
        row = attended.start(body)
        if not detach:
            row = attended.until_ended(_shower(output), patience=patience_secs)
    attended.settle()
    print_document(row, output)
    if detach and not attended.stopped:
        return
    if attended.stopped and (detach or row["outcome"] == "cancelled"):
        raise click.Abort
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
    """List runs, show one, follow what they do, or stop one."""


@runs.command(
    "list", epilog=examples("spl runs list --state running", "spl runs list -o stream-json | jq -r .thread")
)
@streaming
@click.option("--state", type=click.Choice(_STATES), help="Only runs in this state.")
@click.option("--actor", metavar="DID", help="Only this actor's runs.")
@click.option("--limit", type=click.IntRange(1, 1000), help="The most runs to list.")
def list_runs(
    home: str | None, output: str | None, state: str | None, actor: str | None, limit: int | None
) -> None:
    """List the runs."""
    query = {"state": state, "actor": actor, "limit": limit}
    listing = Client.locate(home).request("GET", "/v1/runs", query=query)
    if output == STREAM:
        for row in listing["data"]:
            print_line(json.dumps(row))
    elif is_json(output):
        print_json(listing)
    else:
        rows = ({**row, "goal": brief(str(row.get("goal")))} for row in listing["data"])
        print_rows(_COLUMNS, ([row.get(column) for column in _COLUMNS] for row in rows))


@runs.command(
    "show", epilog=examples("spl runs show th_run_1", "spl runs show th_run_1 -o json | jq .spent_usd")
)
@click.argument("thread", shell_complete=completion.runs)
@common
def show_run(thread: str, home: str | None, output: str | None) -> None:
    """Show the row of the run on THREAD."""
    print_document(Client.locate(home).request("GET", f"/v1/runs/{segment(thread)}"), output)


@runs.command(
    "tail",
    short_help="Follow what runs do.",
    epilog=examples("spl runs tail th_run_1", "spl runs tail -o json | jq -c .body"),
)
@click.argument("thread", required=False, shell_complete=completion.runs)
@streaming
@click.option(
    "--since",
    type=click.IntRange(min=0),
    help="Only what stands in the log after this sequence; 0 is all of it.",
)
def tail(thread: str | None, home: str | None, output: str | None, since: int | None) -> None:
    """Print the steps of the run on THREAD, or of all runs, as they happen.

    A line for each turn, call, verdict with its layer and rule, result, observation, note and outcome: first those that
    there are, from where the oldest run that still goes on began, then each one to come. On one THREAD it ends with the
    run's outcome, otherwise with an interrupt. JSON is one record a line. A daemon that stops is waited for, and
    nothing of what was written meanwhile is missed.
    """
    client = Client.locate(home)
    if thread is not None:
        client.request("GET", f"/v1/runs/{segment(thread)}")
        path = f"/v1/threads/{segment(thread)}/watch"
    else:
        path, since = "/v1/watch", _begun(client) if since is None else since
    for record in follow(client, path, since, name="runs tail"):
        line = step(record)
        if line is None:
            continue
        if output == STREAM or is_json(output):
            print_line(json.dumps(record))
        else:
            print_line(line if thread is not None else f"{shown(record['thread'])}  {line}")
        if thread is not None and is_outcome(record):
            return


@runs.command(
    "stop",
    short_help="Have a run end.",
    epilog=examples(
        "spl runs stop th_run_1",
        "spl runs list --state running -o stream-json | jq -r .thread | xargs -n 1 spl runs stop",
    ),
)
@click.argument("thread", shell_complete=completion.going)
@common
def stop_run(thread: str, home: str | None, output: str | None) -> None:
    """Have the run on THREAD end, cancelled, at its next step; it may still be going on when this returns."""
    path = f"/v1/runs/{segment(thread)}/events"
    print_document(Client.locate(home).request("POST", path, {"type": "stop"}), output)


def _shower(output: str | None) -> Callable[[Json], None]:
    """Give what shows a run's records as they come: on standard output, on a terminal's standard error, or nowhere."""
    if output == STREAM:
        return lambda record: print_line(json.dumps(record)) if step(record) is not None else None
    if output == "json" or not on_terminal(2):
        return lambda _: None

    def show(record: Json) -> None:
        line = step(record)
        if line is not None:
            click.echo(line, err=True)

    return show


def _begun(client: Client) -> int:
    """Give the sequence before that of the oldest run which still goes on, or that of the log's last record."""
    rows = client.request("GET", "/v1/runs", query={"state": "running", "limit": 1})["data"]
    if rows:
        return int(rows[0]["sequence"]) - 1
    return int(client.request("GET", "/v1/engine/health")["records"])


def _preview(client: Client, body: Json, output: str | None) -> None:
    told = client.request("POST", "/v1/work/loop/preview", body)
    if output == STREAM or is_json(output):
        print_document(told, output)
    else:
        said = [f"{refusal['code']}: {refusal['message']}" for refusal in told["refusals"]]
        print_document({**told, "refusals": said}, "table")
    if not told["would_start"]:
        raise error_of(told["refusals"][0])
