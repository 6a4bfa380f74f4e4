"""A start from its request to a running loop: the order in which plan, slot, worker, records and credential come.

Nothing is written before a worker is confirmed, no credential is made before the receipt is durable, and whatever
fails on the way gives back what was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from bwrap.errors import LayerError
from spl.errors import DaemonStopping, Internal, IsolationUnavailable, SplError, StoreUnavailable
from spl.kernel.outcome import Ending
from spl.kernel.tiers import OPERATOR
from spl.transports import in_process
from spl.transports.plans import stopping
from spl.transports.sandboxed import Isolation
from spl.transports.standby import Standbys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from bwrap.plan import Plan
    from spl.kernel.admission import Slot
    from spl.kernel.kernel import Kernel
    from spl.kernel.principals import Principal
    from spl.kernel.runs import Run
    from spl.kernel.terms import Start, Terms
    from spl.kernel.usage import Place
    from spl.transports.sandboxed import Sandbox, Worker

LOOK_SECONDS: Final = 0.5
"""How long a profile may take to be looked through, for who only asks for room, before it is taken as it was."""

_RETRY_SECONDS, _RETRY_MOST_SECONDS = 1.0, 30.0

_log = structlog.get_logger("spl.transports")

Json = dict[str, Any]


class Room(NamedTuple):
    """The places there are for sandboxed runs that take `each` bytes, or the layer that none can be had for."""

    each: int
    capacity: int
    available: int
    refused: LayerError | None = None

    def wire(self) -> Json:
        """Give the places as health and a preview name them."""
        return {"admission_capacity": self.capacity, "admission_available": self.available}


class Transports:
    """Starts runs and sees them end.

    `sandbox` is what workers are made from, or the `LayerError` that says why none can be on this host: then every
    sandboxed start is refused by that layer. `credential_grace` is in seconds, beyond the run's wall clock.
    `standby` gives how many standby workers there are to be of each profile that starts would use now, from
    `stand_by` on. `isolation` is what the last worker showed of this host.
    """

    def __init__(
        self,
        kernel: Kernel,
        sandbox: Sandbox | LayerError,
        *,
        credential_grace: float,
        run_grace: float,
        standby: Callable[[], int] = lambda: 0,
    ) -> None:
        self._kernel = kernel
        self._sandbox = sandbox
        self._credential_grace = credential_grace
        self._run_grace = run_grace
        self._standbys = Standbys(
            sandbox, kernel.admission, standby, lambda: kernel.config.sandboxed_profiles
        )
        self.isolation = Isolation([])
        self.started: Callable[[str, float], None] = lambda *_: None
        """Told of each start: the transport, and the seconds until the loop goes on by itself."""
        self.refused: Callable[[str], None] = lambda _: None
        """Told of each start that came to nothing: the code of its error."""
        self.manned: Callable[[bool], None] = lambda _: None
        """Told of each sandboxed run that begins, whether its worker stood by."""
        self._runs: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[Run]] = set()
        self._workers: dict[str, Worker] = {}
        self._stopped = asyncio.Event()

    @property
    def stopping(self) -> bool:
        """Whether nothing more is started, for the daemon is about to end."""
        return self._stopped.is_set()

    def stand_by(self) -> None:
        """Have the standby workers made and kept, where this host can have any.

        Must be called on a thread that lives as long as the daemon does: they die with it, as every worker does.
        """
        self._kernel.config.changed = self._standbys.look
        self._standbys.begin()

    def standby(self) -> Json:
        """Give how many standby workers there are to be of each profile in use, and how many there are in all."""
        return {"target": self._standbys.target(), "ready": self._standbys.ready}

    async def start(self, principal: Principal, start: Start) -> Run:
        """Start a run; it goes on whatever becomes of the request that asked for it.

        Raises what `Kernel.terms`, `Kernel.take_place` and `Kernel.open` raise, `AdmissionCeiling`,
        `IsolationUnavailable`, `DaemonStopping` and `StoreUnavailable`.
        """
        with self._told():
            self._refuse_late()
            terms = self._kernel.terms(principal, start)
            place = self._kernel.take_place(terms)
        task: asyncio.Task[Run] = asyncio.create_task(self._start(terms, place))
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)
        return await asyncio.shield(task)

    async def preview(self, principal: Principal, start: Start) -> Json:
        """Give the terms that a start would have, and each refusal it would meet; nothing is started or written.

        Raises what `Kernel.terms` raises: who may not start such a run is not told of it either.
        """
        terms = self._kernel.terms(principal, start)
        refusals = self._kernel.refusals(terms)
        if self.stopping:
            refusals.append(stopping())
        elif (failing := self._kernel.store.failing) is not None:
            refusals.append(StoreUnavailable(failing))
        room = None
        if terms.profile is not None:
            room = await self.room(terms.profile)
            refused = room.refused or self.isolation.refuses(terms.profile)
            if refused is not None:
                refusals.append(_unavailable(refused))
            elif (
                not self.stopping
                and (full := self._kernel.admission.refusal(room.each, terms.actor, first=_first(terms)))
                is not None
            ):
                refusals.append(full)
        return {
            "object": "preview",
            **terms.wire(),
            "admission": None if room is None else room.wire(),
            "would_start": not refusals,
            "refusals": [refusal.wire() for refusal in refusals],
        }

    async def room(self, profile: str, *, seconds: float | None = None) -> Room:
        """Give how many sandboxed runs of a profile fit, and how many more now, or the layer none can be had for.

        With `seconds`, a profile that takes longer to look through is taken as it was. Once the daemon stops it is
        in any case, and there is no room by one that nobody has asked for yet.
        """
        try:
            if isinstance(self._sandbox, LayerError):
                raise self._sandbox
            plans = self._sandbox.plans
            seconds = 0 if self.stopping else seconds
            plan = await (plans.plan(profile) if seconds is None else plans.latest(profile, seconds=seconds))
            if isinstance(plan, LayerError):
                raise plan
        except LayerError as error:
            return Room(0, 0, 0, error)
        except DaemonStopping:
            return Room(0, 0, 0)
        each = plan.worst_case
        return Room(each, self._kernel.admission.capacity(each), self._kernel.admission.available(each))

    def workers(self) -> list[Json]:
        """Give each run's worker that lives: its thread, pid, resident memory and processor time."""
        found = []
        for thread, worker in self._workers.items():
            # Gone between two of these steps, it is not told of; a recycled pid never is.
            with contextlib.suppress(OSError):
                use = worker.confined.process.use()
                if worker.confined.alive:
                    found.append({"thread": thread, "pid": worker.pid, **use._asdict()})
        return found

    async def drain(self, seconds: float, hurried: asyncio.Event) -> None:
        """Start nothing more, tell each run to leave at its next step, and wait until all have left.

        At most so many seconds, and no longer than until `hurried` is set; `stop` ends what is left then. Until then a
        run may still be told to stop by a person, and everything is answered but a start.
        """
        self._stopped.set()
        for run in self._kernel.live.values():
            run.leave()
        if self._going():
            # Before the standby workers go, which takes a moment: it tells what there was when the daemon was told.
            _log.info("draining", runs=len(self._runs), starts=len(self._starts), seconds=seconds)
        await self._standbys.stop()
        if not self._going():
            return
        left, hurry = asyncio.create_task(self._left()), asyncio.create_task(hurried.wait())
        try:
            await asyncio.wait((left, hurry), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            hurry.cancel()
        if self._going():
            why = "told to stop again" if hurried.is_set() else "they did not leave in time"
            _log.warning("breaking off runs", runs=len(self._runs), starts=len(self._starts), error=why)

    async def stop(self) -> None:
        """End every run and wait until each has its outcome and no worker is left."""
        self._stopped.set()
        await self._standbys.stop()
        # Not only once the starts have come to something: a worker that is being made may take its time. What was
        # being opened meanwhile is a run by then.
        while going := self._going():
            runs = set(self._runs)
            # Each has begun then: cancelled before its first step, none would be seen through.
            await asyncio.sleep(0)
            for task in runs:
                task.cancel()
            await asyncio.gather(*going, return_exceptions=True)

    def _going(self) -> set[asyncio.Task[Any]]:
        return {*self._starts, *self._runs}

    async def _left(self) -> None:
        # A start that comes so far becomes a run.
        while going := self._going():
            await asyncio.wait(going)

    def _refuse_late(self) -> None:
        if self.stopping:
            raise stopping()

    async def _start(self, terms: Terms, place: Place) -> Run:
        began = time.perf_counter()
        try:
            with self._standbys.held_off(), self._told():
                if terms.profile is None:
                    run = await self._in_process(terms, place)
                else:
                    run = await self._sandboxed(terms, terms.profile, place)
        except BaseException:
            place.release(started=terms.thread in self._kernel.live)
            raise
        self.started(terms.transport, time.perf_counter() - began)
        return run

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Tell of an error that a start ends with; a fault of our own goes by the code that it is answered with."""
        try:
            yield
        except Exception as error:
            self.refused(error.code if isinstance(error, SplError) else Internal.code)
            raise

    async def _in_process(self, terms: Terms, place: Place) -> Run:
        self._refuse_late()
        run = await self._kernel.open(terms)
        self._watch(self._see_through(run, in_process.drive(run, grace=self._run_grace), place))
        _log.info("running in process", thread=terms.thread, actor=terms.actor)
        return run

    async def _sandboxed(self, terms: Terms, profile: str, place: Place) -> Run:
        async with self._refusing(terms):
            if isinstance(self._sandbox, LayerError):
                raise self._sandbox
            plan = await self._sandbox.plans.plan(profile)
            slot = self._kernel.admission.take(plan.worst_case, terms.actor, first=_first(terms))
            try:
                run, worker = await self._open(self._sandbox, plan, terms)
            except BaseException:
                slot.release()
                raise
            self.isolation = Isolation.of(worker)
            self._workers[terms.thread] = worker
        wall_clock = terms.ceilings.wall_clock_secs
        seconds = None if wall_clock is None else wall_clock + self._credential_grace
        self._watch(self._see_through(run, worker.serve(run, grace=self._run_grace), place, slot))
        try:
            worker.entrust(self._kernel.credentials.mint(run, worker.holder(), seconds=seconds))
        except BaseException:
            # Without a credential it would wait for one until its wall clock, and keep its slot.
            worker.confined.kill("never entrusted")
            raise
        _log.info(
            "running sandboxed",
            thread=terms.thread,
            pid=worker.pid,
            profile=profile,
            uid=worker.uid,
            actor=terms.actor,
        )
        return run

    async def _open(self, sandbox: Sandbox, plan: Plan, terms: Terms) -> tuple[Run, Worker]:
        """Take or make a worker and open its run; a worker whose run cannot be opened is gone when this raises."""
        worker, stood_by = await self._standbys.take(sandbox, plan, terms.actor, first=_first(terms))
        try:
            # The last moment at which a refusal leaves no trace but its own: with the anchor there is a run. What was
            # confirmed may be a while ago, and nothing is waited for between this look and the writing of the anchor.
            receipt = worker.look_again()
            self._refuse_late()
            run = await self._kernel.open(terms, receipt)
        except LayerError as error:
            if stood_by:
                _log.error(
                    "a layer of a standby worker changed",
                    pid=worker.pid,
                    profile=plan.profile,
                    **error.wire(),
                )
            await worker.confined.stop("never opened")
            raise
        except BaseException:
            await worker.confined.stop("never opened")
            raise
        self.manned(stood_by)
        return run, worker

    @contextlib.asynccontextmanager
    async def _refusing(self, terms: Terms) -> AsyncIterator[None]:
        """Write down once that a layer refused a start, and raise what the one who asked for it is answered."""
        try:
            yield
        except LayerError as error:
            refusal = error
            if terms.profile is not None and not isinstance(self._sandbox, LayerError):
                refusal = self._sandbox.plans.told(terms.profile, error)
            self.isolation = Isolation([], refusal, terms.profile)
            _log.error("sandboxed start refused", actor=terms.actor, profile=terms.profile, **refusal.wire())
            await self._kernel.refuse(terms, refusal.wire())
            raise _unavailable(refusal) from None

    async def _see_through(
        self, run: Run, loop: Coroutine[Any, Any, Ending], place: Place, slot: Slot | None = None
    ) -> None:
        thread = run.terms.thread
        try:
            ending = await loop
        except asyncio.CancelledError:
            # Cancelled while it was being ended already: it was killed, and the run must get its outcome.
            ending = Ending(clean=False, cause="daemon")
        except Exception:  # noqa: BLE001 - whatever it was, the run must get its outcome
            _log.exception("a loop failed by a fault of the daemon's own", thread=thread)
            ending = Ending(clean=False, said="A fault of the daemon's own.")
        finally:
            self._workers.pop(thread, None)
            place.release()
            if slot is not None:
                slot.release()
            self._standbys.look()
        try:
            await self._conclude(run, ending)
        except StoreUnavailable as error:
            # Nobody's fault but the disk's; the next start gives the run its outcome.
            _log.error("a run ended without its outcome", thread=thread, error=error.message)
            return
        except Exception:  # noqa: BLE001 - logged; the next start gives the run its outcome
            _log.exception("a run ended without its outcome", thread=thread)
            return
        _log.info("run ended", thread=thread, clean=ending.clean, exit=ending.exit, cause=ending.cause)

    async def _conclude(self, run: Run, ending: Ending) -> None:
        """Have the outcome written; a log that cannot take it now is asked again until it can or the daemon stops.

        What has no outcome by then gets one at the daemon's next start.
        """
        seconds = _RETRY_SECONDS
        while True:
            try:
                await self._kernel.finish(run, ending)
            except StoreUnavailable as error:
                _log.error("the outcome cannot be written", thread=run.terms.thread, error=error.message)
                if self.stopping:
                    raise
            else:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), seconds)
            seconds = min(2 * seconds, _RETRY_MOST_SECONDS)

    def _watch(self, run: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(run)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)


def _first(terms: Terms) -> bool:
    """Tell whether a run goes before all others that wait for a place: the operator waits for no member."""
    return terms.tier == OPERATOR


def _unavailable(refusal: LayerError) -> IsolationUnavailable:
    return IsolationUnavailable(
        f"the layer {refusal.layer} cannot be confirmed: "
        f"expected {refusal.expected}, observed {refusal.observed}",
        **refusal.wire(),
    )
