"""Bad requests sent for real: to an instance in this process, or to a daemon, for as many rounds as are asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.fuzz import requests
from tests.fuzz.judge import Wrong, judge, require
from tests.fuzz.requests import Case, Dice

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from tests.end_to_end.daemon import Daemon
    from tests.fuzz.judge import Answer

SECONDS = 30
"""How long one exchange may take before it is a hang."""

SLACK_KIB = 16 * 1024
"""What a daemon's memory may grow by after the warm-up: by SQLite's caches, and the members, tokens and rules made."""

_AT_ONCE = 4
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
_STREAM = b"\r\ncontent-type: text/event-stream"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time to linger (socket(7)): close(2) resets

Address = str | tuple[str, int]
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Figures:
    """What was sent and how it was answered, and what the daemon held before and after."""

    requests: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    descriptors: tuple[int, int] = (0, 0)
    memory: tuple[int, int] = (0, 0)
    """KiB that are resident."""

    def grown(self) -> dict[str, tuple[int, int]]:
        """Give what is more than it may be."""
        found = {}
        if self.descriptors[1] > self.descriptors[0]:
            found["descriptors"] = self.descriptors
        if self.memory[1] > self.memory[0] + SLACK_KIB:
            found["memory"] = self.memory
        return found


@dataclass(frozen=True)
class Target:
    """Where cases are sent: sockets by name, each with the bearers to present there."""

    sockets: Mapping[str, Address]
    bearers: Mapping[str, Sequence[str]]
    shut: frozenset[str] = frozenset()
    """Sockets that hear nobody: they close what connects, unread."""

    async def one(self, rng: Dice, figures: Figures, witness: Pair) -> tuple[Case, list[Answer]]:
        """Send the next case; raises `Wrong` with the case in it."""
        open_ = sorted(self.sockets.keys() - self.shut)
        on = rng.choice(sorted(self.shut) if self.shut and not rng.randrange(20) else open_)
        rng.paths = requests.AT_DOORS if on == "worker" else requests.AT_ROUTES
        case = requests.case(rng, rng.choice(self.bearers[on]))
        figures.requests[case.kind.removesuffix(", in pieces")] += 1
        answers = await exchange(self.sockets[on], case, shut=on in self.shut)
        if not rng.randrange(16):
            await ask(witness)
        for answer in answers:
            figures.answers[f"{answer.status} {answer.code or ''}".rstrip()] += 1
        return case, answers


async def exchange(address: Address, case: Case, *, shut: bool = False) -> list[Answer]:
    """Send one case and give the answers; raises `Wrong`, also where the connection does not come to its end."""
    sent = case.sent
    try:
        async with asyncio.timeout(SECONDS):
            got, cut = await _talk(address, case.pieces, case.end)
    except TimeoutError:
        raise Wrong(f"no end of it: {case.kind} | {sent[:4000]!r}") from None
    require(not (shut and got), "an answer where nobody is heard", sent, got)
    if case.end != "half" or shut:
        return []
    try:
        return judge(sent, got, cut=cut)
    except Wrong as error:
        raise Wrong(f"{error} | {case.kind} | {sent[:4000]!r}") from None
    except (KeyError, ValueError, AttributeError) as error:
        raise Wrong(f"an answer that cannot be read: {error!r} | {sent[:4000]!r} | {got[:4000]!r}") from error


async def _talk(address: Address, pieces: Sequence[bytes], end: str) -> tuple[bytes, bool]:
    """Give what came back until the other side closed, and whether by a reset."""
    async with connection(address) as (reader, writer):
        got, reading = bytearray(), None
        try:
            reading = asyncio.create_task(_read(reader, got))
            cut = False
            try:
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)  # the other side's turn
                if end == "half":
                    writer.write_eof()
            except OSError:  # refused unread
                cut = True
            if end == "half":
                cut |= await reading
                return bytes(got), cut
            if end == "reset" and not isinstance(address, str):
                with contextlib.suppress(OSError):
                    peer = writer.get_extra_info("socket")
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            return b"", True
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


async def _read(reader: asyncio.StreamReader, got: bytearray) -> bool:
    """Read to the end, or until an event stream has begun, which has none; tells whether anything may be lost."""
    try:
        while piece := await reader.read(65536):
            got += piece
            if got.find(_STREAM, max(0, len(got) - len(piece) - len(_STREAM))) >= 0:
                return True
    except ConnectionError:
        return True
    return False


@contextlib.asynccontextmanager
async def connection(address: Address) -> AsyncIterator[Pair]:
    """Connect to a unix socket's path, or a host and port, for a while."""
    if isinstance(address, str):
        reader, writer = await asyncio.open_unix_connection(address)
    else:
        reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def ask(witness: Pair) -> None:
    """Ask for the health once more on a connection that is kept; raises `Wrong` where that is not answered."""
    reader, writer = witness
    try:
        async with asyncio.timeout(SECONDS):
            writer.write(HEALTH)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            require(head.startswith(b"HTTP/1.1 200 ") and length, "another connection is refused", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
    except (TimeoutError, EOFError, OSError) as error:
        raise Wrong(f"another connection is not served: {error!r}") from None


async def attack(
    target: Target,
    number: int,
    rng: Random,
    figures: Figures,
    *,
    at_once: int = 1,
    after: Callable[[Case, list[Answer]], Awaitable[None]] | None = None,
) -> None:
    """Send so many cases, `at_once` at a time, with another connection served meanwhile; raises `Wrong`.

    `after` is told each case and its answers, and before the first that nothing was sent yet.
    """

    async def some(number: int, rng: Dice) -> None:
        async with connection(target.sockets["tcp"]) as witness:
            await ask(witness)
            if after is not None:
                await after(Case("nothing", ()), [])
            for _ in range(number):
                case, answers = await target.one(rng, figures, witness)
                if after is not None:
                    await after(case, answers)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(some(number // at_once, Dice(rng.random())))


def rounds(daemon: Daemon, number: int, seed: int) -> Figures:
    """Send a daemon so many cases, and a quarter as many before, which warm it up; raises `Wrong`.

    Over TCP, to its operator's socket and to its workers', which hear nobody where this process is another user's. A
    fault of its own in its log is one too.
    """
    rng = Random(seed)
    token = (daemon.home / "token").read_text().strip()
    member = daemon.request("POST", "/v1/members", {"label": f"fuzz{seed}"})["token"]
    bearers = (token, token, member, "dead", "")
    own = os.stat(daemon.home).st_uid == os.geteuid()
    target = Target(
        {
            "tcp": ("127.0.0.1", daemon.port),
            "operator": str(daemon.home / "run/spl.sock"),
            "worker": str(daemon.home / "run/spl-worker.sock"),
        },
        dict.fromkeys(("tcp", "operator", "worker"), bearers),
        frozenset() if own else frozenset(("worker", "operator")),
    )
    daemon.set_standby(0)  # each has descriptors of the daemon's, and they come and go
    figures, line, first = Figures(), len(daemon.log.lines), _held(daemon)
    asyncio.run(attack(target, number // 4, rng, Figures(), at_once=_AT_ONCE))
    before = (first[0], _held(daemon)[1])
    asyncio.run(attack(target, number, rng, figures, at_once=_AT_ONCE))
    daemon.set_standby(0)  # what was sent may have said otherwise
    held, end = _held(daemon), time.monotonic() + SECONDS
    while held[0] > before[0] and time.monotonic() < end:
        # Runs that were started, and event streams whose readers have gone, are over a while later.
        daemon.request("GET", "/v1/engine/health")
        held = _held(daemon)
    figures.descriptors, figures.memory = zip(before, held, strict=True)
    faults = [said for said in daemon.log.lines[line:] if _is_fault(said)]
    require(not faults, "a fault in the log", *faults[:3])
    return figures


def _held(daemon: Daemon) -> tuple[int, int]:
    """Give how many descriptors the daemon has open and how many KiB are resident."""
    process = Path(f"/proc/{daemon.process.pid}")
    found = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
    assert found is not None
    return len(os.listdir(process / "fd")), int(found[1])


def _is_fault(line: str) -> bool:
    """Tell whether a line of the log is of something that was not foreseen."""
    try:
        said = json.loads(line)
    except ValueError:
        return True
    return "exception" in said


def told(figures: Figures) -> str:
    """Give the figures as a section of docs/soak.md."""
    rows = "".join(f"| {kind} | {number} |\n" for kind, number in sorted(figures.requests.items()))
    codes = "".join(f"| {answer} | {number} |\n" for answer, number in sorted(figures.answers.items()))
    descriptors, memory = figures.descriptors, [f"{kib / 1024:.1f} MiB" for kib in figures.memory]
    return (
        f"\n### Bad input over HTTP\n\n{figures.requests.total()} connections with bad requests on them, "
        f"{figures.answers.total()} answers, no fault of the daemon's own.\n\n"
        f"| sent | connections |\n|---|---|\n{rows}\n| answered | times |\n|---|---|\n{codes}\n"
        f"| held | before | after |\n|---|---|---|\n| descriptors | {descriptors[0]} | {descriptors[1]} |\n"
        f"| the daemon's memory | {memory[0]} | {memory[1]} |\n"
    )
