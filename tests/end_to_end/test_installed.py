"""A daemon whose installed code is removed, or replaced, while it runs (M4)."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end import scripts
from tests.end_to_end.test_profiles import choose

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.end_to_end.daemon import Daemon, Json, Shape

ROOMS = ("spl", "bwrap", "profiles")


def installed(shape: Shape, folder: Path) -> Shape:
    """Give the shape with an installation of its own, in a folder that a test may change."""
    of_all, packages = shape.environment["PYTHONPATH"].split(":")
    folder.mkdir(mode=0o755)
    for room in ROOMS:
        shutil.copytree(Path(of_all, room), folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    return replace(shape, environment={**shape.environment, "PYTHONPATH": f"{folder}:{packages}"})


def remove(folder: Path) -> None:
    """Take all of an installation away."""
    for room in ROOMS:
        shutil.rmtree(folder / room)


def overwrite(folder: Path) -> None:
    """Have every file of an installation be another: code that ends at once, profiles that are none."""
    for room in ROOMS:
        for path in (folder / room).rglob("*"):
            if path.suffix == ".py":
                path.write_text("raise SystemExit(99)\n")
            elif path.suffix == ".toml":
                path.write_text("[limits\n")


def run(daemon: Daemon) -> Json:
    """Have a run of two turns completed in a worker; gives its receipt."""
    row = daemon.finish(daemon.start("Go on.", max_turns=2)["thread"])
    assert (row["transport"], row["outcome"], row["tool_calls_ok"]) == ("sandboxed", "max_turns", 2)
    (receipt,) = daemon.bodies(row["thread"], "core.work.isolation.v1")
    return receipt


def turns(daemon: Daemon, thread: str) -> int:
    """Give how many turns a run has had."""
    return len(daemon.bodies(thread, "core.work.turn.v1"))


@pytest.mark.claim("M4")
@pytest.mark.parametrize("change", [remove, overwrite])
@pytest.mark.one_shape
def test_what_becomes_of_the_installed_code_changes_no_worker_of_a_daemon_that_runs(
    shape: Shape, home: Path, change: Callable[[Path], None]
) -> None:
    code = home.with_name("code")
    provider = scripts.write(home.parent / "script", *scripts.endless())
    with installed(shape, code).daemon(home, "--provider", provider) as daemon:
        daemon.set_transport("sandboxed")
        before = run(daemon)
        going = daemon.start("Go on.")["thread"]
        worker = daemon.worker_pid(going)
        while not turns(daemon, going):
            assert daemon.process.poll() is None
        os.kill(worker, signal.SIGSTOP)
        change(code)
        had = turns(daemon, going)
        os.kill(worker, signal.SIGCONT)

        after = run(daemon)
        choose(daemon, "strict")
        strict = run(daemon)
        assert {each["image_digest"] for each in (before, after, strict)} == {before["image_digest"]}
        assert after["profile_digest"] == before["profile_digest"]
        assert (after["profile"], strict["profile"]) == ("worker", "strict")
        # The one that was running goes on.
        while turns(daemon, going) <= had + 1:
            assert daemon.request("GET", f"/v1/runs/{going}")["state"] == "running"
        assert daemon.stop() == 0
