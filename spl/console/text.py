"""Text from elsewhere, once for all made harmless and short when it is taken in: nothing else is kept or drawn."""

from __future__ import annotations

import json
import unicodedata
from typing import Final

from bwrap.text import printable

LINE: Final = 300
"""Characters of what is shown on one line."""

PAGE: Final = 4000
"""Characters of what can be opened to be read."""

_MOST_MARKS: Final = 2


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
        text = json.dumps(said, ensure_ascii=False)
    cut = len(text) > most
    text = text[:most]
    if not (text.isascii() and text.isprintable()):
        text = _bounded(printable(_without_piles(text)), most)
    return f"{text[: most - 1]}…" if cut or len(text) > most else text


def _bounded(text: str, most: int) -> str:
    # Escapes are longer than what they stand for; one past the bound is enough to show that it was cut.
    return text[: most + 1]


def _without_piles(text: str) -> str:
    out: list[str] = []
    marks = _MOST_MARKS
    for character in text:
        if unicodedata.category(character)[0] == "M":
            marks += 1
            if marks > _MOST_MARKS or _selects(character):
                out.append(character.encode("unicode_escape").decode())
                continue
        else:
            marks = 0
        out.append(character)
    return "".join(out)


def _selects(character: str) -> bool:
    # Variation selectors: terminals differ in how wide the character before one is.
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
