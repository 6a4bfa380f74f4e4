"""The guard: what a proposed call is answered, by the first layer that has something to say.

The same for both transports, and evaluated anew for each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


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


def judge(tool: str, *, reach: Collection[str], forbidden: Collection[str], truncated: bool) -> Verdict:
    """Judge a call: `truncated`, `grant`, `clamp`, then `allow`.

    `reach` holds the tools the run was granted, `forbidden` its own clamp. A call on a reply that hit the output
    limit is never run: arguments cut off mid-write can parse and still be incomplete.
    """
    if truncated:
        return Verdict(
            "deny", "truncated", "the reply was cut off by the output limit, its arguments may be incomplete"
        )
    if tool not in reach:
        return Verdict("deny", "grant", f"the tool {tool!r} is not in this run's reach")
    if tool in forbidden:
        return Verdict("deny", "clamp", f"the run itself forbids the tool {tool!r}")
    return Verdict("allow", "allow", "nothing objected")
