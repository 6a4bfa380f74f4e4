"""A TOML file together with where each thing in it stands, which `tomllib` does not tell.

`tomllib` reads the values and decides what is valid TOML. The walk here only finds, in a text that is known to be
valid, the places of the same keys and values, so that an error can point at them.
"""

from __future__ import annotations

import bisect
import itertools
import re
import tomllib
import unicodedata
from typing import TYPE_CHECKING, Any, NamedTuple

from bwrap.errors import ProfileError
from bwrap.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

Path = tuple[str | int, ...]
"""The way to a value: a key for each table, an index for each array."""

_BASIC, _LITERAL = r'"(?:\\.|[^"\\])*"', r"'[^']*'"
_LONGEST_LINE = 4096
"""Characters. `tomllib` takes time by the square of a key's parts, and fails on a number of over 4300 digits."""
_DEEPEST = 16
_WIDEST = 64
"""Bits of a whole number, as TOML asks for. An error shows what it means, and Python writes no number of any length."""
_AROUND = 60
"""Characters of a line that are shown before a fault; after it twice as many."""

_ONE_KEY = rf"(?:{_BASIC}|{_LITERAL}|[A-Za-z0-9_-]+)"
_KEY = re.compile(rf"{_ONE_KEY}(?:[ \t]*\.[ \t]*{_ONE_KEY})*")
_BLANK = re.compile(r"(?:\s|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_SCALAR = re.compile(
    r'"""(?:\\[\s\S]|[^\\])*?"""(?:"{0,2})'
    r"|'''[\s\S]*?'''(?:'{0,2})"
    rf"|{_BASIC}|{_LITERAL}"
    r"|\d{4}-\d\d-\d\d [\d:.]+[^\s,\]}#]*"
    r"|[^\s,\]}#]+"
)
_TOML_ERROR = re.compile(
    r"(?P<reason>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)"
)


class Span(NamedTuple):
    """A piece of a text, from one offset to another, in characters."""

    start: int
    end: int


class Place(NamedTuple):
    """A piece of a file as a person finds it; lines and columns count from 1, `width` is in characters."""

    line: int
    column: int
    width: int


class Document:
    """One file: its text, its values, and the span of each key and value by its path."""

    def __init__(self, file: str, data: bytes) -> None:
        """Read a file's bytes; raises `ProfileError` with the place of the first thing that is no TOML."""
        self.file = printable(file)
        self.text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
        self._lines = self.text.split("\n")
        self._begins = [0, *itertools.accumulate(len(line) + 1 for line in self._lines[:-1])]
        self._require_utf_8(data)
        self._require_short_lines()
        try:
            self.values: dict[str, Any] = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            raise self._broken(str(error)) from None
        except RecursionError:
            raise ProfileError(self.file, "", "it is nested too deeply to be read") from None
        try:
            walk = _Walk(self.text)
        except _TooDeep as error:
            raise self.fault(error.span, "", f"it is nested more than {_DEEPEST} deep") from None
        self.keys, self.spans = walk.keys, walk.spans
        self.whole = Span(0, 0)
        self._require_narrow_numbers(self.values, ())

    def place(self, span: Span) -> Place:
        """Give a span's line and column; the width ends with the line."""
        line = bisect.bisect_right(self._begins, span.start)
        begins = self._begins[line - 1]
        end = min(span.end, begins + len(self._lines[line - 1]))
        return Place(line, span.start - begins + 1, max(1, end - span.start))

    def excerpt(self, place: Place) -> str:
        """Give the line, or what of it is near, with carets under the place: two lines that are safe to print."""
        line = self._lines[place.line - 1]
        at = place.column - 1
        first, last = max(0, at - _AROUND), min(len(line), at + 2 * _AROUND)
        end = min(at + place.width, last)
        before = ("…" if first else "") + printable(line[first:at])
        marked, after = printable(line[at:end]), printable(line[end:last]) + ("…" if last < len(line) else "")
        number = f"{place.line:>5}"
        return (
            f"{number} | {before}{marked}{after}\n"
            f"{' ' * len(number)} | {' ' * _columns(before)}{'^' * max(1, _columns(marked))}"
        )

    def fault(self, span: Span, path: str, reason: str) -> ProfileError:
        """Make the error that points at a span; `path` is how a person writes the way to it."""
        place = self.place(span)
        return ProfileError(
            self.file, path, reason, line=place.line, column=place.column, excerpt=self.excerpt(place)
        )

    def _require_utf_8(self, data: bytes) -> None:
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            at = len(data[: error.start].decode("utf-8").replace("\r\n", "\n"))
            # What stands in the text for the byte is four characters, as `\xff`.
            reason = f"byte {data[error.start]:#04x} is not UTF-8"
            raise self.fault(Span(at, at + 4), "", reason) from None

    def _require_short_lines(self) -> None:
        for number, line in enumerate(self._lines, 1):
            if len(line) > _LONGEST_LINE:
                reason = f"the line is longer than {_LONGEST_LINE} characters"
                raise ProfileError(self.file, "", reason, line=number, column=_LONGEST_LINE + 1)

    def _require_narrow_numbers(self, value: Any, path: Path) -> None:
        if isinstance(value, dict | list):
            for step, each in value.items() if isinstance(value, dict) else enumerate(value):
                self._require_narrow_numbers(each, (*path, step))
        elif isinstance(value, int) and value.bit_length() > _WIDEST:
            raise self.fault(self.spans.get(path, self.whole), "", f"a number has more than {_WIDEST} bits")

    def _broken(self, said: str) -> ProfileError:
        found = _TOML_ERROR.fullmatch(said)
        if found is None:
            return ProfileError(self.file, "", said)
        line = int(found["line"] or len(self._lines))
        column = int(found["column"] or len(self._lines[-1]) + 1)
        at = self._begins[line - 1] + column - 1
        return self.fault(Span(at, at + 1), "", f"this is not valid TOML: {found['reason']}")


def _columns(text: str) -> int:
    """Give how many columns a terminal takes for printable text: two for a wide character, none for an accent."""
    return sum(
        0 if unicodedata.category(each) in ("Mn", "Me") else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )


class _TooDeep(Exception):
    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


class _Walk:
    """One pass over a valid text."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.keys: dict[Path, Span] = {}
        self.spans: dict[Path, Span] = {}
        self._elements: dict[Path, int] = {}
        table: Path = ()
        while self._skip(_BLANK) < len(text):
            if text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        array = self._text.startswith("[[", self._at)
        start = self._at
        self._at += 2 if array else 1
        self._skip(_SPACE)
        *above, last = self._key(())
        self._skip(_SPACE)
        self._at += 2 if array else 1
        path: Path = ()
        for key in above:
            path = (*path, key)
            # A table that is only on the way may be said nowhere else.
            self.keys.setdefault(path, Span(start, self._at))
            self.spans.setdefault(path, Span(start, self._at))
            path = self._latest(path)
        path = (*path, last)
        if array:
            self._elements[path] = self._elements.get(path, 0) + 1
        for each in dict.fromkeys((path, self._latest(path))):
            self.keys[each] = self.spans[each] = Span(start, self._at)
        return self._latest(path)

    def _latest(self, path: Path) -> Path:
        """Give the path into an array of tables' last element, or the path of a table as it is."""
        return (*path, self._elements[path] - 1) if path in self._elements else path

    def _pair(self, table: Path) -> None:
        start = self._skip(_SPACE)
        keys = self._key(table)
        key = Span(start, self._at)
        self._skip(_SPACE)
        self._at += 1  # the equals sign
        self._skip(_SPACE)
        path = table
        for each in keys:
            path = (*path, each)
            self.keys.setdefault(path, key)
            self.spans.setdefault(path, key)
        self.spans[path] = self._value(path)

    def _value(self, path: Path) -> Span:
        start = self._at
        match self._text[start]:
            case "[":
                self._require_shallow(len(path) + 1, start)
                for index, _ in enumerate(self._until("]")):
                    self.spans[*path, index] = self._value((*path, index))
            case "{":
                for _ in self._until("}"):
                    self._pair(path)
            case _:
                self._skip(_SCALAR)
        return Span(start, self._at)

    def _until(self, close: str) -> Iterator[None]:
        """Stand at each element of an array or inline table in turn, and behind its end when there are no more."""
        self._at += 1
        while self._text[self._skip(_BLANK)] != close:
            yield
            if self._text[self._skip(_BLANK)] == ",":
                self._at += 1
        self._at += 1

    def _require_shallow(self, depth: int, start: int) -> None:
        if depth > _DEEPEST:
            raise _TooDeep(Span(start, max(start + 1, self._at)))

    def _key(self, table: Path) -> list[str]:
        """Read a key, quoted or not, dotted or not; `table` is the path of the table it stands in."""
        start = self._at
        self._skip(_KEY)
        # Quoted or dotted: the one who reads the values reads the keys.
        inner: Any = tomllib.loads(f"{self._text[start : self._at]} = 0")
        names: list[str] = []
        while isinstance(inner, dict):
            ((name, inner),) = inner.items()
            names.append(name)
        self._require_shallow(len(table) + len(names), start)
        return names

    def _skip(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return self._at
