from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from spl.cli import service

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Spl

SYSTEM = "systemd/system/spl-serve.service"
UNITS = [SYSTEM, "systemd/user/spl-serve.service"]


def test_every_file_that_runs_the_daemon_as_a_service_is_listed_with_where_it_goes(spl: Spl) -> None:
    listed = json.loads(spl("service", "list").stdout)["data"]
    files = (service.folder() / "systemd").rglob("*")

    there = {str(path.relative_to(service.folder())) for path in files if path.is_file()}
    assert {row["name"] for row in listed} == there
    assert all(os.path.basename(row["name"]) == os.path.basename(row["path"]) for row in listed)


@pytest.mark.parametrize("name", service.FILES)
def test_a_file_is_printed_as_it_is_but_for_the_path_of_this_command(spl: Spl, name: str) -> None:
    own = os.path.join(os.path.dirname(sys.executable), "spl")

    printed = spl("service", "show", name)

    assert printed.returncode == 0
    assert printed.stdout == (service.folder() / name).read_text().replace("/usr/local/bin/spl", own)
    assert (f"ExecStart={own} serve" in printed.stdout) == (name in UNITS)
    told = json.loads(spl("service", "show", name, "-o", "json").stdout)
    assert (told["text"], told["path"]) == (printed.stdout, service.FILES[name].path)


@pytest.mark.parametrize("name", UNITS)
def test_a_path_is_written_as_the_service_manager_reads_it(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "of 100% of it"
    folder.mkdir()
    link = folder / "spl"
    link.symlink_to(os.path.join(os.path.dirname(sys.executable), "spl"))

    printed = subprocess.run([link, "service", "show", name], capture_output=True, text=True, timeout=60)

    path = f"{tmp_path}/of 100%% of it/spl"
    assert f'\nExecStart="{path}" serve' in printed.stdout
    assert "no program" not in printed.stderr


@pytest.mark.parametrize("name", UNITS)
def test_a_path_cannot_become_a_directive_and_one_that_no_unit_can_start_is_warned_of(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / 'a "b"\nExecStart=' / "bin"
    folder.mkdir(parents=True)
    link = folder / "spl"
    link.symlink_to(os.path.join(os.path.dirname(sys.executable), "spl"))

    printed = subprocess.run([link, "service", "show", name], capture_output=True, text=True, timeout=60)

    assert f'\nExecStart="{tmp_path}/a \\"b\\"\\nExecStart=/bin/spl" serve' in printed.stdout
    assert printed.stdout.count("\nExecStart=") == 1
    assert "systemd starts no program whose path has a quote" in printed.stderr


def test_an_spl_that_the_system_cannot_start_or_others_could_replace_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    monkeypatch.setattr(service, "__file__", "/usr/lib/cli/service.py")
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    (open_folder / "spl").touch()

    said = list(service._unsafe(str(open_folder / "spl")))

    place = str(open_folder / "spl")
    assert f"{place!r} cannot be started by this unit, which does not see /tmp: install spl elsewhere" in said
    assert any(f"{str(open_folder)!r} can be written by others than root" in each for each in said)
    assert list(service._unsafe("/bin/sh")) == []
    (missing,) = service._unsafe("/usr/bin/no-such-spl")
    assert missing == "there is no '/usr/bin/no-such-spl'"
    # The environment is where it should be, and the interpreter that it was made with is not.
    monkeypatch.setattr(sys, "executable", str(open_folder / "spl"))
    (remedy,) = (each for each in service._unsafe("/bin/sh") if "does not see /tmp" in each)
    assert remedy.endswith(
        "make the environment anew with the system's interpreter ('/usr/bin/python3 -m venv')"
    )
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    # The package may lie elsewhere than what starts it: a checkout that was installed in place.
    monkeypatch.setattr(service, "__file__", str(open_folder / "cli" / "service.py"))
    assert any(f"{str(open_folder)!r} would run as root" in each for each in service._unsafe("/bin/sh"))


def test_a_warning_goes_beside_the_text_and_not_into_it(spl: Spl, tmp_path: Path) -> None:
    link = tmp_path / "spl"
    link.symlink_to(os.path.join(os.path.dirname(sys.executable), "spl"))
    said = {
        name: subprocess.run([link, "service", "show", name], capture_output=True, text=True, timeout=60)
        for name in UNITS
    }

    assert said[UNITS[0]].stderr.startswith("spl: warning: ")
    assert "spl: warning" not in said[UNITS[0]].stdout
    assert said[UNITS[1]].stderr == ""


def test_a_file_is_told_by_the_end_of_its_name_where_only_one_has_it(spl: Spl) -> None:
    assert spl("service", "show", "own-user.conf").stdout.startswith("#")

    refused = spl("service", "show", "spl-serve.service")

    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"{UNITS[0]!r} or {UNITS[1]!r}" in refused.stderr
    assert "own-user.conf" not in refused.stderr


def test_an_unknown_file_is_wrong_usage_that_names_those_there_are(spl: Spl) -> None:
    refused = spl("service", "show", "spl.service")
    assert refused.returncode == 2
    assert SYSTEM in refused.stderr
