"""The guard: what a proposed call is answered, by the first layer that has something to say.

The same for both transports, and evaluated anew for each call, over the rules as they are then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spl.kernel.rules import Asked, Match, Rules
    from spl.kernel.terms import Terms


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer to one call: `allow`, `deny` or `stop`, the layer that gave it, and why."""

    decision: str
    layer: str
    reason: str
    rule: str | None = None

    @property
    def allowed(self) -> bool:
        """Whether the call may run."""
        return self.decision == "allow"

    @property
    def text(self) -> str:
        """What the model is shown of a call that does not run."""
        return f"This call was not run ({self.layer}): {self.reason}."


def judge(
    asked: Asked,
    *,
    terms: Terms,
    rules: Rules,
    ending: str | None,
    truncated: bool,
    malformed: bool = False,
) -> Verdict:
    """Judge a call: `stop`, `truncated`, `malformed`, `grant`, `clamp`, `rule`, then `allow`.

    `ending` says why the run is to end, if it is. A call on a reply that hit the output limit is never run: arguments
    cut off mid-write can parse and still be incomplete; nor is one `malformed`, which has no arguments to judge.
    """
    tool = asked.tool
    if ending is not None:
        return Verdict("stop", "stop", f"the run is ending: {ending}")
    if truncated:
        return Verdict(
            "deny", "truncated", "the reply was cut off by the output limit, its arguments may be incomplete"
        )
    if malformed:
        return Verdict("deny", "malformed", "its arguments are not a JSON object")
    if tool in terms.narrowed:
        return Verdict("deny", "grant", f"the tool {tool!r} is withheld from runs that are {terms.transport}")
    if tool not in terms.tools:
        reach = ", ".join(sorted(terms.tools)) or "no tool"
        return Verdict("deny", "grant", f"the tool {tool!r} is not in this run's reach, which is {reach}")
    if tool in terms.forbidden:
        return Verdict("deny", "clamp", f"this run was started with {tool!r} among its forbidden_tools")
    return _ruled(rules.judge(asked))


def unwritten(why: str) -> Verdict:
    """Give the answer to a call whose verdict cannot be made durable: what is not on record does not run."""
    return Verdict("deny", "log", f"its verdict cannot be written down, so it does not run: {why}")


def _ruled(match: Match | None) -> Verdict:
    if match is None:
        return Verdict("allow", "allow", "nothing objected")
    rule = match.rule
    if rule.action == "allow":
        return Verdict("allow", "allow", f"the rule {rule.name!r} allows it", rule.name)
    if match.error is not None:
        why = f"the rule {rule.name!r} cannot be evaluated for it, and a rule that denies then does: {match.error}"
        return Verdict("deny", "rule", why, rule.name)
    return Verdict("deny", "rule", f"the rule {rule.name!r} denies it", rule.name)
