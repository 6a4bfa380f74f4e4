"""The daemon with a model that a test plays: run as `spl.cli.main` is, with a socket where a script would be.

Nothing else of it is another's: each model call becomes a connection to the socket, with the request on one line, and
the answer to it, on one line too, is a reply as scripts write it.
"""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import TYPE_CHECKING

from spl.cli.main import main
from spl.inference import chosen
from spl.inference.prices import Flat
from spl.inference.script import _entry

if TYPE_CHECKING:
    from spl.inference.model import Reply, Request
    from spl.inference.prices import Price

_LONGEST = 1 << 24


class Played:
    """A provider whose every reply comes from a socket; a million tokens cost one dollar."""

    name = default_model = "played"
    url: str | None = None

    def __init__(self, setting: str, **_: object) -> None:
        self._path = setting.removeprefix("script:")

    async def complete(self, request: Request) -> Reply:
        """Ask the test, and wait for as long as it takes."""
        reader, writer = await asyncio.open_unix_connection(self._path, limit=_LONGEST)
        try:
            asked = {"turn": request.turn, "messages": request.messages, "tools": request.tools}
            writer.write(json.dumps(asked).encode() + b"\n")
            reply = _entry(json.loads(await reader.readline()), request.turn)
        finally:
            writer.close()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def price(self, model: str) -> Price:
        """Give what a million tokens cost."""
        return Flat(Decimal(1), Decimal(1))

    async def close(self) -> None:
        """Do nothing."""


if __name__ == "__main__":
    # Before the daemon is imported, which the command does when it is to serve.
    chosen.chosen = Played  # type: ignore[assignment]
    main()
