"""What the worker's program needs of a profile to run at all: with less, every start would be refused by some layer.

Measured by taking each away under a real launch, on CPython 3.11 to 3.13, GNU libc 2.36 and both shapes. What the
floor asks for already, such as the empty home, is not said again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bwrap import floor, groups, seccomp
from bwrap.floor import Breach, Row
from bwrap.merge import REMOVES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.document import Path
    from bwrap.profile import Profile
    from bwrap.seccomp import Rules

_LAYER = "profile"

CALLS = {
    "start": (
        "env starts the interpreter, which starts and ends",
        ("arch_prctl", "execve", "exit_group", "getrandom"),
    ),
    "memory": ("programs are mapped before they run", ("mmap", "mprotect")),
    "library": (
        "the interpreter reads its library and the program",
        ("close", "getdents64", "newfstatat", "openat", "pread64", "read"),
    ),
    "doors": (
        "it answers that it is ready, and waits at the worker socket",
        ("connect", "poll", "write"),
    ),
    "probe": (
        "it says who it is and what it can reach, and gives up rights where the kernel has Landlock",
        (
            "faccessat", "getpid", "getppid", "getresgid", "getresuid",
            "landlock_create_ruleset", "landlock_restrict_self",
        ),
    ),
}  # fmt: skip
"""Calls by what they are for; each must be allowed, on a condition or without."""

_ELSEWHERE = {"aarch64": {"arch_prctl": None, "poll": "ppoll"}}
"""What stands for a call that an architecture does not have."""

VALUES: dict[str, tuple[str, int, tuple[str | int, ...]]] = {
    "socket": ("the worker socket is one of this family", 0, ("AF_UNIX",)),
    "sendto": ("it asks at the doors, without flags", 3, (0,)),
    "recvfrom": ("it hears what they answer, without flags", 3, (0,)),
    "prlimit64": ("it says what its own limits are", 0, (0,)),
    "prctl": (
        "it says what rights it has, and which signal it dies by",
        0,
        ("PR_GET_PDEATHSIG", "PR_CAPBSET_READ", "PR_GET_NO_NEW_PRIVS"),
    ),
    "ioctl": ("the interpreter opens the program so that no other inherits it", 1, ("FIOCLEX",)),
    "landlock_add_rule": (
        "it keeps the right to write in the file systems in memory that the profile gives",
        1,
        ("LANDLOCK_RULE_PATH_BENEATH",),
    ),
    "fcntl": ("the interpreter looks at the descriptors it was given", 1, ("F_GETFD",)),
}
"""Calls that must be allowed for these values of this argument."""

_WITH_TMPFS = "landlock_add_rule"
"""Needed only by a profile with a file system in memory."""

LEAST = {
    "address_space": (20 << 20, "20M", "the interpreter and one model reply take that much"),
    "file_size": (64 << 10, "64K", "bubblewrap writes the program under it"),
    "open_files": (9, "9", "bubblewrap sets the sandbox up under it"),
}
"""The least each limit may be: as a number of bytes or a count, as a profile writes it, and why."""


def missing(profile: Profile) -> list[Breach]:
    """Give what a profile lacks for a run on this machine's architecture, in the order of the table.

    Raises `ProfileError`, and `seccomp.FilterError` on a machine for which no filter can be made.
    """
    compiled = [groups.rules(profile, seccomp.architecture())]
    return floor.broken(NEEDS, profile, compiled, "no run can start without")


def require(profile: Profile) -> None:
    """Refuse a profile that no run can start with; raises `LayerError` of the layer `profile` for the first need."""
    for lack in missing(profile):
        raise lack.refusal()


def _calls(name: str) -> Row:
    why, calls = CALLS[name]

    def breaks(profile: Profile, rules: Rules) -> Iterator[tuple[Path, str]]:
        lacking: dict[Path, list[str]] = {}
        for call in (_ELSEWHERE.get(seccomp.architecture(), {}).get(each, each) for each in calls):
            if call is not None and call not in rules.allow and call not in rules.when:
                lacking.setdefault(_place(profile, call), []).append(call)
        for path, listed in lacking.items():
            yield path, f"it does not allow {', '.join(listed)}"

    return Row(name, _LAYER, f"{', '.join(calls)}: {why}", breaks)


def _values(call: str) -> Row:
    why, argument, values = VALUES[call]

    def breaks(profile: Profile, rules: Rules) -> Iterator[tuple[Path, str]]:
        condition = rules.when.get(call)
        if call in rules.allow or (call == _WITH_TMPFS and not profile.filesystem.tmpfs):
            return
        if condition is None:
            yield _place(profile, call), f"it does not allow {call}"
        elif condition.argument != argument:
            yield _place(profile, call), f"it compares argument {condition.argument} of {call}"
        else:
            for value in values:
                if not condition.holds(groups.number(value)):
                    yield _place(profile, call), f"it does not allow {call} for {value}"

    listed = " and ".join(str(each) for each in values)
    return Row(call, _LAYER, f"{call!r} with argument {argument} equal to {listed}: {why}", breaks)


def _limit(name: str) -> Row:
    least, text, why = LEAST[name]

    def breaks(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
        if getattr(profile.limits, name) < least:
            yield ("limits", name), f"{profile.written(('limits', name))!r} is less than {text}"

    return Row(name, _LAYER, f"{name} of at least {text}: {why}", breaks)


def _listed(key: str, token: str, why: str) -> Row:
    def breaks(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
        if token not in getattr(profile.filesystem, key):
            yield ("filesystem", key), f"{token!r} is not in it"

    return Row(token, _LAYER, f"{token!r} in {key}: {why}", breaks)


def _place(profile: Profile, call: str) -> Path:
    """Give the word by which a profile decides a call that it does not allow so, or by which it took it away."""
    try:
        return groups.origin(profile, call)
    except KeyError:
        pass
    for index in reversed(range(len(profile.syscalls.allow))):
        said = profile.syscalls.allow[index].removeprefix(REMOVES)
        if said != profile.syscalls.allow[index] and call in _meant(said):
            return ("syscalls", "allow", index)
    return ("syscalls", "when" if call in VALUES else "allow")


def _meant(said: str) -> list[str]:
    """Give the calls that a word for a call or a group means."""
    return groups.calls_of(said[1:], seccomp.architecture()) if said.startswith("@") else [said]


NEEDS = (
    _listed("read_only", "@python", "the interpreter and its library are what runs"),
    _listed("sockets", "@worker_socket", "the worker socket is its only way to the daemon"),
    *map(_calls, CALLS),
    *map(_values, VALUES),
    *map(_limit, LEAST),
)
