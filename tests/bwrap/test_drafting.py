from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bwrap import drafting, lines
from bwrap.advice import Adviser
from bwrap.library import Library
from bwrap.plan import Places
from bwrap.refusals import Refused
from tests.bwrap.stage import examine

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from bwrap.lines import Line

LIBRARY = Library()
CALLS = [
    lines.allow(call) for call in ("uname", "getcwd", "sysinfo", "dup", "umask", "times", "statfs", "statx")
]


def adviser() -> Adviser:
    return Adviser(LIBRARY.load("worker"), LIBRARY.draft, examine(), Places("/no/home", "/no/socket"))


class Command:
    """A command that runs as it should when it has what it needs and nothing of what it cannot stand."""

    def __init__(self, needs: Collection[Line], fails_with: Collection[Line] = ()) -> None:
        self.needs, self.fails_with, self.runs = needs, fails_with, 0

    def __call__(self, drafted: Sequence[Line], *, watched: bool) -> tuple[bool, list[Refused]]:
        self.runs += 1
        lacking = [line for line in self.needs if line not in drafted]
        same = not lacking and not any(line in drafted for line in self.fails_with)
        # It meets one refusal after the other, as a program that gives up at the first.
        met = [Refused("syscalls", str(line), "EPERM", 1, line) for line in lacking[:1]]
        return same, met if watched else []


@given(st.sets(st.sampled_from(range(40))), st.sets(st.sampled_from(range(40))))
def test_what_is_left_works_and_nothing_of_it_can_go(needed: set[int], more: set[int]) -> None:
    asked = []

    def works(some: list[Line]) -> bool:
        asked.append(some)
        return {lines.limit("open_files", number) for number in needed} <= set(some)

    whole = [lines.limit("open_files", number) for number in sorted(needed | more)]
    left = drafting.smallest(whole, works)
    assert set(left) == {lines.limit("open_files", number) for number in needed}
    assert [line for line in whole if line in left] == left


def test_a_draft_is_what_is_needed_of_what_was_used() -> None:
    command = Command(CALLS[2:4])
    found = drafting.draft(CALLS, [], adviser(), command)
    assert (found.lines, found.same, found.smallest) == (CALLS[2:4], True, True)
    assert found.runs == command.runs


def test_what_only_a_confined_run_shows_to_be_needed_is_added() -> None:
    found = drafting.draft([CALLS[0]], [], adviser(), Command([CALLS[1], CALLS[2], CALLS[3]]))
    assert (set(found.lines), found.smallest) == (set(CALLS[1:4]), True)


def test_a_draft_is_added_to_three_times_and_no_more() -> None:
    command = Command(CALLS[:5])
    found = drafting.draft([], [], adviser(), command)
    assert (found.same, found.smallest, command.runs) == (False, False, 1 + drafting.ROUNDS)


def test_what_the_floor_forbids_is_never_added() -> None:
    command = Command([lines.allow("ptrace")])
    found = drafting.draft([], [], adviser(), command)
    assert (found.lines, found.same, command.runs) == ([], False, 1)
    assert [row.line for row in found.refused] == [lines.allow("ptrace")]


def test_what_is_too_much_is_drafted_from_nothing() -> None:
    found = drafting.draft(CALLS, [], adviser(), Command(CALLS[:2], fails_with=CALLS[7:]))
    assert (set(found.lines), found.same) == (set(CALLS[:2]), True)


def test_what_is_asked_for_is_kept_though_it_is_not_needed() -> None:
    found = drafting.draft(CALLS, [lines.show("/etc/passwd")], adviser(), Command(CALLS[:1]))
    assert found.lines == [lines.show("/etc/passwd"), CALLS[0]]


def test_runs_come_to_an_end_and_then_nothing_is_said_of_what_is_needed() -> None:
    many = [lines.limit("open_files", number) for number in range(200)]
    command = Command(many[::2])
    found = drafting.draft(many, [], adviser(), command)
    assert (found.same, found.smallest) == (True, False)
    assert set(many[::2]) <= set(found.lines)
    assert command.runs == found.runs <= drafting.MOST_RUNS + 1


def test_lines_are_judged_beside_those_before_them() -> None:
    wanted = [lines.folder_in_memory("/etc"), lines.show("/etc/passwd"), lines.allow("ptrace"), CALLS[0]]
    may, forbidden = drafting.judged(wanted, [], adviser())
    assert may == [wanted[0], wanted[3]]
    assert [(line, advice.floor) for line, advice in forbidden] == [(wanted[1], None), (wanted[2], "@trace")]


def test_a_draft_is_a_profile_with_its_remarks() -> None:
    text = drafting.text("worker", 'What "it" needs.', CALLS[:1], ["one", "two"])
    assert text.startswith("# one\n# two\nextends")
    profile = LIBRARY.draft("own", text)
    assert (profile.description, profile.syscalls.allow[-1]) == ('What "it" needs.', "uname")


# --- which files ---


def files(folder: Path, count: int) -> list[str]:
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"{number}").touch()
    return [f"{folder}/{number}" for number in range(count)]


def test_a_folder_stands_for_many_files_of_it_and_few_stand_for_themselves(tmp_path: Path) -> None:
    many, few = files(tmp_path / "many", 8), files(tmp_path / "few", 7)
    assert drafting.sources_of([*many, *few], [], ["/no/home"]) == [f"{tmp_path}/many", *few]


@pytest.mark.parametrize("never", ["", "/deeper/still"], ids=["itself", "what it holds"])
def test_a_folder_that_is_never_to_be_shown_stands_for_none_of_its_files(tmp_path: Path, never: str) -> None:
    many = files(tmp_path / "many", 9)
    assert drafting.sources_of(many, [], ["/no/home", f"{tmp_path}/many{never}"]) == many
    os.mkfifo(tmp_path / "many" / "pipe")
    assert drafting.sources_of(many, [], ["/no/home"]) == many


def test_a_folder_near_the_root_stands_for_none_of_its_files() -> None:
    many = [f"/etc/{name}" for name in sorted(os.listdir("/etc")) if os.path.isfile(f"/etc/{name}")]
    assert len(many) >= 8
    assert drafting.sources_of([*many, "/"], [], ["/no/home"]) == many


def test_what_is_shown_already_under_any_of_its_names_and_what_is_gone_is_left_out(tmp_path: Path) -> None:
    (one,) = files(tmp_path / "real", 1)
    (tmp_path / "link").symlink_to("real")
    assert drafting.sources_of([one, f"{tmp_path}/link/0", f"{tmp_path}/gone"], [], ["/no/home"]) == [one]
    assert drafting.sources_of([f"{tmp_path}/link/0"], [f"{tmp_path}/real"], ["/no/home"]) == []
