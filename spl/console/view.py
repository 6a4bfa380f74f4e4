"""What is looked at, and what a key does to it: pure. Keys go in; changes of the view and effects come out.

Nothing is done to the daemon but by an action that a person has been shown and has confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from spl.console.actions import PutRule, SetProfile, SetTransport, StopRun
from spl.console.dialogs import Choose, Confirm, Form, Reading, Typing, confirm
from spl.console.keys import Paste
from spl.console.opened import Opened
from spl.console.text import taken
from spl.console.wire import fields
from spl.decisions import TIERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spl.console.actions import Action
    from spl.console.dialogs import Dialog
    from spl.console.keys import Key
    from spl.console.state import Run, State
    from spl.errors import SplError

SCREENS: Final = ("runs", "layers", "rules", "log", "help")
TABS: Final = ("timeline", "receipt", "worker")
SORTS: Final = ("going", "newest", "state", "actor", "tier", "transport", "turns", "spent")
_FOLLOWED: Final = frozenset(("timeline", "log"))
_FILTERED: Final = frozenset(("runs", "rules", "log", "timeline"))


class Selection(NamedTuple):
    """What is selected in a list: by its key, and where that was, for when it is there no more.

    Without a key it is the first, or the last where the list is one that grows at its end.
    """

    key: str | None = None
    at: int = 0


class Status(NamedTuple):
    """The line at the bottom: what became of the last thing that was done."""

    text: str = ""
    is_error: bool = False


@dataclass(slots=True)
class View:
    """What is looked at. `page` is how many lines of a list are shown, which the drawing says."""

    screen: str = "runs"
    tab: str = "timeline"
    behind: str = "runs"
    selected: dict[str, Selection] = field(default_factory=dict)
    filters: dict[str, str] = field(default_factory=dict)
    sort: str = "going"
    reverse: bool = False
    dialog: Dialog | None = None
    form: Form | None = None
    status: Status = field(default_factory=Status)
    page: int = 10

    @property
    def list_(self) -> str:
        """The name of the list that is looked at."""
        return self.tab if self.screen == "run" else self.screen


class Quit(NamedTuple):
    """End the console."""


class Open(NamedTuple):
    """Follow a run's thread, and no other's."""

    thread: str


class Shut(NamedTuple):
    """Follow no run's thread."""


class Perform(NamedTuple):
    """Do what was confirmed."""

    action: Action


class Ask(NamedTuple):
    """Read a listing anew."""

    what: str


Effect = Quit | Open | Shut | Perform | Ask


def press(view: View, state: State, key: Key) -> list[Effect]:
    """Take a key in, and give what is to be done for it."""
    if view.dialog is not None:
        return _in_dialog(view, key)
    view.status = Status()
    if isinstance(key, Paste):
        view.status = Status("pasted text is taken only where text is typed")
        return []
    if key in _MOVES:
        _move(view, state, key)
        return []
    doing = _KEYS.get(key)
    return [] if doing is None else doing(view, state)


def done(view: View, action: Action, error: SplError | None) -> None:
    """Say what became of an action; a rule that was refused is there again to be corrected."""
    if error is None:
        view.form = None
        view.status = Status(action.done)
        return
    remedy = error.fields.get("remedy")
    remedy = remedy if isinstance(remedy, str) else error.remedy
    said = f"{error.code}: {taken(error.message)}; {taken(remedy)}"
    view.status = Status(said, is_error=True)
    if isinstance(action, PutRule) and view.form is not None and view.dialog is None:
        excerpt = error.fields.get("excerpt")
        lines = tuple(taken(line) for line in excerpt.split("\n")[:2]) if isinstance(excerpt, str) else ()
        view.dialog = replace(view.form, errors=(said, *lines))


def keys_of(view: View, state: State) -> list[str]:
    """Give the keys of the list that is looked at, in the order it is shown in."""
    match view.list_:
        case "runs":
            return [run.thread for run in runs_of(view, state)]
        case "rules":
            return [rule.name for rule in state.rules or () if _fits(view, "rules", *rule[:6])]
        case "layers":
            return layers_of(state)
        case "log":
            return [str(line.number) for line in state.log if _fits(view, "log", *line)]
        case "timeline":
            entries = () if state.opened is None else state.opened.entries
            return [
                str(entry.sequence) for entry in entries if _fits(view, "timeline", entry.what, entry.text)
            ]
        case "receipt":
            return [] if state.opened is None else [layer.name for layer in state.opened.layers]
    return []


def runs_of(view: View, state: State) -> list[Run]:
    """Give the rows that the filter leaves, sorted."""
    rows = [run for run in state.rows() if _fits(view, "runs", *_said_of(run))]
    rows.sort(key=lambda run: run.started_at or 0.0, reverse=True)
    if view.sort != "newest":
        rows.sort(key=_ORDERS[view.sort])
    return rows[::-1] if view.reverse else rows


def layers_of(state: State) -> list[str]:
    """Give this host's layers by name: those that were confirmed, and the one that does not hold."""
    isolation = fields(state.health.get("isolation"))
    names = [name for name in isolation.get("layers") or () if isinstance(name, str)]
    refused = fields(isolation.get("refused")).get("layer")
    return [*([refused] if isinstance(refused, str) and refused not in names else []), *names]


def index_of(view: View, keys: Sequence[str]) -> int:
    """Give which of these keys is selected: where the one that was is gone, what stands in its place."""
    chosen = view.selected.get(view.list_, Selection())
    if not keys:
        return 0
    if chosen.key is None:
        return len(keys) - 1 if view.list_ in _FOLLOWED else 0
    try:
        return keys.index(chosen.key)
    except ValueError:
        return min(chosen.at, len(keys) - 1)


def selected(view: View, state: State) -> str | None:
    """Give the key that is selected; None in an empty list."""
    keys = keys_of(view, state)
    return keys[index_of(view, keys)] if keys else None


_ORDERS: Final[dict[str, Callable[[Run], str | float]]] = {
    "going": lambda run: not run.is_going,
    "state": lambda run: run.state,
    "actor": lambda run: run.actor,
    "tier": lambda run: run.tier,
    "transport": lambda run: run.transport,
    "turns": lambda run: -run.turns,
    "spent": lambda run: -run.spent_usd,
}


def _said_of(run: Run) -> tuple[str, ...]:
    verdict = () if run.verdict is None else run.verdict
    return (run.thread, run.state, run.actor, run.tier, run.transport, run.outcome, run.goal, *verdict)


def _fits(view: View, name: str, *said: object) -> bool:
    wanted = view.filters.get(name, "").casefold().split()
    if not wanted:
        return True
    text = " ".join(map(str, said)).casefold()
    return all(word in text for word in wanted)


# --- moving ---

_MOVES: Final = {
    "up": -1, "k": -1, "down": 1, "j": 1, "pgup": -2, "pgdn": 2, "home": -3, "g": -3, "end": 3, "G": 3,
}  # fmt: skip


def _move(view: View, state: State, key: str) -> None:
    keys = keys_of(view, state)
    if not keys:
        return
    how = _MOVES[key]
    step = {1: 1, 2: max(1, view.page - 1), 3: len(keys)}[abs(how)]
    index = index_of(view, keys) + (step if how > 0 else -step)
    index = max(0, min(index, len(keys) - 1))
    # At the end of what grows one stays at the end.
    follows = view.list_ in _FOLLOWED and index == len(keys) - 1
    view.selected[view.list_] = Selection(None if follows else keys[index], index)


# --- keys outside of dialogs ---


def _to(screen: str) -> Callable[[View, State], list[Effect]]:
    def go(view: View, state: State) -> list[Effect]:
        effects: list[Effect] = []
        if view.screen == "run":
            state.opened = None
            effects.append(Shut())
        if screen == "help" and view.screen != "help":
            view.behind = "runs" if view.screen == "run" else view.screen
        view.screen = screen
        return effects

    return go


def _next(view: View, state: State) -> list[Effect]:
    return _turn(view, state, 1)


def _previous(view: View, state: State) -> list[Effect]:
    return _turn(view, state, -1)


def _turn(view: View, state: State, by: int) -> list[Effect]:
    if view.screen == "run":
        view.tab = TABS[(TABS.index(view.tab) + by) % len(TABS)]
        return []
    return _to(SCREENS[(SCREENS.index(view.screen) + by) % len(SCREENS)])(view, state)


def _back(view: View, state: State) -> list[Effect]:
    if view.screen == "run":
        return _to("runs")(view, state)
    if view.screen == "help":
        view.screen = view.behind
    elif view.filters.get(view.list_):
        del view.filters[view.list_]
    else:
        view.screen = "runs"
    return []


def _open(view: View, state: State) -> list[Effect]:
    key = selected(view, state)
    if key is None:
        return []
    if view.screen == "runs":
        return _open_run(view, state, key)
    view.dialog = _read(view, state, key)
    return []


def _open_run(view: View, state: State, key: str) -> list[Effect]:
    if key in state.refusals:
        refusal = state.refusals[key].refusal
        view.dialog = Reading("a start that was refused", tuple(f"{name}: {said}" for name, said in refusal))
        return []
    view.screen, view.tab = "run", "timeline"
    for name in TABS:
        view.selected.pop(name, None)
        view.filters.pop(name, None)
    state.opened = Opened(key)
    return [Open(key)]


def _read(view: View, state: State, key: str) -> Reading | None:
    opened = state.opened
    if view.list_ == "timeline" and opened is not None:
        entry = next(each for each in opened.entries if str(each.sequence) == key)
        return Reading(f"{entry.what}, record {entry.sequence}", tuple(entry.text.split("\\n")))
    if view.list_ == "receipt" and opened is not None:
        layer = next(each for each in opened.layers if each.name == key)
        seen = (f"{how}: expected {wanted}, observed {got}" for how, wanted, got in layer.observed)
        return Reading(f"layer {layer.name}", (layer.claim, *seen))
    if view.list_ == "layers":
        return Reading(f"layer {key}", _of_layer(state, key))
    if view.list_ == "rules":
        rule = next(each for each in state.rules or () if each.name == key)
        facts = (
            f"{rule.action}, priority {rule.priority}, {'on' if rule.enabled else 'off'}, hits {rule.hits}"
        )
        return Reading(f"rule {rule.name}", (facts, *rule.expression.split("\\n")))
    if view.list_ == "log":
        line = next(each for each in state.log if str(each.number) == key)
        return Reading(f"{line.at} {line.level} {line.logger}", tuple(line.text.split("  ")))
    return None


def _of_layer(state: State, name: str) -> tuple[str, ...]:
    refused = fields(fields(state.health.get("isolation")).get("refused"))
    if refused.get("layer") == name:
        return tuple(f"{key}: {refused[key]}" for key in ("expected", "observed", "remedy") if key in refused)
    return (state.claims.get(name, "what it claims stands in the receipt of the next sandboxed run"),)


def _filter(view: View, state: State) -> list[Effect]:
    del state
    if view.list_ in _FILTERED:
        view.dialog = Typing(view.list_, view.filters.get(view.list_, ""))
    else:
        view.status = Status("there is nothing to filter here")
    return []


def _sort(view: View, state: State) -> list[Effect]:
    del state
    if view.screen == "runs":
        view.sort = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]
    return []


def _reverse(view: View, state: State) -> list[Effect]:
    del state
    if view.screen == "runs":
        view.reverse = not view.reverse
    return []


# --- keys that lead to an action ---


def _stop(view: View, state: State) -> list[Effect]:
    opened = state.opened
    key = opened.thread if view.screen == "run" and opened is not None else None
    if view.screen == "runs":
        key = selected(view, state)
    run = state.find(key)
    if run is None:
        view.status = Status("no run is selected")
    elif not run.is_going:
        view.status = Status(f"there is nothing to stop: it is {run.state}")
    else:
        view.dialog = confirm(StopRun(run.thread, run.actor))
    return []


def _flip(*, members: bool) -> Callable[[View, State], list[Effect]]:
    def flip(view: View, state: State) -> list[Effect]:
        name = "member_transport" if members else "transport"
        now = fields(state.health.get("work_loop")).get(name)
        if now is None:
            view.status = Status("the transport is not known yet")
        else:
            other = "sandboxed" if now == "in_process" else "in_process"
            view.dialog = confirm(SetTransport(other, members=members))
        return []

    return flip


def _add_rule(view: View, state: State) -> list[Effect]:
    del state
    view.screen = "rules" if view.screen != "run" else view.screen
    view.dialog = view.form or Form()
    return []


def _switch_rule(view: View, state: State) -> list[Effect]:
    key = selected(view, state) if view.screen == "rules" else None
    rule = next((each for each in state.rules or () if each.name == key), None)
    if rule is None:
        view.status = Status("no rule is selected")
    else:
        view.dialog = confirm(PutRule(**rule.raw, enabled=not rule.enabled))
    return []


def _choose_profile(view: View, state: State) -> list[Effect]:
    if not state.profiles:
        view.status = Status("the profiles are not known here: they are for those who may choose one")
        return [Ask("profiles")]
    options = tuple(
        (
            f"{each.name}  {'' if each.floor == 'ok' else 'below the floor '}{each.error}  {each.description}",
            each.wire,
        )
        for each in state.profiles
    )
    view.dialog = Choose("which profile confines sandboxed runs from now on?", options, _choose_tier)
    return [Ask("profiles")]


def _choose_tier(profile: str) -> Dialog:
    tiers = ((f"of the tier {tier}", tier) for tier in TIERS)
    options = (("of all that have no profile of their own", ""), *tiers)
    title = f"whose runs does {taken(profile, 60)} confine?"
    return Choose(title, options, lambda tier: confirm(SetProfile(profile, tier or None)))


_KEYS: Final[dict[str, Callable[[View, State], list[Effect]]]] = {
    **{str(number): _to(screen) for number, screen in enumerate(SCREENS, 1)},
    "?": _to("help"),
    "tab": _next,
    "right": _next,
    "shift-tab": _previous,
    "left": _previous,
    "enter": _open,
    "esc": _back,
    "backspace": _back,
    "/": _filter,
    "s": _sort,
    "S": _reverse,
    "x": _stop,
    "t": _flip(members=False),
    "T": _flip(members=True),
    "a": _add_rule,
    "d": _switch_rule,
    "p": _choose_profile,
    "q": lambda _view, _state: [Quit()],
}


# --- keys in dialogs ---


def _in_dialog(view: View, key: Key) -> list[Effect]:
    dialog = view.dialog
    match dialog:
        case Typing():
            view.dialog = dialog.press(key)
            view.filters[dialog.of] = "" if key == "esc" else (view.dialog or dialog).text
        case Confirm():
            return _confirmed(view, dialog, key)
        case Choose():
            view.dialog = dialog.press(key)
        case Form():
            view.dialog = dialog.press(key)
            # What was typed is there again, until it has been written or was given up.
            view.form = None if key == "esc" else view.dialog if isinstance(view.dialog, Form) else dialog
        case Reading():
            view.dialog = dialog.press(key)
    return []


def _confirmed(view: View, dialog: Confirm, key: Key) -> list[Effect]:
    if key in {"y", "Y"}:
        view.dialog = None
        view.status = Status(f"{dialog.action.doing} …")
        return [Perform(dialog.action)]
    if key in {"n", "N", "esc", "q"}:
        # A form is gone back to; all else is given up.
        view.dialog = view.form if isinstance(dialog.action, PutRule) else None
        view.status = Status("nothing was changed")
    return []
