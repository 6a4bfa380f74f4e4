from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bwrap.difference import Direction, differences, listing, option_differences
from bwrap.library import Library

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = Library()
WORKER = LIBRARY.load("worker")


def changed(text: str, parent: str = "worker") -> dict[str, Direction]:
    found = differences(LIBRARY.load(parent), LIBRARY.draft("own", f'extends = "{parent}"\n{text}'))
    return {each.name: each.direction for each in found}


@pytest.mark.parametrize(
    ("text", "name", "direction"),
    [
        ("[namespaces]\npid = true", "namespaces.pid", "narrower"),
        ("[namespaces]\nnet = false", "namespaces.net", "wider"),
        ('[filesystem]\nread_only = ["/etc/hosts"]', "filesystem.read_only /etc/hosts", "wider"),
        ('[filesystem]\nread_only = ["!@python"]', "filesystem.read_only @python", "narrower"),
        ('[filesystem]\nempty = ["!@home"]', "filesystem.empty @home", "wider"),
        ('[filesystem]\nempty = ["/srv"]', "filesystem.empty /srv", "narrower"),
        ('[filesystem]\nsockets = ["!@worker_socket"]', "filesystem.sockets @worker_socket", "narrower"),
        ('[filesystem]\ntmpfs = [{ path = "/tmp", size = "1M" }]', "filesystem.tmpfs /tmp", "wider"),
        ("[limits]\nopen_files = 65", "limits.open_files", "wider"),
        ('[limits]\ncpu_time = "59s"', "limits.cpu_time", "narrower"),
        ('[syscalls]\nallow = ["uname"]', "syscalls uname", "wider"),
        ('[syscalls]\nallow = ["!write"]', "syscalls write", "narrower"),
        ('[syscalls]\nallow = ["ioctl"]', "syscalls ioctl", "wider"),
        ('[[syscalls.when]]\ncall = "ioctl"\nargument = 1\nequals = ["FIONBIO"]', "syscalls ioctl", "wider"),
        ('[[syscalls.when]]\ncall = "write"\nargument = 0\nequals = [1]', "syscalls write", "narrower"),
        ('[syscalls]\nrefuse = [{ group = "@output", errno = "EACCES" }]', "syscalls writev", "narrower"),
        ('[syscalls]\nrefuse = [{ group = "@mount", errno = "EACCES" }]', "syscalls mount", "other"),
        ('[syscalls]\ndefault = "EPERM"', "syscalls (any other)", "other"),
    ],
)
def test_each_change_is_marked_by_whether_more_can_be_done(text: str, name: str, direction: str) -> None:
    assert changed(text)[name] == direction


def test_a_condition_that_lets_other_values_through_is_neither_wider_nor_narrower() -> None:
    text = 'syscalls.when = ["!ioctl", { call = "ioctl", argument = 1, equals = ["TCGETS", "FIONBIO"] }]'
    assert changed(text) == {"syscalls ioctl": Direction.OTHER}


def test_words_that_mean_the_same_are_no_difference() -> None:
    groups = '[syscalls]\nallow = ["!@wait", "poll", "ppoll"]\n[limits]\ncpu_time = "1m"\n'
    assert changed(f'description = "Other words."\n{groups}') == {}


def test_a_refusal_by_the_name_of_what_is_refused_by_default_is_none() -> None:
    assert changed('[syscalls]\nrefuse = [{ group = "@write-files", errno = "ENOSYS" }]') == {}


def test_the_other_way_round_every_direction_is_the_other() -> None:
    strict = LIBRARY.load("strict")
    there = {each.name: each.direction for each in differences(WORKER, strict)}
    back = {each.name: each.direction for each in differences(strict, WORKER)}
    assert there.keys() == back.keys() >= {"namespaces.pid", "limits.address_space"}
    assert set(there.values()) == {Direction.NARROWER}
    assert set(back.values()) == {Direction.WIDER}


def test_each_difference_says_where_both_sides_were_said() -> None:
    found = {each.name: each.wire() for each in differences(WORKER, LIBRARY.load("strict"))}
    row = found["limits.open_files"]
    assert (row["before"], row["after"], row["direction"]) == ("64", "16", "narrower")
    assert row["before_place"].endswith("/worker.toml:14")
    assert row["after_place"].endswith("/strict.toml:10")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('[syscalls]\nallow = ["!getgroups"]', "syscalls getgroups"),
        ('[syscalls]\nallow = ["!@wait"]', "syscalls poll"),
        ('[syscalls]\nrefuse = ["!@mount"]', "syscalls mount"),
        ('[syscalls]\nwhen = ["!sendto"]', "syscalls sendto"),
        ('[filesystem]\nread_only = ["!@python"]', "filesystem.read_only @python"),
        ('[filesystem]\nempty = ["!@home"]', "filesystem.empty @home"),
    ],
)
def test_what_is_taken_away_is_placed_where_it_is_and_by_who_takes_it(text: str, name: str) -> None:
    own = LIBRARY.draft("own", f'extends = "worker"\n{text}')
    found = {each.name: each for each in differences(WORKER, own)}[name]
    assert found.place == found.wire()["after_place"] == "own.toml:3"
    assert found.wire()["before_place"] != found.place


def test_what_is_taken_away_and_given_back_further_down_is_no_difference(tmp_path: Path) -> None:
    less = 'extends = "worker"\ndescription = "x"\nsyscalls.when = ["!sendto"]\nsyscalls.allow = ["!getgroups"]\n'
    (tmp_path / "less.toml").write_text(less)
    row = '{ call = "sendto", argument = 3, equals = [0] }'
    again = f'extends = "less"\nsyscalls.when = [{row}]\nsyscalls.allow = ["getgroups"]\n'
    assert differences(WORKER, Library(tmp_path).draft("again", again)) == []
    # And who takes nothing away itself is told from where it was.
    still = differences(WORKER, Library(tmp_path).draft("still", 'extends = "less"\n'))
    assert {each.name: each.place for each in still} == {
        "syscalls sendto": f"{tmp_path}/less.toml:3", "syscalls getgroups": f"{tmp_path}/less.toml:4",
    }  # fmt: skip


def test_a_listing_has_a_line_for_each_thing_and_none_twice() -> None:
    found = listing(WORKER)
    assert len(found) == len(set(found)) > 150
    assert "syscalls ioctl = allowed if argument 1 in (TCGETS, FIOCLEX)" in found


def test_options_are_told_by_the_side_that_alone_has_them() -> None:
    assert option_differences(["--a", "--b"], ["--b", "--c 1"]) == [("-", "--a"), ("+", "--c 1")]
