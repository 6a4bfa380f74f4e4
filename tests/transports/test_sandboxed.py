"""A start with a real worker: in which order receipt, credential and process come, and whom a credential serves."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bwrap import host as hosts
from bwrap import profile
from bwrap.ledger import Ledger
from bwrap.plan import Places, resolve
from spl.api.listener import Listener, bind_unix
from spl.api.worker import worker_app
from spl.errors import IsolationUnavailable
from spl.kernel import names
from spl.kernel.kernel import Start
from spl.transports.image import seal
from spl.transports.sandboxed import Sandbox
from spl.transports.starting import Transports
from tests.kernel.instance import ADMINISTRATOR, MEMBER, instance, says

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from spl.kernel.credentials import Holder
    from spl.kernel.runs import Run
    from tests.kernel.instance import Instance

THEIRS = Start(goal="a goal", actor=MEMBER, wall_clock_secs=20)
GRACE = 30


@asynccontextmanager
async def sandboxing(tmp_path: Path) -> AsyncIterator[tuple[Instance, Sandbox, Transports]]:
    """Give an instance whose members' runs go to real workers, behind a real worker socket."""
    folder = Path(tempfile.mkdtemp(prefix="spl-", dir="/tmp"))
    os.chmod(folder, 0o711)
    try:
        async with instance(tmp_path, says("done")) as here:
            path = str(folder / "w.sock")
            doors = worker_app(here.kernel.credentials, max_body_bytes=1 << 20)
            listener = Listener(doors, bind_unix(path, 0o666), grace=1)
            await listener.start()
            host = hosts.examine()
            plan = resolve(profile.load("worker"), host, Places(str(folder / "home"), path))
            sandbox = Sandbox(plan, seal(host.python), Ledger(str(folder / "ledger")), 30)
            transports = Transports(here.kernel, sandbox, credential_grace=GRACE)
            try:
                yield here, sandbox, transports
            finally:
                await transports.stop()
                await listener.stop()
                sandbox.image.close()
    finally:
        shutil.rmtree(folder)


@pytest.mark.claim("I7", "I12", "I14")
def test_the_receipt_is_durable_before_the_credential_is_made_and_it_lives_for_wall_clock_and_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk() -> None:
        async with sandboxing(tmp_path) as (here, _, transports):
            mint = here.kernel.credentials.mint
            seen: list[tuple[float | None, list[str]]] = []

            def minting(run: Run, holder: Holder, *, seconds: float | None) -> str:
                # What other readers of the log find at this moment.
                with closing(sqlite3.connect(f"file:{tmp_path}/hub.db?mode=ro", uri=True)) as log:
                    found = log.execute("SELECT kind FROM records WHERE thread = ?", (run.terms.thread,))
                    seen.append((seconds, [kind for (kind,) in found]))
                return mint(run, holder, seconds=seconds)

            monkeypatch.setattr(here.kernel.credentials, "mint", minting)
            run = await transports.start(ADMINISTRATOR, THEIRS)
            await asyncio.gather(*transports._runs)
            assert seen == [(20 + GRACE, [names.LOOP, names.ISOLATION])]
            assert (await here.kernel.row(run.terms.thread))["state"] == "done"

    asyncio.run(talk())


@pytest.mark.claim("I12")
def test_a_worker_that_is_not_confirmed_is_refused_and_no_credential_is_ever_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk() -> None:
        async with sandboxing(tmp_path) as (here, sandbox, transports):
            forbidden = pytest.fail
            monkeypatch.setattr(here.kernel.credentials, "mint", lambda *_, **__: forbidden("it was made"))
            sandbox.plan = replace(
                sandbox.plan, limits=sandbox.plan.limits.model_copy(update={"open_files": 7})
            )
            monkeypatch.setattr("bwrap.launch._Launch._limit", lambda *_: None)
            monkeypatch.setattr("bwrap.launch._prlimit", lambda _: [])
            with pytest.raises(IsolationUnavailable) as refused:
                await transports.start(ADMINISTRATOR, THEIRS)
            assert refused.value.fields["layer"] == "limits"
            assert here.kernel.admission.available == here.kernel.admission.capacity

    asyncio.run(talk())


@pytest.mark.claim("I14")
def test_a_credential_serves_the_process_it_was_given_to_while_it_lives_and_nobody_else(
    tmp_path: Path,
) -> None:
    async def talk() -> None:
        async with sandboxing(tmp_path) as (_, sandbox, __):
            before = time.monotonic()
            worker = await sandbox.make()
            holds: Callable[[int, float], bool] = worker.holder()
            assert holds(worker.pid, time.monotonic())
            assert not holds(os.getpid(), time.monotonic())
            # A connection from before it was confirmed may be another's, who had the number then.
            assert not holds(worker.pid, before)
            worker.confined.kill("test")
            await worker.confined.wait()
            assert not holds(worker.pid, time.monotonic())
            worker.entrust("too late")  # and nothing comes of it

    asyncio.run(talk())
