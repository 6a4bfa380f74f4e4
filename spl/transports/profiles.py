"""Profiles as the daemon tells of them: which there are, what one means on this host, and whether it may be chosen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bwrap import floor, render
from bwrap.errors import ConfinementError, LayerError, ProfileError
from bwrap.library import UnknownProfile
from spl.errors import NotFound, ProfileBelowFloor, ProfileInvalid

if TYPE_CHECKING:
    from bwrap.library import Library
    from spl.transports.plans import Plans

Json = dict[str, Any]


@dataclass(frozen=True)
class Profiles:
    """The profiles of a library, and their plans, or the `LayerError` that says why this host can have none."""

    library: Library
    plans: Plans | LayerError

    async def check(self, name: str) -> None:
        """Refuse a profile that no sandboxed run could start with now; on a host that can confine, its plan is made.

        Raises `ProfileInvalid`, also for a name that no profile has, or `ProfileBelowFloor`.
        """
        try:
            await asyncio.to_thread(self._require_floor, name)
            if not isinstance(self.plans, LayerError):
                await self.plans.make(name)
        except LayerError as error:
            raise ProfileInvalid(
                f"no worker can be confined by the profile {name!r} on this host: {error}", **error.wire()
            ) from None
        except (ConfinementError, OSError) as error:
            raise _invalid(error) from None

    async def listed(self) -> list[Json]:
        """Give a row for each profile, whether it can be used or not; raises `ProfileInvalid` for their folder."""
        try:
            return await asyncio.to_thread(render.listed, self.library)
        except (ConfinementError, OSError) as error:
            raise _invalid(error) from None

    async def described(self, name: str) -> Json:
        """Give what a profile says and where each value was said, and what that comes to on this host.

        One below the floor, or that this host cannot confine by, comes to nothing: `refused` says why. Raises
        `NotFound`, or `ProfileInvalid` for one that cannot be used anywhere.
        """
        try:
            if isinstance(self.plans, LayerError):
                raise self.plans
            profile, plan = await self.plans.make(name)
            return await asyncio.to_thread(render.described, profile, plan)
        except LayerError as error:
            refused = error
        except (ConfinementError, OSError) as error:
            raise _unknown_or_invalid(error) from None
        try:
            document = await asyncio.to_thread(lambda: render.described(self.library.load(name)))
        except (ConfinementError, OSError) as error:
            raise _unknown_or_invalid(error) from None
        return {**document, "refused": refused.wire()}

    def _require_floor(self, name: str) -> None:
        if breaches := floor.breaches(self.library.load(name)):
            first = breaches[0]
            raise ProfileBelowFloor(str(first.fault), layer=first.row.layer, **first.fault.wire())


def _unknown_or_invalid(error: Exception) -> NotFound | ProfileInvalid:
    return NotFound(error.reason) if isinstance(error, UnknownProfile) else _invalid(error)


def _invalid(error: Exception) -> ProfileInvalid:
    return ProfileInvalid(str(error), **(error.wire() if isinstance(error, ProfileError) else {}))
