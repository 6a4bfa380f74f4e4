"""A live worker's /proc as a test reads it itself, with nothing of the library between (proc(5))."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

NAMESPACES = ("user", "net", "mnt", "ipc", "uts", "cgroup", "pid")


def look(pid: int, home: str) -> dict[str, Any]:
    """Give what the promises are about, as JSON can carry it."""
    root = f"/proc/{pid}"
    stat = read(pid, "stat").decode().rpartition(")")[2].split()
    limits = [re.split(r"\s{2,}", line) for line in read(pid, "limits").decode().splitlines()]
    status = (line.split(":\t", 1) for line in read(pid, "status").decode().splitlines())
    with open(f"{root}/root/spl-worker.pyc", "rb") as image:
        digest = hashlib.sha256(image.read()).hexdigest()
    return {
        "environ": read(pid, "environ").decode(),
        "descriptors": sorted(os.listdir(f"{root}/fd")),
        "kinds": [os.readlink(f"{root}/fd/{name}").split(":")[0] for name in os.listdir(f"{root}/fd")],
        "own_namespaces": [
            name
            for name in NAMESPACES
            if os.readlink(f"{root}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
        ],
        "uid_map": read(pid, "uid_map").decode().split(),
        "limits": {words[0]: words[1:3] for words in limits},
        "devices": [line.split(":")[0].strip() for line in read(pid, "net/dev").decode().splitlines()[2:]],
        "tty": stat[4],
        "session": int(stat[3]),
        "status": {name: words.split() for name, words in status},
        "mapped": sorted(set(re.findall(r" (/.*)$", read(pid, "maps").decode(), re.MULTILINE))),
        "image": digest,
        "root": sorted(os.listdir(f"{root}/root")),
        "under_home": sorted(
            os.path.join(path, name)[len(f"{root}/root{home}") :]
            for path, _, names in os.walk(f"{root}/root{home}")
            for name in names
        ),
    }


def read(pid: int, name: str) -> bytes:
    """Read one file of it."""
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


def containing(pid: int, needle: bytes) -> list[str]:
    """Give the small files, of all that it can see, which contain some bytes."""
    root = f"/proc/{pid}/root"
    found = []
    for path, _, names in os.walk(root):
        for file in (os.path.join(path, name) for name in names):
            if os.path.isfile(file) and os.path.getsize(file) < 65536:
                with open(file, "rb") as opened:
                    if needle in opened.read():
                        found.append(file[len(root) :])
    return found
