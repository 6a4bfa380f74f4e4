"""What the figures are to be read with: the machine they were measured on, and how busy it was."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

from spl import __version__


def describe(facts: dict[str, Any], folder: str) -> dict[str, Any]:
    """Describe this host; `facts` are the helper's, and `folder` is where the homes lay."""
    return {
        "shape": facts["shape"],
        "spl": __version__,
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "processor": _processor(),
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "worker_python": facts["python_version"],
        "bubblewrap": facts["bubblewrap_version"],
        "file_system": _file_system(folder),
    }


def cores() -> int:
    """Give how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            found = re.search(
                r"^(?:model name|Processor|CPU implementer)\s*:\s*(.+)$", file.read(), re.MULTILINE
            )
    except OSError:
        found = None
    return found[1] if found else "unknown"


def _file_system(folder: str) -> str:
    """Give the type of the file system that holds a folder: what an append costs is what its disk does."""
    longest, found = -1, "unknown"
    folder = os.path.realpath(folder)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split(" ")
            at = words[4].rstrip("/")
            if f"{folder}/".startswith(f"{at}/") and len(at) >= longest:
                longest, found = len(at), line.partition(" - ")[2].split(" ", 1)[0]
    return found
