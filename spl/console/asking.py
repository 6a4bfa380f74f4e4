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


def as_typed(text: str) -> str:
    """Give the end of what is typed, where the cursor is, fit to be drawn."""
    return taken(text[-LINE:])


def drawn(dialog: Dialog, width: int, height: int, behind: list[Text]) -> list[Text]:
    """Give a dialog over the screen behind it; the filter takes its last line alone."""
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
            return _reading(dialog, width, height, inside)
        case Confirm():
            return boxed(width, height, dialog.action.title, _confirm(dialog, inside, height - 2), WARN)
        case Choose():
            return boxed(width, height, dialog.title, _choose(dialog, inside, max(1, height - 3)))
        case Form():
            return boxed(
                width, height, "a permission rule", _form(dialog, inside), WARN if dialog.errors else ""
            )


def _reading(dialog: Reading, width: int, height: int, inside: int) -> list[Text]:
    folded = [each for said in dialog.lines for each in wrapped(inside, said)]
    room = max(1, height - 3)
    top = min(dialog.top, max(0, len(folded) - room))
    more = f"lines {top + 1} to {min(top + room, len(folded))} of {len(folded)}; any other key goes back"
    return boxed(width, height, dialog.title, [*folded[top : top + room], line(inside, Cell(more, DIM))])


def _confirm(dialog: Confirm, inside: int, room: int) -> list[Text]:
    action = dialog.action
    warned = wrapped(inside, f"WARNING: {action.warning}", BAD) if action.warning else []
    asked = line(inside, Cell("y", STRONG), " does it, ", Cell("n", STRONG), " or Esc changes nothing")
    said = [each for text in told(action) for each in wrapped(inside, text)]
    means = [each for text in action.means for each in wrapped(inside, text, DIM)]
    # Where there is no room for all, the question and the warning are what stays.
    left = max(0, room - 1 - len(warned))
    return [*[*said, *means][:left], *warned[: max(0, room - 1)], asked]


def _choose(dialog: Choose, inside: int, room: int) -> list[Text]:
    first = max(0, min(dialog.index - room // 2, len(dialog.options) - room))
    rows = [
        line(inside, said, style=SELECTED if at == dialog.index else "")
        for at, (said, _) in enumerate(dialog.options)
    ]
    return [*rows[first : first + room], line(inside, Cell("Enter takes it, Esc changes nothing", DIM))]


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
    rows.append(line(inside, Cell("Tab and arrows move, Enter goes on, Esc gives up", DIM)))
    return rows


def _end(text: str, width: int) -> str:
    """Give the end of a text that fits."""
    said = as_typed(text)
    return said if len(said) <= width else said[-width:]
