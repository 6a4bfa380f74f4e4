"""What is asked of a person in the middle of the screen, and what a key does to it: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spl.console.actions import PutRule
from spl.console.keys import Paste

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.console.actions import Action
    from spl.console.keys import Key

MOST_TYPED: Final = 4000
"""Characters of a text that is typed or pasted."""


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

    def press(self, key: Key) -> Reading | None:
        """Take a key in; None when it is done."""
        by = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -10, "pgdn": 10, "home": -1_000_000}.get(str(key))
        if by is None:
            return self if isinstance(key, Paste) else None
        return replace(self, top=max(0, self.top + by))


@dataclass(frozen=True, slots=True)
class Confirm:
    """An action with all that it writes, to be confirmed."""

    action: Action


@dataclass(frozen=True, slots=True)
class Choose:
    """One of several, each with what is shown of it; `then` gives what is asked next."""

    title: str
    options: tuple[tuple[str, str], ...]
    then: Callable[[str], Dialog]
    index: int = 0

    def press(self, key: Key) -> Dialog | None:
        """Take a key in; None when it is given up."""
        if key == "enter":
            return self.then(self.options[self.index][1])
        if key in {"esc", "q"}:
            return None
        by = {"up": -1, "k": -1, "down": 1, "j": 1}.get(str(key), 0)
        return replace(self, index=max(0, min(self.index + by, len(self.options) - 1)))


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

    def _finished(self) -> Dialog:
        try:
            priority = int(self.priority)
        except ValueError:
            return replace(self, index=2, errors=("the priority is a whole number",))
        if not self.name.strip():
            return replace(self, index=0, errors=("a rule has a name",))
        return confirm(PutRule(self.name.strip(), self.action, priority, self.expression, enabled=True))


Dialog = Typing | Reading | Confirm | Choose | Form


def confirm(action: Action) -> Confirm:
    """Ask whether an action is to be done."""
    return Confirm(action)


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
