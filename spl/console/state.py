"""What is known of a daemon: a fold of events, pure, bounded in number and in length, and harmless to show.

Only what the engine wrote tells of a run; whatever else stands on its thread is shown as someone's record and no more.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spl.console import wire
from spl.console.opened import Opened, Verdict, take, verdict_of
from spl.console.text import LINE, PAGE, taken
from spl.console.wire import ENGINE, ISOLATION, LOOP, OUTCOME, REFUSAL, TOOL_VERDICT, TURN

if TYPE_CHECKING:
    from spl.console.wire import Json

CONFIG_THREAD: Final = "th_engine_config"
MOST_RUNS: Final = 2000
MOST_REFUSALS: Final = 200
MOST_LINES: Final = 1000
_MOST_NAMED: Final = 500
_MOST_UNKNOWN: Final = 100


@dataclass(slots=True)
class Run:
    """A run's row; `state` is `refused` for a start that never became one, which has no thread but a key."""

    thread: str
    actor: str = ""
    goal: str = ""
    tier: str = ""
    transport: str = ""
    profile: str = ""
    model: str = ""
    state: str = "running"
    turns: int = 0
    max_turns: int | None = None
    spent_usd: float = 0.0
    budget_usd: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str = ""
    summary: str = ""
    pid: int | None = None
    verdict: Verdict | None = None
    refusal: tuple[tuple[str, str], ...] = ()

    @property
    def is_going(self) -> bool:
        """Whether it can still be stopped."""
        return self.state == "running"


class Rule(NamedTuple):
    """A permission rule as the daemon has it; `raw` is what to write again, unchanged, to switch it."""

    name: str
    action: str
    priority: str
    enabled: bool
    hits: str
    expression: str
    raw: Json


class Profile(NamedTuple):
    """A profile that could be chosen; `wire` is how it is called on the wire."""

    name: str
    floor: str
    description: str
    error: str
    wire: str


class Worker(NamedTuple):
    """What a sandboxed worker takes of the host."""

    pid: int
    memory_bytes: int | None
    cpu_seconds: float | None


class Line(NamedTuple):
    """A line of the daemon's log; `at` is the time of day in UTC as it was logged, `number` counts what came here."""

    number: int
    at: str
    level: str
    logger: str
    text: str


class Link(NamedTuple):
    """How a stream stands: `connecting`, `open`, `gone` (it is tried again) or `refused`, with what was said."""

    is_: str = "connecting"
    said: str = ""


@dataclass(slots=True)
class State:
    """All that is known; what comes as an event is put in by `apply`."""

    where: str = ""
    health: Json = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    refusals: dict[str, Run] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    rules: tuple[Rule, ...] | None = None
    profiles: tuple[Profile, ...] | None = None
    log: deque[Line] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    records: Link = field(default_factory=Link)
    engine: Link = field(default_factory=Link)
    opened: Opened | None = None
    claims: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
    rules_are_old: bool = True
    not_allowed: set[str] = field(default_factory=set)
    logged: str = ""
    lines: int = 0
    log_begins: bool = True

    def rows(self) -> list[Run]:
        """Give all rows, of runs and of refused starts."""
        return [*self.runs.values(), *self.refusals.values()]

    def find(self, key: str | None) -> Run | None:
        """Give a row by its thread, or a refused start by its key; None if there is none."""
        return None if key is None else self.runs.get(key) or self.refusals.get(key)


class Linked(NamedTuple):
    """A stream's state has changed; `stream` is `records` or `engine`."""

    stream: str
    link: Link


class Runs(NamedTuple):
    """The runs read anew, with the newest verdicts and refused starts, each newest first."""

    rows: list[Json]
    verdicts: list[Json]
    refusals: list[Json]
    receipts: list[Json]


class Row(NamedTuple):
    """One run's row, which was asked for."""

    row: Json


class Recorded(NamedTuple):
    """A record came."""

    record: Json


class Told(NamedTuple):
    """The engine told of a part of itself: `health`, `workers` or `log`.

    The health as it was read beside the runs is its `overview`: it counts where the engine's own stream does not tell.
    """

    part: str
    data: Json


class Listed(NamedTuple):
    """A listing was read, of `rules` or `profiles`; None where this bearer may not."""

    what: str
    data: list[Json] | None


class Reopened(NamedTuple):
    """The opened run's thread is being read from its beginning."""

    thread: str


class OpenedRecord(NamedTuple):
    """A record of the opened run's thread, of its past or just come."""

    thread: str
    record: Json


class OpenedRefused(NamedTuple):
    """The opened run's thread cannot be read."""

    thread: str
    said: str


Event = Linked | Runs | Row | Recorded | Told | Listed | Reopened | OpenedRecord | OpenedRefused


def apply(state: State, event: Event) -> None:
    """Take an event in. What it says is anybody's: a body that is not as the kernel writes them changes nothing."""
    match event:
        case Linked():
            _link(state, event)
        case Runs():
            _runs(state, event)
        case Row():
            _put(state, run_of(event.row))
        case Recorded():
            _record(state, event.record)
        case Told():
            _told(state, event)
        case Listed():
            _listed(state, event)
        case Reopened() | OpenedRecord() | OpenedRefused():
            if state.opened is not None and state.opened.thread == event.thread:
                _opened(state.opened, event)


def _opened(opened: Opened, event: Reopened | OpenedRecord | OpenedRefused) -> None:
    match event:
        case Reopened():
            opened.anew = True
        case OpenedRecord():
            take(opened, event.record)
        case OpenedRefused():
            opened.refused = taken(event.said)


def run_of(row: Json) -> Run:
    """Give a run from its row on the wire, or from an anchor's body with its thread."""
    return Run(
        thread=taken(row.get("thread")),
        actor=taken(row.get("actor")),
        goal=taken(row.get("goal")),
        tier=taken(row.get("tier"), 40),
        transport=taken(row.get("transport"), 40),
        profile=taken(row.get("profile"), 80),
        model=taken(row.get("model"), 80),
        state=taken(row.get("state") or "running", 40),
        turns=wire.whole(row.get("turns")) or 0,
        max_turns=wire.whole(row.get("max_turns")),
        spent_usd=wire.number(row.get("spent_usd")) or 0.0,
        budget_usd=wire.number(row.get("budget_usd")),
        started_at=wire.moment(row.get("started_at")),
        ended_at=wire.moment(row.get("ended_at")),
        outcome=taken(row.get("outcome"), 40),
        summary=taken(row.get("summary"), PAGE),
    )


def _link(state: State, event: Linked) -> None:
    link = Link(event.link.is_, taken(event.link.said))
    if event.stream == "records":
        state.records = link
        if link.is_ == "open":
            state.rules_are_old = True
    else:
        state.engine = link
        if link.is_ == "open":
            state.log_begins = True
        else:
            # Of workers nothing is known any more; what else is known stays on the screen.
            state.workers = {}


def _runs(state: State, event: Runs) -> None:
    known = state.runs
    state.runs, state.refusals, state.unknown = {}, {}, {}
    for row in reversed(event.rows):
        run = run_of(row)
        if run.thread in known:
            run.pid, run.verdict = known[run.thread].pid, known[run.thread].verdict
        state.runs[run.thread] = run
    for record in reversed(event.verdicts):
        run_ = state.runs.get(taken(record.get("thread")))
        if run_ is not None and record.get("actor") == ENGINE:
            run_.verdict = verdict_of(wire.body(record))
    for record in reversed(event.refusals):
        _refusal(state, record)
    for record in event.receipts:
        _claims(state, wire.body(record))


def _put(state: State, run: Run) -> None:
    state.unknown.pop(run.thread, None)
    state.runs[run.thread] = run
    if len(state.runs) > MOST_RUNS:
        oldest = next((key for key, each in state.runs.items() if not each.is_going), None)
        del state.runs[next(iter(state.runs)) if oldest is None else oldest]


def _record(state: State, record: Json) -> None:
    """Fold one record of the whole log."""
    body, kind = wire.body(record), wire.body(record).get("kind")
    if record.get("thread") == CONFIG_THREAD:
        state.rules_are_old = True
    if record.get("actor") != ENGINE or not isinstance(kind, str):
        return
    thread = taken(record.get("thread"))
    if kind == LOOP:
        # One that was in the listing already has gone further than its anchor.
        if thread not in state.runs:
            _put(state, run_of({**body, **wire.fields(body.get("ceilings")), "thread": thread}))
        return
    if kind == REFUSAL:
        _refusal(state, record)
        return
    if kind not in _OF_RUNS:
        return
    run = state.runs.get(thread)
    if run is None:
        if len(state.unknown) < _MOST_UNKNOWN:
            state.unknown[thread] = None
        return
    _advance(state, run, kind, body)


def _advance(state: State, run: Run, kind: str, body: Json) -> None:
    if kind == ISOLATION:
        run.pid = wire.whole(body.get("pid"))
        _claims(state, body)
    elif kind == TURN:
        turn = wire.whole(body.get("turn")) or 0
        # Turns have numbers: one that the row had counted when it was read is not counted twice.
        if turn > run.turns:
            run.turns = turn
            run.spent_usd += wire.number(body.get("cost_usd")) or 0.0
    elif kind == TOOL_VERDICT:
        run.verdict = verdict_of(body)
        if run.verdict.rule:
            state.rules_are_old = True
    else:
        said = run_of(body)
        run.state, run.outcome, run.summary = said.state, said.outcome, said.summary
        run.turns, run.spent_usd, run.ended_at = said.turns, said.spent_usd, said.ended_at


def _refusal(state: State, record: Json) -> None:
    body = wire.body(record)
    if record.get("actor") != ENGINE:
        return
    key = f"refused:{wire.whole(record.get('sequence')) or 0}"
    told = tuple(
        (name, taken(body.get(name), PAGE))
        for name in ("layer", "expected", "observed", "remedy", "profile", "actor", "refused_at")
    )
    state.refusals[key] = Run(
        thread=key,
        actor=taken(body.get("actor")),
        goal="a start that was refused: this host could not confine it",
        transport="sandboxed",
        profile=taken(body.get("profile"), 80),
        state="refused",
        started_at=wire.moment(body.get("refused_at")),
        verdict=Verdict("refused", taken(body.get("layer"), 80), "", ""),
        refusal=told,
    )
    if len(state.refusals) > MOST_REFUSALS:
        del state.refusals[next(iter(state.refusals))]


def _claims(state: State, body: Json) -> None:
    for layer in wire.objects(body.get("layers")):
        name = taken(layer.get("layer"), 80)
        if name in state.claims or len(state.claims) < _MOST_NAMED:
            state.claims[name] = taken(layer.get("claim"))


def _told(state: State, event: Told) -> None:
    data = event.data
    if event.part == "health" or (event.part == "overview" and state.engine.is_ != "open"):
        state.health = _harmless(data)
    elif event.part == "workers":
        state.workers = {
            taken(each.get("thread")): Worker(
                wire.whole(each.get("pid")) or 0,
                wire.whole(each.get("memory_bytes")),
                wire.number(each.get("cpu_seconds")),
            )
            for each in wire.objects(data.get("workers"))
        }
    elif event.part == "log":
        _logged(state, wire.fields(data.get("line")))


def _logged(state: State, line: Json) -> None:
    """Take in a line of the log, unless it was told before: a stream that begins anew tells the newest again.

    Its number would not say so: another daemon counts from one again, and its lines are later than those before.
    """
    stamp = taken(line.get("timestamp"), 40)
    if state.log_begins and stamp <= state.logged:
        return
    state.log_begins, state.logged = False, stamp
    state.lines += 1
    state.log.append(_line(line, stamp, state.lines))


def _line(line: Json, stamp: str, number: int) -> Line:
    told = {name: value for name, value in line.items() if name not in _APART}
    more = "".join(f"  {taken(name, 40)}={taken(value)}" for name, value in list(told.items())[:30])
    return Line(
        number,
        stamp[11:19], taken(line.get("level"), 10), taken(line.get("logger"), 60),
        taken(f"{taken(line.get('event'))}{more}", PAGE),
    )  # fmt: skip


_APART: Final = frozenset(("event", "level", "logger", "timestamp"))
_OF_RUNS: Final = frozenset((ISOLATION, TURN, TOOL_VERDICT, OUTCOME))


def _listed(state: State, event: Listed) -> None:
    if event.data is None:
        state.not_allowed.add(event.what)
        return
    state.not_allowed.discard(event.what)
    rows = event.data[:_MOST_NAMED]
    if event.what == "rules":
        state.rules = tuple(
            Rule(
                taken(row.get("name"), 80),
                taken(row.get("action"), 20),
                taken(row.get("priority"), 20),
                row.get("enabled") is not False,
                taken(row.get("hits"), 20),
                taken(row.get("expression"), PAGE),
                {name: row.get(name) for name in ("name", "action", "priority", "expression")},
            )
            for row in rows
        )
    else:
        state.profiles = tuple(
            Profile(
                taken(row.get("name"), 80),
                taken(row.get("floor"), 20),
                taken(row.get("description")),
                taken(row.get("error"), LINE),
                str(row.get("name")),
            )
            for row in rows
        )


def harmless(value: object) -> Any:
    """Give a document with all its texts made harmless and short, keys too; of what is long the beginning."""
    if isinstance(value, dict):
        return {taken(key, 80): harmless(each) for key, each in list(value.items())[:_MOST_NAMED]}
    if isinstance(value, list):
        return [harmless(each) for each in value[:_MOST_NAMED]]
    return taken(value, PAGE) if isinstance(value, str) else value


def _harmless(document: Json) -> Json:
    made: Json = harmless(document)
    return made


def document(state: State) -> Json:
    """Give what is known, for machines."""
    return {
        "object": "console",
        "health": state.health,
        "runs": [_wire(run) for run in state.runs.values()],
        "refused": [dict(run.refusal) for run in state.refusals.values()],
        "workers": {thread: worker._asdict() for thread, worker in state.workers.items()},
        "rules": None if state.rules is None else [_rule(rule) for rule in state.rules],
    }


def _rule(rule: Rule) -> Json:
    return {**rule.raw, "enabled": rule.enabled, "hits": json.loads(rule.hits or "null")}


def _wire(run: Run) -> Json:
    names = (
        "thread", "actor", "goal", "tier", "transport", "profile", "model", "state", "turns", "max_turns",
        "spent_usd", "budget_usd", "outcome", "pid",
    )  # fmt: skip
    verdict = None if run.verdict is None else run.verdict._asdict()
    return {**{name: getattr(run, name) for name in names}, "last_verdict": verdict}
