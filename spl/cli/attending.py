"""Waiting for a run that this command has started: by its thread's event stream, stopped by the first interrupt."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from spl.cli.following import follow
from spl.cli.steps import is_beginning, is_outcome
from spl.cli.text import shown
from spl.client import segment
from spl.errors import SplError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from spl.client import Client, Json

# What an outcome says of the row, which until then was that of a run that has just begun.
_FROM_OUTCOME: Final = (
    "state", "turns", "spent_usd", "tool_calls_ok", "tool_calls_failed", "ended_at", "summary", "outcome",
)  # fmt: skip


class Attended:
    """A run by the row of its start; `stopped` tells whether this command has had it stopped."""

    def __init__(self, client: Client, row: Json, patience: float) -> None:
        self.stopped = False
        self._client = client
        self._row = row
        self._patience = patience

    def until_ended(self, show: Callable[[Json], None]) -> Json:
        """Show each record of the run's thread, and give its row once it has ended.

        Raises what the stream is refused with, and DaemonUnreachable when no daemon has answered for so long as there
        is patience; either names the thread, since the run has been started. A second interrupt is KeyboardInterrupt.
        """
        thread = self._row["thread"]
        path = f"/v1/threads/{segment(thread)}/watch"
        outcome: Json = {}
        try:
            with self._interrupts():
                # It has answered: to the start.
                for record in follow(self._client, path, name="run", answered=True, patience=self._patience):
                    show(record)
                    if is_beginning(record):
                        # As the log has them: 2 US dollars, where the start's answer may say 2.0.
                        self._row |= record["body"]["ceilings"]
                    if is_outcome(record):
                        outcome = record["body"]
                        break
        except SplError as error:
            message = f"the run {thread} was started, and how it goes cannot be told: {error.message}"
            raise type(error)(message, **{**error.fields, "thread": thread}) from None
        return {**self._row, **{name: outcome[name] for name in _FROM_OUTCOME}}

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Take the first interrupt for a stop of the run, and leave the second what it was.

        The stop is asked for by a thread: what the main one reads or writes just then is not to be torn.
        """
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:
            # Whoever started this does not want it to be interrupted (nohup, a job in the background).
            yield
            return
        stopping = threading.Thread(target=self._stop, daemon=True)

        def interrupted(_: int, __: FrameType | None) -> None:
            signal.signal(signal.SIGINT, again)
            stopping.start()

        def again(number: int, frame: FrameType | None) -> None:
            thread = shown(self._row["thread"])
            click.echo(
                f"\nspl: run: the run goes on to its next step; 'spl runs stop {thread}' stops it", err=True
            )
            signal.default_int_handler(number, frame)

        signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        # Whether the run ended by it is known once it has been answered; who leaves does not wait for that.
        if stopping.ident is not None:
            stopping.join()

    def _stop(self) -> None:
        thread = self._row["thread"]
        click.echo(f"spl: run: stopping {shown(thread)}; interrupt again to leave it", err=True)
        try:
            self._client.request("POST", f"/v1/runs/{segment(thread)}/events", {"type": "stop"})
        except SplError as error:
            click.echo(f"spl: run: it was not stopped: {shown(error.message)}", err=True)
        else:
            self.stopped = True
