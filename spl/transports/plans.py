"""From a profile's name to the plan a run is confined by: asked at each start, made anew when something has changed.

What the shipped profiles and the host are was taken when the daemon started; a user's own file, and what it shows of
the host, is what it is now.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from bwrap import floor, needs
from bwrap.errors import ConfinementError, LayerError, ProfileError
from bwrap.plan import Plan, resolve
from bwrap.seccomp import FilterError
from spl.errors import DaemonStopping

if TYPE_CHECKING:
    from bwrap.host import Host
    from bwrap.library import Library
    from bwrap.plan import Places
    from bwrap.profile import Profile

# As long as a daemon takes to be back at the very least.
_RETRY_AFTER_SECONDS = 1


@dataclass
class _Known:
    """A profile as it was read, with its plan, or with why it can have none whatever this host looks like."""

    profile: Profile
    plan: Plan | None = None
    refusal: ConfinementError | None = None


@dataclass
class Plans:
    """The plans of this host's profiles, each kept for as long as its profile and what it shows stay the same.

    To make one takes tens of milliseconds (its filter is compiled and tried, what it shows is looked through), and
    with a profile that somebody made large, seconds. So that is done beside the event loop, one profile at a time
    for itself: nobody waits for another's.
    """

    library: Library
    host: Host
    places: Places
    _known: dict[str, _Known] = field(default_factory=dict, init=False)
    _last: dict[str, Plan | LayerError] = field(default_factory=dict, init=False)
    # Each is there for as long as somebody has it or waits for it.
    _turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)
    _making: set[asyncio.Future[tuple[Profile, Plan]]] = field(default_factory=set, init=False)
    _looks: set[asyncio.Task[Plan]] = field(default_factory=set, init=False)
    _stopped: bool = field(default=False, init=False)

    async def plan(self, name: str) -> Plan:
        """Give the plan of a profile as it is now.

        Raises `LayerError`: of the layer `profile` for one that cannot be used, or of the layer that the floor or
        this host refuses. Raises `DaemonStopping` once the daemon stops.
        """
        try:
            return (await self.make(name))[1]
        except (ConfinementError, OSError) as error:
            refusal = self._last[name] = _refusal(name, error)
            raise refusal from None

    async def latest(self, name: str, *, seconds: float) -> Plan | LayerError:
        """Give what a profile comes to now or, where that takes longer than `seconds`, what it came to last.

        Only for one that was never asked for is it waited longer; once the daemon stops, `DaemonStopping` is raised
        for such a one.
        """
        last, turn = self._last.get(name), self._turns.get(name)
        if last is not None and (self._stopped or (turn is not None and turn.locked())):
            return last
        look = asyncio.create_task(self.plan(name))
        self._looks.add(look)
        look.add_done_callback(self._seen)
        await asyncio.wait({look}, timeout=None if last is None else seconds)
        if last is not None and not look.done():
            return last
        try:
            return await look
        except LayerError as error:
            return error

    def last(self, name: str) -> Plan | None:
        """Give the plan that a profile had when it was asked for last; None if it was not, or had none."""
        last = self._last.get(name)
        return None if isinstance(last, LayerError) else last

    def told(self, name: str, error: LayerError) -> LayerError:
        """Give a refusal of a start with what to look at beside its remedy when the profile is the user's own."""
        if name in self.library.shipped():
            return error
        own = f"the profile {name!r} is your own: see 'spl profile lint {name}' and 'spl profile try {name} -- COMMAND'"
        return LayerError(
            error.layer,
            expected=error.expected,
            observed=error.observed,
            remedy=f"{error.remedy}; {own}",
        )

    async def make(self, name: str) -> tuple[Profile, Plan]:
        """Give a profile as it is now and its plan; raises what went wrong itself: `ConfinementError` or `OSError`.

        Raises `DaemonStopping` once the daemon stops.
        """
        turn = self._turns.setdefault(name, asyncio.Lock())
        if not turn.locked() and (shipped := self._of_shipped(name)) is not None:
            return shipped
        async with turn:
            if self._stopped:
                raise stopping()
            making = asyncio.ensure_future(self._beside(name))
            self._making.add(making)
            try:
                made = await making
            except asyncio.CancelledError:
                if self._stopped:
                    raise stopping() from None
                raise
            finally:
                self._making.discard(making)
        self._last[name] = made[1]
        return made

    def stop(self) -> None:
        """Let nobody wait for a plan any more; a thread that makes one is left to itself."""
        self._stopped = True
        for making in self._making:
            making.cancel()

    def _of_shipped(self, name: str) -> tuple[Profile, Plan] | None:
        """Give a shipped profile that has its plan, with that, as long as the plan is current.

        It shows this host's interpreter and the worker socket, so that is seen in a moment (0.15 ms), and there is no
        need for a thread: to go there and back takes as long, and more while others want the processor.
        """
        known = self._known.get(name)
        if self._stopped or known is None or known.plan is None or name not in self.library.shipped():
            return None
        return (known.profile, known.plan) if known.plan.is_current() else None

    def _seen(self, look: asyncio.Task[Plan]) -> None:
        """Let go of a look that nobody may wait for any more; what it came to is known."""
        self._looks.discard(look)
        if not look.cancelled():
            look.exception()

    async def _beside(self, name: str) -> tuple[Profile, Plan]:
        try:
            return await asyncio.to_thread(self._make, name)
        except RuntimeError as error:
            if "can't start new thread" not in str(error):
                raise
            # What Python says where the system lets it have no thread (pthread_create(3), EAGAIN).
            raise LayerError(
                "sandbox",
                expected="a thread to make the plan in",
                observed=str(error),
                remedy="look at the host's load and at the limits on processes",
            ) from None

    def _make(self, name: str) -> tuple[Profile, Plan]:
        profile = self.library.load(name)
        known = self._known.get(name)
        if known is None or known.profile is not profile:
            known = self._known[name] = _Known(profile, refusal=_judged(profile))
        if known.refusal is not None:
            raise known.refusal.with_traceback(None)
        if known.plan is None or not known.plan.is_current():
            # Of what the host does not have nothing is kept: it may have it at the next start.
            known.plan = None
            try:
                known.plan = resolve(profile, self.host, self.places)
            except FilterError as error:
                known.refusal = error
                raise
        return profile, known.plan


def _judged(profile: Profile) -> ConfinementError | None:
    """Say why no run may start with a profile, by its own words alone."""
    try:
        floor.require(profile)
        needs.require(profile)
    except ConfinementError as error:
        return error
    return None


def _refusal(name: str, error: ConfinementError | OSError) -> LayerError:
    """Give the refusal of a start that a profile without a plan comes to."""
    match error:
        case LayerError():
            return error
        case ProfileError():
            remedy = "mend it, or choose another with 'spl config set-profile'"
        case OSError():
            remedy = "mend what the message names"
        case _:
            return LayerError(
                "syscalls",
                expected="a filter for this host",
                observed=str(error),
                remedy="mend what the message names",
            )
    return LayerError(
        "profile",
        expected=f"the profile {name!r} to be one that can be used",
        observed=str(error),
        remedy=remedy,
    )


def stopping() -> DaemonStopping:
    """Give what a start is refused by once the daemon has been told to stop."""
    return DaemonStopping(
        "the daemon is stopping and starts nothing more", retry_after_secs=_RETRY_AFTER_SECONDS
    )
