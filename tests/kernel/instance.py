"""An instance without a daemon: a real log, a real broker over a scripted provider, the kernel over both."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from spl.errors import ProfileInvalid, StoreUnavailable
from spl.inference.broker import Broker
from spl.inference.prices import FREE, Flat
from spl.inference.script import ScriptProvider
from spl.kernel.admission import Admission
from spl.kernel.config import Config
from spl.kernel.credentials import Credentials
from spl.kernel.kernel import Kernel
from spl.kernel.members import Members
from spl.kernel.names import CONFIG, CONFIG_THREAD, ENGINE, TIER
from spl.kernel.principals import ADMIN, RECORDS_WRITE, WORK_RUN, Principal
from spl.kernel.terms import Start
from spl.kernel.usage import Usage
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from spl.inference.model import Reply, Request, Unanswered
    from spl.inference.prices import Price
    from spl.inference.provider import Provider
    from spl.kernel.runs import Run
    from spl.records.record import Record
    from spl.records.store import Appended

    Replies = tuple[Reply | Unanswered, ...]

Json = dict[str, Any]

OPERATOR = "did:sync:user:op"
MEMBER = "did:sync:user:mia"
ADMINISTRATOR = Principal(OPERATOR, frozenset((ADMIN,)), operator=True)
MIA = Principal(MEMBER, frozenset((RECORDS_WRITE, WORK_RUN)))
NED = Principal("did:sync:user:ned", MIA.scopes)
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
    """The real log, whose appends of one kind can be made to wait until they are let go, or to fail."""

    _kind: str | None = None
    full_for: str | None = None
    """The kind that cannot be written, as on a disk that is full."""

    def hold(self, kind: str) -> tuple[asyncio.Event, asyncio.Event]:
        """Hold what is of a kind; gives the event that some is held, and the one that lets it go."""
        self._kind, self._reached, self._released = kind, asyncio.Event(), asyncio.Event()
        return self._reached, self._released

    async def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """See `Store.append`."""
        if self.full_for in [draft.body.get("kind") for draft in drafts if self.full_for]:
            raise StoreUnavailable("the log cannot be written: the disk is full")
        if self._kind is not None and any(draft.body.get("kind") == self._kind for draft in drafts):
            self._reached.set()
            await self._released.wait()
        return await super().append(drafts)


class Hanging:
    """A provider that never answers; `asked` is set once it has been."""

    name = default_model = "hanging"
    url: str | None = None

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def complete(self, request: Request) -> Reply:
        """Wait for ever."""
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def price(self, model: str) -> Price:
        """Give a price of nothing."""
        return FREE

    async def close(self) -> None:
        """Do nothing."""


class Gated(ScriptProvider):
    """A script whose replies wait until they are let go; `asked` is set once one was asked for."""

    def __init__(self, replies: Replies) -> None:
        super().__init__(replies)
        self.asked, self.released = asyncio.Event(), asyncio.Event()

    async def complete(self, request: Request) -> Reply:
        """Wait, then give the reply of the request's turn."""
        self.asked.set()
        await self.released.wait()
        return await super().complete(request)


class Listening(ScriptProvider):
    """A script that keeps what it was asked, in order."""

    def __init__(self, replies: Replies) -> None:
        super().__init__(replies)
        self.requests: list[Request] = []

    async def complete(self, request: Request) -> Reply:
        """Keep the request and give the reply of its turn."""
        self.requests.append(request)
        return await super().complete(request)


class Priced(ScriptProvider):
    """A script whose output costs ten cents a thousand tokens, and its input nothing."""

    def price(self, model: str) -> Price:
        """Give that price."""
        return Flat(Decimal(0), Decimal(100))


class Day:
    """A time of day that a test moves."""

    def __init__(self) -> None:
        self.now = datetime(2031, 5, 4, 22, 59, 58, tzinfo=UTC)

    def __call__(self) -> datetime:
        """Give the time."""
        return self.now

    def pass_by(self, **some: float) -> None:
        """Let some time go by, as `timedelta` names it; less than none is a clock that jumps back."""
        self.now += timedelta(**some)


@dataclass
class Instance:
    """The kernel and the log it writes."""

    store: Held
    kernel: Kernel

    async def open(self, *, actor: str = MEMBER, receipt: Json | None = RECEIPT, **asked: Any) -> Run:
        """Open a run as a transport does, with no loop behind it: a member's is sandboxed by default."""
        start = Start(**{"goal": "a goal", "actor": actor, **asked})
        terms = self.kernel.terms(ADMINISTRATOR, start)
        return await self.kernel.open(terms, receipt if terms.transport == "sandboxed" else None)

    async def configure(self, topic: str, transport: object) -> Record:
        """Write a transport's topic as the operator does."""
        return await self.say(topic=topic, transport=transport)

    async def say(self, **said: object) -> Record:
        """Write configuration as the operator does."""
        body = {"kind": CONFIG, **said}
        return (await self.kernel.write(ADMINISTRATOR, Draft(CONFIG_THREAD, ENGINE, "LEARN", body))).record

    async def rule(
        self, name: str, expression: str | None, *, action: str = "deny", priority: int = 0
    ) -> Record:
        """Write a permission rule as the operator does; None takes it away."""
        said = {"name": name, "action": action, "priority": priority, "expression": expression}
        return await self.say(topic="permission_rule", **said)

    async def tier(self, name: str, **ceilings: object) -> Record:
        """Change a tier's ceilings as the operator does."""
        body = {"kind": TIER, "tier": name, **ceilings}
        return (await self.kernel.write(ADMINISTRATOR, Draft(CONFIG_THREAD, ENGINE, "LEARN", body))).record

    async def give(self, actor: str, tier: str | None) -> Record:
        """Give an actor a tier as the operator does."""
        return await self.say(topic="actor_tier", actor=actor, tier=tier)

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


def today() -> datetime:
    """Give the time of day."""
    return datetime.now(UTC)


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


async def carry_out(run: Run) -> Json:
    """Take one model call and have what it asks for judged, and run in the kernel where that is allowed."""
    answer = await turn(run)
    for made in answer.get("reply", {}).get("calls", ()):
        if (await propose(run, made["id"]))["decision"] == "allow":
            await run.door("call", {"call_id": made["id"]})
    return answer


def chained(records: list[Record]) -> bool:
    """Tell whether each record names the one before as its only parent, and the first none."""
    parents = [record.parents for record in records]
    return parents == [(), *((record.id,) for record in records[:-1])]


def replies_of(folder: Path, *replies: Json) -> Replies:
    """Give these replies as a provider's script holds them."""
    file = folder / "script.json"
    file.write_text(json.dumps({"replies": replies}))
    return ScriptProvider.load(str(file))._replies


@asynccontextmanager
async def instance(
    folder: Path,
    *replies: Json,
    provider: Provider | None = None,
    capacity: int = 2,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = today,
    host_tools: bool = True,
) -> AsyncIterator[Instance]:
    """Open an instance whose provider gives `replies`, or is `provider`; `clock` is that of its credentials.

    It is an ordinary user's unless `host_tools` is false, and `now` is its time of day.
    """
    (folder / "data").mkdir(exist_ok=True)
    store = await Held.open(folder / "hub.db")
    try:
        config = await Config.follow(store, now)
        usage = Usage(now)
        await usage.read(store)
        members = await Members.follow(store, operator=OPERATOR, now=now)
        kernel = Kernel(
            store,
            config,
            Broker(provider or ScriptProvider(replies_of(folder, *replies))),
            Admission(0, lambda: capacity if config.capacity is None else config.capacity),
            Credentials(clock),
            usage,
            members,
            operator=OPERATOR,
            data=folder / "data",
            host_tools=host_tools,
            check_profile=is_known,
            now=now,
        )
        yield Instance(store, kernel)
    finally:
        await store.close()
