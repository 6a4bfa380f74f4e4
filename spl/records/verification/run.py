"""The run on a thread, read from its records alone: their chain, and who may have written which.

Nothing here is the kernel's: what it writes is read as a stranger would, who has its contract and the records. The
kinds stand here as they stand in the contract, and a test holds them against the kernel's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from spl.records.verification.findings import quoted
from spl.records.verification.judgement import ENGINE, Judgement

Json = dict[str, Any]
Say = Callable[[str, str], None]
"""Takes a check and a sentence about the record that is being looked at."""

ANCHOR: Final = "core.work.loop.v1"
RECEIPT: Final = "core.work.isolation.v1"
OUTCOME: Final = "core.work.loop_outcome.v1"
RESULT: Final = "core.work.tool_result.v1"
REFUSAL: Final = "core.work.refusal.v1"
REFUSALS_THREAD: Final = "th_engine_isolation"

_CALLS: Final = tuple(
    f"core.work.{name}.v1" for name in ("turn", "tool_call", "tool_verdict", "observation", "note")
)

KERNELS: Final = frozenset((ANCHOR, RECEIPT, OUTCOME, RESULT, *_CALLS))
"""The kinds that the kernel writes on a run's thread."""

RUNS: Final = frozenset((RESULT, "core.work.plan.v1", "core.work.report.v1"))
"""The kinds that a run may write itself."""

TRANSPORTS: Final = ("sandboxed", "in_process")


class Read(NamedTuple):
    """A record that has the shape of one, as far as a run is concerned."""

    id: str
    parents: tuple[str, ...]
    thread: str
    actor: str
    body: Json
    judged_by: str | None

    @property
    def kind(self) -> str:
        """The kind named in the body, or nothing."""
        kind = self.body.get("kind")
        return kind if isinstance(kind, str) else ""


class Run:
    """A thread's run, record by record; `say` takes what is wrong with the one that is being looked at."""

    def __init__(self, say: Say) -> None:
        self.records = 0
        self.head: str | None = None
        self.ended = False
        self._say = say
        self._actor: str | None = None
        self._sandboxed = False
        self._anchored = False
        self._digest: object = None
        self._receipt = False
        self._judgement = Judgement(say)

    @property
    def begun(self) -> bool:
        """Whether an anchor has been seen."""
        return self._anchored

    def take(self, record: Read, *, first: bool) -> bool:
        """Look at a thread's next record; tell whether it is one of the run's. `first` says that none came before."""
        kind = record.kind
        if not kind.startswith("core.work."):
            return False
        if kind == REFUSAL and record.thread == REFUSALS_THREAD and record.actor == ENGINE:
            return False
        if not self._is_by_its_author(record):
            return False
        self._check_place(record, first=first)
        self.records += 1
        self.head = record.id
        if record.judged_by is not None:
            self._say(
                "judged_by", "it says who judged it, which no record of a run's does and no id speaks for"
            )
        match kind:
            case "core.work.loop.v1":
                self._begin(record.body)
            case "core.work.isolation.v1":
                self._confirm(record.body)
            case "core.work.loop_outcome.v1":
                self._end(record.body)
            case _:
                self._judgement.take(kind, record.id, record.actor, record.body)
        return True

    def finish(self) -> None:
        """Say what is missing now that no record follows."""
        if self._sandboxed and not self._receipt:
            self._say("receipt", "the run is sandboxed, and no receipt of its isolation is on the chain")
        if not self.ended:
            self._judgement.finish()

    def _is_by_its_author(self, record: Read) -> bool:
        kind, actor = record.kind, record.actor
        if kind not in KERNELS | RUNS:
            self._say("author", f"{quoted(kind)} is no kind of a run's")
            return False
        if actor == ENGINE:
            if kind in KERNELS:
                return True
            self._say("author", f"the kernel wrote {kind}, which only a run writes")
            return False
        if kind in RUNS and (actor == self._actor or self._actor is None):
            return True
        self._say("author", f"{quoted(actor)} wrote {kind}, which only the kernel or the run itself may")
        return False

    def _check_place(self, record: Read, *, first: bool) -> None:
        if self.ended:
            self._say("chain", "it follows the outcome, which closes the chain")
        elif self.head is None and record.kind != ANCHOR:
            self._say("chain", f"the chain begins with {record.kind} and not with the run's anchor")
            return
        if record.kind == ANCHOR and self.head is not None:
            self._say("chain", "it is another anchor: a thread has one run")
        elif record.kind == ANCHOR and not first:
            self._say("chain", "records stand on the thread before the run's anchor")
        due = () if self.head is None else (self.head,)
        if record.parents != due:
            expected = f"the record before it on the chain, {self.head}" if due else "nothing"
            named = ", ".join(record.parents[:2]) or "nothing"
            self._say("chain", f"its parent must be {expected}, and it names {named}")

    def _begin(self, body: Json) -> None:
        if self._anchored:
            return
        self._anchored = True
        actor, transport = body.get("actor"), body.get("transport")
        if not isinstance(actor, str) or actor == ENGINE:
            self._say("anchor", f"the run is for {quoted(actor)}, which is no one's name")
        else:
            self._actor = actor
        if transport not in TRANSPORTS:
            self._say("anchor", f"the transport is {quoted(transport)}, which is none")
        self._sandboxed = transport == "sandboxed"
        self._digest = body.get("profile_digest")
        if self._sandboxed is (self._digest is None):
            self._say("anchor", "a sandboxed run has the digest of a profile, and no other run has")
        self._judgement.begin(body)

    def _confirm(self, body: Json) -> None:
        if self._receipt:
            self._say("receipt", "it is another receipt: a run has one")
        elif self.records != 2:
            self._say("receipt", "it must be the chain's second record, the anchor's next")
        if self._anchored and not self._sandboxed:
            self._say("receipt", "the run is not sandboxed, so nothing confirms its isolation")
        self._receipt = True
        if body.get("profile_digest") != self._digest:
            self._say("receipt", "the digest of its profile is not the anchor's")
        layers = body.get("layers")
        if not isinstance(layers, list) or not layers:
            self._say("receipt", "it has no list of layers")
            return
        for layer in layers:
            if not _is_confirmed(layer):
                name = layer.get("layer") if isinstance(layer, dict) else layer
                self._say("receipt", f"the layer {quoted(name)} is claimed and not confirmed")

    def _end(self, body: Json) -> None:
        if self.ended:
            return
        self.ended = True
        self._judgement.finish()
        self._judgement.weigh(body)


def _is_confirmed(layer: object) -> bool:
    return isinstance(layer, dict) and isinstance(layer.get("layer"), str) and layer.get("confirmed") is True
