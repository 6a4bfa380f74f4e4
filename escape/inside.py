"""What attempts are made with inside the confined process: raw system calls, and how a chain says where it ended.

Standard library only, and sparingly: it is sealed into the escape image and runs under the worker's limits, without
/proc, /dev or a second process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket

from escape.numbers import NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn, TypeVar

    _T = TypeVar("_T")

AT_FDCWD = -100
"""In place of a folder's descriptor: the working folder."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_GETFD = 1
_WALL = 0x40000000  # also for a child that ends without a signal, see waitpid(2)


class World:
    """What an attempt may aim at: victims, canaries and places, as `victims.Victims` made them outside.

    `early` is whether there was something to read before it was ready; `doors` its connection to the worker socket.
    """

    shape: str
    home: str
    socket: str
    image: str
    python: str
    library: str
    machine: str
    limits: dict[str, int]
    refused: dict[str, str]
    victim_pid: int
    victim_uid: int
    daemon_pid: int
    neighbour_pid: int
    neighbour_credential: str
    neighbour_thread: str
    namespaces: dict[str, str]
    tcp_port: int
    tcp6_port: int
    udp_port: int
    abstract: str
    host_socket: str
    host_file: str
    host_folder: str
    host_setuid: str
    terminal: str
    shm_id: int
    sem_id: int
    msg_id: int
    mqueue: str
    key_id: int
    early: bool
    doors: Any

    def __init__(self, said: dict[str, Any]) -> None:
        vars(self).update(said)


class Stopped(Exception):
    """A chain went no further; `answer` says what stopped it, and where."""

    def __init__(self, answer: str) -> None:
        super().__init__(answer)
        self.answer = answer


def stopped(answer: str) -> NoReturn:
    """End a chain with an answer that is no errno, such as `nothing to read`."""
    raise Stopped(answer)


def call(name: str, *arguments: int | bytes | str | ctypes.Array[Any] | ctypes.Structure | None) -> int:
    """Make a system call by name; gives what it gives. Raises `Stopped` with `ERRNO at NAME`, also for one that is new.

    A number is passed as 64 bits, text and bytes by their address, buffers and structures by reference.
    """
    if name not in NUMBERS:
        raise Stopped(f"no number at {name}")
    return numbered(NUMBERS[name], *arguments, step=name)


def numbered(
    number: int, *arguments: int | bytes | str | ctypes.Array[Any] | ctypes.Structure | None, step: str = ""
) -> int:
    """Make a system call by number, as `call` does; `step` is what it is called in an answer."""
    ctypes.set_errno(0)
    value = int(_libc.syscall(ctypes.c_long(number), *map(_word, arguments)))
    if value == -1 and (code := ctypes.get_errno()):
        raise Stopped(f"{_name(code)} at {step or number}")
    return value


def do(step: str, function: Callable[..., _T], *arguments: Any) -> _T:
    """Have a function of Python's do a step; an `OSError` of it stops the chain with `ERRNO at STEP`."""
    try:
        return function(*arguments)
    except OSError as error:
        raise Stopped(f"{_name(error.errno or 0)} at {step}") from None


def every(*routes: Callable[[], str]) -> str:
    """Try each of several routes to the same end; one that gets through is an escape, however many do not.

    Where none does, the chain is stopped by all their answers, each told once, in order.
    """
    got, answers = [], []
    for route in routes:
        try:
            got.append(route())
        except Stopped as end:
            answers.append(end.answer)
    if got:
        return "; ".join(dict.fromkeys(got))
    raise Stopped(", ".join(dict.fromkeys(answers)))


def each(name: str, lists: Iterable[tuple[Any, ...]], got: str) -> str:
    """Make one call with each of several lists of arguments; any that works is an escape, told as `got`."""

    def route(arguments: tuple[Any, ...]) -> Callable[[], str]:
        return lambda: f"{got} ({call(name, *arguments)})"

    return every(*map(route, lists))


def read(path: str, *, at: str = "open", limit: int = 4096) -> bytes:
    """Read the beginning of a file, or stop the chain with the errno at `at`."""
    descriptor = do(at, os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return do("read", os.read, descriptor, limit)
    finally:
        os.close(descriptor)


def pause(milliseconds: int) -> None:
    """Wait, by the call that is allowed for it: a worker cannot sleep."""
    select.poll().poll(milliseconds)


def reap(child: int) -> bool:
    """Wait for a child of any kind, if that is allowed; says whether there was one to wait for."""
    try:
        os.waitpid(child, _WALL)
    except ChildProcessError:
        return False
    except OSError:
        pass  # refused, as in a process that could do nothing but fork: it stays until its parent ends
    return True


# --- controls: what must work just before, so that an attempt which never ran proves nothing ---


def calls_work(world: World) -> None:
    """Make a system call that the profile allows, by the same way in."""
    if call("getpid") != os.getpid() or call("getppid") != os.getppid():
        raise Stopped("getpid gives something else")


def sockets_work(world: World) -> None:
    """Have a socket of the one family that is allowed."""
    socket.socket(socket.AF_UNIX).close()


def the_door_opens(world: World) -> None:
    """Connect to the worker socket, by its path."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(world.socket)


def files_work(world: World) -> None:
    """Open and read a file that is shown, by its path."""
    if not read(world.python, limit=4):
        raise Stopped("an empty interpreter")


def descriptors_work(world: World) -> None:
    """Have a descriptor, and look at it."""
    descriptor = os.open(world.python, os.O_RDONLY | os.O_CLOEXEC)
    os.fstat(descriptor)
    os.close(descriptor)


def streams_work(world: World) -> None:
    """Find the one command of fcntl that is let through, on a stream that is there and on one that is not."""
    call("fcntl", 1, _GETFD, 0)
    try:
        call("fcntl", -1, _GETFD, 0)
    except Stopped as end:
        if end.answer != "EBADF at fcntl":
            raise


def memory_works(world: World) -> None:
    """Map a page and write to it."""
    buffer = ctypes.create_string_buffer(8192)
    buffer[0] = b"x"


def _name(code: int) -> str:
    return errno.errorcode.get(code, f"errno {code}")


def _word(argument: Any) -> Any:
    if isinstance(argument, int):
        return ctypes.c_long(argument)  # a plain int would be passed as 32 bits
    if isinstance(argument, str):
        return ctypes.c_char_p(os.fsencode(argument))
    if isinstance(argument, bytes) or argument is None:
        return ctypes.c_char_p(argument)
    return ctypes.byref(argument)
