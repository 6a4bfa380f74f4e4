"""Answers: JSON as the contract shapes it, and errors with their code and status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from spl.errors import AdmissionCeiling, SplError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spl.records.record import Record


class JsonAnswer(Response):
    """A JSON document, UTF-8 unescaped."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Give the document's bytes."""
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def error_answer(error: SplError) -> JsonAnswer:
    """Give the answer for an error; its message ends with what to do."""
    headers: dict[str, str] = {}
    if isinstance(error, AdmissionCeiling):
        headers["retry-after"] = str(error.fields.get("retry_after_secs", 1))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonAnswer(error.wire(), error.status, headers)


def listing(items: Sequence[dict[str, Any]], *, has_more: bool) -> JsonAnswer:
    """Give a listing."""
    return JsonAnswer({"object": "list", "data": list(items), "has_more": has_more})


def record_listing(records: Sequence[Record], limit: int) -> JsonAnswer:
    """Give records as a listing, from a read that asked for one more than `limit`."""
    return listing([record.wire() for record in records[:limit]], has_more=len(records) > limit)
