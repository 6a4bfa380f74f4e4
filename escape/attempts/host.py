"""Out by the host's files, devices and kernel: reading, listing and opening them by every path there is."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

from escape.attempt import Attempt, Wall
from escape.attempts._reaching import CHANGED, NO_FILE, opened, opens, reads, together
from escape.inside import AT_FDCWD, World, do, every, files_work, stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ACCOUNTS = (
    "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/hostname", "/etc/machine-id", "/etc/ld.so.cache",
    "/etc/ssh/ssh_host_ed25519_key", "/root/.ssh/id_ed25519", "/root/.bash_history", "/etc/resolv.conf",
)  # fmt: skip
_FOLDERS = ("etc", "root", "sys", "proc", "dev", "boot", "run/spl", "usr/sbin", "var/lib")
_DEVICES = (
    "mem", "kmem", "port", "kmsg", "null", "zero", "ptmx", "tty", "console", "kvm", "fuse", "net/tun", "sda", "vda",
    "nvme0n1", "loop-control", "mapper/control", "uinput", "userfaultfd", "shm/x", "mqueue/x",
)  # fmt: skip


def _lists(*paths: str) -> str:
    return every(*(lambda path=path: f"{path}, {len(do('list', os.listdir, path))} names" for path in paths))


def _host_file(world: World) -> str:
    return reads(world.host_file, f"//{world.host_file}", f"/.{world.host_file}", f"/..{world.host_file}")


def _host_dotdot(world: World) -> str:
    """Climb above every place that is shown, by path and from a descriptor."""
    up = "/.." * 24

    def climbed(path: str) -> str:
        folder = do("open O_PATH", os.open, path, os.O_PATH | os.O_CLOEXEC)
        try:
            file = do("open", lambda: os.open(f"..{up}{world.host_file}", os.O_RDONLY, dir_fd=folder))
            os.close(file)
        finally:
            os.close(folder)
        return f"the host's file from {path}"

    places = ("/", world.home, os.path.dirname(world.socket), world.library, os.path.dirname(world.python))
    return every(
        lambda: reads(*(f"{place}{up}{world.host_file}" for place in places)),
        *(lambda place=place: climbed(place) for place in places),
    )


def _host_written(world: World) -> str:
    path = f"{world.host_folder}/from-inside"
    file = opened("open", path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        do("write", os.write, file, b"from inside\n")
    finally:
        os.close(file)
        os.unlink(path)
    return f"{path} was written"


def _host_appended(world: World) -> str:
    return opens(os.O_WRONLY | os.O_APPEND, f"{world.host_folder}/notes")


def _strangers(world: World) -> str:
    """List every folder that leads to something shown: what else is in it is the host's."""
    shown = [world.home, world.python, world.library, world.image]
    linker = {"usr", "lib", "lib64", "lib32", "libx32", "bin", "sbin"}
    found = []
    for path in {parent for each in (world.home, world.image) for parent in _parents(each)}:
        start = path.rstrip("/") + "/"
        known = {each[len(start) :].split("/")[0] for each in shown if each.startswith(start)}
        found += [
            start + name
            for name in do("list", os.listdir, path)
            if name not in known and not (path == "/" and name in linker)
        ]
    return f"the host shows {len(found)} names" if found else stopped("nothing of the host's")


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _devices(_: World) -> str:
    return opens(os.O_RDWR, *(f"/dev/{name}" for name in _DEVICES))


def _sysctls(_: World) -> str:
    """Open what the kernel runs as root on the host; what can be had is given the text that it had."""
    names = ("core_pattern", "modprobe", "hotplug", "usermodehelper/bset", "domainname")

    def one(path: str) -> str:
        file = opened("open", path, os.O_RDWR)
        try:
            do("write", os.write, file, do("read", os.read, file, 4096))
        finally:
            os.close(file)
        return f"{path} was written"

    paths = [*(f"/proc/sys/kernel/{name}" for name in names), "/sys/kernel/uevent_helper"]
    return every(*(lambda path=path: one(path) for path in paths))


def _processes(world: World) -> str:
    files = ("environ", "maps", "mem", "root/etc/passwd", f"cwd{world.host_file}", "fd/0", "cmdline")
    pids = (world.victim_pid, world.daemon_pid, os.getppid() or 1, 1)
    return reads(*(f"/proc/{pid}/{name}" for pid in pids for name in files))


def _magic_links(world: World) -> str:
    links = ("self/cwd", "self/root", "thread-self/root", "self/fd/3", "self/fd/7", "self/fd/8")
    return reads(
        *(f"/proc/{link}/../../..{world.host_file}" for link in links),
        "/proc/self/map_files/400000-401000",
        "/dev/fd/3",
        "/dev/stdin",
    )


def _control_groups(_: World) -> str:
    hierarchies = ("", "/memory", "/rdma", "/cpu", "/unified", "/systemd", "/misc")
    names = ("release_agent", "cgroup.procs", "tasks", "notify_on_release", "devices.allow")
    return opens(os.O_WRONLY, *(f"/sys/fs/cgroup{each}/{name}" for each in hierarchies for name in names))


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _openat2(world: World) -> str:
    # RESOLVE_NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH, IN_ROOT; beneath something, a path must not begin with '/'.
    calls = [("openat2", AT_FDCWD, world.host_file, _OpenHow(0, 0, how), 24) for how in (0, 2, 4)]
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        beneath = [("openat2", root, world.host_file[1:], _OpenHow(0, 0, how), 24) for how in (8, 16)]
        return together("openat2", *calls, *beneath, opening=True)
    finally:
        os.close(root)


def _other_opens(world: World) -> str:
    made = f"{world.host_folder}/made"
    try:
        return together("open", ("open", world.host_file, 0, 0), ("creat", made, 0o600), opening=True)
    finally:
        with suppress(OSError):
            os.unlink(made)


_NO_WRITING = (*NO_FILE, Wall("landlock", "EACCES at open"))


ATTEMPTS: tuple[Attempt, ...] = (
    Attempt(
        "host.file",
        "reads a file of the host's that is open to all, by several spellings of its path",
        _host_file,
        control=files_work,
        walls=NO_FILE,
        escape="the host's files are within reach",
    ),
    Attempt(
        "host.dotdot",
        "climbs above every place that is shown to a file of the host's",
        _host_dotdot,
        control=files_work,
        walls=NO_FILE,
        escape="the host's files are within reach",
    ),
    Attempt(
        "host.accounts",
        "reads the host's accounts, keys and settings",
        lambda _: reads(*_ACCOUNTS),
        control=files_work,
        walls=NO_FILE,
        escape="who there is, and the keys of who there is",
    ),
    Attempt(
        "host.folders",
        "lists the host's folders",
        lambda _: _lists(*(f"/{name}" for name in _FOLDERS)),
        control=files_work,
        walls=[Wall("mounts", "ENOENT at list")],
        escape="the host's files are known by name",
    ),
    Attempt(
        "host.strangers",
        "lists every folder that leads to the home, for anything but the way there",
        _strangers,
        control=files_work,
        walls=[Wall("mounts", "nothing of the host's")],
        escape="the host's files are known by name",
    ),
    Attempt(
        "host.written",
        "makes a file in a folder of the host's that is open to all",
        _host_written,
        control=files_work,
        walls=_NO_WRITING,
        escape=CHANGED,
        victims=["files"],
    ),
    Attempt(
        "host.appended",
        "opens a file of the host's that all may write, to add to it",
        _host_appended,
        control=files_work,
        walls=_NO_WRITING,
        escape=CHANGED,
        victims=["files"],
    ),
    Attempt(
        "host.devices",
        "opens memory, disks, terminals and other devices",
        _devices,
        control=files_work,
        walls=NO_FILE,
        escape="the host's memory or disk is within reach",
    ),
    Attempt(
        "host.core_pattern",
        "writes to the sysctls that name programs which the kernel runs as root",
        _sysctls,
        control=files_work,
        walls=NO_FILE,
        escape="root of the host runs what the worker names",
        victims=["host"],
        cve="CVE-2025-31133, CVE-2025-52565",
    ),
    Attempt(
        "host.sysrq",
        "opens the trigger that crashes or restarts the host",
        lambda _: opens(os.O_WRONLY, "/proc/sysrq-trigger"),
        control=files_work,
        walls=NO_FILE,
        escape="the host is at the worker's mercy",
        cve="CVE-2025-31133, CVE-2025-52881",
    ),
    Attempt(
        "host.processes",
        "reads the memory, environment, root and descriptors of others by /proc",
        _processes,
        control=files_work,
        walls=NO_FILE,
        escape="what another process holds is read",
    ),
    Attempt(
        "host.magic_links",
        "goes through magic links, and descriptors that a runtime may have left open, to the host",
        _magic_links,
        control=files_work,
        walls=NO_FILE,
        escape="a descriptor left open leads out of the root",
        cve="CVE-2024-21626",
    ),
    Attempt(
        "host.release_agent",
        "opens the files of control groups that name a program for the kernel to run, or move processes",
        _control_groups,
        control=files_work,
        walls=NO_FILE,
        escape="root of the host runs what the worker names",
        cve="CVE-2022-0492",
    ),
    Attempt(
        "host.openat2",
        "opens a file of the host's by the newer call, by each way of resolving a path",
        _openat2,
        control=files_work,
        walls=[Wall("syscalls", "ENOSYS at openat2"), Wall("mounts", "ENOENT at openat2")],
        escape="a way to open files that the filter does not see",
    ),
    Attempt(
        "host.old_opens",
        "opens and makes files by the oldest calls",
        _other_opens,
        control=files_work,
        walls=[Wall("syscalls", "ENOSYS at open"), Wall("mounts", "ENOENT at open")],
        escape="a way to open files that the filter does not see",
        lacking={"no number at open": "this architecture has the 'at' forms only"},
    ),
)
