"""From a profile to a plan: every token a path, every group compiled, nothing of one run in it.

A plan is the same for both shapes and for every run of its profile, so that workers can be made before the run
they will serve exists.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bwrap import groups, seccomp, sources
from bwrap.mounts import IMAGE, Kind, Mount, Places, mounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bwrap.host import Host
    from bwrap.profile import Limits, Namespaces, Profile

__all__ = ["PATH", "Kind", "Mount", "Places", "Plan", "Term", "resolve"]

PATH = "/usr/bin"

_NEW_TASK = ("clone", "clone3", "fork", "vfork")
_CLONE_THREAD = 0x00010000
_PER_DESCRIPTOR = 512 << 10
_PER_PROCESS = 8 << 20
_PER_FILE = 1 << 10


class Term(NamedTuple):
    """One part of the most memory a worker can take up: what it is, how many of it, and bytes for each."""

    what: str
    number: int
    each: int

    @property
    def total(self) -> int:
        """Give its bytes."""
        return self.number * self.each


@dataclass(frozen=True, slots=True)
class Plan:
    """A profile resolved on a host: all that `arguments`, `launch` and `layers` need.

    `absent` are the optional sources that were not there when the plan was made; what comes later is in the next plan.
    """

    profile: str
    profile_digest: str
    namespaces: Namespaces
    mounts: tuple[Mount, ...]
    absent: tuple[str, ...]
    proc: bool
    limits: Limits
    filter: seccomp.Filter
    host: Host
    places: Places

    def __hash__(self) -> int:
        # What follows from a plan is made once for it; the rules in it are mappings, which have no hash themselves.
        return hash((self.profile_digest, self.filter.digest))

    @property
    def command(self) -> tuple[str, ...]:
        """The confined command up to its own arguments.

        bubblewrap adds PWD to the environment, so env(1) clears it once more; `-I -S` keeps the interpreter from
        reading anything but its own library, `-B` from trying to write there.
        """
        python = self.host.python
        return (python.env, "-i", f"PATH={PATH}", python.path, "-I", "-S", "-B", IMAGE)

    @property
    def worst_case(self) -> int:
        """The most memory one worker can take up, in bytes: what admission reckons with, and the sum of its terms."""
        return sum(term.total for term in self.worst_case_terms)

    @property
    def worst_case_terms(self) -> tuple[Term, ...]:
        """What the most memory that one worker can take up is made of.

        The address space of each process it can have, all its file systems full, and the kernel's own share: for each
        descriptor a send buffer of 208 KiB (net.core.wmem_default, rounded up to 256), twice, since as many sockets
        again can be on their way through others (unix(7)); for each process 8 MiB of page tables, stacks in the
        kernel, and bubblewrap's monitor. A file system in memory bounds its blocks, and its files at half as many as
        the machine has pages (tmpfs(5), nr_inodes, which bubblewrap cannot set); one takes about 1 KiB.
        """
        limits, processes = self.limits, self._most_processes()
        descriptors = processes * limits.open_files
        files = sum(1 for _ in self.find(Kind.TMPFS)) * (os.sysconf("SC_PHYS_PAGES") // 2)
        return (
            Term("the address space of a process", processes, limits.address_space),
            Term("the kernel's buffers of a descriptor that is a socket", descriptors, _PER_DESCRIPTOR),
            Term(
                "the kernel's tables and stacks for a process, and bubblewrap's monitor",
                processes,
                _PER_PROCESS,
            ),
            *(
                Term(f"what can be written in {mount.target}", 1, mount.size)
                for mount in self.mounts
                if mount.size and mount.kind is Kind.TMPFS
            ),
            Term(
                "empty folders, each a file system in memory that is closed to it",
                1,
                sum(mount.size for mount in self.mounts if mount.kind is not Kind.TMPFS),
            ),
            Term("the kernel's inode of a file in memory, whose number no option bounds", files, _PER_FILE),
        )

    @property
    def may_fork(self) -> bool:
        """Whether the filter and the limit let it have more than one process."""
        return self._most_processes() > 1

    def find(self, kind: Kind) -> Iterator[Mount]:
        """Give the mounts of one kind, parents before children."""
        return (mount for mount in self.mounts if mount.kind is kind)

    @property
    def shown(self) -> Iterator[tuple[Mount, sources.Source]]:
        """What of the host is shown, each with what was examined for it."""
        return ((mount, mount.examined) for mount in self.mounts if mount.examined is not None)

    def is_current(self) -> bool:
        """Say whether what it shows is what was examined, and what was absent still is; else it is to be made anew."""
        return all(source.untouched for _, source in self.shown) and not any(map(os.path.exists, self.absent))

    def require_sources(self) -> None:
        """Make sure, right before a start, that what is to be shown is what was examined; raises `LayerError`."""
        for mount, source in self.shown:
            sources.require_unchanged(source, socket=mount.kind is Kind.SOCKET)

    def _most_processes(self) -> int:
        """Give how many processes the filter and the limit allow; threads share one address space (clone(2))."""
        rules = self.filter.rules
        if any(call in rules.allow for call in _NEW_TASK):
            return self.limits.processes
        for call in _NEW_TASK:
            # clone's flags are its first argument on both architectures; clone3's stand in memory, out of sight.
            condition = rules.when.get(call)
            if condition and not (
                call == "clone"
                and condition.argument == 0
                and all(mask & value & _CLONE_THREAD for mask, value in condition.alternatives)
            ):
                return self.limits.processes
        return 1


def resolve(
    profile: Profile,
    host: Host,
    places: Places,
    compiled: Callable[[seccomp.Rules], seccomp.Filter] = seccomp.compile_filter,
) -> Plan:
    """Resolve a profile on a host; who makes many plans may keep the filters that were `compiled`.

    Raises `ProfileError` at the word that cannot be had, `seccomp.FilterError`, or `LayerError` for a source that is
    missing or not to be shown. It looks through the folders that the profile shows, which may take a moment.
    """
    rules = groups.rules(profile, seccomp.architecture())
    found, absent = mounts(profile, host.python, places)
    for mount in found:
        if mount.examined is not None and mount.kind is Kind.READ_ONLY:
            sources.require_reachable(mount.examined, host.shape)
    return Plan(
        profile=profile.name,
        profile_digest=profile.digest,
        namespaces=profile.namespaces,
        mounts=found,
        absent=absent,
        proc=profile.filesystem.proc == "own",
        limits=profile.limits,
        filter=compiled(rules),
        host=host,
        places=places,
    )
