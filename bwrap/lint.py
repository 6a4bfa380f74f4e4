"""What a reviewer should know of a profile: what it lacks to run, breaches of the floor, and what may surprise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from bwrap import floor, groups, needs, seccomp, sources
from bwrap.errors import LayerError
from bwrap.merge import REMOVES
from bwrap.profile import OPTIONAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.document import Path
    from bwrap.errors import ProfileError
    from bwrap.profile import Profile

STARTS_WITH = 48 << 20
"""Bytes of addresses with which any interpreter starts."""


class Severity(StrEnum):
    """With an error no run can start, with a breach of the floor none may; a warning keeps none from running."""

    ERROR = "error"
    BREACH = "breach"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing to know, with the fault that points at the word it is about."""

    severity: Severity
    row: str
    fault: ProfileError

    def wire(self) -> dict[str, object]:
        """Give it by name, with the fault's own names beside its."""
        return {"severity": str(self.severity), "row": self.row, **self.fault.wire()}


def lint(profile: Profile) -> list[Remark]:
    """Give the errors, then every breach of the floor, then the warnings; raises what `needs.missing` does."""
    return [
        *(Remark(Severity.ERROR, lack.row.name, lack.fault) for lack in needs.missing(profile)),
        *(Remark(Severity.BREACH, breach.row.name, breach.fault) for breach in floor.breaches(profile)),
        *(Remark(Severity.WARNING, row, profile.fault(path, said)) for row, path, said in _warnings(profile)),
    ]


def lint_here(profile: Profile, home: str) -> list[Remark]:
    """Give what `lint` does, and as errors what of this host may not be shown; `home` is the instance's."""
    refused: list[Remark] = []
    for index, text in enumerate(profile.filesystem.read_only):
        path = text.removeprefix(OPTIONAL)
        if not path.startswith("/") or (path != text and not os.path.exists(path)):
            continue
        try:
            sources.require(path, home)
        except LayerError as error:
            said = (
                f"this host has no such thing to show: expected {error.expected}, observed {error.observed}"
            )
            fault = profile.fault(("filesystem", "read_only", index), said)
            refused.append(Remark(Severity.ERROR, error.layer, fault))
    return [*refused, *lint(profile)]


def _warnings(profile: Profile) -> Iterator[tuple[str, Path, str]]:
    said = profile.syscalls
    if said.default != "ENOSYS":
        reason = f"{said.default} for an unknown call: libc looks for another way only when it is told ENOSYS"
        yield "default", ("syscalls", "default"), reason
    if needs.LEAST["address_space"][0] <= profile.limits.address_space < STARTS_WITH:
        reason = f"under {STARTS_WITH >> 20}M an interpreter may not start: it limits addresses, not use"
        yield "address_space", ("limits", "address_space"), reason
    if not profile.namespaces.cgroup:
        yield "cgroup", ("namespaces", "cgroup"), "it would see the host's control groups"
    for index, _ in enumerate(profile.filesystem.tmpfs):
        reason = (
            "the size bounds what its files hold, not their number, and each takes about 1K of kernel memory"
        )
        yield "tmpfs", ("filesystem", "tmpfs", index), reason
    for index, source in enumerate(profile.filesystem.read_only):
        if not source.startswith("@"):
            path = source.removeprefix(OPTIONAL)
            reason = f"{path!r} and all beneath it can be read by whatever the model is led to do"
            yield "read_only", ("filesystem", "read_only", index), reason
    yield from _of_one_architecture(profile)


def _of_one_architecture(profile: Profile) -> Iterator[tuple[str, Path, str]]:
    """Tell of calls allowed by themselves that an architecture does not have: there is nothing to allow on it."""
    named: list[tuple[Path, str]] = [
        (("syscalls", "allow", i), call) for i, call in enumerate(profile.syscalls.allow)
    ]
    named += [(("syscalls", "when", i, "call"), row.call) for i, row in enumerate(profile.syscalls.when)]
    for path, said in named:
        # To take away what is not there does no harm.
        for arch in () if said.startswith(("@", REMOVES)) else groups.ARCHITECTURES:
            if said not in seccomp.names(arch):
                yield "architecture", path, f"there is no {said!r} on {arch}"
