"""The home: the one folder that holds everything of an instance, and the checks that make it safe to use.

A home is 0700, ours and no symlink, so nobody else can put anything inside it: once it is checked, plain
paths below it are as good as descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import re
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from spl.errors import (
    DaemonUnreachable,
    HomeInUse,
    HomeUnsafe,
    HostRefused,
    SettingsInvalid,
    SocketPathTooLong,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

HOSTED_RUN: Final = "/run/spl"
"""Where a root daemon keeps what its workers must reach: their uids cannot pass its home."""

MAX_SOCKET_PATH: Final = 107
"""Bytes; sockaddr_un holds 108 with the final NUL (unix(7))."""

_FOLDERS: Final = ("profiles", "secrets", "data", "run", "logs", "backups")
_LOCK_SECONDS: Final = 1.0
# A log of 480 MB takes half a minute to be backed up and taken to another format: some 14 MB a second.
_LOG_BYTES_A_SECOND: Final = 4 << 20
_MAX_SECRET: Final = 4096
"""Bytes of a token's or a key's file."""
_KEY: Final = re.compile(r"(?![\"'])(?![A-Z_]+=)[!-~]+(?<![\"'])")
_TOKEN: Final = re.compile(r"spl_[a-z0-9]+_[0-9a-f]{8}_[A-Za-z0-9_-]{43}")


def locate(flag: str | None, environ: Mapping[str, str]) -> Path:
    """Give the home's path: the flag, SPL_HOME, SYNCROPEL_HOME or `~/.syncro`, the first that is set."""
    candidates = (flag, environ.get("SPL_HOME"), environ.get("SYNCROPEL_HOME"))
    path = next((value for value in candidates if value is not None), "~/.syncro")
    if not path or (path.startswith("~") and environ.get("HOME") == ""):
        raise HomeUnsafe("the home's path is empty")
    return Path(os.path.expanduser(path))


def check_socket_path(path: str | os.PathLike[str]) -> None:
    """Raise SocketPathTooLong if no unix socket can have this path."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise SocketPathTooLong(
            f"the socket's path {os.fspath(path)!r} takes {length} bytes, and {MAX_SOCKET_PATH} is the most"
        )


def login() -> str:
    """Give the name of the user this process runs as, or the uid of one without a name."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Home:
    """A checked home and the paths below it; `Home.open` makes one."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.config: Final = path / "config.toml"
        self.database: Final = path / "hub.db"
        self.token: Final = path / "token"
        self.profiles: Final = path / "profiles"
        self.secrets: Final = path / "secrets"
        self.data: Final = path / "data"
        self.run: Final = path / "run"
        self.operator_socket: Final = path / "run" / "spl.sock"
        self.worker_socket: Final = path / "run" / "spl-worker.sock"
        self.pid: Final = path / "run" / "spl.pid"
        self.logs: Final = path / "logs"
        self.backups: Final = path / "backups"

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool) -> Home:
        """Check a home, with `create` after making what is missing of it and its folders (0700 each).

        Symlinks among its parents are followed once, here. Raises HomeUnsafe if it is a symlink, no folder,
        someone else's or not 0700; SocketPathTooLong if its sockets could not be bound; DaemonUnreachable if
        it is not there and not to be made. Nothing is written then.
        """
        given = os.fspath(path)
        if "\0" in given:
            raise HomeUnsafe(f"the home's path {given!r} holds a NUL")
        home = cls(_resolve_parents(given))
        check_socket_path(home.worker_socket)
        if create:
            _make(home.path)
        descriptor = _open_folder(home.path)
        try:
            _check_owner(descriptor, home.path)
            _check_folder(descriptor, home.path)
            if create:
                for name in _FOLDERS:
                    _make(home.path / name, at=descriptor)
                    folder = _open_folder(home.path / name, at=descriptor)
                    try:
                        _check_folder(folder, home.path / name)
                    finally:
                        os.close(folder)
        finally:
            os.close(descriptor)
        return home

    def bound_worker_socket(self, *, hosted: bool) -> str:
        """Give the path a daemon in this home binds its worker socket to; `worker_socket` leads there in any case."""
        if not hosted:
            return str(self.worker_socket)
        instance = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return f"{HOSTED_RUN}/{instance}/spl-worker.sock"

    def opening_seconds(self) -> float:
        """Give the seconds that opening the log may take, which is rewritten where it is of an earlier format."""
        try:
            return os.path.getsize(self.database) / _LOG_BYTES_A_SECOND
        except OSError:
            return 0.0

    def lock(self) -> Lock:
        """Take this home for this process until the lock is released or the process ends.

        Raises HomeInUse, with the pid, if another process has it, and HostRefused where its pid cannot be written.
        """
        unwritable = f"the file {str(self.pid)!r} cannot be written"
        try:
            descriptor = os.open(self.pid, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HostRefused(f"{unwritable}: {error.strerror}") from None
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _flock(descriptor, fcntl.LOCK_EX):
            # One that only looks (`running_pid`) holds a shared lock for a moment, and what the file says then may be
            # the pid of a daemon that was killed, and some other process's by now. A daemon's lock lets none be shared.
            pid = _read_pid(descriptor)
            held = not _flock(descriptor, fcntl.LOCK_SH)
            if not held:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            if (held and pid is not None) or time.monotonic() > deadline:
                os.close(descriptor)
                holder = "another daemon" if pid is None else f"another daemon (pid {pid})"
                raise HomeInUse(f"the home {str(self.path)!r} is in use by {holder}")
            time.sleep(0.01)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise HostRefused(f"{unwritable}: {error.strerror}") from None
        return Lock(descriptor)

    def ensure_token(self, login: str) -> str:
        """Give the operator's token, made for this login if there is none; raises as `read_token` does."""
        if not os.path.lexists(self.token):
            # Linked into place whole, so that nobody reads half a token and two makers agree on one.
            with self._new_token(login) as (_, draft), contextlib.suppress(FileExistsError):
                os.link(draft, self.token, follow_symlinks=False)
        return self.read_token()

    def rotate_token(self, login: str) -> str:
        """Put a new token of the operator's, made for this login, in the place of the old one, and give it.

        Whoever reads meanwhile reads the one or the other, whole. Raises HostRefused where it cannot be put there.
        """
        with self._new_token(login) as (token, draft):
            os.rename(draft, self.token)
        return token

    def read_token(self) -> str:
        """Give the operator's token.

        Raises HomeUnsafe if its file is a symlink, someone else's, open to others or holds no token, and
        DaemonUnreachable if there is none: no daemon has run in this home.
        """
        what = f"the token file {str(self.token)!r}"
        token = _read_secret(self.token, what)
        if token is None:
            raise DaemonUnreachable(f"{what} is not there: no daemon has run in this home")
        if _TOKEN.fullmatch(token) is None:
            raise HomeUnsafe(f"{what} is refused: it does not hold a token")
        return token

    def read_key(self, provider: str) -> str | None:
        """Give the key of a provider as `secrets/PROVIDER.key` holds it now, None if there is none.

        Raises HomeUnsafe if its file or the folder is a symlink, someone else's or open to others, and SettingsInvalid
        for what can be no key: a key is one word of visible ASCII.
        """
        # Not their whole paths: a member's run may end with this.
        what = f"the key file 'secrets/{provider}.key' of the home"
        try:
            folder = os.open(self.secrets, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:
            raise HomeUnsafe("'secrets' of the home is refused: it is a symlink or no folder") from None
        try:
            _check_folder(folder, Path("secrets"))
            key = _read_secret(f"{provider}.key", what, at=folder)
        finally:
            os.close(folder)
        # It becomes a header's value: with a line's end in it, it would become more than that.
        if key is not None and (len(key) >= _MAX_SECRET or not _KEY.fullmatch(key)):
            raise SettingsInvalid(
                f"{what} does not hold a key, one word of visible ASCII",
                remedy="write the key into it and nothing else: no name before it, no quotes, one line",
            )
        return key

    @contextlib.contextmanager
    def _new_token(self, login: str) -> Iterator[tuple[str, Path]]:
        """Give a new token and the file that holds it until it is put into place; afterwards that is durable."""
        account = hashlib.sha256(login.encode(errors="surrogateescape")).hexdigest()[:8]
        token = f"spl_local_{account}_{secrets.token_urlsafe(32)}"
        draft = self.path / f".token.{secrets.token_hex(8)}"
        try:
            try:
                descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(token + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                yield token, draft
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(self.path)
        except OSError as error:
            what = f"the token file {str(self.token)!r}"
            raise HostRefused(f"{what} cannot be written: {error.strerror}") from None


class Lock:
    """A home's lock, held; the file stays when it is released, since another may wait for it already."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go of the home; releasing again does nothing."""
        if self._descriptor != -1:
            # The pid counts only while the lock is held: on a disk that is read-only by now, it may stay.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def running_pid(home: Home) -> int | None:
    """Give the pid of the daemon that holds this home's lock, or None if nobody does."""
    try:
        descriptor = os.open(home.pid, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        # What the file says counts only while somebody holds the lock: a pid outlives its process.
        return None if _flock(descriptor, fcntl.LOCK_SH) else _read_pid(descriptor)
    finally:
        os.close(descriptor)


def _read_secret(path: str | Path, what: str, *, at: int | None = None) -> str | None:
    """Give what a file says that must be its owner's alone, None if there is no such file; `at` is its open folder."""
    try:
        # Not blocking, for what should be a file and is a FIFO.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except FileNotFoundError:
        return None
    except OSError as error:
        # What O_NOFOLLOW says of a symlink (open(2)).
        reason = "it is a symlink" if error.errno == errno.ELOOP else error.strerror
        raise HomeUnsafe(f"{what} is refused: {reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise HomeUnsafe(f"{what} is refused: it is not a regular file")
        if status.st_uid != os.geteuid():
            raise HomeUnsafe(f"{what} is refused: it belongs to uid {status.st_uid}")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise HomeUnsafe(f"{what} is refused: its mode {mode:04o} opens it to others")
        return os.read(descriptor, _MAX_SECRET).decode("ascii", errors="replace").strip()
    finally:
        os.close(descriptor)


def _resolve_parents(path: str) -> Path:
    parent, name = os.path.split(path.rstrip("/") or "/")
    if name in {"", ".", ".."}:
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(parent), name)


def _make(path: Path, *, at: int | None = None) -> None:
    try:
        os.mkdir(path if at is None else path.name, 0o700, dir_fd=at)
    except FileExistsError:
        pass
    except OSError as error:
        raise HostRefused(f"the folder {str(path)!r} cannot be made: {error.strerror}") from None


def _open_folder(path: Path, *, at: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path if at is None else path.name, flags, dir_fd=at)
    except FileNotFoundError:
        raise DaemonUnreachable(f"there is no home at {str(path)!r}") from None
    except OSError as error:
        # The kernel says ENOTDIR of a symlink too.
        reason = "it is a symlink" if path.is_symlink() else error.strerror
        raise HomeUnsafe(f"the folder {str(path)!r} is refused: {reason}") from None


def _check_owner(descriptor: int, path: Path) -> None:
    """Raise HomeUnsafe of another user's home where root opens it, who could take it by force and should not."""
    owner = os.fstat(descriptor).st_uid
    if os.geteuid() != 0 or owner == 0:
        return
    try:
        how = f"that user ('runuser -u {pwd.getpwuid(owner).pw_name} -- spl …')"
    except KeyError:
        how = f"the uid {owner}"
    raise HomeUnsafe(
        f"the folder {str(path)!r} is refused: it belongs to uid {owner}",
        remedy=f"type this as {how}, or give another --home",
    )


def _check_folder(descriptor: int, path: Path) -> None:
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise HomeUnsafe(f"the folder {str(path)!r} is refused: it belongs to uid {status.st_uid}")
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if mode != 0o700:
        raise HomeUnsafe(f"the folder {str(path)!r} is refused: its mode is {mode:04o}, not 0700")


def _sync_folder(path: Path) -> None:
    descriptor = _open_folder(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None
