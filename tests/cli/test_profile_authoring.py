from __future__ import annotations

import json
import os
import re
import stat
from typing import TYPE_CHECKING

import pytest

from bwrap import groups, layers, seccomp
from bwrap.library import Library
from spl import errors

if TYPE_CHECKING:
    from pathlib import Path

    from spl.home import Home
    from tests.cli.conftest import Spl

BELOW = 'extends = "strict"\n\n[namespaces]\nnet = false\n\n[syscalls]\nallow = ["ptrace"]\n'


def write(home: Home, name: str, text: str) -> Path:
    path = home.profiles / f"{name}.toml"
    path.write_text(text)
    return path


# --- explain ---


def test_a_profile_is_explained_as_a_page_of_plain_text(spl: Spl, home: Home) -> None:
    page = spl("profile", "explain", "worker", "-o", "table")
    assert (page.returncode, page.stderr) == (0, "")
    lines = page.stdout.splitlines()
    assert lines[0] == "The profile worker"
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line != line.rstrip()] == []
    # What is said by a shipped file is known by its name.
    assert "(worker.toml:5)" in page.stdout
    document = json.loads(spl("profile", "explain", "worker").stdout)
    words = " ".join(page.stdout.split())
    for section in document["sections"]:
        assert section["title"] in lines
        assert " ".join(section["lines"][-1].split()) in words
    assert {layer.name for layer in layers.every_layer()} <= set(re.findall(r"[a-z_]+", page.stdout))


def test_a_profile_below_the_floor_is_explained_and_says_so_with_its_places(spl: Spl, home: Home) -> None:
    path = write(home, "own", BELOW)
    explained = spl("profile", "explain", "own")
    document = json.loads(explained.stdout)
    assert (explained.returncode, document["object"], document["above_floor"]) == (
        0,
        "profile.explanation",
        False,
    )
    assert {"net namespace", "@trace"} <= {each["row"] for each in document["remarks"]}
    place = {each["name"]: each["after_place"] for each in document["deviations"]}
    assert (place["namespaces.net"], place["syscalls ptrace"]) == (f"{path}:4", f"{path}:7")
    assert "BELOW THE FLOOR, 2 breaches" in spl("profile", "explain", "own", "-o", "table").stdout


def test_what_cannot_be_had_on_this_host_is_explained_all_the_same(spl: Spl, home: Home) -> None:
    write(home, "own", 'extends = "worker"\n[filesystem]\nread_only = ["/no/such/file"]\n')
    explained = spl("profile", "explain", "own")
    assert explained.returncode == 0
    document = json.loads(explained.stdout)
    assert (document["worst_case_bytes"], document["can_run"]) == (None, False)
    assert "'/no/such/file' on this host" in explained.stdout


# --- diff ---


def test_what_changes_between_profiles_is_told_by_its_direction(spl: Spl, home: Home) -> None:
    write(home, "own", BELOW)
    told = spl("profile", "diff", "worker", "own", "-o", "table")
    assert told.returncode == 0
    lines = [line.split() for line in told.stdout.splitlines()]
    assert ["-", "limits.open_files", "64", "16", "strict.toml:10"] in lines
    assert ["+", "namespaces.net", "its", "own", "the", "host's", f"{home.profiles}/own.toml:4"] in lines
    assert ["-", "--unshare-net"] in lines
    assert ["+", "--unshare-pid"] in lines
    document = json.loads(spl("profile", "diff", "worker", "own").stdout)
    found = {each["name"]: each["direction"] for each in document["differences"]}
    assert (found["syscalls ptrace"], found["namespaces.pid"]) == ("wider", "narrower")
    assert {"mark": "-", "option": "--unshare-net"} in document["argv"]
    assert document["before"]["digest"] == Library().load("worker").digest


def test_profiles_that_mean_the_same_are_said_to(spl: Spl, home: Home) -> None:
    write(home, "own", 'extends = "worker"\ndescription = "Another word for it."\n')
    assert spl("profile", "diff", "worker", "own", "-o", "table").stdout == (
        "from worker to own\nnone: they mean the same\n"
    )
    assert json.loads(spl("profile", "diff", "worker", "own").stdout)["differences"] == []


def test_a_profile_that_is_not_there_is_no_difference(spl: Spl) -> None:
    assert spl("profile", "diff", "worker", "nothing").returncode == errors.NotFound.exit_status


# --- new ---


def test_a_new_profile_means_what_it_extends_and_is_its_users_alone(spl: Spl, tmp_path: Path) -> None:
    home = tmp_path / "nowhere yet"
    made = spl("profile", "new", "own", "--extends", "strict", "--home", str(home), "-o", "table")
    path = home / "profiles" / "own.toml"
    assert made.returncode == 0, made.stderr
    assert f"written: {path}" in made.stdout
    assert "next: spl profile try own -- COMMAND" in made.stdout
    assert [stat.S_IMODE(os.stat(each).st_mode) for each in (home, path.parent, path)] == [
        0o700,
        0o700,
        0o600,
    ]
    assert os.listdir(path.parent) == ["own.toml"]
    library = Library(own=path.parent)
    assert library.load("own").digest == library.load("strict").digest
    assert library.load("own").description == "What 'strict' says, as 'own'."


def test_each_line_that_a_new_profile_offers_can_be_used_as_it_stands(spl: Spl, home: Home) -> None:
    assert spl("profile", "new", "own", "--extends", "strict").returncode == 0
    path = home.profiles / "own.toml"
    offered = re.sub(r"^# (?=\[|\]|    |[a-z_]+ = )", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(offered)
    assert len(re.findall(r"^(?!#)[a-z_]+ = ", offered, re.MULTILINE)) == 11
    linted = json.loads(spl("profile", "lint", "own").stdout)
    assert {row["severity"] for row in linted["data"]} == {"warning"}
    found = Library(own=home.profiles).load("own")
    # Less than the one it extends comes first, and so that a run can still start.
    now = Library().load("strict")
    assert (found.limits.address_space, found.limits.open_files, found.limits.cpu_time) == (48 << 20, 9, 15)
    calls = (
        groups.rules(found, seccomp.architecture()).allow ^ groups.rules(now, seccomp.architecture()).allow
    )
    assert calls == {"getgroups", "uname"}
    assert offered.index("open_files") < offered.index("!getgroups") < offered.index("read_only")
    assert found.filesystem.tmpfs[0].path == "@scratch"


def test_a_description_of_any_words_is_what_was_said(spl: Spl, home: Home) -> None:
    said = 'It "quotes", back\\slashes\nand \x1b[2J, \u202e and # 1'
    made = spl("profile", "new", "own", "--description", said, "-o", "json")
    assert json.loads(made.stdout)["path"] == str(home.profiles / "own.toml")
    assert Library(own=home.profiles).load("own").description == said
    assert "\x1b" not in (home.profiles / "own.toml").read_text()


@pytest.mark.parametrize("name", ["worker", "own"])
def test_a_name_that_is_taken_is_refused_and_what_has_it_left_alone(spl: Spl, home: Home, name: str) -> None:
    write(home, "own", "not even TOML")
    refused = spl("profile", "new", name, "-o", "json")
    assert (refused.returncode, refused.stdout) == (errors.ProfileExists.exit_status, "")
    assert json.loads(refused.stderr.splitlines()[-1])["code"] == "PROFILE_EXISTS"
    assert (home.profiles / "own.toml").read_text() == "not even TOML"
    assert os.listdir(home.profiles) == ["own.toml"]


def test_a_link_of_its_name_is_not_written_through(spl: Spl, home: Home, tmp_path: Path) -> None:
    (home.profiles / "own.toml").symlink_to(tmp_path / "elsewhere")
    assert spl("profile", "new", "own").returncode == errors.ProfileExists.exit_status
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["Own", "../own", "own.toml", "", "9", "x" * 65])
def test_a_name_that_no_profile_can_have_is_wrong_usage(spl: Spl, home: Home, name: str) -> None:
    refused = spl("profile", "new", name)
    assert (refused.returncode, os.listdir(home.profiles)) == (2, [])
    assert "begins with a letter" in " ".join(refused.stderr.split())


def test_a_new_profile_upon_one_that_is_not_there_is_refused_and_not_written(spl: Spl, home: Home) -> None:
    refused = spl("profile", "new", "own", "--extends", "wroker")
    assert refused.returncode == errors.ProfileInvalid.exit_status
    assert "did you mean 'worker'?" in refused.stderr
    assert os.listdir(home.profiles) == []


@pytest.mark.parametrize("words", [["new", "mine"], ["trace", "--save", "--", "true"]])
def test_nothing_is_written_into_a_home_when_spl_url_names_a_daemon_elsewhere(
    spl: Spl, home: Home, words: list[str]
) -> None:
    ended = spl("profile", *words, SPL_URL="http://127.0.0.1:1")
    assert ended.returncode == errors.SettingsInvalid.exit_status
    assert "give --home" in ended.stderr
    assert list(home.profiles.iterdir()) == []
    assert spl("profile", "show", "worker", SPL_URL="http://127.0.0.1:1").returncode == 0
