"""The trouble of a profile of which no standby worker lasts, or none can be made: why, and when it is tried again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ENDED: Final = "it ended"
"""The cause of one that was made and did not last; another is the name of the layer by which none could be made."""

_RETRY_SECONDS, _RETRY_MOST_SECONDS = 1.0, 60.0


@dataclass
class Trouble:
    """Why a profile had no standby last, until when no other is made, and for how many seconds that was.

    With 0 seconds it is over, and kept for a while so that the same again is no news.
    """

    cause: str
    until: float
    seconds: float


@dataclass
class Troubles:
    """The trouble of each profile; `now` is a clock in seconds that never goes back."""

    now: Callable[[], float]
    known: dict[str, Trouble] = field(default_factory=dict, init=False)

    def waits(self, name: str) -> bool:
        """Tell whether a profile's next is not to be made yet."""
        return name in self.known and self.now() < self.known[name].until

    def seconds(self, names: Iterable[str]) -> float | None:
        """Give the seconds until the first of these profiles is to be tried again; None where none waits for that."""
        until = [self.known[name].until for name in names if self.waits(name)]
        return min(until) - self.now() if until else None

    def cause(self, name: str) -> str | None:
        """Give what a profile is in trouble by now."""
        trouble = self.known.get(name)
        return trouble.cause if trouble is not None and trouble.seconds else None

    def lasted(self, name: str) -> None:
        """End the trouble of a profile of which one lasted until a start took it."""
        if self.cause(name) == ENDED:
            del self.known[name]

    def made(self, name: str) -> None:
        """End the trouble of a profile of which one was made just now; whether they last is only seen by a start."""
        if self.cause(name) not in (None, ENDED):
            trouble = self.known[name]
            trouble.until, trouble.seconds = self.now(), 0.0

    def is_news(self, name: str, cause: str) -> bool:
        """Have a profile's next wait, each time twice as long while it goes on; tell whether the cause is a new one."""
        now, last = self.now(), self.known.get(name)
        if last is not None and now - last.until > _RETRY_MOST_SECONDS:
            last = None
        seconds = _RETRY_SECONDS if last is None else max(last.seconds * 2, _RETRY_SECONDS)
        seconds = min(seconds, _RETRY_MOST_SECONDS)
        self.known[name] = Trouble(cause, now + seconds, seconds)
        return last is None or last.cause != cause
