"""Lines of a profile: what to write into one so that it lets something more through, each by itself or together.

A line is no promise. Whether the floor allows it, and whether this host has what it shows, is `bwrap.advice`'s to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bwrap import floor, groups
from bwrap.text import sized

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bwrap.profile import Limits

_SIZES = ("address_space", "file_size")
_FOLDER_SIZE = "16M"
_WIDTH = 100
_SHORT = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}


class Line(NamedTuple):
    """One entry of a profile: its table, its key there, and the value in TOML; a row of `syscalls.when` in three."""

    table: str
    key: str
    value: str
    call: str = ""
    argument: int = 0

    def __str__(self) -> str:
        """Give it as TOML: its table's header and what stands under it, a line each."""
        return "\n".join([self.header, *self.entries])

    @property
    def header(self) -> str:
        """The header of its table, or of a row of its own."""
        return "[[syscalls.when]]" if self.call else f"[{self.table}]"

    @property
    def entries(self) -> list[str]:
        """What stands under the header, which a file may have already: a table stands in it once."""
        if self.call:
            return _row(self.call, self.argument, [self.value])
        listed = self.table in ("filesystem", "syscalls")
        return [f"{self.key} = {f'[{self.value}]' if listed else self.value}"]

    @property
    def told(self) -> str:
        """What to write and where, in words on one line: `in [syscalls]: allow = ["uname"]`."""
        return f"in {self.header}: {', '.join(self.entries)}"


def allow(call: str) -> Line:
    """Allow a call whatever its arguments are."""
    return Line("syscalls", "allow", quoted(call))


def when(call: str, argument: int, value: str | int) -> Line:
    """Allow a call for one more value of an argument: a number, or a C name of constants.toml."""
    return Line("syscalls", "when", quoted(value) if isinstance(value, str) else str(value), call, argument)


def show(path: str) -> Line:
    """Show a file or folder of the host, or what a token stands for, read-only."""
    return Line("filesystem", "read_only", quoted(path))


def folder_in_memory(path: str) -> Line:
    """Give a folder to write in, in memory."""
    return Line("filesystem", "tmpfs", f"{{ path = {quoted(path)}, size = {quoted(_FOLDER_SIZE)} }}")


def share(namespace: str) -> Line:
    """Share a namespace of the host, which the floor allows for none that matters."""
    return Line("namespaces", namespace, "false")


def limit(key: str, value: int) -> Line:
    """Set a limit, as a person writes it."""
    return Line("limits", key, written_limit(key, value))


def raised(limits: Limits, key: str) -> Line:
    """Set a limit to twice what it is, or to the most the floor allows, if it is below that."""
    now, most = getattr(limits, key), floor.MOST[key][0]
    return limit(key, 2 * now if now >= most else min(2 * now, most))


def written_limit(key: str, value: int) -> str:
    """Write the value of a limit as a profile does: `"512M"`, `"60s"` or `64`."""
    return quoted(sized(value)) if key in _SIZES else quoted(f"{value}s") if key == "cpu_time" else str(value)


def quoted(text: str) -> str:
    """Write a text as a basic string of TOML; raises `ValueError` for bytes that are no UTF-8."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a profile is UTF-8, and this is not")
    return f'"{"".join(_escaped(character) for character in text)}"'


def document(lines: Iterable[Line]) -> str:
    """Give lines together as the tables of a profile, in the order in which profiles are written."""
    left = list(dict.fromkeys(lines))
    pieces = [
        "\n".join([f"[{table}]", *entries])
        for table in ("namespaces", "filesystem", "limits", "syscalls")
        if (entries := list(_entries([each for each in left if each.table == table and not each.call])))
    ]
    rows: dict[tuple[str, int], list[str]] = {}
    for each in left:
        if each.call:
            rows.setdefault((each.call, each.argument), []).append(each.value)
    pieces += ["\n".join(["[[syscalls.when]]", *_row(*row, values)]) for row, values in rows.items()]
    return "\n\n".join(pieces) + "\n" if pieces else ""


def constant(call: str, symbol: str, number: int) -> str | int:
    """Give the C name of an argument's value, if constants.toml has it, else the number in 32 bits."""
    if groups.constants().get(symbol) == number:
        return symbol
    for value in floor.ONLY.get(call, (0, (), ""))[1]:
        if groups.number(value) == number:
            return value
    return number & 0xFFFFFFFF


def _entries(lines: list[Line]) -> Iterator[str]:
    for key in dict.fromkeys(each.key for each in lines):
        values = [each.value for each in lines if each.key == key]
        if lines[0].table not in ("filesystem", "syscalls"):
            yield f"{key} = {values[-1]}"
        else:
            short = f"{key} = [{', '.join(values)}]"
            yield (
                short
                if len(short) <= _WIDTH
                else "\n".join([f"{key} = [", *(f"    {value}," for value in values), "]"])
            )


def _row(call: str, argument: int, values: list[str]) -> list[str]:
    return [f"call = {quoted(call)}", f"argument = {argument}", f"equals = [{', '.join(values)}]"]


def _escaped(character: str) -> str:
    if character in _SHORT:
        return f"\\{_SHORT[character]}"
    code = ord(character)
    if character.isprintable():
        return character
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
