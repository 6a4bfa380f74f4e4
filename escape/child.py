"""One shape of the suite, in a process of its own: root's is hosted, any other uid's is same-user.

What it is to do comes as one line of JSON on standard input; what it finds goes out as lines of JSON, as it is found:
`{"host": …}`, `{"total": N}`, `{"row": …}`, `{"lack": …}`, `{"mutation": …}`, and at the end `{"done": true}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from bwrap.errors import ConfinementError
from escape import attempting
from escape.victims import Victims
from spl import logs
from spl.errors import SplError
from spl.hardening import drop_secrets, protect

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    Tell = Callable[[Mapping[str, Any]], None]


_BROKEN_OFF: Final = 3


def main() -> None:
    """Do what is asked, once."""
    # Whoever breaks the suite off must not leave victims behind: some outlive their maker.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_BROKEN_OFF))
    # As a daemon does: what its environment was started with, a key among it, is gone before anything is made.
    drop_secrets()
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_whoever_asked, daemon=True).start()
    protect()
    logs.configure("json")
    try:
        with Victims() as victims:
            _do(asked, victims)
    except (SplError, ConfinementError, OSError) as error:
        sys.exit(str(error))
    _tell({"done": True})


def _do(asked: Mapping[str, Any], victims: Victims) -> None:
    if asked["do"] == "run":
        work = attempting.run(victims, asked["profiles"], asked["only"], _tell)
    else:
        from escape import mutating  # noqa: PLC0415 - it takes layers away: loaded for that alone

        work = mutating.mutate(victims, asked["only"], _tell)
    try:
        asyncio.run(_until_broken_off(work))
    except asyncio.CancelledError:
        sys.exit(_BROKEN_OFF)


async def _until_broken_off(work: Coroutine[Any, Any, None]) -> None:
    """Do the work; on SIGTERM it is given up from within, while the daemon that its ends need still serves."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    await task


def _end_with_whoever_asked() -> None:
    """End as a signal would have it once standard input has: whoever asked is gone, and cannot say so itself."""
    while os.read(0, 1):
        pass
    # To the main thread by name: only there a handler runs, and only a signal of its own wakes it.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _tell(said: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
