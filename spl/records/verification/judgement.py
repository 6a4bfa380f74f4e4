"""The judgement of a run's calls, and the sum of them: each asked for, judged, run, in this order and once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from spl.errors import InvalidBody
from spl.records.canonical import canonical
from spl.records.verification.findings import quoted

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]

ENGINE: Final = "did:sync:system:engine"
"""Who the kernel writes as."""

SANDBOXED_TOOLS: Final = frozenset(("calculate",))
"""The tools that the run itself runs, and whose results are its own word."""

KERNEL_TOOLS: Final = frozenset(
    (
        "record_note", "read_thread", "read_file", "write_file", "list_dir", "search",
        "bash", "host_read_file", "host_write_file", "host_list_dir", "host_search",
    )
)  # fmt: skip
"""The tools that the kernel runs. One that is in neither list is of a later release: either may have run it."""

_STATES: Final = {"completed": "done", "cancelled": "stopped"}
_SHORT: Final = "stopped_short"
_OUTCOMES: Final = frozenset(
    ("completed", "cancelled", "max_turns", "budget_exhausted", "guardrail_halt", "blocked", "failed")
)
# The kernel adds decimals and a dead daemon's successor floats; what they differ by is far below this.
_APART: Final = Decimal("1e-9")


@dataclass(slots=True)
class _Call:
    """A call on record; `arguments` is not kept, for nothing names them again."""

    call_id: str
    tool: str
    cut_off: bool
    malformed: bool = False
    decision: str | None = None
    done: bool = False


class Judgement:
    """What became of a run's calls, record by record; `say` takes what is wrong with the one being looked at."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._transport: object = None
        self._reach: frozenset[str] | None = None
        self._turns = 0
        self._spent = Decimal(0)
        self._reply: dict[str, tuple[object, bytes | None]] = {}
        self._cut_off = False
        self._proposed: set[str] = set()
        self._calls: dict[str, _Call] = {}
        self._ok = self._failed = self._ok_in_kernel = 0

    def begin(self, anchor: Json) -> None:
        """Take the terms of the run from its anchor."""
        self._transport = anchor.get("transport")
        tools, forbidden = _names(anchor.get("tools")), _names(anchor.get("forbidden_tools", []))
        if tools is None or forbidden is None:
            self._say(
                "anchor", "the tools in the run's reach, or those it was forbidden, are no list of names"
            )
            return
        self._reach = tools - forbidden

    def take(self, kind: str, id_: str, actor: str, body: Json) -> None:
        """Look at the next record of the chain that is about a turn or a call."""
        match kind:
            case "core.work.turn.v1":
                self._turn(body)
            case "core.work.tool_call.v1":
                self._call(id_, body)
            case "core.work.tool_verdict.v1":
                self._verdict(body)
            case "core.work.tool_result.v1":
                self._result(actor, body)
            case "core.work.observation.v1":
                call = self._beside(body)
                if call is not None and call.decision is None:
                    self._say("judgement", "it stands beside a call that has no verdict yet")
            case "core.work.note.v1":
                call = self._fulfilled(body)
                if call is not None and call.decision != "allow":
                    self._say("judgement", "the call that it was written by has no verdict that allows it")

    def finish(self) -> None:
        """Say which calls no verdict was given: a call and its verdict are written as one."""
        for id_, call in self._calls.items():
            if call.decision is None:
                self._say("judgement", f"the call {quoted(call.call_id)}, {id_}, has no verdict before this")

    def weigh(self, outcome: Json) -> None:
        """Hold a run's outcome against what its records add up to."""
        self._check_verdict_on_run(outcome)
        going = sum(call.decision == "allow" and not call.done for call in self._calls.values())
        for name, counted in (
            ("turns", self._turns),
            ("tool_calls_ok", self._ok),
            ("tool_calls_failed", self._failed + going),
        ):
            said = outcome.get(name)
            if type(said) is not int or said != counted:
                self._say("tally", f"{name} is {quoted(said)}, and the records come to {counted}")
        self._check_spent(outcome)
        in_kernel = self._transport == "in_process" or self._ok_in_kernel > 0
        evidence = "kernel" if in_kernel else "worker"
        if outcome.get("evidence") != evidence:
            said = quoted(outcome.get("evidence"))
            self._say("tally", f"the evidence is {said}, and by the records it is {evidence!r}")
        if outcome.get("transport") != self._transport:
            self._say(
                "tally", f"the transport is {quoted(outcome.get('transport'))}, which is not the anchor's"
            )

    def _check_verdict_on_run(self, outcome: Json) -> None:
        word, state, success = outcome.get("outcome"), outcome.get("state"), outcome.get("success")
        if not isinstance(word, str) or word not in _OUTCOMES:
            self._say("tally", f"the outcome is {quoted(word)}, which is none")
            return
        due = _STATES.get(word, _SHORT)
        if state != due:
            self._say("tally", f"the state is {quoted(state)}, and with the outcome {word} it is {due!r}")
        if success is not (word == "completed"):
            self._say("tally", f"success is {quoted(success)}, which the outcome {word} is not")
        for name, with_ in (("budget_kind", "budget_exhausted"), ("stopped_by", "cancelled")):
            if name in outcome and word != with_:
                self._say("tally", f"the outcome {word} has {name}, which only {with_} has")

    def _check_spent(self, outcome: Json) -> None:
        said = _money(outcome.get("spent_usd"))
        if said is None:
            self._say("tally", f"spent_usd is {quoted(outcome.get('spent_usd'))}, which is no sum of money")
            return
        apart = said - self._spent
        close = abs(apart) <= _APART * max(said, self._spent)
        # A provider is paid for a reply of no use, and for one that the log could not take, whatever then ended the
        # run; a run that ended by what the kernel or its last reply said has had none of either.
        broken_off = outcome.get("outcome") in ("failed", "cancelled") or (
            outcome.get("budget_kind") == "wall_clock"
        )
        if not close and not (broken_off and apart > 0):
            self._say("tally", f"spent_usd is {float(said):g}, and the turns come to {float(self._spent):g}")

    def _turn(self, body: Json) -> None:
        self._turns += 1
        if type(body.get("turn")) is not int or body["turn"] != self._turns:
            self._say(
                "tally", f"it is numbered {quoted(body.get('turn'))}, and is the run's turn {self._turns}"
            )
        cost = _money(body.get("cost_usd"))
        if cost is None:
            self._say("tally", f"its cost is {quoted(body.get('cost_usd'))}, which is no sum of money")
        else:
            self._spent += cost
        self._proposed = set()
        reply = body.get("reply")
        calls = reply.get("calls") if isinstance(reply, dict) else None
        self._reply, self._cut_off = {}, isinstance(reply, dict) and reply.get("stop_reason") == "length"
        if not isinstance(calls, list):
            self._say("judgement", "it has no reply with a list of calls")
            return
        for call in calls:
            id_ = call.get("id") if isinstance(call, dict) else None
            if not isinstance(id_, str) or id_ in self._reply:
                self._say(
                    "judgement", f"a call of its reply has the id {quoted(id_)}, which is none or one twice"
                )
                continue
            self._reply[id_] = (call.get("name"), _canonical(call.get("arguments")))

    def _call(self, id_: str, body: Json) -> None:
        call_id, tool = body.get("call_id"), body.get("tool")
        if not isinstance(call_id, str) or not isinstance(tool, str):
            self._say("judgement", "it names no call and tool")
            return
        if call_id not in self._reply:
            self._say("judgement", f"the reply before it asks for no call {quoted(call_id)}")
        elif self._reply[call_id] != (tool, _canonical(body.get("arguments"))):
            self._say(
                "judgement", f"the reply before it asks for another tool or arguments as {quoted(call_id)}"
            )
        if call_id in self._proposed:
            self._say("judgement", f"the call {quoted(call_id)} of this reply is on record already")
        self._proposed.add(call_id)
        self._calls[id_] = _Call(call_id, tool, self._cut_off, "malformed" in body)

    def _verdict(self, body: Json) -> None:
        decision = body.get("decision")
        if decision not in ("allow", "deny", "stop"):
            self._say("judgement", f"its decision is {quoted(decision)}, which is none")
            decision = "deny"
        self._failed += decision != "allow"
        call = self._beside(body)
        if call is None:
            return
        if call.decision is not None:
            self._say("judgement", "the call that it judges has a verdict already")
            return
        call.decision = decision
        if decision == "allow" and call.cut_off:
            self._say("judgement", "it allows a call of a reply that was cut off by the output limit")
        if decision == "allow" and call.malformed:
            self._say("judgement", "it allows a call whose arguments are no JSON object")
        if decision == "allow" and self._reach is not None and call.tool not in self._reach:
            self._say("judgement", f"it allows the tool {quoted(call.tool)}, which is not in the run's reach")

    def _result(self, actor: str, body: Json) -> None:
        status = body.get("status")
        by_kernel = actor == ENGINE
        if status not in ("ok", "error"):
            self._say("judgement", f"its status is {quoted(status)}, which is none")
        self._ok += status == "ok"
        self._failed += status != "ok"
        self._ok_in_kernel += status == "ok" and by_kernel
        call = self._beside(body)
        if call is None:
            return
        if call.decision != "allow":
            said = "no verdict yet" if call.decision is None else f"the verdict {call.decision!r}"
            self._say(
                "judgement", f"the call that it is the result of has {said}, and only an allowed one runs"
            )
        if call.done:
            self._say("judgement", "the call that it is the result of has a result already")
        call.done = True
        if by_kernel and call.tool in SANDBOXED_TOOLS:
            self._say("judgement", f"the kernel wrote it, and does not run the tool {call.tool}")
        if not by_kernel and call.tool in KERNEL_TOOLS:
            self._say("judgement", f"the run wrote it, and only the kernel runs the tool {call.tool}")

    def _beside(self, body: Json) -> _Call | None:
        """Give the call that a record is about, by its id and by name."""
        call = self._fulfilled(body)
        if call is not None and (body.get("call_id"), body.get("tool")) != (call.call_id, call.tool):
            self._say("judgement", "it names another call or tool than the call that it fulfills")
        return call

    def _fulfilled(self, body: Json) -> _Call | None:
        fulfills = body.get("fulfills")
        call = self._calls.get(fulfills) if isinstance(fulfills, str) else None
        if call is None:
            self._say("judgement", f"it fulfills {quoted(fulfills)}, which is no earlier call of the chain")
        return call


def _names(value: object) -> frozenset[str] | None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return None
    return frozenset(value)


def _canonical(value: object) -> bytes | None:
    """Give a value that can be told from every other: in Python 1 and true are one."""
    try:
        return canonical(value)
    except InvalidBody:
        return None


def _money(value: object) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return None
    return None if value == math.inf else Decimal(repr(value))
