"""What is taken out of every line of the log: the second wall. The first is that nobody means to log a secret."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable

REDACTED: Final = "[redacted]"

# A key shorter than this is no secret but a word, put where any will do; it would be taken out of half the log.
_SECRET: Final = 16
# The newest of each provider, and those before it that a call may still be under way with.
_KEPT: Final = 4

_SHAPES: Final = (
    # A token or a run's credential, also one that was cut off: what may be left of it, a few characters, opens nothing.
    (re.compile(r"spl_(?:run|[a-z0-9]{1,16}_[0-9a-f]{8})_[a-z0-9_-]{8,}", re.IGNORECASE), REDACTED),
    # A header with its value, as HTTP writes it, as a mapping's repr does, or as a pair's of bytes.
    (
        re.compile(
            r"((?:authorization|api-key|cookie)[\"']?\s*[:=,]\s*(?:b?[\"'])?)(?:(?:bearer|basic)\s+)?[^\s\"',;})]+",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\b((?:bearer|basic)(?:\s|%20)+)[a-z0-9._~+/=-]{16,}", re.IGNORECASE), rf"\1{REDACTED}"),
    # The password of a proxy, or of any other address, with its user. Without its scheme: to look for where that begins
    # takes time by the square of a text's length.
    (re.compile(r"(?<=://)[^\s/\"']+@"), f"{REDACTED}@"),
    # A provider's key as most of them look, be it one that is in no file of ours.
    (re.compile(r"\bsk-[a-z0-9_-]{16,}", re.IGNORECASE), REDACTED),
)

# What each of the shapes has in it: most texts have none, and are looked through once.
_MARK: Final = re.compile(r"spl_|authorization|api-key|cookie|bearer|basic|://|sk-", re.IGNORECASE)

_kept: tuple[str, ...] = ()


def redacted(text: str) -> str:
    """Give a text without what looks like a credential, and without the keys that were kept out."""
    if len(text) < _SECRET:
        return text
    for key in _kept:
        # As it is, as it stands in JSON or in a repr, and as a part of a URL.
        for form in {key, json.dumps(key)[1:-1], repr(key)[1:-1], quote(key, safe="")}:
            text = text.replace(form, REDACTED)
    if _MARK.search(text):
        for shape, instead in _SHAPES:
            text = shape.sub(instead, text)
    return text


def keeping_out(read: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Give what reads a provider's key as another does, and keeps what it read out of the log from then on.

    The process holds no more of them than the newest few.
    """

    def kept_out(provider: str) -> str | None:
        global _kept  # noqa: PLW0603 - as there is one log, of a process
        key = read(provider)
        if key is not None and len(key) >= _SECRET and key not in _kept:
            # Whole, in the place of the one before: a line is written by any thread.
            _kept = (key, *_kept)[:_KEPT]
        return key

    return kept_out
