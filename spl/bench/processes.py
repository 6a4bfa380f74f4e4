"""Processes that are measured or measure for us, each ended with the context it was started in."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any, Final

from spl.client import Client
from spl.decisions import decide
from spl.errors import HostRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = dict[str, Any]

SECONDS: Final = 60.0
"""How long anything that is waited for may take."""

_SAID: Final = 400
_LOOK_SECONDS: Final = 0.005
_STANDBY_SECONDS: Final = 5.0
"""How long a daemon may take until it has a standby worker more."""

CALLS: Final = 64
"""How many calls each run of the helper's proposes."""

CONSTANT: Final = "constant.sock"
"""The helper's socket, in its home's folder `run`, on which the answer is the same whatever is asked."""

WATCHED: Final = "th_bench_watched"
"""The thread of the records whose way to a watcher is timed."""

VERIFY_GOAL: Final = (
    "Record a note whose text is exactly: transport-check . "
    "Use the record_note tool with only the text argument. Then stop."
)


def python() -> list[str]:
    """Give the command of this interpreter, which takes no module from where it happens to be started."""
    return [sys.executable, "-P"]


def environ() -> dict[str, str]:
    """Give this environment without what tells a daemon of another home, settings or secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in {"PATH", "PYTHONPATH", "PYTHONWARNINGS", "TMPDIR", "LANG"} or name.startswith("LC_")
    }


class Ends:
    """The threads of runs that have ended, as a daemon's log names them, with the time at which each line came."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self.at: dict[str, int] = {}
        self._last = b""
        self._closed = False
        self._changed = threading.Condition()
        self._follower = threading.Thread(target=self._follow, args=(stream,), daemon=True)
        self._follower.start()

    def wait(self, thread: str) -> int:
        """Wait until a run has ended; gives the time, by `time.monotonic_ns`. Raises `HostRefused`."""
        with self._changed:
            self._changed.wait_for(lambda: thread in self.at or self._closed, SECONDS)
            if thread not in self.at:
                raise HostRefused(f"the run {thread} of the daemon that is measured did not end{self.last()}")
            return self.at[thread]

    def last(self) -> str:
        """Give the last line of the log, as the end of a sentence."""
        said = self._last.decode("utf-8", "replace").strip()[-_SAID:]
        return f"; the last it said: {said}" if said else ""

    def join(self) -> None:
        """Wait until the log has been read to its end."""
        self._follower.join(SECONDS)

    def _follow(self, stream: IO[bytes] | None) -> None:
        for line in stream or ():
            now = time.monotonic_ns()
            self._last = line
            if b'"run ended"' in line:
                with self._changed, contextlib.suppress(ValueError, KeyError):
                    self.at[json.loads(line)["thread"]] = now
                    self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Daemon:
    """A daemon that serves, by its operator's socket."""

    def __init__(self, process: subprocess.Popen[bytes], home: str, ends: Ends) -> None:
        self.pid = process.pid
        self.home = home
        self.ends = ends
        self.client = Client(f"{home}/run/spl.sock")
        self._standbys = sys.maxsize

    def start(self, goal: str = VERIFY_GOAL) -> str:
        """Start a run; gives its thread once it is answered, which is when its worker has its credential."""
        return str(self.client.request("POST", "/v1/work/loop", {"goal": goal})["thread"])

    def set_transport(self, transport: str) -> None:
        """Have the operator's runs from now on be `sandboxed` or `in_process`."""
        decide(self.client, {"topic": "work_loop_transport", "transport": transport})

    def health(self) -> Json:
        """Give its health."""
        return self.client.request("GET", "/v1/engine/health")

    def room(self) -> int:
        """Give how many sandboxed runs it takes at once."""
        return int(self.health()["work_loop"]["admission_capacity"])

    def settle(self) -> None:
        """Wait until the standby workers are ready that the daemon keeps: none is being made then.

        A host with too little memory keeps fewer than the setting says. Raises `HostRefused` where none comes.
        """
        began = time.monotonic()
        while True:
            kept = self.health()["work_loop"]["standby"]
            waited = time.monotonic() - began
            if kept["ready"] >= min(kept["target"], self._standbys):
                return
            if kept["ready"] and waited > _STANDBY_SECONDS:
                self._standbys = kept["ready"]
            if waited > SECONDS:
                raise HostRefused(
                    f"the daemon that is measured has no standby worker ready{self.ends.last()}"
                )
            time.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def serving(home: str) -> Iterator[Daemon]:
    """Run `spl serve` in a home, which it makes; gives the daemon once it has answered."""
    serve = [*python(), "-m", "spl.cli.main", "serve", "--home", home, "--port", "0", "--provider", "echo"]
    # Where this is killed, the kernel ends it (PR_SET_PDEATHSIG, prctl(2)); the helper sees its input end.
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin")
    command = [*([] if setpriv is None else [setpriv, "--pdeathsig", "TERM", "--"]), *serve]
    with _running(command) as (process, ends):
        _first_line(process, ends)
        daemon = Daemon(process, home, ends)
        daemon.health()
        yield daemon


class Helper(Daemon):
    """A daemon that says when its starts were made, and which measures on request; see `spl.bench.child`."""

    def __init__(self, process: subprocess.Popen[bytes], home: str, ends: Ends, facts: Json) -> None:
        super().__init__(process, home, ends)
        self.facts = facts
        self._process = process

    def ask(self, do: str, **given: object) -> Any:
        """Have something measured beside the daemon's event loop; gives what it came to. Raises `HostRefused`."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps({"do": do, **given}).encode() + b"\n")
                self._process.stdin.flush()
        return json.loads(_first_line(self._process, self.ends))


@contextlib.contextmanager
def helping(home: str, **options: object) -> Iterator[Helper]:
    """Run the helper with a home that it makes; the options are those of `spl.bench.child`."""
    with _running([*python(), "-m", "spl.bench.child", home, json.dumps(options)]) as (process, ends):
        yield Helper(process, home, ends, json.loads(_first_line(process, ends)))


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], Ends]]:
    started: list[tuple[subprocess.Popen[bytes], Ends]] = []
    try:
        with deferred():
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environ(),
                cwd="/",
                # Ctrl-C at the terminal is for whoever measures, who ends this.
                start_new_session=True,
            )
            started.append((process, Ends(process.stderr)))
        yield started[0]
    finally:
        with deferred():
            for process, ends in started:
                _end(process)
                ends.join()
                for stream in (process.stdin, process.stdout, process.stderr):
                    with contextlib.suppress(BrokenPipeError):
                        if stream is not None:
                            stream.close()


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Let a signal that would end this process wait: what is started is then known, and what is ended is gone.

    Must be the main thread's.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda number, _: came.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _first_line(process: subprocess.Popen[bytes], ends: Ends) -> bytes:
    line = b"" if process.stdout is None else process.stdout.readline()
    if not line:
        _end(process)
        ends.join()
        raise HostRefused(
            f"a daemon that is to be measured cannot be had (exit {process.returncode}){ends.last()}"
        )
    return line
