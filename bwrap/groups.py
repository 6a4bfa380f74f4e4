"""From a profile's words on system calls to rules with every group expanded and every constant a number."""

from __future__ import annotations

import errno
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bwrap import seccomp
from bwrap.document import Document
from bwrap.errors import ProfileError
from bwrap.merge import REMOVES, suggestion
from bwrap.seccomp import Condition, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bwrap.document import Path as Place
    from bwrap.profile import Profile, When

FOLDER = Path(__file__).resolve().parent.parent / "profiles" / "syscalls"
ALLOWED, REFUSED = "allowed.toml", "refused.toml"
ARCHITECTURES = ("x86_64", "aarch64")

MOST_VALUES = 48
"""In all conditions of a profile. Each is compiled to some comparisons and each bit of it tried, which adds up."""

_WORD = 0xFFFFFFFF


class Group(BaseModel):
    """A named list of calls (or of other groups) and why they belong together; `file` is the one it stands in."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    file: str
    reason: Annotated[str, Field(min_length=10)]
    calls: list[str]
    x86_64: list[str] = []
    aarch64: list[str] = []

    def on(self, arch: str) -> list[str]:
        """Give the names it has on one architecture."""
        return [*self.calls, *(self.x86_64 if arch == "x86_64" else self.aarch64)]


def rules(profile: Profile, arch: str) -> Rules:
    """Give the rules a profile means on one architecture; raises `ProfileError` with the place of what it says.

    Of several words on one call the one furthest down the chain of profiles counts, and within one profile the call's
    own name before a group. Two such words that mean different things are an error.
    """
    words = profile.chosen(arch).values()
    return Rules(
        int(getattr(errno, profile.syscalls.default)),
        frozenset(word.call for word in words if word.means is None),
        {word.call: word.means for word in words if isinstance(word.means, int)},
        {word.call: word.means for word in words if isinstance(word.means, Condition)},
    )


def chosen(profile: Profile, arch: str) -> dict[str, Word]:
    """Find the word that counts for each call, which `Profile.chosen` keeps; raises `ProfileError`."""
    return _Words(profile, arch).chosen()


def removed(profile: Profile, arch: str) -> dict[str, Place]:
    """Give each call that some word allowed and a later one of `allow` takes back, with the path of that one."""
    return _Words(profile, arch).removed()


def origin(profile: Profile, call: str) -> Place:
    """Give the path of the word by which a profile decides a call; raises `KeyError` for one it does not name."""
    for arch in ARCHITECTURES:
        if word := profile.chosen(arch).get(call):
            return word.path
    raise KeyError(call)


def alternatives(profile: Profile, call: str) -> Iterator[tuple[tuple[int, int], tuple[Place, str | int]]]:
    """Give each (mask, value) pair by which a profile allows a call on a condition, with the word that says it."""
    for index, row in enumerate(profile.syscalls.when):
        if row.call == call:
            path: Place = ("syscalls", "when", index)
            if row.has is not None:
                yield (number(row.has), number(row.has)), ((*path, "has"), row.has)
            for at, value in enumerate(row.equals or ()):
                yield (_WORD, number(value)), ((*path, "equals", at), value)


def number(value: str | int) -> int:
    """Give the number that a value of a condition stands for; raises `KeyError` for a name that is not known."""
    return value if isinstance(value, int) else constants()[value]


@functools.cache
def groups() -> dict[str, Group]:
    """Read every shipped group by name (without the `@`); raises `ProfileError`."""
    found: dict[str, Group] = {}
    for path in (FOLDER / ALLOWED, FOLDER / REFUSED):
        document = Document(str(path), path.read_bytes())
        for name, said in document.values.items():
            if name in found:
                raise ProfileError(str(path), name, "the group is defined twice")
            try:
                found[name] = Group.model_validate(
                    {**said, "file": path.name} if isinstance(said, dict) else said
                )
            except ValidationError as error:
                raise ProfileError(str(path), name, error.errors(include_url=False)[0]["msg"]) from None
    return found


@functools.cache
def constants() -> dict[str, int]:
    """Read the C names that conditions may use."""
    path = FOLDER / "constants.toml"
    found: dict[str, int] = {}
    for header, table in Document(str(path), path.read_bytes()).values.items():
        for name, value in table.items():
            if type(value) is not int or not 0 <= value <= _WORD:
                raise ProfileError(str(path), f"{header}.{name}", "a constant is a number of at most 32 bits")
            found[name] = value
    return found


def allowable() -> frozenset[str]:
    """Give every call of the groups a profile may allow, on either architecture."""
    return frozenset(
        call
        for arch in ARCHITECTURES
        for name, group in groups().items()
        if group.file == ALLOWED
        for call in calls_of(name, arch)
    )


def calls_of(name: str, arch: str) -> list[str]:
    """Expand a shipped group (without the `@`) on one architecture; raises `ProfileError` for a cycle."""
    return _expand(f"@{name}", arch, ())


def _expand(name: str, arch: str, above: tuple[str, ...]) -> list[str]:
    if not name.startswith("@"):
        return [name]
    if name in above:
        raise ProfileError(str(FOLDER), name, f"the groups {' -> '.join((*above, name))} are a cycle")
    if name[1:] not in groups():
        raise ProfileError(str(FOLDER), above[-1] if above else name, f"there is no group {name!r}")
    return [call for inner in groups()[name[1:]].on(arch) for call in _expand(inner, arch, (*above, name))]


class Word(NamedTuple):
    """What an entry of a profile says of one call, in which words, where, and how much they count.

    It allows the call (None), refuses it with an errno, or allows it on a condition.
    """

    call: str
    means: int | Condition | None
    said: str
    path: Place
    weight: tuple[int, bool]

    def __str__(self) -> str:
        """Say what it means for the call."""
        if isinstance(self.means, int):
            return f"refused with {errno.errorcode[self.means]} by {self.said!r}"
        return f"allowed {'' if self.means is None else 'on a condition '}by {self.said!r}"


class _Words:
    """All that one profile says of calls on one architecture."""

    def __init__(self, profile: Profile, arch: str) -> None:
        self._profile, self._arch, self._said = profile, arch, profile.syscalls
        self._taken: dict[str, Place] = {}

    def removed(self) -> dict[str, Place]:
        allowed = self._allowed()
        return {call: path for call, path in self._taken.items() if call not in allowed}

    def chosen(self) -> dict[str, Word]:
        found: dict[str, Word] = {}
        for word in self._all():
            other = found.get(word.call)
            if other is None or word.weight > other.weight:
                found[word.call] = word
            elif word.weight == other.weight and word.means != other.means:
                reason = f"the call {word.call!r} is {other} and {word}: take one of them away"
                raise self._profile.fault(word.path, reason)
        return found

    def _all(self) -> Iterator[Word]:
        yield from self._allowed().values()
        for index, row in enumerate(self._said.refuse):
            path: Place = ("syscalls", "refuse", index, "group")
            if not row.group.startswith("@"):
                raise self._profile.fault(path, f"{row.group!r} is no group: a group's name begins with '@'")
            yield from self._words(int(getattr(errno, row.errno)), row.group, path)
        values = 0
        for index, condition in enumerate(self._said.when):
            path = ("syscalls", "when", index)
            values += len(condition.equals or ("has",))
            if values > MOST_VALUES:
                reason = f"the conditions of a profile compare at most {MOST_VALUES} values in all"
                raise self._profile.fault(path, reason)
            if condition.call.startswith("@"):
                raise self._profile.fault((*path, "call"), "a condition is on one call, not on a group")
            self._calls(condition.call, (*path, "call"))
            yield from self._words(self._condition(condition, path), condition.call, path)

    def _allowed(self) -> dict[str, Word]:
        """Read what is allowed in its order; a removal takes back a group named before it, or a call however named."""
        given: dict[str, dict[str, Word]] = {}
        for index, name in enumerate(self._said.allow):
            path = ("syscalls", "allow", index)
            if not name.startswith(REMOVES):
                given[name] = {word.call: word for word in self._words(None, name, path)}
                continue
            removed = name.removeprefix(REMOVES)
            if removed.startswith("@") and (group := given.pop(removed, None)) is not None:
                self._taken.update(dict.fromkeys(group, path))
                continue
            for call in self._calls(removed, path):
                if not [word for words in given.values() if (word := words.pop(call, None))]:
                    raise self._profile.fault(path, f"{name!r} removes what is not allowed before it")
                self._taken[call] = path
        found: dict[str, Word] = {}
        for word in (word for words in given.values() for word in words.values()):
            if word.call not in found or word.weight > found[word.call].weight:
                found[word.call] = word
        return found

    def _words(self, means: int | Condition | None, said: str, path: Place) -> Iterator[Word]:
        weight = (self._profile.rank(path), not said.startswith("@"))
        return (Word(call, means, said, path, weight) for call in self._calls(said, path))

    def _condition(self, row: When, path: Place) -> Condition:
        if (row.equals is None) == (row.has is None):
            raise self._profile.fault(path, "say either 'equals' or 'has'")
        if row.has is not None:
            bits = self._value((*path, "has"), row.has)
            if bits == 0:
                raise self._profile.fault((*path, "has"), "no bit at all is no condition")
            return Condition(row.argument, ((bits, bits),))
        values = {
            self._value((*path, "equals", index), value) for index, value in enumerate(row.equals or ())
        }
        if not values:
            raise self._profile.fault((*path, "equals"), "nothing is equal to one of no values")
        return Condition(row.argument, tuple((_WORD, value) for value in sorted(values)))

    def _calls(self, name: str, path: Place) -> list[str]:
        if name.startswith("@"):
            if name[1:] not in groups():
                near = suggestion(name, [f"@{each}" for each in groups()])
                raise self._profile.fault(path, f"there is no group {name!r}{near}")
            return calls_of(name[1:], self._arch)
        if name in seccomp.names(self._arch):
            return [name]
        if any(name in seccomp.names(arch) for arch in ARCHITECTURES):
            return []  # the other architecture's alone: there is nothing here to allow or to refuse
        known = set().union(*(seccomp.names(arch) for arch in ARCHITECTURES))
        raise self._profile.fault(path, f"there is no system call {name!r}{suggestion(name, known)}")

    def _value(self, path: Place, said: str | int) -> int:
        if isinstance(said, int):
            if not 0 <= said <= _WORD:
                raise self._profile.fault(path, f"{said} does not fit in the 32 bits that are compared")
            return said
        if said not in constants():
            near = suggestion(said, constants())
            raise self._profile.fault(path, f"{said!r} is not in profiles/syscalls/constants.toml{near}")
        return constants()[said]
