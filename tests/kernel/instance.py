"""An instance without a daemon: a real log, a real broker over a scripted provider, the kernel over both."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from spl.errors import ProfileInvalid
from spl.inference.broker import Broker
from spl.inference.script import ScriptProvider
from spl.kernel.admission import Admission
from spl.kernel.config import Config
from spl.kernel.credentials import Credentials
from spl.kernel.kernel import Kernel, Start
from spl.kernel.names import CONFIG, CONFIG_THREAD, ENGINE
from spl.kernel.principals import ADMIN, Principal
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from spl.inference.model import Reply, Request
    from spl.inference.provider import Provider
    from spl.kernel.runs import Run
    from spl.records.record import Record
    from spl.records.store import Appended

Json = dict[str, Any]

OPERATOR = "did:sync:user:op"
MEMBER = "did:sync:user:mia"
ADMINISTRATOR = Principal(OPERATOR, frozenset((ADMIN,)))
RECEIPT: Json = {"shape": "same-user", "profile_digest": "d" * 64, "layers": []}
PROFILES = ("worker", "strict", "small")

TRANSPORT, MEMBERS = "work_loop_transport", "work_loop_transport_members"


def call(name: str, call_id: str = "c1", **arguments: object) -> Json:
    """Give one call as a script writes it."""
    return {"id": call_id, "name": name, "arguments": arguments}


def calls(*made: Json, **fields: object) -> Json:
    """Give a reply that asks for these calls."""
    return {"calls": list(made), **fields}


def says(text: str, **fields: object) -> Json:
    """Give a closing reply."""
    return {"text": text, **fields}


NOTE = calls(call("record_note", text="a note"))


class Held(SqliteStore):
    """The real log, whose appends of one kind can be made to wait until they are let go."""

    _kind: str | None = None

    def hold(self, kind: str) -> tuple[asyncio.Event, asyncio.Event]:
        """Hold what is of a kind; gives the event that some is held, and the one that lets it go."""
        self._kind, self._reached, self._released = kind, asyncio.Event(), asyncio.Event()
        return self._reached, self._released

    async def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """See `Store.append`."""
        if self._kind is not None and any(draft.body.get("kind") == self._kind for draft in drafts):
            self._reached.set()
            await self._released.wait()
        return await super().append(drafts)


class Hanging:
    """A provider that never answers; `asked` is set once it has been."""

    name = default_model = "hanging"

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def complete(self, request: Request) -> Reply:
        """Wait for ever."""
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def price(self, model: str) -> tuple[Decimal, Decimal] | None:
        """Give a price of nothing."""
        return Decimal(0), Decimal(0)


@dataclass
class Instance:
    """The kernel and the log it writes."""

    store: Held
    kernel: Kernel

    async def open(self, *, actor: str = MEMBER, receipt: Json | None = RECEIPT, **asked: Any) -> Run:
        """Open a run as a transport does, with no loop behind it: a member's is sandboxed by default."""
        start = Start(goal="a goal", actor=actor, **asked)
        terms = self.kernel.terms(ADMINISTRATOR, start)
        return await self.kernel.open(terms, receipt if terms.transport == "sandboxed" else None)

    async def configure(self, topic: str, transport: object) -> Record:
        """Write a transport's topic as the operator does."""
        return await self.say(topic=topic, transport=transport)

    async def say(self, **said: object) -> Record:
        """Write configuration as the operator does."""
        body = {"kind": CONFIG, **said}
        return (await self.kernel.write(ADMINISTRATOR, Draft(CONFIG_THREAD, ENGINE, "LEARN", body))).record

    async def on(self, thread: str) -> list[Record]:
        """Give a thread's records."""
        return await self.store.select(thread=thread, limit=1000)

    async def kinds(self, thread: str) -> list[str]:
        """Give the short names of a thread's kinds, in order: `turn`, `tool_call`."""
        return [short(record.kind) for record in await self.on(thread)]

    async def bodies(self, thread: str, kind: str) -> list[Json]:
        """Give the bodies of one kind on a thread."""
        return [record.body for record in await self.store.select(thread=thread, kind=kind, limit=1000)]

    def written(self, kind: str) -> asyncio.Future[Record]:
        """Give what will be the next record of a kind, once it is durable."""
        found: asyncio.Future[Record] = asyncio.get_running_loop().create_future()

        def take(record: Record) -> None:
            if record.kind == kind and not found.done():
                found.set_result(record)

        end = self.store.subscribe(take)
        found.add_done_callback(lambda _: end())
        return found


def short(kind: str | None) -> str:
    """Give the entity of a kind."""
    return (kind or "..").split(".")[2]


async def is_known(profile: str) -> None:
    """Refuse a profile that this instance does not know."""
    if profile not in PROFILES:
        raise ProfileInvalid(f"there is no profile {profile!r}")


async def turn(run: Run) -> Json:
    """Take one model call, as the loop does."""
    return await run.door("infer", {"messages": [{"role": "user", "content": "go on"}]})


async def propose(run: Run, call_id: str = "c1") -> Json:
    """Propose one call."""
    return await run.door("propose", {"call_id": call_id})


def chained(records: list[Record]) -> bool:
    """Tell whether each record names the one before as its only parent, and the first none."""
    parents = [record.parents for record in records]
    return parents == [(), *((record.id,) for record in records[:-1])]


def scripted(folder: Path, *replies: Json) -> ScriptProvider:
    """Give a provider of these replies, from a file."""
    file = folder / "script.json"
    file.write_text(json.dumps({"replies": replies}))
    return ScriptProvider.load(str(file))


@asynccontextmanager
async def instance(
    folder: Path,
    *replies: Json,
    provider: Provider | None = None,
    capacity: int = 2,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Instance]:
    """Open an instance whose provider gives `replies`, or is `provider`; `clock` is that of its credentials."""
    store = await Held.open(folder / "hub.db")
    try:
        config = await Config.follow(store)
        kernel = Kernel(
            store,
            config,
            Broker(provider or scripted(folder, *replies)),
            Admission(0, lambda: capacity if config.capacity is None else config.capacity),
            Credentials(clock),
            operator=OPERATOR,
            check_profile=is_known,
            now=lambda: datetime.now(UTC),
        )
        yield Instance(store, kernel)
    finally:
        await store.close()
