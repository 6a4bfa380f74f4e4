"""Every attempt under every shipped profile, in this process's shape: from runs of members of a real daemon."""

from __future__ import annotations

import asyncio
import errno
import os
from itertools import groupby
from typing import TYPE_CHECKING, Any

from bwrap import floor, needs
from bwrap import host as hosts
from bwrap.errors import ConfinementError, LayerError
from bwrap.library import Library
from bwrap.limits import resource_limits
from bwrap.mounts import IMAGE
from bwrap.plan import Places, resolve
from bwrap.seccomp import ALLOW, meaning
from bwrap.supervise import started
from escape import image, judge
from escape.attempts import ATTEMPTS
from escape.instance import VERIFY_GOAL, Instance
from escape.judge import Row
from spl.errors import EscapeUnfinished

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bwrap.host import Host
    from bwrap.plan import Plan
    from bwrap.sealed import Sealed
    from escape.attempt import Attempt
    from escape.child import Tell
    from escape.instance import Finished
    from escape.victims import Victims

_AT_ONCE = 3
_RECEIPT = ("shape", "profile", "profile_digest", "image_digest")


async def run(victims: Victims, profiles: Sequence[str], only: Sequence[str], tell: Tell) -> None:
    """Make the attempts, all or `only` those of some classes or ids, under each profile, and tell what is found."""
    chosen = [each for each in ATTEMPTS.values() if not only or each.id in only or each.kind in only]
    host = hosts.examine()
    sealed = image.seal(host.python)
    tell({"host": describe(host, sealed)})
    usable = [name for name in profiles if not _unusable(name, tell)]
    tell({"total": len(usable) * (len(chosen) + (not only))})
    if not only:
        async with Instance.serving(f"{victims.folder}/plain") as plain:
            for name in usable:
                tell({"row": (await _whole_run(plain, name)).wire()})
    async with Instance.serving(victims.home, image=lambda _: sealed) as instance:
        victims.plant()
        for name in usable:
            await instance.set_profile(name)
            plan = plan_of(name, host, victims.home, f"{victims.home}/run/spl-worker.sock")
            await _Profile(instance, victims, plan, sealed.digest, tell).run(chosen)


def describe(host: Host, sealed: Sealed) -> dict[str, Any]:
    """Describe what rows of this process's shape are made on: versions and digests."""
    return {
        "shape": str(host.shape),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "bubblewrap": f"{host.bubblewrap.version} {host.bubblewrap.digest}",
        "libseccomp": hosts.find_libseccomp(),
        "landlock_abi": host.landlock,
        "interpreter": f"{host.python.path} {host.python.version}",
        "image": sealed.digest,
    }


def shipped() -> list[str]:
    """Give the names of the shipped profiles."""
    return sorted(Library().shipped())


def world(plan: Plan) -> dict[str, Any]:
    """Give what a plan adds to what an attempt may aim at, or is measured by."""
    return {
        "shape": str(plan.host.shape),
        "socket": plan.places.socket_inside,
        "image": IMAGE,
        "python": plan.host.python.path,
        "library": plan.host.python.library,
        "limits": resource_limits(plan.limits),
        "refused": refused(plan),
    }


def refused(plan: Plan) -> dict[str, str]:
    """Give each call that a plan's filter lets through on no condition, with the errno that it answers."""
    rules = plan.filter.rules
    actions = {name: meaning(rules, name) for name in image.numbers() if name not in rules.when}
    return {name: errno.errorcode[action & 0xFFFF] for name, action in actions.items() if action != ALLOW}


def plan_of(profile: str, host: Host, home: str, socket: str) -> Plan:
    """Resolve a shipped profile for an instance on this host; its worker socket may be a link, as a hosted one is."""
    return resolve(Library().load(profile), host, Places(home, os.path.realpath(socket)))


class _Profile:
    """The attempts under one profile."""

    def __init__(self, instance: Instance, victims: Victims, plan: Plan, image_: str, tell: Tell) -> None:
        self._instance, self._victims, self._plan, self._image, self._tell = (
            instance,
            victims,
            plan,
            image_,
            tell,
        )

    async def run(self, chosen: Sequence[Attempt]) -> None:
        async with self._instance.neighbour() as neighbour:
            said = {**self._victims.world, **world(self._plan), **neighbour}
            turns = asyncio.Semaphore(_AT_ONCE)

            def census() -> dict[str, str]:
                began = started(neighbour["neighbour_pid"])
                return {**self._victims.census(), "neighbour": f"began at {began}"}

            async def together(attempts: Sequence[Attempt]) -> None:
                async with turns:
                    before = census()
                    finished = await self._instance.try_all([each.id for each in attempts], said)
                    after = census()
                    self._require_as_told(finished)
                    for each in attempts:
                        came = judge.came_to(each, finished.answers, finished.exit, before, after)
                        self._judge(each, *came)

            await asyncio.gather(*map(together, parties(chosen)))

    def _require_as_told(self, finished: Finished) -> None:
        """Make sure that the run was what the rows will say: raises `EscapeUnfinished`."""
        plan, receipt = self._plan, finished.receipt
        told = ("sandboxed", str(plan.host.shape), plan.profile, plan.profile_digest, self._image)
        seen = (finished.row["transport"], *(receipt[name] for name in _RECEIPT))
        if seen != told:
            raise EscapeUnfinished(
                f"a run was not confined as its rows would say: {told} expected, {seen} found"
            )

    def _judge(self, attempt: Attempt, control: str, answer: str) -> None:
        lacking = attempt.lacking.get(answer)
        row = judge.row(attempt, self._plan, control, answer) if lacking is None else None
        if row is not None:
            self._tell({"row": row.wire()})
        else:
            self._tell({"lack": _lack(attempt.id, self._plan.profile, lacking or attempt.unclaimed)})


def parties(chosen: Sequence[Attempt]) -> list[list[Attempt]]:
    """Give the attempts that share a process: those of a class, but for each that must be alone."""
    shared = [each for each in chosen if not each.alone]
    return [
        *([each] for each in chosen if each.alone),
        *(list(group) for _, group in groupby(shared, key=lambda each: each.kind)),
    ]


def _lack(name: str, profile: str, why: str) -> dict[str, str]:
    """Give what the report says of an attempt, or of all (`*`), that there is nothing to attempt by."""
    return {"id": name, "shape": str(hosts.shape()), "profile": profile, "why": why}


async def _whole_run(plain: Instance, profile: str) -> Row:
    """Give the row of a whole run of the installed worker under a profile: the seed's verify goal, for a member."""
    await plain.set_profile(profile)
    finished = await plain.work(VERIFY_GOAL)
    row, receipt = finished.row, finished.receipt
    unconfirmed = [each["layer"] for each in receipt["layers"] if not each["confirmed"]]
    got = f"{row['transport']}, {row['outcome']}, {row['tool_calls_ok']} call, {len(unconfirmed)} layers unconfirmed"
    expected = "sandboxed, completed, 1 call, 0 layers unconfirmed"
    return Row(
        "run.whole", str(receipt["shape"]), profile, "every layer", "run", expected, got, got == expected
    )


def _unusable(name: str, tell: Tell) -> bool:
    """Tell of a profile that no run can start with: nothing can be tried under it."""
    profile = Library().load(name)
    try:
        floor.require(profile)
        needs.require(profile)
    except ConfinementError as error:
        what = f" (its layer {error.layer}, to begin with)" if isinstance(error, LayerError) else ""
        why = f"it is there to be extended: by itself it has less than a run needs{what}, and none can start with it"
        tell({"lack": _lack("*", name, why)})
        return True
    return False
