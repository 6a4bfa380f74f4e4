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

    from escape.installation import Installation

EACCES = -13

# Restricts itself by the worker's own operation, then tries what it is told.
CHILD = """
import ctypes, json, sys
from spl.worker.probe import attempt_all
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
print(json.dumps(attempt_all(json.loads(sys.argv[1]))))
"""


def giving_up(version: int, *given_back: object) -> list[Any]:
    """Give the attempt by which a process gives up all rights of a version but for changes beneath some folders."""
    calls = [landlock.CREATE_RULESET, landlock.ADD_RULE, landlock.RESTRICT_SELF]
    folders = [str(each) for each in given_back]
    return ["given up", "landlock", calls, list(landlock.rights(version)), landlock.changes(version), folders]


def restricted(copy: Installation, first: list[Any], tries: dict[str, list[Any]]) -> dict[str, Any]:
    """Have a process of its own give up rights and try some operations; give each answer by name."""
    rows = [first, *([name, *words] for name, words in tries.items())]
    done = subprocess.run(
        [*copy.command, "-c", CHILD, json.dumps(rows)], env=copy.env, capture_output=True, check=True
    )
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_a_ruleset_has_a_word_for_each_kind_of_right_the_version_knows() -> None:
    sizes = {version: len(landlock.rights(version)) for version in range(1, 9)}

    assert sizes == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 3, 8: 3}


def test_the_rights_of_each_version_are_those_of_the_kernels_header() -> None:
    def files(version: int) -> int:
        return landlock.rights(version)[0]

    # 13 rights in the first version, less reading files and folders; then REFER, TRUNCATE, IOCTL_DEV.
    assert files(1) == 0b1_1111_1111_0011
    assert [files(version) ^ files(version - 1) for version in range(2, 7)] == [
        1 << 13,
        1 << 14,
        0,
        1 << 15,
        0,
    ]
    assert landlock.rights(7)[1:] == (0b11, 0b11)


def test_a_rule_gives_back_every_right_over_files_but_that_to_execute_one() -> None:
    assert {landlock.rights(version)[0] ^ landlock.changes(version) for version in range(1, 9)} == {1}


def test_the_kernel_takes_the_rights_of_every_version_up_to_its_own(
    world_readable: Installation, tmp_path: Path
) -> None:
    newest = landlock.abi()
    assert newest >= 1, "this host's kernel has no Landlock"

    for version in range(1, newest + 1):
        for folders in ((), (tmp_path,)):
            told = restricted(world_readable, giving_up(version, *folders), {})
            assert told == {"given up": 0}, version


def test_what_was_given_up_is_denied_but_beneath_the_folders_it_was_given_back_for(
    world_readable: Installation, tmp_path: Path
) -> None:
    python = sys.executable
    tries: dict[str, list[Any]] = {}
    for name in ("in", "out"):
        folder = tmp_path / name
        (folder / "deeper").mkdir(parents=True)
        (folder / "file").touch()
        tries |= {
            f"read {name}": ["open", f"{folder}/file", 0],
            f"list {name}": ["list", f"{folder}/deeper"],
            f"write {name}": ["open", f"{folder}/file", 1],
            f"make {name}": ["open", f"{folder}/deeper/new", 0o101],
        }
    tries["execute"] = ["syscall", number("execve", architecture()), python, None, None]
    (tmp_path / "in" / "program").symlink_to(python)
    tries["execute in"] = ["syscall", number("execve", architecture()), f"{tmp_path}/in/program", None, None]

    told = restricted(world_readable, giving_up(landlock.abi(), tmp_path / "in"), tries)

    assert told == {
        "given up": 0, "execute": EACCES, "execute in": EACCES,
        "read in": 0, "list in": [], "write in": 0, "make in": 0,
        "read out": 0, "list out": [], "write out": EACCES, "make out": EACCES,
    }  # fmt: skip


def test_a_folder_that_is_not_there_is_no_reason_to_give_up_less(
    world_readable: Installation, tmp_path: Path
) -> None:
    told = restricted(world_readable, giving_up(landlock.abi(), tmp_path / "absent"), {})

    assert told == {"given up": -2}


def test_a_kernel_without_it_answers_with_its_errno(world_readable: Installation) -> None:
    """4095 stands for a call that the kernel does not have."""
    done = subprocess.run(
        [
            *world_readable.command,
            "-c",
            CHILD,
            json.dumps([["given up", "landlock", [4095] * 3, [1], 0, []]]),
        ],
        env=world_readable.env,
        capture_output=True,
        check=True,
    )

    assert json.loads(done.stdout) == {"given up": -38}


# Under a filter that answers Landlock's first call, and no other, with an errno.
ASKED = """
import ctypes, errno, sys
import pyseccomp
from bwrap import landlock
from bwrap.errors import LayerError
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
refusing = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
refusing.add_rule(pyseccomp.ERRNO(getattr(errno, sys.argv[1])), 444)
refusing.load()
try:
    print(landlock.abi())
except LayerError as error:
    print(error.layer)
"""


@pytest.mark.claim("I12")
@pytest.mark.parametrize(
    ("answer", "told"),
    [("ENOSYS", "0"), ("EOPNOTSUPP", "0"), ("EPERM", "landlock"), ("EACCES", "landlock")],
)
def test_a_version_that_cannot_be_asked_for_is_not_taken_for_a_kernel_without_it(
    world_readable: Installation, answer: str, told: str
) -> None:
    done = subprocess.run(
        [*world_readable.command, "-c", ASKED, answer],
        env=world_readable.env,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == told
