"""What changes in meaning from one profile to another: not their words, but what a process under them may do.

Each thing that a profile decides is a fact with a name, so that two profiles can be laid side by side whatever they
extend; a call is one fact, however many words and groups say it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from bwrap import groups, lines, render, seccomp
from bwrap.profile import OPTIONAL, Limits, Namespaces
from bwrap.text import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bwrap.document import Path
    from bwrap.profile import Profile


_ANY_CALL = "syscalls (any other)"


class Direction(StrEnum):
    """Whether a change lets a process do more, or less, or something else."""

    WIDER = "wider"
    NARROWER = "narrower"
    OTHER = "other"

    @property
    def mark(self) -> str:
        """Give the sign that stands before it in a table."""
        return {"wider": "+", "narrower": "-", "other": "~"}[self]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing a profile decides: in words, where it was said (None by nobody), and what it is compared by.

    Of two weights the greater is the wider; sets are compared as sets, so that neither of two may be.
    """

    value: str
    place: str | None
    weight: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing on which two profiles differ; None where the one has nothing to say of it."""

    name: str
    before: Fact | None
    after: Fact | None
    direction: Direction
    taken_away: str | None = None
    """Where the later profile takes away what the earlier one has, if it has no fact of its own for it."""

    @property
    def place(self) -> str | None:
        """Where the later profile says it, or takes it away; else where the earlier one says it."""
        after = self.taken_away if self.after is None else self.after.place
        return after or (None if self.before is None else self.before.place)

    def wire(self) -> dict[str, Any]:
        """Give it by name, for answers."""
        return {
            "name": self.name,
            "direction": str(self.direction),
            "before": None if self.before is None else self.before.value,
            "after": None if self.after is None else self.after.value,
            "before_place": None if self.before is None else self.before.place,
            "after_place": self.taken_away if self.after is None else self.after.place,
        }


def differences(before: Profile, after: Profile) -> list[Difference]:
    """Give what changes from one profile to the other, on this machine's architecture, in the order of a profile."""
    one, other = facts(before), facts(after)
    lost, gone = taken_away(before), taken_away(after)
    found = []
    for name in _ordered(one, other):
        left, right = _fact(one, name, lost), _fact(other, name, gone)
        if _meaning(left) != _meaning(right):
            found.append(Difference(name, left, right, _direction(name, left, right), gone.get(name)))
    return found


def taken_away(profile: Profile) -> dict[str, str]:
    """Give where a profile, or one it extends, takes away what another had given, by the name of the fact."""
    found = {}
    for key in ("read_only", "sockets", "empty", "tmpfs"):
        for name, origin in profile.removed(("filesystem", key)).items():
            found[f"filesystem.{key} {str(name).removeprefix(OPTIONAL)}"] = origin.place
    arch = seccomp.architecture()
    for name, origin in profile.removed(("syscalls", "refuse")).items():
        found |= {f"syscalls {call}": origin.place for call in groups.calls_of(str(name)[1:], arch)}
    for name, origin in profile.removed(("syscalls", "when")).items():
        found[f"syscalls {name}"] = origin.place
    for call, path in groups.removed(profile, arch).items():
        found[f"syscalls {call}"] = place(profile, path)
    return found


def facts(profile: Profile) -> dict[str, Fact]:
    """Give all that a profile decides by name; raises `seccomp.FilterError` on a machine without filters."""
    return dict((*_namespaces(profile), *_files(profile), *_limits(profile), *_calls(profile)))


def listing(profile: Profile) -> list[str]:
    """Give all that a profile decides, a line each, sorted as in a profile."""
    return [f"{name} = {fact.value}" for name, fact in facts(profile).items()]


def option_differences(before: Sequence[str], after: Sequence[str]) -> list[tuple[str, str]]:
    """Give the options that only one of two command lines has, each with `-` or `+`, in their order."""
    return [
        *(("-", each) for each in before if each not in after),
        *(("+", each) for each in after if each not in before),
    ]


def place(profile: Profile, path: Path) -> str:
    """Give where a value was said, with its line."""
    return profile.origin(path).place


def _namespaces(profile: Profile) -> Iterator[tuple[str, Fact]]:
    for name in Namespaces.model_fields:
        own = getattr(profile.namespaces, name)
        yield (
            f"namespaces.{name}",
            Fact("its own" if own else "the host's", place(profile, ("namespaces", name)), not own),
        )


def _files(profile: Profile) -> Iterator[tuple[str, Fact]]:
    said = profile.filesystem
    for key in ("read_only", "sockets"):
        for index, text in enumerate(getattr(said, key)):
            value = "shown where it is there" if text.startswith(OPTIONAL) else "shown"
            where = place(profile, ("filesystem", key, index))
            yield (
                f"filesystem.{key} {text.removeprefix(OPTIONAL)}",
                Fact(value, where, not text.startswith(OPTIONAL)),
            )
    for index, text in enumerate(said.empty):
        yield (
            f"filesystem.empty {text}",
            Fact("an empty folder", place(profile, ("filesystem", "empty", index)), 0),
        )
    for index, each in enumerate(said.tmpfs):
        where = place(profile, ("filesystem", "tmpfs", index, "size"))
        yield (
            f"filesystem.tmpfs {each.path}",
            Fact(f"writable, {sized(each.size)} in memory", where, each.size),
        )
    yield "filesystem.proc", Fact(said.proc, place(profile, ("filesystem", "proc")), said.proc == "own")


def _limits(profile: Profile) -> Iterator[tuple[str, Fact]]:
    for key in Limits.model_fields:
        value = getattr(profile.limits, key)
        yield (
            f"limits.{key}",
            Fact(lines.written_limit(key, value).strip('"'), place(profile, ("limits", key)), value),
        )


def _calls(profile: Profile) -> Iterator[tuple[str, Fact]]:
    arch = seccomp.architecture()
    rules = groups.rules(profile, arch)
    for call, word in sorted(profile.chosen(arch).items()):
        where = place(profile, word.path)
        if word.means is None:
            yield f"syscalls {call}", Fact("allowed", where, None)
        elif isinstance(word.means, int):
            yield f"syscalls {call}", Fact(f"refused: {errno.errorcode[word.means]}", where, frozenset())
        else:
            text = render.condition_text(profile, call, word.means).removeprefix(f"{call}(").removesuffix(")")
            found = frozenset((word.means.argument, *pair) for pair in word.means.alternatives)
            yield f"syscalls {call}", Fact(f"allowed if {text}", where, found)
    default = errno.errorcode[rules.default_errno]
    yield _ANY_CALL, Fact(f"refused: {default}", place(profile, ("syscalls", "default")), frozenset())


def _ordered(one: Mapping[str, Fact], other: Mapping[str, Fact]) -> list[str]:
    """Give every name once, those of the other beside their own kind."""
    order = ["namespaces", "filesystem", "limits", "syscalls"]
    names = dict.fromkeys((*one, *other))
    return sorted(names, key=lambda name: order.index(name.partition(" ")[0].partition(".")[0]))


def _fact(known: Mapping[str, Fact], name: str, removed: Mapping[str, str]) -> Fact | None:
    """Give a fact by name; a call that nobody names, or somebody takes away, is answered as any other."""
    if name in known or not name.startswith("syscalls "):
        return known.get(name)
    return replace(known[_ANY_CALL], place=removed.get(name, known[_ANY_CALL].place))


def _meaning(fact: Fact | None) -> object:
    return None if fact is None else (fact.value, fact.weight)


def _direction(name: str, before: Fact | None, after: Fact | None) -> Direction:
    if name.startswith("syscalls "):
        return _of_calls(before, after)
    if before is None or after is None:
        # An empty folder hides what would stand there; all else that is named can be reached.
        wider = (before is None) != name.startswith("filesystem.empty")
        return Direction.WIDER if wider else Direction.NARROWER
    return _compared(before.weight, after.weight, lambda one, other: one < other)


def _of_calls(before: Fact | None, after: Fact | None) -> Direction:
    """Compare the sets of arguments that let a call through; None is all of them."""
    one, other = (frozenset() if fact is None else fact.weight for fact in (before, after))
    if one is None or other is None:
        return Direction.NARROWER if one is None else Direction.WIDER
    return _compared(one, other, lambda left, right: left < right)


def _compared(one: Any, other: Any, is_less: Callable[[Any, Any], bool]) -> Direction:
    if is_less(one, other):
        return Direction.WIDER
    return Direction.NARROWER if is_less(other, one) else Direction.OTHER
