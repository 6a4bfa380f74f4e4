"""Starts that take a standby worker, played with real workers in a child of each shape."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from bwrap import host as hosts
from bwrap import uids
from bwrap.host import Shape
from spl.errors import DaemonStopping, IsolationUnavailable
from spl.kernel import names
from tests.kernel.instance import ADMINISTRATOR, MEMBERS, says
from tests.transports.flights import gone
from tests.transports.starts import (
    SECONDS,
    THEIRS,
    _nothing,
    all_free,
    keeping,
    kill,
    limit,
    no_credential,
    own_profile,
    sandboxing,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from spl.transports.sandboxed import Worker
    from spl.transports.starting import Transports
    from tests.kernel.instance import Instance
    from tests.transports.starts import Patch


class _Once:
    """Gives each worker a uid that none had before: what is there under it is that worker's, and no later one's."""

    def __init__(self) -> None:
        self._uids = iter(range(61100, 61184))

    def lease(self) -> uids.Lease:
        """Lease the next one."""
        uid = next(self._uids)
        return uids.Pool(uid, uid).lease()


@asynccontextmanager
async def standing_by(
    tmp_path: Path, patch: Patch, *, number: int = 1, profile: str = "worker"
) -> AsyncIterator[tuple[Instance, Transports, list[Worker]]]:
    """Give an instance with workers that stand by, and the list of all workers that are made."""
    async with sandboxing(tmp_path, says("done")) as (here, sandbox, transports):
        patch.setattr(sandbox.ledger, "_pool", _Once())
        patch.setattr(here.kernel, "_check_profile", _nothing)
        await here.tier("trial", concurrent_runs=2)
        await here.say(topic="work_loop_profile", profile=profile)
        patch.setattr(transports._standbys, "target", lambda: number)
        made = keeping(sandbox, patch)
        transports.stand_by()
        await rest(transports, patch)
        assert transports.standby() == {"target": number, "ready": number}
        yield here, transports, made


async def rest(transports: Transports, patch: Patch) -> None:
    """Wait until every run has ended, and those stand by that are to."""
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*transports._runs)
        resting, wait = asyncio.Event(), transports._standbys._wait

        async def waiting(profiles: Collection[str]) -> None:
            resting.set()
            await wait(profiles)

        with patch.context() as patched:
            patched.setattr(transports._standbys, "_wait", waiting)
            transports._standbys.look()
            await resting.wait()


def free(worker: Worker) -> bool:
    """Tell whether nothing of a worker is left."""
    return not os.path.exists(f"/proc/{worker.pid}") and not (
        hosts.shape() is Shape.HOSTED and uids.in_use(worker.uid)
    )


async def receipt_of(here: Instance, thread: str) -> dict[str, Any]:
    """Give the receipt of a run."""
    (receipt,) = await here.bodies(thread, names.ISOLATION)
    return receipt


async def taken(tmp_path: Path, patch: Patch) -> None:
    """Have two runs, each by the worker that stood by."""
    async with standing_by(tmp_path, patch) as (here, transports, made):
        manned: list[bool] = []
        patch.setattr(transports, "manned", manned.append)
        for number in range(2):
            (waiting,) = made[number:]
            assert here.kernel.admission.taken == 0
            # What was confirmed earlier than in this millisecond is told apart from what was looked at in it.
            earlier = {**waiting._receipt, "confirmed_at": "2026-01-01T00:00:00.000Z"}
            patch.setattr(waiting, "_receipt", earlier)
            run = await transports.start(ADMINISTRATOR, THEIRS)
            assert here.kernel.admission.taken == 1
            await rest(transports, patch)
            receipt = await receipt_of(here, run.terms.thread)
            assert (receipt["pid"], receipt["uid"]) == (waiting.pid, waiting.uid)
            assert receipt["confirmed_at"] == "2026-01-01T00:00:00.000Z"
            assert receipt["looked_at"] >= run.terms.started_at
            assert (await here.kernel.rows.row(run.terms.thread))["state"] == "done"
            assert free(waiting)
        assert manned == [True, True]
    gone(made[-1])


async def edited(tmp_path: Path, patch: Patch) -> None:
    """Edit the profile of a worker that stands by."""
    own_profile(tmp_path, '[limits]\naddress_space = "64M"\n')
    async with standing_by(tmp_path, patch, profile="own") as (here, transports, made):
        own_profile(tmp_path, '[limits]\naddress_space = "65M"\n')
        run = await transports.start(ADMINISTRATOR, THEIRS)
        receipt = await receipt_of(here, run.terms.thread)
        await rest(transports, patch)
        old, own, new = made
        assert free(old)
        assert receipt["pid"] == own.pid
        assert new.confined.receipt.wire()["profile_digest"] == receipt["profile_digest"]
        assert new.confined.alive


async def reconfigured(tmp_path: Path, patch: Patch) -> None:
    """Choose another profile, then that nobody's runs are sandboxed."""
    async with standing_by(tmp_path, patch) as (here, transports, made):
        await here.say(topic="work_loop_profile", profile="strict")
        await rest(transports, patch)
        old, new = made
        assert free(old)
        assert (new.confined.alive, new.confined.receipt.process.plan.profile) == (True, "strict")
        await here.configure(MEMBERS, "in_process")
        await rest(transports, patch)
        assert free(new)
        assert transports.standby() == {"target": 1, "ready": 0}


async def changed_standby(tmp_path: Path, patch: Patch) -> None:
    """Change a limit of a worker that stands by."""
    async with standing_by(tmp_path, patch) as (here, transports, made):
        no_credential(here, patch)
        limit(made[0])
        with capture_logs() as said, pytest.raises(IsolationUnavailable) as refused:
            await transports.start(ADMINISTRATOR, THEIRS)
        assert refused.value.fields["layer"] == "limits"
        (alarm,) = [line for line in said if line["event"] == "a layer of a standby worker changed"]
        assert (alarm["pid"], alarm["layer"], alarm["log_level"]) == (made[0].pid, "limits", "error")
        (record,) = await here.on(names.ISOLATION_THREAD)
        assert (record.kind, record.body["layer"]) == (names.REFUSAL, "limits")
        assert here.kernel.live == {}
        assert free(made[0])
        assert all_free(here)


async def killed(tmp_path: Path, patch: Patch) -> None:
    """Kill a worker that stands by, and start before that can have been noticed."""
    async with standing_by(tmp_path, patch) as (here, transports, made):
        kill(made[0])
        run = await transports.start(ADMINISTRATOR, THEIRS)
        assert (await receipt_of(here, run.terms.thread))["pid"] == made[1].pid
        await rest(transports, patch)
        assert free(made[0])


async def replaced(tmp_path: Path, patch: Patch) -> None:
    """Replace bubblewrap while a worker stands by that was made with it."""
    async with standing_by(tmp_path, patch) as (here, transports, _):
        no_credential(here, patch)
        patch.setattr("bwrap.host.file_stamp", lambda _: None)
        with pytest.raises(IsolationUnavailable) as refused:
            await transports.start(ADMINISTRATOR, THEIRS)
        assert refused.value.fields["layer"] == "sandbox"
        assert transports.standby()["ready"] == 1


async def ended(tmp_path: Path, patch: Patch, how: str) -> None:
    """Stop, or drain, with workers that stand by."""
    async with standing_by(tmp_path, patch, number=2) as (_, transports, made):
        await (transports.stop() if how == "stop" else transports.drain(SECONDS, asyncio.Event()))
        for worker in made:
            gone(worker)
        assert transports.standby()["ready"] == 0
        with pytest.raises(DaemonStopping):
            await transports.start(ADMINISTRATOR, THEIRS)
