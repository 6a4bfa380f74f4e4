"""The host tools: commands and files of the operator's own machine, for their own in-process runs and nobody else's.

They have the operator's rights and no others: whoever runs the daemon could do the same without it.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
from typing import TYPE_CHECKING, Any

from spl.tools import shell
from spl.tools.arguments import fault
from spl.tools.beneath import Refusal, Tree, checked, quoted
from spl.tools.files import SEARCH_SECONDS, Files, schemas
from spl.tools.mediated import Result
from spl.tools.pieces import CLOSING_LIMIT, OUTPUT_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BASH = "/bin/bash"
TIMEOUT_SECS = 120
TIMEOUT_MOST_SECS = 600

_COMMAND_LIMIT = 30_000
"""Characters; an argument may have 128 KiB (execve(2)), and a character four bytes."""
_OUTPUT_BYTES = OUTPUT_LIMIT - CLOSING_LIMIT
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PREFIX = "host_"
_LIBC = ctypes.CDLL(None, use_errno=True)
_PROC_SUPER_MAGIC = 0x9FA0

SCHEMAS: dict[str, dict[str, Any]] = {
    "bash": {
        "description": (
            "Run a bash command in the operator's home folder, without input. Gives its output and errors, "
            "and last its exit status. All that it started is stopped when it ends, however it was detached."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "command": {
                    "type": "string",
                    "description": "The command",
                    "minLength": 1,
                    "maxLength": _COMMAND_LIMIT,
                },
                "timeout_secs": {
                    "type": "integer",
                    "description": f"Seconds until it is stopped, {TIMEOUT_SECS} when left out",
                    "minimum": 1,
                    "maximum": TIMEOUT_MOST_SECS,
                },
            },
            "required": ["command"],
            "additionalProperties": False,
        },
    },
    **schemas(
        _PREFIX, "On the host: absolute, or from the operator's home folder on with '~/'", default=False
    ),
}


class Host(Files):
    """The host tools of the user this process runs as; `home` and `bash` are theirs unless given."""

    def __init__(
        self, *, home: str | None = None, bash: str = BASH, search_seconds: float = SEARCH_SECONDS
    ) -> None:
        self._home = _account()[1] if home is None else home
        self._bash = bash
        super().__init__(_Host(self._home), SCHEMAS, prefix=_PREFIX, search_seconds=search_seconds)

    async def bash(self, arguments: Mapping[str, Any]) -> Result:
        """Run a command; an `error` when it does not end with 0. If the task is cancelled, it is killed.

        Nothing that it started is left afterwards. Must be called on the daemon's main thread, as `shell.run` must.
        """
        wrong = fault("bash", SCHEMAS["bash"]["parameters"], arguments)
        if wrong is not None:
            return Result("error", wrong)
        command, seconds = arguments["command"], arguments.get("timeout_secs", TIMEOUT_SECS)
        if "\0" in command or not _encodes(command):
            return Result("error", "bash takes no command with a NUL or half a character in it")
        try:
            ended = await shell.run(
                [self._bash, "-c", command],
                folder=self._home,
                environment=_environment(self._home),
                seconds=seconds,
                most=_OUTPUT_BYTES,
            )
        except OSError as error:
            what = quoted(error.filename or self._bash)
            return Result("error", f"bash cannot be started: {what}: {error.strerror}")
        return _result(ended, seconds)


class _Host(Tree):
    """Everything beneath `/`; symlinks in a path are followed once, and the walk then meets none."""

    root = "/"
    keeps_modes = True

    def __init__(self, home: str) -> None:
        self._home = home

    def names(self, path: str) -> list[str]:
        if checked(path) == "~" or path.startswith("~/"):
            path = self._home + path[1:]
        if not path.startswith("/"):
            raise Refusal("a path of the host is absolute or begins with '~/'")
        return [name for name in os.path.realpath(path).split("/") if name]

    def path(self, names: Sequence[str]) -> str:
        return "/" + "/".join(names)

    def may_write(self, _: Sequence[str]) -> None:
        return  # wherever the system lets the operator

    def only(self, _: int, folder: int) -> str | None:
        # Read from inside the daemon, /proc/self/mem is the daemon's memory, where the keys of providers are.
        if _is_proc(folder):
            raise Refusal("it is in /proc, which only bash may read")
        return None


def _is_proc(folder: int) -> bool:
    """Whether an opened folder is of a proc file system, of which there may be more than the one at /proc."""
    said = (ctypes.c_long * 64)()  # struct statfs, which begins with the type and is smaller (statfs(2))
    if _LIBC.fstatfs(folder, said) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return said[0] == _PROC_SUPER_MAGIC


def _account() -> tuple[str, str]:
    """Give the user's name and home folder; one without an account has its number and `/`."""
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return str(uid), "/"
    return entry.pw_name, entry.pw_dir


def _environment(home: str) -> dict[str, str]:
    """Give a command's whole environment: what a person's tools need, and nothing else of the daemon's."""
    name = _account()[0]
    return {
        "PATH": os.environ.get("PATH", _PATH),
        "HOME": home,
        "USER": name,
        "LOGNAME": name,
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "TERM": "dumb",
    }


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _result(ended: shell.Ended, seconds: int) -> Result:
    text = ended.output.decode(errors="replace")
    if text and not text.endswith("\n"):
        text += "\n"
    dropped = ended.written - len(ended.output)
    if dropped:
        text += f"({dropped} more bytes are left out)\n"
    if not ended.cleared:
        text += "(something that it started could not be stopped)\n"
    return Result("ok" if ended.status == 0 else "error", f"{text}({_how(ended.status, seconds)})")


def _how(status: int | None, seconds: int) -> str:
    if status is None:
        return f"stopped after {seconds} s"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
