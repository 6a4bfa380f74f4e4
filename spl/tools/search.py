"""Looking for a text in the files beneath a folder, within bounds that hold whatever lies there."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

from spl.tools.beneath import Refusal, opened, quoted, visible
from spl.tools.pieces import Lines, read_at, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spl.tools.beneath import Tree

MOST_HITS = 200
MOST_ENTRIES = 10_000
MOST_BYTES = 32 << 20
"""Bytes read in all."""
MOST_FILE_BYTES = 1 << 20
"""Bytes of a file that is looked into."""
DEPTH = 32
"""Folders inside one another."""

_SNIPPET = 200
_BEFORE = 80


class Search:
    """One search, and what it found."""

    def __init__(self, tree: Tree, root: int, text: str, seconds: float) -> None:
        self._tree = tree
        self._root = root
        self._text = text
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._lines = Lines()
        self._left_out: Counter[str] = Counter()
        self._stopped: str | None = None
        self._entries = self._bytes = self._hits = 0

    def answer(self) -> str:
        """Give the hits as `path:line: text`, and last what was left out."""
        parts = [f"{number} {what}" for what, number in sorted(self._left_out.items())]
        if self._stopped is not None:
            parts.append(f"everything after {self._stopped}")
        if not self._hits:
            self._lines.add("(nothing)")
        return self._lines.closed(f"(left out: {', '.join(parts)})" if parts else None)

    def look(self, folder: int, name: str, names: Sequence[str], depth: int = 0) -> None:
        """Look into a file, or what is beneath a folder; raises `Refusal` and `OSError` for this one alone."""
        with opened(folder, name) as (descriptor, status):
            if not stat.S_ISDIR(status.st_mode):
                self._look_into(descriptor, status.st_size, names)
            elif depth > DEPTH:
                self._left_out["too deep"] += 1
            else:
                self._look_beneath(descriptor, names, depth)

    def _look_beneath(self, folder: int, names: Sequence[str], depth: int) -> None:
        shows = self._tree.shows(self._root, folder)
        with os.scandir(folder) as entries:
            room = MOST_ENTRIES - self._entries + 1
            found = sorted(islice((entry.name for entry in entries if shows(entry.name)), room))
        for name in found:
            if self._over():
                return
            self._entries += 1
            try:
                self.look(folder, name, [*names, name], depth + 1)
            except Refusal:
                self._left_out["no file"] += 1
            except OSError:
                self._left_out["unreadable"] += 1

    def _over(self) -> bool:
        if self._stopped is None:
            if self._entries >= MOST_ENTRIES:
                self._stopped = f"{MOST_ENTRIES} entries"
            elif time.monotonic() >= self._deadline:
                self._stopped = f"{self._seconds:g} s"
        return self._stopped is not None

    def _look_into(self, descriptor: int, size: int, names: Sequence[str]) -> None:
        # The size is a file's own word in places such as /sys, and may have grown since.
        data = b"" if size > MOST_FILE_BYTES else read_at(descriptor, 0, MOST_FILE_BYTES + 1)
        if max(size, len(data)) > MOST_FILE_BYTES:
            self._left_out["over 1 MiB"] += 1
            return
        if self._bytes + len(data) > MOST_BYTES:
            self._stopped = "32 MiB"
            return
        self._bytes += len(data)
        text = text_of(data)
        if text is None:
            self._left_out["binary"] += 1
        elif self._text in text:
            self._hit(text, quoted(self._tree.path(names)))

    def _hit(self, text: str, path: str) -> None:
        for number, line in enumerate(text.split("\n"), start=1):
            at = line.find(self._text)
            if at < 0:
                continue
            if self._hits == MOST_HITS:
                self._stopped = f"{MOST_HITS} hits"
                return
            begin = max(0, at - _BEFORE)
            snippet = visible(line.removesuffix("\r")[begin : begin + _SNIPPET])
            if not self._lines.add(f"{path}:{number}: {snippet}"):
                self._stopped = "what fits in one answer"
                return
            self._hits += 1
