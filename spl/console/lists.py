"""The body of each screen: runs, the opened run, layers, rules, the log, help."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from rich.text import Text

from spl.console.drawing import (
    BAD,
    DIM,
    GOOD,
    SELECTED,
    STRONG,
    WARN,
    Cell,
    Column,
    bar,
    fitting,
    flowed,
    heads,
    line,
    row,
    wrapped,
)
from spl.console.selection import index_of, keys_of, layers_of, runs_of
from spl.console.wire import fields, usd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spl.console.opened import Entry, Opened
    from spl.console.state import Run, State
    from spl.console.view import View

_RUNS: Final = (
    Column("run", 8, 8, 0),
    Column("state", 8, 13, 1),
    Column("actor", 10, 24, 6),
    Column("tier", 8, 8, 8),
    Column("transport", 10, 10, 7),
    Column("turn", 5, 7, 4, right=True),
    Column("budget", 16, 22, 5),
    Column("age", 4, 5, 3, right=True),
    Column("last verdict", 12, 36, 2),
    Column("outcome", 9, 16, 10, extra=True),
    Column("goal", 12, 400, 9, extra=True),
)
_RULES: Final = (
    Column("name", 10, 30, 0),
    Column("action", 6, 6, 1),
    Column("on", 3, 3, 2),
    Column("hits", 5, 7, 3, right=True),
    Column("priority", 8, 8, 5, right=True),
    Column("expression", 12, 400, 4),
)
_LAYERS: Final = (Column("layer", 16, 18, 0), Column("here", 9, 9, 1), Column("what it claims", 12, 400, 2))
_LOG: Final = (
    Column("time", 8, 8, 1),
    Column("level", 7, 7, 2),
    Column("logger", 12, 20, 3),
    Column("event", 10, 4000, 0),
)
_TIMELINE: Final = (
    Column("record", 6, 8, 3, right=True),
    Column("turn", 4, 4, 2, right=True),
    Column("what", 9, 9, 1),
    Column("said", 10, 4000, 0),
)
_RECEIPT: Final = (
    Column("layer", 16, 18, 0),
    Column("confirmed", 9, 9, 1),
    Column("findings", 8, 8, 2, right=True),
    Column("claim", 12, 400, 3),
)
_STATES: Final = {"running": STRONG, "done": GOOD, "refused": BAD, "stopped": WARN, "stopped_short": WARN}
_DECISIONS: Final = {"allow": GOOD, "deny": BAD, "stop": WARN, "refused": BAD, "ended": STRONG}
_HELP: Final = (
    ("1 2 3 4 5", "runs, layers, rules, log, help; Tab goes to the next"),
    ("j k, arrows", "move; PgUp, PgDn, Home and End too"),
    ("Enter", "open a run, or read what is selected whole"),
    ("Esc", "back; clears a filter"),
    ("/", "filter by the words you type"),
    ("s S", "runs: by what to sort, and in reverse"),
    ("x", "stop the run"),
    ("t T", "flip the transport of the operator's runs, of members' runs"),
    ("a d", "rules: add one; disable or enable the selected one"),
    ("p", "change the profile"),
    ("e", "read the last error whole"),
    ("q, Ctrl-C", "quit; runs go on. Ctrl-Z suspends"),
    ("", "Nothing is written before you have seen it and said y."),
)


def body(state: State, view: View, width: int, height: int, now: float) -> list[Text]:
    """Give what a screen shows below its header."""
    return _BODIES[view.screen](state, view, width, height, now)


def age(seconds: float) -> str:
    """Give a time in the largest unit that it fills: `9s`, `12m`, `3h`, `2d`."""
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{math.floor(seconds / size)}{unit}"
    return f"{math.floor(seconds)}s"


def memory(size: int | None) -> str:
    """Give bytes as mebibytes."""
    return "?" if size is None else f"{size / (1 << 20):.1f} MiB"


def budget(run: Run, size: int) -> str:
    """Give what a run has spent of what it may, as a bar and in figures."""
    if run.budget_usd is None:
        return usd(run.spent_usd)
    said = f"{usd(run.spent_usd)}/{usd(run.budget_usd)}"
    room = size - len(said) - 1
    if room < 2:
        return said
    share = run.spent_usd / run.budget_usd if run.budget_usd > 0 else float(run.spent_usd > 0)
    return f"{bar(share, min(room, 10))} {said}"


def turns(run: Run) -> str:
    """Give a run's turn, and how many it may have."""
    return f"{run.turns}" if run.max_turns is None else f"{run.turns}/{run.max_turns}"


def verdict(run: Run) -> Cell:
    """Give the last verdict on a run: the decision, the layer, the rule if one decided, and the tool."""
    said = run.verdict
    if said is None:
        return Cell("")
    if run.state == "refused":
        return Cell(f"layer {said.layer}", BAD)
    rule = f" {said.rule}" if said.rule else ""
    layer = "" if said.decision == said.layer else f" {said.layer}"
    return Cell(f"{said.decision}{layer}{rule}: {said.tool}", _DECISIONS.get(said.decision, ""))


def _runs(state: State, view: View, width: int, height: int, now: float) -> list[Text]:
    rows = runs_of(view, state)
    sized = fitting(width, _RUNS)
    sizes = {column.name: size for column, size in sized}

    def drawn(at: int, style: str) -> Text:
        run = rows[at]
        refused = run.state == "refused"
        cells = {
            # Its end, for the beginning of a thread's name is the second in which the run began.
            "run": Cell("" if refused else run.thread[-8:]),
            "state": Cell(run.state, _STATES.get(run.state, "")),
            "actor": Cell(run.actor.removeprefix("did:sync:")),
            "tier": Cell(run.tier),
            "transport": Cell(run.transport),
            "turn": Cell("" if refused else turns(run)),
            "budget": Cell("" if refused else budget(run, sizes.get("budget", 0))),
            "age": Cell("" if run.started_at is None else age(now - run.started_at)),
            "last verdict": verdict(run),
            "outcome": Cell(run.outcome),
            "goal": Cell(run.goal, DIM),
        }
        return row(width, sized, cells, style)

    sort = f"sorted by {view.sort}{', reversed' if view.reverse else ''}"
    older = "; older runs are in 'spl runs list'" if state.has_older else ""
    empty = (
        "no run is known yet: 'spl run GOAL' starts one" if not state.rows() else "the filter leaves no run"
    )
    return [
        *([heads(width, sized)] if height > 3 else []),
        *_window(
            view, [each.thread for each in rows], height - (height > 3) - (height > 8), drawn, empty, width
        ),
        *(
            [line(width, Cell(f"{len(rows)} of {len(state.rows())} rows, {sort}{older}", DIM))]
            if height > 8
            else []
        ),
    ]


def _window(
    view: View, keys: Sequence[str], height: int, drawn: Callable[[int, str], Text], empty: str, width: int
) -> list[Text]:
    """Give the part of a list around what is selected, and note how many lines it has."""
    view.page = max(1, height)
    if not keys:
        return [line(width, Cell(empty, DIM))]
    at = index_of(view, keys)
    first = max(0, min(at - view.page // 2, len(keys) - view.page))
    last = min(first + view.page, len(keys))
    return [drawn(each, SELECTED if each == at else "") for each in range(first, last)]


def _layers(state: State, view: View, width: int, height: int, now: float) -> list[Text]:
    del now
    names, sized = layers_of(state), fitting(width, _LAYERS)
    refused = fields(fields(state.health.get("isolation")).get("refused"))

    def drawn(at: int, style: str) -> Text:
        name = names[at]
        holds = refused.get("layer") != name
        seen = f"expected {refused.get('expected')}, observed {refused.get('observed')}"
        layer = state.layers.get(name)
        said = seen if not holds else "" if layer is None else layer.claim
        here = Cell("confirmed", GOOD) if holds else Cell("refused", BAD)
        return row(
            width, sized, {"layer": Cell(name), "here": here, "what it claims": Cell(said, DIM)}, style
        )

    lead = f"{len(names)} layers of this host, as the last worker showed them"
    if refused:
        lead = f"this host cannot confine a worker: {refused.get('remedy', '')}"
    top = [
        *wrapped(width, lead, BAD if refused else DIM)[: max(0, min(3, height - 3))],
        *([heads(width, sized)] if height > 3 else []),
    ]
    return [*top, *_window(view, names, height - len(top), drawn, "no layer is confirmed", width)]


def _rules(state: State, view: View, width: int, height: int, now: float) -> list[Text]:
    del now
    keys = keys_of(view, state)
    kept = set(keys)
    rules = [rule for rule in state.rules or () if rule.key in kept]
    sized = fitting(width, _RULES)

    def drawn(at: int, style: str) -> Text:
        rule = rules[at]
        cells = {
            "name": Cell(rule.name),
            "action": Cell(rule.action, _DECISIONS.get(rule.action, "") if rule.enabled else DIM),
            "on": Cell("on" if rule.enabled else "off", "" if rule.enabled else DIM),
            "hits": Cell("" if rule.hits is None else str(rule.hits)),
            "priority": Cell(rule.priority),
            "expression": Cell(rule.expression, DIM),
        }
        return row(width, sized, cells, style)

    if "rules" in state.not_allowed:
        empty = "the rules are for those who may change the configuration, and not for this token"
    elif state.rules is None:
        empty = "the rules are not known yet"
    else:
        empty = "there is no rule: a call that nothing else refuses is allowed; 'a' adds one"
    return [
        *([heads(width, sized)] if height > 2 else []),
        *_window(view, keys, height - (height > 2), drawn, empty, width),
    ]


def _log(state: State, view: View, width: int, height: int, now: float) -> list[Text]:
    del now
    keys = keys_of(view, state)
    kept = set(keys)
    told = [each for each in state.log.values() if each.key in kept]
    sized = fitting(width, _LOG)

    def drawn(at: int, style: str) -> Text:
        each = told[at]
        look = {"warning": WARN, "error": BAD, "critical": BAD}.get(each.level, "")
        cells = {
            "time": Cell(each.at[11:19], DIM),
            "level": Cell(each.level, look),
            "logger": Cell(each.logger, DIM),
        }
        return row(width, sized, {**cells, "event": Cell(each.text)}, style)

    empty = "the log is the operator's to read" if state.engine.is_ == "refused" else "no line yet"
    return [
        *([heads(width, sized)] if height > 2 else []),
        *_window(view, keys, height - (height > 2), drawn, empty, width),
    ]


def _help(state: State, view: View, width: int, height: int, now: float) -> list[Text]:
    del state, view, now
    out: list[Text] = []
    for keys, said in _HELP:
        first, *more = wrapped(max(8, width - 14), said)
        out.append(Text.assemble((f"{keys:<14}", STRONG), first, end=""))
        out += [Text.assemble(" " * 14, each, end="") for each in more]
    for each in out:
        each.truncate(width, overflow="ellipsis")
    return out[:height]


def _run(state: State, view: View, width: int, height: int, now: float) -> list[Text]:
    opened = state.opened
    if opened is None:
        return [line(width, "no run is opened")]
    top = _head(state, opened, width, 4 if height > 12 else 1 if height > 5 else 0, now)
    room = height - len(top)
    return [*top, *_TABS[view.tab](state, opened, view, width, room)]


def _head(state: State, opened: Opened, width: int, most: int, now: float) -> list[Text]:
    run = state.runs.get(opened.thread)
    cells = [Cell(opened.thread, STRONG)]
    if run is not None:
        end = now if run.ended_at is None else run.ended_at
        cells += [
            Cell(run.state, _STATES.get(run.state, "")),
            *([Cell(run.outcome)] if run.outcome else []),
            Cell(run.actor),
            Cell(f"tier {run.tier}"),
            Cell(run.transport),
            Cell(f"profile {run.profile}"),
            Cell(f"model {run.model}"),
            Cell(f"turn {turns(run)}"),
            Cell(budget(run, 40)),
            *(
                [Cell(f"{'took' if run.ended_at else 'for'} {age(end - run.started_at)}")]
                if run.started_at
                else []
            ),
            Cell(f"goal: {run.goal}", DIM),
        ]
    return flowed(width, most, cells) if most else []


def _timeline(state: State, opened: Opened, view: View, width: int, height: int) -> list[Text]:
    if opened.refused:
        return wrapped(width, opened.refused, BAD)[:height]
    keys = keys_of(view, state)
    kept = set(keys)
    entries = [each for each in opened.entries if str(each.sequence) in kept]
    sized = fitting(width, _TIMELINE)

    def drawn(at: int, style: str) -> Text:
        return row(width, sized, _entry(entries[at]), style)

    return [
        *([heads(width, sized)] if height > 2 else []),
        *_window(view, keys, height - (height > 2), drawn, "nothing yet", width),
    ]


def _entry(entry: Entry) -> dict[str, Cell]:
    return {
        "record": Cell(str(entry.sequence), DIM),
        "turn": Cell(str(entry.turn) if entry.turn else "", DIM),
        "what": Cell(entry.what, _DECISIONS.get(entry.what, "")),
        "said": Cell(entry.text, DIM if entry.what == "record" else ""),
    }


def _receipt(state: State, opened: Opened, view: View, width: int, height: int) -> list[Text]:
    run = state.runs.get(opened.thread)
    if not opened.layers:
        in_process = run is not None and run.transport == "in_process"
        said = (
            "an in-process run is confined by nothing, and has no receipt" if in_process else "no receipt yet"
        )
        return [line(width, Cell(said, WARN if in_process else DIM))]
    facts = flowed(
        width, 4 if height > 14 else 0, [Cell(f"{name} {said}", DIM) for name, said in opened.facts]
    )
    sized = fitting(width, _RECEIPT)

    def drawn(at: int, style: str) -> Text:
        layer = opened.layers[at]
        cells = {
            "layer": Cell(layer.name),
            "confirmed": Cell("yes", GOOD) if layer.confirmed else Cell("no", BAD),
            "findings": Cell(str(len(layer.observed))),
            "claim": Cell(layer.claim, DIM),
        }
        return row(width, sized, cells, style)

    room = height - len(facts) - (height > 2)
    return [
        *facts,
        *([heads(width, sized)] if height > 2 else []),
        *_window(view, [each.name for each in opened.layers], room, drawn, "", width),
    ]


def _worker(state: State, opened: Opened, view: View, width: int, height: int) -> list[Text]:
    del view
    run = state.runs.get(opened.thread)
    worker = state.workers.get(opened.thread)
    if worker is not None:
        cpu = "?" if worker.cpu_seconds is None else f"{worker.cpu_seconds:.2f} s"
        facts = [("pid", str(worker.pid)), ("memory", memory(worker.memory_bytes)), ("cpu", cpu)]
    elif run is not None and run.transport == "in_process":
        facts = [("worker", "none: the run takes place in the daemon itself")]
    elif run is not None and run.is_going:
        why = "the engine is the operator's to watch" if state.engine.is_ == "refused" else "not told of yet"
        facts = [("worker", why)]
    else:
        facts = [("worker", "gone: the run has ended")]
        pid = "" if run is None or run.pid is None else str(run.pid)
        facts += [(name, said) for name, said in (("pid", pid), ("exit", opened.exit)) if said]
    return [line(width, Cell(f"{name:<8}", STRONG), said) for name, said in facts][:height]


_BODIES: Final = {
    "runs": _runs,
    "run": _run,
    "layers": _layers,
    "rules": _rules,
    "log": _log,
    "help": _help,
}
_TABS: Final = {"timeline": _timeline, "receipt": _receipt, "worker": _worker}
