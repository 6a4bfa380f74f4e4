from __future__ import annotations

import pytest

from spl.kernel.patterns import LARGEST, LONGEST, fault


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "a" * LONGEST,
        "(^|/)[.]env(/|$)",
        r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$",
        "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$",
        "^[0-9a-f]{64}$",
        "^[A-Za-z0-9_-]{1,64}$",
        "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        "(?i)(?P<what>rm|dd|mkfs)( +-[a-z]+){0,9}",
        r"[[:alpha:]]{9}[^[:space:]]{9}[]{999}]",
        "[{999}]",
        "{999}",
        "a{,999}",
        r"\{999}",
        r"\\pL",
        r"[\\]{9}p",
        "(a{0}){0}",
    ],
)
def test_a_pattern_that_one_would_write_is_none_too_much(pattern: str) -> None:
    assert fault(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "(?s)(.?){999}!",
        "a{999}",
        "a{999,}",
        "a{0,999}",
        "a{1,999}?",
        ".{121}",
        r"\S{121}",
        "[ab]{121}",
        "[^\u00e9]{121}",
        "[]a]{121}",
        r"[\]a]{121}",
        "[[:alpha:]]{61}",
        "(a{30}){30}",
        "((a{9}){9}){9}",
        "(?:a{30}|b)*(c{30}(d{30}){9}){2}",
        "(a{30}b{30}){11}",
        "((((a))))" + "{99}",
        r"(\(\[\.){99}",
        r"([)]a[(]){99}",
        r"(\Q)\E){99}",
        "(a" * 30 + "){2}" * 30,
        ")" * 9 + "(a{30}){30}",
    ],
)
def test_a_pattern_whose_counts_make_it_large_is_too_much(pattern: str) -> None:
    assert str(fault(pattern)).startswith(
        f"with its counts written out, a pattern may have {LARGEST} characters"
    )


@pytest.mark.parametrize("pattern", [r"\pL", r"\PL", r"\p{Greek}", r"[a\p{Lu}]", r"\\\pL", r"(?i)a|\P{L}"])
def test_a_class_of_unicode_is_too_much(pattern: str) -> None:
    assert str(fault(pattern)).startswith("a pattern may not ask for a class of Unicode")
