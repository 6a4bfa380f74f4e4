from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bwrap.errors import LayerError
from bwrap.uids import Pool

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
from bwrap.uids import Pool
held = Pool(folder={folder!r}).take({uid})
print(held is not None, flush=True)
input()
"""


def holder(uid: int, folder: Path) -> subprocess.Popen[str]:
    """Start a process that takes a uid and keeps it until it is told to end, or killed."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(uid=uid, folder=str(folder))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "uids"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.claim("I9")
def test_a_uid_is_leased_to_one_process_and_free_again_when_that_dies(folder: Path) -> None:
    pool = Pool(folder=str(folder))
    with holder(pool.first, folder) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert pool.take(pool.first) is None

        other.kill()
        other.wait()

        lease = pool.take(pool.first)
        assert lease is not None
        lease.release()
        lease.release()


@pytest.mark.claim("I9")
def test_leases_differ_and_lie_in_the_range(folder: Path) -> None:
    pool = Pool(folder=str(folder))
    leases = [pool.lease() for _ in range(50)]

    assert len({lease.uid for lease in leases}) == 50
    assert all(60600 <= lease.uid <= 60855 < 61184 for lease in leases)
    for lease in leases:
        lease.release()


@pytest.mark.claim("I9")
@pytest.mark.parametrize("size", [1, 2])
def test_a_range_that_is_used_up_is_a_refusal_by_the_layer_of_the_own_user(folder: Path, size: int) -> None:
    pool = Pool(60980, 60980 + size - 1, str(folder))
    leases = [pool.lease() for _ in range(size)]

    with pytest.raises(LayerError) as caught:
        pool.lease()

    assert caught.value.layer == "separate_user"
    assert caught.value.expected == f"a free uid from 60980 to {60980 + size - 1}"
    assert caught.value.observed == f"{size} leased, 0 named in passwd, 0 with a process"
    leases[0].release()
    again = pool.lease()
    assert again.uid == leases[0].uid
    for lease in (again, *leases):
        lease.release()


@pytest.mark.claim("I9")
@pytest.mark.skipif(os.getuid() != 0, reason="a process under another uid needs root")
def test_a_uid_under_which_something_runs_is_passed_over(folder: Path) -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=60990, group=60990, extra_groups=[]):
        lease = Pool(60990, 60991, str(folder)).lease()

        assert lease.uid == 60991
    lease.release()


def test_a_uid_with_a_name_is_passed_over(folder: Path) -> None:
    # Uid 1 is 'daemon' on every Debian.
    with pytest.raises(LayerError, match="1 named in passwd"):
        Pool(1, 1, str(folder)).lease()


def test_a_uid_is_known_from_its_first_lease_on_whatever_the_range(folder: Path) -> None:
    lease = Pool(60980, 60981, str(folder)).lease()
    lease.release()

    assert Pool(60600, 60855, str(folder)).knows(lease.uid)
    assert not Pool(60600, 60855, str(folder)).knows(60600)


def test_a_folder_open_to_others_is_refused(folder: Path) -> None:
    folder.chmod(0o755)

    with pytest.raises(LayerError, match="observed open to others"):
        Pool(folder=str(folder)).lease()


def test_a_symlink_in_place_of_the_folder_or_a_lock_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(LayerError):
        Pool(folder=str(tmp_path / "link")).lease()

    (folder / "60600").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        Pool(folder=str(folder)).take(60600)
    assert not (tmp_path / "elsewhere").exists()
