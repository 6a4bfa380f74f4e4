"""The calls of the model's last reply, and how far each has come: judged, taken to be run, its result on record.

A worker names a call by its id and nothing else, so it can have none run that the model did not ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spl.errors import CallAlreadyRun, CallNotAllowed, CallNotInReply
from spl.tools.registry import TOOLS, Domain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spl.inference.model import Call, Reply
    from spl.kernel.guard import Verdict


@dataclass(slots=True)
class Proposed:
    """A call that was judged; `record` is its id on the thread, `done` says that its result is on record."""

    call: Call
    record: str
    verdict: Verdict
    observations: Sequence[str]
    taken: bool = False
    done: bool = False

    @property
    def answered(self) -> bool:
        """Whether the model has something to be shown of it."""
        return self.done or not self.verdict.allowed


class Calls:
    """What became of the last reply's calls; `unwritten` counts those of every reply that the log could not take."""

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.unwritten = 0
        self._proposed: dict[str, Proposed] = {}
        self._refused: set[str] = set()

    @property
    def truncated(self) -> bool:
        """Whether the reply hit the output limit."""
        return self.reply is not None and self.reply.stop_reason == "length"

    def replace(self, reply: Reply) -> None:
        """Go on with another reply; the calls of the one before are gone."""
        self.reply, self._proposed, self._refused = reply, {}, set()

    @property
    def newest(self) -> Proposed | None:
        """Give the call that was judged last: an honest loop has run each before it proposes the next."""
        return next(reversed(self._proposed.values()), None)

    def find(self, id: str) -> Call:  # noqa: A002 - the field's own name
        """Give the call with this id; raises `CallNotInReply`."""
        for call in self.reply.calls if self.reply is not None else ():
            if call.id == id:
                return call
        raise CallNotInReply(f"the model's last reply holds no call {id!r:.80}")

    def proposed(self, call: Call) -> Proposed | None:
        """Give a call as it was judged, if it was."""
        return self._proposed.get(call.id)

    def judge(self, proposed: Proposed) -> None:
        """Take down that a call has its verdict on record."""
        if proposed.call.id in self._refused:
            self._refused.remove(proposed.call.id)
            self.unwritten -= 1
        self._proposed[proposed.call.id] = proposed

    def refuse(self, call: Call) -> None:
        """Take down that a call was denied for the log's sake; it may be proposed again."""
        if call.id not in self._refused:
            self._refused.add(call.id)
            self.unwritten += 1

    def runnable(self, call: Call, *, sandboxed: bool) -> Proposed:
        """Give an allowed call that is to be run in the worker (`sandboxed`), or in the kernel.

        Raises `CallNotAllowed`, also for a tool of the other side, and `CallAlreadyRun`.
        """
        proposed = self._proposed.get(call.id)
        if proposed is None or not proposed.verdict.allowed:
            raise CallNotAllowed(f"the call {call.id!r} has no verdict that allows it")
        if proposed.taken:
            raise CallAlreadyRun(f"the call {call.id!r} has been run")
        if (TOOLS[call.name].domain is Domain.SANDBOXED) is not sandboxed:
            raise CallNotAllowed(f"the tool {call.name!r} is run on the other side of the doors")
        return proposed

    def passed_over(self) -> str | None:
        """Give the id of the first call that has no answer: no honest loop goes on without it."""
        for call in self.reply.calls if self.reply is not None else ():
            proposed = self._proposed.get(call.id)
            if call.id not in self._refused and (proposed is None or not proposed.answered):
                return call.id
        return None
