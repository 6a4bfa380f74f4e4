from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spl.console.keys import MOST_PASTED, Decoder, Key, Paste


def keys(*pieces: bytes) -> list[Key]:
    decoder = Decoder()
    return [key for piece in pieces for key in decoder.feed(piece)]


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"\x1b[A", "up"), (b"\x1b[B", "down"), (b"\x1b[C", "right"), (b"\x1b[D", "left"), (b"\x1bOA", "up"),
        (b"\x1b[5~", "pgup"), (b"\x1b[6~", "pgdn"), (b"\x1b[H", "home"), (b"\x1b[1~", "home"), (b"\x1bOF", "end"),
        (b"\x1b[4~", "end"), (b"\x1b[Z", "shift-tab"), (b"\x1b[1;5A", "up"), (b"\t", "tab"), (b"\r", "enter"),
        (b"\n", "enter"), (b"\x7f", "backspace"), (b"\x08", "backspace"), (b"q", "q"), (b" ", " "),
    ],
)  # fmt: skip
def test_a_key_has_its_name_however_its_bytes_come(raw: bytes, named: str) -> None:
    assert keys(raw) == [named]
    assert keys(*(raw[at : at + 1] for at in range(len(raw)))) == [named]


@pytest.mark.parametrize("raw", [b"\x1b[<0;1;1M", b"\x1b[<0;1;1m", b"\x1b[I", b"\x1b[O", b"\x1b[3;1R"])
def test_what_a_mouse_or_the_terminal_itself_says_is_no_key(raw: bytes) -> None:
    assert keys(raw) == []


def test_several_keys_in_one_read_are_several_keys() -> None:
    assert keys(b"jj\x1b[Bx\r") == ["j", "j", "down", "x", "enter"]


def test_characters_of_any_length_come_whole() -> None:
    assert keys(b"\xe6", b"\xbc", b"\xa2", "é".encode()) == ["漢", "é"]


def test_bytes_that_are_no_character_are_no_key_that_does_something() -> None:
    assert keys(b"\xffx") == ["\ufffd", "x"]


def test_esc_by_itself_is_a_key_once_nothing_follows_it() -> None:
    decoder = Decoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.is_waiting
    assert decoder.rest() == ["esc"]
    assert decoder.rest() == []


def test_esc_and_another_key_are_two_keys() -> None:
    assert keys(b"\x1bq") == ["esc", "q"]


def test_a_sequence_that_never_ends_is_given_up_and_no_part_of_it_is_a_key() -> None:
    decoder = Decoder()
    assert decoder.feed(b"\x1b[1;5") == []
    assert decoder.rest() == []
    assert keys(b"\x1b[" + b"1" * 100) == []
    assert keys(b"\x1b[?1;2c") == []


def test_pasted_text_is_text_and_no_key() -> None:
    assert keys(b"\x1b[200~q\rx\x1b[A\x1b[201~j") == [Paste("q\rx\x1b[A"), "j"]


def test_a_paste_is_whole_wherever_it_was_cut() -> None:
    raw = b"a\x1b[200~one \xe6\xbc\xa2\x1b[201~b"
    for at in range(len(raw)):
        assert keys(raw[:at], raw[at:]) == ["a", Paste("one 漢"), "b"]


def test_a_paste_without_an_end_waits_for_it_and_is_no_esc() -> None:
    decoder = Decoder()
    assert decoder.feed(b"\x1b[200~yes\x1b") == []
    assert not decoder.is_waiting
    assert decoder.rest() == []
    assert decoder.feed(b"[201~") == [Paste("yes")]


def test_of_a_huge_paste_the_beginning_is_kept() -> None:
    (paste,) = keys(b"\x1b[200~", b"x" * 1_000_000, b"x" * 1_000_000, b"\x1b[201~")
    assert paste == Paste("x" * MOST_PASTED)


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_whatever_comes_the_decoder_goes_on(pieces: list[bytes]) -> None:
    decoder = Decoder()
    for piece in pieces:
        decoder.feed(piece)
        decoder.rest()
    decoder.feed(b"\x1b[201~")
    assert decoder.feed(b"~~q")[-1:] == ["q"]
