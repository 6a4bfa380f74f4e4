"""A victim that was touched is seen to have been, by its name, and one that was left alone is not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.escape.touching import TOUCHES


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    command = [sys.executable, "-m", "tests.escape.touching"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, start_new_session=True
    )
    said: dict[str, list[str]] = json.loads(done.stdout)
    return said


@pytest.mark.claim("E1")
@pytest.mark.parametrize("name", TOUCHES)
def test_a_victim_that_is_touched_is_seen_to_have_been(found: dict[str, list[str]], name: str) -> None:
    assert found[name] == [TOUCHES[name][0]]


def test_victims_that_are_left_alone_are_as_they_were(found: dict[str, list[str]]) -> None:
    assert found["nothing"] == []
