from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import sh

from spl.errors import HostDoubtful, HostUnfit

if TYPE_CHECKING:
    from pathlib import Path

    from spl.home import Home
    from tests.cli.conftest import Spl


def unfit(spl: Spl, *arguments: str, name: str = "home", **environ: str) -> dict[str, Any]:
    """Examine a host that has one failure, the home's or another, and give that."""
    ended = spl("doctor", "-o", "json", *arguments, **environ)
    assert ended.returncode == HostUnfit.exit_status
    said, document = ended.stderr.splitlines()
    assert said.startswith(f"spl: HOST_UNFIT: no worker can be confined on this host, for {name}; ")
    assert json.loads(document)["code"] == "HOST_UNFIT"
    found: dict[str, Any]
    (found,) = [each for each in json.loads(ended.stdout)["findings"] if each["severity"] == "failure"]
    assert found["name"] == name
    assert found["remedy"]
    # Nothing is tried on a host that is known to fail.
    assert "layer " not in ended.stdout
    return found


def test_a_host_where_all_is_well_ends_with_0_and_nothing_on_standard_error(spl: Spl, home: Home) -> None:
    ended = spl("doctor")
    document = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(document) == ["object", "status", "shape", "findings"]
    assert (document["object"], document["status"]) == ("doctor", "ok")
    assert document["shape"] == ("hosted" if os.geteuid() == 0 else "same-user")
    assert document["findings"][0] == {"name": "home", "severity": "ok", "observed": str(home.path)}
    # It wrote nothing there.
    assert not home.token.exists()
    assert not home.database.exists()


def test_for_people_each_finding_is_a_line(spl: Spl) -> None:
    ended = spl("doctor", "-o", "table")
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert lines[0] == ["name", "severity", "observed", "remedy"]
    assert [line[0] for line in lines if line[0] in ("home", "kernel", "bubblewrap")] == [
        "home", "kernel", "bubblewrap",
    ]  # fmt: skip
    assert any(line[:3] == ["layer", "network", "ok"] for line in lines)


def test_a_home_that_is_not_there_is_no_fault_and_is_not_made(spl: Spl, tmp_path: Path) -> None:
    path = tmp_path / "new"
    ended = spl("doctor", "-o", "json", "--home", str(path))
    assert ended.returncode == 0
    assert "is not there yet, and can be made" in json.loads(ended.stdout)["findings"][0]["observed"]
    assert not path.exists()


def test_a_home_that_cannot_be_made_is_a_failure(spl: Spl, tmp_path: Path) -> None:
    found = unfit(spl, "--home", str(tmp_path / "no" / "such"))
    assert f"nothing can be made in '{tmp_path / 'no'}'" in found["observed"]


def test_a_home_that_is_a_symlink_is_a_failure(spl: Spl, home: Home, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(home.path)
    assert "it is a symlink" in unfit(spl, "--home", str(link))["observed"]


def test_a_home_that_cannot_be_written_is_a_failure(spl: Spl, home: Home) -> None:
    """As root too, who is held up by no mode."""
    sh.mount("-t", "tmpfs", "-o", "ro,size=64k,mode=0700", "spl-test", str(home.path))
    try:
        assert f"{home.path} cannot be written" in unfit(spl)["observed"]
    finally:
        sh.umount(str(home.path))


def test_a_home_open_to_others_is_a_failure(spl: Spl, home: Home) -> None:
    home.path.chmod(0o755)
    assert "its mode is 0755" in unfit(spl)["observed"]


@pytest.mark.parametrize("there", [True, False])
def test_a_home_whose_sockets_would_have_too_long_a_path_is_a_failure(
    spl: Spl, tmp_path: Path, there: bool
) -> None:
    long = tmp_path / ("h" * 100)
    if there:
        long.mkdir(mode=0o700)
    assert "107 is the most" in unfit(spl, "--home", str(long))["observed"]
    assert long.exists() is there


def test_a_setting_that_is_not_valid_is_a_failure(spl: Spl, home: Home) -> None:
    home.config.write_text("port = 'x'\n")
    assert "the key 'port'" in unfit(spl, name="settings")["observed"]
    home.config.unlink()
    assert "SPL_PORT" in unfit(spl, name="settings", SPL_PORT="x")["observed"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"worker": ""}, "'worker' is the name of a shipped profile"),
        ({"own": 'extends = "worker"\n[limits]\nopen_files = "many"\n', "strict": ""}, ", and 1 more"),
    ],
)
def test_profiles_of_ones_own_that_nothing_can_run_by_are_a_warning(
    spl: Spl, home: Home, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (home.profiles / f"{name}.toml").write_text(text)
    ended = spl("doctor")
    assert ended.returncode == HostDoubtful.exit_status
    (found,) = [each for each in json.loads(ended.stdout)["findings"] if each["severity"] == "warning"]
    assert (found["name"], said in found["observed"]) == ("profiles", True)
    assert "'spl profile lint'" in found["remedy"]
    assert f"{home.profiles}/" in found["observed"]


def test_profiles_of_ones_own_below_the_floor_are_named_and_no_fault_of_the_host(
    spl: Spl, home: Home
) -> None:
    (home.profiles / "open.toml").write_text('extends = "worker"\n[namespaces]\nnet = false\n')
    ended = spl("doctor")
    assert ended.returncode == 0
    assert {"name": "profiles", "severity": "ok", "observed": "1 of your own; below the floor: open"} in (
        json.loads(ended.stdout)["findings"]
    )


def test_a_capacity_of_nothing_is_blamed_on_the_setting_that_says_so(spl: Spl) -> None:
    ended = spl("doctor", SPL_ADMISSION_CAPACITY="0")
    assert ended.returncode == HostDoubtful.exit_status
    (found,) = [each for each in json.loads(ended.stdout)["findings"] if each["severity"] == "warning"]
    assert "the setting admission_capacity is 0" in found["observed"]


def test_what_is_odd_in_a_homes_name_reaches_no_terminal(spl: Spl, tmp_path: Path) -> None:
    odd = tmp_path / "\x1b[2J\u202e\udcff"
    ended = spl("doctor", "-o", "table", "--home", str(odd))
    assert ended.returncode == 0
    assert r"\x1b[2J\u202e\udcff is not there yet" in ended.stdout


def test_a_place_for_temporary_files_with_too_long_a_path_is_what_failed_the_trial(
    spl: Spl, tmp_path: Path
) -> None:
    long = tmp_path / ("t" * 100)
    long.mkdir()
    ended = spl("doctor", "-o", "json", TMPDIR=str(long))
    assert ended.returncode == HostUnfit.exit_status
    (found,) = [each for each in json.loads(ended.stdout)["findings"] if each["severity"] == "failure"]
    assert (found["name"], "107 is the most" in found["observed"]) == ("trial", True)
    assert list(long.iterdir()) == []
