"""How many tokens a conversation can come to, before a provider has counted them."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spl.inference.model import Request

UNSEEN = 1024
"""Tokens that a provider may put beside what it is sent: its own instructions on how to call tools."""
AROUND = 16
"""Tokens that a provider may put around each message."""
_PIECE = 1024


class Scale:
    """Weighs the requests of one run, whose model and tools stay what they are.

    No tokenizer makes more tokens of a text than it has bytes, as it is or in the form (Unicode's NFKC) into which some
    bring it first: so bytes are a bound that nothing can be hidden behind. For most text they are four times too many,
    so a conversation that goes on is taken for what its provider counted of it before, and a token for each byte since.
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
            return self._tokens + _most(said[count:])
        return UNSEEN + _longest(_written(request.tools)) + _most(said)

    def measured(self, input_tokens: int) -> None:
        """Take what the provider counted of the request that was weighed last."""
        self._known, self._tokens = self._weighed, input_tokens


def _written(said: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(said, ensure_ascii=False)


def _most(said: Sequence[str]) -> int:
    return sum(_longest(each) + AROUND for each in said)


def _longest(text: str) -> int:
    """Give the bytes of a text in its longest form: one character of three bytes has thirty-three in NFKC."""
    if text.isascii():
        return len(text)
    # In pieces: a million such characters take most of a second, in which no other thread would come to run.
    pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
    return sum(
        max(len(_encoded(each)), len(_encoded(unicodedata.normalize("NFKC", each)))) for each in pieces
    )


def _digest(said: Sequence[str]) -> bytes:
    # Each message is JSON, which ends where it ends: no other messages run together to the same text.
    return hashlib.sha256(_encoded("".join(said))).digest()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
