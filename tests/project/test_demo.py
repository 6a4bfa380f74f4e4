from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "docs" / "demo.sh"


def test_a_demonstration_whose_reader_goes_away_leaves_neither_its_daemon_nor_its_home() -> None:
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    demo = subprocess.Popen(
        ["/bin/sh", str(DEMO)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert demo.stdout is not None
    served = next(found for line in demo.stdout if (found := re.search(r"serves (\S+)", line)))
    home = Path(served[1])
    daemon = os.pidfd_open(int((home / "run" / "spl.pid").read_text()))
    try:
        demo.stdout.close()
        assert demo.wait(60) != 0
        assert not home.exists()
        # Whether it is gone, asked of what was opened while it lived.
        assert "Pid:\t-1\n" in Path(f"/proc/self/fdinfo/{daemon}").read_text()
    finally:
        os.close(daemon)
