"""Writing attempts down: what all of a class have is said once, and so is what stands around another process."""

from __future__ import annotations

from escape.attempt import Attempt, Wall
from escape.inside import calls_work, sockets_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from escape.attempt import Chain, Control


class Making:
    """Makes the attempts of one class, whose victims are the same but where others are said."""

    def __init__(self, kind: str, *, victims: Iterable[str] = ()) -> None:
        self._kind, self._victims = kind, tuple(victims)

    def __call__(
        self,
        name: str,
        sentence: str,
        chain: Chain,
        escape: str,
        *walls: Wall,
        control: Control = calls_work,
        cve: str = "",
        alone: bool = False,
        doors: bool = False,
        victims: Iterable[str] | None = None,
        lacking: Mapping[str, str] | None = None,
        allowed: str = "",
        unclaimed: str = "",
    ) -> Attempt:
        """Give one, whose id is the class and a name."""
        return Attempt(
            f"{self._kind}.{name}",
            sentence,
            chain,
            control=control,
            walls=walls,
            escape=escape,
            cve=cve,
            alone=alone,
            doors=doors,
            victims=self._victims if victims is None else victims,
            lacking=lacking,
            allowed=allowed,
            unclaimed=unclaimed,
        )


def behind(
    refused: str, unseen: str, foreign: str, *layers: str, hosted: Iterable[str] = ()
) -> tuple[Wall, ...]:
    """Give the walls around another process: the filter, no number for it, and the `layers` by which it is another's.

    Of what its user is to it the kernel's answer is the same, whichever layer gives it. Those that only hold where the
    other is root's are `hosted`.
    """
    return (
        Wall("syscalls", refused),
        Wall("pid_namespace", unseen),
        *(Wall(layer, foreign) for layer in layers),
        *(Wall(layer, foreign, shape="hosted") for layer in hosted),
    )


def without_rights(*answers: str) -> tuple[Wall, ...]:
    """Give the walls around what needs a right: it has none, and if it had, they would be those of a namespace inside.

    The user namespace that a process is in is not the one that its mounts, networks and process ids belong to, in which
    the right is asked for: it is nested in that one, so that no more can be made.
    """
    return Wall("capabilities", *answers), Wall("user_namespace", *answers)


BY_FAMILY = Wall("syscalls", "EPERM at socket")
"""The filter's answer to a socket of any family but AF_UNIX."""
VIEW = "the view is the worker's to make"
ROOM = "room that no limit bounds, and files that can be written"
SURFACE = "one more part of the kernel, with faults of its own, is within reach"


def of_family(name: str, sentence: str, chain: Chain, cve: str = "", *more: Wall) -> Attempt:
    """Give an attempt at a part of the kernel that a socket of another family than AF_UNIX reaches."""
    return Attempt(
        name,
        sentence,
        chain,
        control=sockets_work,
        walls=[BY_FAMILY, *more],
        escape=SURFACE,
        cve=cve,
        lacking={"EAFNOSUPPORT at socket": "this kernel has no such family"},
    )
