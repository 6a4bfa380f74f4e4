"""Out by namespaces: new ones, in which one has every right, another process's, and what is the daemon's own."""

from __future__ import annotations

import ctypes
import os
import resource

from escape.attempt import Attempt, Wall
from escape.inside import (
    AT_FDCWD,
    Stopped,
    World,
    call,
    calls_work,
    do,
    each,
    every,
    files_work,
    reap,
    stopped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Chain = Callable[[World], str]

_FS, _THREAD = 0x200, 0x10000
_NEWTIME, _NEWNS, _NEWCGROUP, _NEWUTS = 0x80, 0x20000, 0x02000000, 0x04000000
_NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x08000000, 0x10000000, 0x20000000, 0x40000000
_FLAGS = {
    "net": _NEWNET,
    "mnt": _NEWNS,
    "ipc": _NEWIPC,
    "uts": _NEWUTS,
    "pid": _NEWPID,
    "cgroup": _NEWCGROUP,
    "time": _NEWTIME,
}
_FD_NSFS_ROOT = -10003
_ALL = _NEWUSER | sum(_FLAGS.values())
_SIGCHLD = 17
_MS_REC, _MS_PRIVATE = 16384, 1 << 18
_PIDFD_SELF, _PIDFD_SELF_PROCESS = -10000, -10001


def _refusable() -> str:
    """Ask for a flag that there is not: the kernel says EINVAL, and asks for no right before."""
    return f"unshared nothing ({call('unshare', 1)})"


def _unshared(*flags: int) -> Chain:
    return lambda _: every(
        _refusable, lambda: each("unshare", [(flag,) for flag in flags], "a namespace of its own")
    )


def _all_the_way(world: World) -> str:
    """Become root in a user namespace, mount there, and write to a sysctl that names a program."""

    def chain() -> str:
        got = ["a user namespace"]
        call("unshare", _NEWUSER)
        call("unshare", _NEWNS | _NEWPID | _NEWNET)
        got.append("every right in it")
        try:
            call("mount", "none", "/", None, _MS_REC | _MS_PRIVATE, None)
            call("mount", "proc", world.home, "proc", 0, None)
            file = os.open(f"{world.home}/sys/kernel/core_pattern", os.O_RDWR)
            os.write(file, os.read(file, 4096))
            os.close(file)
            got.append("core_pattern is written")
        except (Stopped, OSError) as end:
            got.append(f"then {end.answer if isinstance(end, Stopped) else end}")
        return ", ".join(got)

    return every(_refusable, chain)


def _born(name: str, *arguments: int | bytes | str | ctypes.Structure | None) -> str:
    """Make a child, which ends at once."""
    pid = call(name, *arguments)
    if pid == 0:
        os._exit(0)
    reap(pid)
    return f"{name} made a process"


def _cloned(*flags: int) -> Chain:
    """Clone with flags, having cloned with ones that contradict each other: those the kernel answers with EINVAL."""

    def one(flag: int) -> Callable[[], str]:
        return lambda: _born("clone", flag | _SIGCHLD, 0, 0, 0, 0)

    return lambda _: every(
        lambda: f"cloned nothing ({call('clone', _THREAD, 0, 0, 0, 0)})",
        lambda: f"cloned nothing ({call('clone', _NEWNS | _FS, 0, 0, 0, 0)})",
        *map(one, flags),
    )


class _CloneArguments(ctypes.Structure):
    """`struct clone_args`, whole."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls", "set_tid",
            "set_tid_size", "cgroup",
        )
    )  # fmt: skip


def _cloned_3(*flags: int) -> Chain:
    def one(flag: int) -> Callable[[], str]:
        return lambda: _born("clone3", _CloneArguments(flags=flag, exit_signal=_SIGCHLD), 88)

    return lambda _: every(lambda: f"cloned nothing ({call('clone3', None, 0)})", *map(one, flags))


def _forked(_: World) -> str:
    """Fork by the old calls, while no process more is allowed: no filter, and the kernel says EAGAIN."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, hard))
    try:
        return every(
            lambda: _born("fork"), lambda: _born("clone", _SIGCHLD, 0, 0, 0, 0), lambda: _born("vfork")
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))


def _entered_by_descriptor(world: World) -> str:
    """Enter by a descriptor of no namespace (EINVAL), by none (EBADF), and by whatever descriptor there may be."""
    file = os.open(world.python, os.O_RDONLY | os.O_CLOEXEC)
    flags = (0, _NEWUSER, _NEWNS | _NEWNET)
    lists = [(at, flag) for flag in flags for at in (file, 10**6, *range(file))]
    try:
        return each("setns", lists, "another's namespace")
    finally:
        os.close(file)


def _entered_process(world: World) -> str:
    """Enter all namespaces of another process by a descriptor of it: the daemon's, the victim's, the parent's."""

    def one(pid: int) -> str:
        process = call("pidfd_open", pid, 0)
        try:
            call("setns", process, _NEWNS | _NEWNET | _NEWIPC | _NEWUTS)
        finally:
            os.close(process)
        return f"the namespaces of {pid}"

    named = (world.daemon_pid, world.victim_pid, world.neighbour_pid or 1, os.getppid() or 1)
    pids = [pid for pid in named if pid != os.getpid()]  # in a namespace of its own, it is 1 itself
    return every(
        lambda: f"entered nothing ({call('setns', -1, 0)})",
        *(lambda pid=pid: one(pid) for pid in pids),
    )


def _entered_by_sentinel(_: World) -> str:
    return each(
        "setns", [(at, _NEWNET) for at in (_PIDFD_SELF, _PIDFD_SELF_PROCESS, AT_FDCWD)], "a namespace"
    )


def _entered_by_path(world: World) -> str:
    """Enter a namespace by its file, as nsenter does."""

    def one(path: str) -> str:
        file = do("open", os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            call("setns", file, 0)
        finally:
            os.close(file)
        return f"{path} is entered"

    pids = (str(world.daemon_pid), str(world.victim_pid), "1")
    paths = [f"/proc/{pid}/ns/{name}" for pid in pids for name in ("user", "net", "mnt", "ipc")]
    others = ["/run/netns/default", "/var/run/docker/netns/default"]
    return every(*(lambda path=path: one(path) for path in (*paths, *others)))


def _entered_by_handle(world: World) -> str:
    """Enter a namespace of the daemon's by a handle, for which the kernel asks for no right since 6.18.

    A handle is the namespace's id, its kind and its number (`struct nsfs_file_handle`). What the host was started with
    has small ids.
    """
    sizes = (16, 0xF1)  # FILEID_NSFS

    def numbered(identity: int, name: str, kind: int) -> str:
        number = int(world.namespaces[name].strip("]").partition("[")[2])
        handle = (ctypes.c_uint32 * 6)(*sizes, identity, 0, kind, number)
        file = call("open_by_handle_at", _FD_NSFS_ROOT, handle, os.O_RDONLY)
        try:
            call("setns", file, 0)
        finally:
            os.close(file)
        return f"{world.namespaces[name]} is entered"

    kinds = {name: flag for name, flag in (*_FLAGS.items(), ("user", _NEWUSER)) if name in world.namespaces}
    return every(
        lambda: f"opened nothing ({call('open_by_handle_at', -1, None, 0)})",
        *(
            lambda identity=identity, name=name, kind=kind: numbered(identity, name, kind)
            for name, kind in kinds.items()
            for identity in (*range(1, 16), *range(4096, 4112))
        ),
    )


def _own(name: str) -> Chain:
    def chain(world: World) -> str:
        seen = do("readlink", os.readlink, f"/proc/self/ns/{name}")
        return f"{seen} is the daemon's own" if seen == world.namespaces[name] else stopped("another one")

    return chain


def _named(_: World) -> str:
    # The kernel asks for the right first: EPERM is its word as well as the filter's, whatever it is given.
    name = "spl-inside"
    return every(
        lambda: f"the host's name is set ({call('sethostname', name, len(name))})",
        lambda: f"the host's domain is set ({call('setdomainname', name, len(name))})",
    )


def _host_name(_: World) -> str:
    found = (ctypes.c_uint8 * 390)()
    call("uname", found)
    return f"the host's name is known, {len(bytes(found[65:130]).rstrip(bytes(1)))} bytes"


def _walls(*answers: tuple[str, str]) -> Iterable[Wall]:
    return [Wall(layer, answer) for layer, answer in answers]


_UNOPENED = "EFAULT at open_by_handle_at"
_RIGHTS = "every right in namespaces of its own, and with them most of the kernel"
_TASK = "a second process, which outlives the run"

_ENTERED = "the daemon's view of files, networks and processes is the worker's"

_OWN_LAYERS = {
    "user": "user_namespace", "net": "network", "ipc": "ipc", "uts": "uts", "cgroup": "cgroup", "pid": "pid_namespace",
}  # fmt: skip

ATTEMPTS: tuple[Attempt, ...] = (
    Attempt(
        "namespaces.unshare_user",
        "makes a user namespace, and goes on by it to a program that the kernel runs as root",
        _all_the_way,
        control=calls_work,
        # In the mutated process it works, and what came after would have every right.
        alone=True,
        walls=_walls(
            ("syscalls", "EPERM at unshare"),
            ("user_namespace", "EINVAL at unshare, ENOSPC at unshare"),
        ),
        escape="root of the host runs what the worker names",
        cve="CVE-2022-0185, CVE-2022-0492, CVE-2024-1086",
        victims=["host"],
    ),
    *(
        Attempt(
            f"namespaces.unshare_{name}",
            f"makes a namespace of its own for {name}",
            _unshared(flag),
            control=calls_work,
            walls=_walls(
                ("syscalls", "EPERM at unshare"), ("capabilities", "EINVAL at unshare, EPERM at unshare")
            ),
            escape=_RIGHTS,
        )
        for name, flag in _FLAGS.items()
    ),
    Attempt(
        "namespaces.unshare_together",
        "makes a user namespace together with one of each other, and all at once",
        _unshared(*(_NEWUSER | flag for flag in _FLAGS.values()), _ALL, _NEWUSER | _FS),
        control=calls_work,
        alone=True,
        walls=_walls(
            ("syscalls", "EPERM at unshare"),
            ("user_namespace", "EINVAL at unshare, ENOSPC at unshare"),
        ),
        escape=_RIGHTS,
    ),
    Attempt(
        "namespaces.clone_user",
        "makes a process in a user namespace of its own: alone, its root shared, and with one of each other",
        _cloned(_NEWUSER, _NEWUSER | _FS, *(_NEWUSER | flag for flag in _FLAGS.values() if flag != _NEWTIME)),
        control=calls_work,
        walls=_walls(("syscalls", "EPERM at clone"), ("user_namespace", "EINVAL at clone, ENOSPC at clone")),
        escape=_RIGHTS,
        cve="CVE-2013-1858",
    ),
    Attempt(
        "namespaces.clone_each",
        "makes a process in each kind of namespace without a user's",
        _cloned(*(flag for flag in _FLAGS.values() if flag != _NEWTIME)),
        control=calls_work,
        walls=[
            Wall("syscalls", "EPERM at clone"),
            # Hosted, bubblewrap's monitor counts as well: there may be no third.
            Wall("limits", "EINVAL at clone, EAGAIN at clone", shape="hosted"),
            Wall("capabilities", "EINVAL at clone, EPERM at clone"),
        ],
        escape=_RIGHTS,
    ),
    Attempt(
        "namespaces.clone3",
        "makes processes by the call whose flags no filter can read",
        _cloned_3(_NEWUSER, _ALL & ~_NEWTIME, *_FLAGS.values()),
        control=calls_work,
        walls=[
            Wall("syscalls", "ENOSYS at clone3"),
            Wall(
                "user_namespace",
                "EINVAL at clone3, ENOSPC at clone3, EPERM at clone3",
                "EINVAL at clone3, ENOSPC at clone3, EAGAIN at clone3",
            ),
        ],
        escape=_RIGHTS,
        cve="CVE-2021-41133",
    ),
    Attempt(
        "namespaces.fork",
        "makes a process by the old calls",
        _forked,
        control=calls_work,
        walls=_walls(
            ("syscalls", "EPERM at fork, EPERM at clone, EPERM at vfork"),
            ("limits", "EAGAIN at fork, EAGAIN at clone, EAGAIN at vfork"),
        ),
        escape=_TASK,
    ),
    Attempt(
        "namespaces.setns",
        "enters a namespace by every descriptor there is",
        _entered_by_descriptor,
        control=files_work,
        walls=_walls(("syscalls", "EPERM at setns"), ("kernel", "EINVAL at setns, EBADF at setns")),
        escape=_ENTERED,
    ),
    Attempt(
        "namespaces.setns_self",
        "enters a namespace by the numbers that stand for descriptors",
        _entered_by_sentinel,
        control=calls_work,
        walls=_walls(("syscalls", "EPERM at setns"), ("kernel", "EBADF at setns")),
        escape=_ENTERED,
    ),
    Attempt(
        "namespaces.setns_process",
        "enters all namespaces of the daemon, a neighbour and others by descriptors of them",
        _entered_process,
        control=calls_work,
        walls=[
            Wall("syscalls", "EPERM at setns, EPERM at pidfd_open"),
            Wall("pid_namespace", "EBADF at setns, ESRCH at pidfd_open", profile="strict"),
            Wall("user_namespace", "EBADF at setns, EPERM at setns"),
        ],
        escape=_ENTERED,
    ),
    Attempt(
        "namespaces.setns_path",
        "enters a namespace by its file",
        _entered_by_path,
        control=files_work,
        walls=_walls(("mounts", "ENOENT at open")),
        escape=_ENTERED,
    ),
    Attempt(
        "namespaces.by_handle",
        "enters the daemon's namespaces by handles made of their numbers",
        _entered_by_handle,
        control=calls_work,
        walls=[
            Wall("syscalls", "EPERM at open_by_handle_at"),
            # The kernel opens those that it is in itself: the daemon's process ids are the worker's, but in `strict`.
            Wall("pid_namespace", f"{_UNOPENED}, ESTALE at open_by_handle_at", profile="strict"),
            Wall("user_namespace", f"{_UNOPENED}, ESTALE at open_by_handle_at, EPERM at setns"),
        ],
        escape=_ENTERED,
    ),
    *(
        Attempt(
            f"namespaces.own_{name}",
            f"looks whether its {name} namespace is the daemon's own",
            _own(name),
            control=files_work,
            walls=[Wall("mounts", "ENOENT at readlink"), Wall(layer, "another one")],
            escape=_ENTERED,
        )
        for name, layer in _OWN_LAYERS.items()
        if name != "pid"
    ),
    Attempt(
        "namespaces.own_mnt",
        "looks whether its mount namespace is the daemon's own",
        _own("mnt"),
        control=files_work,
        # Without bubblewrap's there would be no view to look from: the second answer is that of a /proc in it.
        walls=_walls(("mounts", "ENOENT at readlink"), ("kernel", "another one")),
        escape=_ENTERED,
    ),
    Attempt(
        "namespaces.own_pid",
        "looks whether its process-id namespace is the daemon's own",
        _own("pid"),
        control=files_work,
        # In the other profiles it is the daemon's, on purpose; no process can be named in it.
        walls=[
            Wall("mounts", "ENOENT at readlink", profile="strict"),
            Wall("pid_namespace", "another one", profile="strict"),
        ],
        unclaimed="it is the daemon's own under this profile, on purpose: no process of it can be named",
        escape=_ENTERED,
    ),
    Attempt(
        "namespaces.named",
        "sets the host's name and domain",
        _named,
        control=calls_work,
        walls=_walls(
            ("syscalls", "EPERM at sethostname, EPERM at setdomainname"),
            ("capabilities", "EPERM at sethostname, EPERM at setdomainname"),
        ),
        escape="the host goes by another name",
        victims=["host"],
    ),
    Attempt(
        "namespaces.host_name",
        "asks for the host's name",
        _host_name,
        control=calls_work,
        walls=_walls(("syscalls", "ENOSYS at uname")),
        escape="which host it is, is known",
    ),
)
