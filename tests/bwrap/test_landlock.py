"""Landlock's rights by the version of its ABI, and what the kernel makes of them in a process that gives them up."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bwrap import landlock
from bwrap.seccomp import architecture, number

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Copy

EACCES = -13

# Restricts itself by the worker's own operation, then tries what it is told.
CHILD = """
import ctypes, json, sys
from spl.worker.probe import attempt_all
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
print(json.dumps(attempt_all(json.loads(sys.argv[1]))))
"""


def restricted(copy: Copy, tries: dict[str, list[Any]], *rights: int) -> dict[str, Any]:
    """Have a process of its own give up rights and try some operations; give each answer by name."""
    first = ["given up", "landlock", landlock.CREATE_RULESET, landlock.RESTRICT_SELF, *rights]
    rows = [first, *([name, *words] for name, words in tries.items())]
    done = subprocess.run(
        [*copy.command, "-c", CHILD, json.dumps(rows)], env=copy.env, capture_output=True, check=True
    )
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_a_ruleset_has_a_word_for_each_kind_of_right_the_version_knows() -> None:
    sizes = {version: len(landlock.rights(version, writes=False)) for version in range(1, 9)}

    assert sizes == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 3, 8: 3}


def test_the_rights_of_each_version_are_those_of_the_kernels_header() -> None:
    def files(version: int) -> int:
        return landlock.rights(version, writes=False)[0]

    # 13 rights in the first version, less reading files and folders; then REFER, TRUNCATE, IOCTL_DEV.
    assert files(1) == 0b1_1111_1111_0011
    assert [files(version) ^ files(version - 1) for version in range(2, 7)] == [
        1 << 13,
        1 << 14,
        0,
        1 << 15,
        0,
    ]
    assert landlock.rights(7, writes=True) == (1, 0b11, 0b11)


@pytest.mark.parametrize("writes", [False, True])
def test_the_kernel_takes_the_rights_of_every_version_up_to_its_own(
    world_readable: Copy, writes: bool
) -> None:
    newest = landlock.abi()
    assert newest >= 1, "this host's kernel has no Landlock"

    for version in range(1, newest + 1):
        told = restricted(world_readable, {}, *landlock.rights(version, writes=writes))
        assert told == {"given up": 0}, version


def test_what_was_given_up_is_denied_and_the_rest_works(world_readable: Copy, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    python, new, old = sys.executable, str(tmp_path / "new"), str(tmp_path / "file")
    tries: dict[str, list[Any]] = {
        "read": ["open", old, 0],
        "list": ["list", str(tmp_path)],
        "write": ["open", old, 1],
        "make": ["open", new, 0o101],
        "execute": ["syscall", number("execve", architecture()), python, None, None],
    }

    told = restricted(world_readable, tries, *landlock.rights(landlock.abi(), writes=False))
    writing = restricted(world_readable, tries, *landlock.rights(landlock.abi(), writes=True))

    assert told == {
        "given up": 0,
        "read": 0,
        "list": ["file"],
        "write": EACCES,
        "make": EACCES,
        "execute": EACCES,
    }
    assert writing == {"given up": 0, "read": 0, "list": ["file"], "write": 0, "make": 0, "execute": EACCES}


def test_a_kernel_without_it_answers_with_its_errno(world_readable: Copy) -> None:
    """4095 stands for a call that the kernel does not have."""
    done = subprocess.run(
        [*world_readable.command, "-c", CHILD, json.dumps([["given up", "landlock", 4095, 4095, 1]])],
        env=world_readable.env,
        capture_output=True,
        check=True,
    )

    assert json.loads(done.stdout) == {"given up": -38}
