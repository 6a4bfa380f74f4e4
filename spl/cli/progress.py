"""How far something is that takes long: on standard error when that is a terminal, and nowhere otherwise."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from spl.cli.output import on_terminal
from spl.cli.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import NoReturn

    from rich.progress import TaskID


class Progress(Protocol):
    """Takes how far a part of the work is: how much of it is done, how much there is of it, and what came last."""

    def __call__(self, part: str, done: int = 0, total: int | None = None, last: str = "") -> None:
        """Show it."""


@contextmanager
def bars() -> Iterator[Progress]:
    """Show a line for each part of the work, with a bar where it is known how much there is of it.

    For work that makes what has to be taken away again: SIGTERM and SIGHUP end it as an interrupt does.
    """
    end_in_order()
    if not on_terminal(2):
        yield _silent
        return
    # Rich takes longer to import than the rest of the command line together.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}", markup=False),
    )
    with Bars(*columns, console=Console(stderr=True)) as shown_bars:
        tasks: dict[str, TaskID] = {}

        def tell(part: str, done: int = 0, total: int | None = None, last: str = "") -> None:
            if part not in tasks:
                tasks[part] = shown_bars.add_task(shown(part), total=None, last="")
            shown_bars.update(tasks[part], completed=done, total=total, last=shown(last))

        yield tell


def _silent(part: str, done: int = 0, total: int | None = None, last: str = "") -> None:
    del part, done, total, last


def end_in_order() -> None:
    """Have SIGTERM and SIGHUP end this process as an interrupt does, unless who started it had them ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


@contextmanager
def working(at: str) -> Iterator[None]:
    """Show that something goes on, and for how long; the line is gone when it has ended."""
    if not on_terminal(2):
        yield
        return
    # The terminal's cursor is hidden meanwhile.
    end_in_order()
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as line:
        line.add_task(shown(at))
        yield
