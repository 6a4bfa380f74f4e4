"""Profiles: what a person writes to say how a process is confined.

TOML, one file a profile. `extends` names a parent: tables merge by key, lists append, and `"!value"` in a list
takes an inherited value away. A profile holds nothing of one host's shape and nothing of one run; host things are
named by token (`@home`) and become paths in `bwrap.plan`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bwrap.errors import ProfileError

SHIPPED = Path(__file__).resolve().parent.parent / "profiles"
TOKENS = ("@python", "@home", "@worker_socket", "@scratch")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
_DEEPEST = 8
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
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
    return value


def _errno_name(value: object) -> object:
    if isinstance(value, str) and value not in vars(errno):
        raise ValueError(f"{value!r} is not the name of an errno")
    return value


Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Seconds = Annotated[int, BeforeValidator(_seconds), Field(gt=0)]
Source = Annotated[str, BeforeValidator(_source)]
Errno = Annotated[str, BeforeValidator(_errno_name)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Namespaces(_Table):
    """Which namespaces are the process's own, see namespaces(7); its mount namespace always is."""

    user: bool
    net: bool
    ipc: bool
    uts: bool
    cgroup: bool
    pid: bool


class Tmpfs(_Table):
    """A bounded file system in memory."""

    path: Source
    size: Size


class Filesystem(_Table):
    """All that the process sees; what is not named is not there."""

    read_only: list[Source]
    empty: list[Source]
    sockets: list[Source]
    tmpfs: list[Tmpfs]
    proc: Literal["none", "own"]


class Limits(_Table):
    """Resource limits, see getrlimit(2): bytes, counts and seconds. Core dumps are always off."""

    address_space: Size
    file_size: Size
    processes: Annotated[int, Field(gt=0)]
    open_files: Annotated[int, Field(gt=2)]
    cpu_time: Seconds


class Refusal(_Table):
    """A group of calls refused by name."""

    group: str
    errno: Errno


class When(_Table):
    """A call allowed on a condition: one argument equal to one of some values, or having all of some bits.

    Values are numbers or the C names in `profiles/syscalls/constants.toml`.
    """

    call: str
    argument: Annotated[int, Field(ge=0, le=5)]
    equals: list[str | int] | None = None
    has: str | int | None = None


class Syscalls(_Table):
    """The system-call filter: an allow list, what is refused on purpose, and conditions on arguments."""

    default: Errno
    allow: list[str]
    refuse: list[Refusal]
    when: list[When] = []


class Profile(_Table):
    """A profile with everything it extends merged in."""

    name: str
    description: str
    namespaces: Namespaces
    filesystem: Filesystem
    limits: Limits
    syscalls: Syscalls

    @property
    def digest(self) -> str:
        """SHA-256 of the resolved form: two profiles that say the same have the same digest."""
        said = self.model_dump(exclude={"name", "description"})
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def load(name: str, folders: Sequence[Path] = (SHIPPED,)) -> Profile:
    """Find a profile by name in the folders, first match wins, and merge what it extends.

    Raises `ProfileError` naming the file and the place in it.
    """
    merged, file = _merged(name, folders, ())
    try:
        return Profile.model_validate({**merged, "name": name})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ProfileError(file, place, first["msg"].removeprefix("Value error, ")) from None


def merge(parent: Mapping[str, Any], child: Mapping[str, Any], file: str, place: str = "") -> dict[str, Any]:
    """Lay a child's tables over its parent's; raises `ProfileError` for a removal of what is not there."""
    result = dict(parent)
    for key, value in child.items():
        here = f"{place}.{key}" if place else key
        inherited = parent.get(key)
        if isinstance(value, Mapping):
            base = inherited if isinstance(inherited, Mapping) else {}
            result[key] = merge(base, value, file, here)
        elif isinstance(value, list):
            result[key] = _appended(inherited if isinstance(inherited, list) else [], value, file, here)
        else:
            result[key] = value
    return result


def _appended(inherited: Iterable[Any], added: Iterable[Any], file: str, place: str) -> list[Any]:
    result = list(inherited)
    for value in added:
        if isinstance(value, str) and value.startswith("!"):
            if value[1:] not in result:
                raise ProfileError(file, place, f"{value!r} removes what is not inherited")
            result.remove(value[1:])
        elif value not in result:
            result.append(value)
    return result


def _merged(name: str, folders: Sequence[Path], below: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    if name in below:
        raise ProfileError(name, "extends", f"a cycle: {' -> '.join((*below, name))}")
    if len(below) >= _DEEPEST:
        raise ProfileError(name, "extends", f"more than {_DEEPEST} profiles deep: {' -> '.join(below)}")
    path = _find(name, folders)
    said = read_toml(path)
    parent = said.pop("extends", None)
    if "name" in said:
        raise ProfileError(str(path), "name", "a profile's name is its file's")
    if parent is None:
        return merge({}, said, str(path)), str(path)
    if not isinstance(parent, str):
        raise ProfileError(str(path), "extends", "must be the name of one profile")
    inherited, _ = _merged(parent, folders, (*below, name))
    return merge(inherited, said, str(path)), str(path)


def _find(name: str, folders: Sequence[Path]) -> Path:
    if not _NAME.fullmatch(name):
        raise ProfileError(
            repr(name), "", "a name is lower-case letters, digits and dashes, and begins with a letter"
        )
    for folder in folders:
        if (path := folder / f"{name}.toml").is_file():
            return path
    raise ProfileError(name, "", f"not found in {', '.join(str(folder) for folder in folders)}")


def read_toml(path: Path) -> dict[str, Any]:
    """Read one TOML file; raises `ProfileError` with the place of a syntax error."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(str(path), "", str(error)) from None
    except OSError as error:
        raise ProfileError(str(path), "", error.strerror or str(error)) from None
