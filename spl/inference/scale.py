"""How many tokens a conversation can come to, before a provider has counted them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spl.inference.model import Request

UNSEEN = 1024
"""Tokens that a provider may put beside what it is sent: its own instructions on how to call tools."""
AROUND = 16
"""Tokens that a provider may put around each message."""


class Scale:
    """Weighs the requests of one run, whose model and tools stay what they are.

    No tokenizer makes more tokens of a text than it has bytes, so bytes are a bound that nothing can be hidden behind;
    but for most text they are four times too many. So a conversation that goes on is taken for what its provider
    counted of it before, and a token for each byte beyond that.
    """

    def __init__(self) -> None:
        self._weighed = (0, b"")
        self._known = (0, b"")
        self._tokens = 0

    def most(self, request: Request) -> int:
        """Give the most tokens of input that a request can be counted as."""
        said = [_written(message) for message in request.messages]
        count, digest = self._known
        self._weighed = len(said), _digest(said)
        if 0 < count <= len(said) and _digest(said[:count]) == digest:
            return self._tokens + _bytes(said[count:])
        return UNSEEN + len(_written(request.tools)) + _bytes(said)

    def measured(self, input_tokens: int) -> None:
        """Take what the provider counted of the request that was weighed last."""
        self._known, self._tokens = self._weighed, input_tokens


def _written(said: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> bytes:
    return json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _bytes(said: Sequence[bytes]) -> int:
    return sum(len(each) + AROUND for each in said)


def _digest(said: Sequence[bytes]) -> bytes:
    # Each message is JSON, which ends where it ends: no other messages run together to the same bytes.
    return hashlib.sha256(b"".join(said)).digest()
