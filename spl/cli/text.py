"""Text from elsewhere made fit for a terminal."""

from __future__ import annotations

from bwrap.text import printable as shown

__all__ = ["brief", "shown"]


def brief(text: str, length: int = 60) -> str:
    """Give the start of a text, shown, with an ellipsis where it was cut."""
    return shown(text) if len(text) <= length else f"{shown(text[: length - 1])}…"
