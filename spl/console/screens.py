"""The screens, drawn: what is known and what is looked at become lines that fit a width and a height. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from spl.console import asking, lists
from spl.console.drawing import BAD, DIM, GOOD, SELECTED, STRONG, WARN, Cell, flowed, line, wrapped
from spl.console.view import SCREENS, TABS
from spl.console.wire import fields, number, usd

if TYPE_CHECKING:
    from spl.console.state import State
    from spl.console.view import View
    from spl.console.wire import Json

_HINTS: Final = {
    "runs": "enter opens  / filter  s sort  S reverse  x stop  t T transport  p profile  ? help  q quit",
    "run": "tab timeline, receipt, worker  enter reads  / filter  x stop  esc back",
    "layers": "enter reads  p profile  ? help  q quit",
    "rules": "a add  d disable or enable  enter reads  / filter  ? help  q quit",
    "log": "enter reads  / filter  end follows  ? help  q quit",
    "help": "esc back  q quit",
}

_SILENT_SECONDS: Final = 45.0
"""Three times as long as a daemon is silent for unless it was told to be more so."""


def lines(state: State, view: View, width: int, height: int, now: float) -> list[Text]:
    """Give a frame's lines, `height` of them, each of at most `width` cells; `now` is in seconds since the epoch."""
    width, height = max(1, width), max(1, height)
    top = header(state, view, width, height)
    bottom = _bottom(view, width, max(1, height // 3)) if height > 2 else []
    room = max(0, height - len(top) - len(bottom))
    if view.dialog is not None:
        body = asking.drawn(view, view.dialog, width, room, lists.body(state, view, width, room, now))
    else:
        body = lists.body(state, view, width, room, now)
    body = body[:room]
    body += [Text("", end="")] * (room - len(body))
    out = [*top, *body, *bottom][:height]
    for each in out:
        each.end = "\n"
    if out:
        # A line feed after the last would scroll the screen.
        out[-1].end = ""
    return out


def header(state: State, view: View, width: int, height: int) -> list[Text]:
    """Give what stands above every screen: the instance, where work takes place, what is used, and the connection."""
    most = 5 if height >= 20 else 3 if height >= 12 else 1 if height >= 5 else 0
    banner = _banner(state, width)[: 3 if height >= 20 else 1]
    if most == 1:
        return banner or flowed(width, 1, [_tabs(view)[0], *_instance(state)])
    out = [*banner]
    if most:
        out += flowed(width, most - 1, [*_instance(state), *_where(state), *_used(state), *_whose(state)])
        out += flowed(width, 1, _tabs(view))
    return out


def _banner(state: State, width: int) -> list[Text]:
    records, engine = state.records, state.engine
    if records.is_ == "gone":
        return wrapped(width, f"the daemon does not answer; trying again ({records.said})", BAD)
    if records.is_ == "failing":
        return wrapped(width, f"the daemon answers with an error; trying again ({records.said})", BAD)
    if records.is_ == "open" and state.silent_seconds >= _SILENT_SECONDS:
        said = (
            f"the daemon has said nothing for {lists.age(state.silent_seconds)}: what stands here may be old"
        )
        return wrapped(width, said, WARN)
    if engine.is_ in {"gone", "failing"}:
        return wrapped(width, f"the engine's stream broke; trying again ({engine.said})", WARN)
    if engine.is_ == "refused":
        return wrapped(width, f"this token sees its own runs, and not the engine ({engine.said})", WARN)
    return []


def _instance(state: State) -> list[Cell]:
    if not state.health:
        return [Cell("spl", STRONG), Cell(f"{state.records.is_}: {state.where}", DIM)]
    host = fields(state.health.get("instance")).get("host")
    shape = fields(state.health.get("isolation")).get("shape")
    return [
        Cell(f"spl {state.health.get('version', '')}", STRONG),
        Cell(f"{host or state.where}, shape {shape}"),
    ]


def _whose(state: State) -> list[Cell]:
    instance = fields(state.health.get("instance"))
    if state.engine.is_ == "refused" and "home" not in instance:
        # The operator alone is told of the home; whom the token is for, nobody.
        return [Cell("as a member", DIM)]
    return [Cell(str(said), DIM) for said in (instance.get("operator"), instance.get("home")) if said]


def _where(state: State) -> list[Cell]:
    loop = fields(state.health.get("work_loop"))
    if not loop:
        return []
    tiers = fields(loop.get("tier_profiles"))
    of_tiers = "".join(f", {tier} {name}" for tier, name in tiers.items())
    return [
        _transport("operator", loop.get("transport")),
        _transport("members", loop.get("member_transport")),
        Cell(f"profile {loop.get('profile')}{of_tiers}"),
    ]


def _transport(who: str, transport: object) -> Cell:
    risky = transport == "in_process" and who == "members"
    return Cell(f"{who} {transport}", BAD if risky else GOOD if transport == "sandboxed" else WARN)


def _used(state: State) -> list[Cell]:
    loop, provider = fields(state.health.get("work_loop")), fields(state.health.get("provider"))
    out: list[Cell] = []
    if loop:
        free, most = number(loop.get("admission_available")) or 0, number(loop.get("admission_capacity")) or 0
        out.append(Cell(f"admission {most - free:g} used, {free:g} free", "" if free else WARN))
        isolation = fields(state.health.get("isolation"))
        refused = fields(loop.get("refused")) or fields(isolation.get("refused"))
        if refused:
            out.append(Cell(f"sandboxed starts are refused: layer {refused.get('layer')}", BAD))
    if provider:
        name = f"provider {provider.get('name')}"
        model = provider.get("model")
        out.append(Cell(name if model in (None, provider.get("name")) else f"{name}, model {model}"))
        if provider.get("failing"):
            out.append(Cell(f"failing: {provider['failing']}", BAD))
    spend = fields(state.health.get("spend"))
    if spend:
        out.append(Cell(f"spent today {usd(number(spend.get('usd')) or 0.0)}"))
    store: Json = fields(state.health.get("store"))
    if store.get("failing"):
        out.append(Cell(f"the log cannot be written: {store['failing']}", BAD))
    if state.health:
        out.append(Cell(f"{sum(run.is_going for run in state.runs.values())} running"))
        out.append(Cell("connected", GOOD) if state.records.is_ == "open" else Cell(state.records.is_, DIM))
    return out


def _tabs(view: View) -> list[Cell]:
    if view.screen == "run":
        names = [("run", False), *((tab, tab == view.tab) for tab in TABS)]
        return [Cell(f" {name} ", SELECTED if chosen else DIM) for name, chosen in names]
    cells = [
        Cell(f"{at} {name}", SELECTED if name == view.screen else DIM) for at, name in enumerate(SCREENS, 1)
    ]
    # Where there is room for one, it is the one that is looked at.
    cells.sort(key=lambda cell: cell.style != SELECTED) if view.page < 4 else None
    return cells


def _bottom(view: View, width: int, most: int) -> list[Text]:
    """Give what became of the last thing that was done, whole if there is room for it, or else the keys."""
    status, dialog = view.status, view.dialog
    keys = [] if dialog is None else [line(width, Cell(asking.hint(dialog), DIM))]
    if status.text:
        look = BAD if status.is_error else STRONG
        told = wrapped(width, status.text, look)
        if len(told) > most:
            told = [*told[: most - 1], line(width, Cell("e reads it whole: ", WARN), told[most - 1])]
        return [*told, *keys]
    if keys:
        return keys
    said = view.filters.get(view.list_)
    if said:
        return [line(width, Cell(f"filter: {asking.as_typed(said)}  ", WARN), Cell("esc clears it", DIM))]
    return [line(width, Cell(_HINTS[view.screen], DIM))]
