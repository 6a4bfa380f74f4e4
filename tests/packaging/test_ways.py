"""Other ways in which a wheel is installed: without the pins, by pipx, on an interpreter that is root's alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spl import __version__
from tests.network import OWN_NETWORK
from tests.packaging.installed import Environment, InstalledShape
from tests.packaging.test_installed import USE, run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.soak


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder that others may look into."""
    with tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


def uses(shape: InstalledShape, home: Path) -> None:
    """Have a reader's commands done, a sandboxed run among them, in a network of its own."""
    done = shape.shell(home, USE, prefix=OWN_NETWORK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"spl {__version__}"


@pytest.mark.parametrize("name", ["same-user", "hosted"])
def test_pip_alone_finds_what_the_wheel_asks_for(name: str, folder: Path, home: Path, wheel: Path) -> None:
    made = Environment.make(folder / "plain", "")
    made.install(f"spl[bwrap] @ file://{wheel}")

    check = subprocess.run(
        [sys.executable, "-m", "pip", "--python", made.python, "check"], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout
    uses(made.shape(name), home)


@pytest.mark.parametrize("name", ["same-user", "hosted"])
def test_pipx_installs_it_for_every_user_of_the_host(
    name: str, folder: Path, home: Path, wheel: Path
) -> None:
    tool = Environment.make(folder / "tool", "pipx")
    subprocess.run(
        [tool.python, "-m", "pipx", "install", "--python", os.path.realpath(sys.executable), str(wheel)],
        env={
            **{key: value for key, value in os.environ.items() if key.startswith("PIP_")},
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "PIPX_HOME": str(folder / "pipx"),
            "PIPX_BIN_DIR": str(folder / "bin"),
        },
        cwd="/", capture_output=True, check=True, umask=0o022,
    )  # fmt: skip

    (command,) = (folder / "bin").iterdir()
    assert command.name == "spl"
    uses(Environment(folder / "pipx" / "venvs" / "spl").shape(name), home)


def test_the_escape_suite_comes_with_the_wheel_and_is_made_from_it_in_both_shapes(
    environment: Environment,
) -> None:
    done = environment.shape("hosted").run("escape", "run", "network", "-o", "json")

    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["shape"] for row in rows} == {"same-user", "hosted"}
    assert all(row["ok"] for row in rows)


def test_on_an_interpreter_that_is_closed_to_others_hosted_workers_run_on_the_systems(
    folder: Path, home: Path, wheel: Path
) -> None:
    closed = folder / "root"
    closed.mkdir(mode=0o700)
    # The program alone: it finds its library where it was built for.
    interpreter = closed / "python3"
    shutil.copy(os.path.realpath(sys.executable), interpreter)
    made = Environment.make(closed / "installed", interpreter=str(interpreter))
    made.install("--no-deps", str(wheel))

    with made.shape("hosted").daemon(home) as daemon:
        daemon.set_transport("sandboxed")
        receipt = run(daemon)

    assert receipt["interpreter"]["path"].startswith("/usr/bin/python3")
