from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.end_to_end import leaks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape


@pytest.mark.claim("A3", "I9", "I13")
def test_after_fifty_runs_and_five_that_were_killed_everything_is_as_it_was(shape: Shape, home: Path) -> None:
    with shape.daemon(home, **leaks.SETTING) as daemon:
        figures = leaks.soak(daemon, runs=50, kills=5, seed=1)

        assert figures.leaked() == {}
        assert figures.after["processes"] == {}
        work_loop = daemon.request("GET", "/v1/engine/health")["work_loop"]
        assert work_loop["admission_available"] == work_loop["admission_capacity"]
    assert list((home / "run" / "workers").iterdir()) == []


@pytest.mark.claim("I9")
def test_a_hosted_run_leaves_nothing_that_its_uid_owns_and_its_uid_free(hosted: Shape, home: Path) -> None:
    with hosted.daemon(home, **leaks.SETTING) as daemon:
        daemon.set_transport("sandboxed")
        daemon.set_standby(1)
        row = daemon.finish(daemon.start()["thread"])
        daemon.set_standby(0)
        (receipt,) = daemon.bodies(row["thread"], "core.work.isolation.v1")

        uid = receipt["uid"]
        assert leaks.UIDS[0] <= uid <= leaks.UIDS[1]
        assert [*leaks.owned(uid, uid)] == []
        assert leaks.holdings(daemon)["uids in use"] == {}


@pytest.mark.claim("I9")
def test_a_range_of_one_uid_carries_one_run_after_another(hosted: Shape, home: Path) -> None:
    with hosted.daemon(home, SPL_WORKER_UIDS="60916-60916") as daemon:
        daemon.set_transport("sandboxed")
        for _ in range(2):
            assert daemon.finish(daemon.start()["thread"])["state"] == "done"
