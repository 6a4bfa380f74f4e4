"""What an attempt to get out is: who must stop it, with which answer, and what it would mean if nobody did.

Sealed into the escape image together with the attempts, and read outside it by the judge: one object for both.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from escape.inside import World

    Chain = Callable[[World], str]
    Control = Callable[[World], None]

REPORT = "core.work.report.v1"
"""The kind of record in which a process tells of its attempts."""

OK = "ok"
"""What a control comes to that succeeded."""

ESCAPED = "ESCAPED: "
"""How the answer of an attempt begins that was stopped by nothing."""

BROKE = "broke down: "
"""How the answer of an attempt begins whose own code failed."""

STAY = "stay"
"""Asked for in place of attempts of a process that is to be another's victim: it tells its credential, and waits."""


class Wall:
    """One layer that stands in an attempt's way, and the answers that prove that it was this layer that answered.

    An answer is what `inside` makes of a step that went no further: `EPERM at mount`, `nothing to read`. `shape` and
    `profile` narrow it to one of either; a layer that a plan does not claim is no wall.
    """

    __slots__ = ("answers", "layer", "profile", "shape")

    def __init__(self, layer: str, *answers: str, shape: str = "", profile: str = "") -> None:
        if not answers:
            raise ValueError(f"a wall of {layer} that answers nothing proves nothing")
        self.layer, self.answers, self.shape, self.profile = layer, answers, shape, profile


class Attempt:
    """One way out, tried to its end.

    `chain` runs inside: it returns what it got hold of, which is an escape, or raises what stopped it. `walls` stand in
    the order in which they answer: the first is the one that does in production, the others are seen when it is taken
    away. `control` runs just before, and must succeed: an attempt that never ran proves nothing. `escape` says what
    success would mean.

    `alone`: it may end or cripple the process, so it has one of its own. `victims` are those of `victims.Victims` that
    must be found unharmed afterwards. `lacking` are answers which mean that the host has nothing to attempt there, each
    with why. What is `allowed` on purpose says why; its one wall gives the answer of what then works. `unclaimed` says
    why nothing need stop it in a shape or profile of which no wall is. `doors` needs a daemon behind the worker socket.
    `cve` are the public numbers of what it is modelled on, joined by `, `.
    """

    __slots__ = (
        "allowed", "alone", "chain", "control", "cve", "doors", "escape", "id", "lacking", "sentence", "unclaimed",
        "victims", "walls",
    )  # fmt: skip

    def __init__(
        self,
        id: str,  # noqa: A002 - it is what the report and the contract call it
        sentence: str,
        chain: Chain,
        *,
        control: Control,
        walls: Iterable[Wall],
        escape: str,
        cve: str = "",
        alone: bool = False,
        doors: bool = False,
        victims: Iterable[str] = (),
        lacking: Mapping[str, str] | None = None,
        allowed: str = "",
        unclaimed: str = "",
    ) -> None:
        self.id, self.sentence, self.chain, self.control = id, sentence, chain, control
        self.walls, self.escape, self.cve, self.alone = tuple(walls), escape, cve, alone
        self.doors, self.victims, self.lacking, self.allowed = doors, tuple(victims), lacking or {}, allowed
        self.unclaimed = unclaimed or "no layer claims to stop it there"
        if not self.walls:
            raise ValueError(f"nothing stands in the way of {id}")

    @property
    def kind(self) -> str:
        """Its class: the first word of its id."""
        return self.id.split(".", 1)[0]
