"""Text that people and records are shown: file names are bytes, and what a process says is its own."""

from __future__ import annotations


def printable(text: str) -> str:
    """Give text with control characters, and bytes that are no character, as escapes; raises nothing."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
