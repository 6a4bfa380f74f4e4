"""The memory that workers may have: what the host has to give and what this process's control groups leave."""

from __future__ import annotations

from bwrap import cgroup


def available(root: str = "") -> int:
    """Give the bytes that can be had without swapping (proc_meminfo(5)), or what a bound of its cgroups leaves if less.

    `root` goes before every path that is read. Raises `OSError` or `ValueError`.
    """
    with open(f"{root}/proc/meminfo", encoding="ascii", errors="replace") as file:
        found = dict(line.partition(":")[::2] for line in file)
    words = found.get("MemAvailable", "").split()
    if words[1:] != ["kB"]:
        raise ValueError("/proc/meminfo does not say MemAvailable")
    said, left = int(words[0]) << 10, cgroup.memory_left(root)
    return said if left is None else min(said, left)
