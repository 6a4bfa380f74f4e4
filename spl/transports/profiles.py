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

LISTED = "'spl profile list' lists the profiles there are"
"""What to do about a name that no profile has."""


@dataclass(frozen=True)
class Profiles:
    """The profiles of a library, and their plans, or the `LayerError` that says why this host can have none."""

    library: Library
    plans: Plans | LayerError

    async def check(self, name: str) -> None:
        """Refuse a profile that no sandboxed run could start with now; on a host that can confine, its plan is made.

        So is a shipped name while a file of the user's bears it: who wrote that file means it. Raises
        `ProfileInvalid`, also for a name that no profile has, or `ProfileBelowFloor`.
        """
        try:
            await asyncio.to_thread(self._require_usable, name)
            if not isinstance(self.plans, LayerError):
                await self.plans.make(name)
        except UnknownProfile as error:
            raise ProfileInvalid(error.reason, **error.wire(), remedy=LISTED) from None
        except LayerError as error:
            # Its remedy is said after the message, by whoever shows this.
            raise ProfileInvalid(
                f"no worker can be confined by the profile {name!r} on this host: "
                f"layer {error.layer}: expected {error.expected}, observed {error.observed}",
                **error.wire(),
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

    def _require_usable(self, name: str) -> None:
        if stray := self.library.strays().get(name):
            raise stray
        if breaches := floor.breaches(self.library.load(name)):
            first, *others = breaches
            more = f"; and {len(others)} more, which 'spl profile lint {name}' names" if others else ""
            raise ProfileBelowFloor(
                f"{first.fault}{more}",
                layer=first.row.layer,
                remedy=first.refusal().remedy,
                breaches=len(breaches),
                **first.fault.wire(),
            )


def _unknown_or_invalid(error: Exception) -> NotFound | ProfileInvalid:
    return NotFound(error.reason, remedy=LISTED) if isinstance(error, UnknownProfile) else _invalid(error)


def _invalid(error: Exception) -> ProfileInvalid:
    fields = error.wire() if isinstance(error, ProfileError) else {}
    # What is wrong with a whole file, or with their folder, has no place in it.
    if fields.get("line") is None:
        fields["remedy"] = "mend what the message names, or take it out of the way"
    return ProfileInvalid(str(error), **fields)
