"""A profile of the user's own that takes for ever to be judged: nobody else waits for it, and neither does the end."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from spl.errors import DaemonStopping
from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon, Shape

pytestmark = pytest.mark.one_shape

# Read by the interpreter before anything else (site): in the daemon, judging a profile that says 65M never ends.
FOR_EVER = """
import sys, threading
from bwrap import floor
require = floor.require
def requiring(profile):
    if profile.limits.address_space == 65 << 20:
        print("for ever", file=sys.stderr, flush=True)
        threading.Event().wait()
    require(profile)
floor.require = requiring
"""

SLOW = '[limits]\naddress_space = "65M"\n'


def choose(daemon: Daemon, profile: str) -> None:
    """Choose a profile for the runs that start from now on."""
    body = {"kind": "core.engine.config.v1", "topic": "work_loop_profile", "profile": profile}
    record = {"thread": "th_engine_config", "actor": "did:sync:system:engine", "act": "LEARN", "body": body}
    daemon.request("POST", "/v1/records", record)


def judging_for_ever(shape: Shape, home: Path) -> dict[str, str]:
    """Give the environment of a daemon that judges for ever."""
    folder = home.parent / "site"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "sitecustomize.py").write_text(FOR_EVER)
    (folder / "sitecustomize.py").chmod(0o644)
    return {"PYTHONPATH": f"{folder}:{shape.environment['PYTHONPATH']}"}


def write(shape: Shape, home: Path, text: str) -> None:
    """Write the profile `own`, as its user would."""
    path = home / "profiles" / "own.toml"
    path.write_text(f'extends = "worker"\n{text}')
    os.chown(path, shape.uid, shape.uid)
    path.chmod(0o600)


def test_while_one_profile_is_judged_health_and_the_starts_of_another_go_on_and_the_daemon_can_end(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home, **judging_for_ever(shape, home)) as daemon:
        daemon.set_transport("sandboxed")
        write(shape, home, "")
        choose(daemon, "own")
        write(shape, home, SLOW)
        answers: list[Exception] = []

        def start() -> None:
            with pytest.raises(DaemonStopping) as error:
                daemon.start()
            answers.append(error.value)

        starting = threading.Thread(target=start)
        starting.start()
        daemon.log.wait_for("for ever")
        told = daemon.request("GET", "/v1/engine/health")["work_loop"]
        assert (told["profile"], told["admission_available"] > 0) == ("own", True)
        choose(daemon, "worker")
        assert daemon.finish(daemon.start()["thread"])["state"] == "done"
        assert daemon.stop() == 0
        starting.join(SECONDS)
        assert len(answers) == 1


def test_a_daemon_that_judges_the_chosen_profile_for_ever_at_its_start_can_be_ended(
    shape: Shape, home: Path
) -> None:
    with shape.daemon(home) as daemon:
        write(shape, home, "")
        choose(daemon, "own")
        assert daemon.stop() == 0
    write(shape, home, SLOW)
    serve = ("serve", "--home", str(home), "--port", "0")
    starting = shape.begin(*serve, **judging_for_ever(shape, home))
    try:
        assert starting.stderr is not None
        assert any("for ever" in line for line in starting.stderr)
        starting.send_signal(signal.SIGTERM)
        said, _ = starting.communicate(timeout=SECONDS)
    finally:
        starting.kill()
        starting.communicate()
    assert (starting.returncode, said) == (0, "")
    assert list((home / "run" / "workers").iterdir()) == []
