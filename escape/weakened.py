"""Layers taken away for real: the production launch, with one thing of it left out or put in.

Only the suite can do this. It subclasses the launch that a daemon calls as a function, and gives what it starts a stub
for a worker socket and a credential that opens nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bwrap import layers, seccomp
from bwrap.host import Shape, file_stamp
from bwrap.launch import Launch
from bwrap.pipes import given
from bwrap.plan import Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from bwrap.findings import Asked
    from bwrap.ledger import Ledger
    from bwrap.plan import Plan
    from bwrap.process import Process
    from bwrap.receipt import Confirmed
    from bwrap.sealed import Sealed

    Options = Callable[[list[str], Plan], list[str]]

# BPF_RET | BPF_K with SECCOMP_RET_ALLOW: a filter that is there, and lets everything through.
_ALLOW_ALL: Final = bytes([0x06, 0, 0, 0, 0, 0, 0xFF, 0x7F])


def _same(said: list[str], _: Plan) -> list[str]:
    return said


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is otherwise than in production."""

    options: Options = _same
    plan: Callable[[Plan], Plan] = lambda plan: plan
    command: Callable[[tuple[str, ...]], tuple[str, ...]] = lambda words: words
    unlimited: str = ""
    unrestricted: bool = False
    as_root: bool = False
    early_word: bool = False
    leaked: bool = False


class Weakened(Launch):
    """A launch with some changes, of which nothing is confirmed: what holds is for the attempts to show."""

    def __init__(self, plan: Plan, image: Sealed, ledger: Ledger, changes: tuple[Change, ...]) -> None:
        self._changes = changes
        for change in changes:
            plan = change.plan(plan)
        super().__init__(plan, image, ledger)

    def options(self) -> tuple[str, ...]:
        """Give bubblewrap's options with what is left out and put in."""
        said = list(super().options())
        for change in self._changes:
            said = change.options(said, self._plan)
        return tuple(said)

    def command(self) -> tuple[str, ...]:
        """Give the command as changed."""
        words = super().command()
        for change in self._changes:
            words = change.command(words)
        return words

    def descriptors(self, theirs: ExitStack) -> dict[str, int]:
        """Give one more, if one is to be left open: of the folder in which the home lies."""
        all_of_them = super().descriptors(theirs)
        if any(change.leaked for change in self._changes):
            beside = os.path.dirname(self._plan.places.home)
            all_of_them["{leaked}"] = given(
                theirs, os.open(f"{beside}/shared", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            )
        return all_of_them

    def identity(self) -> tuple[int, int]:
        """Give root's, if no uid of its own is to be had."""
        return (0, 0) if any(change.as_root for change in self._changes) else super().identity()

    def limits(self) -> dict[str, int]:
        """Give the limits but for the one that is left out."""
        without = {change.unlimited for change in self._changes}
        return {name: value for name, value in super().limits().items() if name not in without}

    def attempts(self) -> list[Asked]:
        """Have it restrict itself, unless that is left out, and probe nothing: nobody asks."""
        if any(change.early_word for change in self._changes):
            os.write(self._open["stdin"], b"\n")
        if any(change.unrestricted for change in self._changes):
            return []
        restricting = {layer.name for layer in layers.every_layer() if layer.sets_itself}
        return [each for each in super().attempts() if each.name.split(":")[0] in restricting]

    def confirm(self, process: Process, answer: bytes) -> tuple[Confirmed, ...]:
        """Confirm nothing."""
        del process, answer
        return ()


@dataclass(frozen=True, slots=True)
class Removal:
    """A layer taken away: what is changed, in which shapes, and what masks it must be lifted to be seen at all.

    `lifted` are layers that answer before this one does: with those away and this one there, its rows must be green,
    and red once it is gone too. `own_only`: nothing but the layer's own attempts is safe to make. `calls` are those
    that a filter lets through, so that only what they answer is tried; `rows` are own rows that must each be red.
    """

    layer: str
    name: str
    change: Change
    lifted: tuple[str, ...] = ()
    masks: tuple[Change, ...] = ()
    shapes: tuple[Shape, ...] = (Shape.SAME_USER, Shape.HOSTED)
    profile: str = "worker"
    own_only: bool = False
    calls: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


# --- what is left out of the options, and put in ---


def _without(*words: str) -> Options:
    def change(said: list[str], _: Plan) -> list[str]:
        return without_words(said, words)

    return change


def _instead(old: tuple[str, ...], new: tuple[str, ...]) -> Options:
    def change(said: list[str], _: Plan) -> list[str]:
        return [*without_words(said, old), *new]

    return change


def _with(words: Callable[[Plan], list[str]]) -> Options:
    """Put mounts in, before anything becomes read-only."""

    def change(said: list[str], plan: Plan) -> list[str]:
        at = said.index("--remount-ro")
        return [*said[:at], *words(plan), *said[at:]]

    return change


def without_words(said: list[str], words: tuple[str, ...]) -> list[str]:
    """Take an option and its values out of a list; raises `LookupError` where they are not in it."""
    for at in range(len(said)):
        if tuple(said[at : at + len(words)]) == words:
            return said[:at] + said[at + len(words) :]
    raise LookupError(f"bubblewrap is not told {' '.join(words)}")


def _real_home(said: list[str], plan: Plan) -> list[str]:
    """Show the home where the empty folder stands that hides it."""
    home = plan.places.home
    size = next(mount.size for mount in plan.find(Kind.EMPTY) if mount.target == home)
    cover = ("--perms", "0755", "--size", str(size), "--tmpfs", home)
    at = next(at for at in range(len(said)) if tuple(said[at : at + len(cover)]) == cover)
    shown = [*said[:at], "--ro-bind", home, home, *said[at + len(cover) :]]
    return without_words(shown, ("--remount-ro", home))


def _hosts_files(plan: Plan) -> list[str]:
    """Show what a home lies among, to be written to, and a folder that every host has."""
    beside = os.path.dirname(plan.places.home)
    return [
        *("--bind", f"{beside}/shared", f"{beside}/shared"),
        *("--ro-bind", f"{beside}/file", f"{beside}/file"),
        *("--ro-bind", "/etc", "/etc"),
        *("--dev-bind", "/dev/null", "/dev/null"),
    ]


def allowing_all(plan: Plan) -> Plan:
    """Give the plan with a filter that allows every call."""
    return replace(plan, filter=replace(plan.filter, program=_ALLOW_ALL))


def _allowing(call: str) -> Callable[[Plan], Plan]:
    """Let one call through whatever its arguments are, which is refused otherwise, or allowed on a condition."""

    def change(plan: Plan) -> Plan:
        rules = plan.filter.rules
        loose = replace(
            rules,
            allow=rules.allow | {call},
            refuse={name: code for name, code in rules.refuse.items() if name != call},
            when={name: condition for name, condition in rules.when.items() if name != call},
        )
        return replace(plan, filter=replace(plan.filter, program=seccomp.compile_filter(loose).program))

    return change


# --- what stands in bubblewrap's place ---

_STAND_IN: Final = """#!{python} -IS
# Speaks as bubblewrap does, and confines nothing.
import os, sys
from json import dumps
at, rest = int(sys.argv[2]), sys.argv[4:]
words = os.fdopen(at, "rb").read().decode().split("\\0")
def after(name):
    return words[words.index(name) + 1]
image = "/proc/self/fd/" + after("--ro-bind-data")
held = int(after("--block-fd"))
pid = os.fork()
if pid == 0:
    os.read(held, 1)
    for each in (int(after("--ro-bind-data")), 0, 1, 2):
        os.set_inheritable(each, True)
    os.execv(rest[0], [image if word == "/spl-worker.pyc" else word for word in rest])
os.write(int(after("--json-status-fd")), dumps({{"child-pid": pid}}).encode() + b"\\n")
os.close(held)
code = os.waitpid(pid, 0)[1]
sys.exit(os.waitstatus_to_exitcode(code) % 256)
"""


def stand_in(plan: Plan) -> Plan:
    """Give the plan with a program in bubblewrap's place that speaks as it does and confines nothing."""
    path = Path(os.path.dirname(plan.places.home), "stand-in")
    path.write_text(_STAND_IN.format(python=plan.host.python.path), encoding="utf-8")
    path.chmod(0o755)
    stamp = file_stamp(str(path))
    bubblewrap = replace(plan.host.bubblewrap, path=str(path), stamp=stamp)
    return replace(plan, host=replace(plan.host, bubblewrap=bubblewrap))


# --- the table ---

_NO_FILTER = Change(plan=allowing_all)
_NO_LANDLOCK = Change(unrestricted=True)
_HOSTS_PROC = Change(options=_with(lambda _: ["--bind", "/proc", "/proc"]))
_TERMINAL = Change(options=_with(lambda _: ["--dev-bind", "/dev/tty", "/dev/tty"]))
_UNFILTERED = ("syscalls",), (_NO_FILTER,)
_WITH_PROC = ("mounts",), (_HOSTS_PROC,)

SINGLE: Final = (
    "add_key", "clock_gettime", "clone", "fcntl", "fork", "futex", "io_uring_setup", "ioctl", "keyctl", "kill",
    "memfd_create", "mount", "name_to_handle_at", "perf_event_open", "personality", "pidfd_open", "prctl", "prlimit64",
    "process_vm_readv", "ptrace", "recvfrom", "semget", "sendto", "set_robust_list", "setns", "setsockopt", "shmget",
    "socket", "umount2", "unshare", "userfaultfd", "wait4",
)  # fmt: skip
"""Calls of which each is let through once, alone, to see that one row at least is red for it."""

REMOVALS: Final = (
    Removal("syscalls", "a filter that lets every call through", _NO_FILTER),
    *(
        Removal("syscalls", f"a filter that lets {call} through", Change(plan=_allowing(call)), calls=(call,))
        for call in SINGLE
    ),
    Removal(
        "user_namespace", "more user namespaces", Change(options=_without("--disable-userns")), *_UNFILTERED
    ),
    Removal(
        "separate_user",
        "uid 0 outside",
        Change(as_root=True),
        ("syscalls", "landlock"),
        (_NO_FILTER, _NO_LANDLOCK),
        (Shape.HOSTED,),
    ),
    Removal("network", "the daemon's network", Change(options=_without("--unshare-net"))),
    Removal(
        "network",
        "the daemon's network, to sockets of every family",
        Change(options=_without("--unshare-net")),
        ("syscalls", "landlock"),
        (_NO_FILTER, _NO_LANDLOCK),
    ),
    Removal("home", "the real home, read-only", Change(options=_real_home)),
    Removal("mounts", "the host's files beside the home", Change(options=_with(_hosts_files))),
    Removal("mounts", "the host's /proc", _HOSTS_PROC),
    Removal("mounts", "the host's /dev", Change(options=_with(lambda _: ["--dev-bind", "/dev", "/dev"]))),
    Removal("mounts", "a root that can be written", Change(options=_without("--remount-ro", "/"))),
    Removal("ipc", "the daemon's IPC", Change(options=_without("--unshare-ipc")), *_UNFILTERED),
    Removal("uts", "the daemon's host name", Change(options=_without("--unshare-uts")), *_WITH_PROC),
    Removal(
        "cgroup", "the daemon's control groups", Change(options=_without("--unshare-cgroup")), *_WITH_PROC
    ),
    Removal(
        "pid_namespace",
        "the daemon's process ids",
        Change(options=_without("--unshare-pid", "--as-pid-1")),
        *_UNFILTERED,
        profile="strict",
    ),
    Removal("landlock", "no restriction of its own", _NO_LANDLOCK),
    Removal(
        "capabilities",
        "capabilities kept",
        Change(options=_instead(("--cap-drop", "ALL"), ("--cap-add", "ALL"))),
    ),
    Removal(
        "no_new_privs",
        "a program in bubblewrap's place that confines nothing",
        Change(plan=stand_in),
        own_only=True,
    ),
    *(
        Removal("limits", f"no {name}", Change(unlimited=name), rows=rows)
        for name, rows in (
            ("RLIMIT_AS", ("limits.address_space", "limits.raise_address_space")),
            ("RLIMIT_CPU", ("limits.raise_cpu_time",)),
            ("RLIMIT_FSIZE", ("limits.raise_file_size",)),
            ("RLIMIT_NOFILE", ("limits.open_files", "limits.raise_open_files")),
            ("RLIMIT_NPROC", ("limits.raise_processes",)),
        )
    ),
    Removal(
        "environment",
        "bubblewrap's environment",
        Change(command=lambda words: tuple(word for word in words if word != "-i")),
    ),
    Removal("descriptors", "one descriptor more, of a folder of the host's", Change(leaked=True)),
    Removal(
        "session",
        "the daemon's session",
        Change(options=_without("--new-session")),
        ("syscalls", "mounts"),
        (_NO_FILTER, _TERMINAL),
    ),
    Removal("parent_death", "no death with the parent", Change(options=_without("--die-with-parent"))),
    Removal("credential", "a word on standard input too soon", Change(early_word=True)),
)
"""Every layer, taken away. Of the limits not that on cores: a daemon's own is one byte already, and is inherited."""
