"""The kernel as one object: what the API asks it, and the steps of a run from its terms to its outcome."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from spl.errors import ActorNotCovered, IngestFailed, InvalidBody, KindReserved, RunFinished, TokenRevoked
from spl.inference.check import check
from spl.kernel.budget import Budget
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
    TIER,
    instant,
    label_of,
    run_thread,
)
from spl.kernel.outcome import Ending, Outcome, Tally, decide, evidence
from spl.kernel.principals import ADMIN, CONFIG_WRITE, RECORDS_WRITE, WORK_RUN
from spl.kernel.reading import Reading
from spl.kernel.rows import Rows, live_row
from spl.kernel.runs import Run
from spl.kernel.terms import Terms, asked, forbidden, granted, narrow
from spl.kernel.tiers import ceilings
from spl.records.record import Draft
from spl.tools.data import DataPlane
from spl.tools.host import Host
from spl.tools.registry import Context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from spl.errors import SplError
    from spl.inference.broker import Broker
    from spl.kernel.admission import Admission
    from spl.kernel.config import Config
    from spl.kernel.credentials import Credentials
    from spl.kernel.guard import Verdict
    from spl.kernel.members import Member, Members
    from spl.kernel.principals import Principal
    from spl.kernel.terms import Start
    from spl.kernel.tiers import Tier
    from spl.kernel.usage import Place, Usage
    from spl.records.store import Appended, Store

_CLOCK_ROOM = 1_000_000
Json = dict[str, Any]


class Kernel:
    """Every decision about runs and records.

    `data` is the folder of the data plane; with `host_tools` the operator's own runs in process are granted the tools
    of the host. `check_profile` raises an `SplError` for a profile that work cannot be confined by; `now` gives the
    time of day for what people read.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        broker: Broker,
        admission: Admission,
        credentials: Credentials,
        usage: Usage,
        members: Members,
        *,
        operator: str,
        data: Path,
        host_tools: bool,
        check_profile: Callable[[str], Awaitable[None]],
        now: Callable[[], datetime],
    ) -> None:
        self.store = store
        self.config = config
        self.broker = broker
        self.admission = admission
        self.credentials = credentials
        self.usage = usage
        self.members = members
        self.operator = operator
        self.live: dict[str, Run] = {}
        self.rows = Rows(store, self.live)
        self.judged: Callable[[Verdict, float], None] = lambda *_: None
        """Told of each run's verdicts; see `Run.judged`."""
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._data = data
        self._host_tools = host_tools
        self._check_profile = check_profile
        self._now = now

    async def write(self, principal: Principal, draft: Draft) -> Appended:
        """Write a record for someone; of `core.*` only configuration is taken, and that as the engine.

        Raises `KindReserved`, `ActorNotCovered`, `ScopeDenied`, what `Config` finds wrong with configuration, what is
        wrong with a profile that is chosen, and what the store raises.
        """
        kind = draft.body.get("kind")
        if draft.judged_by not in (None, principal.actor) and ADMIN not in principal.scopes:
            raise ActorNotCovered(f"the bearer does not judge as {draft.judged_by!r}")
        if kind in (CONFIG, TIER):
            principal.require(CONFIG_WRITE)
            if draft.actor != ENGINE or draft.thread != CONFIG_THREAD:
                raise KindReserved(f"{kind} is written to {CONFIG_THREAD} as {ENGINE} and nowhere else")
            check = partial(self._check_configuration, draft)
        elif isinstance(kind, str) and (kind == "core" or kind.startswith("core.")):
            raise KindReserved(f"the kind {kind!r} is the kernel's, or a run's, to write")
        else:
            principal.require(RECORDS_WRITE)
            principal.writes_as(draft.actor)
            check = partial(self.reading(principal).refuse_write, draft.thread)
        # One at a time on a thread: of two that begin it at once, the second must find out whose it is, and of two
        # rules that are one too many, that it is. The operator may write anywhere, and waits for nobody.
        alone = kind in (CONFIG, TIER) or principal.sees is not None
        async with self._writing.setdefault(draft.thread, asyncio.Lock()) if alone else nullcontext():
            await check()
            return (await self.store.append([draft]))[0]

    def reading(self, principal: Principal) -> Reading:
        """Give what a principal may read, and where it may write."""
        return Reading(self.store, principal.actor, everything=principal.sees is None)

    async def _check_configuration(self, draft: Draft) -> None:
        body = draft.body
        profile = self.config.check(body)
        if body.get("topic") == "actor_tier" and body.get("actor") == self.operator:
            raise InvalidBody(f"the tier of {self.operator} comes with the instance, whose operator that is")
        if profile is not None:
            await self._check_profile(profile)
        await self._refuse_last_clock(draft)

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
        self.members.refuse_namesake(actor)
        tier = self.tier_of(actor)
        operators = actor == self.operator
        transport = self.config.transport if operators else self.config.member_transport
        sandboxed = transport == SANDBOXED
        tools, narrowed = narrow(
            asked(granted(host=operators and self._host_tools), start.tools), sandboxed=sandboxed
        )
        cap = tier.daily_cost_usd
        return Terms(
            thread=run_thread(self._now()),
            goal=start.goal,
            actor=actor,
            asked_by=principal.actor,
            tier=tier.name,
            transport=transport,
            ceilings=ceilings(
                tier,
                max_turns=start.max_turns,
                wall_clock_secs=start.wall_clock_secs,
                budget_usd=start.budget_usd,
                left_usd=None if cap is None else max(cap - self.usage.spent(actor), Decimal(0)),
                sandboxed=sandboxed,
            ),
            tools=tools,
            forbidden=forbidden(start.forbidden_tools),
            narrowed=narrowed,
            model=start.model or self.broker.provider.default_model,
            profile=self.config.profile_of(tier.name) if sandboxed else None,
            started_at=self._time(),
            daily_cost_usd=cap,
        )

    def tier_of(self, actor: str) -> Tier:
        """Give an actor's tier with its ceilings as they are now."""
        return self.config.tier_of(actor, self.operator)

    def refusals(self, terms: Terms) -> list[SplError]:
        """Give what keeps a run from being started now, whatever its transport."""
        found = self.usage.refusals(terms.actor, self.tier_of(terms.actor))
        if terms.ceilings.budget_usd is not None and (unpriced := self.broker.unpriced(terms.model)):
            found.append(unpriced)
        return found

    def take_place(self, terms: Terms) -> Place:
        """Count a run in among its actor's, before it starts; raises the first of its `refusals`."""
        for refusal in self.refusals(terms):
            raise refusal
        return self.usage.take(terms.actor)

    async def check_provider(self, principal: Principal, model: str | None) -> Json:
        """Call the provider once, for nobody's run; raises `ScopeDenied` and what `check` raises."""
        # It costs what it costs, and no ceiling holds for it.
        principal.require(ADMIN)
        return await check(self.broker, model)

    async def open(self, terms: Terms, receipt: Json | None = None) -> Run:
        """Write a run's anchor, and the receipt of its isolation, and give the run; both are durable then.

        The digest of the profile stands in both, and is the receipt's: that of what the worker is confined by. Raises
        `TokenRevoked` where whoever asked for the run is a member no more, and what the store raises.
        """
        chain = Chain(self.store, terms.thread)
        digest = None if receipt is None else receipt["profile_digest"]
        anchor = {
            "kind": LOOP,
            **terms.wire(),
            "profile_digest": digest,
            "started_at": terms.started_at,
        }
        entries = [Entry("INTEND", anchor)]
        if receipt is not None:
            entries.append(Entry("KNOW", {"kind": ISOLATION, **receipt}))
        run = Run(
            terms,
            chain,
            self.broker,
            self._context(terms),
            self.config.rules,
            Budget(terms, self.usage),
            self.judged,
        )
        if not self.members.most(terms.asked_by):
            # Revoked while its worker was made; from here on, a revocation finds the run among the live.
            raise TokenRevoked(f"{terms.asked_by}, who asked for this run, has been revoked")
        self.live[terms.thread] = run
        try:
            await chain.append(*entries)
        except BaseException:
            del self.live[terms.thread]
            raise
        return run

    async def stop(self, principal: Principal, thread: str) -> None:
        """Have a run end at its next step, cancelled.

        Raises `ScopeDenied`, `RunFinished`, and `RunNotFound`, also for a run that the principal may not know of.
        """
        principal.require(WORK_RUN)
        await self.rows.row(thread, whose=principal.sees)
        run = self.live.get(thread)
        if run is None:
            raise RunFinished(f"the run on {thread} has ended")
        run.stop(principal.actor)

    async def revoke_member(self, label: str, by: str) -> tuple[Member, list[str]]:
        """Take a member away and tell its runs to stop; gives it and their threads. Raises `NotFound`."""
        stopped: list[str] = []
        member = self.members.member(label)
        try:
            await self.members.revoke(member.actor, by)
        finally:
            # The member is nobody from here on, whether the log could take it or not.
            for thread, run in self.live.items():
                if run.terms.actor == member.actor and not run.over:
                    run.stop(by)
                    stopped.append(thread)
        return member, stopped

    async def finish(self, run: Run, ending: Ending) -> None:
        """Write a run's outcome, from what the kernel itself saw; its credential and its place among the live end."""
        run.shut()
        if run.budget.close() and run.end is None and ending.clean and ending.cause is None:
            # It left by itself, as if it were done, and did not wait for what it had asked for on another connection.
            run.end = Outcome("failed", "The loop ended while a model call was under way.")
        self.credentials.revoke(run)
        ended_at = self._time()

        def said(_: object) -> Json:
            # Asked for when its turn on the chain comes: what was still being written by then has been counted.
            # A call that was allowed and has no result was broken off: it has failed.
            tally = replace(run.tally, failed=run.tally.failed + run.tally.going)
            outcome = decide(
                ending,
                end=run.end,
                last=run.calls.reply,
                tally=tally,
                wall_clock_secs=run.terms.ceilings.wall_clock_secs,
            )
            row = {**live_row(run), "tool_calls_failed": tally.failed}
            whose = evidence(tally, in_process=run.terms.transport == IN_PROCESS)
            return _outcome(outcome, row, evidence=whose, exit=ending.exit, ended_at=ended_at)

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
            outcome = Outcome(
                "failed", "The daemon ended while the run was going, or before its outcome was written."
            )
            row, head, going, ok_in_kernel = await self.rows.fold(anchor.thread)
            row["tool_calls_failed"] += going
            whose = evidence(Tally(ok_in_kernel=ok_in_kernel), in_process=row["transport"] == IN_PROCESS)
            body = _outcome(outcome, row, evidence=whose, exit=None, ended_at=self._time())
            await self.store.append([Draft(anchor.thread, ENGINE, "KNOW", body, parents=(head,))])
            threads.append(anchor.thread)
        return threads

    def _context(self, terms: Terms) -> Context:
        """Give what the tools of a run may reach: of files, nothing at all unless it is in process."""
        operators = terms.actor == self.operator
        reader = Reading(self.store, terms.actor, everything=operators)
        if terms.transport != IN_PROCESS:
            return Context(reader)
        label = label_of(terms.actor)
        if label is None:
            return Context(reader)
        data = DataPlane(self._data, label=None if operators else label)
        return Context(reader, data, Host() if operators and self._host_tools else None)

    def _time(self) -> str:
        return instant(self._now())


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
        **({"stopped_by": outcome.stopped_by} if outcome.stopped_by else {}),
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
