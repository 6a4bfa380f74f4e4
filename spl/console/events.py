"""What the feeds tell of a daemon, as `spl.console.state` takes it in: still as it came, and nothing of it trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from spl.console.wire import Json


class Link(NamedTuple):
    """How a stream stands, with what was said of it.

    `connecting`; `open`; `gone`, where no daemon answers, and `failing`, where it answers with an error: both are tried
    again; `refused`, where it is not for this bearer: that is not.
    """

    is_: str = "connecting"
    said: str = ""


class Linked(NamedTuple):
    """A stream's state has changed; `stream` is `records` or `engine`."""

    stream: str
    link: Link


class Runs(NamedTuple):
    """The runs read anew, with the newest verdicts and refused starts, each newest first.

    With `has_more` there are older runs.
    """

    rows: list[Json]
    verdicts: list[Json]
    refusals: list[Json]
    receipts: list[Json]
    has_more: bool = False


class Row(NamedTuple):
    """One run's row, which was asked for."""

    row: Json


class Recorded(NamedTuple):
    """A record came."""

    record: Json


class Told(NamedTuple):
    """The engine told of a part of itself: `health`, `workers` or `log`.

    The health as it was read beside the runs is its `overview`: it counts where the engine's own stream does not tell.
    """

    part: str
    data: Json


class Listed(NamedTuple):
    """A listing was read, of `rules` or `profiles`; None where this bearer may not."""

    what: str
    data: list[Json] | None


class Reopened(NamedTuple):
    """The opened run's thread is being read from its beginning."""

    thread: str


class OpenedRecord(NamedTuple):
    """A record of the opened run's thread, of its past or just come."""

    thread: str
    record: Json


class OpenedRefused(NamedTuple):
    """The opened run's thread cannot be read."""

    thread: str
    said: str


Event = Linked | Runs | Row | Recorded | Told | Listed | Reopened | OpenedRecord | OpenedRefused
