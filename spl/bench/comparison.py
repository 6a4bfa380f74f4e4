"""What a person would confine a command with instead, where it is installed, beside bare bubblewrap and what is ours.

Each runs the same two commands, one at a time and in turn with all others, with a home of its own that is thrown away.
Nothing is installed, and nothing is said here of what each of them confines.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import statistics
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from spl import __version__
from spl.bench import floors, processes
from spl.bench.apparatus import WHOLE
from spl.bench.rows import F2, F3, Measured, rounded
from spl.bench.starts import Starts
from spl.errors import HostRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spl.bench.apparatus import Apparatus

Json = dict[str, Any]

OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "firejail": ("--quiet", "--net=none", "--"),
    "nsjail": ("-Mo", "--quiet", "--chroot", "/", "--"),
    "srt": ("--",),
    "codex": ("sandbox", "--"),
}
"""Each by its command, with the words that come before what it confines: no network, and its defaults else."""

_BARE: Final = "bubblewrap"
_ROUNDS: Final = 40
_QUICK_ROUNDS: Final = 6
_TRIAL_SECONDS: Final = 30.0
_SAID: Final = 200
"""How many characters of what a tool says of itself are told."""


@dataclass
class _Contender:
    """One command, and how many milliseconds it took each time; `floor` is the one it is divided by."""

    name: str
    version: str
    command: Sequence[str]
    shown: str
    floor: str
    samples: list[float] = field(default_factory=list)
    reason: str | None = None


def measure(bench: Apparatus) -> list[Json]:
    """Give a row for each command of each tool; one that is not here, or fails, has its reason in place of figures."""
    environ = _environ(f"{bench.folder}/others")
    contenders = _contenders(bench, environ)
    for each in contenders:
        each.reason = each.reason or _refused(each.command, environ)
    cold = Starts(bench.cold)
    kinds = {"cold": cold, "warm": Starts(bench.warm)}
    for _ in bench.times("comparison", _ROUNDS if bench.size is WHOLE else _QUICK_ROUNDS):
        for each in contenders:
            if each.reason is None:
                _take(each, environ)
        for kind in kinds.values():
            kind.make()
    middle = {
        each.floor: statistics.median(each.samples)
        for each in contenders
        if each.name == _BARE and each.reason is None
    }
    rows = [
        _row(each.name, each.version, each.shown, each.samples, middle.get(each.floor), each.reason)
        for each in contenders
    ]
    starts = {
        "cold": "POST /v1/work/loop, a cold start",
        "warm": "POST /v1/work/loop, a warm start",
    }
    rows += [
        _row("spl", __version__, starts[name], kind.seen, middle.get(F3), None)
        for name, kind in kinds.items()
    ]
    return rows


def _contenders(bench: Apparatus, environ: Mapping[str, str]) -> list[_Contender]:
    facts = bench.cold.facts
    bodies = {F2: bench.floors[F2][-1:], F3: [facts["python"], "-I", "-S", "-c", "pass"]}
    found = [
        _Contender(
            "bubblewrap", facts["bubblewrap_version"], bench.floors[floor], f"bwrap … -- {_said(body)}", floor
        )
        for floor, body in bodies.items()
    ]
    for name, words in OTHERS.items():
        path = shutil.which(name)
        version = _version(path, environ)
        for floor, body in bodies.items():
            shown = _said([name, *words, *body])
            absent = None if path else "not installed"
            found.append(
                _Contender(name, version, [path or name, *words, *body], shown, floor, reason=absent)
            )
    ours = ["profile", "try", "--no-trace", "worker", "--"]
    found += [
        _Contender(
            "spl",
            __version__,
            [*processes.python(), "-m", "spl.cli.main", *ours, *body],
            _said(["spl", *ours, *body]),
            floor,
        )
        for floor, body in bodies.items()
    ]
    return found


def _said(words: Sequence[str]) -> str:
    return shlex.join(
        [os.path.basename(word) if word.startswith("/") and word != "/" else word for word in words]
    )


def _environ(folder: str) -> dict[str, str]:
    """Give an environment in which what a tool leaves behind lies in a folder; it makes that folder."""
    home, temporary = f"{folder}/home", f"{folder}/temporary"
    for path in (home, temporary):
        os.makedirs(path, mode=0o700)
    return {**processes.environ(), "HOME": home, "TMPDIR": temporary}


def _refused(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Run a command once; gives why it cannot be measured, in a line, or None where it can."""
    try:
        status, _, complaint = _tried(command, environ)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if status == 0:
        return None
    said = complaint.strip().splitlines()
    return f"it ended with {status}{f': {said[-1][:_SAID]}' if said else ''}"


def _version(path: str | None, environ: Mapping[str, str]) -> str:
    """Give what a tool says of its version, in the last word of its first line."""
    if path is None:
        return ""
    try:
        status, said, _ = _tried([path, "--version"], environ)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = said.split("\n", 1)[0].split()
    return words[-1][:_SAID] if words and status == 0 else ""


def _tried(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command once in a session of its own, of which nothing goes on; gives its status and what it said.

    Raises `OSError` and `subprocess.TimeoutExpired`.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        env=environ,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    ) as process:
        try:
            said, complaint = process.communicate(timeout=_TRIAL_SECONDS)
        finally:
            # Of a tool that is set-user-id nothing may be ours to kill.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said.decode("utf-8", "replace"), complaint.decode("utf-8", "replace")


def _take(contender: _Contender, environ: Mapping[str, str]) -> None:
    try:
        contender.samples.append(floors.spawned([*contender.command], environ, quiet=True))
    except (HostRefused, OSError) as error:
        contender.reason = str(error)


def _row(
    name: str, version: str, command: str, samples: Sequence[float], floor: float | None, reason: str | None
) -> Json:
    measured = None if reason or not samples else Measured.of(samples, floor=floor)
    return {
        "name": name,
        "version": version or None,
        "command": command,
        "value": rounded(None if measured is None else measured.value),
        "unit": "ms",
        "p95": rounded(None if measured is None else measured.p95),
        "samples": 0 if measured is None else measured.samples,
        "ratio": rounded(None if measured is None or floor is None else measured.value / floor),
        **({"reason": reason} if reason else {}),
    }
