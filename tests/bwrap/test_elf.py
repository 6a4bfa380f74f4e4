from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bwrap import elf, host

PROGRAMS = [
    "/usr/bin/env",
    "/usr/bin/id",
    "/usr/bin/bwrap",
    "/usr/bin/strace",
    os.path.realpath("/usr/bin/python3"),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_program_needs_is_what_the_linker_would_load(program: str) -> None:
    assert {os.path.realpath(path) for path in elf.needs(program)} == {
        os.path.realpath(path) for path in host.shared_objects(program)
    }


def test_a_file_that_is_no_program_needs_nothing() -> None:
    assert elf.needs("/etc/passwd") == []
    assert elf.needs("/dev/null") == []


def test_an_object_of_another_machine_needs_nothing(tmp_path: Path) -> None:
    data = bytearray(Path("/usr/bin/env").read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    (tmp_path / "foreign").write_bytes(data)
    assert elf.needs(str(tmp_path / "foreign")) == []


@given(st.lists(st.tuples(st.integers(0, 1023), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_file_that_lies_about_itself_is_read_without_harm(changes: list[tuple[int, int]]) -> None:
    data = bytearray(Path("/usr/bin/env").read_bytes())
    for at, value in changes:
        data[at] = value
    descriptor = os.memfd_create("lying")
    try:
        os.write(descriptor, data)
        assert all(os.path.isfile(path) for path in elf.needs(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)
