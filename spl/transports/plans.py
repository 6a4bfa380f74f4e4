"""From a profile's name to the plan a run is confined by: asked at each start, made anew when the profile has changed.

What the shipped profiles and the host are was taken when the daemon started; a user's own file is what it is now.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bwrap import floor
from bwrap.errors import ConfinementError, LayerError, ProfileError
from bwrap.plan import Plan, resolve

if TYPE_CHECKING:
    from bwrap.host import Host
    from bwrap.library import Library
    from bwrap.plan import Places
    from bwrap.profile import Profile


@dataclass
class Plans:
    """The plans of this host's profiles, each kept for as long as its profile stays the same.

    To make one takes tens of milliseconds (its filter is compiled and tried), so that is done beside the event loop,
    one at a time.
    """

    library: Library
    host: Host
    places: Places
    _made: dict[str, tuple[Profile, Plan]] = field(default_factory=dict, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def plan(self, name: str) -> Plan:
        """Give the plan of a profile as it is now.

        Raises `LayerError`: of the layer `profile` for one that cannot be used, or of the layer that the floor or
        this host refuses.
        """
        try:
            return (await self.make(name))[1]
        except LayerError:
            raise
        except ProfileError as error:
            observed, remedy = str(error), "mend it, or choose another with 'spl config set-profile'"
        except OSError as error:
            observed, remedy = str(error), "mend what the message names"
        except ConfinementError as error:
            raise LayerError(
                "syscalls",
                expected="a filter for this host",
                observed=str(error),
                remedy="mend what the message names",
            ) from None
        raise LayerError(
            "profile",
            expected=f"the profile {name!r} to be one that can be used",
            observed=observed,
            remedy=remedy,
        )

    async def make(self, name: str) -> tuple[Profile, Plan]:
        """Give a profile as it is now and its plan; raises what went wrong itself: `ConfinementError` or `OSError`."""
        async with self._turn:
            return await asyncio.to_thread(self._make, name)

    def _make(self, name: str) -> tuple[Profile, Plan]:
        profile = self.library.load(name)
        known = self._made.get(name)
        if known is None or known[0] is not profile:
            floor.require(profile)
            known = self._made[name] = profile, resolve(profile, self.host, self.places)
        return known
