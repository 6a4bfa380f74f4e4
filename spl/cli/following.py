"""Following an event stream over whatever breaks it off: a daemon that stops and starts again, too many streams."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from spl.client import error_of
from spl.errors import NotFound, SplError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spl.client import Client, Json

_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 5.0
# Too many streams, and all that is out of reach for now: a daemon that is not there, a log that cannot be read.
_PASSING: Final = (429, 503)


def follow(
    client: Client,
    path: str,
    position: int | None = None,
    *,
    name: str,
    answered: bool = False,
    patience: float = float("inf"),
) -> Iterator[Json]:
    """Give the records of an event stream, which is opened again where it was as often as it breaks.

    The first refusal is the answer, unless the daemon has `answered` already; after that whatever passes is waited
    for, `patience` seconds at a time. `name` is the command's, which says on standard error that it waits. Raises the
    refusal, what does not pass, and NotFound where the log is not the one it was.
    """
    wait, broken_at, last = 0.0, None, None
    while True:
        problem: SplError | None = None
        try:
            if last is not None:
                _require_same_log(client, last)
            for event in client.watch(path, position=position):
                answered, wait, broken_at = True, 0.0, None
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
            problem = error
        if broken_at is None:
            broken_at = time.monotonic()
            click.echo(f"spl: {name}: the stream has broken off; waiting for the daemon", err=True)
        wait = min(max(2 * wait, _FIRST_WAIT), _LONGEST_WAIT)
        left = broken_at + patience - time.monotonic()
        if problem is not None and left <= 0:
            raise problem
        time.sleep(max(0.0, min(wait, left)))


def _require_same_log(client: Client, last: Json) -> None:
    """See that the log still has the last record that came: in one put back from a backup, others follow it."""
    try:
        client.request("GET", f"/v1/records/{last['id']}")
    except NotFound:
        raise NotFound(
            f"the record {last['sequence']}, which came last, is not in the log: it was put back from a backup",
            remedy="begin anew, without --since",
        ) from None
