"""Permission rules: CEL expressions over one proposed call, the highest priority first, the first match decides.

A rule that cannot be evaluated for a call denies it if it is a deny rule, and never allows it. So does one whose answer
would hang on what no rule is shown.

Everything waits while a call is judged, so there are bounds to what a rule is shown and to a pattern. With them, a rule
that is meant to judge takes one second or two for the worst that a model could ask: that each of 3800 texts be searched
for the largest pattern. They stop nobody who writes a rule to take long: 400 characters, which compare lists of lists,
took minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from spl.errors import ExpressionInvalid
from spl.kernel.expressions import compiled, declared, sentence
from spl.kernel.shown import shown
from spl.kernel.target import target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

_TOGETHER = 32
"""Rules asked in one evaluation; one that errs has its neighbours asked one by one."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule as it stands in configuration: `action` is `allow` or `deny`, and anything else reads as `deny`."""

    name: str
    action: str
    priority: int
    expression: str
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Asked:
    """What a rule may look at: one proposed call, its run, and for whom it is; `args` is JSON."""

    tool: str
    args: Mapping[str, Any]
    actor: str
    tier: str
    transport: str
    thread: str
    goal: str
    turn: int
    spent_usd: float


@dataclass(frozen=True, slots=True)
class Match:
    """The rule that decided; `error` says why it could not be evaluated, if that is how it came to deny."""

    rule: Rule
    error: str | None


class Rules:
    """The live rules. Of equal priority the first by name is asked first; all calls are made on one thread."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        """Take the clock of the function `now()`: it gives a time with its zone, and is read at most once a call."""
        self._now = now
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[str | None, list[_Group]] = {}
        self._changed = False
        self._language: Any = None
        self._actor: object = None
        self._moment: datetime | None = None

    def put(self, rule: Rule) -> None:
        """Add a rule, or replace the one of its name; its hits count from here. Nothing is compiled yet."""
        self._entries[rule.name] = _Entry(rule)
        self._changed = True

    def drop(self, name: str) -> None:
        """Take a rule away, if there is one of this name."""
        if self._entries.pop(name, None) is not None:
            self._changed = True

    def compile(self) -> None:
        """Compile what is not compiled yet, which otherwise the next call waits for."""
        if self._changed:
            self._groups = self._arranged()
            self._changed = False

    def judge(self, asked: Asked) -> Match | None:
        """Give the first rule that matches the call, or None."""
        groups = self._able(f"tool:{asked.tool}")
        if not groups:
            return None
        seen, withheld = shown(_variables(asked))
        self._actor = seen[0].get("actor")
        self._moment = None
        found = _first(groups, [self._language.Activation(each) for each in seen])
        if found is None:
            return None
        entry, said = found
        entry.hits += 1
        return Match(entry.rule, None if said is True else _explained(said, entry, withheld))

    def listed(self) -> list[tuple[Rule, int]]:
        """Give all rules in the order they are asked, the disabled too, each with how often it decided since `put`."""
        return [(entry.rule, entry.hits) for entry in self._ordered()]

    def _ordered(self) -> list[_Entry]:
        return sorted(self._entries.values(), key=lambda entry: (-entry.rule.priority, entry.rule.name))

    def _able(self, resource: str) -> list[_Group]:
        """Give the rules that can match a resource: its own and those without a target, or all if it is not shown.

        Every other rule is a clean false for it. The groups stand in the order of their first rules.
        """
        self.compile()
        if not self._groups:
            return []
        hidden = shown({"resource": resource})[1] is not None
        able = self._groups.values() if hidden else [self._groups.get(each, []) for each in (resource, None)]
        return sorted(chain.from_iterable(able), key=lambda group: group.entries[0].rank)

    def _arranged(self) -> dict[str | None, list[_Group]]:
        """Compile what is not compiled yet, and group the rules that can match, by the resource that each is about."""
        live = [entry for entry in self._ordered() if entry.rule.enabled]
        if live and self._language is None:
            self._language = declared({"current_actor()": self._current_actor, "now()": self._once})
        for rank, entry in enumerate(live):
            entry.rank = rank
            if entry.program is None and entry.broken is None:
                try:
                    entry.program = compiled(self._language, entry.rule.expression)
                    entry.target = target(entry.program)
                except ExpressionInvalid as error:
                    entry.broken = error.message
        able: dict[str | None, list[_Entry]] = {}
        for entry in live:
            if entry.broken is None or entry.rule.action != "allow":
                able.setdefault(entry.target, []).append(entry)
        known = {group.text: group for groups in self._groups.values() for group in groups}
        return {
            each: [
                _grouped(self._language, entries[at : at + _TOGETHER], known)
                for at in range(0, len(entries), _TOGETHER)
            ]
            for each, entries in able.items()
        }

    def _current_actor(self) -> object:
        return self._actor

    def _once(self) -> datetime:
        if self._moment is None:
            self._moment = self._now()
        return self._moment


@dataclass(slots=True)
class _Entry:
    """A rule, how often it decided, its place among all, and its program or why it has none.

    `target` is the one resource that it can match, if there is but one; what has no program may match any.
    """

    rule: Rule
    hits: int = 0
    rank: int = 0
    program: Any = None
    broken: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """Rules of one target that follow each other, and all of them as one program, if that compiles."""

    entries: list[_Entry]
    text: str
    together: Any


def _grouped(language: Any, entries: list[_Entry], known: Mapping[str, _Group]) -> _Group:
    """Join rules with `||`: a clean false says that none of them matches and none of them errs.

    With `||` an error is lost only beside a true, and any answer but a clean false has each rule asked alone.
    An expression that compiled by itself cannot reach out of its parentheses; the line break ends its last comment.
    The rules share one budget of iterations then, and their nesting one limit, which alone they may keep to.
    A group of the same text is not compiled anew: of 1000 rules all would take 25 ms, for which every call would wait.
    """
    if len(entries) < 2 or any(entry.broken for entry in entries):
        return _Group(entries, "", None)
    text = "||".join(f"({entry.rule.expression}\n)" for entry in entries)
    if text in known:
        return _Group(entries, text, known[text].together)
    try:
        return _Group(entries, text, language.compile(text))
    except RuntimeError:
        return _Group(entries, text, None)


def _first(groups: list[_Group], views: list[Any]) -> tuple[_Entry, bool | str] | None:
    """Give the first rule that decides and what it said; of the groups, each may have rules between another's."""
    found: tuple[_Entry, bool | str] | None = None
    for group in groups:
        if found is not None and found[0].rank < group.entries[0].rank:
            break
        if group.together is not None and _ask(group.together, views) is False:
            continue
        for entry in group.entries:
            if found is not None and found[0].rank < entry.rank:
                break
            said = entry.broken or _ask(entry.program, views)
            if said is True or (isinstance(said, str) and entry.rule.action != "allow"):
                found = entry, said
                break
    return found


def _ask(program: Any, views: list[Any]) -> bool | str:
    """Evaluate: true, false, or why there is no answer; the views must agree."""
    answers = {_answer(program, each) for each in views}
    return answers.pop() if len(answers) == 1 else "its answer hangs on what it was not shown"


def _answer(program: Any, activation: Any) -> bool | str:
    """Evaluate in one view. The library gives up at 10 000 iterations of its macros."""
    try:
        value = program.eval(activation)
        kind = value.type().name()
        # A run-time error is a value as well, and a truthy one.
        said = value.value() if kind in ("BOOL", "ERROR") else f"it gave {kind.lower()}, not bool"
    except Exception as error:  # noqa: BLE001 - whatever the binding raises, the rule could not be evaluated
        return str(error)
    return said if isinstance(said, bool) else str(said)


def _explained(said: bool | str, entry: _Entry, withheld: str | None) -> str:
    """Give why a rule could not be evaluated, or what was withheld, for that may be why."""
    return sentence(str(said) if withheld is None or entry.broken else f"it may need {withheld}")


def _variables(asked: Asked) -> dict[str, object]:
    """Give what an expression may name; the arguments last, so that they take no other's room."""
    return {
        "resource": f"tool:{asked.tool}",
        "actor": asked.actor,
        "tier": asked.tier,
        "transport": asked.transport,
        "run.thread": asked.thread,
        "run.goal": asked.goal,
        "run.turn": asked.turn,
        "run.spent_usd": float(asked.spent_usd),
        "args": dict(asked.args),
    }
