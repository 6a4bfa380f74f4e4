"""A daemon in a cgroup that is delegated to it, and one in none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.delegated import delegated
from tests.end_to_end import scripts
from tests.end_to_end.daemon import wait_until_gone
from tests.end_to_end.faults import become
from tests.end_to_end.test_isolation import status
from tests.end_to_end.test_stop import stop
from tests.end_to_end.test_swept import ALONE

if TYPE_CHECKING:
    from tests.end_to_end.daemon import Daemon, Shape


def own(pid: int) -> str:
    """Give the path of a process's cgroup in the hierarchy of version 2."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line.removeprefix("0::") for line in lines if line.startswith("0::"))


def start(daemon: Daemon) -> tuple[str, int]:
    """Start a run that goes on; gives its thread and its worker's pid."""
    thread = daemon.start("Go on.")["thread"]
    return thread, daemon.worker_pid(thread)


@pytest.mark.claim("I5", "I12", "I13", "A1")
def test_a_run_has_a_group_of_its_own_which_ends_with_it_or_with_the_next_daemon(
    shape: Shape, home: Path
) -> None:
    provider = scripts.write(home.parent / "script", *scripts.endless())
    with delegated(shape.uid) as root:
        prefix = [*root.prefix(), *become(shape)]
        as_root = shape.as_root_first()
        with as_root.daemon(home, "--provider", provider, prefix=prefix, **ALONE) as daemon:
            told = daemon.request("GET", "/v1/engine/health")["isolation"]["cgroup"]
            assert (told["delegated"], told["controllers"], told["kill"]) == (True, root.controllers, True)
            lacking = [
                each for each in ("memory", "pids") if f"the controller {each}" in told.get("reason", "")
            ]
            assert sorted([*root.controllers, *lacking]) == ["memory", "pids"]
            assert "\n  cgroup        a group for each worker, " in daemon.announcement
            if lacking:
                assert told["reason"] in daemon.log.wait_for("delegated cgroup cannot be used in full")
            assert own(daemon.process.pid) == f"{root.path}/daemon"
            assert root.groups() == ["daemon"]

            daemon.set_transport("sandboxed")
            thread, pid = start(daemon)
            (group,) = set(root.groups()) - {"daemon"}
            assert {own(pid), own(int(status(pid, "PPid")[0]))} == {f"{root.path}/{group}"}
            assert len(Path(root.folder, group, "cgroup.procs").read_text().split()) == 2
            (receipt,) = daemon.bodies(thread, "core.work.isolation.v1")
            (limits,) = [each for each in receipt["layers"] if each["layer"] == "limits"]
            assert "a group of its own" in [each["observed"] for each in limits["observed"]]
            stop(daemon, thread)
            assert daemon.finish(thread)["outcome"] == "cancelled"
            assert root.groups() == ["daemon"]

            _, pid = start(daemon)
            pidfd = os.pidfd_open(pid)
            daemon.process.kill()
            daemon.process.wait()
            wait_until_gone(pid, pidfd)
            os.close(pidfd)
            assert len(root.groups()) == 2

        with as_root.daemon(home, "--provider", provider, prefix=prefix, **ALONE) as daemon:
            assert root.groups() == ["daemon"]
            assert own(daemon.process.pid) == f"{root.path}/daemon"
            start(daemon)
            daemon.set_standby(1)
            assert len(root.groups()) == 3
            assert daemon.stop() == 0
            assert root.groups() == ["daemon"]


@pytest.mark.one_shape
def test_a_daemon_without_a_delegated_cgroup_stays_where_it_is_and_says_so(shape: Shape, home: Path) -> None:
    with shape.daemon(home) as daemon:
        told = daemon.request("GET", "/v1/engine/health")["isolation"]["cgroup"]
        assert told == {"delegated": False, "reason": f"its cgroup {own(os.getpid())} is not delegated to it"}
        assert own(daemon.process.pid) == own(os.getpid())
        assert f"\n  cgroup        no group for each worker: {told['reason']}\n" in daemon.announcement
        assert "delegated" not in "".join(daemon.log.lines)
        looked = shape.run("doctor", "-o", "json", "--home", str(home))
        (row,) = [each for each in json.loads(looked.stdout)["findings"] if each["name"] == "cgroup"]
        assert row == {
            "name": "cgroup",
            "severity": "ok",
            "observed": f"no group for each worker: {told['reason']}",
        }
