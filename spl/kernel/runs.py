"""One run as the kernel holds it, and the five doors it may knock at.

Both transports come through these doors with the same payloads; what a door is told is untrusted in either.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from spl.errors import (
    CallNotAllowed,
    InvalidBody,
    KindReserved,
    RunFinished,
    SplError,
    StoreUnavailable,
)
from spl.inference.broker import BudgetExhausted, CalledOff
from spl.inference.model import Request
from spl.kernel import bodies, guard, payloads
from spl.kernel.calls import Calls, Proposed
from spl.kernel.chain import Chain, Entry
from spl.kernel.names import IN_PROCESS, PLAN, REPORT, TOOL_RESULT
from spl.kernel.observations import SHIPPED, Called, halt
from spl.kernel.opening import mark, opening
from spl.kernel.outcome import STOPPED, Outcome, Tally, sentence
from spl.kernel.rules import Asked
from spl.records.canonical import canonical
from spl.tools.registry import TOOLS, Context, Domain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spl.inference.broker import Broker
    from spl.inference.model import Call, Reply
    from spl.kernel.budget import Budget
    from spl.kernel.guard import Verdict
    from spl.kernel.observations import Observation, Observers
    from spl.kernel.rules import Rules
    from spl.kernel.terms import Terms
    from spl.tools.mediated import Result

OWN_WORDS_LIMIT = 65536
"""Bytes in one record of a run's own words, in canonical form."""

OWN_WORDS_MOST = 256
"""Records of its own words that one run may write: the log is for ever, and a run is not trusted with it."""

_HISTORY = 1000
"""Calls that observations look back on."""

_KEPT = 4096
"""Bytes of a call's arguments that are kept for that as they are."""

_OWN_WORDS = frozenset((PLAN, REPORT))
_OWN_WORDS_ACT = "KNOW"

Json = dict[str, Any]


@dataclass
class Run:
    """A live run; only the kernel makes and ends one."""

    terms: Terms
    chain: Chain
    broker: Broker
    context: Context
    rules: Rules
    budget: Budget
    judged: Callable[[Verdict, float], None]
    """Told of each verdict, with the seconds from its being asked for to its being durable."""
    observers: Observers = SHIPPED
    tally: Tally = field(default_factory=Tally)
    calls: Calls = field(default_factory=Calls)
    end: Outcome | None = None
    entrance: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever is heard at the run's doors: one request at a time has its body read and understood, so that
    a worker with many connections cannot make the daemon hold or parse more than one."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the kernel wants the run to end: what drives its loop gives it a grace from then, and no more."""
    _leaving: Outcome | None = None
    _history: deque[Called] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    _own_words: int = 0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _busy: set[asyncio.Task[Any]] = field(default_factory=set)
    over: bool = False
    """Whether nothing more can happen in it but its outcome's being written."""

    async def door(self, name: str, payload: Mapping[str, Any]) -> Json:
        """Take a step to a door and give its answer; raises an `SplError` with the door's code."""
        if self.over:
            raise RunFinished(f"the run on {self.terms.thread} has ended")
        task = asyncio.current_task()
        if task is not None:
            self._busy.add(task)
        try:
            async with self._lock:
                answer: Json = await _DOORS[name](self, payload)
                return answer
        finally:
            if task is not None:
                self._busy.discard(task)

    def shut(self) -> None:
        """Let nothing more through the doors, and break off what is going on behind them."""
        self.over = True
        for task in self._busy - {asyncio.current_task()}:
            task.cancel()

    def stop(self, by: str) -> None:
        """Have the run end at its next step, cancelled; raises `RunFinished` when it has ended."""
        if self.over:
            raise RunFinished(
                f"the run on {self.terms.thread} has ended, and its outcome is about to be written"
            )
        if self.end is None or self.end.outcome != "cancelled":
            self.end = Outcome("cancelled", f"Stopped by {by}.", stopped_by=by)
        self.budget.called_off = True
        self.ending.set()

    def leave(self) -> None:
        """Have the run end at its next step, for the daemon stops; one that needs no other step completes.

        A model call that is under way is not broken off by this: it is paid for, and its reply comes on record. One
        that waits for its money is not made, and of the calls that were allowed the newest alone may still be run.
        """
        self._leaving = STOPPED
        self.budget.called_off = True

    async def until_ending(self, loop: asyncio.Future[Any]) -> None:
        """Wait until a run's loop is done, or is to come to its end."""
        ending = asyncio.ensure_future(self.ending.wait())
        try:
            await asyncio.wait((loop, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()

    def _conclude(self, outcome: Outcome) -> Outcome:
        """Have the run end so, unless it is ending already; gives what it ends with."""
        if self.end is None:
            self.end = outcome
        self.ending.set()
        return self.end

    async def _run(self, payload: Mapping[str, Any]) -> Json:
        payloads.fields(payload)
        terms = self.terms
        return {
            "thread": terms.thread,
            "goal": terms.goal,
            "opening": opening(terms),
            "mark": mark(terms),
            "tools": [TOOLS[name].wire() for name in terms.tools],
            **terms.ceilings.wire(),
        }

    async def _infer(self, payload: Mapping[str, Any]) -> Json:
        payloads.fields(payload, "messages")
        ended = self.budget.ceiling() or self._leaving
        if self.end is None and ended is not None:
            self._conclude(ended)
        if self.end is not None:
            return {"end": self.end.outcome}
        messages = payloads.messages(payload)
        if (skipped := self.calls.passed_over()) is not None:
            why = f"The loop went on without an answer to the call {skipped!r}."
            return {"end": self._conclude(Outcome("failed", why)).outcome}
        # The same for a loop in process, which no body bounds.
        if (length := payloads.length(messages)) > payloads.CONVERSATION_LIMIT:
            why = f"The conversation came to more than {payloads.CONVERSATION_LIMIT} characters, which is the most."
            return {"end": self._conclude(Outcome("failed", why)).outcome}
        terms, budget = self.terms, self.budget
        request = Request(
            terms.model,
            messages,
            [TOOLS[name].wire() for name in terms.tools],
            budget.turns,
            # About a hundred are around each message.
            size=length + 100 * len(messages),
        )
        try:
            charged = await self.broker.infer(request, budget)
        except CalledOff:
            return {"end": self._conclude(STOPPED).outcome}
        except BudgetExhausted as exhausted:
            return {"end": self._conclude(budget.spent(exhausted.needed_usd)).outcome}
        except SplError as error:
            self._conclude(Outcome("failed", sentence(error.message)))
            raise
        reply, body = charged.reply, bodies.turn(budget.turns + 1, charged)
        try:
            await self.chain.append(Entry("DO", body), then=lambda: self._count_turn(reply))
        except SplError as error:
            # A reply that stands nowhere cannot be acted on, and is not asked for again.
            self._conclude(
                Outcome("failed", f"A reply of the model cannot be written down: {error.message}.")
            )
            raise
        if reply.stop_reason == "length" and charged.bound is not None:
            self._conclude(budget.cut_off(charged.bound))
        return {"reply": reply.wire(), "turn": budget.turns}

    def _count_turn(self, reply: Reply) -> None:
        self.budget.turns += 1
        self.tally.unwritten = self.calls.unwritten
        self.calls.replace(reply)

    async def _propose(self, payload: Mapping[str, Any]) -> Json:
        payloads.fields(payload, "call_id")
        call = self.calls.find(payloads.string(payload, "call_id"))
        proposed = self.calls.proposed(call)
        if proposed is None:
            began = time.perf_counter()
            try:
                proposed = await self._judge(call, began)
            except StoreUnavailable as error:
                self.calls.refuse(call)
                unwritten = guard.unwritten(error.message)
                self.judged(unwritten, time.perf_counter() - began)
                return bodies.answer(unwritten, None, ())
            self.calls.judge(proposed)
        return bodies.answer(proposed.verdict, proposed.record, proposed.observations)

    async def _judge(self, call: Call, began: float) -> Proposed:
        """Judge a call of the last reply and make call and verdict durable, both before anyone hears of it.

        `began` is when it was asked for, on the clock of `time.perf_counter`.
        """
        truncated = self.calls.truncated
        if self._leaving is not None:
            self._conclude(self._leaving)
        ending = None if self.end is None else self.end.summary
        verdict = guard.judge(
            self._asked(call),
            terms=self.terms,
            rules=self.rules,
            ending=ending,
            truncated=truncated,
            malformed=call.malformed is not None,
        )
        called: Called | None = None
        observed: list[Observation] = []
        if verdict.decision == "deny":
            called, observed = self._observe(call, "denied", truncated=truncated)
        records = await self.chain.append(
            Entry("CALL", bodies.tool_call(call)),
            Entry("KNOW", partial(bodies.tool_verdict, call, verdict)),
            *(Entry("KNOW", partial(bodies.observation, call, each)) for each in observed),
            then=lambda: self._count_verdict(verdict, called, began),
        )
        return Proposed(call, records[0].id, verdict, [each.text for each in observed])

    def _asked(self, call: Call) -> Asked:
        terms = self.terms
        return Asked(
            tool=call.name,
            args=call.arguments,
            actor=terms.actor,
            tier=terms.tier,
            transport=terms.transport,
            thread=terms.thread,
            goal=terms.goal,
            turn=self.budget.turns,
            spent_usd=float(self.budget.spent_usd),
        )

    def _observe(
        self,
        call: Call,
        outcome: Literal["ok", "error", "denied"],
        *,
        truncated: bool = False,
        result: Result | None = None,
    ) -> tuple[Called, list[Observation]]:
        """Give a call as it turned out, and what is noticed of it."""
        read, empty = (None, False) if result is None else (result.read, result.empty)
        arguments = _told_apart(call.arguments)
        called = Called(call.name, arguments, outcome, truncated, read, empty, self.budget.turns)
        return called, self.observers.see((*self._history, called))

    def _remember(self, called: Called) -> None:
        """Take a call into the run's history, once it is on record; one repeated to no avail ends the run."""
        self._history.append(called)
        why = halt(tuple(self._history))
        if why is not None:
            self._conclude(Outcome("guardrail_halt", why))

    async def _call(self, payload: Mapping[str, Any]) -> Json:
        payloads.fields(payload, "call_id")
        call = self.calls.find(payloads.string(payload, "call_id"))
        proposed, tool = self.calls.runnable(call, sandboxed=False), TOOLS[call.name]
        if tool.domain is Domain.KERNEL_TRUST and self.terms.transport != IN_PROCESS:
            raise CallNotAllowed(f"the tool {call.name!r} is for runs in process")
        if self._leaving is not None and proposed is not self.calls.newest:
            self._conclude(self._leaving)
        if self.end is not None:
            # An allow is for now, and not to be kept for later: a run that is stopped does nothing more.
            raise CallNotAllowed(f"the run is ending: {self.end.summary}")
        if tool.run is None:
            raise CallNotAllowed(f"the kernel does not run the tool {call.name!r}")
        proposed.taken = True
        result = await tool.run(self.context, call.arguments)
        called, observed = self._observe(call, result.status, result=result)
        ids = (proposed.record,)
        body = bodies.tool_result(call, result.status, result.output, ids)
        await self.chain.append(
            *(Entry("LEARN", {"kind": kind, **said, "fulfills": ids[0]}) for kind, said in result.records),
            Entry("DO", body),
            *(Entry("KNOW", bodies.observation(call, each, ids)) for each in observed),
            then=lambda: self._count(proposed, called, in_kernel=True),
        )
        return {
            "status": result.status,
            "output": body["output"],
            "observations": [each.text for each in observed],
        }

    async def _record(self, payload: Mapping[str, Any]) -> Json:
        payloads.fields(payload, "kind", "body")
        kind, body = payload.get("kind"), payload.get("body")
        if not isinstance(kind, str) or not isinstance(body, dict):
            raise InvalidBody("a record needs 'kind', a string, and 'body', an object")
        if kind == TOOL_RESULT:
            return await self._own_result(body)
        if kind not in _OWN_WORDS:
            raise KindReserved(f"a run may not write the kind {kind!r:.80}")
        if body.get("kind", kind) != kind:
            raise InvalidBody("the body names another kind than the record")
        # In the form it is stored in: a number with an exponent is many times as long there.
        if len(canonical(body)) > OWN_WORDS_LIMIT:
            raise InvalidBody(f"a run's own words are at most {OWN_WORDS_LIMIT} bytes a record")
        if self._own_words >= OWN_WORDS_MOST:
            raise InvalidBody(f"a run writes at most {OWN_WORDS_MOST} records of its own words")
        self._own_words += 1
        records = await self.chain.append(
            Entry(_OWN_WORDS_ACT, {**body, "kind": kind}), actor=self.terms.actor
        )
        return {"id": records[0].id, "observations": []}

    async def _own_result(self, body: Mapping[str, Any]) -> Json:
        """Take the loop's word for a tool it ran itself; whose word it is stands in the outcome's `evidence`."""
        payloads.fields(body, "call_id", "status", "output", "kind")
        call = self.calls.find(payloads.string(body, "call_id"))
        proposed = self.calls.runnable(call, sandboxed=True)
        status, said = body.get("status"), body.get("output")
        if status not in ("ok", "error") or not isinstance(said, str):
            raise InvalidBody("a result needs 'status', ok or error, and 'output', a string")
        proposed.taken = True
        called, observed = self._observe(call, status)
        ids = (proposed.record,)
        records = await self.chain.append(
            Entry("DO", bodies.tool_result(call, status, said, ids)),
            actor=self.terms.actor,
            then=lambda: self._count(proposed, called, in_kernel=False),
        )
        if observed:
            await self.chain.append(
                *(Entry("KNOW", bodies.observation(call, each, ids)) for each in observed)
            )
        return {"id": records[0].id, "observations": [each.text for each in observed]}

    def _count_verdict(self, verdict: Verdict, called: Called | None, began: float) -> None:
        self.judged(verdict, time.perf_counter() - began)
        if called is not None:
            self._remember(called)
        if verdict.allowed:
            self.tally.going += 1
        else:
            self.tally.failed += 1
            self.tally.denied += 1

    def _count(self, proposed: Proposed, called: Called, *, in_kernel: bool) -> None:
        proposed.done = True
        self.tally.going -= 1
        self._remember(called)
        if called.outcome == "ok":
            self.tally.ok += 1
            self.tally.ok_in_kernel += in_kernel
        else:
            self.tally.failed += 1


_DOORS: dict[str, Callable[[Run, Mapping[str, Any]], Any]] = {
    "run": Run._run,  # noqa: SLF001
    "infer": Run._infer,  # noqa: SLF001
    "propose": Run._propose,  # noqa: SLF001
    "call": Run._call,  # noqa: SLF001
    "record": Run._record,  # noqa: SLF001
}


def _told_apart(arguments: Mapping[str, Any]) -> str:
    """Give arguments in canonical form, long ones as a digest of it: a run's history is kept while it goes on."""
    said = canonical(arguments)
    return said.decode() if len(said) <= _KEPT else f"sha256:{hashlib.sha256(said).hexdigest()}"
