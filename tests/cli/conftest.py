"""The `spl` command as a process, and a scripted daemon on the operator's socket of a home."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

import pytest

from spl.home import Home
from tests.server import Daemon

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND = (sys.executable, "-m", "spl.cli.main")


class Spl(Protocol):
    """Runs `spl` with arguments and waits for its end."""

    def __call__(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home", create=True)


@pytest.fixture
def daemon(home: Home) -> Iterator[Daemon]:
    daemon = Daemon()
    daemon.start(str(home.operator_socket))
    yield daemon
    daemon.stop()


@pytest.fixture
def environ(home: Home) -> dict[str, str]:
    """Give this process's environment with the home in it and no other setting of the project's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPL_", "SYNCROPEL_"))}
    return {**kept, "SPL_HOME": str(home.path)}


@pytest.fixture
def spl(environ: dict[str, str]) -> Spl:
    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, env={**environ, **more}
        )

    return run
