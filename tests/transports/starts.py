"""Starts with real workers, played in a child of each shape: what only the process that starts them can do and see."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bwrap import host as hosts
from bwrap.errors import LayerError
from bwrap.host import Shape
from bwrap.ledger import Ledger
from bwrap.library import Library
from bwrap.plan import Places
from spl.api.listener import Listener, bind_unix
from spl.api.worker import worker_app
from spl.client import Client
from spl.daemon import _WORKER_BODY_BYTES, assemble
from spl.errors import AdmissionCeiling, IsolationUnavailable
from spl.kernel import names
from spl.kernel.credentials import Credentials
from spl.kernel.terms import Start
from spl.settings import load
from spl.transports.image import seal
from spl.transports.plans import Plans
from spl.transports.sandboxed import Sandbox, Worker
from spl.transports.starting import Transports
from tests.end_to_end import scripts
from tests.kernel.instance import ADMINISTRATOR, MEMBER, OPERATOR, instance, says

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from bwrap.plan import Plan
    from spl.kernel.credentials import Holder
    from spl.kernel.runs import Run
    from tests.kernel.instance import Instance

THEIRS = Start(goal="a goal", actor=MEMBER, wall_clock_secs=20)
GRACE = 30
SECONDS = 20
"""How long anything here waits for may take."""

Patch = pytest.MonkeyPatch


@asynccontextmanager
async def sandboxing(
    tmp_path: Path, *replies: dict[str, Any], run_grace: float = GRACE, **options: Any
) -> AsyncIterator[tuple[Instance, Sandbox, Transports]]:
    """Give an instance of this shape whose members' runs go to real workers, behind a real worker socket."""
    folder = Path(tempfile.mkdtemp(prefix="spl-", dir="/tmp"))
    os.chmod(folder, 0o711)
    try:
        same_user = hosts.shape() is Shape.SAME_USER
        said = replies or (says("done"),)
        async with instance(tmp_path, *said, host_tools=same_user, **options) as here:
            path = str(folder / "w.sock")
            doors = worker_app(here.kernel.credentials, max_body_bytes=_WORKER_BODY_BYTES)
            listener = Listener(doors, bind_unix(path, 0o666), grace=1)
            await listener.start()
            host = hosts.examine()
            plans = Plans(Library(own=tmp_path / "profiles"), host, Places(str(folder / "home"), path))
            sandbox = Sandbox(plans, seal(host.python), Ledger(str(folder / "ledger")), 30)
            transports = Transports(here.kernel, sandbox, credential_grace=GRACE, run_grace=run_grace)
            try:
                yield here, sandbox, transports
            finally:
                await transports.stop()
                await listener.stop()
                sandbox.image.close()
    finally:
        shutil.rmtree(folder)


def all_free(here: Instance) -> bool:
    """Tell whether every slot is free."""
    return here.kernel.admission.available(1) == here.kernel.admission.capacity(1)


def no_credential(here: Instance, patch: Patch) -> None:
    """Fail if a credential is made."""
    patch.setattr(here.kernel.credentials, "mint", lambda *_, **__: pytest.fail("a credential was made"))


def limit(worker: Worker) -> None:
    """Change a limit of a worker from outside, as its own user, who may."""
    as_worker = ["setpriv", f"--reuid={worker.uid}", f"--regid={worker.uid}", "--clear-groups", "--"]
    prefix = as_worker if hosts.shape() is Shape.HOSTED else []
    subprocess.run([*prefix, "prlimit", "--pid", str(worker.pid), "--nofile=20"], check=True)


def kill(worker: Worker) -> None:
    """Kill a worker from outside and wait until it is a process no more."""
    pidfd = os.pidfd_open(worker.pid)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(SECONDS * 1000)
    os.close(pidfd)


def own_profile(tmp_path: Path, more: str) -> None:
    """Write a profile of the user's own."""
    folder = tmp_path / "profiles"
    folder.mkdir(exist_ok=True)
    (folder / "own.toml").write_text(f'description = "Own."\nextends = "worker"\n{more}')


def keeping(
    sandbox: Sandbox, patch: Patch, change: Callable[[Worker], None] = lambda _: None
) -> list[Worker]:
    """Keep each worker that is made, after it was changed; gives the list they come to."""
    make, made = sandbox.make, list[Worker]()

    async def kept(plan: Plan) -> Worker:
        made.append(await make(plan))
        change(made[-1])
        return made[-1]

    patch.setattr(sandbox, "make", kept)
    return made


# --- receipt and credential ---


async def durable(tmp_path: Path, patch: Patch) -> None:
    """See what other readers of the log find at the moment a credential is made."""
    async with sandboxing(tmp_path) as (here, _, transports):
        mint = here.kernel.credentials.mint
        seen: list[tuple[float | None, list[str]]] = []

        def minting(run: Run, holder: Holder, *, seconds: float | None) -> str:
            with closing(sqlite3.connect(f"file:{tmp_path}/hub.db?mode=ro", uri=True)) as log:
                found = log.execute("SELECT kind FROM records WHERE thread = ?", (run.terms.thread,))
                seen.append((seconds, [kind for (kind,) in found]))
            return mint(run, holder, seconds=seconds)

        patch.setattr(here.kernel.credentials, "mint", minting)
        run = await transports.start(ADMINISTRATOR, THEIRS)
        await asyncio.gather(*transports._runs)
        assert seen == [(20 + GRACE, [names.LOOP, names.ISOLATION])]
        assert (await here.kernel.rows.row(run.terms.thread))["state"] == "done"


async def granted(tmp_path: Path, patch: Patch) -> None:
    """Have a run of a daemon as `serve` makes it, and move the clock that its credentials go by."""
    clock, secrets = [0.0], list[str]()
    credentials = Credentials(lambda: clock[0])
    mint = credentials.mint

    def minting(run: Run, holder: Holder, *, seconds: float | None) -> str:
        secrets.append(mint(run, holder, seconds=seconds))
        return secrets[-1]

    patch.setattr(credentials, "mint", minting)
    patch.setattr("spl.daemon.Credentials", lambda _: credentials)
    flags = {
        "home": tmp_path / "home",
        "port": 0,
        "provider": scripts.write(tmp_path / "script", *scripts.endless()),
        "credential_grace_seconds": 7,
        "standby_workers": 0,
    }
    async with AsyncExitStack() as stack:
        daemon = await assemble(load(flags, {}), stack, asyncio.Event())
        sandbox = daemon.transports._sandbox
        assert isinstance(sandbox, Sandbox)
        made = keeping(sandbox, patch)
        client, asked = Client(str(daemon.home.operator_socket)), {"goal": "Go on.", "actor": MEMBER}
        await asyncio.to_thread(
            client.request, "POST", "/v1/work/loop", {**asked, "wall_clock_secs": SECONDS}
        )
        (worker,), (secret,) = made, secrets
        for passed, lives in ((0, True), (SECONDS + 6.9, True), (SECONDS + 7, False)):
            clock[0] = passed
            found = credentials.find(secret, worker.pid, time.monotonic())
            assert (found is not None) is lives, passed
        assert worker.confined.alive


async def unconfirmed(tmp_path: Path, patch: Patch) -> None:
    """Leave a worker's limits as they are."""
    async with sandboxing(tmp_path) as (here, _, transports):
        no_credential(here, patch)
        patch.setattr("bwrap.launch.Launch._limit", lambda *_: None)
        with pytest.raises(IsolationUnavailable) as refused:
            await transports.start(ADMINISTRATOR, THEIRS)
        assert refused.value.fields["layer"] == "limits"
        assert all_free(here)


async def mended(tmp_path: Path, patch: Patch) -> None:
    """Start on a host that cannot confine, then can, then cannot; see what is told of it after each start."""
    async with sandboxing(tmp_path) as (here, sandbox, transports):
        await here.tier("trial", concurrent_runs=2)
        told = []
        make, failing = sandbox.make, True

        async def making(plan: Plan) -> Worker:
            if failing:
                raise LayerError("network", expected="loopback alone", observed="eth0", remedy="mend it")
            return await make(plan)

        patch.setattr(sandbox, "make", making)
        for failing in (True, False, True):
            if failing:
                with pytest.raises(IsolationUnavailable):
                    await transports.start(ADMINISTRATOR, THEIRS)
            else:
                await transports.start(ADMINISTRATOR, THEIRS)
            told.append(transports.isolation.wire())
        await asyncio.gather(*transports._runs)
        shape = str(hosts.shape())
        assert [each["shape"] for each in told] == [shape] * 3
        assert [each.get("refused", {}).get("layer") for each in told] == ["network", None, "network"]
        assert ["network" in each["layers"] for each in told] == [False, True, False]


async def held(tmp_path: Path, patch: Patch) -> None:
    """Ask whom a worker's credential would serve."""
    async with sandboxing(tmp_path) as (_, sandbox, __):
        plan = await sandbox.plans.plan("worker")
        before = time.monotonic()
        worker = await sandbox.make(plan)
        holds: Callable[[int, float], bool] = worker.holder()
        assert holds(worker.pid, time.monotonic())
        assert not holds(os.getpid(), time.monotonic())
        # A connection from before it was confirmed may be another's, who had the number then.
        assert not holds(worker.pid, before)
        worker.confined.kill("test")
        await worker.confined.wait()
        assert not holds(worker.pid, time.monotonic())
        worker.entrust("too late")  # and nothing comes of it


async def changed(tmp_path: Path, patch: Patch, change: str, layer: str | None) -> None:
    """Change a worker after it was confirmed."""
    async with sandboxing(tmp_path) as (here, sandbox, transports):
        no_credential(here, patch)
        made = keeping(sandbox, patch, {"limit": limit, "kill": kill}[change])
        with pytest.raises(IsolationUnavailable) as refused:
            await transports.start(ADMINISTRATOR, THEIRS)
        assert layer in (None, refused.value.fields["layer"])
        (record,) = await here.store.select(limit=10)
        assert (record.kind, record.body["layer"]) == (names.REFUSAL, refused.value.fields["layer"])
        assert here.kernel.live == {}
        assert not made[0].confined.alive
        assert all_free(here)


async def suspected(tmp_path: Path, patch: Patch) -> None:
    """Preview by two profiles after a worker of one was refused, and after one of the other was made."""
    async with sandboxing(tmp_path) as (here, sandbox, transports):
        await here.say(topic="work_loop_profile", profile="strict", tier="paid")
        await here.give("did:sync:user:ned", "paid")
        make = sandbox.make

        async def making(plan: Plan) -> Worker:
            raise LayerError("network", expected="loopback alone", observed="eth0", remedy="mend it")

        async def refusals(actor: str) -> list[dict[str, Any]]:
            said = await transports.preview(ADMINISTRATOR, Start(goal="a goal", actor=actor))
            found: list[dict[str, Any]] = said["refusals"]
            assert said["would_start"] is not bool(found)
            return found

        theirs, neds = MEMBER, "did:sync:user:ned"
        patch.setattr(sandbox, "make", making)
        with pytest.raises(IsolationUnavailable) as error:
            await transports.start(ADMINISTRATOR, THEIRS)
        before = await here.store.count()
        assert await refusals(theirs) == [error.value.wire()]
        assert error.value.fields["layer"] == "network"
        # Of the other profile nothing is known yet.
        assert await refusals(neds) == []
        assert await here.store.count() == before
        patch.setattr(sandbox, "make", make)
        await transports.start(ADMINISTRATOR, Start(goal="a goal", actor=neds, wall_clock_secs=20))
        await asyncio.gather(*transports._runs)
        assert await refusals(theirs) == []


async def threadless(tmp_path: Path, patch: Patch) -> None:
    """Start while the system lets the daemon have no thread to make the plan in, and when it does again."""
    async with sandboxing(tmp_path) as (here, sandbox, transports):
        no_credential(here, patch)
        await here.tier("trial", daily_runs=1)
        made = keeping(sandbox, patch)
        with no_threads(), pytest.raises(IsolationUnavailable) as refused:
            await transports.start(ADMINISTRATOR, THEIRS)
        assert (refused.value.status, refused.value.code) == (503, "ISOLATION_UNAVAILABLE")
        fields = refused.value.fields
        assert (fields["layer"], fields["observed"]) == ("sandbox", "can't start new thread")
        (record,) = await here.on(names.ISOLATION_THREAD)
        assert (record.kind, record.body["layer"]) == (names.REFUSAL, "sandbox")
        assert (made, here.kernel.live, transports._starts, sandbox.plans._making) == ([], {}, set(), set())
        assert all_free(here)
        assert here.kernel.usage.refusals(MEMBER, here.kernel.tier_of(MEMBER)) == []
        patch.undo()
        await transports.start(ADMINISTRATOR, THEIRS)
        await asyncio.gather(*transports._runs)


class _NoThreads(ThreadPoolExecutor):
    """What an executor is to its caller where pthread_create(3) fails with EAGAIN."""

    def _adjust_thread_count(self) -> None:
        raise RuntimeError("can't start new thread")


@contextmanager
def no_threads() -> Iterator[None]:
    """Have the event loop get no thread for a while."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_NoThreads())
    try:
        yield
    finally:
        loop.set_default_executor(ThreadPoolExecutor())


# --- slots ---


async def full(tmp_path: Path, patch: Patch) -> None:
    """Start past the ceiling, and again when there is room."""
    async with sandboxing(tmp_path) as (here, sandbox, transports):
        await here.tier("trial", daily_runs=1)
        before = await here.store.count()
        slots = [here.kernel.admission.take(1, OPERATOR) for _ in range(2)]
        # The slot is taken before the worker is made.
        made = keeping(sandbox, patch, lambda _: _require(not here.kernel.admission.available(1)))
        with pytest.raises(AdmissionCeiling):
            await transports.start(ADMINISTRATOR, THEIRS)
        assert (made, await here.store.count()) == ([], before)
        slots[0].release()
        # The start that was refused is not counted among the day's.
        await transports.start(ADMINISTRATOR, THEIRS)
        assert len(made) == 1


async def faulty(tmp_path: Path, patch: Patch, at: str) -> None:
    """Have the daemon itself fail at a step of a start, or at a run's end."""

    def failing(*_: object, **__: object) -> Any:
        raise RuntimeError("a fault")

    async with sandboxing(tmp_path) as (here, sandbox, transports):
        made = keeping(sandbox, patch)
        patch.setattr(here.kernel.credentials if at == "mint" else here.kernel, at, failing)
        if at == "finish":
            await transports.start(ADMINISTRATOR, THEIRS)
        else:
            with pytest.raises(RuntimeError, match="a fault"):
                await transports.start(ADMINISTRATOR, THEIRS)
        await asyncio.gather(*transports._runs)
        assert all_free(here)
        assert not made[0].confined.alive
        if at == "mint":
            # Not at its wall clock: it was not left to wait for a credential.
            (outcome,) = await here.store.select(kind=names.OUTCOME)
            assert (outcome.body["outcome"], outcome.body["exit"]) == ("failed", {"signal": "SIGKILL"})


async def dying(tmp_path: Path, patch: Patch, moment: str) -> None:
    """Kill a worker right before or after its credential is written."""
    entrust = Worker.entrust

    def entrusting(worker: Worker, credential: str) -> None:
        if moment == "before":
            kill(worker)
        entrust(worker, credential)
        if moment == "after":
            kill(worker)

    async with sandboxing(tmp_path) as (here, _, transports):
        patch.setattr(Worker, "entrust", entrusting)
        run = await transports.start(ADMINISTRATOR, THEIRS)
        await asyncio.gather(*transports._runs)
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["exit"]) == ("failed", {"signal": "SIGKILL"})
        assert all_free(here)


# --- profiles ---


async def chosen(tmp_path: Path, patch: Patch) -> None:
    """Start twice by a profile that is edited in between."""
    async with sandboxing(tmp_path) as (here, _, transports):
        patch.setattr(here.kernel, "_check_profile", _nothing)
        own_profile(tmp_path, '[limits]\naddress_space = "64M"\n')
        await here.say(topic="work_loop_profile", profile="own", tier="trial")
        await here.tier("trial", concurrent_runs=2)
        digests = []
        for _ in range(2):
            run = await transports.start(ADMINISTRATOR, THEIRS)
            (anchor,) = await here.bodies(run.terms.thread, names.LOOP)
            (receipt,) = await here.bodies(run.terms.thread, names.ISOLATION)
            assert anchor["profile"] == receipt["profile"] == "own"
            assert anchor["profile_digest"] == receipt["profile_digest"]
            digests.append(receipt["profile_digest"])
            own_profile(tmp_path, '[limits]\naddress_space = "65M"\n')
        await asyncio.gather(*transports._runs)
        assert digests[0] != digests[1]


async def unusable(
    tmp_path: Path, patch: Patch, more: str | None, layer: str, expected: str, observed: str
) -> None:
    """Start by a profile that cannot be used any more."""
    async with sandboxing(tmp_path) as (here, _, transports):
        no_credential(here, patch)
        patch.setattr(here.kernel, "_check_profile", _nothing)
        if more is not None:
            own_profile(tmp_path, more)
        await here.say(topic="work_loop_profile", profile="own")
        with pytest.raises(IsolationUnavailable) as error:
            await transports.start(ADMINISTRATOR, THEIRS)
        fields = error.value.fields
        assert fields["layer"] == layer, fields
        assert expected in str(fields["expected"]), fields
        assert observed in str(fields["observed"]), fields
        assert str(fields["remedy"]).endswith(
            "see 'spl profile lint own' and 'spl profile try own -- COMMAND'"
        )
        (record,) = await here.on(names.ISOLATION_THREAD)
        assert (record.kind, record.body["profile"], record.body["layer"]) == (names.REFUSAL, "own", layer)
        assert await here.store.count() == 2
        assert all_free(here)


async def _nothing(_: str) -> None:
    """Refuse no profile: what is chosen here went bad after it was."""


def _require(holds: bool) -> None:
    assert holds
