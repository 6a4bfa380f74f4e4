"""The whole suite: a process for each shape that this host can have, and what both found, put together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

from bwrap.uids import has_name
from escape import installation
from spl.errors import EscapeUnfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Json = dict[str, Any]
    Heard = Callable[[str, Json], None]

SHAPES: Final = ("same-user", "hosted")

# Below the uids of hosted workers, and free of systemd's ranges.
_ORDINARY: Final = range(60599, 60500, -1)
_SAID: Final = 4000
_SECONDS: Final = 60

# What a person's environment may hold when a daemon is started; no worker may have it.
PLANTED: Final = {"ANTHROPIC_API_KEY": "spl-canary-env-key", "SPL_TOKEN": "spl-canary-env-token"}


@dataclass
class Found:
    """What was found: `hosts` by shape, `rows` and `mutations` as they stand in the report, `lacks` as told."""

    hosts: dict[str, Json] = field(default_factory=dict)
    rows: list[Json] = field(default_factory=list)
    lacks: list[Json] = field(default_factory=list)
    mutations: list[Json] = field(default_factory=list)

    @property
    def red(self) -> list[Json]:
        """The rows that are not as they must be."""
        return [row for row in self.rows if not row["ok"]]

    @property
    def unnoticed(self) -> list[Json]:
        """The layers that were taken away and turned none of their rows red."""
        return [each for each in self.mutations if not each["ok"]]

    def sort(self) -> None:
        """Put everything into an order that does not depend on which came first."""
        self.hosts = dict(sorted(self.hosts.items()))
        self.rows.sort(key=lambda row: (row["class"], row["id"], row["shape"], row["profile"]))
        self.lacks.sort(key=lambda each: (each["id"], each["shape"], each["profile"]))
        self.mutations.sort(key=lambda each: (each["layer"], each["name"], each["shape"], each["profile"]))


def possible() -> list[str]:
    """Give the shapes that can be tried by this user: both as root, same-user otherwise."""
    return list(SHAPES) if os.geteuid() == 0 else ["same-user"]


def run(
    shapes: Sequence[str], profiles: Sequence[str], only: Sequence[str], heard: Heard = lambda *_: None
) -> Found:
    """Make every attempt, or `only` those of some classes or ids, in each shape under each profile.

    `heard` is told what each child says, with its shape. Raises `EscapeUnfinished` when one does not come to its end.
    """
    return _all(shapes, {"do": "run", "profiles": list(profiles), "only": list(only)}, heard)


def mutate(shapes: Sequence[str], only: Sequence[str], heard: Heard = lambda *_: None) -> Found:
    """Take every layer, or `only` those named, away in each shape; as `run`."""
    return _all(shapes, {"do": "mutate", "only": list(only)}, heard)


def _ordinary() -> int:
    """Give an ordinary uid that is nobody's on this host; raises `EscapeUnfinished`."""
    for uid in _ORDINARY:
        if not has_name(uid):
            return uid
    raise EscapeUnfinished(
        "each uid from 60501 to 60599 is somebody's, and the same-user shape needs one that is not"
    )


def _all(shapes: Sequence[str], asked: Json, heard: Heard) -> Found:
    found, lock = Found(), threading.Lock()

    def hear(shape: str, said: Json) -> None:
        with lock:
            if "host" in said:
                found.hosts[shape] = said["host"]
            for name, kept in (("row", found.rows), ("lack", found.lacks), ("mutation", found.mutations)):
                if name in said:
                    kept.append(said[name])
            heard(shape, said)

    with ExitStack() as stack:
        children = [_Child(stack, shape, asked) for shape in shapes]
        followers = [threading.Thread(target=child.follow, args=(hear,)) for child in children]
        for follower in followers:
            follower.start()
        for follower in followers:
            follower.join()
        for child in children:
            child.require_done()
    found.sort()
    return found


class _Child:
    """One shape's process; the stack ends it."""

    def __init__(self, stack: ExitStack, shape: str, asked: Json) -> None:
        self._shape = shape
        self._done = False
        other = _ordinary() if shape == "same-user" and os.geteuid() == 0 else None
        self._log: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        try:
            installed = installation.here()
            if other is not None:
                folder = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix=f"spl-{os.getpid()}-", dir="/tmp")
                )
                installed = installation.copy(folder)
            self._process = subprocess.Popen(
                [*installed.command, "-m", "escape.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**installed.env, **PLANTED},
                cwd="/",
                user=other,
                group=other,
                extra_groups=None if other is None else [],
                # It becomes the leader of a session with a terminal of its own.
                start_new_session=True,
            )
        except OSError as error:
            raise EscapeUnfinished(f"the shape {shape} cannot be tried{_as(other)}: {_why(error)}") from None
        stack.callback(self._end)
        if self._process.stdin is not None:
            # Left open: its end tells the child that nobody hears it any more. One that has ended is told of later.
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(asked).encode() + b"\n")
                self._process.stdin.flush()

    def follow(self, hear: Heard) -> None:
        """Hear what it says to its end."""
        if self._process.stdout is None:
            return
        for line in self._process.stdout:
            said = json.loads(line)
            self._done = self._done or bool(said.get("done"))
            hear(self._shape, said)
        self._process.wait()

    def require_done(self) -> None:
        """Raise `EscapeUnfinished` unless it came to its end."""
        code = self._process.returncode
        if not self._done or code != 0:
            self._log.seek(0)
            lines = self._log.read()[-_SAID:].decode("utf-8", "replace").strip().splitlines()
            # The daemon's log is JSON; what the child says of itself is not.
            last = next(
                (line for line in reversed(lines) if line and not line.startswith("{")), "it said nothing"
            )
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
            raise EscapeUnfinished(
                f"the suite did not come to its end in the shape {self._shape}, {how}: {last}"
            )

    def _end(self) -> None:
        if self._process.stdin is not None:
            # The child ends with it, and cleans up; see `child`.
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _as(uid: int | None) -> str:
    return (
        ""
        if uid is None
        else f" as uid {uid}, which only a root can become that may ('--shape hosted' does without)"
    )


def _why(error: OSError) -> str:
    """Say why in few words: what goes wrong with a whole folder is told of each file in it."""
    if isinstance(error, shutil.Error):
        return f"what is installed cannot be copied into /tmp: {error.args[0][0][2]}"
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
