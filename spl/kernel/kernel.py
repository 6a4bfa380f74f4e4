"""The kernel as one object: what the API asks it, and the steps of a run from its terms to its outcome."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spl.errors import IngestFailed, InvalidBody, KindReserved, RunNotFound
from spl.kernel import config as configuration
from spl.kernel.chain import Chain, Entry
from spl.kernel.names import (
    CONFIG,
    CONFIG_THREAD,
    ENGINE,
    IN_PROCESS,
    ISOLATION,
    ISOLATION_THREAD,
    LOOP,
    OUTCOME,
    REFUSAL,
    SANDBOXED,
)
from spl.kernel.outcome import Ending, Outcome, decide, evidence
from spl.kernel.reading import RunReader
from spl.kernel.rows import live_row, row_from_records
from spl.kernel.runs import Run, Terms
from spl.kernel.tiers import ceilings, tier_of
from spl.records.record import Draft
from spl.tools.registry import TOOLS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime
    from decimal import Decimal

    from spl.inference.broker import Broker
    from spl.kernel.admission import Admission
    from spl.kernel.config import Config
    from spl.kernel.credentials import Credentials
    from spl.kernel.principals import Principal
    from spl.records.record import Record
    from spl.records.store import Appended, Store

CONFIG_WRITE = "config:write"
RECORDS_WRITE = "records:write"
WORK_RUN = "work:run"

_CLOCK_ROOM = 1_000_000
_PAGE = 100

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Start:
    """What a start asks for; None leaves it to the tier."""

    goal: str
    actor: str | None = None
    model: str | None = None
    max_turns: int | None = None
    budget_usd: Decimal | None = None
    wall_clock_secs: float | None = None
    forbidden_tools: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None


class Kernel:
    """Every decision about runs and records.

    `check_profile` raises an `SplError` for a profile that work cannot be confined by; `now` gives the time of day for
    what people read.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        broker: Broker,
        admission: Admission,
        credentials: Credentials,
        *,
        operator: str,
        check_profile: Callable[[str], Awaitable[None]],
        now: Callable[[], datetime],
    ) -> None:
        self.store = store
        self.config = config
        self.broker = broker
        self.admission = admission
        self.credentials = credentials
        self.operator = operator
        self.live: dict[str, Run] = {}
        self._check_profile = check_profile
        self._now = now

    async def write(self, principal: Principal, draft: Draft) -> Appended:
        """Write a record for someone; of `core.*` only configuration is taken, and that as the engine.

        Raises `KindReserved`, `ActorNotCovered`, `ScopeDenied`, `MissingField`, `InvalidBody`, what is wrong with a
        profile that is chosen, and what the store raises.
        """
        kind = draft.body.get("kind")
        if kind == CONFIG:
            principal.require(CONFIG_WRITE)
            if draft.actor != ENGINE or draft.thread != CONFIG_THREAD:
                raise KindReserved(f"{CONFIG} is written to {CONFIG_THREAD} as {ENGINE} and nowhere else")
            profile = configuration.check(draft.body)
            if profile is not None:
                await self._check_profile(profile)
            await self._refuse_last_clock(draft)
        elif isinstance(kind, str) and (kind == "core" or kind.startswith("core.")):
            raise KindReserved(f"the kind {kind!r} is the kernel's, or a run's, to write")
        else:
            principal.require(RECORDS_WRITE)
            principal.writes_as(draft.actor)
        return (await self.store.append([draft]))[0]

    async def _refuse_last_clock(self, draft: Draft) -> None:
        """Keep room above the configuration's clock: with the highest one used, nothing could be moved ever again."""
        newest = await self.store.select(thread=CONFIG_THREAD, actor=ENGINE, limit=1, newest_first=True)
        most = (newest[0].clock if newest else 0) + _CLOCK_ROOM
        if draft.clock is not None and draft.clock > most:
            raise IngestFailed(f"the clock {draft.clock} of this configuration is over {most}")

    def terms(self, principal: Principal, start: Start) -> Terms:
        """Decide what a start would be: tier, transport, profile, ceilings and tools. Nothing is written.

        Raises `ScopeDenied`, `RunActorNotCovered` and `InvalidBody`.
        """
        principal.require(WORK_RUN)
        actor = start.actor or principal.actor
        principal.runs_as(actor)
        tier = tier_of(actor, self.operator)
        transport = self.config.transport if actor == self.operator else self.config.member_transport
        sandboxed = transport == SANDBOXED
        return Terms(
            thread=f"th_run_{secrets.token_hex(12)}",
            goal=start.goal,
            actor=actor,
            tier=tier.name,
            transport=transport,
            ceilings=ceilings(
                tier,
                max_turns=start.max_turns,
                wall_clock_secs=start.wall_clock_secs,
                budget_usd=start.budget_usd,
                sandboxed=sandboxed,
            ),
            tools=_granted(start.tools),
            forbidden=_forbidden(start.forbidden_tools),
            narrowed=(),
            model=start.model,
            profile=self.config.profile_of(tier.name) if sandboxed else None,
            started_at=self._time(),
        )

    async def open(self, terms: Terms, receipt: Json | None = None) -> Run:
        """Write a run's anchor, and the receipt of its isolation, and give the run; both are durable then.

        The digest of the profile stands in both, and is the receipt's: that of what the worker is confined by.
        """
        chain = Chain(self.store, terms.thread)
        digest = None if receipt is None else receipt["profile_digest"]
        entries = [Entry("INTEND", {"kind": LOOP, **_anchor(terms, digest)})]
        if receipt is not None:
            entries.append(Entry("KNOW", {"kind": ISOLATION, **receipt}))
        run = Run(
            terms,
            chain,
            self.broker,
            RunReader(self.store, terms.actor, everything=terms.actor == self.operator),
        )
        self.live[terms.thread] = run
        try:
            await chain.append(*entries)
        except BaseException:
            del self.live[terms.thread]
            raise
        return run

    async def finish(self, run: Run, ending: Ending) -> None:
        """Write a run's outcome, from what the kernel itself saw; its credential and its place among the live end."""
        run.shut()
        self.credentials.revoke(run)
        ended_at = self._time()

        def said(_: object) -> Json:
            # Asked for when its turn on the chain comes: what was still being written by then has been counted.
            outcome = decide(ending, end=run.end, last=run.last, tally=run.tally)
            whose = evidence(run.tally, in_process=run.terms.transport == IN_PROCESS)
            return _outcome(outcome, live_row(run), evidence=whose, exit=ending.exit, ended_at=ended_at)

        try:
            await run.chain.append(Entry("KNOW", said), close=True)
        finally:
            self.live.pop(run.terms.thread, None)

    async def refuse(self, terms: Terms, refusal: Mapping[str, str]) -> None:
        """Write down a start that was refused for isolation, with the layer's facts: the only trace it leaves."""
        body = {
            "kind": REFUSAL,
            "actor": terms.actor,
            "profile": terms.profile,
            **refusal,
            "refused_at": self._time(),
        }
        await self.store.append([Draft(ISOLATION_THREAD, ENGINE, "KNOW", body)])

    async def close_orphans(self) -> list[str]:
        """Give each run that a dead daemon left open its outcome; gives their threads."""
        threads: list[str] = []
        for anchor in await self.store.unfinished(LOOP, OUTCOME):
            outcome = Outcome("failed", "The daemon ended while the run was going.")
            row, head = await self._fold(anchor.thread)
            body = _outcome(outcome, row, evidence="kernel", exit=None, ended_at=self._time())
            await self.store.append([Draft(anchor.thread, ENGINE, "KNOW", body, parents=(head,))])
            threads.append(anchor.thread)
        return threads

    async def row(self, thread: str) -> Json:
        """Give a run's row; raises `RunNotFound`."""
        if run := self.live.get(thread):
            return live_row(run)
        anchor = await self.store.select(thread=thread, kind=LOOP, limit=1)
        if not anchor:
            raise RunNotFound(f"there is no run on the thread {thread!r}")
        outcome = await self.store.select(thread=thread, kind=OUTCOME, limit=1)
        # An outcome says all that the records before it add up to.
        return row_from_records([*anchor, *outcome]) if outcome else (await self._fold(thread))[0]

    async def rows(
        self, *, state: str | None, actor: str | None, since: int, limit: int
    ) -> tuple[list[Json], bool]:
        """Give rows of runs, oldest first, whose anchor's sequence is above `since`, and whether there are more."""
        found: list[Json] = []
        while True:
            anchors = await self.store.select(kind=LOOP, since=since, limit=limit + 1)
            for anchor in anchors:
                since = anchor.sequence
                if actor is not None and anchor.body["actor"] != actor:
                    continue
                row = {**await self.row(anchor.thread), "sequence": anchor.sequence}
                if state is None or row["state"] == state:
                    if len(found) == limit:
                        return found, True
                    found.append(row)
            if len(anchors) <= limit:
                return found, False

    async def _fold(self, thread: str) -> tuple[Json, str]:
        """Give the row that all of a run's records tell, and the head of its chain, a page at a time."""
        row: Json = {}
        head, since = "", 0
        while page := await self.store.select(thread=thread, since=since, limit=_PAGE):
            row, head = row_from_records(page, row), _head(page, head)
            since = page[-1].sequence
        return row, head

    def _time(self) -> str:
        return self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _forbidden(wanted: Sequence[str]) -> tuple[str, ...]:
    """Give the run's own clamp; a name that is no tool forbids nothing, which its writer did not mean."""
    for name in wanted:
        if name not in TOOLS:
            raise InvalidBody(f"the tool {name!r} cannot be forbidden: there are {', '.join(sorted(TOOLS))}")
    return tuple(sorted(set(wanted)))


def _granted(wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Give the tools of a run: all that there are for everyone, or those of them that were asked for."""
    if wanted is None:
        return tuple(TOOLS)
    for name in wanted:
        if name not in TOOLS:
            raise InvalidBody(f"the tool {name!r} is not granted: there are {', '.join(sorted(TOOLS))}")
    return tuple(name for name in TOOLS if name in wanted)


def _outcome(
    outcome: Outcome,
    row: Json,
    *,
    evidence: str,
    exit: Mapping[str, object] | None,  # noqa: A002 - the field's own name
    ended_at: str,
) -> Json:
    return {
        "kind": OUTCOME,
        "outcome": outcome.outcome,
        **({"budget_kind": outcome.budget_kind} if outcome.budget_kind else {}),
        "state": outcome.state,
        "success": outcome.success,
        "evidence": evidence,
        **{
            name: row[name]
            for name in ("transport", "turns", "tool_calls_ok", "tool_calls_failed", "spent_usd")
        },
        "exit": exit,
        "summary": outcome.summary,
        "ended_at": ended_at,
    }


def _anchor(terms: Terms, profile_digest: str | None) -> Json:
    return {
        "goal": terms.goal,
        "actor": terms.actor,
        "tier": terms.tier,
        "transport": terms.transport,
        "profile": terms.profile,
        "profile_digest": profile_digest,
        "tools": list(terms.tools),
        "forbidden_tools": list(terms.forbidden),
        "narrowed": list(terms.narrowed),
        "ceilings": terms.ceilings.wire(),
        "model": terms.model,
        "started_at": terms.started_at,
    }


def _head(records: Sequence[Record], head: str) -> str:
    """Give the last record of a run's chain: the anchor, or what names the one before it as its only parent."""
    for record in records:
        if record.kind == LOOP or (
            head and record.parents == (head,) and (record.kind or "").startswith("core.work.")
        ):
            head = record.id
    return head
