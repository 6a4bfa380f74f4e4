"""What a daemon that died left running, and the next one's first act."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spl.errors import DaemonUnreachable
from tests.end_to_end.daemon import wait_until_gone
from tests.end_to_end.faults import become, in_mounts
from tests.end_to_end.test_profiles import choose

if TYPE_CHECKING:
    from tests.end_to_end.daemon import Shape

# A bubblewrap that, once it is told to, goes no further than its start: it says its pid and waits for ever. That is
# where one with a process-id namespace is when its daemon dies before it has tied itself to that.
STUCK = """#!/usr/bin/python3 -IS
import os, signal, sys
if sys.argv[1] == "--args" and os.path.exists({told!r}):
    with open({told!r}, "w") as said:
        said.write(str(os.getpid()))
    signal.pause()
os.execv({real!r}, ["bwrap", *sys.argv[1:]])
"""

ALONE = {"SPL_STANDBY_WORKERS": "0"}
"""A daemon whose runs' workers are the only ones it has."""


@pytest.mark.claim("I13")
def test_what_a_dead_daemon_left_running_is_killed_and_logged_when_the_next_one_starts(
    shape: Shape, home: Path
) -> None:
    real, fake, told = (home.with_name(name) for name in ("bwrap-real", "bwrap", "told"))
    real.write_bytes(Path("/usr/bin/bwrap").read_bytes())
    fake.write_text(STUCK.format(real=str(real), told=str(told)))
    for path in (real, fake):
        path.chmod(0o755)
    prefix = [*in_mounts(f"mount --bind {fake} /usr/bin/bwrap"), *become(shape)]
    with contextlib.ExitStack() as stack:
        first = shape.as_root_first().daemon(home, prefix=prefix, **ALONE)
        with first as daemon, ThreadPoolExecutor(1) as other:
            daemon.set_transport("sandboxed")
            choose(daemon, "strict")
            os.mkfifo(told)
            told.chmod(0o666)
            starting = other.submit(daemon.start)
            pid = int(told.read_text())
            pidfd = os.pidfd_open(pid)
            stack.callback(os.close, pidfd)
            stack.callback(kill, pidfd)
            daemon.process.kill()
            daemon.process.wait()
            with pytest.raises(DaemonUnreachable):
                starting.result()
        told.unlink()
        assert not select.select([pidfd], [], [], 0)[0], "it died with its daemon"
        assert list((home / "run" / "workers").iterdir())

        with shape.daemon(home, **ALONE) as daemon:
            wait_until_gone(pid, pidfd)
            swept = json.loads(daemon.log.wait_for("killed workers of an earlier daemon"))
            assert swept["pids"] == [pid]
            assert list((home / "run" / "workers").iterdir()) == []
            assert daemon.finish(daemon.start()["thread"])["state"] == "done"


def kill(pidfd: int) -> None:
    """Kill what a process that was not swept would leave behind."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
