"""Victims and canaries, all real: what an attempt must not reach, change or read, and how each was before and after."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pty
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from bwrap.seccomp import architecture, number
from escape.inside import Stopped, numbered

if TYPE_CHECKING:
    from types import TracebackType

MARK: Final = "spl-canary-"
"""What every canary begins with."""

_ALL: Final = 0o666
_IPC_CREAT, _IPC_RMID, _IPC_STAT, _IPC_PRIVATE = 0o1000, 0, 2, 0
_GETVAL: Final = 12
_SHOWN: Final = "a page of shared memory"
_JOIN_SESSION, _SETPERM, _DESCRIBE, _UNLINK, _READ = 1, 5, 6, 9, 11
_EVERY_RIGHT: Final = 0x3F3F3F3F
_SESSION_KEYRING: Final = -3
_SETUID_PROGRAMS: Final = ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd")
_NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


class Victims:
    """All of them around one instance, whose home is to be made at `home`; gone at the end.

    They belong to this process's user and are as open as such a thing can be: any user may write to the folder, the
    queue, the segment. Whoever can name one from inside a sandbox has it.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.canary = MARK + secrets.token_hex(12)
        self.folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix=f"spl-{os.getpid()}-", dir="/tmp")
        )
        os.chmod(self.folder, 0o711)
        self.home = f"{self.folder}/home"
        self._shared = f"{self.folder}/shared"
        self._file = f"{self.folder}/file"
        self._listeners: dict[str, socket.socket] = {}
        self._visits: dict[str, int] = {}
        self.world: dict[str, Any] = {}

    def __enter__(self) -> Self:
        try:
            self._files()
            self._process()
            self._listen()
            self._ipc()
            self._key()
            self._terminal()
        except BaseException:
            self._stack.close()
            raise
        self.world |= {
            "home": self.home,
            "daemon_pid": os.getpid(),
            "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES},
            "machine": os.uname().machine,
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def make_home(self) -> None:
        """Make a home that no daemon serves, with what one would hold.

        In the hosted shape a worker's uid must pass it, to show what would be given away if it were shown.
        """
        for folder in (self.home, f"{self.home}/run"):
            os.mkdir(folder)
            os.chmod(folder, 0o755)
        for name in ("token", "hub.db", "config.toml"):
            Path(self.home, name).write_text(self.canary, encoding="ascii")
            os.chmod(f"{self.home}/{name}", 0o600)
        operators = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        operators.bind(f"{self.home}/run/spl.sock")
        operators.listen(1)

    def plant(self) -> None:
        """Put a provider's key and a member's file into the home, once it is there."""
        for name in ("secrets/anthropic.key", "data/plan.txt"):
            path = Path(self.home, name)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.write_text(f"{self.canary}\n", encoding="ascii")
            path.chmod(0o600)

    def census(self) -> dict[str, str]:
        """Say how each victim is now, by its name; two that are equal mean that nothing happened to it."""
        return {
            "process": self._seen_process(),
            "listeners": self._seen_listeners(),
            "files": self._seen_files(),
            "ipc": self._seen_ipc(),
            "key": self._seen_key(),
            "terminal": self._seen_terminal(),
            "host": self._seen_host(),
        }

    # --- what they are ---

    def _files(self) -> None:
        os.mkdir(self._shared)
        os.chmod(self._shared, 0o777)
        Path(self._shared, "notes").write_text("as it was\n", encoding="ascii")
        os.chmod(f"{self._shared}/notes", _ALL)
        Path(self._file).write_text(f"{self.canary}\n", encoding="ascii")
        os.chmod(self._file, 0o644)
        self.world |= {
            "host_folder": self._shared,
            "host_file": self._file,
            "host_setuid": next(filter(os.path.exists, _SETUID_PROGRAMS), ""),
        }

    def _process(self) -> None:
        self._victim = subprocess.Popen(
            [shutil.which("sleep") or "sleep", "infinity"],
            env={"CANARY": self.canary},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(self._victim.wait)
        self._stack.callback(self._victim.kill)
        self.world |= {"victim_pid": self._victim.pid, "victim_uid": os.geteuid()}

    def _listen(self) -> None:
        abstract = f"spl-{secrets.token_hex(8)}"
        path = f"{self._shared}/s"
        for name, family, kind, address in (
            ("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            ("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}"),
            ("abstract_datagram", socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{abstract}-datagram"),
            ("path", socket.AF_UNIX, socket.SOCK_STREAM, path),
        ):
            try:
                listener = socket.socket(family, kind)
                self._stack.callback(listener.close)
                listener.bind(address)
            except OSError:
                if name != "tcp6":  # a host without IPv6 has one listener less
                    raise
                continue
            if kind == socket.SOCK_STREAM:
                listener.listen(16)
            listener.setblocking(False)
            self._listeners[name], self._visits[name] = listener, 0
        os.chmod(path, _ALL)
        for name in ("tcp", "tcp6", "udp"):
            listening = self._listeners.get(name)
            self.world[f"{name}_port"] = listening.getsockname()[1] if listening else 0
        self.world |= {"abstract": abstract, "host_socket": path}

    def _ipc(self) -> None:
        self._shm = _call("shmget", _IPC_PRIVATE, 4096, _IPC_CREAT | _ALL)
        self._stack.callback(_call, "shmctl", self._shm, _IPC_RMID, None)
        self._page = _call("shmat", self._shm, None, 0)
        self._stack.callback(_call, "shmdt", self._page)
        ctypes.memmove(self._page, _SHOWN.encode(), len(_SHOWN))
        self._sem = _call("semget", _IPC_PRIVATE, 1, _IPC_CREAT | _ALL)
        self._stack.callback(_call, "semctl", self._sem, 0, _IPC_RMID, None)
        self._msg = _call("msgget", _IPC_PRIVATE, _IPC_CREAT | _ALL)
        self._stack.callback(_call, "msgctl", self._msg, _IPC_RMID, None)
        named = f"spl-{secrets.token_hex(8)}"
        self._queue = _call("mq_open", named, os.O_RDWR | os.O_CREAT, _ALL, None)
        self._stack.callback(_call, "mq_unlink", named)
        self._stack.callback(os.close, self._queue)
        self.world |= {"shm_id": self._shm, "sem_id": self._sem, "msg_id": self._msg, "mqueue": named}

    def _key(self) -> None:
        """Put a key into a session keyring of this process's own, readable by all; 0 where a host has no keyrings."""
        self.world["key_id"] = 0
        said = self.canary.encode()
        with suppress(OSError):
            _call("keyctl", _JOIN_SESSION, None)
            key = _call("add_key", "user", "spl-canary", said, len(said), _SESSION_KEYRING)
            self._stack.callback(_call, "keyctl", _UNLINK, key, _SESSION_KEYRING)
            _call("keyctl", _SETPERM, key, _EVERY_RIGHT)
            self.world["key_id"] = key

    def _terminal(self) -> None:
        """Become the leader of a session with a terminal, as a daemon in somebody's shell has one."""
        # Its end is a hang-up to its session (a handler, since what is ignored would be ignored in every worker too).
        signal.signal(signal.SIGHUP, lambda *_: None)
        master, slave = pty.openpty()
        self._stack.callback(os.close, master)
        self.world["terminal"] = os.ttyname(slave)
        # The first terminal that a leader without one opens becomes its own (credentials(7)).
        with suppress(PermissionError):
            os.setsid()
        os.close(os.open(os.ttyname(slave), os.O_RDWR))
        self._stack.callback(os.close, slave)
        os.set_blocking(master, False)
        self._master, self._said = master, 0

    # --- how they are ---

    def _seen_process(self) -> str:
        pid = self._victim.pid
        ended = self._victim.poll()
        if ended is not None:
            return f"ended with {ended}"
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        # State, group, session, tracer's marks, priority, nice, policy, by their numbers in proc(5).
        seen = [fields[at - 3] for at in (3, 5, 6, 9, 18, 19, 40, 41)]
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        kept = ("TracerPid", "Uid", "SigPnd", "ShdPnd", "Cpus_allowed", "Mems_allowed", "NoNewPrivs")
        seen += [line for line in status.splitlines() if line.split(":")[0] in kept]
        for name in ("limits", "oom_score_adj", "cgroup", "comm"):
            seen.append(Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8"))
        return f"alive, {_digest(str(seen).encode())}"

    def _seen_listeners(self) -> str:
        for name, listener in self._listeners.items():
            with suppress(BlockingIOError):
                while True:
                    if listener.type == socket.SOCK_DGRAM:
                        listener.recvfrom(1)
                    else:
                        listener.accept()[0].close()
                    self._visits[name] += 1
        return ", ".join(f"{name} {count} visits" for name, count in self._visits.items())

    def _seen_files(self) -> str:
        seen = b""
        paths = [
            self._file,
            *(os.path.join(path, name) for path, _, names in os.walk(self._shared) for name in names),
        ]
        paths += [f"{self.home}/{name}" for name in ("token", "secrets/anthropic.key", "data/plan.txt")]
        for path in sorted(paths):
            with suppress(FileNotFoundError):
                there = os.lstat(path)
                marks = (there.st_mode, there.st_uid, there.st_nlink, there.st_mtime_ns)
                said = Path(path).read_bytes() if stat.S_ISREG(there.st_mode) else b""
                seen += f"{path} {marks}\n".encode() + said
        return f"{len(paths)} files, {_digest(seen)}"

    def _seen_ipc(self) -> str:
        shown = ctypes.string_at(self._page, len(_SHOWN)).decode("ascii", "replace")
        semaphore = _call("semctl", self._sem, 0, _GETVAL, None)
        queue, named = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64)
        _call("msgctl", self._msg, _IPC_STAT, queue)
        _call("mq_getsetattr", self._queue, None, named)
        return f"{shown}, semaphore {semaphore}, queues {_digest(queue.raw + named.raw)}"

    def _seen_key(self) -> str:
        key = self.world["key_id"]
        if not key:
            return "none to be had"
        said = ctypes.create_string_buffer(256)
        try:
            for operation in (_DESCRIBE, _READ):
                _call("keyctl", operation, key, said, 256)
        except OSError:
            return "gone"
        return f"there, {_digest(said.raw)}"

    def _seen_terminal(self) -> str:
        with suppress(BlockingIOError, OSError):
            while piece := os.read(self._master, 4096):
                self._said += len(piece)
        return f"{self._said} bytes on it"

    def _seen_host(self) -> str:
        pattern = Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8").strip()
        return f"named {os.uname().nodename}, cores to {pattern}"


def _digest(seen: bytes) -> str:
    return hashlib.sha256(seen).hexdigest()[:12]


def _call(name: str, *arguments: Any) -> int:
    """Make a system call by name; raises `OSError` that says what cannot be had for a victim, or seen of one."""
    try:
        return numbered(number(name, architecture()), *arguments, step=name)
    except Stopped as end:
        raise OSError(f"a victim cannot be had, or looked at: {end.answer}") from None
