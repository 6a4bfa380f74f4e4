"""The daemon, held when it is all but ready until the FIFO that `GO` names is closed: run as `spl.cli.main` is.

With `GONE`, it is held by that one too when it is all but gone.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from pathlib import Path
from typing import TYPE_CHECKING

from spl import daemon
from spl.cli.main import main

if TYPE_CHECKING:
    from spl.transports.sandboxed import Isolation, Sandbox

_trial = daemon._trial


async def _held(sandbox: Sandbox, profile: str) -> Isolation:
    found = await _trial(sandbox, profile)
    await asyncio.to_thread(Path(os.environ["GO"]).read_text)
    return found


if __name__ == "__main__":
    daemon._trial = _held  # type: ignore[assignment]
    if "GONE" in os.environ:
        atexit.register(Path(os.environ["GONE"]).read_text)
    main()
