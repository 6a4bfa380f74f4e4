"""A run that this command starts and waits for: by its thread's event stream, stopped by the first interrupt."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

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
    """A run from the asking for its start on; `stopped` tells whether this command has had it stopped.

    While it is attended to, the first interrupt stops the run, or has it stopped as soon as its start is answered: a
    start that was asked for goes on whatever becomes of the one who asked. The second is what it was.
    """

    def __init__(self, client: Client) -> None:
        self.stopped = False
        self._client = client
        self._row: Json = {}
        self._interrupted = False
        # A thread asks: what the main one reads or writes just then is not to be torn.
        self._stopping = threading.Thread(target=self._stop, daemon=True)

    @classmethod
    @contextmanager
    def to(cls, client: Client) -> Iterator[Self]:
        """Attend to a run that is to be started; whether it ended by an interrupt is known when this has ended."""
        attended = cls(client)
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:
            # Whoever started this does not want it to be interrupted (nohup, a job in the background).
            yield attended
            return
        signal.signal(signal.SIGINT, attended._interrupt)
        try:
            yield attended
        finally:
            signal.signal(signal.SIGINT, before)

    def start(self, body: Json) -> Json:
        """Start the run and give its row; raises what the start is refused with."""
        self._row = self._client.request("POST", "/v1/work/loop", body)
        if self._interrupted:
            self._stopping.start()
        return self._row

    def settle(self) -> None:
        """Wait for the answer to a stop that has been asked for."""
        if self._stopping.ident is not None:
            self._stopping.join()

    def until_ended(self, show: Callable[[Json], None], *, patience: float) -> Json:
        """Show each record of the run's thread, and give its row once it has ended.

        Raises what the stream is refused with, and DaemonUnreachable when no daemon has answered for `patience`
        seconds; either names the thread, since the run has been started.
        """
        thread = self._row["thread"]
        path = f"/v1/threads/{segment(thread)}/watch"
        outcome: Json = {}
        try:
            # It has answered: to the start.
            for record in follow(self._client, path, name="run", answered=True, patience=patience):
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
        self.settle()
        return {**self._row, **{name: outcome[name] for name in _FROM_OUTCOME}}

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            if self._row:
                left = (
                    f"the run goes on to its next step; 'spl runs stop {shown(self._row['thread'])}' stops it"
                )
            else:
                left = "the run may begin all the same; 'spl runs list' shows whether it has"
            click.echo(f"\nspl: run: {left}", err=True)
            signal.default_int_handler(number, frame)
        self._interrupted = True
        if self._row:
            self._stopping.start()
        else:
            click.echo(
                "spl: run: its start has been asked for, and it is stopped once that is answered; "
                "interrupt again to leave it",
                err=True,
            )

    def _stop(self) -> None:
        thread = self._row["thread"]
        click.echo(f"spl: run: stopping {shown(thread)}; interrupt again to leave it", err=True)
        try:
            self._client.request("POST", f"/v1/runs/{segment(thread)}/events", {"type": "stop"})
        except SplError as error:
            click.echo(f"spl: run: it was not stopped: {shown(error.message)}", err=True)
        else:
            self.stopped = True
