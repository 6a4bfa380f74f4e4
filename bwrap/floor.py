"""The floor: what a profile that runs work for anyone may not fall below, one row a promise.

A profile may tighten and tweak; a row is broken by what it says, wherever that was said. Nobody can switch a row off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bwrap import groups, sources
from bwrap.errors import LayerError, ProfileError
from bwrap.profile import OPTIONAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bwrap.document import Path
    from bwrap.profile import Profile
    from bwrap.seccomp import Condition, Rules

_WORD = 0xFFFFFFFF

BY_CONSTRUCTION = (
    "a mount namespace of its own, and in the hosted shape a uid of its own",
    "nothing of the host writable: the format has no word for it",
    "no capability, and no_new_privs set",
    "an environment that holds PATH, and no descriptor but 0, 1 and 2",
    "a filter that refuses what the profile does not name",
    "no core dump, no terminal, and death with the daemon",
    "other architectures of the same machine killed",
)
"""What holds under every profile, because no profile can say otherwise."""

NEVER = (
    "namespace", "mount", "trace", "module", "keyring", "bpf", "io-uring", "other-process", "new-task", "clone3",
    "uncounted-memory",
)  # fmt: skip
"""The groups of which nothing may be allowed, on a condition or without."""

ONLY = {
    "socket": (0, ("AF_UNIX",), "network"),
    "socketpair": (0, ("AF_UNIX",), "network"),
    "prlimit64": (0, (0,), "syscalls"),
}
"""Calls that may be allowed for these values of this argument only, and the layer they would break."""

NOT = {
    # Terminals take commands through these (CVE-2017-5226), and two aim SIGIO at any process.
    "ioctl": (1, ("TIOCSTI", "TIOCLINUX", "TIOCCONS", "TIOCSPGRP", "FIOSETOWN", "SIOCSPGRP")),
    # Signals to any process; a lease holds up whoever opens the file next; locks take kernel memory without limit.
    "fcntl": (
        1,
        (
            "F_SETOWN",
            "F_SETSIG",
            "F_SETOWN_EX",
            "F_SETLEASE",
            "F_SETLK",
            "F_SETLKW",
            "F_OFD_SETLK",
            "F_OFD_SETLKW",
        ),
    ),
    # The death signal is what ends it with the daemon; the others give rights, or name another process.
    "prctl": (
        0,
        (
            "PR_SET_PDEATHSIG",
            "PR_SET_SECCOMP",
            "PR_SET_MM",
            "PR_CAP_AMBIENT",
            "PR_SCHED_CORE",
            "PR_SET_PTRACER",
        ),
    ),
    "getsockopt": (2, ("SO_PEERPIDFD",)),
}
"""Calls that may be allowed on a condition which holds for none of these values of this argument."""

MOST = {
    "address_space": 4 << 30,
    "file_size": 1 << 30,
    "processes": 64,
    "open_files": 1024,
    "cpu_time": 3600,
}
"""The most each limit may be: bytes, counts, seconds."""

_TMPFS_MOST = 256 << 20
_HOST_FOLDERS = (*sources.HOST_FOLDERS, "/var/run")


@dataclass(frozen=True, slots=True)
class Row:
    """One promise: the layer it keeps, the sentence, and what finds the words that break it."""

    name: str
    layer: str
    sentence: str
    breaks: Callable[[Profile, Rules], Iterator[tuple[Path, str]]]


@dataclass(frozen=True, slots=True)
class Breach:
    """A word of a profile that breaks a row: what it does, and the fault that points at it."""

    row: Row
    said: str
    fault: ProfileError

    def refusal(self) -> LayerError:
        """Give it as the refusal of a start."""
        return LayerError(
            self.row.layer,
            expected=self.row.sentence,
            observed=f"{self.fault.file}:{self.fault.line}: {self.fault.place}: {self.said}",
            remedy="take that out of the profile, or choose another: the floor is the same for everyone",
        )


def breaches(profile: Profile) -> list[Breach]:
    """Give every breach of the floor, on either architecture, in the order of the table."""
    compiled = [groups.rules(profile, arch) for arch in groups.ARCHITECTURES]
    found: list[Breach] = []
    for row in FLOOR:
        broken: dict[Path, str] = {}
        for path, said in (each for rules in compiled for each in row.breaks(profile, rules)):
            broken.setdefault(
                path, said
            )  # once a word, though it may mean more calls on the other architecture
        found += [
            Breach(row, said, profile.fault(path, f"{said}, and the floor says: {row.sentence}"))
            for path, said in broken.items()
        ]
    return found


def require(profile: Profile) -> None:
    """Refuse to run anyone's work on a profile below the floor; raises `LayerError` for the first breach."""
    for breach in breaches(profile):
        raise breach.refusal()


def _own_namespace(name: str, layer: str, what: str) -> Row:
    def breaks(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
        if not getattr(profile.namespaces, name):
            yield ("namespaces", name), "it would share the host's"

    return Row(f"{name} namespace", layer, f"{what} are its own", breaks)


def _home(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
    said = profile.filesystem
    if "@home" not in said.empty:
        yield ("filesystem", "empty"), "'@home' is not in it"
    for index, source in enumerate(said.read_only):
        if source == "@home":
            yield ("filesystem", "read_only", index), "it shows the home"
    for index, tmpfs in enumerate(said.tmpfs):
        if tmpfs.path == "@home":
            yield ("filesystem", "tmpfs", index, "path"), "it stands where the empty folder should"


def _host_folders(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
    for index, source in enumerate(profile.filesystem.read_only):
        path = source.removeprefix(OPTIONAL).rstrip("/")
        for folder in _HOST_FOLDERS:
            if path in ("", folder) or folder.startswith(f"{path}/") or path.startswith(f"{folder}/"):
                yield ("filesystem", "read_only", index), f"{source!r} shows {folder} of the host"
                break


def _proc(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
    if profile.filesystem.proc != "none" and not profile.namespaces.pid:
        yield ("filesystem", "proc"), "without a pid namespace it shows every process of the host"


def _sockets(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
    for index, source in enumerate(profile.filesystem.sockets):
        if source != "@worker_socket":
            yield ("filesystem", "sockets", index), f"{source!r} is another's"


def _memory(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
    total = 0
    for index, tmpfs in enumerate(profile.filesystem.tmpfs):
        total += tmpfs.size
        if total > _TMPFS_MOST:
            yield ("filesystem", "tmpfs", index, "size"), f"together they hold {total} bytes"


def _limit(name: str, what: str) -> Row:
    def breaks(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
        said = getattr(profile.limits, name)
        if said > MOST[name]:
            yield ("limits", name), f"{said} is more than {MOST[name]}"

    return Row(name, "limits", f"{what} is bounded", breaks)


def _never(group: str) -> Row:
    def breaks(profile: Profile, rules: Rules) -> Iterator[tuple[Path, str]]:
        through: dict[Path, list[str]] = {}
        for call in dict.fromkeys(
            call for arch in groups.ARCHITECTURES for call in groups.calls_of(group, arch)
        ):
            if call in rules.allow or call in rules.when:
                through.setdefault(groups.origin(profile, call), []).append(call)
        for path, listed in through.items():
            yield path, f"it lets {', '.join(listed)} through"

    return Row(f"@{group}", "syscalls", f"no call of the group '@{group}' is allowed", breaks)


def _only(call: str) -> Row:
    argument, values, layer = ONLY[call]

    def breaks(profile: Profile, rules: Rules) -> Iterator[tuple[Path, str]]:
        condition = rules.when.get(call)
        if call in rules.allow or (condition is not None and not within(condition)):
            yield groups.origin(profile, call), f"it lets {call!r} through for more than that"

    def within(condition: Condition) -> bool:
        numbers = {groups.constants()[each] if isinstance(each, str) else each for each in values}
        return condition.argument == argument and all(
            mask == _WORD and value in numbers for mask, value in condition.alternatives
        )

    listed = " or ".join(str(each) for each in values)
    return Row(
        call,
        layer,
        f"{call!r} is allowed with argument {argument} equal to {listed} and not otherwise",
        breaks,
    )


def _not(call: str) -> Row:
    argument, values = NOT[call]

    def breaks(profile: Profile, rules: Rules) -> Iterator[tuple[Path, str]]:
        condition, numbers = rules.when.get(call), groups.constants()
        if call in rules.allow or (condition is not None and condition.argument != argument):
            yield groups.origin(profile, call), f"it lets {call!r} through whatever argument {argument} is"
        elif condition is not None and (
            listed := [each for each in values if condition.holds(numbers[each])]
        ):
            yield groups.origin(profile, call), f"it lets {call!r} through for {', '.join(listed)}"

    return Row(
        call,
        "syscalls",
        f"{call!r} is allowed on a condition that holds for none of {', '.join(values)}",
        breaks,
    )


FLOOR = (
    _own_namespace("user", "user_namespace", "its users and rights"),
    _own_namespace("net", "network", "its network devices and addresses"),
    _own_namespace("ipc", "ipc", "its message queues, semaphores and shared memory"),
    _own_namespace("uts", "uts", "its host and domain name"),
    Row("home", "home", "where the home is there is an empty read-only folder", _home),
    Row("host folders", "mounts", "of the host's /proc, /sys, /dev and /run nothing is shown", _host_folders),
    Row("proc", "mounts", "there is a /proc in a pid namespace only", _proc),
    Row("sockets", "mounts", "there is no socket but the worker's", _sockets),
    *(_never(group) for group in NEVER),
    *(_only(call) for call in ONLY),
    *(_not(call) for call in NOT),
    Row("tmpfs", "mounts", f"what it can write to memory is bounded by {_TMPFS_MOST >> 20}M in all", _memory),
    _limit("address_space", "its memory"),
    _limit("file_size", "the size of a file"),
    _limit("processes", "the number of its processes"),
    _limit("open_files", "the number of its open files"),
    _limit("cpu_time", "its processor time"),
)
