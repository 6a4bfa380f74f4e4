"""The walk that finds the places of keys and values, held against `tomllib`, which reads them."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bwrap.document import Document, Span
from bwrap.errors import ProfileError
from tests.bwrap.authored import marked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.document import Path


def paths(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Give every path into a value but the empty one, with what is there."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for step, each in inner:
        yield (*path, step), each
        yield from paths(each, (*path, step))


def slice_of(document: Document, span: Span) -> str:
    return document.text[span.start : span.end]


def refused(data: bytes) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        Document("own.toml", data)
    return caught.value


# --- any document ---

spaces = st.sampled_from(["", " ", "\t", "  "])
blanks = st.sampled_from(["", " ", "\n", "\n\n", " # a [comment] = '\"'\n", "\t\n# }]\n"])
bare = st.text("abcXYZ019-_", min_size=1, max_size=4)
odd = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=5)


def basic(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}\\t\\u00e9"'


literal = odd.filter(lambda text: "'" not in text)
quoted_keys = st.one_of(odd.map(basic), literal.map(lambda text: f"'{text}'"))
keys = st.one_of(bare, quoted_keys)
strings = st.one_of(
    odd.map(basic),
    literal.map(lambda text: f"'{text}'"),
    st.tuples(
        odd.map(lambda text: basic(text)[1:-1]), st.sampled_from(["", '"', '""', '""\n"', "\\\n   x"])
    ).map(lambda both: f'"""{both[0]}{both[1]}"""'),
    st.tuples(literal, st.sampled_from(["", "'", "''", "''\n'", "\\\n", '"""'])).map(
        lambda both: f"'''{both[0]}{both[1]}'''"
    ),
)
scalars = st.one_of(
    strings,
    st.sampled_from(
        [
            "0", "-17", "+1_000", "0xdead_BEEF", "0o17", "0b101", "1.5", "-0.1e+10", "6.02E23", "inf", "-inf", "true",
            "false", "1979-05-27", "07:32:00", "07:32:00.999", "1979-05-27T07:32:00Z", "1979-05-27 07:32:00",
            "1979-05-27 07:32:00.5-07:00", "1979-05-27t07:32:00+01:30",
        ]
    ),
)  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    said = draw(st.lists(inner, max_size=3))
    parts = [f"{draw(blanks)}{each}{draw(blanks)}" for each in said]
    comma = draw(st.sampled_from(["", ","])) if parts else ""
    return f"[{','.join(parts)}{comma}{draw(blanks)}]"


@st.composite
def dotted(draw: st.DrawFn) -> str:
    return f"{draw(spaces)}.{draw(spaces)}".join(draw(st.lists(keys, min_size=1, max_size=3)))


@st.composite
def inline_tables(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    pairs = [
        f"{draw(spaces)}{draw(dotted())}{draw(spaces)}={draw(spaces)}{draw(inner)}{draw(spaces)}"
        for _ in range(draw(st.integers(0, 3)))
    ]
    return f"{{{','.join(pairs)}{draw(spaces) if not pairs else ''}}}"


values = st.recursive(scalars, lambda inner: st.one_of(arrays(inner), inline_tables(inner)), max_leaves=6)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Give a text of many kinds of line; some are no TOML, for what they say twice, and those are left out."""
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        match draw(st.sampled_from(["pair", "pair", "table", "array", "blank"])):
            case "pair":
                line = (
                    f"{draw(spaces)}{draw(dotted())}{draw(spaces)}={draw(spaces)}{draw(values)}{draw(spaces)}"
                )
            case "table":
                line = f"{draw(spaces)}[{draw(spaces)}{draw(dotted())}{draw(spaces)}]"
            case "array":
                # Of few names, so that an array gets more than one table and tables of its own.
                name = draw(st.sampled_from(["a", "a . b", "a.b.c", "'é'.a"]))
                line = f"[[{draw(spaces)}{name}{draw(spaces)}]]"
            case _:
                line = draw(spaces)
        lines.append(line + draw(st.sampled_from(["", "", " # comment", "#"])))
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"]))


def valid(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(documents().filter(valid), st.booleans())
def test_every_value_of_any_document_has_its_place_and_nothing_else_has_one(text: str, crlf: bool) -> None:
    document = Document("any.toml", (text.replace("\n", "\r\n") if crlf else text).encode())

    found = dict(paths(document.values))
    assert set(document.spans) == set(found)
    assert document.values == tomllib.loads(text)
    for path, value in found.items():
        if not isinstance(value, dict | list):
            assert tomllib.loads(f"x = {slice_of(document, document.spans[path])}")["x"] == value
            key = slice_of(document, document.keys[path]) if path in document.keys else ""
            assert not key or path[-1] == list(paths(tomllib.loads(f"{key} = 0")))[-1][0][-1]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.integers(0, 60), st.integers(1, 5))
def test_the_excerpt_of_any_place_is_two_printable_lines(text: str, start: int, width: int) -> None:
    document = Document("any.toml", b"")
    document.text = text

    place = document.place(Span(min(start, len(text)), min(start + width, len(text))))
    line, carets = document.excerpt(place).split("\n")

    assert line.isprintable()
    assert carets.strip(" ").lstrip("|").strip(" ").strip("^") == ""


# --- places ---

PLACES = {
    "a table on the way to another": (b"x = 1\n[a.b]\n", ("a",), (2, 1, "[a.b]")),
    "a table said after one beneath it": (b"[a.b]\n[a]\n", ("a",), (2, 1, "[a]")),
    "a table on the way by a dotted key": (b"a.b = 1", ("a",), (1, 1, "a.b")),
    "the second of an array of tables": (b"[[a]]\n[[ a ]]\nx=1", ("a", 1), (2, 1, "[[ a ]]")),
    "a table beneath the second of an array": (b"[[a]]\n[[a]]\n[a.b]", ("a", 1, "b"), (3, 1, "[a.b]")),
    "an element of a list over several lines": (b'a = [ # one\n  "b",\n  "c"]', ("a", 1), (3, 3, '"c"')),
    "a value of an inline table in a list": (b"a = [{}, { b.c = 2 }]", ("a", 1, "b", "c"), (1, 18, "2")),
    "a value after a wide character": ('"é世" = 3'.encode(), ("é世",), (1, 8, "3")),
    "a string over several lines, as far as its line": (b'a = """b\nc"""', ("a",), (1, 5, '"""b')),
    "a value after lines that end as Windows ends them": (b"a = 1\r\nb = 2\r\n", ("b",), (2, 5, "2")),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_place_is_a_line_a_column_and_a_width(case: str) -> None:
    data, path, (line, column, text) = PLACES[case]
    document = Document("own.toml", data)

    place = document.place(document.spans[path])

    assert (place.line, place.column) == (line, column)
    assert document.text.split("\n")[line - 1][column - 1 :][: place.width] == text


CARETS = {
    "plain": (b"ab = 12", "    1 | ab = 12\n      |      ^^"),
    "after a tab": (b"\tab = 12", "    1 | \\tab = 12\n      |        ^^"),
    "after a wide character": ('"世" = 12'.encode(), '    1 | "世" = 12\n      |        ^^'),
    "under wide characters": ("a = '世界'".encode(), "    1 | a = '世界'\n      |     ^^^^^^"),
    "after an accent of its own": ("'e\u0301' = 12".encode(), "    1 | 'e\u0301' = 12\n      |       ^^"),
    "after what would turn the line around": (
        "'\u202e' = 12".encode(),
        "    1 | '\\u202e' = 12\n      |            ^^",
    ),
    "in a long line": (
        b"a = [" + b"1, " * 100 + b"22, " + b"3, " * 100 + b"]",
        f"    1 | …{'1, ' * 20}22, {'3, ' * 38}3,…\n      | {' ' * 61}^^",
    ),
}


@pytest.mark.parametrize("case", CARETS)
def test_carets_stand_under_what_they_mean_on_a_terminal(case: str) -> None:
    data, excerpt = CARETS[case]
    document = Document("own.toml", data)
    path = ("a", 100) if case == "in a long line" else next(iter(document.spans))

    assert document.excerpt(document.place(document.spans[path])) == excerpt


# --- what is no document ---

BROKEN = {
    "a value missing": (b"[limits]\nprocesses = =\n", 2, 13, "=", "this is not valid TOML: Invalid value"),
    "a string without an end": (b'a = "b\n', 1, 7, "^", "Illegal character '\\n'"),
    "a list without an end": (b"a = [1,\n", 2, 1, "^", "Invalid value"),
    "an array without an end, and no last newline": (b"a = [1, 2", 1, 10, "^", "Unclosed array"),
    "a key said twice": (b"a = 1\na = 2", 2, 6, "^", "Cannot overwrite a value"),
    "a table said twice": (b"[a]\n\n[a]", 3, 3, "]", "Cannot declare ('a',) twice"),
    "a control character": (b"a = '\x1b[31m'", 1, 6, "\\x1b", "invalid character '\\x1b'"),
    "after a line that ends as Windows ends it": (b"a = 1\r\nb =\r\n", 2, 4, "^", "Invalid value"),
    "a lone carriage return": (b"a = 1\rb = 2", 1, 6, "\\r", "Expected newline"),
    "a byte order mark": (b"\xef\xbb\xbfa = 1", 1, 1, "\\ufeff", "Invalid statement"),
    "no such day": (b"a = 2023-02-30", 1, 5, "2", "Invalid date or datetime"),
    "not UTF-8": (b"a = 1\r\nb = '\xc3\xa9\xff'", 2, 7, "\\xff", "byte 0xff is not UTF-8"),
    "a number of more bits than TOML asks for": (
        b"a = [1,\n  0x1" + b"0" * 16 + b"]",
        2,
        3,
        "0x1" + "0" * 16,
        "64 bits",
    ),
    "lists too deep": (b"a = " + b"[" * 16 + b"]" * 16, 1, 20, "[", "nested more than 16 deep"),
    "tables too deep": (
        b"[x]\n" + b".".join([b"a"] * 16) + b" = 1",
        2,
        1,
        ".".join("a" * 16),
        "more than 16 deep",
    ),
    "a header too deep": (
        b"[" + b".".join([b"a"] * 17) + b"]",
        1,
        2,
        ".".join("a" * 17),
        "more than 16 deep",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_document_is_named_by_line_column_and_caret(case: str) -> None:
    data, line, column, text, reason = BROKEN[case]
    error = refused(data)

    assert (error.line, error.column) == (line, column)
    assert reason in error.reason
    # Where the fault is the end of a line there is nothing to mark.
    assert marked(error) == text or (text == "^" and error.excerpt.endswith("^"))
    assert str(error).startswith(f"profile own.toml:{line}:{column}: ")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "nested", [b"a = " + b"[" * 2000, b"a = " + b"[" * 2000 + b"]" * 2000, b"a = " + b"{b=" * 1300]
)
def test_what_is_nested_deeper_than_can_be_read_is_an_error(nested: bytes) -> None:
    assert "nested too deeply" in refused(nested).reason


@pytest.mark.parametrize("line", [b"9" * 5000, b".".join([b"a"] * 30_000)])
def test_a_line_that_would_take_the_reader_long_is_refused_unread(line: bytes) -> None:
    error = refused(b"# first\nx = " + line)

    assert (error.line, error.column, error.reason) == (2, 4097, "the line is longer than 4096 characters")
