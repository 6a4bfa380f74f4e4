"""A start from its request to a running loop: the order in which plan, slot, worker, records and credential come.

Nothing is written before a worker is confirmed, no credential is made before the receipt is durable, and whatever
fails on the way gives back what was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import structlog

from bwrap.errors import LayerError
from spl.errors import IsolationUnavailable, StoreUnavailable
from spl.kernel.outcome import Ending
from spl.transports import in_process
from spl.transports.sandboxed import Isolation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from bwrap.plan import Plan
    from spl.kernel.admission import Slot
    from spl.kernel.kernel import Kernel, Start
    from spl.kernel.principals import Principal
    from spl.kernel.runs import Run, Terms
    from spl.transports.sandboxed import Sandbox, Worker

_RETRY_SECONDS, _RETRY_MOST_SECONDS = 1.0, 30.0

_log = structlog.get_logger("spl.transports")


class Transports:
    """Starts runs and sees them end.

    `sandbox` is what workers are made from, or the `LayerError` that says why none can be on this host: then every
    sandboxed start is refused by that layer. `credential_grace` is in seconds, beyond the run's wall clock.
    `isolation` is what the last worker showed of this host.
    """

    def __init__(self, kernel: Kernel, sandbox: Sandbox | LayerError, *, credential_grace: float) -> None:
        self._kernel = kernel
        self._sandbox = sandbox
        self._credential_grace = credential_grace
        self.isolation = Isolation([])
        self._runs: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[Run]] = set()
        self._stopping = False

    async def start(self, principal: Principal, start: Start) -> Run:
        """Start a run; it goes on whatever becomes of the request that asked for it.

        Raises what `Kernel.terms` raises, `AdmissionCeiling`, `IsolationUnavailable`, `StoreUnavailable`.
        """
        if self._stopping:
            raise StoreUnavailable("the daemon is stopping and starts nothing more")
        terms = self._kernel.terms(principal, start)
        starting = self._in_process(terms) if terms.profile is None else self._sandboxed(terms, terms.profile)
        task: asyncio.Task[Run] = asyncio.create_task(starting)
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)
        return await asyncio.shield(task)

    async def stop(self) -> None:
        """End every run and wait until each has its outcome and no worker is left."""
        self._stopping = True
        await asyncio.gather(*self._starts, return_exceptions=True)
        for task in self._runs:
            task.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)

    async def _in_process(self, terms: Terms) -> Run:
        run = await self._kernel.open(terms)
        self._watch(self._see_through(run, in_process.drive(run), None))
        _log.info("running in process", thread=terms.thread)
        return run

    async def _sandboxed(self, terms: Terms, profile: str) -> Run:
        async with self._refusing(terms):
            if isinstance(self._sandbox, LayerError):
                raise self._sandbox
            plan = await self._sandbox.plans.plan(profile)
            slot = self._kernel.admission.take(plan.worst_case)
            try:
                run, worker = await self._open(self._sandbox, plan, terms)
            except BaseException:
                slot.release()
                raise
            self.isolation = Isolation.of(worker)
        wall_clock = terms.ceilings.wall_clock_secs
        seconds = None if wall_clock is None else wall_clock + self._credential_grace
        self._watch(self._see_through(run, worker.serve(run), slot))
        try:
            worker.entrust(self._kernel.credentials.mint(run, worker.holder(), seconds=seconds))
        except BaseException:
            # Without a credential it would wait for one until its wall clock, and keep its slot.
            worker.confined.kill("never entrusted")
            raise
        _log.info("running sandboxed", thread=terms.thread, pid=worker.pid, uid=worker.uid)
        return run

    async def _open(self, sandbox: Sandbox, plan: Plan, terms: Terms) -> tuple[Run, Worker]:
        """Make a worker and open its run; a worker whose run cannot be opened is gone when this raises."""
        worker = await sandbox.make(plan)
        try:
            # The last moment at which a refusal leaves no trace but its own: with the anchor there is a run. What was
            # confirmed may be a while ago, and nothing is waited for between this look and the writing of the anchor.
            worker.confined.look_again()
            return await self._kernel.open(terms, worker.confined.receipt.wire()), worker
        except BaseException:
            await worker.confined.stop("never opened")
            raise

    @contextlib.asynccontextmanager
    async def _refusing(self, terms: Terms) -> AsyncIterator[None]:
        """Write down once that a layer refused a start, and raise what the one who asked for it is answered."""
        try:
            yield
        except LayerError as error:
            refusal = error
            if terms.profile is not None and not isinstance(self._sandbox, LayerError):
                refusal = self._sandbox.plans.told(terms.profile, error)
            self.isolation = Isolation([], refusal)
            _log.error("sandboxed start refused", actor=terms.actor, **refusal.wire())
            await self._kernel.refuse(terms, refusal.wire())
            raise IsolationUnavailable(
                f"the layer {refusal.layer} cannot be confirmed: "
                f"expected {refusal.expected}, observed {refusal.observed}",
                **refusal.wire(),
            ) from None

    async def _see_through(self, run: Run, loop: Coroutine[Any, Any, Ending], slot: Slot | None) -> None:
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
            if slot is not None:
                slot.release()
        try:
            await self._conclude(run, ending)
        except Exception:  # noqa: BLE001 - logged; the next start gives the run its outcome
            _log.exception("a run ended without its outcome", thread=thread)
            return
        _log.info(
            "run ended", thread=run.terms.thread, clean=ending.clean, exit=ending.exit, cause=ending.cause
        )

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
                if self._stopping:
                    raise
            else:
                return
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _RETRY_MOST_SECONDS)

    def _watch(self, run: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(run)
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)
