"""Commands that write records and read threads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from spl.cli import completion
from spl.cli.following import follow
from spl.cli.options import STREAM, common, examples, streaming
from spl.cli.output import is_json, print_document, print_json, print_line, print_rows
from spl.cli.text import brief, shown
from spl.client import Client, segment
from spl.errors import InvalidBody
from spl.records.canonical import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.client import Json

# What says most about a record in one word, the most telling first.
_WORDS: Final = ("decision", "outcome", "status", "tool", "transport", "topic", "rule", "text", "goal")


@click.command(
    epilog=examples(
        "spl know --thread th_notes --actor did:sync:user:$USER --act KNOW \\",
        '  --body \'{"kind":"app.note.text.v1","text":"a note"}\'',
    )
)
@common
@click.option(
    "--thread",
    required=True,
    metavar="THREAD",
    help="The thread to write on.",
    shell_complete=completion.runs,
)
@click.option("--actor", required=True, metavar="DID", help="Who the record is by.")
@click.option(
    "--act",
    required=True,
    metavar="ACT",
    help="INTEND, DO, KNOW, LEARN, GET, PUT, CALL or MAP.",
    shell_complete=completion.acts,
)
@click.option("--body", required=True, metavar="JSON", help="The record's body, a JSON object.")
def know(home: str | None, output: str | None, thread: str, actor: str, act: str, body: str) -> None:
    """Write a record and print it as the log holds it."""
    try:
        parsed = parse(body)
    except InvalidBody as error:
        raise InvalidBody(f"--body is not valid JSON: {error.message}") from None
    record = Client.locate(home).request(
        "POST", "/v1/records", {"thread": thread, "actor": actor, "act": act, "body": parsed}
    )
    print_document(record, output)


@click.group()
def thread() -> None:
    """Read a thread."""


@thread.command(
    "records",
    epilog=examples(
        "spl thread records th_run_1",
        "spl thread records th_run_1 -o json >run.json",
        "spl thread records th_run_1 -o stream-json | jq -r .body.kind",
    ),
)
@click.argument("thread", shell_complete=completion.runs)
@streaming
@click.option("--since", type=click.IntRange(min=0), help="Only records whose sequence is above this.")
@click.option("--limit", type=click.IntRange(min=1), help="The most records; all of them unless given.")
def thread_records(
    thread: str, home: str | None, output: str | None, since: int | None, limit: int | None
) -> None:
    """List the records on THREAD in the order they arrived."""
    path = f"/v1/threads/{segment(thread)}/records"
    pages = Client.locate(home).pages(path, since=since, limit=limit)
    if output == STREAM:
        for page in pages:
            for record in page["data"]:
                print_line(json.dumps(record))
    elif is_json(output):
        listing = next(pages)
        for page in pages:
            listing = {**page, "data": listing["data"] + page["data"]}
        print_json(listing)
    else:
        print_rows(("sequence", "kind", ""), _rows(pages))


@thread.command(
    "watch",
    epilog=examples("spl thread watch th_run_1", "spl thread watch th_engine_config -o json | jq -c .body"),
)
@click.argument("thread", shell_complete=completion.runs)
@streaming
@click.option("--since", type=click.IntRange(min=0), help="Only records whose sequence is above this.")
def thread_watch(thread: str, home: str | None, output: str | None, since: int | None) -> None:
    """Print the records on THREAD as they are written.

    First those that are there, one a line, then each one to come, until it is interrupted. A daemon that
    stops is waited for once it has answered, and nothing of what was written meanwhile is missed.
    """
    path = f"/v1/threads/{segment(thread)}/watch"
    for record in follow(Client.locate(home), path, since, name="thread watch"):
        if output == STREAM or is_json(output):
            print_line(json.dumps(record))
        else:
            print_line(shown("  ".join(map(str, _row(record))).rstrip()))


def _rows(pages: Iterator[Json]) -> Iterator[tuple[object, object, str]]:
    for page in pages:
        yield from map(_row, page["data"])


def _row(record: Json) -> tuple[object, object, str]:
    body = record["body"]
    return record["sequence"], body.get("kind", record["act"]), _word(body)


def _word(body: Json) -> str:
    words = (body[name] for name in _WORDS if isinstance(body.get(name), str))
    return brief(next(words, ""))
