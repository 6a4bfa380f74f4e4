"""The walk: from a folder down to a path beneath it, name by name, never through a symlink.

Each name is opened from the descriptor of the folder before it with O_NOFOLLOW (openat(2)), so a name that is swapped
for a symlink between two steps is refused like one that always was. There is nothing to check first and use later.

A hard link is an ordinary file here. Whoever can make one in the folder is the operator, who may read its other name
anyway; and to write a file is to put a new one in its place, which leaves the other name as it was.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from abc import ABC, abstractmethod
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PATH_LIMIT = 4096
"""Bytes in a path, as in the kernel's PATH_MAX."""
DEPTH_LIMIT = 100
"""Names in a path: each is a descriptor while the path is walked."""

DRAFT_MARK = ".spl~"
"""What the name of a half-written file begins with; no label can (it has no `~`), and no tool shows or takes it."""

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
}
# Not \w: a mark here must not depend on what Unicode takes for a letter.
_DRAFT = re.compile(re.escape(DRAFT_MARK) + r"[0-9a-f]{16}")


class Refusal(Exception):
    """A path that a tool does not serve; the text goes on from `it cannot be read: `."""


class Place(NamedTuple):
    """A name in an opened folder; `root` is the tree's own folder, and its place is the name `.` in itself."""

    root: int
    folder: int
    name: str


class Tree(ABC):
    """The files beneath one folder, as one reader sees them."""

    root: str
    keeps_modes = False
    """Whether a file that is written anew keeps its permissions; else it is its owner's alone."""

    @abstractmethod
    def names(self, path: str) -> list[str]:
        """Give the names that lead from the root to a path as a model writes it; raises `Refusal`."""

    @abstractmethod
    def path(self, names: Sequence[str]) -> str:
        """Give a path as a model may write it."""

    @abstractmethod
    def may_write(self, names: Sequence[str]) -> None:
        """Raise `Refusal` where this reader may not write."""

    @abstractmethod
    def only(self, root: int, folder: int) -> str | None:
        """Give the one name in an opened folder that is there for this reader, or None when all are.

        Raises `Refusal` for a folder that no name of is to be used.
        """

    def shows(self, root: int, folder: int) -> Callable[[str], bool]:
        """Give what tells whether a name in an opened folder is there for this reader; raises `Refusal`."""
        only = self.only(root, folder)
        return lambda name: (only is None or name == only) and not _DRAFT.fullmatch(name)


def checked(path: str) -> str:
    """Give a path back that the kernel could take; raises `Refusal`."""
    try:
        length = len(path.encode())
    except UnicodeEncodeError:
        raise Refusal("it holds half a character, a lone surrogate") from None
    if "\0" in path:
        raise Refusal("it holds a NUL")
    if length > PATH_LIMIT or path.count("/") > DEPTH_LIMIT:
        raise Refusal(f"it is longer than {PATH_LIMIT} bytes or {DEPTH_LIMIT} names")
    return path


@contextmanager
def reached(tree: Tree, names: Sequence[str], *, make: bool = False) -> Iterator[Place]:
    """Open the folder that holds a path, with `make` after making what is missing of it (0700).

    What the reader may not see is not there. What was made is taken away again if the block raises. Raises `Refusal`
    for a symlink on the way, and `OSError`.
    """
    with ExitStack() as held:
        root = folder = _held(held, tree.root, None)
        try:
            for name in names[:-1]:
                _look(tree, root, folder, name)
                try:
                    inner = _held(held, name, folder)
                except FileNotFoundError:
                    if not make:
                        raise
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=folder)
                        held.push(_unmade(folder, name))
                    inner = _held(held, name, folder)
                folder = inner
            last = names[-1] if names else "."
            _look(tree, root, folder, last)
            yield Place(root, folder, last)
        except NotADirectoryError:
            raise Refusal("it leads through what is no folder; symlinks are not followed") from None


@contextmanager
def opened(folder: int, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file or folder to read it, and give its descriptor and status.

    Raises `Refusal` for anything else, and `OSError`. A FIFO or device is refused unopened: opening alone can wake a
    writer or rewind a tape. One that is swapped in at the last moment is opened without waiting, and refused then.
    """
    _refuse_special(os.stat(name, dir_fd=folder, follow_symlinks=False))
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        _refuse_special(status)
        yield descriptor, status
    finally:
        os.close(descriptor)


def kind(status: os.stat_result) -> str:
    """Say what a status is of, such as `file` or `symlink`."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "device")


def quoted(name: str) -> str:
    """Give a name or path as a JSON string in which nothing can pass for another line, or for a name beside it."""
    return visible(json.dumps(name, ensure_ascii=False))


def visible(text: str) -> str:
    """Give text with what cannot be printed, lone surrogates among it, as JSON's escapes."""
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def _look(tree: Tree, root: int, folder: int, name: str) -> None:
    if not tree.shows(root, folder)(name):
        # The very error of a name that is not there: nobody learns by asking which of the two it is.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _held(held: ExitStack, name: str, folder: int | None) -> int:
    descriptor = os.open(name, _STEP, dir_fd=folder)
    held.callback(os.close, descriptor)
    return descriptor


def _unmade(folder: int, name: str) -> Callable[[object, object, object], None]:
    def undo(_: object, error: object, __: object) -> None:
        if error is not None:
            # One that somebody else has put something into by now stays.
            with suppress(OSError):
                os.rmdir(name, dir_fd=folder)

    return undo


def _refuse_special(status: os.stat_result) -> None:
    what = kind(status)
    if what not in {"file", "folder"}:
        raise Refusal(f"it is a {what}" + (", and none is followed" if what == "symlink" else ""))
