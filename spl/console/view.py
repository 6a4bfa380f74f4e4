"""What is looked at, and what a key does to it: pure. Keys go in; changes of the view and effects come out.

Nothing is done to the daemon but by an action that a person has been shown and has confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from spl.console.actions import PutRule, SetProfile, SetTransport, StopRun
from spl.console.dialogs import Choose, Confirm, Form, Option, Reading, Typing
from spl.console.keys import Paste
from spl.console.opened import Opened
from spl.console.selection import FOLLOWED, SORTS, Selection, index_of, keys_of, selected
from spl.console.text import PAGE, taken
from spl.console.wire import fields
from spl.decisions import TIERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.console.actions import Action
    from spl.console.dialogs import Dialog
    from spl.console.keys import Key
    from spl.console.state import Profile, State
    from spl.console.wire import Json
    from spl.errors import SplError

SCREENS: Final = ("runs", "layers", "rules", "log", "help")
TABS: Final = ("timeline", "receipt", "worker")
_FILTERED: Final = frozenset(("runs", "rules", "log", "timeline"))


class Status(NamedTuple):
    """The line at the bottom: what became of the last thing that was done."""

    text: str = ""
    is_error: bool = False


@dataclass(slots=True)
class View:
    """What is looked at.

    The drawing says how many lines of a list are shown, `page`, and which line of a dialog can be its first at last,
    `last_top`. `error` is what the last error said, a line each.
    """

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
    error: tuple[str, ...] = ()
    page: int = 10
    last_top: int = 0

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
        return _in_dialog(view, state, key)
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
    form = view.form
    is_of_form = form is not None and form.rule() == action
    if error is None:
        if is_of_form:
            view.form = None
        view.status = Status(action.done)
        return
    remedy = error.fields.get("remedy")
    remedy = remedy if isinstance(remedy, str) else error.remedy
    said = f"{error.code}: {taken(error.message, PAGE)}"
    excerpt = error.fields.get("excerpt")
    lines = tuple(taken(line) for line in excerpt.split("\n")[:2]) if isinstance(excerpt, str) else ()
    view.error = (said, *lines, f"what to do: {taken(remedy, PAGE)}")
    view.status = Status(f"{said}; {taken(remedy, PAGE)}", is_error=True)
    if form is not None and is_of_form and view.dialog is None:
        view.dialog = replace(form, errors=(said, *lines))


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
    follows = view.list_ in FOLLOWED and index == len(keys) - 1
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
        return Reading(f"layer {layer.name}", layer.told())
    if view.list_ == "layers":
        return Reading(f"layer {key}", _of_layer(state, key))
    if view.list_ == "rules":
        rule = next(each for each in state.rules or () if each.key == key)
        facts = f"{rule.action}, priority {rule.priority}, {'on' if rule.enabled else 'off'}"
        hits = f"hits {rule.hits}, since it was written, be it to switch it, or the daemon began"
        return Reading(f"rule {rule.name}", (facts, hits, *rule.expression.split("\\n")))
    if view.list_ == "log":
        line = state.log[key]
        return Reading(f"{line.at} {line.level} {line.logger}", (line.event, *line.fields))
    return None


def _of_layer(state: State, name: str) -> tuple[str, ...]:
    refused = fields(fields(state.health.get("isolation")).get("refused"))
    if refused.get("layer") == name:
        return tuple(f"{key}: {refused[key]}" for key in ("expected", "observed", "remedy") if key in refused)
    layer = state.layers.get(name)
    if layer is None:
        return ("what it claims, and what was found, stands in the receipt of the next sandboxed run",)
    return layer.told()


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
        view.dialog = Confirm(StopRun(run.thread, run.actor))
    return []


def _flip(*, members: bool) -> Callable[[View, State], list[Effect]]:
    def flip(view: View, state: State) -> list[Effect]:
        name = "member_transport" if members else "transport"
        now = fields(state.health.get("work_loop")).get(name)
        if now is None:
            view.status = Status("the transport is not known yet")
        else:
            other = "sandboxed" if now == "in_process" else "in_process"
            view.dialog = Confirm(SetTransport(other, members=members))
        return []

    return flip


def _add_rule(view: View, state: State) -> list[Effect]:
    del state
    view.screen = "rules" if view.screen != "run" else view.screen
    view.dialog = view.form or Form()
    return []


def _switch_rule(view: View, state: State) -> list[Effect]:
    key = selected(view, state) if view.screen == "rules" else None
    switched = _switched(state, key)
    if switched is None:
        view.status = Status("no rule is selected")
    else:
        view.dialog = Confirm(switched)
    return []


def _switched(state: State, key: str | None) -> PutRule | None:
    """Give what would disable a rule or enable it, as it is known now."""
    rule = next((each for each in state.rules or () if each.key == key), None)
    return None if rule is None else PutRule(**rule.raw, enabled=not rule.enabled)


def _choose_profile(view: View, state: State) -> list[Effect]:
    if not state.profiles:
        view.status = Status("the profiles are not known here: they are for those who may choose one")
        return [Ask("profiles")]
    loop = fields(state.health.get("work_loop"))
    # Those that can't be chosen stand last.
    options = sorted((_option(each, loop) for each in state.profiles), key=lambda each: bool(each.barred))
    now = next((at for at, each in enumerate(options) if each.value == loop.get("profile")), 0)
    title = "which profile confines sandboxed runs from now on?"
    view.dialog = Choose(title, tuple(options), _choose_tier, now)
    return [Ask("profiles")]


def _option(profile: Profile, loop: Json) -> Option:
    barred = profile.error or ("" if profile.floor == "ok" else "it is below the floor")
    tiers = [tier for tier, name in fields(loop.get("tier_profiles")).items() if name == profile.wire]
    marks = "".join(
        f" ({mark})"
        for mark, holds in (
            ("in force", profile.wire == loop.get("profile")),
            (f"of the tier {', '.join(tiers)}", tiers),
            (f"can't be chosen: {barred}", barred),
        )
        if holds
    )
    return Option(f"{profile.name}{marks}  {profile.description}", profile.wire, barred)


def _choose_tier(profile: str) -> Dialog:
    tiers = (Option(f"of the tier {tier}", tier) for tier in TIERS)
    options = (Option("of all that have no profile of their own", ""), *tiers)
    title = f"whose runs does {taken(profile, 60)} confine?"
    return Choose(title, options, lambda tier: Confirm(SetProfile(profile, tier or None)))


def _last_error(view: View, state: State) -> list[Effect]:
    del state
    if view.error:
        view.dialog = Reading("the last error", view.error)
    else:
        view.status = Status("there was no error")
    return []


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
    "e": _last_error,
    "q": lambda _view, _state: [Quit()],
}


# --- keys in dialogs ---


def _in_dialog(view: View, state: State, key: Key) -> list[Effect]:
    dialog = view.dialog
    match dialog:
        case Typing():
            view.dialog = dialog.press(key)
            view.filters[dialog.of] = "" if key == "esc" else (view.dialog or dialog).text
        case Confirm():
            return _confirmed(view, state, dialog, key)
        case Choose():
            view.dialog = dialog.press(key)
        case Form():
            view.dialog = dialog.press(key)
            # What was typed is there again, until it has been written or was given up.
            view.form = None if key == "esc" else view.dialog if isinstance(view.dialog, Form) else dialog
        case Reading():
            view.dialog = dialog.press(key, view.last_top)
    return []


def _confirmed(view: View, state: State, dialog: Confirm, key: Key) -> list[Effect]:
    action, form = dialog.action, view.form
    # A form is gone back to; all else is given up.
    is_of_form = form is not None and form.rule() == action
    if key in {"y", "Y"}:
        view.dialog = None
        if isinstance(action, PutRule) and not is_of_form and _switched(state, action.name) != action:
            view.status = Status("the rule was changed meanwhile: look at it again", is_error=True)
            return []
        view.status = Status(f"{action.doing} …")
        return [Perform(action)]
    if key in {"n", "N", "esc", "q"}:
        view.dialog = form if is_of_form else None
        view.status = Status("nothing was changed")
    else:
        view.dialog = dialog.press(key, view.last_top)
    return []
