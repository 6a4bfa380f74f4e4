"""The two shapes, live: a child process in a daemon's place for each, in which scenarios are played."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from escape.installation import Installation

ORDINARY = 12345
"""A uid without a name, for the same-user shape when the tests run as root."""

SHAPES = ("same-user", "hosted")


class Daemon:
    """A child that plays scenarios; `shape` is its shape."""

    def __init__(self, copy: Installation, shape: str, *, prefix: Sequence[str] = ()) -> None:
        self.shape = shape
        self.uid = ORDINARY if shape == "same-user" and os.getuid() == 0 else os.getuid()
        self._process = start(copy, self.uid, "tests.bwrap.child", prefix=prefix)

    @property
    def pid(self) -> int:
        """Its pid."""
        return self._process.pid

    def play(
        self, name: str, *, module: str = "scenarios", home: bytes = b"home", **arguments: object
    ) -> Any:
        """Play one scenario, check that nothing is left of it, and give its result."""
        said = {"module": f"tests.bwrap.{module}", "name": name, "home": home.hex(), "arguments": arguments}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(said).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the child that plays the daemon ended"
        answer = json.loads(line)
        if "failure" in answer:
            pytest.fail(answer["failure"])
        assert answer["left"] == []
        return answer["result"]

    def stop(self) -> None:
        """Let it end, and wait for it."""
        self._process.communicate()


def start(
    copy: Installation, uid: int, module: str, *arguments: str, prefix: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a module of the copy under a uid; `prefix` goes before its command."""
    other = uid if uid != os.getuid() else None
    return subprocess.Popen(
        [*prefix, *copy.command, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=copy.env,
        cwd="/",
        user=other,
        group=other,
        extra_groups=None if other is None else [],
    )


def _daemon(copy: Installation, shape: str, *, prefix: Sequence[str] = ()) -> Iterator[Daemon]:
    if shape == "hosted" and os.getuid() != 0:
        pytest.skip("the hosted shape needs root")
    daemon = Daemon(copy, shape, prefix=prefix)
    yield daemon
    daemon.stop()


@pytest.fixture(scope="session", params=SHAPES)
def daemon(request: pytest.FixtureRequest, world_readable: Installation) -> Iterator[Daemon]:
    """Give a child of each shape in turn."""
    yield from _daemon(world_readable, request.param)


@pytest.fixture(scope="session")
def hosted(world_readable: Installation) -> Iterator[Daemon]:
    """Give a child of the hosted shape."""
    yield from _daemon(world_readable, "hosted")


@pytest.fixture(scope="session")
def mounting(world_readable: Installation) -> Iterator[Daemon]:
    """Give a child of the hosted shape that may mount: in a namespace of its own, whose mounts reach its workers."""
    # Private first: nothing that is mounted here may reach the host.
    steps = 'mount --make-rprivate / && mount --make-rshared / && exec "$@"'
    yield from _daemon(world_readable, "hosted", prefix=["unshare", "-m", "sh", "-c", steps, "sh"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which interpreters a confined worker did a run on, and in which shape."""
    rows = [
        f"{dict(report.user_properties)['interpreter']}: {report.outcome}"
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if report.when == "call" and "interpreter" in dict(report.user_properties)
    ]
    if rows:
        terminalreporter.section("interpreters of a confined worker")
        for row in sorted(rows):
            terminalreporter.line(row)
