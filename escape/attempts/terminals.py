"""Out by a terminal: typing into the operator's, taking it over."""

from __future__ import annotations

import ctypes
import errno
import os
import termios

from escape.attempt import Attempt, Wall
from escape.inside import (
    Stopped,
    World,
    call,
    calls_work,
    descriptors_work,
    do,
    each,
    every,
    files_work,
    stopped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_STREAMS = (0, 1, 2)
# asm-generic/ioctls.h and linux/kd.h: termios does not have all of them.
_TCGETS, _TCSETS, _TCSBRK, _TCFLSH = 0x5401, 0x5402, 0x5409, 0x540B
_TIOCEXCL, _TIOCSCTTY, _TIOCGPGRP, _TIOCSPGRP, _TIOCSTI, _TIOCGWINSZ, _TIOCSWINSZ = (
    0x540C, 0x540E, 0x540F, 0x5410, 0x5412, 0x5413, 0x5414,
)  # fmt: skip
_TIOCLINUX, _TIOCCONS, _TIOCPKT, _TIOCNOTTY, _TIOCSETD, _TIOCGETD, _TIOCGSID = (
    0x541C, 0x541D, 0x5420, 0x5422, 0x5423, 0x5424, 0x5429,
)  # fmt: skip
_TIOCGPTN, _TIOCSPTLCK, _TIOCVHANGUP, _TIOCGPTPEER = 0x80045430, 0x40045431, 0x5437, 0x5441
_KDSETMODE, _KDSKBMODE, _KDSKBENT, _KDSKBSENT, _VT_ACTIVATE = 0x4B3A, 0x4B45, 0x4B47, 0x4B49, 0x5606
_HIGH = (1 << 32, 1 << 63, 0xFFFFFFFF << 32)
_WORD = b"spl"
_N_HDLC, _N_GSM = 13, 21
_SET_SELECTION, _PASTE_SELECTION = 2, 3


def _requests(*requests: tuple[int, bytes | int | None], got: str) -> str:
    return each("ioctl", [(at, number, value) for at in _STREAMS for number, value in requests], got)


def _streams(world: World) -> str:
    return _requests((_TCGETS, bytes(64)), got="a terminal")


def _streams_high(world: World) -> str:
    # The one request that is allowed, with bits the kernel drops: it must not become another.
    return _requests(*((_TCGETS | high, bytes(64)) for high in _HIGH), got="a terminal")


def _type(world: World) -> str:
    return _requests((_TIOCSTI, b"#"), got="a key was typed for the operator")


def _type_high(world: World) -> str:
    return _requests(*((_TIOCSTI | high, b"#") for high in _HIGH), got="a key was typed for the operator")


def _paste(world: World) -> str:
    selected = bytes([_SET_SELECTION]) + bytes(10)
    requests = [
        (_TIOCLINUX | high, said) for high in (0, *_HIGH) for said in (selected, bytes([_PASTE_SELECTION]))
    ]
    return _requests(*requests, got="what is on a console was pasted into it")


def _take(world: World) -> str:
    own = os.getpid().to_bytes(4, "little")
    return _requests(
        (_TIOCSCTTY, 0),
        (_TIOCNOTTY, 0),
        (_TIOCSPGRP, own),
        (_TIOCGPGRP, bytes(4)),
        (_TIOCGSID, bytes(4)),
        (_TIOCEXCL, 0),
        got="control of a terminal",
    )


def _take_high(world: World) -> str:
    return _requests(*((_TIOCSCTTY | high, 0) for high in _HIGH), got="control of a terminal")


def _console(world: World) -> str:
    return _requests(
        (_TIOCCONS, 0),
        (_KDSETMODE, 0),
        (_KDSKBMODE, 1),
        (_KDSKBENT, bytes(4)),
        (_KDSKBSENT, bytes(513)),
        (_VT_ACTIVATE, 1),
        got="what the console says, or its keyboard",
    )


def _discipline(world: World) -> str:
    lines = [(_TIOCSETD, kind.to_bytes(4, "little")) for kind in (_N_HDLC, _N_GSM)]
    return _requests(*lines, (_TIOCGETD, bytes(4)), got="a line discipline of the kernel's")


def _settings(world: World) -> str:
    # A size and settings of nothing: on what is no terminal the kernel looks at neither.
    return _requests(
        (_TCSETS, None),
        (_TIOCSWINSZ, None),
        (_TIOCGWINSZ, bytes(8)),
        (_TCSBRK, 1),
        (_TCFLSH, 0),
        (_TIOCPKT, None),
        got="a terminal's settings",
    )


def _peer(world: World) -> str:
    return _requests(
        (_TIOCGPTN, bytes(4)),
        (_TIOCSPTLCK, bytes(4)),
        (_TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY),
        got="the other end of a terminal",
    )


def _hang_up(world: World) -> str:
    return _requests((_TIOCVHANGUP, 0), got="a terminal was hung up")


def _tty(world: World) -> str:
    # Asked to read first: Landlock lets a file that is there be read, so that the driver itself has to answer.
    descriptor = do("open", os.open, "/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    os.close(descriptor)
    return "the operator's terminal, " + _said_on("/dev/tty")


def _by_path(world: World) -> str:
    descriptor = do("open", os.open, world.terminal, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    os.close(descriptor)
    return f"{world.terminal}, " + _said_on(world.terminal)


def _said_on(path: str) -> str:
    """Write to a terminal that could be opened to read; where that is refused, type into it."""

    def write() -> str:
        descriptor = do("open", os.open, path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            do("write", os.write, descriptor, _WORD)
        finally:
            os.close(descriptor)
        return "a word was written on it"

    def typed() -> str:
        descriptor = do("open", os.open, path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            call("ioctl", descriptor, _TIOCSTI, _WORD)
        finally:
            os.close(descriptor)
        return "a key was typed on it"

    try:
        return every(write, typed)
    except Stopped as end:
        return f"to read: {end.answer}"


def _open(*paths: str) -> Callable[[World], str]:
    """Give a chain that opens devices to write to, as some may be read by anybody."""

    def route(path: str) -> Callable[[], str]:
        def ask() -> str:
            os.close(do("open", os.open, path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
            return path

        return ask

    return lambda _: every(*map(route, paths))


def _made(world: World) -> str:
    """Make a terminal of its own, whose slave would do for what a terminal is needed for."""

    def route(path: str) -> Callable[[], str]:
        def ask() -> str:
            master = do("open", os.open, path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                call("ioctl", master, _TIOCSPTLCK, bytes(4))
                os.close(call("ioctl", master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY))
            finally:
                os.close(master)
            return "a terminal of its own"

        return ask

    return every(route("/dev/ptmx"), route("/dev/pts/ptmx"))


def _session(world: World) -> str:
    session = call("getsid", 0)
    if session == os.getpid():
        stopped("a session of its own")
    return f"it is in session {session}, whose terminal it can have"


def _new_session(world: World) -> str:
    # Leading one already, the kernel says EPERM to setsid as the filter does, and to setpgid as well; it would tell
    # its group, which is why that stands beside them.
    return every(
        lambda: each("setsid", [()], "another session"),
        lambda: each("setpgid", [(0, 0), (world.victim_pid, 0)], "another group"),
        lambda: each("getpgid", [(0,), (world.victim_pid,)], "a group's number"),
    )


def _attributes(world: World) -> str:
    """Have libc and Python's own module do it, whose requests may be others than the ones named here (TCGETS2)."""

    def route(descriptor: int) -> Callable[[], str]:
        def ask() -> str:
            try:
                termios.tcgetattr(descriptor)
            except termios.error as error:
                stopped(f"{errno.errorcode[error.args[0]]} at tcgetattr")
            return "a terminal's settings"

        return ask

    return every(*map(route, _STREAMS))


def _answers(world: World) -> None:
    """Find the call let through by the request that is allowed: it is the kernel that says what a stream is not."""
    descriptors_work(world)
    try:
        call("ioctl", 0, _TCGETS, ctypes.create_string_buffer(64))
    except Stopped as end:
        if end.answer != "ENOTTY at ioctl":
            raise


# A stream that is a pipe is no terminal, whatever session the process is in.
_NO_TERMINAL = Wall("descriptors", "ENOTTY at ioctl")
_BY_FILTER = Wall("syscalls", "EPERM at ioctl")


def _request(
    name: str,
    sentence: str,
    chain: Callable[[World], str],
    escape: str,
    cve: str = "",
    *,
    filtered: bool = True,
) -> Attempt:
    return Attempt(
        f"terminals.{name}",
        sentence,
        chain,
        control=_answers,
        walls=[_BY_FILTER, _NO_TERMINAL] if filtered else [_NO_TERMINAL],
        escape=escape,
        cve=cve,
        victims=["terminal"],
    )


_COMMANDS = "the operator's shell runs what the worker types"

ATTEMPTS = (
    _request(
        "streams",
        "asks its standard streams for a terminal's settings",
        _streams,
        "a stream of the worker's is the operator's terminal",
        filtered=False,
    ),
    _request(
        "streams.high_bits",
        "asks the same with bits set that the kernel drops",
        _streams_high,
        "the filter compares another number than the kernel uses",
        "CVE-2019-7303, CVE-2019-10063",
        filtered=False,
    ),
    Attempt(
        "terminals.attributes",
        "asks its standard streams for a terminal's settings through libc",
        _attributes,
        control=_answers,
        walls=[Wall("descriptors", "ENOTTY at tcgetattr")],
        escape="a stream of the worker's is the operator's terminal",
    ),
    _request(
        "type", "types into the terminal behind its standard streams", _type, _COMMANDS, "CVE-2017-5226"
    ),
    _request(
        "type.high_bits",
        "types with bits set in the request that the kernel drops",
        _type_high,
        _COMMANDS,
        "CVE-2019-7303, CVE-2019-10063",
    ),
    _request(
        "paste", "pastes what a console shows into it", _paste, _COMMANDS, "CVE-2023-28100, CVE-2023-1523"
    ),
    _request("take", "takes control of a terminal", _take, "the operator's terminal is the worker's"),
    _request(
        "take.high_bits",
        "takes control with bits set in the request that the kernel drops",
        _take_high,
        "the operator's terminal is the worker's",
        "CVE-2019-7303, CVE-2019-10063",
    ),
    _request("console", "takes what the console says, and its keyboard", _console, _COMMANDS),
    _request(
        "discipline",
        "gives a terminal a line discipline that few need",
        _discipline,
        "one more part of the kernel, with faults of its own, is within reach",
        "CVE-2017-2636, CVE-2023-6546",
    ),
    _request("settings", "changes a terminal's settings", _settings, "the operator's terminal is not usable"),
    _request("peer", "opens a terminal's other end", _peer, "the operator's terminal is the worker's"),
    _request("hang_up", "hangs a terminal up", _hang_up, "what the operator runs on it ends"),
    Attempt(
        "terminals.tty",
        "opens the terminal of its session",
        _tty,
        control=files_work,
        walls=[Wall("mounts", "ENOENT at open"), Wall("session", "ENXIO at open")],
        escape=_COMMANDS,
        victims=["terminal"],
    ),
    Attempt(
        "terminals.path",
        "opens the operator's terminal by its path",
        _by_path,
        control=files_work,
        walls=[Wall("mounts", "ENOENT at open"), Wall("separate_user", "EACCES at open", shape="hosted")],
        escape=_COMMANDS,
        victims=["terminal"],
    ),
    Attempt(
        "terminals.consoles",
        "opens the host's consoles and serial lines",
        _open("/dev/console", "/dev/tty0", "/dev/tty1", "/dev/vcs", "/dev/ttyS0", "/dev/hvc0"),
        control=files_work,
        walls=[
            Wall("mounts", "ENOENT at open"),
            Wall("landlock", "EACCES at open", "EACCES at open, ENOENT at open"),
            Wall("separate_user", "EACCES at open", "EACCES at open, ENOENT at open", shape="hosted"),
        ],
        escape="whoever is at the machine reads and runs what the worker says",
        cve="CVE-2025-52565",
    ),
    Attempt(
        "terminals.made",
        "makes a terminal of its own",
        _made,
        control=files_work,
        walls=[
            Wall("mounts", "ENOENT at open"),
            Wall("landlock", "EACCES at open"),
            # The second path, where it is there at all, is closed by its mode (devpts's ptmxmode).
            Wall(
                "syscalls",
                "EPERM at ioctl",
                "EPERM at ioctl, EACCES at open",
                "EPERM at ioctl, ENOENT at open",
            ),
        ],
        escape="the kernel's terminals, with faults of their own, are within reach",
    ),
    Attempt(
        "terminals.session",
        "asks whose session it is in",
        _session,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at getsid"), Wall("session", "a session of its own")],
        escape="it can have the terminal of the daemon's session",
        cve="CVE-2017-5226",
    ),
    Attempt(
        "terminals.session.new",
        "makes a session and a group, and asks for the group's number",
        _new_session,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at setsid, EPERM at setpgid, EPERM at getpgid")],
        escape="signals to its group no longer reach it",
    ),
)
