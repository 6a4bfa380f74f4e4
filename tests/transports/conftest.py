"""Both shapes: a child in a daemon's place for each, in which starts are played."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from escape.installation import Installation

# An ordinary uid without a name: nothing of this host belongs to it.
ORDINARY = 12346


@pytest.fixture(scope="module", params=["same-user", "hosted"])
def play(request: pytest.FixtureRequest, world_readable: Installation) -> Iterator[Callable[..., None]]:
    """Give, for each shape in turn, what plays a function of starts.py, flights.py or standing.py by its name."""
    if request.param == "hosted" and os.getuid() != 0:
        pytest.skip("the hosted shape needs root")
    other = ORDINARY if request.param == "same-user" and os.getuid() == 0 else None
    child = subprocess.Popen(
        [*world_readable.command, "-m", "tests.transports.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=world_readable.env,
        cwd="/",
        user=other,
        group=other,
        extra_groups=None if other is None else [],
    )
    stdin, stdout = child.stdin, child.stdout
    assert stdin is not None
    assert stdout is not None

    def played(name: str, **arguments: object) -> None:
        stdin.write(json.dumps({"name": name, "arguments": arguments}) + "\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer, "the child that plays the daemon ended"
        if failure := json.loads(answer):
            pytest.fail(failure)

    yield played
    child.communicate()
