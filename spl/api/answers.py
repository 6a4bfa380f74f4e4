"""Answers: JSON as the contract shapes it, and errors with their code and status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from starlette.types import Send

    from spl.errors import SplError
    from spl.records.record import Record


_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

PAGE_BYTES = 1 << 20
"""Characters of records after which a page ends."""


class JsonAnswer(Response):
    """A JSON document, UTF-8 unescaped."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Give the document's bytes."""
        return written(content)


def written(document: Any) -> bytes:
    """Give a JSON document's bytes."""
    # A path of the host may hold bytes that are no text; what Python writes for one is JSON's own escape.
    return _encoder.encode(document).encode(errors="backslashreplace")


async def send_json(send: Send, document: bytes) -> None:
    """Send a JSON document as a `JsonAnswer` is sent, to a run that waits for it."""
    headers = [(b"content-length", b"%d" % len(document)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": document})


def error_answer(error: SplError) -> JsonAnswer:
    """Give the answer for an error; its message ends with what to do."""
    headers: dict[str, str] = {}
    if "retry_after_secs" in error.fields:
        headers["retry-after"] = str(error.fields["retry_after_secs"])
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonAnswer(error.wire(), error.status, headers)


def listing(items: Sequence[dict[str, Any]], *, has_more: bool, **more: Any) -> JsonAnswer:
    """Give a listing, and what else it says."""
    return JsonAnswer({"object": "list", "data": list(items), "has_more": has_more, **more})


def within_a_page(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Give records as they stand in a listing, up to the one whose text passes `PAGE_BYTES`."""
    found: list[dict[str, Any]] = []
    size = 0
    for record in records:
        if size > PAGE_BYTES:
            break
        document = record.wire()
        size += len(json.dumps(document))
        found.append(document)
    return found


async def record_listing(
    read: Callable[[int, int], Awaitable[list[Record]]], since: int, limit: int
) -> JsonAnswer:
    """Give up to `limit` records as a listing.

    `read` takes `since` and a limit and gives records in order, fewer where their bodies pass `PAGE_BYTES`. A page ends
    early, with `has_more`, where its text does: bodies may be large, and an answer is made in memory, several times.
    """
    found: list[dict[str, Any]] = []
    size = 0
    while True:
        # As few readings as can be: each may have to find its place among all that an owner has.
        records = await read(since, limit + 1 - len(found) if size <= PAGE_BYTES else 1)
        for record in records:
            if len(found) == limit or size > PAGE_BYTES:
                return listing(found, has_more=True)
            document = record.wire()
            size += len(json.dumps(document))
            found.append(document)
            since = record.sequence
        if not records:
            return listing(found, has_more=False)
