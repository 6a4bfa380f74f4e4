"""What is measured with: how much of it, and the daemons and commands that the groups of figures share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from spl.bench import floors, processes
from spl.bench.rows import MILLION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import ExitStack

    from spl.bench.processes import Daemon, Helper

Json = dict[str, Any]

MS: Final = 1e6
"""Nanoseconds."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: samples of each kind, and how long the long log is."""

    samples: int
    rounds: int
    bursts: int
    stretches: int
    starts: int
    records: int
    many: str
    rest_seconds: float


WHOLE: Final = Size(60, 6, 4, 10, 40, 10**6, MILLION, 10.0)
QUICK: Final = Size(12, 2, 1, 2, 5, 10**4, "10^4", 2.0)


@dataclass
class Apparatus:
    """What the groups of figures share; the stack ends what of it was started."""

    chosen: Sequence[str]
    folder: str
    size: Size
    stack: ExitStack
    heard: Callable[[str, int, int], None]
    phases: list[Json] = field(default_factory=list)

    @cached_property
    def daemon(self) -> Daemon:
        """`spl serve` with the settings' defaults."""
        daemon = self.stack.enter_context(processes.serving(f"{self.folder}/home"))
        daemon.set_transport("sandboxed")
        return daemon

    @cached_property
    def cold(self) -> Helper:
        """The helper whose daemon keeps no standby worker: each start of it makes its own."""
        return self._helper("cold", standby_workers=0)

    @cached_property
    def warm(self) -> Helper:
        """The helper whose daemon keeps as many standby workers as the default is."""
        return self._helper("warm")

    @cached_property
    def verdicts(self) -> Helper:
        """The helper whose workers time their verdicts."""
        return self._helper("verdicts", verdicts=True, standby_workers=0)

    @cached_property
    def floors(self) -> dict[str, list[str]]:
        """The commands of the floors F1 to F3."""
        return floors.commands(self.cold.facts)

    def times(self, name: str, number: int) -> Iterator[int]:
        """Count to a number, and tell of it."""
        for done in range(number):
            self.heard(name, done, number)
            yield done
        self.heard(name, number, number)

    def _helper(self, name: str, **options: object) -> Helper:
        helper = self.stack.enter_context(processes.helping(f"{self.folder}/{name}", **options))
        helper.set_transport("sandboxed")
        return helper
