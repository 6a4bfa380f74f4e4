"""What was installed from the wheel does all that the checkout does, and is replaced under a running daemon."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from escape.instance import VERIFY_GOAL
from spl import __version__
from spl.kernel import names
from tests.claims import ROOT
from tests.network import OWN_NETWORK
from tests.packaging.built import build, copy

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Json
    from tests.packaging.installed import Environment, InstalledShape

NEWER = f"{__version__}.post1"

# Each line is one command's answer.
USE = f"""
set -eu
spl version
spl doctor -o json | jq -c '[.findings[] | select(.severity != "ok")]'
spl profile list -o json | jq -c '[.data[].name]'
spl profile lint worker -o json | jq -c .data
spl escape report -o json | jq -c '.rows | length > 1000'
spl service show systemd/system/spl-serve.service 2>/dev/null | grep ^ExecStart=
spl serve --daemon >&2
spl config set-transport sandboxed >&2
THREAD=$(spl run -o json '{VERIFY_GOAL}' | jq -r .thread)
spl thread records $THREAD -o json | jq -c '.data[].body | select(.kind == "{names.ISOLATION}")'
spl verify $THREAD >&2
spl status -o json | jq -r .version
spl stop >&2
"""


def run(daemon: Daemon) -> Json:
    """Have a sandboxed run completed; gives its receipt."""
    row = daemon.finish(daemon.start()["thread"])
    assert (row["transport"], row["outcome"], row["tool_calls_ok"]) == ("sandboxed", "completed", 1)
    (receipt,) = daemon.bodies(row["thread"], names.ISOLATION)
    return receipt


def newer(folder: Path) -> Path:
    """Build the wheel of a later release: its worker and the profile that confines it are others."""
    root = copy(folder / "sources")
    for name, old, new in (
        ("spl/__init__.py", f'"{__version__}"', f'"{NEWER}"'),
        (
            "spl/worker/program.py",
            "\nfrom __future__ import annotations\n",
            "\nfrom __future__ import annotations\nLATER = 1\n",
        ),
        ("profiles/worker.toml", 'file_size = "16M"', 'file_size = "15M"'),
    ):
        text = (root / name).read_text()
        assert text.count(old) == 1, name
        (root / name).write_text(text.replace(old, new))
    return build("wheel", folder / "wheel", root)


def test_nothing_of_the_checkout_is_within_reach_of_what_was_installed(environment: Environment) -> None:
    code = "import bwrap, escape, spl, sys; print(spl.__file__, bwrap.__file__, escape.__file__, *sys.path)"
    said = subprocess.run(
        [environment.python, "-c", code], cwd="/", env={}, capture_output=True, text=True, check=True
    )
    assert said.stdout.count(f"{environment.folder}/") >= 4
    assert str(ROOT) not in said.stdout


def test_an_installed_wheel_serves_confines_and_proves_a_run(shape: InstalledShape, home: Path) -> None:
    work = home.with_name("work")
    work.mkdir()
    work.chmod(0o777)

    done = shape.shell(home, USE, prefix=OWN_NETWORK, cwd=str(work))

    assert done.returncode == 0, done.stderr
    version, findings, profiles, breaches, reported, started, receipt, running = done.stdout.splitlines()
    assert (version, running) == (f"spl {__version__}", __version__)
    assert json.loads(findings) == []
    assert json.loads(profiles) == ["base", "strict", "worker"]
    assert json.loads(breaches) == []
    assert reported == "true"
    assert started.startswith("ExecStart=/")
    assert started.endswith("/bin/spl serve --home /var/lib/spl")
    assert json.loads(receipt)["shape"] == shape.name
    assert len(json.loads(receipt)["layers"]) > 10
    assert list(work.iterdir()) == []


@pytest.mark.claim("M4")
@pytest.mark.one_shape
def test_a_wheel_that_is_installed_under_a_running_daemon_takes_effect_when_it_is_started_again(
    shape: InstalledShape, home: Path, environment: Environment, wheel: Path, tmp_path: Path
) -> None:
    later = newer(tmp_path)

    def install(which: Path) -> None:
        environment.install("--no-deps", "--force-reinstall", str(which))

    def said(*command: str) -> Json:
        done = shape.run(*command, "-o", "json")
        assert done.returncode == 0, done.stderr
        answer: Json = json.loads(done.stdout)
        return answer

    try:
        with shape.daemon(home) as daemon:
            daemon.set_transport("sandboxed")
            before = run(daemon)
            install(later)
            assert digests(run(daemon)) == digests(before)
            # The command is the later release already, and speaks with the daemon of before, which says what it is.
            assert said("version")["version"] == NEWER
            assert said("status", "--home", str(home))["version"] == __version__
            old = said("run", "--home", str(home), VERIFY_GOAL)["thread"]
            assert said("stop", "--home", str(home))
            assert daemon.process.wait(30) == 0
        with shape.daemon(home) as daemon:
            after = run(daemon)
            assert not set(digests(before)) & set(digests(after))
            assert said("status", "--home", str(home))["version"] == NEWER
            assert said("verify", old, "--home", str(home))
    finally:
        install(wheel)
    with shape.daemon(home) as daemon:
        assert digests(run(daemon)) == digests(before)
        assert said("status", "--home", str(home))["version"] == __version__


def digests(receipt: Json) -> tuple[str, str]:
    """Give what a receipt says of the program that ran and of what confined it."""
    return receipt["image_digest"], receipt["profile_digest"]
