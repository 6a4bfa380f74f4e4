"""The file tools: what each does with a path of a tree, and what a model is told of it.

The work waits for disks, so each runs in a thread of its own. A thread cannot be broken off: a run that is stopped
leaves it to end by itself, which its own bounds make soon.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any

from spl.tools.arguments import fault
from spl.tools.beneath import DRAFT_MARK, PATH_LIMIT, Place, Refusal, kind, opened, quoted, reached
from spl.tools.mediated import Result
from spl.tools.pieces import CLOSING_LIMIT, OUTPUT_LIMIT, Lines, read_at, text_of
from spl.tools.search import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from spl.tools.beneath import Tree

READ_LIMIT = OUTPUT_LIMIT - CLOSING_LIMIT
"""Bytes of a file in one answer."""
WRITE_LIMIT = 1 << 20
"""Bytes of a file that is written."""
LIST_LIMIT = 1000
"""Entries of a folder in one answer."""
SCAN_LIMIT = 100_000
"""Entries of a folder that are looked at."""
SEARCH_SECONDS = 5.0

_LAST_OFFSET = (1 << 63) - 1 - (1 << 20)
_TEXT_LIMIT = 1000
_PATH_SHOWN = 300


def schemas(prefix: str, paths: str, *, default: bool) -> dict[str, dict[str, Any]]:
    """Give by name what a model is told of the file tools; with `default` a list or search needs no path."""
    path = {"type": "string", "description": paths, "maxLength": PATH_LIMIT}
    offset = {
        "type": "integer",
        "description": "The byte to begin at, 0 when left out",
        "minimum": 0,
        "maximum": _LAST_OFFSET,
    }
    content = {"type": "string", "description": "All the file is to hold", "maxLength": WRITE_LIMIT}
    text = {
        "type": "string",
        "description": "The text, in one line",
        "minLength": 1,
        "maxLength": _TEXT_LIMIT,
    }
    folder = [] if default else ["path"]
    return {
        f"{prefix}read_file": _schema(
            "Read a text file, or a piece of a long one.", {"path": path, "offset": offset}, ["path"]
        ),
        f"{prefix}write_file": _schema(
            "Write a whole text file, in place of the one that was there; missing folders are made.",
            {"path": path, "content": content},
            ["path", "content"],
        ),
        f"{prefix}list_dir": _schema(
            "List a folder: each entry's kind, its size in bytes and its name as a JSON string.",
            {"path": path},
            folder,
        ),
        f"{prefix}search": _schema(
            "Find the lines that hold a text, exactly as it is, in the text files beneath a folder.",
            {"text": text, "path": path},
            ["text", *folder],
        ),
    }


def _schema(description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"description": description, "parameters": parameters}


class Files:
    """The four file tools over a tree; each gives an `error` in one sentence for what it cannot do."""

    def __init__(
        self,
        tree: Tree,
        told: Mapping[str, Mapping[str, Any]],
        *,
        prefix: str = "",
        search_seconds: float = SEARCH_SECONDS,
    ) -> None:
        self._tree = tree
        self._told = told
        self._prefix = prefix
        self._search_seconds = search_seconds

    async def read_file(self, arguments: Mapping[str, Any]) -> Result:
        """Give text from a byte on: whole characters, and where to read on when there is more."""
        return await self._do("read_file", "read", arguments, self._read)

    async def write_file(self, arguments: Mapping[str, Any]) -> Result:
        """Put a whole file in place at once, or leave everything as it was."""
        return await self._do("write_file", "written", arguments, self._write)

    async def list_dir(self, arguments: Mapping[str, Any]) -> Result:
        """Give the first entries of a folder in the order of their names."""
        return await self._do("list_dir", "listed", arguments, self._list)

    async def search(self, arguments: Mapping[str, Any]) -> Result:
        """Give the lines that hold a text."""
        return await self._do("search", "searched", arguments, self._search)

    async def _do(
        self, tool: str, deed: str, arguments: Mapping[str, Any], work: Callable[..., str]
    ) -> Result:
        name = self._prefix + tool
        wrong = fault(name, self._told[name]["parameters"], arguments)
        if wrong is not None:
            return Result("error", wrong)
        given = {"path": ".", **arguments}
        try:
            return Result("ok", await asyncio.to_thread(work, **given))
        except Refusal as refusal:
            why = str(refusal)
        except OSError as error:
            why = error.strerror or "the system refused it"
        path = given["path"]
        shown = quoted(path if len(path) <= _PATH_SHOWN else f"{path[:_PATH_SHOWN]}…")
        return Result("error", f"{shown} cannot be {deed}: {why}")

    def _read(self, path: str, offset: int = 0) -> str:
        with reached(self._tree, self._tree.names(path)) as place, _opened(place, "file") as descriptor:
            size = os.fstat(descriptor).st_size
            data = read_at(descriptor, offset, READ_LIMIT + 1)
        begin, end = _whole(data, from_start=offset == 0)
        text = text_of(data[begin:end])
        if text is None:
            raise Refusal(f"it is a binary file of {size} bytes")
        if end < len(data):
            return f"{text}\n(more follows: read on with offset {offset + end})"
        if not text:
            return "(the file is empty)" if offset == 0 else f"(nothing follows: the file has {size} bytes)"
        return text

    def _write(self, path: str, content: str) -> str:
        try:
            data = content.encode()
        except UnicodeEncodeError:
            raise Refusal("its content holds half a character, a lone surrogate") from None
        if len(data) > WRITE_LIMIT:
            raise Refusal(f"its content takes {len(data)} bytes, and {WRITE_LIMIT} is the most")
        names = self._tree.names(path)
        self._tree.may_write(names)
        with reached(self._tree, names, make=True) as place:
            _replace(place, data, keep_mode=self._tree.keeps_modes)
        return f"Wrote {len(data)} bytes to {quoted(self._tree.path(names))}."

    def _list(self, path: str) -> str:
        with reached(self._tree, self._tree.names(path)) as place, _opened(place, "folder") as folder:
            shows = self._tree.shows(place.root, folder)
            with os.scandir(folder) as entries:
                there = (entry.name for entry in entries if shows(entry.name))
                found = nsmallest(LIST_LIMIT + 1, islice(there, SCAN_LIMIT))
            lines = Lines()
            shown = 0
            for name in found[:LIST_LIMIT]:
                if not lines.add(_entry(folder, name)):
                    break
                shown += 1
        if not found:
            return "(nothing)"
        return lines.closed(f"(more: these are the first {shown})" if shown < len(found) else None)

    def _search(self, text: str, path: str) -> str:
        if "\n" in text:
            raise Refusal("the text must be of one line")
        names = self._tree.names(path)
        with reached(self._tree, names) as place:
            search = Search(self._tree, place.root, text, self._search_seconds)
            search.look(place.folder, place.name, names)
            return search.answer()


@contextmanager
def _opened(place: Place, wanted: str) -> Iterator[int]:
    with opened(place.folder, place.name) as (descriptor, status):
        if kind(status) != wanted:
            raise Refusal(f"it is a {kind(status)}")
        yield descriptor


def _entry(folder: int, name: str) -> str:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return f"gone - {quoted(name)}"
    what = kind(status)
    return f"{what} {status.st_size if what == 'file' else '-'} {quoted(name)}"


def _whole(data: bytes, *, from_start: bool) -> tuple[int, int]:
    """Give where the whole characters of a piece begin and end; `data` holds one byte more than fits, or it ends."""
    begin = 0
    while not from_start and begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
        begin += 1
    end = min(len(data), READ_LIMIT)
    # A character ends where the next byte does not belong to it; one of more than four bytes is none.
    for _ in range(3):
        if end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
    return begin, end


def _replace(place: Place, data: bytes, *, keep_mode: bool) -> None:
    """Write a file under a name of its own and rename it into place (rename(2)): nobody ever reads half of it."""
    mode = 0o600
    try:
        status = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    except FileNotFoundError:
        pass
    else:
        if not stat.S_ISREG(status.st_mode):
            raise Refusal(f"it is a {kind(status)}")
        if keep_mode:
            mode = stat.S_IMODE(status.st_mode) & 0o777
    draft = DRAFT_MARK + secrets.token_hex(8)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600, dir_fd=place.folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.rename(draft, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=place.folder)
        raise
