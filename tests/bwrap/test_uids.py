from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bwrap import uids
from bwrap.errors import LayerError

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
from bwrap import uids
held = uids.take({uid}, {folder!r})
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
def pool(tmp_path: Path) -> Path:
    folder = tmp_path / "uids"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.claim("I9")
def test_a_uid_is_leased_to_one_process_and_free_again_when_that_dies(pool: Path) -> None:
    with holder(uids.FIRST, pool) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert uids.take(uids.FIRST, str(pool)) is None

        other.kill()
        other.wait()

        lease = uids.take(uids.FIRST, str(pool))
        assert lease is not None
        lease.release()
        lease.release()


@pytest.mark.claim("I9")
def test_leases_differ_and_lie_in_the_pool(pool: Path) -> None:
    leases = [uids.lease(str(pool)) for _ in range(50)]

    assert len({lease.uid for lease in leases}) == 50
    assert all(uids.FIRST <= lease.uid <= uids.LAST < 61184 for lease in leases)
    for lease in leases:
        lease.release()


def test_an_empty_pool_is_a_refusal_by_the_layer_of_the_own_user(
    pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uids, "LAST", uids.FIRST + 1)
    leases = [lease for uid in (uids.FIRST, uids.LAST) if (lease := uids.take(uid, str(pool)))]

    with pytest.raises(LayerError) as caught:
        uids.lease(str(pool))

    assert caught.value.layer == "separate_user"
    for lease in leases:
        lease.release()


@pytest.mark.skipif(os.getuid() != 0, reason="a process under another uid needs root")
def test_a_uid_under_which_something_runs_is_passed_over(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uids, "FIRST", 60990)
    monkeypatch.setattr(uids, "LAST", 60991)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=60990, group=60990, extra_groups=[]):
        lease = uids.lease(str(pool))

        assert lease.uid == 60991
    lease.release()


def test_a_uid_with_a_name_is_passed_over(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Uid 1 is 'daemon' on every Debian, and nothing runs under it; 60991 has no name.
    monkeypatch.setattr(uids, "FIRST", 1)
    monkeypatch.setattr(uids, "LAST", 1)

    with pytest.raises(LayerError):
        uids.lease(str(pool))


def test_a_folder_open_to_others_is_refused(pool: Path) -> None:
    pool.chmod(0o755)

    with pytest.raises(LayerError, match="observed open to others"):
        uids.lease(str(pool))


def test_a_symlink_in_place_of_the_folder_or_a_lock_is_refused(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pool)
    with pytest.raises(LayerError):
        uids.lease(str(tmp_path / "link"))

    (pool / str(uids.FIRST)).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        uids.take(uids.FIRST, str(pool))
    assert not (tmp_path / "elsewhere").exists()
