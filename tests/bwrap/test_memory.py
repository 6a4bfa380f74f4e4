from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bwrap import memory
from tests.bwrap import test_cgroup

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30

MEMINFO = """MemTotal:       16314360 kB
MemFree:          309612 kB
MemAvailable:    8388608 kB
Buffers:          131072 kB
"""


def planted(root: Path, said: str) -> str:
    (root / "proc").mkdir()
    (root / "proc" / "meminfo").write_text(said)
    return str(root)


@pytest.mark.claim("A1")
def test_what_is_available_is_what_the_kernel_says_without_swapping(tmp_path: Path) -> None:
    assert memory.available(planted(tmp_path, MEMINFO)) == 8 * GIB
    assert memory.available() > 0


@pytest.mark.claim("A1")
@pytest.mark.parametrize("said", ["", "MemFree: 5 kB\n", "MemAvailable: 5\n", "MemAvailable: x kB\n"])
def test_a_kernel_that_does_not_say_what_is_available_is_no_memory(tmp_path: Path, said: str) -> None:
    with pytest.raises(ValueError, match=r"meminfo|invalid literal"):
        memory.available(planted(tmp_path, said))


@pytest.mark.claim("A1")
@pytest.mark.parametrize(("most", "available"), [(3, 2), (30, 8)])
def test_what_its_cgroup_leaves_goes_before_what_the_host_has_where_it_is_less(
    tmp_path: Path, most: int, available: int
) -> None:
    root = test_cgroup.planted(tmp_path, "0::/a", test_cgroup.UNIFIED, {"a": None})
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    for name, value in (("max", most * GIB), ("high", "max"), ("current", GIB), ("stat", "inactive_file 0")):
        (tmp_path / "at/a" / f"memory.{name}").write_text(str(value))

    assert memory.available(root) == available * GIB
