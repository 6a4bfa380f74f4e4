"""Profiles: what a person writes to say how a process is confined.

TOML, one file a profile; `bwrap.library` finds the files and merges what they extend. A profile holds nothing of one
host's shape and nothing of one run; host things are named by token (`@home`) and become paths in `bwrap.plan`.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from bwrap import groups
from bwrap.merge import Node, Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bwrap.errors import ProfileError

TOKENS = ("@python", "@home", "@worker_socket", "@scratch")
OPTIONAL = "?"
"""Before a path: mount it where it is there, and say that it is absent where it is not."""

_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST = (1 << 63) - 1  # what a limit can be told to be, setrlimit(2)
_DURATIONS = {"s": 1, "m": 60, "h": 3600}


def _size(value: object) -> object:
    if isinstance(value, str):
        if not (match := re.fullmatch(r"([1-9][0-9]{0,9})([KMG]?)", value)):
            raise ValueError(f"{value!r} is not a size such as '512M'")
        return int(match[1]) * _SIZES[match[2]]
    return value


def _seconds(value: object) -> object:
    if isinstance(value, str):
        if not (match := re.fullmatch(r"([1-9][0-9]{0,6})([smh])", value)):
            raise ValueError(f"{value!r} is not a duration such as '60s'")
        return int(match[1]) * _DURATIONS[match[2]]
    return value


def _source(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.startswith("@"):
        if value not in TOKENS:
            raise ValueError(f"{value!r} is not one of the tokens {', '.join(TOKENS)}")
    elif not value.startswith("/") or "\0" in value or any(part in ("..", ".") for part in value.split("/")):
        raise ValueError(f"{value!r} is neither a token nor an absolute path without '.' and '..'")
    elif any(character in value for character in "*?["):
        raise ValueError(f"{value!r} is a pattern; name each path")
    else:
        # Written one way, so that one path is one thing to all who compare.
        return re.sub("/+", "/", value).rstrip("/") or "/"
    return value


def _maybe_source(value: object) -> object:
    if isinstance(value, str) and value.startswith(OPTIONAL):
        if not value.startswith(f"{OPTIONAL}/"):
            raise ValueError(f"{value!r}: only a path can be optional")
        return f"{OPTIONAL}{_source(value.removeprefix(OPTIONAL))}"
    return _source(value)


def _value(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("it should be a number, or the C name of one")  # noqa: TRY004 - what pydantic takes
    return value


def _errno_name(value: object) -> object:
    if isinstance(value, str) and not isinstance(vars(errno).get(value), int):
        raise ValueError(f"{value!r} is not the name of an errno")  # noqa: TRY004 - what pydantic takes
    return value


def _written(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=sorted)


Count = Annotated[int, Field(gt=0, le=_MOST)]
Size = Annotated[Count, BeforeValidator(_size)]
Seconds = Annotated[Count, BeforeValidator(_seconds)]
Source = Annotated[str, BeforeValidator(_source)]
MaybeSource = Annotated[str, BeforeValidator(_maybe_source)]
Errno = Annotated[str, BeforeValidator(_errno_name)]
Value = Annotated[str | int, BeforeValidator(_value)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Namespaces(_Table):
    """Which namespaces are the process's own, see namespaces(7); its mount namespace always is."""

    user: bool = Field(description="users and groups, in which it is one user without rights")
    net: bool = Field(description="network devices, addresses and abstract sockets")
    ipc: bool = Field(description="System V and POSIX message queues, semaphores and shared memory")
    uts: bool = Field(description="host and domain name")
    cgroup: bool = Field(description="the view of control groups")
    pid: bool = Field(description="process ids; the process is number 1 there and sees no other")


class Tmpfs(_Table):
    """A file system in memory: what is written there is gone with the process."""

    path: Source = Field(description="where it stands in the sandbox")
    size: Size = Field(description="bytes of its files")


class Filesystem(_Table):
    """All that the process sees; what is not named is not there."""

    read_only: list[MaybeSource] = Field(
        description="files and folders of the host, read-only; `?` before a path lets it be absent"
    )
    empty: list[Source] = Field(description="empty read-only folders")
    sockets: list[Source] = Field(description="unix sockets it can connect to")
    tmpfs: list[Tmpfs]
    proc: Literal["none", "own"] = Field(
        description="`own` mounts a /proc, which needs the pid namespace: without one it would be the host's"
    )


class Limits(_Table):
    """Resource limits, see getrlimit(2). Core dumps are always off."""

    address_space: Size = Field(description="bytes of memory a process may map")
    file_size: Size = Field(description="bytes of the largest file it may write")
    processes: Count = Field(description="processes and threads of its uid in its user namespace")
    open_files: Annotated[Count, Field(gt=2)] = Field(description="descriptors it may have open at once")
    cpu_time: Seconds = Field(description="seconds of processor time, then it is killed")


class Refusal(_Table):
    """A group of calls refused by name."""

    group: str = Field(description="`@` and the group's name")
    errno: Errno = Field(description="what each call of it answers: the name of an errno, see errno(3)")


class When(_Table):
    """A call allowed on a condition: one argument equal to one of some values, or having all of some bits.

    Values are numbers or the C names in `profiles/syscalls/constants.toml`. All else answers EPERM.
    """

    call: str = Field(description="the system call's name")
    argument: Annotated[int, Field(ge=0, le=5)] = Field(description="which argument, counted from 0")
    equals: list[Value] | None = Field(default=None, description="the values that allow the call")
    has: Value | None = Field(default=None, description="one value: all the bits of it must be set")


class Syscalls(_Table):
    """The system-call filter: an allow list, what is refused on purpose, and conditions on arguments."""

    default: Errno = Field(
        description="what a call answers that nothing here names: the name of an errno, see errno(3)"
    )
    allow: list[str] = Field(
        description="calls and `@groups`; `!call` takes one out of a group named before it"
    )
    refuse: list[Refusal]
    when: list[When] = []


class Profile(_Table):
    """A profile with everything it extends merged in, and where each value was said."""

    name: str
    description: str = Field(description="one sentence on what it is for")
    namespaces: Namespaces
    filesystem: Filesystem
    limits: Limits
    syscalls: Syscalls
    _said: Node = PrivateAttr()
    _chosen: dict[str, dict[str, groups.Word]] = PrivateAttr(default_factory=dict)
    _chain: tuple[str, ...] = PrivateAttr(default=())

    @property
    def digest(self) -> str:
        """SHA-256 of what it means, on every architecture: other words, units or order for the same change nothing.

        A token is not what it comes to on a host: `@scratch` and `/tmp` have two digests.
        """
        said = self.model_dump(exclude={"name", "description", "syscalls"})
        files = {
            key: sorted(map(_written, value)) for key, value in said["filesystem"].items() if key != "proc"
        }
        said["filesystem"] |= files
        said["syscalls"] = [dataclasses.asdict(groups.rules(self, arch)) for arch in groups.ARCHITECTURES]
        return hashlib.sha256(_written(said).encode()).hexdigest()

    @property
    def chain(self) -> tuple[str, ...]:
        """The names of the profiles it is merged from, the root first and itself last."""
        return self._chain

    def came_from(self, said: Node, chain: tuple[str, ...]) -> None:
        """Take in where the values were said; only who merged them knows."""
        self._said, self._chain = said, chain

    def chosen(self, arch: str) -> dict[str, groups.Word]:
        """Give the word that counts for each call on an architecture, found once; raises `ProfileError`."""
        if arch not in self._chosen:
            self._chosen[arch] = groups.chosen(self, arch)
        return self._chosen[arch]

    def written(self, path: tuple[str | int, ...]) -> object:
        """Give the value at a path as it was written: `512M` rather than bytes."""
        return self._said.nearest(path).plain()

    def origin(self, path: tuple[str | int, ...]) -> Origin:
        """Give where the value at a path was said; of the nearest table above it when nobody said that one."""
        return self._said.nearest(path).origin

    def removed(self, path: tuple[str | int, ...]) -> Mapping[object, Origin]:
        """Give what was taken away from the list at a path and not put back, by its name, with where."""
        return self._said.nearest(path).removed

    def rank(self, path: tuple[str | int, ...]) -> int:
        """Say how far down the chain the value at a path was said: the higher, the later, and the last word."""
        return self._chain.index(self.origin(path).profile)

    def values(self) -> Iterator[tuple[tuple[str | int, ...], object, Origin]]:
        """Give each value that is no table or list, by its path, with where it was said."""
        return self._said.leaves()

    def fault(self, path: tuple[str | int, ...], reason: str) -> ProfileError:
        """Make the error that says what is wrong with the value at a path, and where it was said."""
        return self._said.fault(path, reason)
