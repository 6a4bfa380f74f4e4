"""A key that stands nowhere but where a test has put it, and where a test looks for it, in every form it may have."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import secrets
import stat
import time
from typing import TYPE_CHECKING

from tests.end_to_end.daemon import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.end_to_end.daemon import Daemon

Pieces = dict[str, bytes]
"""What was looked into, by where it stands."""

_PIECE = 12
# What may be read, of proc_pid_maps(5).
_MAPPING = re.compile(r"(?P<first>\w+)-(?P<last>\w+) r\S+ \S+ \S+ \d+ *(?P<name>.*)")
_READ = (
    "/health",
    "/v1/engine/health",
    "/v1/runs",
    "/v1/threads",
    "/v1/rules",
    "/v1/tiers",
    "/v1/members",
    "/v1/tokens",
)


class Planted:
    """A key, made for one test unless one is given that was made elsewhere."""

    def __init__(self, key: str | None = None) -> None:
        self.key = f"sk-{secrets.token_urlsafe(36)}" if key is None else key
        self.since = time.time() - 1
        whole = self.key.encode()
        self._forms = {
            piece
            for form in (whole, whole.lower(), whole.upper(), whole.hex().encode(), *_base64(whole))
            # Whatever has 24 characters in a row of it has one of these.
            for piece in _cut(form)
        }

    def is_in(self, data: bytes) -> bool:
        """Tell whether any data holds the key or half of it, as it is, in one case, in hexadecimal or in base64."""
        return any(form in data for form in self._forms)

    def where(self, pieces: Pieces) -> list[str]:
        """Give where it stands among these."""
        return [where for where, data in pieces.items() if self.is_in(data)]


def _cut(form: bytes) -> Iterator[bytes]:
    yield from (form[at : at + _PIECE] for at in range(0, len(form) - _PIECE + 1, _PIECE + 1))


def _base64(whole: bytes) -> Iterator[bytes]:
    """Give a text in base64 as it reads after any number of other bytes: of its ends, nothing is sure."""
    for before in range(3):
        yield base64.b64encode(bytes(before) + whole)[4:-4]


def memory(pid: int) -> bytes:
    """Give all that a process may read of its own memory; for root."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as mem:
        for line in maps:
            mapping = _MAPPING.match(line)
            # Not the kernel's own pages, which nobody can read this way.
            if mapping is not None and not mapping["name"].startswith("[v"):
                first, last = int(mapping["first"], 16), int(mapping["last"], 16)
                mem.seek(first)
                found.append(mem.read(last - first))
    return b"".join(found)


def processes() -> Pieces:
    """Give what /proc tells of every process: environment, command line, what its descriptors lead to."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
                found[f"/proc/{pid}/{name}"] = file.read()
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found[f"/proc/{pid}/fd/{name}"] = os.readlink(f"/proc/{pid}/fd/{name}").encode()
    return found


def files(folder: Path | str, *, since: float = 0, but: Path | None = None) -> Pieces:
    """Give the names and contents of the files below a folder that were written since a time, but for one folder.

    A folder in which nothing was made since then is not gone into: a host's temporary files are many.
    """
    found = {}
    for path, folders, names in os.walk(folder):
        if path == str(but):
            folders.clear()
            continue
        with contextlib.suppress(OSError):
            folders[:] = [name for name in folders if os.lstat(f"{path}/{name}").st_ctime >= since]
        for name in names:
            # What is gone again cannot be kept from anybody.
            with contextlib.suppress(OSError):
                status = os.lstat(whole := f"{path}/{name}")
                if stat.S_ISREG(status.st_mode) and status.st_mtime >= since:
                    with open(whole, "rb") as file:
                        found[whole] = os.fsencode(whole) + file.read()
    return found


def looked_into(daemon: Daemon, threads: list[str]) -> Pieces:
    """Give all that there is to be seen of a daemon that lives, but for its secrets."""
    home = daemon.home
    pieces = {
        **processes(),
        **files(home, but=home / "secrets"),
        **files("/run/spl"),
        **answers(daemon, threads),
        "the log": "".join(daemon.log.lines).encode(),
        "the announcement": daemon.announcement.encode(),
    }
    assert {f"{home}/hub.db", f"{home}/hub.db-wal", f"/proc/{daemon.process.pid}/environ"} <= set(pieces)
    return pieces


def left_by(daemon: Daemon, since: float) -> Pieces:
    """End a daemon and give all that it has left since a time, but for its secrets."""
    home = daemon.home
    assert daemon.stop() == 0
    assert daemon.process.stdout is not None
    return {
        **files(home, but=home / "secrets"),
        **files("/tmp", since=since, but=home / "secrets"),
        "the log": "".join(daemon.log.lines).encode(),
        "the output": daemon.process.stdout.read().encode(),
    }


def answers(daemon: Daemon, threads: Iterable[str]) -> Pieces:
    """Give what the operator's API answers to whoever asks it everything."""
    client = daemon.client
    profile = client.request("GET", "/v1/profiles")["data"][0]["name"]
    paths = [*_READ, f"/v1/profiles/{profile}", *(f"/v1/runs/{thread}" for thread in threads)]
    found = {path: _told(client.request("GET", path)) for path in paths}
    records = client.pages("/v1/records", limit=100_000)
    found["/v1/records"] = b"".join(map(_told, records))
    preview = client.request("POST", "/v1/work/loop/preview", {"goal": "Look."}, timeout=SECONDS)
    return {**found, "/v1/work/loop/preview": _told(preview)}


def _told(answer: object) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode()
