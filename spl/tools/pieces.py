"""Pieces of a size that fits in a tool's answer: bytes of a file, text of bytes, lines of a list."""

from __future__ import annotations

import os

OUTPUT_LIMIT = 65536
"""Characters in a tool's answer, its closing line included: what the kernel keeps and shows of one."""
CLOSING_LIMIT = 512
"""Characters of those that a closing line may take."""


def read_at(descriptor: int, offset: int, most: int) -> bytes:
    """Read at most so many bytes of a file from an offset on; fewer only where it ends. Raises `OSError`."""
    pieces = []
    while most > 0 and (piece := os.pread(descriptor, most, offset)):
        pieces.append(piece)
        offset += len(piece)
        most -= len(piece)
    return b"".join(pieces)


def text_of(data: bytes) -> str | None:
    """Give bytes as the UTF-8 they are, or None for what is no text: a NUL or anything else."""
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


class Lines:
    """The lines of an answer, as many as fit."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._room = OUTPUT_LIMIT - CLOSING_LIMIT

    def add(self, line: str) -> bool:
        """Add a line; gives whether it fits."""
        if len(line) >= self._room:
            return False
        self._lines.append(line)
        self._room -= len(line) + 1
        return True

    def closed(self, closing: str | None) -> str:
        """Give all lines, and a last one if there is one."""
        return "\n".join(self._lines if closing is None else [*self._lines, closing])
