"""Text from elsewhere, once for all made harmless and short when it is taken in: nothing else is kept or drawn."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Final

from rich.cells import cell_len

from bwrap.text import printable

LINE: Final = 300
"""Characters of what is shown on one line."""

PAGE: Final = 4000
"""Characters of what can be opened to be read."""

_MOST_MARKS: Final = 2
_WORD: Final = re.compile(r"[^\s=\"]+")


def taken(said: object, most: int = LINE) -> str:
    """Give a value as text that no terminal and no markup can take for a command, of at most `most` characters.

    What steers a terminal or the direction of writing, joins characters to one, or changes their width stands as an
    escape. So do combining marks beyond two on a character: a hundred of them would be drawn over the lines above.
    """
    if said is None:
        return ""
    if isinstance(said, str):
        text = said
    elif isinstance(said, bool | int | float):
        text = json.dumps(said)
    else:
        # A document of any size, and only its beginning is looked at again.
        try:
            text = json.dumps(said, ensure_ascii=False)
        except RecursionError:
            text = "a document that is nested too deep to be shown"
    cut = len(text) > most
    text = text[:most]
    if not (text.isascii() and text.isprintable()):
        text = printable(_without_piles(text))
    return f"{text[: most - 1]}…" if cut or len(text) > most else text


def word(said: object, most: int = 80) -> str:
    """Give a name as it is, or in quotes if it is more than a word: it is not to be read as what stands beside it."""
    text = taken(said, most)
    if _WORD.fullmatch(text):
        return text
    quoted = text.replace('"', '\\"')
    return f'"{quoted}"'


def _without_piles(text: str) -> str:
    out: list[str] = []
    marks = _MOST_MARKS
    for character in text:
        is_mark = unicodedata.category(character)[0] == "M"
        marks = marks + 1 if is_mark else 0
        escaped = marks > _MOST_MARKS or _selects(character) if is_mark else _has_no_width(character)
        out.append(character.encode("unicode_escape").decode() if escaped else character)
    return "".join(out)


def _has_no_width(character: str) -> bool:
    # Letters that are drawn into the one before (Hangul's vowels, skin tones), or as nothing at all (Hangul fillers).
    return character.isprintable() and cell_len(character) == 0


def _selects(character: str) -> bool:
    # Variation selectors: terminals differ in how wide the character before one is.
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
