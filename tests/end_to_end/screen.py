"""A real terminal, tmux's: keys are sent to it, and what it shows is read when it has changed."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Screen:
    """A terminal in which an interactive bash runs, without anything of this host's configuration."""

    def __init__(self, folder: str, changed: int) -> None:
        self._folder = folder
        self._changed = changed

    def tmux(self, *arguments: str) -> str:
        """Give a command to this terminal's own tmux server; gives what it prints."""
        command = ["tmux", "-S", f"{self._folder}/socket", "-f", "/dev/null", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        return done.stdout

    def type(self, text: str) -> None:
        """Type a line and Enter."""
        self.tmux("send-keys", "-l", text)
        self.tmux("send-keys", "Enter")

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self.tmux("send-keys", *keys)

    def shown(self) -> str:
        """Give what is on the screen."""
        return self.tmux("capture-pane", "-p")

    def until(self, *texts: str, gone: str | None = None) -> str:
        """Wait until the screen shows texts, and something no more; gives it."""
        return self._until(
            lambda seen: all(text in seen for text in texts) and (gone is None or gone not in seen), texts
        )

    def flag(self, name: str) -> bool:
        """Tell a flag of the terminal, as tmux names it: `cursor_flag`, `alternate_on`, `wrap_flag`."""
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip() == "1"

    def job(self) -> int:
        """Give the pid of what the shell runs."""
        shell = self.tmux("display-message", "-p", "#{pane_pid}").strip()
        with open(f"/proc/{shell}/task/{shell}/children") as children:
            (job,) = children.read().split()
        return int(job)

    def _until(self, holds: Callable[[str], bool], wanted: object) -> str:
        # Ages grow, so that a screen changes for ever.
        end = time.monotonic() + SECONDS
        while not holds(seen := self.shown()):
            ready, _, _ = select.select([self._changed], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the screen does not come to show {wanted}:\n{seen}"
            os.read(self._changed, 1 << 16)
        return seen


@contextmanager
def terminal(environ: Mapping[str, str], *, width: int = 120, height: int = 30) -> Iterator[Screen]:
    """Give a terminal of this size, whose shell has this environment and nothing else."""
    with tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp") as folder:
        fifo = f"{folder}/changed"
        os.mkfifo(fifo)
        # For reading and writing, so that it never ends: fifo(7).
        changed = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        screen = Screen(folder, changed)
        own = {
            "PATH": "/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "PS1": "$ ",
            "HOME": "/nonexistent",
            "HISTFILE": "/dev/null",
            **environ,
        }
        shell = ["env", "-i", *(f"{name}={value}" for name, value in own.items()), "TERM=screen-256color"]
        command = shlex.join([*shell, "bash", "--norc", "--noprofile", "-i"])
        try:
            screen.tmux("new-session", "-d", "-x", str(width), "-y", str(height), command)
            screen.tmux("pipe-pane", f"cat > {fifo}")
            yield screen
        finally:
            subprocess.run(
                ["tmux", "-S", f"{folder}/socket", "kill-server"], capture_output=True, timeout=SECONDS
            )
            os.close(changed)
