"""A daemon whose workers mean harm, and whose model is in their hands; all else of it is as `spl serve` makes it.

Run as `spl.cli.main` is, for `serve` and its flags. Only here, where a daemon is assembled, can another image be named.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spl import hardening, logs
from spl.daemon import assemble
from spl.inference.model import Call, Reply, Usage
from spl.inference.prices import Flat
from spl.settings import load
from spl.transports import image

if TYPE_CHECKING:
    from bwrap.host import Python
    from bwrap.sealed import Sealed
    from spl.inference.model import Request
    from spl.inference.prices import Price

HONEST = (
    Call("note", "record_note", {"text": "undisturbed"}),
    Call("sum", "calculate", {"expression": "6 * 7"}),
)
"""What an honest run does in its one turn."""


class Puppet:
    """A model that replies what the last message asks for, as one can that a worker talked into it.

    `{"calls": [[id, tool, arguments], …]}` or `{"text": …}`; before that, `{"release": name}` lets go whoever waits,
    or will wait, with `{"wait": name}`. Whatever else is said is worked on in two turns, the first with `HONEST`.
    """

    name = default_model = "puppet"
    url: str | None = None

    def __init__(self) -> None:
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def complete(self, request: Request) -> Reply:
        """Give the reply that is asked for."""
        said = _object(request.messages[-1]["content"])
        if "release" in said:
            self._released[said["release"]].set()
        if "wait" in said:
            await self._released[said["wait"]].wait()
        if "calls" in said or "text" in said:
            calls = tuple(Call(*each) for each in said.get("calls", ()))
        else:
            calls = HONEST if request.turn == 0 else ()
        return Reply(said.get("text", "Done."), calls, "tool_use" if calls else "end", Usage(), self.name)

    def price(self, model: str) -> Price:
        """Give what a million tokens cost."""
        return Flat(Decimal(0), Decimal(0))

    async def close(self) -> None:
        """Do nothing."""


def hostile(python: Python) -> Sealed:
    """Seal the worker that means harm."""
    here = Path(__file__).parent
    own = {
        f"tests.end_to_end.{name}": (here / f"{name}.py").read_text(encoding="utf-8")
        for name in ("hostile_requests", "hostile_image")
    }
    packages = dict.fromkeys(("tests", "tests.end_to_end"), "")
    return image.pack(python, {**image.sources(), **packages, **own}, "tests.end_to_end.hostile_image")


def _object(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


async def _serve(flags: dict[str, object]) -> None:
    hardening.protect()
    logs.configure("json")
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with AsyncExitStack() as stack:
        daemon = await assemble(load(flags), stack, stopping, image=hostile)
        daemon.transports.stand_by()
        daemon.kernel.broker.provider = Puppet()
        print(daemon.announcement(), flush=True)  # noqa: T201 - as `spl serve` does
        await stopping.wait()


if __name__ == "__main__":
    words = [word.removeprefix("--") for word in sys.argv[2:]]
    asyncio.run(_serve(dict(zip(words[::2], words[1::2], strict=True))))
