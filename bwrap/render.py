"""A profile as people and programs read it: each value with where it was said, and the options and filter it means.

Nothing here decides anything: what is shown is taken from the profile, the plan and the compiled filter themselves.
"""

from __future__ import annotations

import errno
import shlex
from typing import TYPE_CHECKING, Any

from bwrap import arguments, floor, groups
from bwrap.errors import ProfileError
from bwrap.limits import resource_limits
from bwrap.lint import Severity, lint
from bwrap.merge import dotted
from bwrap.text import sized

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bwrap.document import Path
    from bwrap.library import Library
    from bwrap.plan import Plan
    from bwrap.profile import Profile
    from bwrap.seccomp import Condition, Filter

_WORD = 0xFFFFFFFF
_SIZES, _DURATIONS = {"address_space", "file_size", "size"}, {"cpu_time"}


def listed(library: Library) -> list[dict[str, Any]]:
    """Give every profile by name: shipped or own, what it is for, what it extends; one that cannot be used, why.

    `floor` is `ok` or `below`. A file of the user's that bears a shipped name is a row of its own, with its error.
    Raises `ProfileError` when the folder of the user's own cannot be read.
    """
    shipped, strays = library.shipped(), library.strays()
    return [
        *(_listed(library, name, "shipped") for name in shipped),
        *(
            _unusable(name, "own", strays[name]) if name in strays else _listed(library, name, "own")
            for name in sorted({*library.own(), *strays})
        ),
    ]


def described(profile: Profile, plan: Plan | None = None) -> dict[str, Any]:
    """Give a resolved profile as a document, sizes in bytes and durations in seconds.

    `extends` begins with its parent, and `remarks` is what `lint` says of it beside the breaches. With its plan on
    this host, what `rendered` gives stands in it too.
    """
    breaches = floor.breaches(profile)
    document = {
        "object": "profile",
        "name": profile.name,
        "description": profile.description,
        "extends": _extended(profile),
        "digest": profile.digest,
        "values": [
            {
                "path": dotted(path),
                "value": resolved(profile, path),
                "profile": origin.profile,
                "file": origin.document.file,
                "line": origin.document.place(origin.span).line,
            }
            for path, _, origin in profile.values()
        ],
        "floor": {
            "ok": not breaches,
            "breaches": [
                {"row": each.row.name, "layer": each.row.layer, **each.fault.wire()} for each in breaches
            ],
        },
        "remarks": [each.wire() for each in lint(profile) if each.severity is not Severity.BREACH],
    }
    return document if plan is None else {**document, **rendered(profile, plan)}


def rendered(profile: Profile, plan: Plan) -> dict[str, Any]:
    """Give what a plan comes to: bubblewrap's options a line each, the confined command, the limits, the filter.

    Descriptors stand in the options by name. The command goes on with what belongs to one launch alone.
    """
    options = arguments.arguments(plan)
    return {
        "argv": option_lines(options),
        "command": list(plan.command),
        "argv_digest": arguments.digest(options, plan.command),
        "limits": resource_limits(plan.limits),
        "absent": list(plan.absent),
        "filter": {
            "arch": plan.filter.arch,
            "digest": plan.filter.digest,
            "rules": filter_lines(profile, plan.filter),
        },
    }


def resolved(profile: Profile, path: Path) -> object:
    """Give the value at a path as the profile's models hold it: bytes, seconds, numbers, words."""
    value: Any = profile
    for step in path:
        value = getattr(value, step) if isinstance(step, str) else value[step]
    return value


def written(profile: Profile, path: Path, said: object) -> object:
    """Give the value at a path as a person writes it: a size as `512M`, a duration as `60s`, or as it was said."""
    value = resolved(profile, path)
    if isinstance(value, bool) or not isinstance(value, int) or isinstance(said, str):
        return said
    if path[-1] in _DURATIONS:
        return f"{value}s"
    return sized(value) if path[-1] in _SIZES else said


def option_lines(options: Iterable[str]) -> list[str]:
    """Give bubblewrap's options as a shell would read them, each with its values on a line of its own."""
    lines: list[list[str]] = []
    for option in options:
        # No value begins so: they are absolute paths, numbers, descriptors, and the texts of links at the root.
        if option.startswith("--"):
            lines.append([])
        lines[-1].append(option if option in arguments.DESCRIPTORS else shlex.quote(option))
    return [" ".join(line) for line in lines]


def filter_lines(profile: Profile, filter_: Filter) -> list[str]:
    """Give a filter's rules as pseudo-code: what is said of each call once, in the order in which it reads best."""
    rules = filter_.rules
    lines = [f"# Calls of another architecture of the same machine.\nunless {filter_.arch}: kill"]
    for reason, calls in by_group(rules.allow, filter_.arch):
        lines.append(f"# {reason}\nallow {', '.join(calls)}")
    for call, condition in sorted(rules.when.items()):
        other = errno.errorcode[condition.errno]
        lines.append(f"if {condition_text(profile, call, condition)}: allow, else {other}")
    for code in sorted(set(rules.refuse.values())):
        refused = [call for call, answer in rules.refuse.items() if answer == code]
        for reason, calls in by_group(refused, filter_.arch):
            lines.append(f"# {reason}\nrefuse {', '.join(calls)}: {errno.errorcode[code]}")
    lines.append(f"otherwise: {errno.errorcode[rules.default_errno]}")
    return "\n".join(lines).split("\n")


def _listed(library: Library, name: str, source: str) -> dict[str, Any]:
    try:
        profile = library.load(name)
    except ProfileError as error:
        return _unusable(name, source, error)
    return {
        "object": "profile",
        "name": name,
        "source": source,
        "description": profile.description,
        "extends": _extended(profile),
        "digest": profile.digest,
        "floor": "below" if floor.breaches(profile) else "ok",
        "error": None,
    }


def _unusable(name: str, source: str, error: ProfileError) -> dict[str, Any]:
    return {
        "object": "profile",
        "name": name,
        "source": source,
        "description": None,
        "extends": [],
        "digest": None,
        "floor": None,
        "error": {"message": str(error), **error.wire()},
    }


def _extended(profile: Profile) -> list[str]:
    return list(reversed(profile.chain[:-1]))


def by_group(calls: Iterable[str], arch: str) -> Iterator[tuple[str, list[str]]]:
    """Give calls by the shipped group that lists them, with its name and reason; last those of no group."""
    left = set(calls)
    for name, group in groups.groups().items():
        if mine := sorted(left.intersection(group.on(arch))):
            left.difference_update(mine)
            yield f"@{name}: {group.reason}", mine
    if left:
        yield "Named by the profile itself.", sorted(left)


def condition_text(profile: Profile, call: str, condition: Condition) -> str:
    """Give a condition as pseudo-code: `ioctl(argument 1 in (TCGETS, FIOCLEX))`."""
    words = {value: word for word, value in _constants(profile, call)}
    given = f"{call}(argument {condition.argument}"
    values = [words.get(value, str(value)) for mask, value in condition.alternatives]
    if any(mask != _WORD for mask, _ in condition.alternatives):
        return f"{given} has {' or '.join(values)})"
    return f"{given} == {values[0]})" if len(values) == 1 else f"{given} in ({', '.join(values)}))"


def _constants(profile: Profile, call: str) -> Iterator[tuple[str, int]]:
    """Give the C names that a profile uses for the arguments of a call, with their values."""
    for row in profile.syscalls.when:
        if row.call == call:
            for word in [*(row.equals or ()), row.has]:
                if isinstance(word, str):
                    yield word, groups.constants()[word]
