"""The smallest set of lines under which a command runs as it ran free: from what it used, to what it cannot do without.

What a command uses is more than it needs: libc asks for much and does without. So a draft begins with all that was
used and may be allowed, takes in what a confined run was refused on top of it, and then loses every line without which
the command still does the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bwrap import lines, sources
from bwrap.errors import LayerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bwrap.advice import Advice, Adviser
    from bwrap.lines import Line
    from bwrap.refusals import Refused

ROUNDS = 3
"""How often a draft may be added to."""

MOST_RUNS = 100
"""Confined runs of one draft in all: enough to take away each of some thirty lines."""

_MANY = 8
"""Files of one folder from which on the folder is shown in their place."""

_SHALLOWEST = 2
"""Names in the path of a folder that may be shown whole: never `/etc` or `/usr`."""


class Attempt(Protocol):
    """Runs the command under some lines: whether it did what it did free, and if watched what it was refused."""

    def __call__(self, drafted: Sequence[Line], *, watched: bool) -> tuple[bool, list[Refused]]:
        """Run it once."""


@dataclass(slots=True)
class Draft:
    """Lines for a profile; whether the command did the same under them, whether none can go, and what is refused."""

    lines: list[Line]
    same: bool = False
    smallest: bool = False
    refused: list[Refused] = field(default_factory=list)
    runs: int = 0


class _TooManyRunsError(Exception):
    """The runs that a draft may take are used up."""


def draft(first: Iterable[Line], kept: Sequence[Line], adviser: Adviser, attempt: Attempt) -> Draft:
    """Give the smallest draft that begins with some lines, all of which may be allowed, and keeps some in any case.

    Raises what `attempt` does.
    """
    used = [each for each in dict.fromkeys(first) if each not in kept]
    found = Draft(used)
    _grow(found, kept, adviser, attempt)
    if not found.same and used:
        # More than it needs can be too much: a library that is found may ask for what is forbidden.
        less = Draft([], runs=found.runs)
        _grow(less, kept, adviser, attempt)
        found = less if less.same else Draft(found.lines, refused=found.refused, runs=less.runs)
    if found.same:
        _shrink(found, kept, attempt)
        # Once more, to see what it is refused under the draft as it is, and does without.
        found.runs += 1
        found.same, found.refused = attempt([*kept, *found.lines], watched=True)
    found.lines = [*kept, *found.lines]
    return found


def smallest(whole: Sequence[Line], works: Callable[[list[Line]], bool]) -> list[Line]:
    """Give lines of which none can go: first halves are left out, then quarters, at last each line (ddmin).

    `works` says whether some lines suffice; all of them do.
    """
    kept, pieces = list(whole), 2
    if not kept or works([]):
        return []
    while len(kept) > 1:
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            rest = [*kept[:start], *kept[start + size :]]
            if works(rest):
                kept, pieces = rest, max(2, pieces - 1)
                break
        else:
            if pieces >= len(kept):
                break
            pieces = min(2 * pieces, len(kept))
    return kept


def sources_of(opened: Iterable[str], shown: Iterable[str], never: Sequence[str]) -> list[str]:
    """Give what to show for files that were opened and are not shown: each, or a folder where many lie in it.

    A folder is never one of `never` or what holds one of them, nor one near the root, nor one that this host could not
    show.
    """
    within = tuple(shown)
    # One name of each: /lib/x and /usr/lib/x are one place in a sandbox as well, where /lib is a link at the root.
    settled: dict[str, str] = {}
    for path in opened:
        # Its root every process has, and it is nothing of the host's.
        if path != "/" and os.path.exists(path):
            settled.setdefault(
                os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path)), path
            )
    paths = [
        path for place, path in settled.items() if not any(sources.within(place, each) for each in within)
    ]
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        by_folder.setdefault(os.path.dirname(path), []).append(path)
    found: dict[str, None] = {}
    for folder, beneath in by_folder.items():
        many = len(beneath) >= _MANY and _may_be_whole(folder, never)
        found.update(dict.fromkeys([folder] if many else beneath))
    return [path for path in found if not any(sources.within(path, each) for each in found if each != path)]


def judged(
    candidates: Iterable[Line], kept: Sequence[Line], adviser: Adviser
) -> tuple[list[Line], list[tuple[Line, Advice]]]:
    """Give the lines that a profile may have together with those kept, and the others each with what forbids it."""
    may: list[Line] = []
    forbidden = []
    for line in dict.fromkeys(candidates):
        advice = adviser.judge(line, [*kept, *may])
        if advice.line is None:
            forbidden.append((line, advice))
        else:
            may.append(line)
    return may, forbidden


def text(extends: str, description: str, drafted: Iterable[Line], remarks: Iterable[str]) -> str:
    """Give a draft as a profile; each remark stands as a comment before it."""
    said = lines.document(drafted)
    return "".join(
        [
            *(f"# {remark}\n" for remark in remarks),
            f"extends = {lines.quoted(extends)}\n",
            f"description = {lines.quoted(description)}\n",
            f"\n{said}" if said else "",
        ]
    )


def _grow(found: Draft, kept: Sequence[Line], adviser: Adviser, attempt: Attempt) -> None:
    """Add what the command is refused and may be allowed, until it does the same or there is nothing to add."""
    for left in reversed(range(ROUNDS + 1)):
        found.runs += 1
        found.same, found.refused = attempt([*kept, *found.lines], watched=True)
        if found.same or not left:
            return
        before = found.lines
        for row in found.refused:
            line = adviser.on(row, [*kept, *found.lines]).line
            if line is not None and line not in (*kept, *found.lines):
                found.lines = _with(found.lines, line)
        if found.lines == before:
            return


def _shrink(found: Draft, kept: Sequence[Line], attempt: Attempt) -> None:
    least = found.lines

    def works(some: list[Line]) -> bool:
        nonlocal least
        if found.runs >= MOST_RUNS:
            raise _TooManyRunsError
        found.runs += 1
        same, _ = attempt([*kept, *some], watched=False)
        if same:
            least = some
        return same

    try:
        found.lines = smallest(found.lines, works)
        found.smallest = True
    except _TooManyRunsError:
        found.lines = least


def _with(drafted: list[Line], added: Line) -> list[Line]:
    """Lay a line over a draft; of two values for one limit the later counts."""
    limit = added.key if added.table == "limits" else None
    return [*(each for each in drafted if each.table != "limits" or each.key != limit), added]


def _may_be_whole(folder: str, never: Sequence[str]) -> bool:
    if len(folder.strip("/").split("/")) < _SHALLOWEST:
        return False
    if any(sources.within(each, folder) for each in never):
        return False
    try:
        sources.require(folder, never[0])
    except LayerError:
        return False
    return True
