"""One run as the kernel holds it, and the five doors it may knock at.

Both transports come through these doors with the same payloads; what a door is told is untrusted in either.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from spl.errors import (
    CallAlreadyRun,
    CallNotAllowed,
    CallNotInReply,
    InvalidBody,
    KindReserved,
    RunFinished,
    SplError,
)
from spl.inference.broker import BudgetExhausted
from spl.inference.model import Request
from spl.kernel import guard
from spl.kernel.chain import Chain, Entry
from spl.kernel.names import PLAN, REPORT, TOOL_CALL, TOOL_RESULT, TOOL_VERDICT, TURN
from spl.kernel.outcome import Outcome, Tally
from spl.tools.registry import TOOLS, Domain, Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spl.inference.broker import Broker, Charged
    from spl.inference.model import Call, Reply
    from spl.kernel.guard import Verdict
    from spl.kernel.tiers import Ceilings

OUTPUT_LIMIT = 65536
"""Characters of a tool's output that are kept and shown."""

OWN_WORDS_LIMIT = 65536
"""Characters in one record of a run's own words, as JSON."""

OWN_WORDS_MOST = 256
"""Records of its own words that one run may write: the log is for ever, and a run is not trusted with it."""

_MESSAGES_LIMIT = 2000
_ROLES = frozenset(("system", "user", "assistant", "tool"))
_OWN_WORDS = frozenset((PLAN, REPORT))
_OWN_WORDS_ACT = "KNOW"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Terms:
    """What was decided of a run before it began; none of it changes. Only a sandboxed run has a profile."""

    thread: str
    goal: str
    actor: str
    tier: str
    transport: str
    ceilings: Ceilings
    tools: tuple[str, ...]
    forbidden: tuple[str, ...]
    narrowed: tuple[str, ...]
    model: str | None
    profile: str | None
    started_at: str


@dataclass(slots=True)
class _Called:
    """A call of the last reply on its way: proposed, judged, run."""

    call: Call
    record: str
    verdict: Verdict
    taken: bool = False


@dataclass
class Run:
    """A live run; only the kernel makes and ends one."""

    terms: Terms
    chain: Chain
    broker: Broker
    reader: Reader
    turns: int = 0
    spent_usd: Decimal = Decimal(0)
    tokens: int = 0
    tally: Tally = field(default_factory=Tally)
    last: Reply | None = None
    end: Outcome | None = None
    entrance: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever is heard at the run's doors: one request at a time has its body read and understood, so that
    a worker with many connections cannot make the daemon hold or parse more than one."""
    _own_words: int = 0
    _called: dict[str, _Called] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _busy: set[asyncio.Task[Any]] = field(default_factory=set)
    _ended: bool = False

    async def door(self, name: str, payload: Mapping[str, Any]) -> Json:
        """Take a step to a door and give its answer; raises an `SplError` with the door's code."""
        if self._ended:
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
        self._ended = True
        for task in self._busy - {asyncio.current_task()}:
            task.cancel()

    async def _run(self, payload: Mapping[str, Any]) -> Json:
        _fields(payload)
        terms = self.terms
        return {
            "thread": terms.thread,
            "goal": terms.goal,
            "opening": [{"role": "system", "content": _OPENING}, {"role": "user", "content": terms.goal}],
            "tools": [TOOLS[name].wire() for name in terms.tools],
            **terms.ceilings.wire(),
        }

    async def _infer(self, payload: Mapping[str, Any]) -> Json:
        _fields(payload, "messages")
        messages = _messages(payload.get("messages"))
        if self.end is None:
            self.end = self._ceiling()
        if self.end is not None:
            return {"end": self.end.outcome}
        terms = self.terms
        budget = terms.ceilings.budget_usd
        request = Request(terms.model, messages, [TOOLS[name].wire() for name in terms.tools], self.turns)
        try:
            charged = await self.broker.infer(
                request, remaining_usd=None if budget is None else budget - self.spent_usd
            )
        except BudgetExhausted:
            self.end = Outcome("budget_exhausted", "The run's budget is spent.", "usd")
            return {"end": self.end.outcome}
        except SplError as error:
            self.end = Outcome("failed", error.message)
            raise
        reply = charged.reply
        body = {
            "kind": TURN,
            "turn": self.turns + 1,
            "model": reply.model,
            "usage": {"input_tokens": reply.usage.input_tokens, "output_tokens": reply.usage.output_tokens},
            "cost_usd": float(charged.cost_usd),
            "stop_reason": reply.stop_reason,
            "reply": reply.wire(),
        }
        await self.chain.append(Entry("DO", body), then=lambda: self._count_turn(charged))
        return {"reply": reply.wire(), "turn": self.turns}

    def _count_turn(self, charged: Charged) -> None:
        reply = charged.reply
        self.turns += 1
        self.spent_usd += charged.cost_usd
        self.tokens += reply.usage.input_tokens + reply.usage.output_tokens
        self.last, self._called = reply, {}

    def _ceiling(self) -> Outcome | None:
        """Give the outcome of a ceiling that another turn would pass; turns are counted here, not by the loop."""
        ceilings = self.terms.ceilings
        if ceilings.max_turns is not None and self.turns >= ceilings.max_turns:
            return Outcome("max_turns", f"The run used its {ceilings.max_turns} turns.")
        if ceilings.token_budget is not None and self.tokens >= ceilings.token_budget:
            return Outcome("budget_exhausted", f"The run used its {ceilings.token_budget} tokens.", "tokens")
        return None

    async def _propose(self, payload: Mapping[str, Any]) -> Json:
        _fields(payload, "call_id")
        call = self._in_last_reply(payload, "call_id")
        called = self._called.get(call.id)
        if called is None:
            called = await self._judge(call)
            self._called[call.id] = called
        verdict = called.verdict
        return {
            "decision": verdict.decision,
            "layer": verdict.layer,
            "rule": verdict.rule,
            "reason": verdict.reason,
            "text": "" if verdict.allowed else verdict.text,
            "observations": [],
            "fulfills": called.record,
        }

    async def _judge(self, call: Call) -> _Called:
        """Judge a call of the last reply and make call and verdict durable, both before anyone hears of it."""
        terms = self.terms
        truncated = self.last is not None and self.last.stop_reason == "length"
        verdict = guard.judge(call.name, reach=terms.tools, forbidden=terms.forbidden, truncated=truncated)
        proposed = {
            "kind": TOOL_CALL,
            "call_id": call.id,
            "tool": call.name,
            "arguments": dict(call.arguments),
        }
        records = await self.chain.append(
            Entry("CALL", proposed),
            Entry(
                "KNOW",
                lambda ids: {
                    "kind": TOOL_VERDICT,
                    "fulfills": ids[0],
                    "call_id": call.id,
                    "tool": call.name,
                    "decision": verdict.decision,
                    "layer": verdict.layer,
                    "rule": verdict.rule,
                    "reason": verdict.reason,
                },
            ),
            then=lambda: self._count_verdict(verdict),
        )
        return _Called(call, records[0].id, verdict)

    async def _call(self, payload: Mapping[str, Any]) -> Json:
        _fields(payload, "call_id")
        called = self._allowed(self._in_last_reply(payload, "call_id"), sandboxed=False)
        called.taken = True
        run = TOOLS[called.call.name].run
        if run is None:
            raise CallNotAllowed(f"the kernel does not run the tool {called.call.name!r}")
        result = await run(self.reader, called.call.arguments)
        written = [
            Entry("LEARN", {"kind": kind, **body, "fulfills": called.record}) for kind, body in result.records
        ]
        body, output = _result(called, result.status, result.output)
        await self.chain.append(
            *written, Entry("DO", body), then=lambda: self._count(result.status, in_kernel=True)
        )
        return {"status": result.status, "output": output, "observations": []}

    async def _record(self, payload: Mapping[str, Any]) -> Json:
        _fields(payload, "kind", "body")
        kind, body = payload.get("kind"), payload.get("body")
        if not isinstance(kind, str) or not isinstance(body, dict):
            raise InvalidBody("a record needs 'kind', a string, and 'body', an object")
        if kind == TOOL_RESULT:
            return await self._own_result(body)
        if kind not in _OWN_WORDS:
            raise KindReserved(f"a run may not write the kind {kind!r:.80}")
        if body.get("kind", kind) != kind:
            raise InvalidBody("the body names another kind than the record")
        if len(json.dumps(body)) > OWN_WORDS_LIMIT:
            raise InvalidBody(f"a run's own words are at most {OWN_WORDS_LIMIT} characters a record")
        if self._own_words >= OWN_WORDS_MOST:
            raise InvalidBody(f"a run writes at most {OWN_WORDS_MOST} records of its own words")
        self._own_words += 1
        records = await self.chain.append(
            Entry(_OWN_WORDS_ACT, {**body, "kind": kind}), actor=self.terms.actor
        )
        return {"id": records[0].id, "observations": []}

    async def _own_result(self, body: Mapping[str, Any]) -> Json:
        """Take the loop's word for a tool it ran itself; whose word it is stands in the outcome's `evidence`."""
        _fields(body, "call_id", "status", "output", "kind")
        called = self._allowed(self._in_last_reply(body, "call_id"), sandboxed=True)
        status, said = body.get("status"), body.get("output")
        if status not in ("ok", "error") or not isinstance(said, str):
            raise InvalidBody("a result needs 'status', ok or error, and 'output', a string")
        called.taken = True
        written, _ = _result(called, status, said)
        records = await self.chain.append(
            Entry("DO", written), actor=self.terms.actor, then=lambda: self._count(status, in_kernel=False)
        )
        return {"id": records[0].id, "observations": []}

    def _in_last_reply(self, payload: Mapping[str, Any], field_name: str) -> Call:
        call_id = payload.get(field_name)
        if not isinstance(call_id, str):
            raise InvalidBody(f"{field_name!r} must be a string")
        for call in self.last.calls if self.last is not None else ():
            if call.id == call_id:
                return call
        raise CallNotInReply(f"the model's last reply holds no call {call_id!r:.80}")

    def _allowed(self, call: Call, *, sandboxed: bool) -> _Called:
        called = self._called.get(call.id)
        if called is None or not called.verdict.allowed:
            raise CallNotAllowed(f"the call {call.id!r} has no verdict that allows it")
        if called.taken:
            raise CallAlreadyRun(f"the call {call.id!r} has been run")
        if (TOOLS[call.name].domain is Domain.SANDBOXED) is not sandboxed:
            raise CallNotAllowed(f"the tool {call.name!r} is run on the other side of the doors")
        return called

    def _count_verdict(self, verdict: Verdict) -> None:
        if not verdict.allowed:
            self.tally.failed += 1
            self.tally.denied += 1

    def _count(self, status: str, *, in_kernel: bool) -> None:
        if status == "ok":
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


_OPENING = (
    "You work on one goal with the tools you are given. Each call is judged before it runs; one that is refused "
    "says why. When the goal is reached, or cannot be, answer without a call."
)


def _result(called: _Called, status: str, output: str) -> tuple[Json, str]:
    kept = output[:OUTPUT_LIMIT]
    body: Json = {
        "kind": TOOL_RESULT,
        "fulfills": called.record,
        "call_id": called.call.id,
        "tool": called.call.name,
        "status": status,
        "output": kept,
        "truncated": len(output) > OUTPUT_LIMIT,
    }
    return body, kept


def _fields(payload: Mapping[str, Any], *known: str) -> None:
    if unknown := sorted(set(payload) - set(known)):
        raise InvalidBody(f"this door knows no field {unknown[0]!r:.80}")


def _messages(said: object) -> list[Json]:
    if not isinstance(said, list) or not 1 <= len(said) <= _MESSAGES_LIMIT:
        raise InvalidBody(f"'messages' must be a list of 1 to {_MESSAGES_LIMIT} messages")
    for message in said:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _ROLES:
            raise InvalidBody(f"each message is an object with a role of {', '.join(sorted(_ROLES))}")
        if not isinstance(message.get("content"), str):
            raise InvalidBody("each message has a 'content', a string")
    return said
