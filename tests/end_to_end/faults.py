"""Hosts with one thing wrong: each a command that makes it so for what it starts, and for nothing else.

Every command runs as root and changes namespaces, limits or capabilities of its own; the host stays as it is.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.end_to_end.daemon import Shape

# Runs a command in a user namespace that holds every uid, where a limit of the kernel's on namespaces is another: the
# limits in /proc/sys/user are those of the reader's own user namespace (namespaces(7)).
_LIMITED = """
import ctypes, os, sys
apart = os.pipe()
child = os.fork()
if child == 0:
    # Still where the test is, and so allowed to map more than the one uid.
    os.read(apart[0], 1)
    for name in ("gid_map", "uid_map"):
        with open(f"/proc/{os.getppid()}/{name}", "w") as file:
            file.write("0 0 65536")
    os._exit(0)
assert ctypes.CDLL(None).unshare(0x10000000) == 0
os.write(apart[1], b"x")
assert os.waitpid(child, 0)[1] == 0
with open(f"/proc/sys/user/{sys.argv[1]}", "w") as file:
    file.write(sys.argv[2])
os.execvp(sys.argv[3], sys.argv[3:])
"""

# Runs a command under a filter like that of a container's manager: no namespace, and clone3, whose flags a filter
# cannot read, as unknown.
_CONTAINED = """
import ctypes, errno, os, sys
import pyseccomp
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
found = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
for call in ("unshare", "setns", "mount"):
    found.add_rule(pyseccomp.ERRNO(errno.EPERM), call)
found.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
new_user = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 0x10000000, 0x10000000)
found.add_rule(pyseccomp.ERRNO(errno.EPERM), "clone", new_user)
found.load()
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True)
class Fault:
    """One thing wrong: what the doctor must find, and the command that makes it so, given a folder of the test's."""

    finding: str
    layer: str
    observed: str
    remedy: str
    prefix: Callable[[Path], list[str]]
    environment: Callable[[Path], Mapping[str, str]] = lambda _: {}


def in_mounts(*steps: str) -> list[str]:
    """Give a prefix that runs a command in a mount namespace of its own, after some shell steps."""
    return ["unshare", "-m", "sh", "-c", " && ".join((*steps, 'exec "$@"')), "sh"]


def become(shape: Shape) -> list[str]:
    """Give the end of a prefix after which a command runs as the shape's user."""
    if not shape.uid:
        return []
    return ["setpriv", f"--reuid={shape.uid}", f"--regid={shape.uid}", "--clear-groups", "--"]


def limited(name: str, value: int) -> list[str]:
    """Give a prefix under which /proc/sys/user/max_<name>_namespaces is another."""
    return [sys.executable, "-c", _LIMITED, f"max_{name}_namespaces", str(value)]


def hidden(path: str) -> list[str]:
    """Give a prefix under which a file is there and is nothing."""
    return in_mounts(f"mount --bind /dev/null {os.path.realpath(path)}")


def _instead(path: str, mode: int, text: str | None = None) -> Callable[[Path], list[str]]:
    """Put another file in a program's place: a script, or else a copy of it, with a mode."""

    def prefix(folder: Path) -> list[str]:
        other = folder / "other"
        other.write_bytes(Path(path).read_bytes() if text is None else text.encode())
        other.chmod(mode)
        return in_mounts(f"mount --bind {other} {os.path.realpath(path)}")

    return prefix


def _closed(folder: Path) -> Mapping[str, str]:
    """Put a bubblewrap on the PATH whose folder nobody but root can pass."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "bwrap").write_bytes(Path("/usr/bin/bwrap").read_bytes())
    (closed / "bwrap").chmod(0o755)
    return {"PATH": f"/usr/bin:/bin:{closed}"}


def _closed_library(folder: Path) -> list[str]:
    """Close the interpreter's library to all but root: another folder in its place, with a link to each file of it."""
    library, real = sysconfig.get_path("stdlib"), folder / "library"
    real.mkdir()
    return in_mounts(
        f"mount --bind {library} {real}",
        f"mount -t tmpfs -o mode=0700 spl-test {library}",
        f"ln -s {real}/* {library}/",
    )


_LIBSECCOMP = f"/usr/lib/{os.uname().machine}-linux-gnu/libseccomp.so.2"
_PYTHON = os.path.realpath(sys.executable)

EITHER: Mapping[str, Fault] = {
    "no bubblewrap": Fault(
        "bubblewrap", "sandbox", "no bwrap command", "install the package 'bubblewrap'",
        lambda _: hidden("/usr/bin/bwrap"),
    ),
    "no user namespace": Fault(
        "namespace limits", "user_namespace", r"user\.max_user_namespaces is 0", r"sysctl user\.max_user_namespaces=",
        lambda _: limited("user", 0),
    ),
    "a container": Fault(
        "layer user_namespace", "user_namespace", "inside of a container", "let the container make namespaces",
        lambda _: [sys.executable, "-c", _CONTAINED],
    ),
    "no core limit of 1": Fault(
        "limits", "limits", "RLIMIT_CORE is limited to 0", "raise the daemon's own hard limits",
        lambda _: ["prlimit", "--core=0:0", "--"],
    ),
}  # fmt: skip
"""What can be wrong in either shape."""

HOSTED: Mapping[str, Fault] = {
    "an old bubblewrap": Fault(
        "bubblewrap", "sandbox", r"/usr/bin/bwrap \(0\.4\.0\) does not know --block-fd", r"install bubblewrap 0\.8\.0",
        _instead("/usr/bin/bwrap", 0o755, "#!/bin/sh\necho bubblewrap 0.4.0; echo --args --seccomp\n"),
    ),
    "a setuid bubblewrap": Fault(
        "bubblewrap", "sandbox", "is setuid", "chmod u-s,g-s /usr/bin/bwrap", _instead("/usr/bin/bwrap", 0o4755)
    ),
    "a bubblewrap in a closed folder": Fault(
        "bubblewrap", "separate_user", "/closed, which is closed to others", "install bubblewrap system-wide",
        lambda _: hidden("/usr/bin/bwrap"), _closed,
    ),
    "no network namespace": Fault(
        "namespace limits", "network", r"user\.max_net_namespaces is 0", r"sysctl user\.max_net_namespaces=",
        lambda _: limited("net", 0),
    ),
    "an interpreter for root alone": Fault(
        "interpreter", "sandbox", "is closed to others", "install the package 'python3'", _instead(_PYTHON, 0o711)
    ),
    "an interpreter whose library is for root alone": Fault(
        "interpreter", "sandbox", r"/python3\.\d+ is closed to others", "install the package 'python3'", _closed_library
    ),
    "an env for root alone": Fault(
        "interpreter", "environment", "/usr/bin/env is closed to others", "chmod a[+]rx /usr/bin/env",
        _instead("/usr/bin/env", 0o700),
    ),
    "no libseccomp": Fault(
        "libseccomp", "syscalls", "it cannot be loaded", "install the package 'libseccomp2'",
        lambda _: hidden(_LIBSECCOMP),
    ),
    "a root that may not change its uid": Fault(
        "rights", "separate_user", "lacks CAP_SETUID", "give the daemon these capabilities",
        lambda _: ["setpriv", "--bounding-set=-setuid", "--inh-caps=-setuid", "--"],
    ),
    "a root that may not look at another's process": Fault(
        "rights", "separate_user", "lacks CAP_SYS_PTRACE", "give the daemon these capabilities",
        lambda _: ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "--"],
    ),
}  # fmt: skip
"""What can be wrong for root's daemon alone, or is the same for both."""
