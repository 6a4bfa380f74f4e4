from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spl.cli.text import brief, shown


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("plain text, ünïcode 日本 🙂", "plain text, ünïcode 日本 🙂"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\r\tc\0", r"a\nb\r\tc\x00"),
        ("\x7f\x9b", r"\x7f\x9b"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066x\u2069\u200e\u200b\ufeff", r"\u2066x\u2069\u200e\u200b\ufeff"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\udc80", r"\udc80"),
        ("\U000e0041", r"\U000e0041"),
        ("[bold]not markup[/]", "[bold]not markup[/]"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(text: str, visible: str) -> None:
    assert shown(text) == visible


@given(st.text(st.characters(max_codepoint=sys.maxunicode)))
def test_whatever_comes_in_what_is_shown_is_printable(text: str) -> None:
    assert shown(text).isprintable()


def test_a_long_text_is_cut_where_it_says_so() -> None:
    assert brief("x" * 60) == "x" * 60
    assert brief("x" * 61) == "x" * 59 + "…"
