"""What is asked of a person, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from spl.console.actions import told
from spl.console.dialogs import FIELDS, Choose, Confirm, Form, Reading, Typing
from spl.console.drawing import BAD, DIM, SELECTED, STRONG, WARN, Cell, boxed, line, wrapped
from spl.console.text import LINE, taken

if TYPE_CHECKING:
    from spl.console.dialogs import Dialog
    from spl.console.view import View


def as_typed(text: str) -> str:
    """Give the end of what is typed, where the cursor is, fit to be drawn."""
    return taken(text[-LINE:])


def hint(dialog: Dialog) -> str:
    """Give the keys that a dialog takes."""
    match dialog:
        case Typing():
            return "enter keeps the filter  esc clears it  ctrl-u begins anew"
        case Reading():
            return "j k PgUp PgDn home end move  any other key goes back"
        case Confirm():
            return "y does it  n esc changes nothing  j k move"
        case Choose():
            return "j k move  enter takes it  esc changes nothing"
        case Form():
            return "tab arrows move  enter goes on  esc gives up"


def drawn(view: View, dialog: Dialog, width: int, height: int, behind: list[Text]) -> list[Text]:
    """Give a dialog over the screen behind it, and note how far it can be moved in; the filter takes one line alone."""
    inside = max(1, width - 4)
    match dialog:
        case Typing():
            asked = line(
                width, Cell("filter: ", STRONG), _end(dialog.text, max(1, width - 10)), Cell("▏", STRONG)
            )
            if height <= 1:
                return [asked]
            behind = behind[: height - 1]
            return [*behind, *[Text("", end="")] * (height - 1 - len(behind)), asked]
        case Reading():
            return _reading(view, dialog, width, height, inside)
        case Confirm():
            return boxed(width, height, dialog.action.title, _confirm(view, dialog, inside, height - 2), WARN)
        case Choose():
            return boxed(width, height, dialog.title, _choose(dialog, inside, max(1, height - 3)))
        case Form():
            return boxed(
                width, height, "a permission rule", _form(dialog, inside), WARN if dialog.errors else ""
            )


def _reading(view: View, dialog: Reading, width: int, height: int, inside: int) -> list[Text]:
    folded = [each for said in dialog.lines for each in wrapped(inside, said)]
    seen, where = _part(view, folded, dialog.top, max(1, height - 3))
    return boxed(width, height, dialog.title, [*seen, line(inside, Cell(where, DIM))])


def _part(view: View, folded: list[Text], top: int, room: int) -> tuple[list[Text], str]:
    """Give as many lines from `top` on as there is room for, and which of how many they are."""
    view.last_top = max(0, len(folded) - room)
    top = min(top, view.last_top)
    seen = folded[top : top + room]
    return seen, f"lines {top + 1} to {top + len(seen)} of {len(folded)}"


def _confirm(view: View, dialog: Confirm, inside: int, room: int) -> list[Text]:
    action = dialog.action
    warned = wrapped(inside, f"WARNING: {action.warning}", BAD) if action.warning else []
    asked = line(inside, Cell("y", STRONG), " does it, ", Cell("n", STRONG), " or Esc changes nothing")
    said = [each for text in told(action) for each in wrapped(inside, text)]
    means = [each for text in action.means for each in wrapped(inside, text, DIM)]
    # Where there is no room for all, the question and the warning are what stays, and the rest can be moved in.
    left = max(0, room - 1 - len(warned))
    seen, where = _part(view, [*said, *means], dialog.top, left)
    if view.last_top and left:
        asked = line(inside, f"{where}; ", asked)
    return [*seen, *warned[: max(0, room - 1)], asked]


def _choose(dialog: Choose, inside: int, room: int) -> list[Text]:
    first = max(0, min(dialog.index - room // 2, len(dialog.options) - room))
    rows = [
        line(
            inside, Cell(each.said, DIM if each.barred else ""), style=SELECTED if at == dialog.index else ""
        )
        for at, each in enumerate(dialog.options)
    ]
    where = f"{dialog.index + 1} of {len(rows)}"
    last = Cell(f"it can't be chosen: {dialog.note}", BAD) if dialog.note else Cell(where, DIM)
    return [*rows[first : first + room], line(inside, last)]


def _form(dialog: Form, inside: int) -> list[Text]:
    rows: list[Text] = []
    for at, name in enumerate(FIELDS):
        chosen = at == dialog.index
        said: str = getattr(dialog, name)
        label = Cell(f"{name:<11}", STRONG if chosen else DIM)
        if name == "expression":
            pieces = (
                wrapped(max(1, inside - 12), as_typed(said))
                if chosen
                else [line(inside - 12, as_typed(said))]
            )
            rows.append(
                line(inside, label, pieces[0].plain, Cell("▏" if chosen and len(pieces) == 1 else ""))
            )
            rows += [
                line(inside, " " * 11, piece.plain, Cell("▏" if piece is pieces[-1] else ""))
                for piece in pieces[1:]
            ]
        else:
            cursor = "  (space changes it)" if name == "action" and chosen else "▏" if chosen else ""
            rows.append(line(inside, label, as_typed(said), cursor))
    for said in dialog.errors:
        rows += wrapped(inside, said, BAD)
    rows.append(line(inside, Cell('CEL over resource ("tool:NAME"), args, actor, tier, transport, run', DIM)))
    return rows


def _end(text: str, width: int) -> str:
    """Give the end of a text that fits."""
    said = as_typed(text)
    return said if len(said) <= width else said[-width:]
