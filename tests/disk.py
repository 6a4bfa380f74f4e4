"""A disk of a test's own: an ext4 in an image file, which can be full, refuse to be written, or lose its power.

It is mounted in a mount namespace that one process holds and that nothing else of the host is in: with that process,
which ends at the end of this one's pipe, and with whatever runs in the namespace go the mount and the loop device.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# EXT4_IOC_SHUTDOWN and EXT4_GOING_FLAGS_NOLOGFLUSH of linux/ext4.h, as xfstests cuts a disk's power: from then on
# nothing more reaches the device, not from the page cache and not from the journal, and every write fails with EIO.
_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
_WITHOUT_THE_JOURNAL = struct.pack("=I", 2)

_BLOCK = 1 << 10
_SECONDS = 30


class Disk:
    """A mounted disk; `path` is where it is mounted for what is started by `prefix`, and nothing for anyone else."""

    def __init__(self, folder: Path, mebibytes: int) -> None:
        """Make a disk whose image and mount point are in this folder, and mount it."""
        self.path = folder / "disk"
        self._image = folder / "disk.img"
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(mebibytes << 20)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True, timeout=_SECONDS)
        self._holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", "echo; read -r _"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"\n"
        self.mount()

    @property
    def prefix(self) -> list[str]:
        """The beginning of a command, root's, that runs where the disk is mounted."""
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", "--"]

    @property
    def namespace(self) -> str:
        """The mount namespace that everything on the disk is in, as /proc/PID/ns/mnt names it."""
        return os.readlink(f"/proc/{self._holder.pid}/ns/mnt")

    @property
    def holder(self) -> int:
        """The pid of the process that holds the namespace."""
        return self._holder.pid

    def seen(self, path: Path) -> Path:
        """Give a path on the disk as this process can open it."""
        return Path(f"/proc/{self._holder.pid}/root{path}")

    def mount(self) -> None:
        """Mount what the device holds; ext4 plays its journal first."""
        # With the first error the file system is read-only, as distributions mount it.
        self._do("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.path))
        os.chmod(self.seen(self.path), 0o777)

    def unmount(self) -> None:
        """Unmount the disk, on which nothing may be open any more; without power, nothing reaches it by that."""
        self._do("umount", str(self.path))

    def sync(self) -> None:
        """Have all that was written so far reach the device."""
        self._do("sync", "--file-system", str(self.path))

    def cut(self) -> None:
        """Cut its power: what has not reached the device by now never will. `unmount` and `mount` bring it back."""
        with self._opened() as folder:
            fcntl.ioctl(folder, _SHUTDOWN, _WITHOUT_THE_JOURNAL)

    def fail(self) -> None:
        """Have ext4 take the disk for damaged, and so for read-only from now on, until it is mounted anew."""
        with self._opened() as folder:
            device = os.fstat(folder).st_dev
        name = os.path.basename(os.path.realpath(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("a test's")

    def fill(self) -> None:
        """Leave no room on it, to root neither; `empty` gives it back."""
        with self.seen(self.path / "filling").open("wb") as file:
            size = 1 << 24
            while size >= _BLOCK:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
                except OSError:
                    size //= 2

    def empty(self) -> None:
        """Give the room back that `fill` took."""
        self.seen(self.path / "filling").unlink()

    def close(self) -> None:
        """Let go of it; nothing may run in its namespace any more."""
        self._holder.communicate(timeout=_SECONDS)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        folder = os.open(self.seen(self.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield folder
        finally:
            os.close(folder)

    def _do(self, *command: str) -> None:
        subprocess.run([*self.prefix, *command], check=True, timeout=_SECONDS)


@contextlib.contextmanager
def disk(folder: Path, mebibytes: int) -> Iterator[Disk]:
    """Give a disk in a folder for a while; what is left of it afterwards is its files in the folder."""
    made = Disk(folder, mebibytes)
    try:
        yield made
    finally:
        made.close()
