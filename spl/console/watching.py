"""The loop around it all: it waits for keys, signals and what the feeds bring, and draws what has changed."""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group

from spl.console.dialogs import Confirm
from spl.console.events import Link, Linked, Recorded, Told
from spl.console.feeds import Done, Fault, Feeds, listed, overview
from spl.console.keys import Decoder
from spl.console.screens import lines
from spl.console.state import State, apply
from spl.console.terminal import ENDING, Signals, Terminal, end_by
from spl.console.view import Ask, Open, Perform, Quit, Shut, View, done, press
from spl.errors import NotFound, ScopeDenied

if TYPE_CHECKING:
    from spl.client import Client
    from spl.console.keys import Key

_DRAW_SECONDS: Final = 0.1
"""The least between two frames: a daemon that tells a thousand things a second is drawn ten times."""

_AGES_SECONDS: Final = 1.0
_ESCAPE_SECONDS: Final = 0.05
_ASK_SECONDS: Final = 1.0
_ROOM_FOR_ALL: Final = 20


def once(client: Client) -> State:
    """Give what is known of a daemon now; raises what `Client.request` raises."""
    state = State(where=client.name)
    health, runs = overview(client)
    apply(state, Told("health", health))
    apply(state, runs)
    apply(state, Linked("records", Link("open")))
    apply(state, listed(client, "rules"))
    try:
        for event in client.watch("/v1/engine/watch"):
            # Both come first, the workers after the health.
            apply(state, Told(event.name.removeprefix("engine."), event.data))
            if event.name not in {"engine.health", "engine.log"}:
                break
    except (ScopeDenied, NotFound) as error:
        apply(state, Linked("engine", Link("refused", error.code)))
    return state


def frame(state: State, width: int) -> str:
    """Give one frame of the runs, all of them, as plain text."""
    drawn = lines(state, View(), width, _ROOM_FOR_ALL + len(state.rows()), time.time())
    return "\n".join(each.plain.rstrip() for each in drawn[:-1]).rstrip()


def watch(client: Client, *, color: bool, keys: int = 0, screen: int = 1) -> None:
    """Show the console on a terminal until it is quit; ends the process by the signal that ended it, if one did.

    `keys` and `screen` are the terminal's descriptors. Must be the main thread's. Raises `OSError` where the terminal
    cannot be drawn on, and `KeyboardInterrupt` for Ctrl-C; the terminal is as it was before in every case.
    """
    # What the terminal's encoding has no character for is drawn as a question mark.
    encoding = sys.stdout.encoding
    with Signals() as signals, open(os.dup(screen), "w", encoding=encoding, errors="replace") as file:
        console = Console(
            file=file, force_terminal=True, no_color=not color or None, legacy_windows=False, highlight=False,
            emoji=False, markup=False,
        )  # fmt: skip
        with Feeds(client) as feeds, Terminal(keys, screen, console) as terminal:
            ended_by = _Loop(client, feeds, terminal, signals).run()
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt
    if ended_by is not None:
        end_by(ended_by)


class _Loop:
    """What is known, what is looked at, and when it was drawn last."""

    def __init__(self, client: Client, feeds: Feeds, terminal: Terminal, signals: Signals) -> None:
        self._feeds, self._terminal, self._signals = feeds, terminal, signals
        self._state, self._view = State(where=client.name), View()
        self._decoder = Decoder()
        self._changed = True
        self._drawn_at = self._asked_at = self._heard_at = -math.inf
        self._seen: object = None

    def run(self) -> int | None:
        """Go on until it is quit; gives the signal that ended it, if one did."""
        keys, signals, inbox = self._terminal.keys, self._signals.descriptor, self._feeds.inbox.descriptor
        while True:
            self._draw()
            ready, _, _ = select.select([keys, signals, inbox], [], [], self._wait())
            if signals in ready and (ending := self._answer(self._signals.come())) is not None:
                return ending
            if inbox in ready:
                self._take()
            if keys in ready:
                raw = self._terminal.read()
                if not raw:
                    return signal.SIGHUP
                pressed = self._decoder.feed(raw)
            else:
                pressed = [] if ready else self._decoder.rest()
            if self._press(pressed):
                return None
            self._ask()

    def _draw(self) -> None:
        now = time.monotonic()
        # Ages grow by themselves.
        if now - self._drawn_at < (_DRAW_SECONDS if self._changed else _AGES_SECONDS):
            return
        width, height = self._terminal.size()
        self._state.silent_seconds = now - self._heard_at
        self._seen = self._view.dialog
        self._terminal.draw(Group(*lines(self._state, self._view, width, height, time.time())), width, height)
        self._drawn_at, self._changed = now, False

    def _wait(self) -> float:
        """Give for how many seconds there is nothing to do by itself."""
        due = self._drawn_at + (_DRAW_SECONDS if self._changed else _AGES_SECONDS) - time.monotonic()
        return max(0.0, min(due, _ESCAPE_SECONDS) if self._decoder.is_waiting else due)

    def _answer(self, numbers: list[int]) -> int | None:
        """Answer signals; gives one that ends the console."""
        for number in numbers:
            if number in ENDING:
                return number
            if number == signal.SIGTSTP:
                self._terminal.suspend()
            elif number == signal.SIGCONT:
                self._terminal.take_again()
            # A terminal that was resized, or is this process's again, is drawn whatever it shows.
            self._changed = True
        return None

    def _take(self) -> None:
        for item in self._feeds.inbox.take():
            if isinstance(item, Fault):
                raise item.error
            if isinstance(item, Done):
                done(self._view, item.action, item.error)
                # What was just written is looked for.
                self._asked_at = -math.inf
                continue
            if isinstance(item, Linked | Told | Recorded):
                self._heard_at = time.monotonic()
            apply(self._state, item)
        self._changed = True

    def _press(self, keys: list[Key]) -> bool:
        """Take keys in; True when one of them was to quit.

        What is to be confirmed takes a key only once it has been drawn, and only one that comes alone: a terminal that
        does not tell a paste from keys would otherwise let a pasted "xy" stop a run that nobody saw named.
        """
        for key in keys:
            dialog = self._view.dialog
            if isinstance(dialog, Confirm) and (len(keys) > 1 or dialog is not self._seen):
                continue
            for effect in press(self._view, self._state, key):
                match effect:
                    case Quit():
                        return True
                    case Open():
                        self._feeds.open(effect.thread)
                    case Shut():
                        self._feeds.shut()
                    case Perform():
                        self._feeds.perform(effect.action)
                    case Ask():
                        self._feeds.ask(effect.what)
        self._changed = self._changed or bool(keys)
        return False

    def _ask(self) -> None:
        """Read anew what the streams do not tell whole: hits of rules, runs that were not listed, a member's health."""
        state, now = self._state, time.monotonic()
        if state.records.is_ != "open":
            return
        # One that acts while it is asked for is marked again, and asked for again: the answer may be older.
        for thread in [each for each in state.unknown if self._feeds.row(each)]:
            del state.unknown[thread]
        if now - self._asked_at < _ASK_SECONDS:
            return
        if state.rules_are_old and "rules" not in state.not_allowed and self._feeds.ask("rules"):
            state.rules_are_old, self._asked_at = False, now
        if state.health_is_old and self._feeds.ask("health"):
            state.health_is_old, self._asked_at = False, now
