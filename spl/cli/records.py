"""Commands that write records and read threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from spl.cli.options import common
from spl.cli.output import is_json, print_document, print_json, print_rows
from spl.cli.text import brief
from spl.client import Client, segment
from spl.errors import InvalidBody
from spl.records.canonical import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.client import Json

# What says most about a record in one word, the most telling first.
_WORDS: Final = ("decision", "outcome", "status", "tool", "transport", "topic", "rule", "text", "goal")


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


def _rows(pages: Iterator[Json]) -> Iterator[tuple[object, object, str]]:
    for page in pages:
        for record in page["data"]:
            body = record["body"]
            yield record["sequence"], body.get("kind", record["act"]), _word(body)


def _word(body: Json) -> str:
    words = (body[name] for name in _WORDS if isinstance(body.get(name), str))
    return brief(next(words, ""))
