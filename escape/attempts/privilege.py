"""Out by becoming someone else: users, capabilities, programs that gain rights."""

from __future__ import annotations

import ctypes
import os
import socket
import struct

from escape.attempt import Attempt, Wall
from escape.attempts._making import Making
from escape.inside import (
    Stopped,
    World,
    call,
    do,
    each,
    every,
    files_work,
    sockets_work,
    stopped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SET_KEEPCAPS, _SET_SECCOMP, _CAPBSET_READ, _CAPBSET_DROP, _SET_SECUREBITS = 8, 22, 23, 24, 28
_SET_NO_NEW_PRIVS, _GET_NO_NEW_PRIVS, _CAP_AMBIENT = 38, 39, 47
_CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_ALL = 0xFFFFFFFF
_READ_IMPLIES_EXEC, _NO_RANDOMIZE, _PAGE_ZERO = 0x0400000, 0x0040000, 0x0100000
_FILTER, _NEW_LISTENER = 1, 8
_ALLOW_EVERYTHING = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
_CREDENTIALS = 2


def _users(world: World) -> str:
    return every(
        lambda: each("setuid", [(0,)], "root"),
        lambda: each("setreuid", [(0, 0), (-1, 0)], "root"),
        lambda: each("setresuid", [(0, 0, 0), (-1, 0, -1)], "root"),
    )


def _groups(world: World) -> str:
    return every(
        lambda: each("setgid", [(0,)], "root's group"),
        lambda: each("setregid", [(0, 0), (-1, 0)], "root's group"),
        lambda: each("setresgid", [(0, 0, 0), (-1, 0, -1)], "root's group"),
    )


def _file_user(world: World) -> str:
    def become(name: str, own: int) -> Callable[[], str]:
        def route() -> str:
            # It never fails, but gives who one was: only a second look says whether it did anything.
            call(name, 0)
            if call(name, own) == 0 != own:
                return "files are opened as root"
            stopped(f"as before at {name}")

        return route

    return every(become("setfsuid", os.getuid()), become("setfsgid", os.getgid()))


def _more_groups(world: World) -> str:
    # The kernel asks for the right first: EPERM is its word as well as the filter's, whatever it is given.
    return each("setgroups", [(0, None), (1, (ctypes.c_uint32 * 1)(0))], "groups of others")


def _groups_held(world: World) -> str:
    groups = os.getgroups()
    if groups:
        return f"it is in groups {groups}"
    stopped("in no group of anyone's")


def _who(world: World) -> str:
    users, groups = os.getresuid(), os.getresgid()
    if 0 in users or 0 in groups or (world.shape == "hosted" and world.victim_uid in users):
        return f"it is {users} {groups}"
    stopped("nobody's uid but its own")


def _capabilities(world: World) -> str:
    header, wanted = struct.pack("Ii", _CAPABILITIES, 0), (ctypes.c_uint32 * 6)(_ALL, _ALL, 0, _ALL, _ALL, 0)
    return each("capset", [(None, None), (header, wanted)], "every capability")


def _held(world: World) -> str:
    header, held = struct.pack("Ii", _CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    call("capget", header, held)
    if any(held):
        return f"capabilities {list(held)}"
    stopped("none is held")


def _bounding(world: World) -> str:
    held = []
    for capability in range(64):
        try:
            if call("prctl", _CAPBSET_READ, capability, 0, 0, 0):
                held.append(capability)
        except Stopped as end:
            if not capability or not end.answer.startswith("EINVAL"):
                raise
    if held:
        return f"a program with rights would give it capabilities {held}"
    stopped("none in the bounding set")


def _ambient(world: World) -> str:
    # An operation that there is none of is EINVAL to the kernel.
    lists = [(_CAP_AMBIENT, operation, capability, 0, 0) for operation in (9, 2) for capability in (1, 21)]
    return each("prctl", lists, "a capability that programs keep")


def _keep(world: World) -> str:
    lists = [(_SET_KEEPCAPS, 2, 0, 0, 0), (_SET_SECUREBITS, 0x2F, 0, 0, 0), (_CAPBSET_DROP, 21, 0, 0, 0)]
    return each("prctl", lists, "how rights are kept is its own to say")


def _gains(world: World) -> str:
    if call("prctl", _GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1:
        stopped("set for good")
    return "a program that is started may gain rights"


def _unset(world: World) -> str:
    return each("prctl", [(_SET_NO_NEW_PRIVS, 0, 0, 0, 0)], "programs may gain rights again")


def _run(path: str, *words: str) -> None:
    arguments = (ctypes.c_char_p * (len(words) + 2))(path.encode(), *(word.encode() for word in words), None)
    call("execve", path, arguments, (ctypes.c_char_p * 1)())


def _setuid_program(world: World) -> str:
    _run(world.host_setuid or "/usr/bin/su", "--version")
    return "a program of root's ran"


def _filters(world: World) -> str:
    room = ctypes.create_string_buffer(8)
    return every(
        # Also the strictest kind, with flags that it has none of, and what is said of filters' answers and listeners.
        lambda: each("seccomp", [(_FILTER, 0, None), (0, 1, None), (2, 0, room), (3, 0, room)], "a filter"),
        lambda: each("prctl", [(_SET_SECCOMP, 2, None, 0, 0)], "a filter"),
    )


def _listener(world: World) -> str:
    code = ctypes.create_string_buffer(_ALLOW_EVERYTHING, len(_ALLOW_EVERYTHING))
    program = struct.pack("Hxxxxxxq", 1, ctypes.addressof(code))
    os.close(call("seccomp", _FILTER, _NEW_LISTENER, program))
    return "its own calls wait for its own word, in the middle of the kernel"


def _personality(world: World) -> str:
    def become(how: int) -> Callable[[], str]:
        def route() -> str:
            before = call("personality", how)
            call("personality", before)
            return "protections of its memory, and of what it starts, are gone"

        return route

    return every(*map(become, (_READ_IMPLIES_EXEC, _NO_RANDOMIZE, _PAGE_ZERO, 0, _ALL)))


def _map_users(world: World) -> str:
    def write(name: str) -> Callable[[], str]:
        def route() -> str:
            descriptor = do("open", os.open, f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                do("write", os.write, descriptor, b"allow" if name == "setgroups" else b"0 0 1")
            finally:
                os.close(descriptor)
            return f"wrote {name}"

        return route

    return every(*map(write, ("uid_map", "gid_map", "setgroups")))


def _file_capabilities(world: World) -> str:
    every_right = struct.pack("<5I", 0x02000001, _ALL, 0, _ALL, 0)
    return each(
        "setxattr",
        [
            (path, "security.capability", every_right, len(every_right), 0)
            for path in (world.python, world.image)
        ],
        "a program that gains every right",
    )


def _claim(world: World) -> str:
    with socket.socket(socket.AF_UNIX) as mine:
        # Looked at before it is sent, so that there need be nobody at the other end.
        claimed = [(socket.SOL_SOCKET, _CREDENTIALS, struct.pack("iII", os.getpid(), 0, 0))]
        do("sendmsg", mine.sendmsg, [b"x"], claimed)
    return "others take it for root"


def _labels(world: World) -> str:
    wanted = struct.pack("QQQQ", 104, 0, 32, 0)
    return each("lsm_set_self_attr", [(100, wanted, 32, 0), (101, wanted, 32, 0)], "another security context")


_attempt = Making("privilege")

_SAME_USER = (
    "in this shape a worker is the daemon's own user and in its groups, on purpose: there is no other to be"
)
_ROOT = "it is root, or can be"
_MORE = "what was taken from it comes back"

ATTEMPTS: tuple[Attempt, ...] = (
    _attempt(
        "users", "becomes root by setuid and its kin", _users, _ROOT,
        Wall("syscalls", "EPERM at setuid, EPERM at setreuid, EPERM at setresuid"),
        # There is no root in its namespace to become.
        Wall("user_namespace", "EINVAL at setuid, EINVAL at setreuid, EINVAL at setresuid"),
    ),
    _attempt(
        "groups", "becomes one of root's group by setgid and its kin", _groups, _ROOT,
        Wall("syscalls", "EPERM at setgid, EPERM at setregid, EPERM at setresgid"),
        Wall("user_namespace", "EINVAL at setgid, EINVAL at setregid, EINVAL at setresgid"),
    ),
    _attempt(
        "file_user", "opens files as root by setfsuid and setfsgid", _file_user, _ROOT,
        Wall("syscalls", "EPERM at setfsuid, EPERM at setfsgid"),
        Wall("user_namespace", "as before at setfsuid, as before at setfsgid"),
    ),
    _attempt(
        "more_groups", "leaves its groups, and joins root's, by setgroups", _more_groups, _ROOT,
        Wall("syscalls", "EPERM at setgroups"), Wall("user_namespace", "EPERM at setgroups"),
        cve="CVE-2014-8989, CVE-2018-7169",
    ),
    _attempt(
        "groups_held", "looks for groups that it was left in", _groups_held, "files of the daemon's groups are its",
        Wall("separate_user", "in no group of anyone's", shape="hosted"),
        unclaimed=_SAME_USER,
    ),
    _attempt(
        "who", "looks whether it is root, or the daemon's own user", _who, _ROOT,
        Wall("separate_user", "nobody's uid but its own", shape="hosted"),
        unclaimed=_SAME_USER,
    ),
    _attempt(
        "capabilities", "gives itself every capability by capset", _capabilities, _ROOT,
        Wall("syscalls", "EPERM at capset"), Wall("capabilities", "EFAULT at capset, EPERM at capset"),
    ),
    _attempt(
        "held", "looks for capabilities that it was left with", _held, _MORE,
        Wall("syscalls", "EPERM at capget"), Wall("capabilities", "none is held"),
    ),
    _attempt(
        "bounding", "looks for capabilities that a program could still give it", _bounding, _MORE,
        Wall("capabilities", "none in the bounding set"),
    ),
    _attempt(
        "ambient", "raises capabilities that programs keep", _ambient, _MORE,
        Wall("syscalls", "EPERM at prctl"), Wall("capabilities", "EINVAL at prctl, EPERM at prctl"),
    ),
    _attempt(
        "keep", "says how capabilities are kept and lost", _keep, _MORE,
        Wall("syscalls", "EPERM at prctl"), Wall("capabilities", "EINVAL at prctl, EPERM at prctl"),
        cve="CVE-2000-0506",
    ),
    _attempt(
        "gains", "looks whether a program that it starts may gain rights", _gains, _MORE,
        Wall("no_new_privs", "set for good"),
    ),
    _attempt(
        "unset", "takes no_new_privs back", _unset, _MORE,
        Wall("syscalls", "EPERM at prctl"), Wall("kernel", "EINVAL at prctl"),
    ),
    _attempt(
        "setuid_program", "starts a program of root's that runs as root", _setuid_program, _ROOT,
        Wall("mounts", "ENOENT at execve"),
        cve="CVE-2021-4034, CVE-2021-44731, CVE-2022-3328", alone=True,
    ),
    _attempt(
        "filters", "adds filters of its own, by seccomp and by prctl", _filters, "the kernel runs its programs",
        Wall("syscalls", "EPERM at seccomp, EPERM at prctl"),
    ),
    _attempt(
        "listener", "adds a filter that asks the process itself", _listener,
        "a call is judged, and another is made", Wall("syscalls", "EPERM at seccomp"),
    ),
    _attempt(
        "personality", "gives up the protections of its memory by personality", _personality, _MORE,
        Wall("syscalls", "EPERM at personality"),
        cve="CVE-2009-1895",
    ),
    _attempt(
        "map_users", "maps root into its own user namespace", _map_users, _ROOT,
        Wall("mounts", "ENOENT at open"), Wall("landlock", "EACCES at open"),
        control=files_work, cve="CVE-2014-8989, CVE-2013-1959",
    ),
    _attempt(
        "file_capabilities", "gives a program that others start every capability", _file_capabilities, _ROOT,
        Wall("syscalls", "ENOSYS at setxattr"), Wall("mounts", "EROFS at setxattr"),
        control=files_work, cve="CVE-2021-3493",
    ),
    _attempt(
        "claim", "says over a socket that it is root", _claim, "services that ask who is there believe it",
        Wall("syscalls", "ENOSYS at sendmsg"), Wall("user_namespace", "EINVAL at sendmsg"),
        control=sockets_work, cve="CVE-2013-1979",
    ),
    _attempt(
        "label", "takes another security context by the calls of Linux 6.8", _labels, _MORE,
        Wall("syscalls", "ENOSYS at lsm_set_self_attr"), Wall("kernel", "ENOTSUP at lsm_set_self_attr"),
    ),
)  # fmt: skip
