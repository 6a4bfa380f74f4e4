"""Out by what it was started with: environment, arguments, standard input, memory."""

from __future__ import annotations

import ctypes
import os
import re
import select
import sys

from escape.attempt import Attempt, Wall
from escape.inside import (
    AT_FDCWD,
    Stopped,
    World,
    call,
    do,
    every,
    files_work,
    memory_works,
    read,
    stopped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PAGE, _LONGEST, _WIDEST = 4096, 64, 1 << 23
_VARIABLES = 1 << 16  # bytes of environment that are looked through at most
_AT_UID, _AT_EUID, _AT_GID, _AT_EGID, _AT_SECURE, _AT_EXECFN = 11, 12, 13, 14, 23, 31  # getauxval(3)
_EXPECTED = {"PATH"}
# What Python itself puts there when the locale is C (PEP 538), after the process began.
_OF_PYTHON = {"LC_CTYPE"}

# A canary is told from the word that begins each: this pattern is in the memory that is searched.
_CANARY = re.compile(b"spl-canary-(?:env|[0-9a-f]{24})")
_SECRETS = re.compile(rb"sk-ant-[A-Za-z0-9_-]{8}|(?:API_KEY|_TOKEN|_SECRET|PASSWORD)=[!-~]")

_libc = ctypes.CDLL(None)
_libc.getauxval.restype = ctypes.c_ulong


def _environment(world: World) -> str:
    others = sorted(os.environ.keys() - _EXPECTED - _OF_PYTHON)
    return f"variables {', '.join(others)}" if others else stopped("PATH and nothing else")


def _block(world: World) -> str:
    """Read the environment as the kernel put it on the stack, where what is unset later still stands."""
    _, variables = _started_with()
    names = [each.partition(b"=")[0].decode("utf-8", "replace") for each in variables]
    others = sorted(set(names) - _EXPECTED)
    return f"variables {', '.join(others)}" if others else stopped("PATH and nothing else")


def _auxiliary(world: World) -> str:
    """Read what else the kernel put there: ids and the program's name, as they are inside and not on the host."""
    told = [int(_libc.getauxval(each)) for each in (_AT_UID, _AT_EUID, _AT_GID, _AT_EGID, _AT_SECURE)]
    program = os.fsdecode(ctypes.string_at(int(_libc.getauxval(_AT_EXECFN))))
    if told == [os.getuid(), os.geteuid(), os.getgid(), os.getegid(), 0] and program == world.python:
        stopped("its own ids and program")
    return f"ids {told} of program {program}"


def _arguments(world: World) -> str:
    """Read the arguments: any process of the host that has a /proc can do so too, so they must hold no secret."""
    arguments, _ = _started_with()
    credential = getattr(world.doors, "_credential", "").encode()
    said = b"\0".join(arguments)
    if (credential and credential in said) or _CANARY.search(said) or _SECRETS.search(said):
        return "a secret stands in the arguments"
    return stopped("no secret")


def _started_with() -> tuple[list[bytes], list[bytes]]:
    """Give arguments and environment from the top of the stack, where they end at the program's name (execve(2))."""
    end = int(_libc.getauxval(_AT_EXECFN))
    wanted = b"\0".join(os.fsencode(each) for each in sys.orig_argv) + b"\0"
    above = ctypes.string_at(end - len(wanted) - _VARIABLES, len(wanted) + _VARIABLES)
    at = above.rfind(wanted)
    if at < 0:
        stopped("the arguments are not where they must be")
    variables = above[at + len(wanted) :].split(b"\0")
    return wanted.split(b"\0")[:-1], [each for each in variables if each]


def _early(world: World) -> str:
    if world.early:
        return "there was something to read on standard input before it was ready"
    return stopped("nothing to read before it was ready")


def _at_its_end(world: World) -> str:
    """Read on after the credential: what else is handed over, to this worker or by mistake, would come here."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    if not poll.poll(0):
        return "standard input is still held open by somebody"
    got = do("read", os.read, 0, 4096)
    return f"{len(got)} bytes more" if got else stopped("at its end")


def _memory(world: World) -> str:
    """Search all of its own memory that can be found for a canary or a provider's key of the daemon's."""
    found = _searched(re.compile(_CANARY.pattern + b"|" + _SECRETS.pattern), _mapped())
    if not found:
        stopped("nothing of the daemon's")
    return f"{len(found)} of the daemon's secrets stand in its memory"


def _searched(pattern: re.Pattern[bytes], stretches: list[tuple[int, int]]) -> dict[int, str]:
    """Give what a pattern matches, by its address."""
    found, end = {}, b""
    for start, length in stretches:
        for page in range(start, start + length, _PAGE):
            # Looked at anew: what was mapped a moment ago may have been given back.
            piece = ctypes.string_at(page, _PAGE) if _is_there(page) else b""
            for match in pattern.finditer(end + piece):
                found[page - len(end) + match.start()] = match[0].decode()
            end = piece[-_LONGEST:]
    return found


def _mapped() -> list[tuple[int, int]]:
    """Give the stretches of memory around what is known to be there: without /proc nothing lists them."""
    known = [
        id(_environment),  # the interpreter's objects
        int(_libc.getauxval(_AT_EXECFN)),  # the top of the stack
        ctypes.cast(_libc.getenv, ctypes.c_void_p).value or 0,  # libc
        ctypes.addressof(ctypes.py_object.in_dll(ctypes.pythonapi, "PyExc_OSError")),  # the program's own
        call("brk", 0) - 1,  # the heap that malloc begins with
    ]
    stretches: list[tuple[int, int]] = []
    for address in known:
        page = address & -_PAGE
        if any(start <= page < start + length for start, length in stretches):
            continue
        for step in (-_PAGE, _PAGE):
            stretches += _followed(page if step > 0 else page - _PAGE, step)
    return stretches


def _followed(page: int, step: int) -> Iterator[tuple[int, int]]:
    """Follow memory page by page, over gaps that are not too wide: what is mapped one by one lies close together."""
    missing = length = 0
    while missing < _WIDEST:
        if _is_there(page):
            length, missing = length + _PAGE, 0
        else:
            if length:
                yield (page + _PAGE if step < 0 else page - length), length
            missing, length = missing + _PAGE, 0
        page += step


def _is_there(page: int) -> bool:
    """Whether a page can be read: the kernel says EFAULT to a path that begins where nothing is."""
    if page <= 0:
        return False
    try:
        call("faccessat", AT_FDCWD, page, 0)
    except Stopped as end:
        return not end.answer.startswith("EFAULT")
    return True


def _search_works(world: World) -> None:
    """Find what was just put into memory, small and large, and the top of the stack, by the same search."""
    memory_works(world)
    word = b"".join([b"found-", os.urandom(8).hex().encode()])
    kept = [ctypes.create_string_buffer(word), ctypes.create_string_buffer(word, 1 << 19)]
    stretches = _mapped()
    if not _searched(re.compile(word), stretches).keys() >= {ctypes.addressof(each) for each in kept}:
        raise Stopped("what was put there was not found")
    top = int(_libc.getauxval(_AT_EXECFN))
    if not any(start <= top < start + length for start, length in stretches):
        raise Stopped("the top of the stack was not found")


def _of_others(name: str, world: World) -> str:
    named = (os.getppid(), 1, world.daemon_pid, world.victim_pid, world.neighbour_pid)
    pids = [pid for pid in dict.fromkeys(named) if pid not in (0, os.getpid())]

    def route(path: str) -> Callable[[], str]:
        return lambda: f"{path}: {len(read(path))} bytes"

    return every(*map(route, _paths(name, pids)))


def _paths(name: str, pids: list[int]) -> Iterator[str]:
    for pid in pids:
        yield f"/proc/{pid}/{name}"
        yield f"/proc/{pid}/task/{pid}/{name}"
        yield f"/proc/self/../{pid}/{name}"


def _environment_of_others(world: World) -> str:
    return _of_others("environ", world)


def _arguments_of_others(world: World) -> str:
    return _of_others("cmdline", world)


def _again(world: World) -> str:
    """Look for the credential where it came from, by standard input's other names."""

    def route(path: str) -> Callable[[], str]:
        def ask() -> str:
            # Without waiting: a pipe that somebody may still write to would be waited for.
            descriptor = do("open", os.open, path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                got = do("read", os.read, descriptor, 4096)
            finally:
                os.close(descriptor)
            return f"{path}: {len(got)} bytes" if got else stopped("nothing to read")

        return ask

    folders = ("/dev/fd", "/proc/self/fd", f"/proc/{os.getppid()}/fd", f"/proc/{world.daemon_pid}/fd")
    return every(*map(route, ("/dev/stdin", *(f"{folder}/0" for folder in folders))))


_ANOTHERS = "a credential or a key that is not the worker's is in its hands"
_DENIED = ("EACCES at open", "EACCES at open, ENOENT at open", "ENOENT at open, EACCES at open")

ATTEMPTS = (
    Attempt(
        "credential.early",
        "looks at standard input before it is ready",
        _early,
        control=memory_works,
        walls=[Wall("credential", "nothing to read before it was ready")],
        escape="a process that nobody has looked at yet has a credential",
    ),
    Attempt(
        "credential.end",
        "reads on after its credential",
        _at_its_end,
        control=memory_works,
        walls=[Wall("credential", "at its end")],
        escape=_ANOTHERS,
    ),
    Attempt(
        "credential.again",
        "reads standard input anew by the names it has, its parent's and the daemon's",
        _again,
        control=files_work,
        walls=[
            Wall("mounts", "ENOENT at open"),
            # Where names lead there, its own is that of an empty pipe, and others' are their users'.
            Wall(
                "credential",
                "ENOENT at open, EACCES at open",
                "EACCES at open, ENOENT at open",
                "nothing to read, ENOENT at open, EACCES at open",
                "ENOENT at open, nothing to read, EACCES at open",
                "nothing to read, EACCES at open",
                "EACCES at open",
            ),
        ],
        escape=_ANOTHERS,
    ),
    Attempt(
        "credential.environment",
        "reads its environment",
        _environment,
        control=memory_works,
        walls=[Wall("environment", "PATH and nothing else")],
        escape=_ANOTHERS,
    ),
    Attempt(
        "credential.environment.block",
        "reads the environment it was started with from its stack",
        _block,
        control=memory_works,
        walls=[Wall("environment", "PATH and nothing else")],
        escape=_ANOTHERS,
    ),
    Attempt(
        "credential.auxiliary",
        "reads the ids and the program's name that the kernel put on its stack",
        _auxiliary,
        control=memory_works,
        walls=[Wall("environment", "its own ids and program")],
        escape="who it is on the host, or rights that a program brought, become known",
    ),
    Attempt(
        "credential.environment.others",
        "reads the environment of its parent, the daemon and others",
        _environment_of_others,
        control=files_work,
        walls=[
            Wall("mounts", "ENOENT at open"),
            # Not even its own user's: the rights over them are their namespace's (ptrace(2)).
            Wall("user_namespace", *_DENIED),
        ],
        escape=_ANOTHERS,
    ),
    Attempt(
        "credential.arguments",
        "looks for a secret in its own arguments",
        _arguments,
        control=memory_works,
        walls=[Wall("credential", "no secret")],
        escape="every user of the host can read it",
    ),
    Attempt(
        "credential.arguments.others",
        "reads the arguments of its parent, the daemon and others",
        _arguments_of_others,
        control=files_work,
        walls=[Wall("mounts", "ENOENT at open")],
        escape="what the host's processes were started with is in sight",
    ),
    Attempt(
        "credential.memory",
        "searches its own memory for what the daemon or its monitor left there",
        _memory,
        control=_search_works,
        walls=[Wall("environment", "nothing of the daemon's")],
        escape=_ANOTHERS,
    ),
)
