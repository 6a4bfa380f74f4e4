"""What can be wrong with a host: a table of causes, read by `spl doctor` and by a start that is refused.

Looking at a cause gives what was seen, or raises the very `LayerError` that a start is refused with: there is one set
of words. Some causes can only be suspected. A container may or may not let its processes make namespaces, and what
it lets them is known when bubblewrap has tried: then `explain` finds the cause of its failure here.
"""

from __future__ import annotations

import os
import re
import resource
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from bwrap import cgroup, host, landlock, layers, memory
from bwrap.errors import LayerError
from bwrap.host import Shape
from bwrap.library import SHIPPED
from bwrap.limits import resource_limits
from bwrap.text import printable, sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bwrap.profile import Limits, Namespaces

_KERNEL = (5, 14)
_SECCOMP_ACTIONS = {"allow", "errno", "kill_process"}
_MIB = 1 << 20

# How bubblewrap says EPERM and EACCES.
_DENIED = re.compile(r"not permitted|permission denied|no permissions", re.IGNORECASE)

# How bubblewrap says that a path of the profile's could not be had: that is nobody's doing but the path's.
_PATH = re.compile(r"source path", re.IGNORECASE)

# How it says EAGAIN, which clone(2) gives for a process too many.
_CROWDED = re.compile(r"temporarily unavailable", re.IGNORECASE)

# The kernel's name of a namespace in user.max_<name>_namespaces: the layer it carries.
_NAMESPACES = {
    "user": "user_namespace",
    "mnt": "mounts",
    "net": "network",
    "ipc": "ipc",
    "uts": "uts",
    "cgroup": "cgroup",
    "pid": "pid_namespace",
}

# What a container's manager leaves for its processes to see.
_CONTAINERS = {
    ".dockerenv": "a mark of Docker",
    "run/.containerenv": "a mark of Podman",
    "run/systemd/container": "a mark that systemd knows",
}


class Severity(StrEnum):
    """How bad a finding is: nothing, something to know of, or no worker can be confined."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what was seen and, where it is not right, what is expected and what to do."""

    name: str
    severity: Severity
    observed: str
    expected: str = ""
    remedy: str = ""

    @classmethod
    def of(cls, name: str, error: LayerError, severity: Severity = Severity.FAILURE) -> Finding:
        """Give the finding that a refusal is."""
        return cls(name, severity, error.observed, error.expected, error.remedy)

    def wire(self) -> dict[str, str]:
        """Give it by name, without what there is nothing to say of."""
        said = {
            "name": self.name,
            "severity": str(self.severity),
            "observed": self.observed,
            "expected": self.expected,
            "remedy": self.remedy,
        }
        return {name: value for name, value in said.items() if value}


class Wanted(Protocol):
    """What a worker is to have: a profile or a plan."""

    @property
    def namespaces(self) -> Namespaces:
        """Which namespaces are its own."""
        ...

    @property
    def limits(self) -> Limits:
        """Its resource limits."""
        ...


@dataclass(frozen=True, slots=True)
class Machine:
    """What is looked at: this host in a shape, for workers of one profile; None while no profile can be read.

    `root` goes before every path that is read, for a file system that was planted.
    """

    shape: Shape
    wanted: Wanted | None
    root: str = ""

    @property
    def namespaces(self) -> Namespaces:
        """Which namespaces a worker is to have; raises `ValueError` without a profile."""
        return self._wanted().namespaces

    @property
    def limits(self) -> Limits:
        """What a worker is limited to; raises `ValueError` without a profile."""
        return self._wanted().limits

    def _wanted(self) -> Wanted:
        if self.wanted is None:
            raise ValueError("what a worker is to have is not known without a profile")
        return self.wanted

    def read(self, path: str) -> str | None:
        """Read a small file of this host; None when it is not there. Raises `OSError`."""
        try:
            with open(f"{self.root}/{path}", encoding="utf-8", errors="backslashreplace") as file:
                return file.read(1 << 16)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def sysctl(self, name: str) -> int | None:
        """Give the number a kernel setting holds; None when this kernel has no such setting.

        Its name is as sysctl(8) takes it. Raises `OSError` or `ValueError` when it cannot be read.
        """
        text = self.read(f"proc/sys/{name.replace('.', '/')}")
        return None if text is None else int(text)

    def field(self, path: str, name: str) -> str | None:
        """Give what a file of lines `name: value` says under a name; None when it says nothing."""
        found = re.search(rf"^{name}:[ \t]*(.*)$", self.read(path) or "", re.MULTILINE)
        return None if found is None else found[1].strip()


@dataclass(frozen=True, slots=True)
class Cause:
    """One row: `look` says what it sees, or raises the `LayerError` of a host that has this cause.

    `severity` is what having it means by itself: ok is a suspicion, which counts when bubblewrap fails. `explains`
    names the layers whose failure this would be the cause of; `of_profile` says that it depends on the profile.
    """

    name: str
    look: Callable[[Machine], str]
    severity: Severity = Severity.FAILURE
    explains: tuple[str, ...] = ()
    of_profile: bool = False


def every_cause() -> tuple[Cause, ...]:
    """Give the whole table."""
    return _CAUSES


def examine(machine: Machine) -> list[Finding]:
    """Look at every cause, without a profile at those that need none.

    Nothing raises: what cannot be looked at is a finding too, and never ok.
    """
    return [_looked_at(cause, machine) for cause in _CAUSES if machine.wanted or not cause.of_profile]


def explain(error: LayerError, machine: Machine) -> LayerError:
    """Give the refusal that names the cause of a failure of bubblewrap's; the same one where the table has none.

    What is only suspected is blamed for what was not permitted, and for nothing else.
    """
    if _CROWDED.search(error.observed):
        return LayerError(
            "limits",
            expected="room for one more process",
            observed=error.observed,
            remedy="end some of this user's processes, or raise the limit on them (RLIMIT_NPROC, pids.max, pid_max)",
        )
    denied = _DENIED.search(error.observed) and not _PATH.search(error.observed)
    for cause in _CAUSES:
        if error.layer in cause.explains and (denied or cause.severity is not Severity.OK):
            # What cannot be looked at explains nothing; the failure itself is told all the same.
            with suppress(OSError, ValueError):
                try:
                    cause.look(machine)
                except LayerError as found:
                    return LayerError(
                        found.layer,
                        expected=found.expected,
                        observed=f"{found.observed}; {error.observed}",
                        remedy=found.remedy,
                    )
    return error


def worst(findings: Iterable[Finding]) -> Severity:
    """Give the severity of the worst finding."""
    return max((each.severity for each in findings), key=list(Severity).index, default=Severity.OK)


def _looked_at(cause: Cause, machine: Machine) -> Finding:
    try:
        return Finding(cause.name, Severity.OK, printable(cause.look(machine)))
    except LayerError as error:
        if cause.severity is Severity.OK:
            return Finding(cause.name, Severity.OK, error.observed)
        return Finding.of(cause.name, error, cause.severity)
    except (OSError, ValueError) as error:
        return Finding(
            cause.name,
            Severity.FAILURE if cause.severity is Severity.FAILURE else Severity.WARNING,
            printable(f"{type(error).__name__}: {error}"),
            "to be able to look",
            "mend what the message names",
        )


# --- the kernel ---


def _kernel(machine: Machine) -> str:
    release = (machine.read("proc/sys/kernel/osrelease") or "").strip()
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None:
        raise ValueError(f"{release!r} is no release of Linux")
    if (int(found[1]), int(found[2])) < _KERNEL:
        # Until 5.14 RLIMIT_NPROC counts the processes of a uid over all user namespaces (getrlimit(2)).
        raise LayerError(
            "limits",
            expected="Linux 5.14 or later, which counts the processes of a user namespace by themselves",
            observed=f"Linux {release}",
            remedy="use a newer kernel",
        )
    return f"Linux {release}"


def _clone_switch(machine: Machine) -> str:
    name = "kernel.unprivileged_userns_clone"
    value = machine.sysctl(name)
    if value == 0:
        raise LayerError(
            "user_namespace",
            expected=f"{name} to be 1",
            observed=f"{name} is 0",
            remedy=_set(name, 1),
        )
    return "this kernel has no such switch" if value is None else f"{name} is {value}"


def _namespace_limits(machine: Machine) -> str:
    seen = []
    for name, layer in _NAMESPACES.items():
        setting = f"user.max_{name}_namespaces"
        value = machine.sysctl(setting)
        # --disable-userns has bubblewrap make a second user namespace within the first.
        needed = 2 if name == "user" else 1
        if value is not None and value < needed and _wanted(machine.namespaces, name):
            raise LayerError(
                layer,
                expected=f"{setting} to be {needed} or more for each worker",
                observed=f"{setting} is {value}",
                remedy=_set(setting, 10000),
            )
        seen.append(f"{name} {'without a limit' if value is None else value}")
    return ", ".join(seen)


def _wanted(own: Namespaces, name: str) -> bool:
    return name == "mnt" or bool(getattr(own, name))


def _set(setting: str, value: int) -> str:
    return f"set it as root with 'sysctl {setting}={value}', and in /etc/sysctl.d for the next boot"


def _apparmor(machine: Machine) -> str:
    name = "kernel.apparmor_restrict_unprivileged_userns"
    value = machine.sysctl(name)
    if value:
        raise LayerError(
            "user_namespace",
            expected="an AppArmor profile that lets bubblewrap make user namespaces",
            observed=f"{name} is {value}",
            remedy=(
                f"copy {SHIPPED / 'apparmor' / 'spl-bwrap'} to /etc/apparmor.d "
                "and load it with 'apparmor_parser -r /etc/apparmor.d/spl-bwrap'"
            ),
        )
    return "AppArmor does not restrict user namespaces"


def _container(machine: Machine) -> str:
    seen = [mark for path, mark in _CONTAINERS.items() if os.path.lexists(f"{machine.root}/{path}")]
    # A container's manager filters the calls of what it starts, and a login or a service usually does not.
    if int(machine.field("proc/self/status", "Seccomp_filters") or 0):
        seen.append("a filter of system calls on this process itself")
    if seen:
        raise LayerError(
            "user_namespace",
            expected="the right to make namespaces",
            observed=f"this looks like the inside of a container: {', '.join(seen)}",
            remedy=(
                "let the container make namespaces: '--security-opt seccomp=unconfined --security-opt "
                "apparmor=unconfined' with Docker and Podman, 'security.nesting=true' with LXC"
            ),
        )
    return "no sign of one"


def _seccomp(machine: Machine) -> str:
    actions = set((machine.read("proc/sys/kernel/seccomp/actions_avail") or "").split())
    if machine.field("proc/self/status", "Seccomp") is None or not actions >= _SECCOMP_ACTIONS:
        raise LayerError(
            "syscalls",
            expected="seccomp filters in the kernel",
            observed=f"the actions it offers are {' '.join(sorted(actions)) or 'none'}",
            remedy=layers.remedy("syscalls"),
        )
    return " ".join(sorted(actions))


def _landlock(_: Machine) -> str:
    version = landlock.abi()
    return (
        f"version {version}" if version else "this kernel has none: a worker is confined without this layer"
    )


def _security_modules(machine: Machine) -> str:
    return (machine.read("sys/kernel/security/lsm") or "").strip() or "none are listed"


# --- programs and rights ---


def _rights(machine: Machine) -> str:
    host.require_rights(machine.shape)
    if machine.shape is Shape.HOSTED:
        return "root, and each worker gets a uid of its own"
    return "an ordinary user, and workers have its uid in a user namespace of their own"


def _libseccomp(_: Machine) -> str:
    return f"version {host.find_libseccomp()}"


def _bubblewrap(machine: Machine) -> str:
    found = host.find_bubblewrap(machine.shape)
    return f"{found.path}, version {found.version}, SHA-256 {found.digest}"


def _interpreter(machine: Machine) -> str:
    found = host.find_python(machine.shape)
    return f"{found.path}, version {found.version}"


# --- room ---


def _limits(machine: Machine) -> str:
    for name, value in resource_limits(machine.limits).items():
        hard = resource.getrlimit(getattr(resource, name))[1]
        if hard != resource.RLIM_INFINITY and hard < value:
            raise LayerError(
                "limits",
                expected=f"a hard limit {name} of {_written(name, value)} or more",
                observed=f"{name} is limited to {_written(name, hard)} here",
                remedy=layers.remedy("limits"),
            )
    return "this process may have all that a worker is limited to"


def _cgroup(machine: Machine) -> str:
    found = cgroup.look(machine.root)
    if found.lacking:
        raise LayerError(
            "limits",
            expected="to divide the cgroup that is delegated to this process, with the controllers memory and pids",
            observed=str(found),
            remedy="let whoever delegates it give both (Delegate=yes), and the daemon's user the folder and its files",
        )
    return str(found)


def _written(name: str, value: int) -> str:
    return sized(value) if name in ("RLIMIT_AS", "RLIMIT_FSIZE") else str(value)


def _memory(machine: Machine) -> str:
    available, needed = memory.available(machine.root), machine.limits.address_space
    if available < needed:
        raise LayerError(
            "limits",
            expected=f"{needed // _MIB} MiB of memory, the address space of one worker",
            observed=f"{available // _MIB} MiB are available",
            remedy=(
                "free some memory, or choose a profile with a lower address_space: this looks at the default one alone"
            ),
        )
    return (
        f"{available // _MIB} MiB are available, and the address space of one worker is {needed // _MIB} MiB"
    )


# The order is that of blame: of two causes that explain one failure the first is named.
_CAUSES = (
    Cause("rights", _rights),
    Cause("kernel", _kernel, Severity.WARNING),
    Cause("user namespaces", _clone_switch, explains=("user_namespace",)),
    Cause("namespace limits", _namespace_limits, explains=("user_namespace",), of_profile=True),
    Cause("AppArmor", _apparmor, Severity.OK, explains=("user_namespace", "network")),
    Cause("container", _container, Severity.OK, explains=("user_namespace", "network", "mounts")),
    Cause("security modules", _security_modules, Severity.WARNING),
    Cause("seccomp", _seccomp, explains=("syscalls",)),
    Cause("landlock", _landlock, Severity.WARNING),
    Cause("libseccomp", _libseccomp),
    Cause("bubblewrap", _bubblewrap),
    Cause("interpreter", _interpreter),
    Cause("limits", _limits, explains=("limits",), of_profile=True),
    Cause("memory", _memory, Severity.WARNING, of_profile=True),
    Cause("cgroup", _cgroup, Severity.WARNING),
)
