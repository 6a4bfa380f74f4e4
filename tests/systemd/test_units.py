"""The files of contrib/ by what reads them, without any of it running; see test_service for the units as they run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from spl.cli import service
from tests.docs.blocks import read

if TYPE_CHECKING:
    from pathlib import Path

SYSTEM, OWN_USER, USER = (
    "systemd/system/spl-serve.service",
    "systemd/system/own-user.conf",
    "systemd/user/spl-serve.service",
)
SHAPES = {"hosted": (SYSTEM,), "own user": (SYSTEM, OWN_USER), "user": (USER,)}
"""What runs the daemon, by the files that it takes."""

SPL = os.path.join(os.path.dirname(sys.executable), "spl")


@pytest.fixture(params=SHAPES)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Give a unit as `spl service show` prints it, in a folder of its own, with its drop-in if it has one."""
    unit, *drop_ins = SHAPES[request.param]
    path = tmp_path / "spl-serve.service"
    path.write_text((service.folder() / unit).read_text().replace("/usr/local/bin/spl", SPL))
    for name in drop_ins:
        (tmp_path / "spl-serve.service.d").mkdir()
        (tmp_path / "spl-serve.service.d" / "own-user.conf").write_text((service.folder() / name).read_text())
    return path


def analyze(*arguments: str, unit: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Ask systemd-analyze, about a unit if one is given."""
    folder = str(unit.parent) if unit else "/run"
    return subprocess.run(
        ["systemd-analyze", *arguments, *([str(unit)] if unit else [])],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "XDG_RUNTIME_DIR": folder},
    )


def manager_of(request: pytest.FixtureRequest) -> str:
    return "--user" if request.node.callspec.params["unit"] == "user" else "--system"


def test_a_unit_has_no_word_that_systemd_does_not_know(unit: Path, request: pytest.FixtureRequest) -> None:
    verified = analyze("verify", manager_of(request), "--man=no", unit=unit)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_what_the_page_says_of_a_units_exposure_is_what_is_measured(
    unit: Path, request: pytest.FixtureRequest
) -> None:
    page = read("docs/service.md").prose
    found = re.search(rf"^\| {request.node.callspec.params['unit']} \|.*\| (\d+\.\d) \|$", page, re.MULTILINE)
    version = re.search(r"systemd-analyze security` of systemd (\d+)", page)
    assert found is not None
    assert version is not None
    said = round(float(found[1]) * 10)
    measured = {
        each: analyze("security", "--offline=yes", f"--threshold={each}", manager_of(request), unit=unit)
        for each in (said, said - 1)
    }

    here = analyze("--version").stdout.split()[1]
    # Another release has other rows in its table: of it we know only that it reads the unit.
    if here == version[1]:
        assert [measured[said].returncode, measured[said - 1].returncode] == [0, 1], measured[said].stdout[
            -200:
        ]
    assert "Overall exposure level" in measured[said].stdout


@pytest.mark.parametrize("name", [SYSTEM, USER])
def test_each_line_that_keeps_the_daemon_from_something_says_why(name: str) -> None:
    text = (service.folder() / name).read_text()
    _, _, kept_from = text.partition(
        "NoNewPrivileges" if name == USER else "What the daemon and what it starts"
    )
    before = ""
    for line in kept_from.split("# Left out")[0].splitlines()[1:]:
        if re.match(r"[A-Z]\w+=", line):
            # One reason may be for two lines that say one thing.
            assert before.startswith(("#", "ProtectClock")), line
        before = line


def test_a_restart_is_left_where_the_next_start_is_refused_as_well() -> None:
    from spl import errors

    (line,) = re.findall(
        r"^RestartPreventExitStatus=(.*)$", (service.folder() / SYSTEM).read_text(), re.MULTILINE
    )
    lasting = (
        errors.HomeUnsafe, errors.SocketPathTooLong, errors.SettingsInvalid, errors.StoreDamaged, errors.StoreNewer,
    )  # fmt: skip
    assert line.split() == ["2", *(str(kind.exit_status) for kind in lasting)]
    assert f"\n{'RestartPreventExitStatus='}{line}\n" in (service.folder() / USER).read_text()


def test_the_user_of_the_drop_in_is_the_one_that_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    made = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", str(service.folder() / "systemd/sysusers.d/spl.conf")],
        capture_output=True,
        text=True,
    )

    assert made.returncode == 0, made.stderr
    (entry,) = (tmp_path / "etc" / "passwd").read_text().splitlines()
    name, _, uid, _, _, home, shell = entry.split(":")
    assert (name, home, shell) == ("spl", "/var/lib/spl", "/usr/sbin/nologin")
    assert 0 < int(uid) < 1000
    assert "\nUser=spl\n" in (service.folder() / OWN_USER).read_text()


def test_the_folder_that_workers_pass_through_is_roots(tmp_path: Path) -> None:
    made = subprocess.run(
        [
            "systemd-tmpfiles",
            f"--root={tmp_path}",
            "--create",
            str(service.folder() / "systemd/tmpfiles.d/spl.conf"),
        ],
        capture_output=True,
        text=True,
    )

    assert (made.returncode, made.stderr) == (0, "")
    status = (tmp_path / "run" / "spl").stat()
    assert (status.st_mode & 0o7777, status.st_uid) == (0o755, os.geteuid())
