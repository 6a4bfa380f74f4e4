"""Text from elsewhere made fit for a terminal."""

from __future__ import annotations


def shown(text: str) -> str:
    """Give the text with everything that a terminal would obey instead of show as an escape.

    That is control characters, line ends, direction overrides, invisible characters, odd spaces and lone
    surrogates: whatever `str.isprintable` denies.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def brief(text: str, length: int = 60) -> str:
    """Give the start of a text, shown, with an ellipsis where it was cut."""
    return shown(text) if len(text) <= length else f"{shown(text[: length - 1])}…"
