"""A daemon that a service manager has started tells it how it goes; see tests/systemd for a real manager."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.daemon import SECONDS
from tests.test_notify import heard

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape


@pytest.mark.one_shape
def test_a_manager_is_told_once_the_api_answers_and_again_when_the_daemon_stops(
    shape: Shape, home: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{home}")
        manager.settimeout(SECONDS)
        asked = {"NOTIFY_SOCKET": f"@{home}", "WATCHDOG_USEC": "200000", "MY_API_KEY": "x"}
        with shape.daemon(home, **asked) as daemon:
            assert heard(manager) == ["STATUS=starting"]
            assert heard(manager) == ["READY=1", "STATUS=serving, 0 runs"]
            assert daemon.client.request("GET", "/v1/engine/health")["status"] == "ok"
            assert heard(manager) == ["WATCHDOG=1", "STATUS=serving, 0 runs"]
            daemon.stop()
            while (last := heard(manager))[0] == "WATCHDOG=1":
                pass
            assert last[:2] == ["STOPPING=1", "STATUS=stopping"]
            assert int(last[2].removeprefix("EXTEND_TIMEOUT_USEC=")) >= 20_000_000

        started = shape.run("serve", "--daemon", "--home", str(home), "--port", "0", **asked)
        stopped = shape.run("stop", "--home", str(home))
        # It is another process than the one that was started here, and is none of the manager's.
        manager.setblocking(False)
        assert (started.returncode, stopped.returncode) == (0, 0)
        with pytest.raises(BlockingIOError):
            manager.recv(1)
