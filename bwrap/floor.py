"""The floor: what a profile that runs work for anyone may not fall below, one row a promise.

A profile may tighten and tweak; a row is broken by what it says, wherever that was said. Nobody can switch a row off.
Calls are an allow list here too: a profile chooses among those that were looked at, in profiles/syscalls/allowed.toml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bwrap import groups, sources
from bwrap.errors import LayerError, ProfileError
from bwrap.profile import OPTIONAL
from bwrap.text import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bwrap.document import Path
    from bwrap.profile import Profile
    from bwrap.seccomp import Rules

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
    "identity", "uncounted-memory", "host",
)  # fmt: skip
"""The groups of which nothing may be allowed, on a condition or without: each says why in refused.toml."""

_CLOCKS = (
    "CLOCK_REALTIME", "CLOCK_MONOTONIC", "CLOCK_PROCESS_CPUTIME_ID", "CLOCK_THREAD_CPUTIME_ID", "CLOCK_MONOTONIC_RAW",
    "CLOCK_REALTIME_COARSE", "CLOCK_MONOTONIC_COARSE", "CLOCK_BOOTTIME",
)  # fmt: skip
"""The machine's clocks, and those of the caller itself."""

ONLY: dict[str, tuple[int, tuple[str | int, ...], str]] = {
    "socket": (0, ("AF_UNIX",), "network"),
    "socketpair": (0, ("AF_UNIX",), "network"),
    "prlimit64": (0, (0,), "syscalls"),
    # Some take rights or the death signal away from the daemon, name another process, or take memory without limit.
    "prctl": (
        0,
        (
            "PR_GET_PDEATHSIG", "PR_GET_DUMPABLE", "PR_GET_KEEPCAPS", "PR_SET_NAME", "PR_GET_NAME", "PR_GET_SECCOMP",
            "PR_CAPBSET_READ", "PR_GET_SECUREBITS", "PR_GET_TIMERSLACK", "PR_GET_CHILD_SUBREAPER",
            "PR_GET_NO_NEW_PRIVS", "PR_GET_THP_DISABLE", "PR_SET_VMA",
        ),
        "syscalls",
    ),
    # Owners aim signals at any process; locks and leases hold up whoever else uses the file; pipes are a user's quota.
    "fcntl": (
        1,
        ("F_DUPFD", "F_GETFD", "F_SETFD", "F_GETFL", "F_SETFL", "F_DUPFD_CLOEXEC", "F_GET_SEALS"),
        "syscalls",
    ),
    # Terminals take commands (TIOCSTI, CVE-2017-5226), and some requests aim SIGIO at any process.
    "ioctl": (
        1,
        ("TCGETS", "TIOCGPGRP", "TIOCGWINSZ", "FIONREAD", "FIONBIO", "FIONCLEX", "FIOCLEX"),
        "syscalls",
    ),
    # Urgent bytes of AF_UNIX (MSG_OOB) were a way from inside a browser's sandbox into the kernel: CVE-2025-38236.
    "sendto": (3, (0, "MSG_DONTWAIT", "MSG_NOSIGNAL"), "network"),
    "recvfrom": (3, (0, "MSG_DONTWAIT", "MSG_PEEK", "MSG_WAITALL"), "network"),
    # SO_PEERPIDFD gives a handle on another process.
    "getsockopt": (2, ("SO_TYPE", "SO_ERROR", "SO_PEERCRED"), "syscalls"),
    # A rule for files takes memory by the files that are shown, one for ports by the 65536 there are: 4M a ruleset.
    "landlock_add_rule": (1, ("LANDLOCK_RULE_PATH_BENEATH",), "syscalls"),
    # A futex in a page of a shown file is one for everyone who is shown it, so two workers could talk past the records;
    # one of FUTEX_TRYLOCK_PI and its like names a task, and the answer tells whether there is one.
    "futex": (1, ("FUTEX_WAIT_PRIVATE", "FUTEX_WAKE_PRIVATE", "FUTEX_WAIT_BITSET_PRIVATE"), "syscalls"),
    # A clock's number can hold a pid, (~pid << 3) | 2: how long that process has run, and whether there is one.
    "clock_gettime": (0, _CLOCKS, "syscalls"),
    "clock_getres": (0, _CLOCKS, "syscalls"),
    # Waiting for such a clock sets a timer in the process it counts.
    "clock_nanosleep": (0, ("CLOCK_REALTIME", "CLOCK_MONOTONIC", "CLOCK_BOOTTIME"), "syscalls"),
}  # fmt: skip
"""Calls that may be allowed for these values of this argument only, and the layer they would break."""

MOST = {
    "address_space": (4 << 30, "4G"),
    "file_size": (1 << 30, "1G"),
    "processes": (64, "64"),
    "open_files": (1024, "1024"),
    "cpu_time": (3600, "1h"),
}
"""The most each limit may be: as a number of bytes, a count or seconds, and as a profile writes it."""

_TMPFS_MOST = 256 << 20
_HOST_FOLDERS = (*sources.HOST_FOLDERS, "/var/run")


@dataclass(frozen=True, slots=True)
class Row:
    """One promise: the layer it keeps, the sentence, and what finds the words that break it under some rules."""

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
            remedy="make the profile fit what is expected, or choose another: nobody's work runs on this one",
        )


def breaches(profile: Profile) -> list[Breach]:
    """Give every breach of the floor, on either architecture, in the order of the table."""
    compiled = [groups.rules(profile, arch) for arch in groups.ARCHITECTURES]
    return broken(FLOOR, profile, compiled, "the floor says:")


def broken(rows: Iterable[Row], profile: Profile, compiled: Iterable[Rules], says: str) -> list[Breach]:
    """Give what breaks rows of a table, under one of some rules, in the table's order; `says` leads to the sentence."""
    compiled, found = list(compiled), []
    for row in rows:
        broken: dict[Path, str] = {}
        for path, said in (each for rules in compiled for each in row.breaks(profile, rules)):
            # Once a word, though it may mean more calls on the other architecture.
            broken.setdefault(path, said)
        found += [
            Breach(row, said, profile.fault(path, f"{said}, and {says} {row.sentence}"))
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
        yield ("filesystem", "empty"), "'@home' is not in it: a profile of your own adds empty = [\"@home\"]"
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
            reason = f"together they hold {sized(total)}, more than {sized(_TMPFS_MOST)}"
            yield ("filesystem", "tmpfs", index, "size"), reason


def _limit(name: str, what: str) -> Row:
    most, text = MOST[name]

    def breaks(profile: Profile, _: Rules) -> Iterator[tuple[Path, str]]:
        if getattr(profile.limits, name) > most:
            yield ("limits", name), f"{profile.written(('limits', name))!r} is more than {text}"

    return Row(name, "limits", f"{what} is bounded: at most {text}", breaks)


def _never(group: str) -> Row:
    def breaks(profile: Profile, rules: Rules) -> Iterator[tuple[Path, str]]:
        return _let_through(
            profile,
            rules,
            dict.fromkeys(call for arch in groups.ARCHITECTURES for call in groups.calls_of(group, arch)),
        )

    return Row(f"@{group}", "syscalls", f"no call of the group '@{group}' is allowed", breaks)


def _only(call: str) -> Row:
    argument, values, layer = ONLY[call]

    def breaks(profile: Profile, rules: Rules) -> Iterator[tuple[Path, str]]:
        condition = rules.when.get(call)
        if call in rules.allow:
            yield groups.origin(profile, call), f"it lets {call!r} through whatever its arguments are"
        elif condition is not None and condition.argument != argument:
            yield groups.origin(profile, call), f"it lets {call!r} through whatever argument {argument} is"
        elif condition is not None:
            known = {groups.number(each) for each in values}
            words = dict(groups.alternatives(profile, call))
            for mask, value in condition.alternatives:
                if mask != _WORD or value not in known:
                    path, said = words[mask, value]
                    what = said if mask == _WORD else f"whatever has the bits of {said}"
                    yield path, f"it lets {call!r} through for {what}"

    listed = " or ".join(str(each) for each in values)
    return Row(
        call,
        layer,
        f"{call!r} is allowed with argument {argument} equal to {listed} and not otherwise",
        breaks,
    )


def _calls(profile: Profile, rules: Rules) -> Iterator[tuple[Path, str]]:
    refused = {
        call for arch in groups.ARCHITECTURES for name in NEVER for call in groups.calls_of(name, arch)
    }
    return _let_through(
        profile, rules, sorted({*rules.allow, *rules.when} - groups.allowable() - ONLY.keys() - refused)
    )


def _let_through(profile: Profile, rules: Rules, calls: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Give each word that lets some of these calls through, with those it does."""
    through: dict[Path, list[str]] = {}
    for call in calls:
        if call in rules.allow or call in rules.when:
            through.setdefault(groups.origin(profile, call), []).append(call)
    for path, listed in through.items():
        yield path, f"it lets {', '.join(listed)} through"


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
    Row(
        "calls",
        "syscalls",
        f"no call is allowed but those of the groups in profiles/syscalls/{groups.ALLOWED} "
        f"and, for some values, {', '.join(ONLY)}",
        _calls,
    ),
    Row(
        "tmpfs",
        "mounts",
        f"what the files of its file systems in memory hold is bounded: together at most {sized(_TMPFS_MOST)}",
        _memory,
    ),
    _limit("address_space", "its memory"),
    _limit("file_size", "the size of a file"),
    _limit("processes", "the number of its processes"),
    _limit("open_files", "the number of its open files"),
    _limit("cpu_time", "its processor time"),
)
