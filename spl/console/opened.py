"""The run that is looked into: its timeline and its receipt, as a fold of the records of its thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from spl.console import wire
from spl.console.text import PAGE, taken, word
from spl.console.wire import (
    ISOLATION,
    LOOP,
    NOTE,
    OBSERVATION,
    OUTCOME,
    TOOL_CALL,
    TOOL_RESULT,
    TOOL_VERDICT,
    TURN,
)
from spl.decisions import ENGINE

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.console.wire import Json

MOST_ENTRIES: Final = 2000
_MOST_NAMED: Final = 500


class Verdict(NamedTuple):
    """What the kernel said of a call."""

    decision: str
    layer: str
    rule: str
    tool: str


class Entry(NamedTuple):
    """One thing that happened on the opened run's thread: `what` is a word, `text` what was said."""

    sequence: int
    turn: int
    what: str
    text: str


class Layer(NamedTuple):
    """One layer of an isolation receipt, with each thing that was observed."""

    name: str
    claim: str
    confirmed: bool
    observed: tuple[tuple[str, str, str], ...]

    def told(self) -> tuple[str, ...]:
        """Give its claim and each finding, a line each."""
        return (
            self.claim,
            *(f"{how}: expected {wanted}, observed {got}" for how, wanted, got in self.observed),
        )


@dataclass(slots=True)
class Opened:
    """The run that is looked into; `dropped` is how many of its first entries are kept no more.

    With `anew` the thread is being read from its beginning: what is known stays until the first record comes.
    """

    thread: str
    entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=MOST_ENTRIES))
    layers: tuple[Layer, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    exit: str = ""
    last: int = 0
    turn: int = 0
    dropped: int = 0
    refused: str = ""
    anew: bool = False


def take(opened: Opened, record: Json) -> None:
    """Take in a record of its thread; one that was taken in before changes nothing."""
    if opened.anew:
        opened.entries.clear()
        opened.layers, opened.facts, opened.exit = (), (), ""
        opened.last = opened.turn = opened.dropped = 0
        opened.anew, opened.refused = False, ""
    sequence = wire.whole(record.get("sequence")) or 0
    if sequence <= opened.last:
        return
    opened.last = sequence
    body = wire.body(record)
    kind = body.get("kind")
    own = record.get("actor") == ENGINE or kind in _OWN
    told = _TOLD.get(kind) if own and isinstance(kind, str) else None
    if kind == TURN and told is not None:
        opened.turn = wire.whole(body.get("turn")) or opened.turn
    if told is None:
        what, text = "record", f"{taken(kind)} by {taken(record.get('actor'))}"
    else:
        what, text = told(body)
    if what == "confirmed":
        opened.layers, opened.facts = layers_of(body), _facts(body)
    if what == "ended":
        opened.exit = taken(body.get("exit"))
    if len(opened.entries) == MOST_ENTRIES:
        opened.dropped += 1
    opened.entries.append(Entry(sequence, opened.turn, what, taken(text, PAGE)))


_OWN: Final = frozenset((TOOL_RESULT, "core.work.plan.v1", "core.work.report.v1"))


def _begun(body: Json) -> tuple[str, str]:
    where = f"{taken(body.get('transport'), 40)}, profile {taken(body.get('profile'), 80)}"
    return "begun", f"{where}: {taken(body.get('goal'), PAGE)}"


def _confirmed(body: Json) -> tuple[str, str]:
    layers = wire.objects(body.get("layers"))
    held = sum(layer.get("confirmed") is True for layer in layers)
    return (
        "confirmed",
        f"{held} of {len(layers)} layers, pid {taken(body.get('pid'))}, uid {taken(body.get('uid'))}",
    )


def _turn(body: Json) -> tuple[str, str]:
    usage, reply = wire.fields(body.get("usage")), wire.fields(body.get("reply"))
    calls = ", ".join(word(call.get("name")) for call in wire.objects(reply.get("calls"))[:50])
    said = taken(reply.get("text"), PAGE) or (f"calls {calls}" if calls else "nothing")
    used = f"tokens {taken(usage.get('input_tokens'))} in {taken(usage.get('output_tokens'))} out"
    return "reply", f"{used}, {wire.usd(wire.number(body.get('cost_usd')) or 0.0)}: {said}"


def _call(body: Json) -> tuple[str, str]:
    return "call", f"{word(body.get('tool'))} {taken(body.get('arguments'), PAGE)}"


def _judged(body: Json) -> tuple[str, str]:
    verdict = verdict_of(body)
    rule = f", rule {word(verdict.rule)}" if verdict.rule else ""
    said = f"{word(verdict.tool)} by layer {verdict.layer}{rule}: {taken(body.get('reason'), PAGE)}"
    return verdict.decision, said


def _result(body: Json) -> tuple[str, str]:
    cut = ", of which the end was not kept" if body.get("truncated") is True else ""
    return "result", f"{taken(body.get('status'), 20)}{cut}: {taken(body.get('output'), PAGE)}"


def _observed(body: Json) -> tuple[str, str]:
    return "observed", f"{word(body.get('rule'))}: {taken(body.get('text'), PAGE)}"


def _own_words(word: str) -> Callable[[Json], tuple[str, str]]:
    def told(body: Json) -> tuple[str, str]:
        said = body.get("text") or {name: value for name, value in body.items() if name != "kind"}
        return word, taken(said, PAGE)

    return told


def _ended(body: Json) -> tuple[str, str]:
    exit_ = f", exit {taken(body.get('exit'))}" if body.get("exit") is not None else ""
    by = f", stopped by {taken(body.get('stopped_by'))}" if body.get("stopped_by") else ""
    state = f"{taken(body.get('outcome'), 40)}, {taken(body.get('state'), 40)}{exit_}{by}"
    return "ended", f"{state}: {taken(body.get('summary'), PAGE)}"


_TOLD: Final = {
    LOOP: _begun,
    ISOLATION: _confirmed,
    TURN: _turn,
    TOOL_CALL: _call,
    TOOL_VERDICT: _judged,
    TOOL_RESULT: _result,
    OBSERVATION: _observed,
    NOTE: _own_words("note"),
    "core.work.plan.v1": _own_words("plan"),
    "core.work.report.v1": _own_words("report"),
    OUTCOME: _ended,
}


def layers_of(body: Json) -> tuple[Layer, ...]:
    """Give the layers of an isolation receipt, from its record's body."""
    return tuple(
        Layer(
            taken(layer.get("layer"), 80),
            taken(layer.get("claim")),
            layer.get("confirmed") is True,
            tuple(
                (taken(seen.get("how")), taken(seen.get("expected")), taken(seen.get("observed")))
                for seen in wire.objects(layer.get("observed"))[:_MOST_NAMED]
            ),
        )
        for layer in wire.objects(body.get("layers"))[:_MOST_NAMED]
    )


def _facts(body: Json) -> tuple[tuple[str, str], ...]:
    bubblewrap = wire.fields(body.get("bubblewrap"))
    return (
        ("profile", f"{taken(body.get('profile'), 80)} {taken(body.get('profile_digest'), 80)}"),
        ("shape", taken(body.get("shape"))),
        ("pid, uid", f"{taken(body.get('pid'))}, {taken(body.get('uid'))}"),
        ("confirmed", f"{taken(body.get('confirmed_at'))}, looked at again {taken(body.get('looked_at'))}"),
        ("bubblewrap", f"{taken(bubblewrap.get('version'))} {taken(bubblewrap.get('path'))}"),
        ("argv", taken(body.get("argv_digest"), 80)),
        ("filter", taken(body.get("filter_digest"), 80)),
        ("image", taken(body.get("image_digest"), 80)),
        ("absent", wire.names([*wire.items(body.get("absent_layers")), *wire.items(body.get("absent"))])),
    )


def verdict_of(body: Json) -> Verdict:
    """Give a verdict from its record's body."""
    return Verdict(
        taken(body.get("decision"), 40),
        taken(body.get("layer"), 40),
        taken(body.get("rule"), 80),
        taken(body.get("tool"), 80),
    )
