"""A page's commands run as a reader would type them: one shell, a home and a network of its own, real daemons."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spl.home import HOSTED_RUN
from tests.end_to_end.daemon import wait_until_gone
from tests.network import OWN_NETWORK

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.docs.blocks import Block

SECONDS: Final = 100
"""How long a page's commands may take before the page has failed."""

# 'spl serve' in the foreground would never return: it is left in the background once it has announced itself, on a
# pipe that the shell holds open for as long as it lives. Its last line is the one about work loops.
_PRELUDE: Final = """\
set -e -o pipefail
__serve() {
    mkfifo "$__folder/announced"
    exec {__said}<>"$__folder/announced"
    spl serve "$@" >&$__said &
    local line=
    until [[ $line == *'work loops'* ]]; do
        read -r -t 60 line <&$__said
        printf '%s\\n' "$line"
    done
    rm "$__folder/announced"
}
"""
_FOREGROUND: Final = re.compile(r"^spl serve(?![^\n#]*--daemon)", re.MULTILINE)

# Holds its namespaces open for as long as its standard input is.
_HOLDER: Final = "echo up && read -r _"


@dataclass
class Ran:
    """What came of a page's blocks: those that ran to their end, and everything that is wrong."""

    done: int = 0
    wrong: list[str] = field(default_factory=list)


def run(blocks: Sequence[Block]) -> Ran:
    """Run blocks in order in one shell, stop the daemon they leave in their home, and say what else they left."""
    with tempfile.TemporaryDirectory(prefix="spl-docs-", dir="/tmp") as name, _network() as network:
        folder = Path(name)
        home = folder / "home"
        for each in (home, folder / "tmp", folder / "said"):
            each.mkdir(mode=0o700)
        inside = _Inside(network, home, folder / "tmp")
        ran = Ran()
        try:
            _run(blocks, inside, folder / "said", ran)
            _stop(inside, ran)
        finally:
            _clear(inside, ran)
        return ran


@dataclass(frozen=True)
class _Inside:
    """Where a page's commands run: the process that holds their network, their home and their temporary folder."""

    network: int
    home: Path
    temporary: Path

    def begin(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a command there, with nothing to read, what it says kept for `communicate`."""
        path = (
            f"{os.path.dirname(sys.executable)}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        )
        return subprocess.Popen(
            ["nsenter", f"--net=/proc/{self.network}/ns/net", "--", *command],
            env={"PATH": path, "HOME": str(self.home), "TMPDIR": str(self.temporary), "LANG": "C.UTF-8"},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def processes(self) -> dict[int, str]:
        """Give what runs in its network now, by pid: its workers' monitors do, its holder is left out."""
        network = os.readlink(f"/proc/{self.network}/ns/net")
        found = {}
        for pid in (int(each) for each in os.listdir("/proc") if each.isdigit()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if pid != self.network and os.readlink(f"/proc/{pid}/ns/net") == network:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    found[pid] = command.decode(errors="replace")
        return found


@contextlib.contextmanager
def _network() -> Iterator[int]:
    """Give the pid of a process that holds a new network namespace open."""
    with subprocess.Popen(
        [*OWN_NETWORK, "sh", "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "up\n", "no network namespace could be made: this needs root"
        try:
            yield holder.pid
        finally:
            holder.stdin.close()


def _run(blocks: Sequence[Block], inside: _Inside, said: Path, ran: Ran) -> None:
    script = [f"__folder={said}\n{_PRELUDE}"]
    for number, block in enumerate(blocks):
        script.append(
            f"exec >{said}/{number}.out 2>{said}/{number}.err\n{_FOREGROUND.sub('__serve', block.text)}"
        )
    script.append(f"exec >{said}/{len(blocks)}.out\n")
    (said / "script").write_text("".join(script), encoding="utf-8")
    shell = inside.begin(["bash", str(said / "script")])
    try:
        outside, _ = shell.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, 9)
        outside, _ = shell.communicate()
        outside += f"(killed: it had not ended after {SECONDS} seconds)"
    begun = [number for number in range(len(blocks) + 1) if (said / f"{number}.out").exists()]
    ran.done = max(begun, default=0)
    if shell.returncode != 0:
        ran.wrong.append(_failed(blocks[ran.done], said / str(ran.done), shell.returncode, outside))


def _failed(block: Block, said: Path, status: int, outside: str) -> str:
    streams = [
        f"--- {title}\n{path.read_text(encoding='utf-8', errors='replace') if path.exists() else ''}"
        for title, path in (("stdout", said.with_suffix(".out")), ("stderr", said.with_suffix(".err")))
    ]
    return "\n".join((f"{block.page}:{block.line}: exit status {status} of", block.text, *streams, outside))


def _stop(inside: _Inside, ran: Ran) -> None:
    """Stop the daemon in the page's home, if one runs there, as its reader would."""
    pid = inside.home / ".syncro" / "run" / "spl.pid"
    if pid.exists() and pid.read_text():
        stopping = inside.begin(["spl", "stop"])
        output, _ = stopping.communicate(timeout=SECONDS)
        if stopping.returncode != 0:
            ran.wrong.append(f"'spl stop' at the end: {output}")


def _clear(inside: _Inside, ran: Ran) -> None:
    """Name what was left behind, and end it: nothing of a page may reach the next."""
    while left := inside.processes():
        for pid, command in left.items():
            ran.wrong.append(f"left running: {pid} {command}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
            wait_until_gone(pid)
    homes = [inside.home / ".syncro", *(each.parent.parent for each in inside.temporary.rglob("run/spl.pid"))]
    for home in homes:
        # As spl.home names it.
        hosted = Path(HOSTED_RUN, hashlib.sha256(os.fsencode(home)).hexdigest()[:16])
        if hosted.exists():
            ran.wrong.append(f"left behind: {hosted} of {home}")
            shutil.rmtree(hosted)
