"""From a profile to a plan: every token a path, every group compiled, nothing of one run in it.

A plan is the same for both shapes and for every run of its profile, so that workers can be made before the run
they will serve exists.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bwrap import groups, seccomp, sources
from bwrap.mounts import IMAGE, Kind, Mount, Places, mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.host import Host
    from bwrap.profile import Limits, Namespaces, Profile

__all__ = ["PATH", "Kind", "Mount", "Places", "Plan", "resolve"]

PATH = "/usr/bin"

_NEW_TASK = ("clone", "clone3", "fork", "vfork")
_CLONE_THREAD = 0x00010000
_PER_DESCRIPTOR = 512 << 10
_PER_PROCESS = 8 << 20
_PER_FILE = 1 << 10


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
        """The most memory one worker can take up, in bytes: what admission reckons with.

        The address space of each process it can have, all its file systems full, and the kernel's own share: for each
        descriptor a send buffer of 208 KiB (net.core.wmem_default, rounded up to 256), twice, since as many sockets
        again can be on their way through others (unix(7)); for each process 8 MiB of page tables, stacks in the
        kernel, and bubblewrap's monitor. A file system in memory bounds its blocks, and its files at half as many as
        the machine has pages (tmpfs(5), nr_inodes, which bubblewrap cannot set); one takes about 1 KiB.
        """
        limits, processes = self.limits, self._most_processes()
        each = limits.address_space + limits.open_files * _PER_DESCRIPTOR + _PER_PROCESS
        writable = sum(1 for _ in self.find(Kind.TMPFS))
        files = writable * (os.sysconf("SC_PHYS_PAGES") // 2) * _PER_FILE
        return processes * each + files + sum(mount.size for mount in self.mounts)

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
            if mount.kind is Kind.SOCKET:
                sources.require_socket(source.named)
            else:
                sources.require_there(source.named)
            sources.require_unchanged(source)

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


def resolve(profile: Profile, host: Host, places: Places) -> Plan:
    """Resolve a profile on a host.

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
        filter=seccomp.compile_filter(rules),
        host=host,
        places=places,
    )
