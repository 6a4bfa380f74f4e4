from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spl.console.text import taken, word


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("one\ntwo\r\tthree", r"one\ntwo\r\tthree"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("a\u200db\u200bc", r"a\u200db\u200bc"),
        ("\u2764\ufe0f", "\u2764\\ufe0f"),
        ("\x9b31m", r"\x9b31m"),
        ("\udcff", r"\udcff"),
        ("[red]no markup[/red]", "[red]no markup[/red]"),
        ("e\u0301", "e\u0301"),
        ("\u3164\u1160", r"\u3164\u1160"),
        ("\U0001f44d\U0001f3fd", "\U0001f44d\\U0001f3fd"),
        ("\u6f22\u5b57 \U0001f469", "\u6f22\u5b57 \U0001f469"),
    ],
)
def test_what_steers_a_terminal_is_shown_as_an_escape_and_letters_as_they_are(said: str, shown: str) -> None:
    assert taken(said) == shown


def test_marks_do_not_pile_up_over_the_lines_above() -> None:
    assert taken("e" + "\u0301" * 5) == "e\u0301\u0301" + r"\u0301" * 3


def test_a_mark_with_nothing_before_it_joins_nothing_that_the_console_wrote() -> None:
    assert taken("\u0301") == r"\u0301"


def test_a_text_that_was_cut_says_so() -> None:
    assert taken("x" * 11, 10) == "x" * 9 + "…"
    assert taken("x" * 10, 10) == "x" * 10
    assert taken("\x1b" * 10, 10) == r"\x1b\x1b\x"[:9] + "…"


def test_a_name_that_is_more_than_a_word_stands_in_quotes() -> None:
    assert [word(said) for said in ("bash", "no-notes", "漢", "")] == ["bash", "no-notes", "漢", '""']
    assert word("bash by layer allow") == '"bash by layer allow"'
    assert word('a"b') == r'"a\"b"'
    assert word("a=b") == '"a=b"'


def test_a_document_is_shown_as_json_and_nothing_as_nothing() -> None:
    assert taken({"a": [1, None, "\x1b"]}) == r'{"a": [1, null, "\u001b"]}'
    assert taken(None) == ""
    assert taken(True) == "true"


@given(st.text(), st.integers(1, 50))
def test_no_text_has_a_character_that_does_not_print_or_more_of_them_than_was_asked(
    said: str, most: int
) -> None:
    shown = taken(said, most)
    assert shown.isprintable()
    assert len(shown) <= most
    assert not any(unicodedata.category(each) == "Cf" for each in shown)
