"""A confined process that has been confirmed: what a daemon holds of it, until it is gone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bwrap.errors import LayerError
from bwrap.receipt import look_again

if TYPE_CHECKING:
    from bwrap.launch import Launch
    from bwrap.process import Process
    from bwrap.receipt import Receipt
    from bwrap.supervise import Exit


@dataclass
class Confined:
    """A live confined process, its receipt, and the one line it is still to be given."""

    process: Process
    receipt: Receipt
    _launch: Launch
    _killed: str | None = field(default=None, init=False)

    @property
    def alive(self) -> bool:
        """Whether it still runs, asked of its pidfd: true of this process only, whoever has its number later."""
        return self._launch.alive()

    @property
    def stderr(self) -> str:
        """The end of what it wrote to standard error; its own word."""
        return self._launch.said()

    def look_again(self) -> None:
        """Look at every layer from outside once more, on the live process, right before it is entrusted with anything.

        Raises `LayerError` for a layer that is not as claimed any more, or of one that is gone; it is killed then.
        """
        try:
            self._launch.require_alive()
            look_again(self.process)
            # Alive now, so that every number read above was this process's own.
            self._launch.require_alive()
        except LayerError:
            self.kill("a layer that changed")
            raise

    def entrust(self, line: bytes) -> None:
        """Write its one line (at most 4096 bytes) to standard input and close it.

        A process that is gone already is no error here: its end is seen by `wait`.
        """
        self._launch.write_input(line)

    def kill(self, why: str) -> None:
        """Kill it and its monitor; the first `why` will stand in its exit."""
        self._killed = self._killed or why
        self._launch.kill()

    async def wait(self) -> Exit:
        """Wait until it is gone and nothing of it is left; gives how it ended."""
        return (await self._launch.wait()).because(self._killed)

    async def stop(self, why: str, *, grace: float = 0) -> Exit:
        """Let it end by itself within `grace` seconds from now, then kill it; gives how it ended, nothing of it left.

        Nothing is sent before that: whatever tells it to stop has been said. Cut short, it kills at once.
        """
        ended = asyncio.ensure_future(self.wait())
        try:
            # Not asyncio.timeout: in a task that is being cancelled, that of Python 3.11 cancels once more.
            if grace > 0:
                await asyncio.wait([ended], timeout=grace)
        finally:
            if not ended.done():
                self.kill(why)
                await ended
        return ended.result()
