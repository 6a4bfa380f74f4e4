"""What is asked of a person in the middle of the screen, and what a key does to it: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from spl.console.actions import PutRule
from spl.console.keys import Paste

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.console.actions import Action
    from spl.console.keys import Key

MOST_TYPED: Final = 4000
"""Characters of a text that is typed or pasted."""

_ENDS: Final = 1_000_000
_MOVES: Final = {
    "up": -1, "k": -1, "down": 1, "j": 1, "pgup": -10, "pgdn": 10,
    "home": -_ENDS, "g": -_ENDS, "end": _ENDS, "G": _ENDS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Typing:
    """The filter of a list as it is typed; it filters with each key."""

    of: str
    text: str

    def press(self, key: Key) -> Typing | None:
        """Take a key in; None when it is done."""
        return None if key in {"enter", "esc"} else replace(self, text=typed(self.text, key))


@dataclass(frozen=True, slots=True)
class Reading:
    """A text to be read, shown from its line `top` on."""

    title: str
    lines: tuple[str, ...]
    top: int = 0

    def press(self, key: Key, last: int) -> Reading | None:
        """Take a key in, `last` being the last line that can be the first one shown; None when it is done."""
        if isinstance(key, Paste):
            return self
        return replace(self, top=_moved(self.top, key, last)) if key in _MOVES else None


@dataclass(frozen=True, slots=True)
class Confirm:
    """An action with all that it writes, to be confirmed, shown from its line `top` on."""

    action: Action
    top: int = 0

    def press(self, key: Key, last: int) -> Confirm:
        """Take in a key that is no answer, `last` being the last line that can be the first one shown."""
        return replace(self, top=_moved(self.top, key, last))


class Option(NamedTuple):
    """One that can be chosen: how it is shown, and its value. With `barred` it can't be, and that is why."""

    said: str
    value: str
    barred: str = ""


@dataclass(frozen=True, slots=True)
class Choose:
    """One of several; `then` gives what is asked next. `note` says why the last one that was asked for can't be had."""

    title: str
    options: tuple[Option, ...]
    then: Callable[[str], Dialog]
    index: int = 0
    note: str = ""

    def press(self, key: Key) -> Dialog | None:
        """Take a key in; None when it is given up."""
        if key == "enter":
            chosen = self.options[self.index]
            return replace(self, note=chosen.barred) if chosen.barred else self.then(chosen.value)
        if key in {"esc", "q"}:
            return None
        return replace(self, index=_moved(self.index, key, len(self.options) - 1), note="")


FIELDS: Final = ("name", "action", "priority", "expression")


@dataclass(frozen=True, slots=True)
class Form:
    """A permission rule as it is typed, and what was wrong with it when it was written last."""

    name: str = ""
    action: str = "deny"
    priority: str = "0"
    expression: str = ""
    index: int = 0
    errors: tuple[str, ...] = ()

    def press(self, key: Key) -> Dialog | None:
        """Take a key in; None when it is given up. From the last field it goes on to what is to be confirmed."""
        field = FIELDS[self.index]
        if key == "esc":
            return None
        if key in {"up", "shift-tab"}:
            return replace(self, index=max(0, self.index - 1))
        if key in {"down", "tab"} or (key == "enter" and self.index < len(FIELDS) - 1):
            return replace(self, index=min(self.index + 1, len(FIELDS) - 1))
        if key == "enter":
            return self._finished()
        if field == "action":
            other = {"deny": "allow", "allow": "deny"}[self.action]
            return replace(self, action=other) if key in {" ", "left", "right"} else self
        said: str = getattr(self, field)
        return replace(self, **{field: typed(said, key)}, errors=())  # type: ignore[arg-type]

    def rule(self) -> PutRule | None:
        """Give what it would write; None where its priority is no number."""
        try:
            priority = int(self.priority)
        except ValueError:
            return None
        return PutRule(self.name.strip(), self.action, priority, self.expression, enabled=True)

    def _finished(self) -> Dialog:
        rule = self.rule()
        if rule is None:
            return replace(self, index=2, errors=("the priority is a whole number",))
        if not rule.name:
            return replace(self, index=0, errors=("a rule has a name",))
        return Confirm(rule)


Dialog = Typing | Reading | Confirm | Choose | Form


def typed(text: str, key: Key) -> str:
    """Give a text after a key, or after what was pasted, of which each character that prints is taken."""
    if isinstance(key, Paste):
        added = "".join(each if each.isprintable() else " " for each in key.text)
        return (text + added)[:MOST_TYPED]
    if key == "backspace":
        return text[:-1]
    if key == "ctrl-u":
        return ""
    return (text + key)[:MOST_TYPED] if len(key) == 1 and key.isprintable() else text


def _moved(at: int, key: Key, last: int) -> int:
    """Give where a key moves to from `at`, between 0 and `last`; one that moves nothing stays."""
    return max(0, min(min(at, last) + _MOVES.get(str(key), 0), last))
