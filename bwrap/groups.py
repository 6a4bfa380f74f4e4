"""From a profile's words on system calls to rules with every group expanded and every constant a number."""

from __future__ import annotations

import errno
import functools
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bwrap.errors import ProfileError
from bwrap.profile import SHIPPED, Profile, When, read_toml
from bwrap.seccomp import Condition, Rules

_WORD = 0xFFFFFFFF


class Group(BaseModel):
    """A named list of calls (or of other groups) and why they belong together."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    reason: Annotated[str, Field(min_length=10)]
    calls: list[str]
    x86_64: list[str] = []
    aarch64: list[str] = []


def rules(profile: Profile, arch: str) -> Rules:
    """Give the rules a profile means on one architecture; raises `ProfileError`."""
    said = profile.syscalls
    when = {row.call: _condition(profile.name, row) for row in said.when}
    if len(when) != len(said.when):
        raise ProfileError(profile.name, "syscalls.when", "two conditions on one call: say them as one row")
    allow = frozenset(call for name in said.allow for call in _calls(profile.name, name, arch))
    refuse = {
        call: int(getattr(errno, row.errno))
        for row in said.refuse
        for call in _calls(profile.name, row.group, arch)
    }
    return Rules(int(getattr(errno, said.default)), allow, refuse, when)


@functools.cache
def groups() -> dict[str, Group]:
    """Read every shipped group by name (without the `@`); raises `ProfileError`."""
    found: dict[str, Group] = {}
    for path in (SHIPPED / "syscalls" / "allowed.toml", SHIPPED / "syscalls" / "refused.toml"):
        for name, said in read_toml(path).items():
            if name in found:
                raise ProfileError(str(path), name, "the group is defined twice")
            try:
                found[name] = Group.model_validate(said)
            except ValidationError as error:
                raise ProfileError(str(path), name, error.errors(include_url=False)[0]["msg"]) from None
    return found


@functools.cache
def constants() -> dict[str, int]:
    """Read the C names that conditions may use."""
    path = SHIPPED / "syscalls" / "constants.toml"
    found: dict[str, int] = {}
    for header, table in read_toml(path).items():
        for name, value in table.items():
            if type(value) is not int or not 0 <= value <= _WORD:
                raise ProfileError(str(path), f"{header}.{name}", "a constant is a number of at most 32 bits")
            found[name] = value
    return found


def _calls(profile: str, name: str, arch: str, above: tuple[str, ...] = ()) -> list[str]:
    if not name.startswith("@"):
        return [name]
    group = groups().get(name[1:])
    if group is None:
        raise ProfileError(profile, "syscalls", f"there is no group {name!r}")
    if name in above:
        raise ProfileError(profile, "syscalls", f"the groups {' -> '.join((*above, name))} are a cycle")
    named = [*group.calls, *(group.x86_64 if arch == "x86_64" else group.aarch64)]
    return [call for inner in named for call in _calls(profile, inner, arch, (*above, name))]


def _condition(profile: str, row: When) -> Condition:
    place = f"syscalls.when ({row.call})"
    if (row.equals is None) == (row.has is None):
        raise ProfileError(profile, place, "say either 'equals' or 'has'")
    if row.has is not None:
        bits = _value(profile, place, row.has)
        return Condition(row.argument, ((bits, bits),))
    values = dict.fromkeys(_value(profile, place, value) for value in row.equals or ())
    return Condition(row.argument, tuple((_WORD, value) for value in values))


def _value(profile: str, place: str, said: str | int) -> int:
    if isinstance(said, int):
        return said
    if said not in constants():
        raise ProfileError(
            profile, place, f"the constant {said!r} is not in profiles/syscalls/constants.toml"
        )
    return constants()[said]
