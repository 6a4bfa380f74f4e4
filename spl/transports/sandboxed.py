"""The loop in a confined process: launched, confirmed, entrusted with one credential, watched to its end."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bwrap.host import shape
from bwrap.launch import launch
from spl.kernel import isolation
from spl.kernel.outcome import Ending

if TYPE_CHECKING:
    from bwrap.confined import Confined
    from bwrap.errors import LayerError
    from bwrap.ledger import Ledger
    from bwrap.plan import Plan
    from bwrap.sealed import Sealed
    from bwrap.supervise import Exit
    from spl.kernel.credentials import Holder
    from spl.kernel.runs import Run
    from spl.transports.plans import Plans


@dataclass
class Sandbox:
    """What every worker of this daemon is made from; `probe_seconds` is how long one may take to be ready."""

    plans: Plans
    image: Sealed
    ledger: Ledger
    probe_seconds: float

    async def make(self, plan: Plan) -> Worker:
        """Make one worker of a plan, confirmed and holding nothing yet; raises `bwrap.errors.LayerError`."""
        confined = await launch(plan, self.image, self.ledger, seconds=self.probe_seconds)
        try:
            # Its probe's own connection is older than this: only what it makes with its credential is younger.
            return Worker(confined, time.monotonic(), datetime.now(UTC))
        except BaseException:
            # What would be told of it has no form: nobody has it, and nobody would end it.
            await confined.stop("never told of")
            raise


@dataclass(frozen=True, slots=True)
class Isolation:
    """What the last worker, made by `profile`, showed of this host: the layers that hold, or the one that does not."""

    layers: list[str]
    refused: LayerError | None = None
    profile: str | None = None

    @classmethod
    def of(cls, worker: Worker) -> Isolation:
        """Give what a confirmed worker showed."""
        return cls([each.layer for each in worker.confined.receipt.layers])

    def refuses(self, profile: str) -> LayerError | None:
        """Give the layer by which a worker of this profile was refused last, if nothing was confirmed since."""
        return self.refused if profile == self.profile else None

    def wire(self) -> dict[str, Any]:
        """Give it as health reports it, with the shape, which is this process's."""
        found: dict[str, Any] = {"shape": str(shape()), "layers": self.layers}
        if self.refused is not None:
            found["refused"] = self.refused.wire()
        return found


class Worker:
    """One confined process that serves one run; `made_at` is of the monotonic clock, `confirmed_at` for people."""

    def __init__(self, confined: Confined, made_at: float, confirmed_at: datetime) -> None:
        self.confined = confined
        self._made_at = made_at
        self._receipt = isolation.confirmed(confined.receipt.wire(), confirmed_at)

    @property
    def pid(self) -> int:
        """Its pid, as connections to the worker socket name it."""
        return self.confined.process.pid

    @property
    def uid(self) -> int:
        """Its uid outside its namespaces."""
        return self.confined.process.uid

    def look_again(self) -> dict[str, Any]:
        """Look at every layer from outside once more; gives the receipt as it stands on record, with both times.

        Raises `LayerError` for one that is not as it was claimed and confirmed any more; the worker is killed then.
        """
        self.confined.look_again()
        return isolation.looked_at(self._receipt, datetime.now(UTC))

    def holder(self) -> Holder:
        """Give the test that a connection is this process's own.

        The peer's pid could be a recycled number: so the process must still live, by its pidfd, and the connection
        must be younger than it. Then the number has meant this process ever since.
        """
        return lambda pid, accepted_at: (
            pid == self.pid and accepted_at >= self._made_at and self.confined.alive
        )

    def entrust(self, credential: str) -> None:
        """Hand over the credential, on standard input; this is the first it ever holds."""
        self.confined.entrust(json.dumps({"credential": credential}).encode() + b"\n")

    async def serve(self, run: Run, *, grace: float) -> Ending:
        """Watch the process to its end, or to the run's wall clock; nothing of it is left when this returns.

        A run that is to end is given `grace` seconds to come to its next step and leave, then it is killed.
        """
        try:
            async with asyncio.timeout(run.terms.ceilings.wall_clock_secs):
                ended = await self._ended(run, grace)
        except TimeoutError:
            ended = await self.confined.stop("wall_clock")
        except asyncio.CancelledError:
            ended = await self.confined.stop("daemon")
        return Ending(ended.clean, ended.wire(), ended.killed, self.confined.stderr)

    async def _ended(self, run: Run, grace: float) -> Exit:
        waiting = asyncio.ensure_future(self.confined.wait())
        try:
            await run.until_ending(waiting)
        finally:
            if not waiting.done():
                waiting.cancel()
        return await self.confined.stop("stop", grace=grace)
