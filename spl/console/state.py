"""What is known of a daemon: a fold of events, pure, bounded in number and in length, and harmless to show.

Only what the engine wrote tells of a run; whatever else stands on its thread is shown as someone's record and no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spl.console import wire
from spl.console.events import (
    Link,
    Linked,
    Listed,
    OpenedRecord,
    OpenedRefused,
    Recorded,
    Reopened,
    Row,
    Runs,
    Told,
)
from spl.console.opened import Layer, Opened, Verdict, layers_of, take, verdict_of
from spl.console.text import LINE, PAGE, taken, word
from spl.console.wire import ISOLATION, LOOP, OUTCOME, REFUSAL, TOOL_VERDICT, TURN
from spl.decisions import ENGINE
from spl.decisions import THREAD as CONFIG_THREAD

if TYPE_CHECKING:
    from spl.console.events import Event
    from spl.console.wire import Json

MOST_RUNS: Final = 2000
MOST_REFUSALS: Final = 200
MOST_LINES: Final = 1000
_MOST_NAMED: Final = 500
_DEEPEST: Final = 16
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
    pid: int | None = None
    verdict: Verdict | None = None
    refusal: tuple[tuple[str, str], ...] = ()

    @property
    def is_going(self) -> bool:
        """Whether it can still be stopped."""
        return self.state == "running"


class Rule(NamedTuple):
    """A permission rule as the daemon has it; `raw` is what to write again, unchanged, to switch it.

    `hits` is how often it has decided since it was written, be it to switch it, or the daemon began. `key` is its name
    whole: of two that begin alike each is another.
    """

    key: str

    name: str
    action: str
    priority: str
    enabled: bool
    hits: int | None
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
    """A line of the daemon's log; `at` is the day and time in UTC as it was logged.

    `key` is its number in that daemon's life and its time, `fields` what it says beside its event.
    """

    key: str
    at: str
    level: str
    logger: str
    event: str
    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """All that it says, on one line."""
        return "  ".join((self.event, *self.fields))


@dataclass(slots=True)
class State:
    """All that is known; what comes as an event is put in by `apply`.

    `layers` are those of the newest receipts; `unknown` the runs that acted and are to be asked for; `has_older` says
    that there are runs that were not listed, or are kept no more. For how long no stream has said anything is the one
    thing that is no event: the loop that takes them puts it in.
    """

    where: str = ""
    health: Json = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    refusals: dict[str, Run] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    rules: tuple[Rule, ...] | None = None
    profiles: tuple[Profile, ...] | None = None
    log: dict[str, Line] = field(default_factory=dict)
    records: Link = field(default_factory=Link)
    engine: Link = field(default_factory=Link)
    opened: Opened | None = None
    layers: dict[str, Layer] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
    rules_are_old: bool = True
    health_is_old: bool = False
    not_allowed: set[str] = field(default_factory=set)
    has_older: bool = False
    silent_seconds: float = 0.0

    def rows(self) -> list[Run]:
        """Give all rows, of runs and of refused starts."""
        return [*self.runs.values(), *self.refusals.values()]

    def find(self, key: str | None) -> Run | None:
        """Give a row by its thread, or a refused start by its key; None if there is none."""
        return None if key is None else self.runs.get(key) or self.refusals.get(key)


def apply(state: State, event: Event) -> None:
    """Take an event in. What it says is anybody's: a body that is not as the kernel writes them changes nothing."""
    match event:
        case Linked():
            _link(state, event)
        case Runs():
            _runs(state, event)
        case Row():
            _put(state, _as_known(state, run_of(event.row)))
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
    )


def _link(state: State, event: Linked) -> None:
    link = Link(event.link.is_, taken(event.link.said))
    if event.stream == "records":
        # A stream that is open says so again and again.
        if link.is_ == "open" and state.records.is_ != "open":
            state.rules_are_old = True
        state.records = link
    else:
        state.engine = link
        if link.is_ != "open":
            # Of workers nothing is known any more; what else is known stays on the screen.
            state.workers = {}


def _runs(state: State, event: Runs) -> None:
    known = state.runs
    state.runs, state.refusals, state.unknown = {}, {}, {}
    state.has_older = event.has_more
    for row in reversed(wire.objects(event.rows)):
        run = run_of(row)
        if run.thread in known:
            run.pid, run.verdict = known[run.thread].pid, known[run.thread].verdict
        state.runs[run.thread] = run
    for record in reversed(wire.objects(event.verdicts)):
        run_ = state.runs.get(taken(record.get("thread")))
        if run_ is not None and record.get("actor") == ENGINE:
            run_.verdict = verdict_of(wire.body(record))
    for record in reversed(wire.objects(event.refusals)):
        _refusal(state, record)
    for record in reversed(wire.objects(event.receipts)):
        if record.get("actor") == ENGINE:
            _layers(state, wire.body(record))


def _as_known(state: State, run: Run) -> Run:
    known = state.runs.get(run.thread)
    if known is not None:
        run.pid, run.verdict = known.pid, known.verdict
    return run


def _put(state: State, run: Run) -> None:
    state.runs[run.thread] = run
    if len(state.runs) > MOST_RUNS:
        oldest = next((key for key, each in state.runs.items() if not each.is_going), None)
        del state.runs[next(iter(state.runs)) if oldest is None else oldest]
        state.has_older = True


def _record(state: State, record: Json) -> None:
    """Fold one record of the whole log."""
    body, kind = wire.body(record), wire.body(record).get("kind")
    if record.get("thread") == CONFIG_THREAD:
        state.rules_are_old = True
    if record.get("actor") != ENGINE or not isinstance(kind, str):
        return
    # What a run spends, and its place, stand in the health: where the engine does not tell of that, it is read.
    state.health_is_old = state.engine.is_ == "refused"
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
        _layers(state, body)
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
        run.state, run.outcome = said.state, said.outcome
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


def _layers(state: State, body: Json) -> None:
    """Take in the layers of a receipt, newer than those before: each profile has its own."""
    for layer in layers_of(body):
        if layer.name in state.layers or len(state.layers) < _MOST_NAMED:
            state.layers[layer.name] = layer


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
            for each in wire.objects(data.get("workers"))[:_MOST_NAMED]
        }
    elif event.part == "log":
        _logged(state, data)


def _logged(state: State, told: Json) -> None:
    """Take in a line of the log, unless it was told before: a stream that begins anew tells the newest again.

    Neither its number nor its time alone would say so: another daemon counts from one again, and a clock can go back.
    """
    line = wire.fields(told.get("line"))
    stamp = taken(line.get("timestamp"), 40)
    key = f"{wire.whole(told.get('number'))} {stamp}"
    if key in state.log:
        return
    more = [(name, value) for name, value in line.items() if name not in _APART]
    state.log[key] = Line(
        key, stamp, taken(line.get("level"), 10), taken(line.get("logger"), 60),
        taken(line.get("event"), PAGE), tuple(f"{word(name, 40)}={_value(value)}" for name, value in more[:30]),
    )  # fmt: skip
    if len(state.log) > MOST_LINES:
        del state.log[next(iter(state.log))]


def _value(said: object) -> str:
    # A document has quotes of its own.
    return word(said, LINE) if isinstance(said, str) else taken(said)


_APART: Final = frozenset(("event", "level", "logger", "timestamp"))
_OF_RUNS: Final = frozenset((ISOLATION, TURN, TOOL_VERDICT, OUTCOME))


def _listed(state: State, event: Listed) -> None:
    if event.data is None:
        state.not_allowed.add(event.what)
        return
    state.not_allowed.discard(event.what)
    rows = wire.objects(event.data)[:_MOST_NAMED]
    if event.what == "rules":
        state.rules = tuple(
            Rule(
                str(row.get("name")),
                taken(row.get("name"), 80),
                taken(row.get("action"), 20),
                taken(row.get("priority"), 20),
                row.get("enabled") is not False,
                wire.whole(row.get("hits")),
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


def _harmless(value: Any, depth: int = _DEEPEST) -> Any:
    """Give a document with all its texts made harmless and short, keys too; of what is long or deep the beginning."""
    if isinstance(value, dict | list) and not depth:
        return None
    if isinstance(value, dict):
        return {taken(key, 80): _harmless(each, depth - 1) for key, each in list(value.items())[:_MOST_NAMED]}
    if isinstance(value, list):
        return [_harmless(each, depth - 1) for each in value[:_MOST_NAMED]]
    return taken(value, PAGE) if isinstance(value, str) else value


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
    return {**rule.raw, "enabled": rule.enabled, "hits": rule.hits}


def _wire(run: Run) -> Json:
    names = (
        "thread", "actor", "goal", "tier", "transport", "profile", "model", "state", "turns", "max_turns",
        "spent_usd", "budget_usd", "outcome", "pid",
    )  # fmt: skip
    verdict = None if run.verdict is None else run.verdict._asdict()
    return {**{name: getattr(run, name) for name in names}, "last_verdict": verdict}
