"""What stands in each list, in which order and past which filter, and what of it is selected: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spl.console.wire import fields, items

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spl.console.state import Run, State
    from spl.console.view import View

SORTS: Final = ("going", "newest", "state", "actor", "tier", "transport", "turns", "spent")
FOLLOWED: Final = frozenset(("timeline", "log"))
"""The lists that grow at their end, which one stays at."""


class Selection(NamedTuple):
    """What is selected in a list: by its key, and where that was, for when it is there no more.

    Without a key it is the first, or the last where the list is one that grows at its end.
    """

    key: str | None = None
    at: int = 0


def keys_of(view: View, state: State) -> list[str]:
    """Give the keys of the list that is looked at, in the order it is shown in."""
    match view.list_:
        case "runs":
            return [run.thread for run in runs_of(view, state)]
        case "rules":
            return [rule.key for rule in state.rules or () if _fits(view, "rules", *rule[1:7])]
        case "layers":
            return layers_of(state)
        case "log":
            lines = state.log.values()
            return [
                each.key for each in lines if _fits(view, "log", each.at, each.level, each.logger, each.text)
            ]
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
    names = [name for name in items(isolation.get("layers")) if isinstance(name, str)]
    refused = fields(isolation.get("refused")).get("layer")
    return [*([refused] if isinstance(refused, str) and refused not in names else []), *names]


def index_of(view: View, keys: Sequence[str]) -> int:
    """Give which of these keys is selected: where the one that was is gone, what stands in its place."""
    chosen = view.selected.get(view.list_, Selection())
    if not keys:
        return 0
    if chosen.key is None:
        return len(keys) - 1 if view.list_ in FOLLOWED else 0
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
