from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from bwrap import bpf, groups, seccomp
from bwrap.library import Library
from spl import errors
from tests.cli.conftest import COMMAND
from tests.server import error

if TYPE_CHECKING:
    from pathlib import Path

    from spl.home import Home
    from tests.cli.conftest import Spl
    from tests.server import Daemon

OWN = 'extends = "worker"\ndescription = "mine"\n'
BREACH = 'extends = "worker"\n\n[syscalls]\nallow = ["ptrace"]\n'
WARNING = 'extends = "worker"\n\n[limits]\naddress_space = "32M"\n'
BROKEN = 'extends = "worker"\n\n[limits]\naddres_space = "64M"\n'


def write(home: Home, name: str, text: str) -> Path:
    path = home.profiles / f"{name}.toml"
    path.write_text(text)
    return path


def test_profiles_are_listed_with_what_they_are_and_one_that_cannot_be_used_with_its_error(
    spl: Spl, home: Home
) -> None:
    write(home, "own", OWN)
    path = write(home, "broken", BROKEN)
    listed = spl("profile", "list")
    rows = {row["name"]: row for row in json.loads(listed.stdout)["data"]}
    assert (listed.returncode, list(rows)) == (0, ["base", "strict", "worker", "broken", "own"])
    assert (rows["own"]["source"], rows["own"]["extends"]) == ("own", ["worker", "base"])
    assert rows["worker"]["digest"] == Library().load("worker").digest
    assert f"{path}:4:1: limits.addres_space" in rows["broken"]["error"]["message"]
    table = spl("profile", "list", "-o", "table").stdout
    assert re.search(r"^broken +own +profile ", table, re.MULTILINE)
    assert re.search(r"^base +shipped +below ", table, re.MULTILINE)
    assert re.search(r"^own +own +ok ", table, re.MULTILINE)
    assert "did you mean 'address_space'?" in " ".join(table.split())


def test_a_file_that_bears_a_shipped_name_is_listed_and_an_error_of_lint_and_means_nothing(
    spl: Spl, home: Home
) -> None:
    path = write(home, "worker", OWN)
    rows = [row for row in json.loads(spl("profile", "list").stdout)["data"] if row["name"] == "worker"]
    assert [row["source"] for row in rows] == ["shipped", "own"]
    assert str(path) in rows[1]["error"]["message"]
    assert json.loads(spl("profile", "show", "worker").stdout)["digest"] == Library().load("worker").digest
    for words in ((), ("worker",)):
        linted = spl("profile", "lint", *words, "-o", "table")
        assert linted.returncode == errors.ProfileInvalid.exit_status
        assert linted.stdout.startswith(f"{path}: error: 'worker' is the name of a shipped profile")
        assert "\n\n" not in linted.stdout
        assert "there are errors in 'worker'; mend what is named above\n" in linted.stderr


def test_without_a_home_there_are_the_shipped_profiles(spl: Spl, tmp_path: Path) -> None:
    listed = spl("profile", "list", "--home", str(tmp_path / "nowhere"))
    assert (listed.returncode, listed.stderr) == (0, "")
    assert [row["name"] for row in json.loads(listed.stdout)["data"]] == ["base", "strict", "worker"]
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    "words", [("list",), ("show", "worker"), ("render", "worker"), ("lint",), ("try", "worker", "--", "id")]
)
def test_a_home_that_is_not_safe_is_an_error(spl: Spl, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    os.chmod(tmp_path / "open", 0o777)
    refused = spl("profile", words[0], "--home", str(tmp_path / "open"), *words[1:])
    assert (refused.returncode, refused.stdout) == (errors.HomeUnsafe.exit_status, "")
    assert "HOME_UNSAFE" in refused.stderr


def test_a_profile_is_shown_with_where_each_value_was_said(spl: Spl, home: Home) -> None:
    path = write(
        home, "own", 'extends = "strict"\ndescription = "mine"\n\n[limits]\naddress_space = 67108864\n'
    )
    document = json.loads(spl("profile", "show", "own").stdout)
    row = next(row for row in document["values"] if row["path"] == "limits.address_space")
    assert row == {
        "path": "limits.address_space",
        "value": 67108864,
        "profile": "own",
        "file": str(path),
        "line": 5,
    }
    assert (document["object"], document["extends"]) == ("profile", ["strict", "worker", "base"])
    assert document["floor"] == {"ok": True, "breaches": []}
    lines = [line.split() for line in spl("profile", "show", "own", "-o", "table").stdout.splitlines()]
    assert ["address_space", "64M", "own", f"{path}:5"] in lines
    assert ["cpu_time", "30s", "strict", "strict.toml:11"] in lines
    assert ["tmpfs", "(none)", "base", "base.toml:15"] in lines
    assert lines.index(["[limits]"]) < lines.index(["[syscalls]"])


def test_a_profile_below_the_floor_is_shown_and_said_to_be(spl: Spl, home: Home) -> None:
    write(home, "own", BREACH)
    shown = spl("profile", "show", "own", "-o", "table")
    assert shown.returncode == 0
    assert "below the floor: it lets ptrace through" in shown.stdout


def test_a_name_that_no_profile_has_is_answered_with_the_nearest(spl: Spl) -> None:
    refused = spl("profile", "show", "wroker")
    assert (refused.returncode, refused.stdout) == (errors.NotFound.exit_status, "")
    assert refused.stderr == (
        "spl: NOT_FOUND: there is no profile 'wroker'; did you mean 'worker'?; "
        "'spl profile list' lists the profiles there are\n"
    )


@pytest.mark.parametrize("command", ["show", "render"])
def test_a_profile_that_cannot_be_used_is_refused_with_the_line_and_a_caret(
    spl: Spl, home: Home, command: str
) -> None:
    path = write(home, "broken", BROKEN)
    refused = spl("profile", command, "broken", "-o", "json")
    said, line, caret, document = refused.stderr.splitlines()
    assert refused.returncode == errors.ProfileInvalid.exit_status
    assert said.startswith(f"spl: PROFILE_INVALID: profile {path}:4:1: limits.addres_space: ")
    assert line == '    4 | addres_space = "64M"'
    assert caret == "      | ^^^^^^^^^^^^"
    told = json.loads(document)
    assert (told["code"], told["file"], told["line"], told["column"]) == ("PROFILE_INVALID", str(path), 4, 1)


def test_an_excerpt_is_two_lines_that_cannot_write_to_the_terminal(spl: Spl, daemon: Daemon) -> None:
    excerpt = "    4 | \x1b[2J\u202e\n      | ^^^^\nspl: all is well"
    daemon.routes["GET /v1/engine/health"] = error(422, "PROFILE_INVALID", "what failed", excerpt=excerpt)
    assert spl("status").stderr.splitlines()[1:] == [r"    4 | \x1b[2J\u202e", "      | ^^^^"]


def test_a_plan_is_rendered_without_a_daemon_as_one_would_make_it(spl: Spl, home: Home) -> None:
    rendered = spl("profile", "render", "worker", "-o", "json")
    document = json.loads(rendered.stdout)
    bound = home.bound_worker_socket(hosted=os.geteuid() == 0)
    assert f"--ro-bind {bound} {home.worker_socket}" in document["argv"]
    assert "--seccomp {filter}" in document["argv"]
    assert document["filter"]["arch"] == seccomp.architecture()
    assert document["command"][1] == "-i"
    table = spl("profile", "render", "worker", "-o", "table").stdout.splitlines()
    assert [line for line in (*document["argv"], *document["filter"]["rules"]) if line not in table] == []
    assert f"argv digest    {document['argv_digest']}" in table
    assert f"filter digest  {document['filter']['digest']}" in table


@pytest.mark.parametrize("arch", groups.ARCHITECTURES)
def test_a_filter_is_rendered_for_either_architecture_and_its_program_listed(spl: Spl, arch: str) -> None:
    document = json.loads(spl("profile", "render", "worker", "--arch", arch, "--bpf").stdout)
    wanted = seccomp.compile_filter(groups.rules(Library().load("worker"), arch), arch)
    assert (document["filter"]["arch"], document["filter"]["digest"]) == (arch, wanted.digest)
    assert document["filter"]["program"] == bpf.listing(bpf.load(wanted.program))
    assert f"unless {arch}: kill" in document["filter"]["rules"]


def test_lint_without_a_breach_succeeds_and_tells_the_warnings(spl: Spl, home: Home) -> None:
    path = write(home, "own", WARNING)
    linted = spl("profile", "lint", "own")
    (remark,) = json.loads(linted.stdout)["data"]
    assert linted.returncode == 0
    assert (remark["severity"], remark["profile"], remark["line"], remark["column"]) == (
        "warning",
        "own",
        4,
        17,
    )
    said = spl("profile", "lint", "own", "-o", "table").stdout.splitlines()
    assert said[0].startswith(f"{path}:4:17: warning (address_space): limits.address_space: under 48M")
    assert said[1:] == [
        '    4 | address_space = "32M"',
        "      |                 ^^^^^",
        "0 errors, 0 breaches, 1 warning in own",
    ]


def test_lint_names_every_breach_and_fails(spl: Spl, home: Home) -> None:
    write(home, "own", BREACH)
    linted = spl("profile", "lint", "own", "-o", "table")
    assert linted.returncode == errors.ProfileBelowFloor.exit_status
    assert ":4:10: breach (@trace): syscalls.allow[" in linted.stdout
    assert "spl: PROFILE_BELOW_FLOOR: there are breaches of the floor in 'own'; " in linted.stderr


def test_lint_of_everything_passes_as_shipped_and_fails_for_an_own_file_that_cannot_be_used(
    spl: Spl, home: Home
) -> None:
    shipped = spl("profile", "lint", "-o", "table")
    assert (shipped.returncode, shipped.stderr) == (0, "")
    assert shipped.stdout.endswith(" in strict, worker\n")
    write(home, "broken", BROKEN)
    write(home, "own", BREACH)
    linted = spl("profile", "lint")
    assert linted.returncode == errors.ProfileInvalid.exit_status
    found = {(row["profile"], row["severity"]) for row in json.loads(linted.stdout)["data"]}
    assert {("broken", "error"), ("own", "breach")} <= found


def test_lint_of_base_names_what_it_lacks(spl: Spl) -> None:
    linted = spl("profile", "lint", "base")
    rows = json.loads(linted.stdout)["data"]
    assert [row["row"] for row in rows if row["severity"] == "breach"] == ["home"]
    # No run could start with it either, and that is said before the floor.
    assert "error" in {row["severity"] for row in rows}
    assert linted.returncode == errors.ProfileInvalid.exit_status


def test_lint_of_a_name_that_no_profile_has_is_an_error(spl: Spl) -> None:
    assert spl("profile", "lint", "nothing").returncode == errors.NotFound.exit_status


def test_a_folder_of_profiles_that_cannot_be_read_is_an_error(spl: Spl, home: Home) -> None:
    home.profiles.rmdir()
    home.profiles.write_text("")
    refused = spl("profile", "list")
    assert (refused.returncode, refused.stdout) == (errors.ProfileInvalid.exit_status, "")
    assert refused.stderr == (
        f"spl: PROFILE_INVALID: profile {home.profiles}: the folder cannot be read: Not a directory; "
        "mend what the message names, or take it out of the way\n"
    )


@pytest.mark.parametrize("output", ["json", "table"])
@pytest.mark.parametrize("words", [("list",), ("show", "worker"), ("render", "worker"), ("lint", "worker")])
def test_what_could_not_be_printed_is_an_error_and_not_an_empty_answer(
    environ: dict[str, str], words: tuple[str, ...], output: str
) -> None:
    for to, said in ((">&-", "it is closed"), (">/dev/full", "No space left on device")):
        ended = subprocess.run(
            ["/bin/sh", "-c", f'"$@" {to}', "sh", *COMMAND, "profile", *words, "-o", output],
            env=environ, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == errors.HostRefused.exit_status
        first = ended.stderr.splitlines()[0]
        assert f"refused on 'standard output': {said}" in first
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("no-such-command", errors.CommandNotFound.exit_status),
        ("/no/such/command", errors.CommandNotFound.exit_status),
        ("/etc/passwd", errors.CommandNotExecutable.exit_status),
        ("/etc", errors.CommandNotExecutable.exit_status),
    ],
)
def test_what_cannot_be_tried_ends_as_in_a_shell(spl: Spl, command: str, status: int) -> None:
    tried = spl("profile", "try", "worker", "--", command)
    assert (tried.returncode, tried.stdout) == (status, "")
    assert tried.stderr.startswith("spl: COMMAND_NOT_")


def test_a_command_must_be_given_to_be_tried(spl: Spl) -> None:
    assert spl("profile", "try", "worker").returncode == 2
    assert spl("profile", "try", "worker", "--read-only", "/no/such/path", "--", "id").returncode == 2


def test_lint_names_what_this_host_may_not_show_by_file_and_line(spl: Spl, home: Home) -> None:
    (home.profiles / "own.toml").write_text(
        f'extends = "worker"\n[filesystem]\nread_only = ["{home.path}", "?/no/such", "/no/such/either"]\n'
    )
    ended = spl("profile", "lint", "own", "-o", "json")

    assert ended.returncode == errors.ProfileInvalid.exit_status
    remarks = json.loads(ended.stdout)["data"]
    named = [(each["row"], each["line"], each["place"]) for each in remarks if each["severity"] == "error"]
    assert named == [
        ("home", 3, "filesystem.read_only[0]"),
        ("mounts", 3, "filesystem.read_only[2]"),
    ]
