"""Keys out of the bytes that a terminal sends: pure, and it holds on to what has not come whole.

Names are those of xterm's control sequences (ctlseqs, "PC-Style Function Keys"); a character that prints is its own
name. Text that is pasted between brackets (ESC [ 200 ~ and ESC [ 201 ~) is text and never keys.
"""

from __future__ import annotations

import codecs
from typing import Final, NamedTuple

MOST_PASTED: Final = 65536
"""Characters of a paste that are kept."""

_MOST_SEQUENCE: Final = 32
_ESC: Final = "\x1b"
_PASTE_ENDS: Final = "\x1b[201~"


class Paste(NamedTuple):
    """Text that was pasted."""

    text: str


Key = str | Paste
"""A character that prints, the name of another key, or a paste."""

_CONTROLS: Final = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x15": "ctrl-u",
    "\x0c": "ctrl-l",
}  # fmt: skip
_LETTERS: Final = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "shift-tab", "M": "enter",
}  # fmt: skip
_NUMBERS: Final = {
    "1": "home", "7": "home", "4": "end", "8": "end", "5": "pgup", "6": "pgdn", "3": "delete",
}  # fmt: skip


class Decoder:
    """Takes bytes in as they come and gives keys. `is_waiting` says that the last byte may be more than a lone Esc."""

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._pasted: list[str] | None = None
        self._length = 0

    @property
    def is_waiting(self) -> bool:
        """Whether what came may be the beginning of a sequence, or Esc by itself: time tells."""
        return bool(self._rest) and self._pasted is None

    def feed(self, raw: bytes) -> list[Key]:
        """Take bytes in and give the keys that are whole."""
        self._rest += self._characters.decode(raw)
        keys: list[Key] = []
        while self._rest:
            if self._pasted is not None:
                if not self._paste(keys, self._pasted):
                    break
            elif self._rest[0] == _ESC:
                if not self._sequence(keys):
                    break
            else:
                keys += _key(self._rest[0])
                self._rest = self._rest[1:]
        return keys

    def rest(self) -> list[Key]:
        """Give what was waited for in vain as what it is: Esc, if it is one, and of a broken sequence nothing."""
        if not self.is_waiting:
            return []
        rest, self._rest = self._rest, ""
        return ["esc"] if rest in {_ESC, _ESC + _ESC} else []

    def _paste(self, keys: list[Key], pasted: list[str]) -> bool:
        text, end, rest = self._rest.partition(_PASTE_ENDS)
        if not end:
            # The end may be cut in two: what could be its beginning is kept for the next bytes.
            kept = next((n for n in range(len(_PASTE_ENDS) - 1, 0, -1) if text.endswith(_PASTE_ENDS[:n])), 0)
            text, rest = text[: len(text) - kept], text[len(text) - kept :]
        if self._length < MOST_PASTED:
            pasted.append(text[: MOST_PASTED - self._length])
            self._length += len(text)
        self._rest = rest
        if not end:
            return False
        keys.append(Paste("".join(pasted)))
        self._pasted = None
        return True

    def _sequence(self, keys: list[Key]) -> bool:
        """Take one escape sequence from the rest; False where it has not come whole."""
        text = self._rest
        if len(text) == 1 or (text[1] in "[O" and len(text) == 2):
            return False
        if text[1] == "O":
            keys += _named(_LETTERS.get(text[2]))
            self._rest = text[3:]
            return True
        if text[1] != "[":
            # Esc and then another key: a terminal that sends Alt so is taken for someone who types fast.
            keys.append("esc")
            self._rest = text[1:]
            return True
        end = next((at for at, each in enumerate(text[2:], 2) if "@" <= each <= "~"), None)
        if end is None:
            if len(text) > _MOST_SEQUENCE:
                self._rest = ""
            return False
        self._rest = text[end + 1 :]
        number, letter = text[2:end], text[end]
        if letter == "~":
            if number == "200":
                self._pasted, self._length = [], 0
            else:
                keys += _named(_NUMBERS.get(number.split(";")[0]))
        elif letter != "M":
            # M is Enter after O alone: here it ends what a mouse does.
            keys += _named(_LETTERS.get(letter))
        return True


def _named(name: str | None) -> list[Key]:
    return [] if name is None else [name]


def _key(character: str) -> list[Key]:
    if character in _CONTROLS:
        return [_CONTROLS[character]]
    return [character] if character.isprintable() else []
