"""A systemd that has booted as process 1 of namespaces of its own, over this host's files; see boot.sh."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from escape.installation import Installation

SECONDS = 30
"""How long anything in the machine may take before the test fails."""

_NAMESPACES = ("--pid", "--mount", "--ipc", "--uts", "--net", "--fork", "--kill-child")
_BOOT = Path(__file__).with_name("boot.sh")


@dataclass
class Machine:
    """One that runs, by the pid of its first process as this host sees it."""

    pid: int

    @contextlib.contextmanager
    def beside(self, *command: str) -> Iterator[IO[str]]:
        """Have a command run in the machine as its root for a while; gives what it prints."""
        with subprocess.Popen(self._inside(command), text=True, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            try:
                yield process.stdout
            finally:
                # Also when the test fails: one that never ends by itself would be waited for until its time is up.
                process.terminate()

    def run(
        self, *command: str, given: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine as its root to its end; unless told otherwise, it must succeed."""
        done = subprocess.run(
            self._inside(command), input=given, text=True, capture_output=True, timeout=2 * SECONDS
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def write(self, path: str, text: str) -> None:
        """Write a file of the machine's, readable to all as in /etc."""
        self.run(
            "sh", "-c", 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod 0644 "$1"', "sh", path, given=text
        )

    def _inside(self, command: Sequence[str]) -> list[str]:
        clean = ["env", "-i", "PATH=/opt/spl/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"]
        return ["nsenter", f"--target={self.pid}", "--all", *clean, *command]


@contextlib.contextmanager
def booted(installed: Installation) -> Iterator[Machine]:
    """Boot a machine in which `installed` is at /opt/spl; all of it is gone afterwards.

    Must be root's. Fails, with what the machine said, if it has not booted in time.
    """
    folder = Path(tempfile.mkdtemp(prefix="spl-machine-"))
    group = _cgroups() / folder.name
    group.mkdir()
    notify, console = folder / "notify", folder / "console"
    root = folder / "files"
    root.mkdir()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, console.open("w") as log:
            told.bind(str(notify))
            told.settimeout(SECONDS)
            # In the group before its cgroup namespace is made, so that this is all it sees; and alone there, or systemd
            # could have no controllers: unshare stays outside and waits.
            enter = ["sh", "-c", 'echo 0 >"$0" && exec unshare --cgroup "$@"', str(group / "cgroup.procs")]
            boot = [str(_BOOT), str(root), installed.folder, os.path.realpath(sys.executable), str(notify)]
            process = subprocess.Popen(
                ["unshare", *_NAMESPACES, *enter, "sh", *boot, str(console)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                _wait_for_boot(told, process, console)
                # Else systemd goes on telling it, and where its queue is short hangs once that is full.
                told.close()
                yield Machine(int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()))
            finally:
                (group / "cgroup.kill").write_text("1")
                process.wait(SECONDS)
    finally:
        _remove(group)
        shutil.rmtree(folder)


def _wait_for_boot(told: socket.socket, process: subprocess.Popen[bytes], console: Path) -> None:
    """Wait until systemd says that it has started all it was to start (sd_notify(3))."""
    ended = os.pidfd_open(process.pid)
    try:
        said = ""
        while not re.search("^READY=1$", said, re.MULTILINE):
            ready, _, _ = select.select([told.fileno(), ended], [], [], SECONDS)
            assert ready == [told.fileno()], f"systemd has not booted here:\n{said}\n{console.read_text()}"
            said = told.recv(4096).decode()
    finally:
        os.close(ended)


def _cgroups() -> Path:
    """Give the folder of the host's own version 2 cgroups."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(mounted.split()[4])
    raise AssertionError("this host has no cgroup2 mounted, without which systemd does not boot")


def _remove(group: Path) -> None:
    """Remove a group and those below it, once nothing is in them any more."""
    with (group / "cgroup.events").open() as events:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        while "populated 1" in events.read():
            assert poll.poll(SECONDS * 1000), f"{group} is still populated after {SECONDS} s"
            events.seek(0)
    for path, _, _ in os.walk(group, topdown=False):
        os.rmdir(path)
