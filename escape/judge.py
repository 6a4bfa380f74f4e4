"""From an answer to a row: which layer had to answer, with what, and whether it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bwrap import layers
from bwrap.text import printable
from escape.attempt import ESCAPED, OK

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bwrap.plan import Plan
    from escape.attempt import Attempt, Wall


@dataclass(frozen=True, slots=True)
class Row:
    """What one attempt came to, as it stands in the report (`class` is `kind` here)."""

    id: str
    shape: str
    profile: str
    layer: str
    kind: str
    expected: str
    got: str
    ok: bool

    def wire(self) -> dict[str, Any]:
        """Give the row with the names of the report."""
        said = asdict(self)
        return {"class" if name == "kind" else name: value for name, value in said.items()}


def wall(attempt: Attempt, plan: Plan, *, lifted: Collection[str] = ()) -> Wall | None:
    """Give the first layer that must answer under a plan, those that are `lifted` left aside; None if there is none."""
    named = {each.name for each in layers.every_layer()}
    claimed = {each.name for each in layers.table(plan, plan.host.shape)}
    for each in attempt.walls:
        if each.layer in lifted or (each.layer in named and each.layer not in claimed):
            continue
        if each.shape in ("", plan.host.shape) and each.profile in ("", plan.profile):
            return each
    return None


def row(
    attempt: Attempt, plan: Plan, control: str, answer: str, *, lifted: Collection[str] = ()
) -> Row | None:
    """Judge what one attempt came to; None where nothing is claimed that would have to stop it."""
    must = wall(attempt, plan, lifted=lifted)
    if must is None:
        return None
    got = printable(answer) if control == OK else f"the control failed: {printable(control)}"
    return Row(
        attempt.id,
        str(plan.host.shape),
        plan.profile,
        must.layer,
        attempt.kind,
        " or ".join(must.answers),
        got,
        control == OK and answer in must.answers,
    )


def came_to(
    attempt: Attempt,
    answers: Mapping[str, list[str]],
    ended: str,
    before: dict[str, str],
    after: dict[str, str],
) -> tuple[str, str]:
    """Give what an attempt's control and the attempt itself came to.

    A victim that was touched goes before whatever was answered, and how the process `ended` stands for an answer that
    it could not give any more.
    """
    control, answer = answers.get(attempt.id, [f"it was never made: {ended}", ""])
    return control, (harmed(before, after, attempt) or answer or ended) if control == OK else ""


def told_end(said: Mapping[str, object] | None) -> str:
    """Say how a process ended, from an outcome's `exit`."""
    match said:
        case {"signal": signal}:
            return f"killed by {signal}"
        case {"code": code}:
            return f"ended by itself with {code}"
        case _:
            return "ended without an exit"


def harmed(before: dict[str, str], after: dict[str, str], attempt: Attempt) -> str | None:
    """Say what happened to the victims of an attempt, as an answer; None if nothing did."""
    changed = [name for name in attempt.victims if before.get(name) != after.get(name)]
    if not changed:
        return None
    said = "; ".join(f"{name}: {before.get(name)} -> {after.get(name)}" for name in changed)
    return f"{ESCAPED}a victim was touched, {said}"
