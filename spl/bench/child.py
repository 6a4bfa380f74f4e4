"""The helper, in a process of its own: a daemon that says when its starts were made, and what needs its event loop.

Started with a home that it makes and the options of `Options`, it says what the host is in one line once it serves.
Each line of JSON on standard input, `{"do": ...}`, is answered by one; it ends with its standard input, or on SIGTERM,
and lets go of what it works at.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bwrap import host as hosts
from bwrap.arguments import arguments
from bwrap.errors import ConfinementError
from bwrap.library import Library
from bwrap.plan import Places, resolve
from bwrap.uids import Pool
from spl import logs
from spl.api.answers import JsonAnswer
from spl.api.listener import Listener, bind_unix
from spl.bench import image, log, phases, stamps
from spl.bench.processes import CALLS, CONSTANT, WATCHED
from spl.daemon import assemble
from spl.errors import SplError
from spl.hardening import protect
from spl.home import Home
from spl.records.record import Draft
from spl.settings import Settings, load, uid_range
from spl.transports.image import seal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bwrap.plan import Plan
    from bwrap.sealed import Sealed
    from spl.health import Daemon

_RUNS_AT_ONCE: Final = 24
_PROBE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the helper's daemon is: by default one of the settings' defaults, with the echo provider.

    With `verdicts` its runs propose what a script says, by the program that times each verdict, and no start is
    stamped, which would stand in each verdict's way. `standby_workers` is how many it keeps, None for the default.
    """

    verdicts: bool = False
    standby_workers: int | None = None

    def settings(self, home: str) -> Settings:
        """Give the settings of a daemon in a home."""
        provider = f"script:{_script(home)}" if self.verdicts else "echo"
        given: dict[str, Any] = {"home": home, "port": 0, "provider": provider}
        if self.verdicts:
            given["admission_capacity"] = _RUNS_AT_ONCE
        if self.standby_workers is not None:
            given["standby_workers"] = self.standby_workers
        return load(given, {})


async def _serve(home: str, options: Options) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    if not options.verdicts:
        stamps.prepare()
    async with contextlib.AsyncExitStack() as stack:
        settings = options.settings(home)
        program = image.seal if options.verdicts else seal
        daemon = await assemble(settings, stack, stopping, image=program)
        daemon.transports.stand_by()
        if not options.verdicts:
            stamps.follow(daemon)
        await stack.enter_async_context(_constant(daemon))
        launches = _Launches(daemon, settings)
        stack.push_async_callback(launches.close)
        _tell(launches.facts())
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        ended = asyncio.create_task(stopping.wait())
        asked = asyncio.create_task(reader.readline())
        while not stopping.is_set():
            await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done() or not asked.result():
                break
            doing = asyncio.create_task(_do(json.loads(asked.result()), daemon, launches))
            asked = asyncio.create_task(reader.readline())
            await asyncio.wait((doing, ended, asked), return_when=asyncio.FIRST_COMPLETED)
            if asked.done() and asked.result():
                # Asked ahead, which is no end of the input.
                await asyncio.wait((doing, ended), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                doing.cancel()
                await asyncio.wait((doing,))
                break
            _tell(doing.result())
        asked.cancel()
        ended.cancel()


async def _do(asked: dict[str, Any], daemon: Daemon, launches: _Launches) -> Any:
    match asked["do"]:
        case "starts":
            return stamps.taken()
        case "tell":
            return await _tell_watchers(daemon)
        case "launch":
            return await launches.phases()
        case "idle":
            return await launches.idle(asked["seconds"])
        case "build":
            return await log.build(asked["home"], asked["records"])
        case "append":
            return await log.append_rates(asked["folder"], asked["rounds"])
        case "page":
            return await log.page_times(asked["few"], asked["many"], asked["rounds"])
    raise ValueError("there is nothing of this name to do")


async def _tell_watchers(daemon: Daemon) -> dict[str, int]:
    """Append a record; gives when that was asked for, and when it was durable and known to be."""
    body = {"kind": "core.work.note.v1", "text": "What was seen, said in a few words."}
    began = time.monotonic_ns()
    await daemon.kernel.store.append([Draft(WATCHED, daemon.kernel.operator, "KNOW", body)])
    return {"began": began, "durable": time.monotonic_ns()}


class _Launches:
    """Launches of the installed worker beside the daemon's own, in a ledger of their own."""

    def __init__(self, daemon: Daemon, settings: Settings) -> None:
        host = hosts.examine()
        self._plan: Plan = resolve(
            Library().load("worker"), host, Places(str(daemon.home.path), daemon.worker_socket)
        )
        self._image: Sealed = seal(host.python)
        pool = Pool(*uid_range(settings.worker_uids))
        self._ledger = phases.Stamped(str(daemon.home.path / "run" / "launches"), pool=pool)

    def facts(self) -> dict[str, Any]:
        """Give what the floors are made of, and what of this host the figures are to be read with."""
        host = self._plan.host
        return {
            "shape": str(host.shape),
            "bubblewrap": host.bubblewrap.path,
            "bubblewrap_version": host.bubblewrap.version,
            "namespaces": list(itertools.takewhile(_is_of_namespaces, arguments(self._plan))),
            "python": host.python.path,
            "python_version": host.python.version,
            "worker_bytes_at_most": self._plan.worst_case,
        }

    async def phases(self) -> list[int]:
        """Launch one worker and let it go; gives the nanoseconds of each phase."""
        confined, took = await phases.launch(self._plan, self._image, self._ledger, seconds=_PROBE_SECONDS)
        await confined.stop("measured")
        return took

    async def idle(self, seconds: float) -> dict[str, int]:
        """Launch one worker, let it be for a while and give what it and its monitor take up, in bytes."""
        confined, _ = await phases.launch(self._plan, self._image, self._ledger, seconds=_PROBE_SECONDS)
        try:
            await asyncio.sleep(seconds)
            process = confined.process
            worker, monitor = _memory(process.pid), _memory(process.monitor)
            return {
                "worker": worker["Pss"],
                "own": worker["Private_Clean"] + worker["Private_Dirty"],
                "monitor": monitor["Pss"],
            }
        finally:
            await confined.stop("measured")

    async def close(self) -> None:
        """Let go of the worker's program."""
        self._image.close()


def _memory(pid: int) -> dict[str, int]:
    """Give what a process takes up by each reckoning, in bytes: `Pss` is its proportional set (proc_pid_smaps(5))."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        # The first line is of the addresses.
        lines = [line.split() for line in file][1:]
    return {name.removesuffix(":"): int(value) * 1024 for name, value, _ in lines}


def _is_of_namespaces(option: str) -> bool:
    return option.startswith("--unshare-") or option in {"--disable-userns", "--as-pid-1"}


@contextlib.asynccontextmanager
async def _constant(daemon: Daemon) -> AsyncIterator[None]:
    """Serve one answer on a socket of its own, by the server that the doors have."""
    answer = JsonAnswer({"decision": "allow"})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(scope, receive, send)

    listener = Listener(app, bind_unix(str(daemon.home.run / CONSTANT), 0o600), grace=0.1)
    await listener.start()
    try:
        yield
    finally:
        await listener.stop()


def _script(home: str) -> str:
    """Write what the model of this daemon's replies: one reply with many calls."""
    opened = Home.open(home, create=True)
    path = str(opened.path / "replies.json")
    calls = [{"name": "record_note", "arguments": {"text": f"note {number}"}} for number in range(CALLS)]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"replies": [{"calls": calls}]}, file)
    return path


def _tell(said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until standard input ends."""
    protect()
    logs.configure("json")
    try:
        asyncio.run(_serve(sys.argv[1], Options(**json.loads(sys.argv[2]))))
    except (SplError, ConfinementError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
