"""Each layer taken away in turn, in this process's shape: which rows turn red, and whether any of its own do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bwrap import host as hosts
from bwrap.errors import LayerError
from bwrap.ledger import Ledger
from escape import attempting, image, judge
from escape.attempt import BROKE, ESCAPED, OK
from escape.attempts import ATTEMPTS
from escape.stub import Stub
from escape.weakened import REMOVALS, Weakened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from bwrap.host import Host
    from bwrap.plan import Plan
    from bwrap.sealed import Sealed
    from escape.attempt import Attempt
    from escape.child import Tell
    from escape.judge import Row
    from escape.victims import Victims
    from escape.weakened import Change, Removal

_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Mutation:
    """What came of taking one layer away.

    `own` are the attempts that this layer must answer; `red` are those that did not get its answer, with what they
    got instead: an escape, or what another wall or the kernel said. `red_before` is the same while the layer was still
    there and the masks lifted that hide it, `unmade` what was not made at all. It is noticed when own rows are red
    without it, all that the removal names among them, none was before, and each was made.
    """

    layer: str
    name: str
    shape: str
    profile: str
    lifted: list[str]
    own: list[str]
    red: dict[str, str]
    red_before: dict[str, str]
    unmade: list[str]
    ok: bool

    def wire(self) -> dict[str, Any]:
        """Give it as it stands in the report."""
        return {name: getattr(self, name) for name in self.__slots__}


class _Came(NamedTuple):
    """What an attempt came to, and whether it was made: one that never ran is red, and shows nothing."""

    row: Row
    made: bool


async def mutate(victims: Victims, only: Sequence[str], tell: Tell) -> None:
    """Take each layer away, all or `only` those named, and tell what turned red."""
    shape = hosts.shape()
    chosen = [each for each in REMOVALS if shape in each.shapes and (not only or each.layer in only)]
    host = hosts.examine()
    sealed = image.seal(host.python)
    tell({"host": attempting.describe(host, sealed)})
    tell({"total": len(chosen)})
    victims.make_home()
    victims.plant()
    try:
        async with Stub.listening(f"{victims.home}/run/spl-worker.sock") as stub:
            mutator = _Mutator(host, victims, sealed, stub)
            # One after the other: what happens to a victim must be some one removal's doing.
            for removal in chosen:
                tell({"mutation": (await mutator.take_away(removal)).wire()})
    finally:
        sealed.close()


class _Mutator:
    def __init__(self, host: Host, victims: Victims, sealed: Sealed, stub: Stub) -> None:
        self._host, self._victims, self._sealed, self._stub = host, victims, sealed, stub
        self._ledger = Ledger(f"{victims.home}/run/workers")
        self._plans: dict[str, Plan] = {}

    async def take_away(self, removal: Removal) -> Mutation:
        plan = self._plan(removal.profile)
        attempts = [each for each in ATTEMPTS.values() if not each.doors and _concerned(each, removal)]
        own = [each.id for each in attempts if _is_own(each, plan, removal)]
        if removal.own_only:
            attempts = [ATTEMPTS[name] for name in own]
        before: list[_Came] = []
        if removal.lifted:
            masked = [ATTEMPTS[name] for name in own]
            before = [came async for came in self._rows(masked, plan, removal, removal.masks)]
        after = [came async for came in self._rows(attempts, plan, removal, (*removal.masks, removal.change))]
        # That it got out is enough: what was got is this host's.
        red = {
            came.row.id: came.row.got.partition(":")[0] if came.row.got.startswith(ESCAPED) else came.row.got
            for came in after
            if came.made and not came.row.ok
        }
        red_before = {came.row.id: came.row.got for came in before if not came.row.ok}
        unmade = [came.row.id for came in after if not came.made]
        noticed = set(own) & red.keys()
        return Mutation(
            removal.layer,
            removal.name,
            str(plan.host.shape),
            removal.profile,
            list(removal.lifted),
            own,
            red,
            red_before,
            unmade,
            ok=bool(noticed) and noticed >= set(removal.rows) and not red_before and not unmade,
        )

    def _plan(self, profile: str) -> Plan:
        if profile not in self._plans:
            self._plans[profile] = attempting.plan_of(
                profile, self._host, self._victims.home, self._stub.path
            )
        return self._plans[profile]

    async def _rows(
        self, attempts: Sequence[Attempt], plan: Plan, removal: Removal, changes: tuple[Change, ...]
    ) -> AsyncIterator[_Came]:
        for party in attempting.parties(attempts):
            before = self._victims.census()
            answers, ended = await self._launch(party, plan, changes)
            after = self._victims.census()
            for each in party:
                control, answer = judge.came_to(each, answers, ended, before, after)
                if answer not in each.lacking:
                    row = judge.row(each, plan, control, answer, lifted=removal.lifted)
                    if row is not None:
                        yield _Came(row, made=control == OK and not answer.startswith(BROKE))

    async def _launch(
        self, party: Sequence[Attempt], plan: Plan, changes: tuple[Change, ...]
    ) -> tuple[dict[str, list[str]], str]:
        """Start one weakened worker and have it make some attempts; gives its answers and how it ended."""
        # The victim stands for a neighbour too: there is no daemon, and no other run.
        neighbour = {
            "neighbour_pid": self._victims.world["victim_pid"],
            "neighbour_credential": "none",
            "neighbour_thread": "none",
        }
        world = {**self._victims.world, **attempting.world(plan), **neighbour}
        try:
            confined = await Weakened(plan, self._sealed, self._ledger, changes).within(_SECONDS)
        except LayerError as error:
            # Nothing was made, and so nothing noticed: that something does not start may have any reason.
            return {}, f"not started: {error.layer}, {error.observed}"
        return await self._stub.have(confined, [each.id for each in party], world)


def _concerned(attempt: Attempt, removal: Removal) -> bool:
    """Say whether an attempt could see the difference: of one call let through, those that a refusal of it answers."""
    if removal.calls:
        answers = ", ".join(attempt.walls[0].answers).split(", ")
        told = {f" at {call}" for call in removal.calls}
        return attempt.id == "sweeps.calls" or any(answer.endswith(tuple(told)) for answer in answers)
    return any(wall.layer == removal.layer for wall in attempt.walls)


def _is_own(attempt: Attempt, plan: Plan, removal: Removal) -> bool:
    wall = judge.wall(attempt, plan, lifted=removal.lifted)
    return wall is not None and wall.layer == removal.layer
