"""A daemon whose log nobody reads for a while."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from typing import TYPE_CHECKING

from spl.client import Client
from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape


def test_a_daemon_whose_log_nobody_reads_starts_and_serves_all_the_same_and_loses_no_line(
    same_user: Shape, home: Path
) -> None:
    reading, writing = os.pipe()
    # Full before the daemon's first line, which waited for good when the event loop wrote it.
    before = bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096))
    os.write(writing, before)
    with subprocess.Popen(
        same_user.spl("serve", "--home", str(home), "--port", "0"),
        env=dict(same_user.environment),
        user=same_user.uid,
        group=same_user.uid,
        extra_groups=[],
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
    ) as daemon:
        os.close(writing)
        assert daemon.stdout is not None
        said = [daemon.stdout.readline() for _ in range(2)]
        port = int(said[1].split("127.0.0.1:")[1].split()[0])
        client = Client(("127.0.0.1", port), bearer=(home / "token").read_text().strip())
        assert client.request("GET", "/v1/engine/health")["status"] == "ok"
        daemon.terminate()
        with open(reading, "rb") as pipe:
            assert pipe.read(len(before)) == before
            lines = [json.loads(line) for line in pipe]
        assert daemon.wait(SECONDS) == 0
    assert [line["event"] for line in lines] == ["the log is open", "stopping"]
