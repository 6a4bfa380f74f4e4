"""What the kernel notices of a run after a call: text put beside the tool's own result, never in place of it.

A rule is a pure function of the calls so far. It keeps nothing, is given nothing that it could change and sees no
other rule, so all it can do is add: in no order can one rule take anything from another.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

TEXT_LIMIT = 2000
"""Characters of one observation."""

REPEATS_TOLD = 3
"""Identical calls in a row, from which on the model is told."""

HALT_AFTER = 5
"""Identical failing calls in a row that end the run; from the third on it was told of them."""

_log = structlog.get_logger("spl.kernel")


class Called(NamedTuple):
    """One call as it turned out. A tuple of plain values, so that no rule can change what another sees.

    `arguments` is their canonical JSON or a digest of it: equal where they are. `truncated` says that the reply had hit
    the output limit. `read` is the thread that the call did read, if it was such a call and succeeded; `empty`, that
    nothing came back from it.
    """

    tool: str
    arguments: str
    outcome: Literal["ok", "error", "denied"]
    truncated: bool = False
    read: str | None = None
    empty: bool = False
    turn: int = 0


History: TypeAlias = "tuple[Called, ...]"
"""A run's calls, denied ones included, oldest first. The last, which is always there, is the one to look at."""


class Rule(NamedTuple):
    """A name, and what gives the text to show beside the last call of a history, or None."""

    name: str
    see: Callable[[History], str | None]


class Observation(NamedTuple):
    """What a rule has to say, and which rule it was."""

    rule: str
    text: str


class Observers:
    """A set of rules; it keeps nothing of a run, so one serves all."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Take the rules; raises ValueError where two have one name, for one could pass for the other."""
        self.rules = tuple(sorted(rules, key=lambda rule: rule.name))
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise ValueError(f"two observation rules have one name: {', '.join(names)}")

    def see(self, calls: Sequence[Called]) -> list[Observation]:
        """Give what there is to say beside the last of a run's calls, by rule name whatever the rules' order.

        A rule that fails is logged and says nothing; the others do not notice.
        """
        history = tuple(calls)
        said: list[Observation] = []
        for rule in self.rules:
            try:
                text = _text(rule.see(history))
            # Nothing is awaited in a rule, so that even a SystemExit or CancelledError is the rule's own.
            except BaseException:  # noqa: BLE001 - a rule that raises must not silence those after it
                _log.exception("an observation rule failed", rule=rule.name)
                continue
            if text is not None:
                said.append(Observation(rule.name, text))
        return said


def halt(calls: Sequence[Called]) -> str | None:
    """Give the sentence that a `guardrail_halt` ends with, or None while the run may go on.

    This decides and is no rule: it is asked beside the rules, of the same calls, and nothing they do reaches it.
    """
    last = calls[-HALT_AFTER:]
    if len(last) < HALT_AFTER or any(call.outcome == "ok" or not _alike(call, last[0]) for call in last):
        return None
    if last[-1].turn <= last[REPEATS_TOLD - 1].turn:
        # All of one reply: the model has not read yet what it was told.
        return None
    return f"The same call of {last[0].tool!r:.80} failed {HALT_AFTER} times in a row."


def _repeated_call(history: History) -> str | None:
    last = history[-1]
    times = sum(1 for _ in takewhile(lambda call: _alike(call, last), reversed(history)))
    if times < REPEATS_TOLD:
        return None
    return (
        f"You have called {last.tool!r:.80} with the same arguments {times} times in a row. "
        "Change something, or stop."
    )


def _empty_reread(history: History) -> str | None:
    last = history[-1]
    if last.read is None or not last.empty:
        return None
    times = sum(call.read == last.read for call in history)
    if times < 2:
        return None
    return (
        f"You have already looked: you have read the thread {last.read!r:.80} {times} times in this run, "
        "and this time nothing came back. Go on with what you know, or stop."
    )


def _cut_off_call(history: History) -> str | None:
    if not history[-1].truncated:
        return None
    return (
        "Your reply hit the output limit, so this call was not run: cut off mid-write, its arguments may be "
        "incomplete even where they parse. Make the call anew in a shorter reply."
    )


SHIPPED = Observers(
    (
        Rule("repeated_call", _repeated_call),
        Rule("empty_reread", _empty_reread),
        Rule("cut_off_call", _cut_off_call),
    )
)
"""The rules that every run has."""


def _alike(one: Called, other: Called) -> bool:
    return (one.tool, one.arguments) == (other.tool, other.arguments)


def _text(said: object) -> str | None:
    """Take what a rule gave, bounded; raises TypeError or ValueError for what no record can hold."""
    if said is None:
        return None
    # Exactly a str: a subclass can answer for its own length and slices.
    if type(said) is not str or not said:
        raise TypeError("the rule gave neither a text nor None")
    text = said if len(said) <= TEXT_LIMIT else said[: TEXT_LIMIT - 1] + "…"
    text.encode()  # a lone surrogate would fail the record, and with it what the others have to say
    return text
