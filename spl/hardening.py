"""The daemon's own protection: nothing of its memory for others, no secret in its environment, no orphan left.

See prctl(2), core(5) and proc(5).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import sys
from typing import TYPE_CHECKING

from spl.errors import HostUnsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_GET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 3, 36

# The client's token, what providers' own tools read their keys from, and whatever else calls itself a secret: the
# daemon reads none of them. A provider's key belongs in `secrets/`.
_SECRET = re.compile(
    r"(?:.*_)?(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY(?:_ID)?|SECRET_KEY|PRIVATE_KEY)(?:_.*)?",
    re.IGNORECASE,
)
# A proxy's or a database's address with a password in it.
_PASSWORD = re.compile(r"://[^\s/:@]*:[^\s/]+@")


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Give the names of variables that hold, by their name or as a password in an address, a credential."""
    return sorted(
        name
        for name, value in environ.items()
        if name == "SPL_TOKEN"
        or (not name.startswith("SPL_") and (_SECRET.fullmatch(name) or _PASSWORD.search(value)))
    )


def drop_secrets() -> None:
    """Start this program anew without credentials in its environment, if it has any.

    Deleting a variable would leave it in the process's initial environment block, where /proc/<pid>/environ and a
    dump of memory show it; only execve(2) gives a block without it.
    """
    names = secrets_in(os.environ)
    if names:
        clean = {name: value for name, value in os.environ.items() if name not in names}
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], clean)  # noqa: S606 - ourselves


def keep_standard() -> None:
    """Have descriptors 0, 1 and 2 lead somewhere: a socket of ours must not become a child's standard error.

    Python itself takes a standard stream that was closed for none, and stays with that.
    """
    # The lowest number that is free is the one given out (open(2)).
    while (found := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < 3:
        os.set_inheritable(found, True)
    os.close(found)


def protect() -> None:
    """Make this process undumpable, without a core, and the reaper of what its children leave behind.

    What it makes from now on is its user's alone (umask(2)), and what it was started with goes on to no child. It
    also takes all the descriptors its hard limit allows: each run holds a few.

    After this another process of the same user cannot read its memory, environment or program link. Raises
    `HostUnsupported` if the kernel refuses.
    """
    os.umask(0o077)
    _keep_descriptors()
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_CHILD_SUBREAPER, 1)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise HostUnsupported(
                f"the kernel refuses prctl option {option}: {os.strerror(ctypes.get_errno())}"
            )
    if libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise HostUnsupported("the kernel keeps this process dumpable")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # One byte, not zero: a limit of 0 is ignored where cores go to a pipe (core(5)).
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    core = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (core, core))


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; `parent` is that thread's process.

    Ends this process at once where the parent has gone before. Raises `HostUnsupported` if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise HostUnsupported(
            f"the kernel refuses prctl option {_PR_SET_PDEATHSIG}: {os.strerror(ctypes.get_errno())}"
        )
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _keep_descriptors() -> None:
    """Have every descriptor but 0, 1 and 2 closed in what this process starts.

    Python opens its own that way (PEP 446). Left are those it was started with: a shell's, a supervisor's.
    """
    for name in os.listdir("/proc/self/fd"):
        # The one that this listing used is gone by now.
        with contextlib.suppress(OSError):
            if int(name) > 2:
                os.set_inheritable(int(name), False)
