"""Commands that write records and read threads."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

import click

from spl.cli.options import common
from spl.cli.output import is_json, print_document, print_json, print_line, print_rows
from spl.cli.text import brief, shown
from spl.client import Client, error_of, segment
from spl.errors import InvalidBody, NotFound, SplError
from spl.records.canonical import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.client import Json

# What says most about a record in one word, the most telling first.
_WORDS: Final = ("decision", "outcome", "status", "tool", "transport", "topic", "rule", "text", "goal")

_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 5.0
# Too many streams, and all that is out of reach for now: a daemon that is not there, a log that cannot be read.
_PASSING: Final = (429, 503)


@click.command()
@common
@click.option("--thread", required=True, metavar="THREAD", help="The thread to write on.")
@click.option("--actor", required=True, metavar="DID", help="Who the record is by.")
@click.option("--act", required=True, metavar="ACT", help="INTEND, DO, KNOW, LEARN, GET, PUT, CALL or MAP.")
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


@thread.command("records")
@click.argument("thread")
@common
@click.option("--since", type=click.IntRange(min=0), help="Only records whose sequence is above this.")
@click.option("--limit", type=click.IntRange(min=1), help="The most records; all of them unless given.")
def thread_records(
    thread: str, home: str | None, output: str | None, since: int | None, limit: int | None
) -> None:
    """List the records on THREAD in the order they arrived."""
    path = f"/v1/threads/{segment(thread)}/records"
    pages = Client.locate(home).pages(path, since=since, limit=limit)
    if is_json(output):
        listing = next(pages)
        for page in pages:
            listing = {**page, "data": listing["data"] + page["data"]}
        print_json(listing)
    else:
        print_rows(("sequence", "kind", ""), _rows(pages))


@thread.command("watch")
@click.argument("thread")
@common
@click.option("--since", type=click.IntRange(min=0), help="Only records whose sequence is above this.")
def thread_watch(thread: str, home: str | None, output: str | None, since: int | None) -> None:
    """Print the records on THREAD as they are written.

    First those that are there, one a line, then each one to come, until it is interrupted. A daemon that
    stops is waited for once it has answered, and nothing of what was written meanwhile is missed.
    """
    path = f"/v1/threads/{segment(thread)}/watch"
    for record in _followed(Client.locate(home), path, since):
        if is_json(output):
            print_line(json.dumps(record))
        else:
            print_line(shown("  ".join(map(str, _row(record))).rstrip()))


def _followed(client: Client, path: str, position: int | None) -> Iterator[Json]:
    """Give the records of an event stream, which is opened again where it was as often as it breaks."""
    answered, wait, last = False, 0.0, None
    while True:
        try:
            if last is not None:
                _require_same_log(client, last)
            for event in client.watch(path, position=position):
                answered, wait = True, 0.0
                position = position if event.id is None else event.id
                if event.name == "record.created":
                    last = event.data["record"]
                    yield last
                elif event.name == "error":
                    raise error_of(event.data)
        except SplError as error:
            # What a daemon that has not answered yet says, or nobody, is the answer.
            if not answered or error.status not in _PASSING:
                raise
        if not wait:
            click.echo("spl: thread watch: the stream has broken off; waiting for the daemon", err=True)
        wait = min(max(2 * wait, _FIRST_WAIT), _LONGEST_WAIT)
        time.sleep(wait)


def _require_same_log(client: Client, last: Json) -> None:
    """See that the log still has the last record that came: in one put back from a backup, others follow it."""
    try:
        client.request("GET", f"/v1/records/{last['id']}")
    except NotFound:
        raise NotFound(
            f"the record {last['sequence']}, which came last, is not in the log: it was put back from a backup",
            remedy="begin anew, without --since",
        ) from None


def _rows(pages: Iterator[Json]) -> Iterator[tuple[object, object, str]]:
    for page in pages:
        yield from map(_row, page["data"])


def _row(record: Json) -> tuple[object, object, str]:
    body = record["body"]
    return record["sequence"], body.get("kind", record["act"]), _word(body)


def _word(body: Json) -> str:
    words = (body[name] for name in _WORDS if isinstance(body.get(name), str))
    return brief(next(words, ""))
