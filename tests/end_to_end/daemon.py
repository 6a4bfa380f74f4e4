"""A real daemon in a process of its own, in either shape, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from escape.instance import VERIFY_GOAL
from spl.client import Client
from tests.api import described

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SECONDS = 30
"""How long anything a test waits for may take before the test fails."""

Json = dict[str, Any]


@dataclass
class Daemon:
    """A daemon that has announced itself; `log` grows as it writes."""

    process: subprocess.Popen[str]
    home: Path
    announcement: str
    log: Log

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.announcement)
        assert found is not None
        return int(found[1])

    @property
    def client(self) -> Client:
        """A client of its operator's socket; over TCP when the test is another user than the daemon."""
        return self.client_of((self.home / "token").read_text().strip())

    def request(self, method: str, path: str, body: Json | None = None, **query: Any) -> Json:
        """Ask the daemon, whose answer is held to its description; raises the error it answers with."""
        answer = self.client.request(method, path, body, query=query)
        described.hold(method, path, answer)
        return answer

    def client_of(self, token: str) -> Client:
        """Give a client of its TCP port for whoever holds a token."""
        return Client(("127.0.0.1", self.port), bearer=token)

    def configure(self, *, kind: str = "core.engine.config.v1", **said: object) -> None:
        """Write configuration."""
        where = {"thread": "th_engine_config", "actor": "did:sync:system:engine", "act": "LEARN"}
        self.request("POST", "/v1/records", {**where, "body": {"kind": kind, **said}})

    def set_transport(self, transport: object, *, members: bool = False) -> None:
        """Write the transport into the configuration."""
        topic = "work_loop_transport_members" if members else "work_loop_transport"
        self.configure(topic=topic, transport=transport)

    def start(self, goal: str = VERIFY_GOAL, **fields: Any) -> Json:
        """Start a run; gives its row."""
        return self.request("POST", "/v1/work/loop", {"goal": goal, **fields})

    def finish(self, thread: str) -> Json:
        """Wait until a run has ended, which the log says, and give its row."""
        self.log.wait_for(rf"\brun ended\b.*{thread}")
        return self.request("GET", f"/v1/runs/{thread}")

    def bodies(self, thread: str, kind: str | None = None) -> list[Json]:
        """Give the bodies of a thread's records, of one kind if named."""
        query = {"thread": thread, "kind": kind, "limit": 1000}
        return [each["body"] for each in self.client.request("GET", "/v1/records", query=query)["data"]]

    def set_standby(self, workers: int) -> None:
        """Have so many workers stand by, and wait until they do and the daemon has none but them and its runs'."""
        self.configure(topic="standby_workers", workers=workers)
        until = time.monotonic() + SECONDS
        while True:
            ready = self.request("GET", "/v1/engine/health")["work_loop"]["standby"]["ready"]
            going = self.request("GET", "/v1/runs", state="running", limit=1000)["data"]
            sandboxed = [row for row in going if row["transport"] == "sandboxed"]
            # Struck once nothing of it is left.
            launches = [*(self.home / "run" / "workers").glob("start-*")]
            if ready == workers and len(launches) == workers + len(sandboxed):
                return
            assert time.monotonic() < until, f"{ready} of {workers} stand by after {SECONDS} s"

    def worker_pid(self, thread: str) -> int:
        """Give the pid that the log names for a sandboxed run."""
        line = self.log.wait_for(rf"\brunning sandboxed\b.*{thread}")
        # In either form of the log.
        found = re.search(r'\bpid(?:=|": )(\d+)', line)
        assert found is not None
        return int(found[1])

    def stop(self) -> int:
        """Stop it as an operator would; gives its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


@dataclass
class Log:
    """What a daemon writes to standard error, kept as it comes."""

    lines: list[str] = field(default_factory=list)
    grown: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False

    def follow(self, stream: Iterator[str]) -> None:
        """Read a stream to its end, in a thread of its own."""
        for line in stream:
            with self.grown:
                self.lines.append(line)
                self.grown.notify_all()
        with self.grown:
            self.ended = True
            self.grown.notify_all()

    def wait_for(self, pattern: str) -> str:
        """Give the first line that matches, waiting for it to be written."""
        with self.grown:
            found = self.grown.wait_for(lambda: self._find(pattern) or self.ended, SECONDS)
            line = self._find(pattern)
            assert line is not None, f"{pattern!r} is not in the log ({found=}):\n{''.join(self.lines)}"
            return line

    def _find(self, pattern: str) -> str | None:
        return next((line for line in self.lines if re.search(pattern, line)), None)


@dataclass(frozen=True)
class Shape:
    """Who the daemon is: a command that runs Python code as that user, and the user's uid."""

    name: str
    uid: int
    python: tuple[str, ...]
    environment: Mapping[str, str]
    starts_as: int | None = None
    program: str = "spl.cli.main"

    def as_root_first(self) -> Shape:
        """Give the same shape for a prefix that needs root and becomes the shape's user itself."""
        return replace(self, starts_as=0)

    def spl(self, *arguments: str) -> list[str]:
        """Give the command line of an `spl` command as this user."""
        return [*self.python, "-m", self.program, *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run an `spl` command as this user to its end."""
        return subprocess.run(
            self.spl(*arguments),
            env={**self.environment, **environment},
            user=self.uid,
            group=self.uid,
            extra_groups=[],
            cwd="/",
            text=True,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )

    def begin(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start an `spl` command as this user, and leave it running."""
        return subprocess.Popen(
            self.spl(*arguments),
            env={**self.environment, **environment},
            user=self.uid,
            group=self.uid,
            extra_groups=[],
            cwd="/",
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def shell(
        self, home: Path, script: str, *, prefix: Sequence[str] = (), cwd: str = "/", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script as this user would, with `spl` on its path and this home as theirs.

        `prefix` goes before it, and is root's.
        """
        folder = home.with_name("bin")
        folder.mkdir(mode=0o755, exist_ok=True)
        command = folder / "spl"
        command.write_text(f'#!/bin/sh\nexec {" ".join(self.spl())} "$@"\n')
        command.chmod(0o755)
        path = f"{folder}:/usr/bin:/bin:/usr/sbin:/sbin"
        become = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--"]
        return subprocess.run(
            [*prefix, *become, "sh", "-c", script],
            env={**self.environment, "SPL_HOME": str(home), "PATH": path, **environment},
            cwd=cwd,
            text=True,
            capture_output=True,
            timeout=2 * SECONDS,
            check=False,
        )

    @contextlib.contextmanager
    def daemon(
        self, home: Path, *flags: str, prefix: Sequence[str] = (), **environment: str
    ) -> Iterator[Daemon]:
        """Run a daemon in a home; it is stopped at the end if it still runs. `prefix` goes before its command."""
        command = [*prefix, *self.spl("serve", "--home", str(home), "--port", "0", *flags)]
        uid = self.uid if self.starts_as is None else self.starts_as
        process = subprocess.Popen(
            command,
            env={**self.environment, **environment},
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        log = Log()
        follower = threading.Thread(target=log.follow, args=(process.stderr,))
        follower.start()
        try:
            lines = [process.stdout.readline() for _ in range(8)]
            if not lines[-1]:
                status = process.wait(SECONDS)
                follower.join()
                raise AssertionError(
                    f"the daemon did not start ({status}):\n{''.join(lines)}{''.join(log.lines)}"
                )
            yield Daemon(process, home, "".join(lines), log)
        finally:
            _end(process)
            follower.join()
            process.stdout.close()
            process.stderr.close()


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def children(pid: int) -> Iterator[int]:
    """Give the pids of a process's children, zombies too (proc(5))."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                yield from map(int, file.read().split())


def wait_until_gone(pid: int, pidfd: int | None = None) -> None:
    """Wait, on its pidfd, until a process has ended."""
    try:
        opened = os.pidfd_open(pid) if pidfd is None else pidfd
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(opened, select.POLLIN)
        assert poll.poll(SECONDS * 1000), f"process {pid} is still there after {SECONDS} s"
    finally:
        if pidfd is None:
            os.close(opened)


def held(process: subprocess.Popen[str]) -> set[str]:
    """Give what a process has open, as /proc names it (proc(5))."""
    found = set()
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{process.pid}/fd/{name}"))
    return found


def ask_raw(path: str, request: bytes) -> bytes:
    """Send bytes to a unix socket and give all that comes back until it closes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                answer += piece
        return answer
