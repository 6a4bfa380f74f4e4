"""What a daemon writes is verified as its user would: over the API, from an export, and in the log's own file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.scripts import NOTE, SUM, UNKNOWN, calling, saying, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape

pytestmark = pytest.mark.one_shape


@pytest.mark.claim("V2")
def test_runs_on_both_transports_verify_while_the_daemon_runs_and_after_it(shape: Shape, home: Path) -> None:
    script = write(home.with_name("scripts"), calling(NOTE, SUM, UNKNOWN), saying("Done."))
    export, thread, head = home.with_name("export.json"), "", ""
    with shape.daemon(home, "--provider", script) as daemon:
        for transport in ("in_process", "sandboxed"):
            daemon.set_transport(transport)
            thread = daemon.start("a note and a sum")["thread"]
            assert daemon.finish(thread)["state"] == "done"
            listing = daemon.request("GET", f"/v1/threads/{thread}/records", limit=1000)
            export.write_text(json.dumps(listing))
            head = listing["data"][-1]["id"]
            asked = shape.run("verify", thread, "--home", str(home), "--head", head)
            assert (asked.returncode, asked.stderr) == (0, "")
            assert json.loads(asked.stdout)["verdict"] == "whole"
        verify_the_log(shape, home)
        assert daemon.stop() == 0

    verify_the_log(shape, home)
    offline = shape.run("verify", str(export))
    said = json.loads(offline.stdout)
    assert (offline.returncode, said["thread"], said["outside"]) == (0, thread, [])
    assert (said["verdict"], said["head"]) == ("internally consistent", head)


def verify_the_log(shape: Shape, home: Path) -> None:
    ended = shape.run("verify", str(home / "hub.db"))
    said = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr, said["findings"]) == (0, "", [])
    assert (said["source"], said["runs"], said["verdict"]) == ("log", 2, "internally consistent")
