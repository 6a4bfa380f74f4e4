"""Lines of a known width, of rich's Text: what every screen is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GOOD: Final = "green"
BAD: Final = "bold red"
WARN: Final = "yellow"
DIM: Final = "dim"
STRONG: Final = "bold"
SELECTED: Final = "reverse"

_GAP: Final = "  "


class Cell(NamedTuple):
    """A text in a column, and how it looks."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """A column: it takes `least` to `most` cells, and is left out before those of a lower `rank`.

    An `extra` one is there only where those that are not have all the cells they can use.
    """

    name: str
    least: int
    most: int
    rank: int
    right: bool = False
    extra: bool = False


def line(width: int, *cells: Cell | Text | str, style: str = "") -> Text:
    """Give texts one after the other on a line, cut to a width."""
    text = Text(style=style, no_wrap=True, overflow="crop", end="")
    for cell in cells:
        if isinstance(cell, Text):
            text.append_text(cell)
            continue
        said, look = cell if isinstance(cell, Cell) else (cell, "")
        text.append(said, look or None)
    text.truncate(max(0, width), overflow="ellipsis")
    return text


def wrapped(width: int, text: str, style: str = "") -> list[Text]:
    """Give a text folded into lines, between words or else anywhere: it is to be seen whole."""
    lines: list[Text] = []
    rest = text
    while rest:
        piece = _upto(rest, width)
        if len(piece) < len(rest) and (space := piece.rfind(" ")) > len(piece) // 2:
            piece = piece[: space + 1]
        lines.append(line(width, Cell(piece, style)))
        rest = rest[len(piece) :]
    return lines or [line(width)]


def flowed(width: int, most: int, parts: Iterable[Cell]) -> list[Text]:
    """Give parts side by side on as many lines as they take, of which there are at most `most`."""
    rows: list[list[Cell]] = [[]]
    used = 0
    for part in parts:
        size = cell_len(part.text)
        if rows[-1] and used + len(_GAP) + size > width:
            if len(rows) == most:
                break
            rows.append([])
            used = 0
        if rows[-1]:
            rows[-1].append(Cell(_GAP))
            used += len(_GAP)
        rows[-1].append(part)
        used += size
    return [line(width, *row) for row in rows[: max(0, most)] if row]


def fitting(width: int, columns: Sequence[Column]) -> list[tuple[Column, int]]:
    """Give the columns that have room, each with its cells; what is left goes to those that can be wider, by rank."""
    kept = list(columns)
    for each in sorted((each for each in columns if each.extra), key=lambda each: -each.rank):
        if (
            sum(other.least if other.extra else other.most for other in kept) + len(_GAP) * (len(kept) - 1)
            > width
        ):
            kept.remove(each)
    while len(kept) > 1 and sum(each.least for each in kept) + len(_GAP) * (len(kept) - 1) > width:
        kept.remove(max(kept, key=lambda each: each.rank))
    left = width - sum(each.least for each in kept) - len(_GAP) * (len(kept) - 1)
    sizes = {each.name: each.least for each in kept}
    for each in sorted(kept, key=lambda each: each.rank):
        more = max(0, min(left, each.most - each.least))
        sizes[each.name] += more
        left -= more
    return [(each, sizes[each.name]) for each in kept]


def row(width: int, sized: Sequence[tuple[Column, int]], cells: dict[str, Cell], style: str = "") -> Text:
    """Give one line of a table."""
    text = Text(style=style, no_wrap=True, overflow="crop", end="")
    for number, (column, size) in enumerate(sized):
        cell = cells.get(column.name, Cell(""))
        piece = Text(cell.text, cell.style)
        piece.truncate(size, overflow="ellipsis")
        room = " " * max(0, size - piece.cell_len)
        text.append(_GAP if number else "")
        text.append(room if column.right else "")
        text.append_text(piece)
        text.append("" if column.right or number == len(sized) - 1 else room)
    text.truncate(max(0, width), overflow="crop")
    return text


def heads(width: int, sized: Sequence[tuple[Column, int]]) -> Text:
    """Give the names of a table's columns."""
    return row(width, sized, {column.name: Cell(column.name.upper(), STRONG) for column, _ in sized})


def boxed(width: int, height: int, title: str, lines: Sequence[Text], style: str = "") -> list[Text]:
    """Give lines in a frame as wide as the screen; without a frame where there is no room for one."""
    if width < 12 or height < 4:
        return [line(width, Cell(title, STRONG)), *lines][:height]
    inside = width - 4
    out = [line(width, Cell("┌─ ", style), Cell(_cut(title, inside - 2), STRONG), Cell(" ", style))]
    out[0].append("─" * max(0, width - 1 - out[0].cell_len) + "┐", style or None)
    for each in lines[: height - 2]:
        held = each.copy()
        held.truncate(inside, overflow="ellipsis")
        room = " " * (inside - held.cell_len)
        framed = Text(no_wrap=True, overflow="crop", end="")
        out.append(framed.append("│ ", style).append_text(held).append(f"{room} │", style))
    out.append(line(width, Cell("└" + "─" * (width - 2) + "┘", style)))
    return out


def bar(share: float, size: int) -> str:
    """Give how much of something is used, between 0 and 1, as a bar."""
    full = round(max(0.0, min(1.0, share)) * size)
    return "█" * full + "░" * (size - full)


def _cut(text: str, width: int) -> str:
    return line(width, text).plain


def _upto(text: str, width: int) -> str:
    """Give the beginning of a text that fits, at least one character of it."""
    used = 0
    for at, character in enumerate(text):
        used += cell_len(character)
        if used > width and at:
            return text[:at]
    return text
