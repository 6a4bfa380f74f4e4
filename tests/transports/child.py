"""A process in a daemon's place that plays starts, one a line of standard input, in whichever shape its user has."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from spl.hardening import protect
from tests.transports import flights, standing, starts

PLAYS = {**vars(starts), **vars(flights), **vars(standing)}


def main() -> None:
    """Serve until standard input ends; each answer is what failed, or an empty text."""
    protect()
    # The log is written to standard output here, and must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        said = json.loads(line)
        failure = ""
        try:
            with tempfile.TemporaryDirectory(prefix="spl-") as folder, pytest.MonkeyPatch.context() as patch:
                asyncio.run(PLAYS[said["name"]](Path(folder), patch, **said["arguments"]))
        except BaseException:  # noqa: BLE001 - told to the test, which fails with it
            failure = traceback.format_exc()
        answers.write(json.dumps(failure) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
