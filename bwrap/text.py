"""Text that people and records are shown: file names are bytes, and what a process says is its own."""

from __future__ import annotations

_UNITS = (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))


def printable(text: str) -> str:
    """Give text with control characters, and bytes that are no character, as escapes; raises nothing."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def sized(number: int) -> str:
    """Give bytes as a profile writes them: in the largest unit that holds them whole, as `512M`."""
    for unit, factor in _UNITS:
        if number and number % factor == 0:
            return f"{number // factor}{unit}"
    return str(number)
