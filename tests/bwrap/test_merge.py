"""What a profile is after it was laid over the one it extends, and where each value of it was said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bwrap.library import Library
from tests.bwrap.authored import marked, refused, written

if TYPE_CHECKING:
    from pathlib import Path

    from bwrap.profile import Profile, When

TMPFS = '[[filesystem.tmpfs]]\npath = "{path}"\nsize = "{size}"\n'
WHEN = '[[syscalls.when]]\ncall = "{call}"\nargument = {argument}\nequals = {values}\n'


def row(profile: Profile, call: str) -> When:
    (found,) = (each for each in profile.syscalls.when if each.call == call)
    return found


def test_values_replace_and_tables_merge(tmp_path: Path) -> None:
    own = written(tmp_path, "[limits]\nprocesses = 4\n[namespaces]\npid = true")

    assert (own.limits.processes, own.limits.open_files) == (4, 64)
    assert (own.namespaces.pid, own.namespaces.net) == (True, True)


def test_lists_append_and_hold_nothing_twice(tmp_path: Path) -> None:
    own = written(tmp_path, '[filesystem]\nread_only = ["@python", "/srv"]\nempty = []')

    assert own.filesystem.read_only == ["@python", "/srv"]
    assert own.filesystem.empty == ["@home"]


def test_an_inherited_entry_is_taken_away_by_its_name(tmp_path: Path) -> None:
    own = written(tmp_path, '[filesystem]\nempty = ["!@home"]\nread_only = ["!@python", "/srv"]')

    assert own.filesystem.empty == []
    assert own.filesystem.read_only == ["/srv"]


def test_a_row_for_the_same_group_call_or_path_merges_with_the_inherited_one(tmp_path: Path) -> None:
    written(tmp_path, TMPFS.format(path="/a", size="1M"), name="parent")
    text = (
        TMPFS.format(path="/a", size="2M")
        + TMPFS.format(path="/b", size="3M")
        + '[syscalls]\nrefuse = [{ group = "@mount", errno = "EACCES" }]\n'
        + '[[syscalls.when]]\ncall = "ioctl"\nequals = ["TIOCGPGRP"]\n'
    )
    own = written(tmp_path, text, extends="parent")
    parent = Library(tmp_path).load("parent")

    assert [(each.path, each.size >> 20) for each in own.filesystem.tmpfs] == [("/a", 2), ("/b", 3)]
    assert [each.errno for each in own.syscalls.refuse if each.group == "@mount"] == ["EACCES"]
    assert len(own.syscalls.refuse) == len(parent.syscalls.refuse)
    assert row(own, "ioctl").equals == [*(row(parent, "ioctl").equals or []), "TIOCGPGRP"]


def test_a_row_is_taken_away_by_its_group_call_or_path(tmp_path: Path) -> None:
    written(tmp_path, TMPFS.format(path="/a", size="1M"), name="parent")
    text = '[filesystem]\ntmpfs = ["!/a"]\n[syscalls]\nrefuse = ["!@mount"]\nwhen = ["!prctl"]'
    own = written(tmp_path, text, extends="parent")

    assert own.filesystem.tmpfs == []
    assert "@mount" not in [each.group for each in own.syscalls.refuse]
    assert "prctl" not in [each.call for each in own.syscalls.when]


def test_a_row_taken_away_can_be_said_anew_in_the_same_list(tmp_path: Path) -> None:
    text = '[syscalls]\nwhen = ["!ioctl", { call = "ioctl", argument = 1, equals = ["TCGETS"] }]'

    assert row(written(tmp_path, text), "ioctl").equals == ["TCGETS"]


def test_a_number_and_a_truth_that_python_holds_equal_are_two_entries(tmp_path: Path) -> None:
    error = refused(tmp_path, WHEN.format(call="listen", argument=1, values="[1, true]"))

    assert (marked(error), error.reason) == ("true", "it should be a number, or the C name of one")


# --- what a list cannot be told ---

REMOVALS = {
    "a path": (
        '[filesystem]\nempty = ["!@hom"]', '"!@hom"', "'!@hom' removes what is not inherited; did you mean '!@home'?",
    ),
    "a path of nothing": ('[filesystem]\ntmpfs = ["!/a"]', '"!/a"', "'!/a' removes what is not inherited"),
    "a group that is refused": ('[syscalls]\nrefuse = ["!@mont"]', '"!@mont"', "did you mean '!@mount'?"),
    "a condition": ('[syscalls]\nwhen = ["!soket"]', '"!soket"', "did you mean '!socket'?"),
    "a value of a condition": (
        '[[syscalls.when]]\ncall = "ioctl"\nequals = ["!TCGET"]', '"!TCGET"', "mean '!TCGETS'?",
    ),
    "nothing at all": ('[filesystem]\nempty = ["!"]', '"!"', "'!' removes what is not inherited"),
}  # fmt: skip


@pytest.mark.parametrize("case", REMOVALS)
def test_removing_what_is_not_inherited_is_an_error_with_what_may_be_meant(tmp_path: Path, case: str) -> None:
    text, word, reason = REMOVALS[case]
    error = refused(tmp_path, text)

    assert marked(error) == word
    assert reason in error.reason


def test_a_root_has_nothing_to_remove(tmp_path: Path) -> None:
    error = refused(tmp_path, '[filesystem]\nempty = ["!@home"]', extends="")

    assert error.reason == "'!@home' removes what is not inherited"


@pytest.mark.parametrize(
    "text",
    [
        WHEN.format(call="listen", argument=0, values="[1]")
        + WHEN.format(call="listen", argument=0, values="[2]"),
        TMPFS.format(path="/a", size="1M") + TMPFS.format(path="/a", size="2M"),
        '[syscalls]\nrefuse = [{ group = "@output", errno = "EPERM" }, { group = "@output", errno = "EACCES" }]',
    ],
)
def test_two_rows_of_one_profile_for_the_same_thing_are_an_error_at_the_second(
    tmp_path: Path, text: str
) -> None:
    error = refused(tmp_path, text)

    assert "in one profile: make them one" in error.reason
    assert error.line is not None
    assert marked(error) in text.splitlines()[error.line - 2]
    assert text.count(marked(error)) == 2


def test_values_for_another_argument_do_not_join_those_that_are_inherited(tmp_path: Path) -> None:
    error = refused(tmp_path, WHEN.format(call="socket", argument=1, values="[1]"))

    assert (error.line, error.column, marked(error)) == (4, 12, "1")
    assert error.reason == (
        "what is inherited compares argument 0 of 'socket'; take that away first, with when = ['!socket', …]"
    )


# A list, and the entry of it that is one too many.
TWICE = {
    "a call": ('[syscalls]\nallow = ["uname", "getcwd", "uname"]', "syscalls.allow[2]", '"uname"'),
    "a removal": ('[filesystem]\nempty = ["!@home", "!@home"]', "filesystem.empty[1]", '"!@home"'),
    "a path": ('[filesystem]\nread_only = ["/srv", "/srv"]', "filesystem.read_only[1]", '"/srv"'),
    "a value": (
        WHEN.format(call="listen", argument=0, values="[1, 2, 1]"), "syscalls.when[0].equals[2]", "1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TWICE)
def test_a_word_that_stands_twice_in_one_list_is_an_error_at_the_second(tmp_path: Path, case: str) -> None:
    text, place, word = TWICE[case]
    error = refused(tmp_path, text)

    assert (error.place, marked(error)) == (place, word)
    assert error.reason.endswith("stands in this list already")
    assert error.column is not None
    assert text.split("\n")[(error.line or 0) - 2][: error.column - 1].count(word) == 1


@pytest.mark.parametrize(
    ("table", "key", "entry"),
    [
        ("filesystem", "read_only", '"/srv/{at}"'),
        ("syscalls", "allow", '"call_{at}"'),
        ("syscalls", "refuse", '{{ group = "@g{at}", errno = "EPERM" }}'),
        ("filesystem", "tmpfs", '{{ path = "/a{at}", size = 1 }}'),
    ],
)
def test_a_list_has_256_entries_at_most_and_the_next_is_an_error(
    tmp_path: Path, table: str, key: str, entry: str
) -> None:
    lines = ",\n".join(entry.format(at=at) for at in range(257))
    error = refused(tmp_path, f"[{table}]\n{key} = [\n{lines}]")

    assert (error.line, error.place) == (3 + 257, f"{table}.{key}[256]")
    assert error.reason == "a list has at most 256 entries"


def test_a_list_may_have_256_entries_beside_those_it_inherits(tmp_path: Path) -> None:
    said = [f'"/srv/{at}"' for at in range(256)]
    own = written(tmp_path, "[filesystem]\nread_only = [\n" + ",\n".join(said) + "]")

    assert len(own.filesystem.read_only) == 257


@pytest.mark.parametrize("key", ["refuse", "when"])
def test_a_word_where_a_row_should_be_is_an_error_even_if_there_is_a_row_of_that_name(
    tmp_path: Path, key: str
) -> None:
    word = {"refuse": "@mount", "when": "socket"}[key]
    error = refused(tmp_path, f'[syscalls]\n{key} = ["{word}"]')

    assert (marked(error), error.reason) == (f'"{word}"', "it should be a table")


# --- where a value was said ---


def test_each_value_keeps_the_profile_the_file_and_the_line_where_it_was_said(tmp_path: Path) -> None:
    own = written(tmp_path, '[limits]\nprocesses = 4\n[filesystem]\nempty = ["/a"]')

    said = {path: (value, origin.profile, origin.place) for path, value, origin in own.values()}

    assert said["limits", "processes"] == (4, "own", f"{tmp_path}/own.toml:3")
    assert said["filesystem", "empty", 1] == ("/a", "own", f"{tmp_path}/own.toml:5")
    value, profile, place = said["filesystem", "empty", 0]
    assert (value, profile) == ("@home", "worker")
    assert place.rpartition(":")[0].endswith("profiles/worker.toml")
    assert said["namespaces", "net"][:2] == (True, "base")


def test_what_is_not_said_comes_from_the_nearest_table_above_it(tmp_path: Path) -> None:
    own = written(tmp_path, "[limits]\nprocesses = 4")

    assert own.origin(("limits", "nothing")).profile == "own"
    assert own.origin(("namespaces", "nothing")).profile == "base"
    assert own.fault(("limits", "nothing"), "no").line == 2


def test_a_merged_row_is_the_childs_and_each_value_in_it_is_whose_it_was(tmp_path: Path) -> None:
    own = written(tmp_path, '[[syscalls.when]]\ncall = "ioctl"\nequals = ["TIOCGPGRP"]')
    at = [each.call for each in own.syscalls.when].index("ioctl")

    assert own.origin(("syscalls", "when", at)).profile == "own"
    assert own.origin(("syscalls", "when", at, "argument")).profile == "worker"
    assert own.origin(("syscalls", "when", at, "equals", 0)).profile == "worker"
    last = len(own.syscalls.when[at].equals or []) - 1
    assert own.origin(("syscalls", "when", at, "equals", last)).profile == "own"


def test_a_chain_is_named_from_its_root_and_ranks_by_who_spoke_last(tmp_path: Path) -> None:
    own = written(tmp_path, "[limits]\nprocesses = 4")

    assert own.chain == ("base", "worker", "own")
    assert own.rank(("limits", "processes")) > own.rank(("limits", "open_files"))
