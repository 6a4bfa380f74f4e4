"""Out by what is shown: the interpreter, its library and the image, written, marked, mapped, watched or asked about."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat

from escape.attempt import Attempt, Wall
from escape.attempts._reaching import CHANGED, NO_FILE, NOW, READ_ONLY, makes, opens, together
from escape.inside import AT_FDCWD, World, call, calls_work, descriptors_work, do, every, files_work, stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Chain = Callable[[World], str]

_AT_EMPTY_PATH = 0x1000
_MOST_SHOWN = 30000


def _shown_tree(world: World) -> str:
    """Look at everything that is shown: for a socket, a device, a pipe, a setuid program, what can be written."""
    seen = 0
    for folder, folders, files in os.walk("/"):
        for name in (".", *folders, *files):
            path = os.path.normpath(os.path.join(folder, name))
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue  # of a /proc, if there is one
            if stat.S_ISLNK(mode) or path == world.socket:
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return f"{path} is of mode {mode:o}"
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                return f"{path} is setuid"
            if os.access(path, os.W_OK):
                return f"{path} can be written"
            seen += 1
            if seen > _MOST_SHOWN:
                return f"more than {seen} files are shown"
    return stopped("nothing to use" if seen else "nothing is shown")


def _to_write(path: str) -> int:
    """Give the flags by which a file is opened so that a read-only mount answers first, and nothing can be lost.

    Only with O_TRUNC is the mount asked before the file's mode. It is left out where the mode would not refuse.
    """
    seen = os.stat(path)
    mine = seen.st_uid == os.getuid() and seen.st_mode & 0o200
    return os.O_WRONLY | (0 if mine or seen.st_mode & 0o022 else os.O_TRUNC)


def _written(path: Callable[[World], str]) -> Chain:
    return lambda world: opens(_to_write(path(world)), path(world))


def _library_added(world: World) -> str:
    """Put a module where the next worker's interpreter looks for one."""
    return makes(*(f"{world.library}/{name}" for name in ("made.py", "made.pyc", "encodings/made.py")))


def _reopened(world: World) -> str:
    """Open anew, to write, what is held open to be read; magic links and empty paths are the ways to."""

    def one(name: str, folder: int | None) -> str:
        os.close(do("open", lambda: os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)))
        return "the interpreter can be written"

    file = os.open(world.python, os.O_PATH | os.O_CLOEXEC)
    try:
        return every(
            lambda: one(f"/proc/self/fd/{file}", None),
            lambda: one(f"/dev/fd/{file}", None),
            lambda: one("/proc/self/exe", None),
            lambda: one("", file),
        )
    finally:
        os.close(file)


def _own_memory(_: World) -> str:
    return opens(os.O_RDWR, "/proc/self/mem", f"/proc/{os.getpid()}/mem", "/proc/thread-self/mem")


def _by_descriptor(world: World) -> str:
    """Change what a descriptor stands for that was opened to be read."""
    file = os.open(world.python, os.O_RDONLY | os.O_CLOEXEC)
    seen = os.fstat(file)
    try:
        return together(
            "change",
            ("fchmod", file, stat.S_IMODE(seen.st_mode)),
            ("fchmodat2", file, "", stat.S_IMODE(seen.st_mode), _AT_EMPTY_PATH),
            ("fchown", file, os.getuid(), -1),
            ("fchownat", file, "", os.getuid(), -1, _AT_EMPTY_PATH),
            ("fsetxattr", file, "user.inside", "x", 1, 0),
            ("utimensat", file, None, NOW, 0),
        )
    finally:
        os.close(file)


def _resized(world: World) -> str:
    file = os.open(world.python, os.O_RDONLY | os.O_CLOEXEC)
    size = os.fstat(file).st_size
    try:
        return together("change", ("ftruncate", file, size), ("fallocate", file, 0, 0, size))
    finally:
        os.close(file)


def _descriptor_written(world: World) -> str:
    file = os.open(world.python, os.O_RDONLY | os.O_CLOEXEC)
    size = os.fstat(file).st_size
    try:
        os.lseek(file, size, os.SEEK_SET)
        return together("write", ("write", file, b"x", 1), ("writev", file, (ctypes.c_uint64 * 2)(0, 0), 1))
    finally:
        os.close(file)


def _pages_written(world: World) -> str:
    """Write to a file's pages through a mapping: shared from the start, or made writable later."""
    file = os.open(world.python, os.O_RDONLY | os.O_CLOEXEC)
    prot = mmap.PROT_READ | mmap.PROT_WRITE

    def later() -> str:
        address = call("mmap", 0, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
        try:
            call("mprotect", address, 4096, prot)
        finally:
            call("munmap", address, 4096)
        return "a page of the interpreter's file can be written"

    try:
        return every(
            lambda: f"a mapping to write at {call('mmap', 0, 4096, prot, mmap.MAP_SHARED, file, 0):x}", later
        )
    finally:
        os.close(file)


def _handle(world: World) -> str:
    """Make a handle of the root's into one of the host's root: its inode is 2."""
    handle = (ctypes.c_uint8 * 136)()
    handle[0] = 128
    mount = (ctypes.c_int * 1)()

    def opened() -> str:
        call("name_to_handle_at", AT_FDCWD, world.library, handle, mount, 0)
        handle[8:12] = [2, 0, 0, 0]
        root = os.open(world.library, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.close(call("open_by_handle_at", root, handle, os.O_RDONLY))
        finally:
            os.close(root)
        return "the host's root by its inode"

    # With no handle at all the kernel would say EFAULT, before it asks for rights.
    return every(lambda: f"opened {call('open_by_handle_at', -1, None, 0)}", opened)


def _watched_all(world: World) -> str:
    def watched() -> str:
        # FAN_REPORT_FID: the kind that needs no rights (fanotify_init(2)).
        watcher = call("fanotify_init", 0x200, 0)
        try:
            call("fanotify_mark", watcher, 1, 0x20, AT_FDCWD, world.library)
        finally:
            os.close(watcher)
        return "the library is watched"

    return every(lambda: f"watched nothing ({call('fanotify_mark', -1, 1, 1, -1, None)})", watched)


def _synced(_: World) -> str:
    # Of no descriptor, or with no flags there are: were it real, a disk of the host's would write.
    return together(
        "sync",
        ("fsync", -1),
        ("fdatasync", -1),
        ("syncfs", -1),
        ("sync_file_range", -1, 0, 0, 0),
        ("msync", 0, 0, -1),
    )


ATTEMPTS: tuple[Attempt, ...] = (
    Attempt(
        "shown.useful",
        "looks through all that is shown for a socket, a device, a pipe, a setuid program or a file to write",
        _shown_tree,
        control=files_work,
        walls=[Wall("mounts", "nothing to use")],
        escape="what is shown is a way out",
    ),
    Attempt(
        "shown.reopened",
        "opens the program that runs anew to write it, by magic links and empty paths",
        _reopened,
        control=files_work,
        walls=NO_FILE,
        escape="the host next runs what the worker wrote",
        cve="CVE-2019-5736, CVE-2019-8308",
    ),
    Attempt(
        "shown.own_memory",
        "opens its own memory to write past what its pages allow",
        _own_memory,
        control=files_work,
        walls=NO_FILE,
        escape="pages of shown files are written by a race that the kernel lost before",
        cve="CVE-2016-5195",
    ),
    Attempt(
        "shown.interpreter_written",
        "opens the interpreter to be written",
        _written(lambda world: world.python),
        control=files_work,
        walls=READ_ONLY[:1],
        escape="the host next runs what the worker wrote",
        cve="CVE-2019-5736",
    ),
    Attempt(
        "shown.library_written",
        "opens a module of the standard library to be written",
        _written(lambda world: f"{world.library}/os.py"),
        control=files_work,
        walls=READ_ONLY[:1],
        escape="the host next runs what the worker wrote",
    ),
    Attempt(
        "shown.library_added",
        "adds modules to the standard library",
        _library_added,
        control=files_work,
        walls=READ_ONLY[:1],
        escape="the host next runs what the worker wrote",
    ),
    Attempt(
        "shown.image_written",
        "opens the program that it is to be written",
        _written(lambda world: world.image),
        control=files_work,
        walls=READ_ONLY[:1],
        escape="what runs is not what the receipt names",
    ),
    Attempt(
        "shown.by_descriptor",
        "changes mode, owner, times and attributes of the interpreter by a descriptor that reads",
        _by_descriptor,
        control=descriptors_work,
        walls=[Wall("syscalls", "ENOSYS at change"), Wall("mounts", "EROFS at change")],
        escape=CHANGED,
    ),
    Attempt(
        "shown.resized",
        "sets length and room of the interpreter's file by a descriptor that reads",
        _resized,
        control=descriptors_work,
        walls=[
            Wall("syscalls", "ENOSYS at change"),
            # A descriptor that reads cannot be written through, whatever is mounted.
            Wall("kernel", "EINVAL at change, EBADF at change"),
        ],
        escape=CHANGED,
    ),
    Attempt(
        "shown.descriptor_written",
        "writes through a descriptor that reads",
        _descriptor_written,
        control=descriptors_work,
        walls=[Wall("kernel", "EBADF at write")],
        escape=CHANGED,
    ),
    Attempt(
        "shown.pages_written",
        "maps a shown file to be written, or makes a mapping of it writable",
        _pages_written,
        control=descriptors_work,
        walls=[Wall("kernel", "EACCES at mmap, EACCES at mprotect")],
        escape="a page of a file is changed for everyone who uses it",
    ),
    Attempt(
        # "Shocker" (2014), which left Docker so, has no number.
        "shown.handles",
        "makes a handle of a shown folder into one of the host's root, and opens that",
        _handle,
        control=files_work,
        walls=[
            Wall("syscalls", "EPERM at open_by_handle_at, EPERM at name_to_handle_at"),
            Wall("user_namespace", "EFAULT at open_by_handle_at, EPERM at open_by_handle_at"),
        ],
        escape="any file of a shown file system is opened by its inode",
    ),
    Attempt(
        "shown.watched_all",
        "watches by fanotify what others do with shown files",
        _watched_all,
        control=calls_work,
        walls=[Wall("syscalls", "ENOSYS at fanotify_mark, ENOSYS at fanotify_init")],
        escape="what others read is known, and a quota of the whole user is used up",
    ),
    Attempt(
        "shown.synced",
        "has a disk of the host's write, of no descriptor",
        _synced,
        control=descriptors_work,
        walls=[Wall("syscalls", "ENOSYS at sync"), Wall("kernel", "EBADF at sync, EINVAL at sync")],
        escape="one worker slows the host's disks for everyone",
    ),
)
