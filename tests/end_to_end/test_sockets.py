"""Where a live daemon's two sockets lie, and whom they are closed to."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.test_isolation import ask_as

if TYPE_CHECKING:
    from tests.end_to_end.daemon import Shape

HEALTH = "GET /v1/engine/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
RUN = "GET /v1/worker/run HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.claim("M1", "I8")
def test_even_root_is_closed_unread_at_an_ordinary_users_sockets(same_user: Shape, home: Path) -> None:
    with same_user.daemon(home):
        own, workers = home / "run" / "spl.sock", home / "run" / "spl-worker.sock"
        assert ask_as(same_user.uid, own, HEALTH).startswith("HTTP/1.1 200 ")
        assert ask_as(same_user.uid, workers, RUN).startswith("HTTP/1.1 401 ")
        # Root, whom no mode of a file keeps out.
        assert ask_as(0, own, HEALTH) == ""
        assert ask_as(0, workers, RUN) == ""


@pytest.mark.claim("M1", "I3", "I9")
def test_a_hosted_worker_socket_lies_in_a_folder_that_others_may_pass_and_not_list(
    hosted: Shape, home: Path
) -> None:
    real = home.with_name("real")
    real.mkdir()
    link = home.with_name("link")
    link.symlink_to(real)
    with hosted.daemon(link / "home"):
        named = hashlib.sha256(os.fsencode(real / "home")).hexdigest()[:16]
        folder = Path("/run/spl", named)
        inside = real / "home" / "run" / "spl-worker.sock"
        assert os.readlink(inside) == f"{folder}/spl-worker.sock"
        assert [path.name for path in folder.iterdir()] == ["spl-worker.sock"]
        modes = {
            path: stat.filemode(path.lstat().st_mode) for path in (folder.parent, folder, *folder.iterdir())
        }
        assert modes == {
            folder.parent: "drwxr-xr-x",
            folder: "drwx--x--x",
            folder / "spl-worker.sock": "srw-rw-rw-",
        }
        assert {path.lstat().st_uid for path in modes} == {0}
    assert not folder.exists()
    assert not os.path.lexists(inside)
