"""What of a call the rules are shown: all but what the library would take for something else, or too long over.

The values are a model's and the binding of the library trusts them: a key is cut at its first NUL, so that a rule would
judge another name than the tool is given, a deep enough list ends the process, and a search of one long argument in
another takes seconds. What must not be handed over is withheld by itself, and what is beside it is judged as ever.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST = 16 * 1024
"""The longest string, in characters. A search of one half of it in the other takes 0.2 ms, and grows by the square."""

LARGEST = 256 * 1024
"""The most of one call: its characters, and 64 for each element, for a rule may do something with each: a search in the
longest string for each of as many strings as there can be takes 0.2 s."""

DEEPEST = 64
"""The most levels of a value. The binding goes down them on the stack, and 20 000 are too many for it."""

_ELEMENT = 64
_NAME = 60
_INT = range(-(2**63), 2**63)


def shown(variables: Mapping[str, object]) -> tuple[list[dict[str, object]], str | None]:
    """Give the variables as rules may see them, and of what was withheld the first, by name and reason.

    In place of a value that was withheld stands null, so that it is there, is no text and is no number; a variable
    itself is left out. But two such values are not the same, and neither was said to be null: so then there is a second
    view, with NaN in their place, and only an answer that both views give does not hang on them.
    """
    view = _View(None)
    values = view.of(variables)
    if view.withheld is None:
        return [values], None
    return [values, _View(math.nan).of(variables)], view.withheld


class _View:
    """One look at a call, with what stands in for what is withheld from it."""

    def __init__(self, in_place: float | None) -> None:
        self._in_place = in_place
        self._left = LARGEST
        self.withheld: str | None = None

    def of(self, variables: Mapping[str, object]) -> dict[str, object]:
        seen = {name: self._seen(value, name, 1) for name, value in variables.items()}
        return {name: value for name, value in seen.items() if value is not self._in_place}

    def _seen(self, value: object, name: str, level: int) -> object:
        why = self._fault(value, level)
        if why is not None:
            if self.withheld is None:
                self.withheld = f"{name}, which no rule is shown: it {why}"
            return self._in_place
        if isinstance(value, list):
            return [self._seen(each, name, level + 1) for each in value]
        if isinstance(value, dict):
            return {
                key: self._seen(each, f"{name}.{key[:_NAME]}" if level == 1 else name, level + 1)
                for key, each in value.items()
            }
        return value

    def _fault(self, value: object, level: int) -> str | None:
        """Say why a value must not be handed over; what is below it is looked at in its turn, but for its keys."""
        if isinstance(value, str):
            return self._fault_of_text(value)
        if isinstance(value, list | dict):
            if level > DEEPEST:
                return f"is nested more than {DEEPEST} deep"
            if not self._has_room(len(value) * _ELEMENT):
                return "is too large"
            # Without one of its keys a map would be another, and `has` would be false of what is there.
            keys = value if isinstance(value, dict) else ()
            return next((why for key in keys if (why := self._fault_of_text(key))), None)
        if isinstance(value, int) and value not in _INT:
            return "holds an integer of more than 64 bits"
        return None

    def _fault_of_text(self, text: str) -> str | None:
        # The length first: that of a long text is known at once, its characters are not.
        if len(text) > LONGEST:
            return f"holds a text of more than {LONGEST} characters"
        if "\0" in text or not _is_text(text):
            return "holds a character that no rule can look at"
        return None if self._has_room(len(text)) else "is too large"

    def _has_room(self, size: int) -> bool:
        """Take room for what is handed over, if there is as much left."""
        if size > self._left:
            return False
        self._left -= size
        return True


def _is_text(text: str) -> bool:
    """Whether a string can be UTF-8: JSON may hold half of a surrogate pair."""
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)
