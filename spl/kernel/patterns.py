"""Patterns of regular expressions in rules, and how large one may be.

RE2 (https://github.com/google/re2) takes a time that grows with the text and with the pattern as it is when its counts
are written out: `(?s)(.?){999}!` takes half a second. And the library makes a pattern anew each time that it is asked.
"""

from __future__ import annotations

import re

LONGEST = 200
"""The longest pattern, in characters."""

LARGEST = 600
"""The longest pattern with its counts written out, in characters; a class counts for five and more. Of 28 000 patterns
within it that were made at random, the slowest looked through the longest text of `shown` in 0.07 s."""

_WIDE = 5
_CLASSES = {".", r"\C", r"\d", r"\D", r"\s", r"\S", r"\w", r"\W"}
_PIECE = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\x\{.*?\}|\\."
    r"|\[\^?\]?(?:\\.|\[:.*?:\]|[^\]\\])*+\]"
    r"|\{(?P<least>\d+)(?:,(?P<most>\d*))?\}|.",
    re.DOTALL,
)
"""A piece as RE2 reads it. What RE2 refuses may be read in any way: it is refused there."""


def fault(pattern: str) -> str | None:
    """Say why a pattern is too much for a rule, or give None; whether it is a pattern is not looked at."""
    if len(pattern) > LONGEST:
        return f"a pattern may have {LONGEST} characters, and this one has {len(pattern)}"
    if re.search(r"\\[pP]", pattern.replace(r"\\", "")):
        return r"a pattern may not ask for a class of Unicode with \p: each takes a millisecond to make"
    if (size := _written_out(pattern)) > LARGEST:
        return (
            f"with its counts written out, a pattern may have {LARGEST} characters, and this one has {size}"
        )
    return None


def _written_out(pattern: str) -> int:
    """Give the size of a pattern with each `{n}` in it written out."""
    groups, last = [0], 0
    for piece in _PIECE.finditer(pattern):
        text = piece[0]
        if piece["least"]:
            times = max(int(piece["most"] or piece["least"]), 1)
            groups[-1] += last * (times - 1)
            last *= times
        elif text == "(":
            groups.append(1)
        elif text == ")" and len(groups) > 1:
            last = groups.pop() + 1
            groups[-1] += last
        else:
            last = _weight(text)
            groups[-1] += last
    return sum(groups)


def _weight(text: str) -> int:
    """Give the size of one piece: of a class so many for what it begins with, and one for each range in it."""
    if text.startswith("[") and text.endswith("]"):
        return 3 + len(re.sub(r"[^\\]-[^\\]", "-", text[1:-1]))
    return _WIDE if text in _CLASSES else len(text)
