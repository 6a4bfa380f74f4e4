"""Out by a descriptor: what was inherited, what can be made of one, what others have."""

from __future__ import annotations

import ctypes
import os
import resource
import select

from escape.attempt import Attempt, Wall
from escape.inside import (
    Stopped,
    World,
    call,
    descriptors_work,
    do,
    each,
    every,
    files_work,
    stopped,
    streams_work,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST = 4096
_GETFD = 1
_NO_FLAGS, _AT_EMPTY_PATH = 0xFFFF, 0x1000
_LAST = 15  # the highest under the tightest limit, which nothing uses


def _open_beside(world: World) -> Iterator[int]:
    """Give every descriptor that is open but for the standard streams and the connection to the worker socket."""
    connection = getattr(world.doors, "_connection", None)
    own = connection.fileno() if connection else -1
    # Above the limit too: a descriptor that was open when the limit was lowered stays open (getrlimit(2)).
    for at in (*range(3, max(_MOST, *_limit())), 1 << 16, 1 << 20, (1 << 31) - 1):
        try:
            call("fcntl", at, _GETFD, 0)
        except Stopped as end:
            if end.answer != "EBADF at fcntl":
                raise
        else:
            if at != own:
                yield at


def _limit() -> tuple[int, int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(soft, 1 << 16), min(hard, 1 << 16)


def _inherited(world: World) -> str:
    found = list(_open_beside(world))
    if not found:
        stopped("EBADF at fcntl")
    return f"descriptors {', '.join(map(str, found))}: {', '.join(_told(at) for at in found)}"


def _told(at: int) -> str:
    seen = os.fstat(at)
    return f"mode {seen.st_mode:o}, device {seen.st_dev}, inode {seen.st_ino}"


def _kinds(world: World) -> str:
    """Look at what the streams are: pipes have a name nowhere, and no directory to go up from."""
    kinds = {at: os.fstat(at).st_mode & 0o170000 for at in range(3)}
    others = [f"{at} is {kind:o}" for at, kind in kinds.items() if kind != 0o010000]
    return "a stream that is no pipe: " + ", ".join(others) if others else stopped("pipes")


def _backwards(world: World) -> str:
    """Use each stream the way it is not meant: what the daemon writes is not to be written, nor read what it reads."""

    def write() -> str:
        return f"standard input took {do('write', os.write, 0, b'x')}"

    def read(at: int) -> Callable[[], str]:
        def ask() -> str:
            poll = select.poll()
            poll.register(at, select.POLLIN)
            # Where it were both ways and empty, reading would wait for ever.
            if any(events & select.POLLIN for _, events in poll.poll(0)):
                return f"{len(do('read', os.read, at, 1))} read of {at}"
            call("read", at, ctypes.create_string_buffer(1), 0)
            return f"{at} can be read"

        return ask

    return every(write, read(1), read(2))


def _reopened(world: World) -> str:
    """Open the streams anew by their names, wider than they were handed over."""

    def route(path: str, flags: int) -> Callable[[], str]:
        def ask() -> str:
            os.close(do("open", os.open, path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
            return path

        return ask

    folders = ("/proc/self/fd", "/proc/thread-self/fd", f"/proc/{os.getpid()}/fd", "/dev/fd")
    paths = [f"{folder}/{at}" for folder in folders for at in range(3)]
    paths += ["/dev/stdin", "/dev/stdout", "/dev/stderr"]
    paths += ["/proc/self/root", "/proc/self/cwd", "/proc/self/exe"]
    return every(*(route(path, flags) for path in paths for flags in (os.O_RDONLY, os.O_WRONLY)))


def _doubled(world: World) -> str:
    def route(name: str, *arguments: int) -> Callable[[], str]:
        def ask() -> str:
            os.close(call(name, *arguments))
            return f"a second one by {name}"

        return ask

    def closed() -> str:
        call("close_range", _LAST, _LAST, 0)
        return "many were closed at once"

    def by_tree() -> str:
        os.close(call("open_tree", 1, b"", _AT_EMPTY_PATH | os.O_CLOEXEC))
        return "a place in the file systems by a stream"

    return every(
        route("dup", 1), route("dup2", 1, _LAST), route("dup3", 1, _LAST, os.O_CLOEXEC), closed, by_tree
    )


def _moved(world: World) -> str:
    # Each is told of flags or a descriptor that there is not: what the kernel says to that is nothing the filter says.
    at = do("open", os.open, world.python, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return every(
            lambda: each("splice", [(at, None, 1, None, 1, _NO_FLAGS)], "moved"),
            lambda: each("tee", [(0, 1, 1, _NO_FLAGS)], "moved"),
            lambda: each("vmsplice", [(1, bytes(16), 1, _NO_FLAGS)], "moved"),
            lambda: each("sendfile", [(-1, at, None, 1)], "moved"),
            lambda: each("copy_file_range", [(at, None, at, None, 1, _NO_FLAGS)], "moved"),
        )
    finally:
        os.close(at)


ATTEMPTS = (
    Attempt(
        "descriptors.inherited",
        "asks for every number whether it is open, beside the standard streams and its own connection",
        _inherited,
        control=streams_work,
        walls=[Wall("descriptors", "EBADF at fcntl")],
        escape="what the daemon has open, the host's files among it, is the worker's",
        cve="CVE-2024-21626, CVE-2016-9962",
    ),
    Attempt(
        "descriptors.kinds",
        "looks at what its standard streams are",
        _kinds,
        control=descriptors_work,
        walls=[Wall("descriptors", "pipes")],
        escape="a stream that is a file or a terminal of the host's can be used as one",
    ),
    Attempt(
        "descriptors.backwards",
        "writes to standard input and reads standard output and error",
        _backwards,
        control=descriptors_work,
        walls=[Wall("descriptors", "EBADF at write, EBADF at read")],
        escape="what others write to the daemon's pipes can be read, or forged",
    ),
    Attempt(
        "descriptors.reopened",
        "opens its own streams, root and program anew by the names that descriptors have",
        _reopened,
        control=files_work,
        walls=[Wall("mounts", "ENOENT at open")],
        escape="what was handed over to be written can be read, and the other way round",
        cve="CVE-2019-5736, CVE-2024-21626",
    ),
    Attempt(
        "descriptors.doubled",
        "makes a second descriptor of a stream, and closes a range of them",
        _doubled,
        control=descriptors_work,
        walls=[
            # aarch64 has no dup2.
            Wall(
                "syscalls",
                "ENOSYS at dup, ENOSYS at dup2, ENOSYS at dup3, ENOSYS at close_range, EPERM at open_tree",
                "ENOSYS at dup, no number at dup2, ENOSYS at dup3, ENOSYS at close_range, EPERM at open_tree",
            )
        ],
        escape="a stream stays open after it was closed, and can be put in another's place",
    ),
    Attempt(
        "descriptors.moved",
        "moves data between descriptors without reading it",
        _moved,
        control=descriptors_work,
        walls=[
            Wall(
                "syscalls",
                "ENOSYS at splice, ENOSYS at tee, ENOSYS at vmsplice, ENOSYS at sendfile, ENOSYS at copy_file_range",
            ),
            Wall(
                "kernel",
                "EINVAL at splice, EINVAL at tee, EINVAL at vmsplice, EBADF at sendfile, EINVAL at copy_file_range",
            ),
        ],
        escape="pages of files are shared with pipes, which published escapes wrote through",
        cve="CVE-2022-0847, CVE-2026-31431",
    ),
)
