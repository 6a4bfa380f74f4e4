"""Out by changing the view: mounts made, moved, uncovered or remounted, and another root.

The kernel asks for rights before it looks at most arguments here, and what it says then is EPERM, the filter's own
word. So most chains make the call twice: once with arguments that the kernel refuses sooner and in another way (EFAULT,
EINVAL, EBADF), which only the filter answers with EPERM, and once in earnest.
"""

from __future__ import annotations

import ctypes
import os

from escape.attempt import Attempt, Wall
from escape.attempts._making import ROOM, VIEW, without_rights
from escape.inside import World, call, calls_work, each, every, files_work, read, stopped, the_door_opens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Chain = Callable[[World], str]

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_MOVE, _MS_REC = 1, 2, 4, 32, 4096, 8192, 16384
_MS_UNBINDABLE, _MS_PRIVATE, _MS_SLAVE, _MS_SHARED = 1 << 17, 1 << 18, 1 << 19, 1 << 20
_MNT_FORCE, _MNT_DETACH, _MNT_EXPIRE, _UMOUNT_NOFOLLOW = 1, 2, 4, 8


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    call("mount", source, target, kind, flags, options)


def _nowhere() -> str:
    """Mount at no path at all: the kernel looks for it first, and says EFAULT."""
    call("mount", "none", None, "tmpfs", 0, None)
    return "a mount at no path"


def _mounted(then: Callable[[World], str], *mounts: Callable[[World], None]) -> Chain:
    """Make mounts, look at what is there, and take them away again."""

    def chain(world: World) -> str:
        made = 0
        try:
            for mount in mounts:
                mount(world)
                made += 1
            return then(world)
        finally:
            for _ in range(made):
                call("umount2", world.home, _MNT_DETACH)

    return lambda world: every(_nowhere, lambda: chain(world))


def _over_home(
    source: str, kind: str | None, flags: int = 0, options: str | None = None
) -> Callable[[World], None]:
    return lambda world: _mount(source, world.home, kind, flags, options)


def _home_seen(world: World) -> str:
    there = os.listdir(world.home)
    return (
        f"over the home, {len(there)} names" if there != ["run"] else stopped("nothing but the worker socket")
    )


def _written_sysctl(world: World) -> str:
    path = f"{world.home}/sys/kernel/core_pattern"
    file = os.open(path, os.O_RDWR)
    try:
        os.write(file, os.read(file, 4096))
    finally:
        os.close(file)
    return f"{path} was written"


def _layered(world: World) -> None:
    for name in ("up", "work"):
        os.mkdir(f"{world.home}/{name}")
    layers = f"lowerdir=/usr,upperdir={world.home}/up,workdir={world.home}/work"
    _mount("layers", world.home, "overlay", 0, layers)


def _filled(world: World) -> str:
    path = f"{world.home}/made"
    with open(path, "w", encoding="ascii") as file:
        file.write("made")
    os.unlink(path)
    return "room that can be written"


def _changed(*flags: int) -> Chain:
    """Change what is mounted at the root and over the home in each of several ways; none makes a mount."""

    def chain(world: World) -> str:
        lists = [("none", path, None, flag, None) for path in ("/", world.home) for flag in flags]
        return each("mount", lists, "the mount is changed")

    return lambda world: every(_nowhere, lambda: chain(world))


def _any_kind(world: World) -> str:
    kinds = (
        "ext4", "xfs", "btrfs", "vfat", "squashfs", "9p", "nfs", "cifs", "tracefs", "debugfs", "securityfs", "configfs",
        "bpf", "ramfs", "hugetlbfs", "binfmt_misc",
    )  # fmt: skip

    def one(kind: str) -> str:
        _mount("none", world.home, kind, _MS_RDONLY)
        call("umount2", world.home, _MNT_DETACH)
        return f"a {kind} was mounted"

    return every(_nowhere, *(lambda kind=kind: one(kind) for kind in kinds))


def _disk(world: World) -> str:
    disks = ("/dev/vda", "/dev/vda1", "/dev/sda", "/dev/sda1", "/dev/nvme0n1p1", "/dev/root")
    lists = [
        (disk, world.home, kind, _MS_RDONLY, None) for disk in disks for kind in ("ext4", "xfs", "btrfs")
    ]
    return every(_nowhere, lambda: each("mount", lists, "the host's disk"))


def _moved(world: World) -> str:
    def chain() -> str:
        call("mount", world.home, "/usr", None, _MS_MOVE, None)
        call("mount", "/usr", world.home, None, _MS_MOVE, None)
        return "what covers the home is elsewhere"

    return every(_nowhere, chain)


def _uncovered(*flags: int) -> Chain:
    """Take away what stands on the cover, then the cover, in any of several ways; see what is beneath."""

    def chain(world: World) -> str:
        if 0 in flags:
            call("umount2", world.socket, 0)
        got = each("umount2", [(world.home, flag) for flag in flags], "uncovered")
        return f"{got}: the home holds {os.listdir(world.home)}"

    # EFAULT at no path; EINVAL at flags that there are not, which the kernel looks at before anything else.
    return lambda world: every(
        lambda: f"unmounted nothing ({call('umount2', None, 0)})",
        lambda: f"unmounted with no such flag ({call('umount2', world.home, 1 << 20)})",
        lambda: chain(world),
    )


def _root_unmounted(world: World) -> str:
    lists = [(path, flag) for path in ("/", world.image, world.library) for flag in (_MNT_DETACH, _MNT_FORCE)]
    return every(
        lambda: f"unmounted nothing ({call('umount2', None, 0)})",
        lambda: each("umount2", lists, "what is shown is gone"),
    )


def _pivoted(world: World) -> str:
    # The kernel asks for the right first: EPERM is its word as well as the filter's, whatever it is given.
    call("pivot_root", world.home, f"{world.home}/run")
    return f"the root holds {os.listdir('/')}"


def _rerooted(world: World) -> str:
    """Break out of a root the old way: a new root beneath, and a descriptor of the old one to climb from."""

    def chain() -> str:
        above = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            call("chroot", world.home)
            call("fchdir", above)
            for _ in range(64):
                call("chdir", "..")
            call("chroot", ".")
            return f"the host's file is read, {len(read(world.host_file))} bytes"
        finally:
            os.close(above)

    return every(lambda: f"a root at no path ({call('chroot', None)})", chain)


def _quota(world: World) -> str:
    """Ask for and set quotas of the file systems that are shown."""
    block = (ctypes.c_uint8 * 128)()
    root = os.open("/", os.O_RDONLY | os.O_CLOEXEC)
    sync, get_format, get_quota, set_quota = (code << 8 for code in (0x800001, 0x800004, 0x800007, 0x800008))
    devices = ("/dev/vda", "/dev/sda", world.python)
    try:
        return every(
            lambda: each("quotactl", [(sync, None, 0, None)], "every quota is written"),
            lambda: each(
                "quotactl",
                [
                    (code, path, os.getuid(), block)
                    for path in devices
                    for code in (get_format, get_quota, set_quota)
                ],
                "a quota",
            ),
            lambda: each(
                "quotactl_fd",
                [(root, code, os.getuid(), block) for code in (get_quota, set_quota)],
                "a quota",
            ),
        )
    finally:
        os.close(root)


_KERNEL = "the kernel's file systems parse what the worker wrote"

# The first answers are those of calls with nothing to look at. Landlock forbids what changes the view (landlock(7)):
# of a mount before the kernel asks for a right, of taking one away after it.
_MASKED = "EFAULT at mount, EPERM at mount"
_NO_MOUNT = (
    Wall("syscalls", "EPERM at mount"),
    Wall("landlock", _MASKED),
    *without_rights(_MASKED),
)
_NO_UMOUNT = "EFAULT at umount2, EINVAL at umount2, EPERM at umount2"
_UNMOUNTED = (
    Wall("syscalls", "EPERM at umount2"),
    *without_rights(_NO_UMOUNT),
    Wall("landlock", _NO_UMOUNT),
)


def _mounting(name: str, sentence: str, chain: Chain, escape: str = VIEW, cve: str = "") -> Attempt:
    return Attempt(
        f"mounts.{name}",
        sentence,
        chain,
        control=files_work,
        walls=_NO_MOUNT,
        escape=escape,
        cve=cve,
        victims=["files"],
    )


ATTEMPTS: tuple[Attempt, ...] = (
    _mounting(
        "bind",
        "binds the root and a folder of the host's over the home's cover",
        _mounted(_home_seen, _over_home("/", None, _MS_BIND | _MS_REC)),
    ),
    _mounting(
        "proc",
        "mounts a /proc and writes to a sysctl that names a program",
        _mounted(_written_sysctl, _over_home("proc", "proc")),
        "root of the host runs what the worker names",
    ),
    _mounting(
        "sysfs", "mounts the kernel's view of devices", _mounted(_home_seen, _over_home("sysfs", "sysfs"))
    ),
    _mounting(
        "tmpfs",
        "mounts a file system in memory and writes to it",
        _mounted(_filled, _over_home("t", "tmpfs")),
        ROOM,
    ),
    _mounting(
        "devpts",
        "mounts terminals of its own",
        _mounted(_home_seen, _over_home("devpts", "devpts", _MS_NOSUID, "newinstance,ptmxmode=0666")),
    ),
    _mounting(
        "mqueue", "mounts the host's message queues", _mounted(_home_seen, _over_home("mqueue", "mqueue"))
    ),
    _mounting(
        "overlay",
        "lays a file system it can write over the interpreter's folder, and one over that",
        _mounted(
            _filled,
            _over_home("t", "tmpfs"),
            _layered,
        ),
        "attributes and setuid files pass from one layer to another",
        "CVE-2015-1328, CVE-2021-3493, CVE-2023-0386",
    ),
    _mounting(
        "control_groups",
        "mounts control groups, whose release agent the kernel runs",
        _mounted(_home_seen, _over_home("cgroup", "cgroup", 0, "rdma")),
        "root of the host runs what the worker names",
        "CVE-2022-0492",
    ),
    _mounting(
        "control_groups_2",
        "mounts the newer control groups",
        _mounted(_home_seen, _over_home("cgroup2", "cgroup2")),
        "processes of the host's can be moved, frozen and killed",
    ),
    _mounting(
        "fuse",
        "mounts a file system that a process serves, from a descriptor that is none",
        _mounted(_home_seen, _over_home("fuse", "fuse", 0, "fd=0,rootmode=40000,user_id=0,group_id=0")),
        _KERNEL,
    ),
    _mounting("kinds", "mounts one each of the file systems that a kernel may have", _any_kind, _KERNEL),
    _mounting("disk", "mounts the host's disks", _disk, "the host's disk is within reach"),
    _mounting(
        "remounted",
        "remounts the root and the home's cover so that they can be written",
        _changed(_MS_REMOUNT, _MS_REMOUNT | _MS_BIND),
        ROOM,
    ),
    _mounting(
        "loosened",
        "remounts the root and the home's cover with setuid programs and devices",
        _changed(_MS_REMOUNT | _MS_BIND | _MS_RDONLY, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NODEV),
    ),
    _mounting(
        "propagation",
        "shares its mounts with, or takes them from, the namespace that they came from",
        _changed(*(_MS_REC | how for how in (_MS_SHARED, _MS_SLAVE, _MS_PRIVATE, _MS_UNBINDABLE))),
    ),
    _mounting("moved", "moves the cover of the home elsewhere", _moved, "the home is there to be read"),
    Attempt(
        "mounts.uncovered",
        "unmounts the cover of the home",
        _uncovered(0),
        control=the_door_opens,
        walls=_UNMOUNTED,
        escape="the home is there to be read",
    ),
    Attempt(
        "mounts.uncovered_lazily",
        "unmounts the cover of the home lazily, by force and by its age",
        _uncovered(_MNT_DETACH, _MNT_FORCE, _MNT_EXPIRE, _MNT_EXPIRE | _UMOUNT_NOFOLLOW),
        control=the_door_opens,
        walls=_UNMOUNTED,
        escape="the home is there to be read",
    ),
    Attempt(
        "mounts.root_unmounted",
        "unmounts the root, the image and the library",
        _root_unmounted,
        control=files_work,
        walls=[
            Wall("syscalls", "EPERM at umount2"),
            *without_rights("EFAULT at umount2, EPERM at umount2"),
            Wall("landlock", _NO_UMOUNT),
        ],
        escape="what the root covers is there to be read",
    ),
    Attempt(
        "mounts.pivoted",
        "takes another root and puts the old one beneath it",
        _pivoted,
        control=files_work,
        walls=[
            Wall("syscalls", "EPERM at pivot_root"),
            *without_rights("EPERM at pivot_root"),
            Wall("landlock", "EPERM at pivot_root"),
        ],
        escape="what the root covers is there to be read",
    ),
    Attempt(
        "mounts.rerooted",
        "takes a root beneath its own and climbs out of that by a descriptor",
        _rerooted,
        control=files_work,
        walls=[
            Wall("syscalls", "EPERM at chroot"),
            Wall("capabilities", "EFAULT at chroot, EPERM at chroot"),
            # With the right to: above the root there is nothing.
            Wall("mounts", "EFAULT at chroot, ENOENT at open"),
        ],
        escape="the host's files are within reach",
    ),
    Attempt(
        "mounts.quotas",
        "asks for, sets and writes quotas",
        _quota,
        control=calls_work,
        walls=[Wall("syscalls", "EPERM at quotactl, EPERM at quotactl_fd")],
        escape="the host's quotas are the worker's to set",
    ),
)
