"""What a command did when nothing confined it, as strace(1) tells it: all that a profile would have to allow.

The trace is read as `bwrap.refusals` reads one: a line counts only when it reads as strace writes it. Whatever the
command makes up, what is kept is bounded: so many paths and lines, and a folder and two numbers for each task that
lives.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from bwrap import lines, seccomp
from bwrap.refusals import line_for, number_of, path_of, read

if TYPE_CHECKING:
    from bwrap.lines import Line
    from bwrap.refusals import Call
    from bwrap.seccomp import Rules

_MOST = 4096
"""Different paths and different lines that are kept."""

_PID = re.compile(r"(\d+) +")
_OVER = re.compile(r"\+\+\+ (?:exited with|killed by|superseded by execve in pid (\d+)) ?")
_AT_HERE = "AT_FDCWD"
# Which argument is the path, and which are flags of open(2), if there are any.
_OPENS = {"open": (0, 1), "openat": (1, 2), "openat2": (1, None), "creat": (0, None)}
_LOOKS = {
    "access": 0, "chdir": 0, "execve": 0, "getxattr": 0, "lgetxattr": 0, "listxattr": 0, "llistxattr": 0, "lstat": 0,
    "readlink": 0, "stat": 0, "statfs": 0, "execveat": 1, "faccessat": 1, "faccessat2": 1, "newfstatat": 1,
    "readlinkat": 1, "statx": 1,
}  # fmt: skip
_CHANGES = {
    "chmod": 0, "chown": 0, "fchmodat": 1, "fchownat": 1, "lchown": 0, "link": 1, "linkat": 3, "mkdir": 0,
    "mkdirat": 1, "mknod": 0, "mknodat": 1, "rename": 1, "renameat": 3, "renameat2": 3, "rmdir": 0, "setxattr": 0,
    "symlink": 1, "symlinkat": 2, "truncate": 0, "unlink": 0, "unlinkat": 1, "utimensat": 1,
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_TASKS = ("clone", "clone3", "fork", "vfork")
_MAP_FIXED = 0x10
_READS = ("read", "readv", "recvfrom", "recvmsg", "splice")
_DESCRIPTORS = (*_OPENS, "dup", "dup2", "dup3", "eventfd2", "memfd_create", "socket", "accept4", "pidfd_open")


class Usage:
    """Reads the trace of a command line by line, each with its process's number before it.

    `refused` are the lines for the calls it made that some rules refuse; `opened` the paths it read, each once;
    `changed` those it made, wrote to or removed; `open_files` the most it had open, as their numbers tell; `mapped`
    the most bytes of addresses that one task had, what it began with included, which is what RLIMIT_AS counts
    (getrlimit(2)), but that what several threads map after their start is not added up; `reads_input` whether anything
    was read from standard input.
    """

    def __init__(self, rules: Rules) -> None:
        """Take the rules that calls are held against."""
        self._rules = rules
        self._here: dict[str, str | None] = {}
        self._sizes: dict[str, int] = {}
        self._breaks: dict[str, int] = {}
        self._made: set[str] = set()
        self._over: set[str] = set()
        self._refused: dict[Line, None] = {}
        self._opened: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self.open_files = self.mapped = 0
        self.reads_input = False

    @property
    def refused(self) -> list[Line]:
        """Give the lines for the calls that were made and would be refused."""
        return list(self._refused)

    @property
    def opened(self) -> list[str]:
        """Give the paths of files that were read, looked at or executed, and of folders that were listed."""
        return [path for path in self._opened if path not in self._changed]

    @property
    def changed(self) -> list[str]:
        """Give the paths that were made, written to or removed."""
        return list(self._changed)

    def take(self, text: str) -> None:
        """Take one line in; one that does not read as strace's is no line of a trace."""
        pid = match[1] if (match := _PID.match(text)) else ""
        if over := _OVER.match(text, match.end() if match else 0):
            self._forget(over[1] or pid)
            return
        call = read(text[match.end() :] if match else text)
        if call is None or call.failed == "ENOSYS":
            return
        self._judge(call)
        if call.failed is None:
            self._follow(pid, call)
            self._measure(pid, call)
            self._note_paths(pid, call)

    def _forget(self, pid: str) -> None:
        """Let go of a task that is over; the call that made it may be told of only now, and then makes none."""
        if pid in self._made:
            self._made.discard(pid)
        elif len(self._over) < _MOST:
            self._over.add(pid)
        for kept in (self._here, self._sizes, self._breaks):
            kept.pop(pid, None)

    def _judge(self, call: Call) -> None:
        condition = self._rules.when.get(call.name)
        arguments: tuple[int, ...] = ()
        if condition is not None:
            arguments = tuple(number_of(each) or 0 for each in call.given[: condition.argument + 1])
        if seccomp.meaning(self._rules, call.name, arguments) == seccomp.ALLOW:
            return
        line = line_for(call.name, call.given, condition.argument if condition else None)
        if line is not None and len(self._refused) < _MOST:
            self._refused[line] = None

    def _follow(self, pid: str, call: Call) -> None:
        """Keep in which folder each process is: what it starts begins where it is; None is not known."""
        if call.name == "chdir":
            self._here[pid] = self._absolute(pid, call, 0)
        elif call.name == "fchdir":
            self._here[pid] = None
        elif call.name in _TASKS and call.result:
            self._begin(pid, call.result)

    def _begin(self, pid: str, child: str) -> None:
        """Give a new task what its parent has, unless its own first lines came before, and say more of it."""
        if child in self._over:
            self._over.discard(child)
            return
        self._made.add(child)
        self._here.setdefault(child, self._here.get(pid, "/"))
        self._sizes.setdefault(child, self._sizes.get(pid, 0))
        if pid in self._breaks:
            self._breaks.setdefault(child, self._breaks[pid])

    def _measure(self, pid: str, call: Call) -> None:
        if call.name in _DESCRIPTORS and (call.result or "").isdigit():
            self.open_files = max(self.open_files, int(call.result or 0) + 1)
        numbers = [number_of(each) or 0 for each in call.given]
        now = self._sizes.get(pid, 0)
        if call.name == "execve":
            now = 0
            self._breaks.pop(pid, None)
        elif call.name == "mmap" and len(numbers) > 3 and not numbers[3] & _MAP_FIXED:
            now += numbers[1]
        elif call.name == "munmap" and len(numbers) > 1:
            now -= numbers[1]
        elif call.name == "mremap" and len(numbers) > 2:
            now += numbers[2] - numbers[1]
        elif call.name == "brk" and (at := number_of(call.result or "")) is not None:
            now += at - self._breaks.get(pid, at)
            self._breaks[pid] = at
        self._sizes[pid] = max(0, now)
        self.mapped = max(self.mapped, now)

    def _note_paths(self, pid: str, call: Call) -> None:
        if call.name in _READS and call.given[0] == "0" and call.result != "0":
            self.reads_input = True
        if call.name in _CHANGES:
            self._note(self._changed, self._absolute(pid, call, _CHANGES[call.name]))
        elif call.name in _LOOKS:
            path = self._absolute(pid, call, _LOOKS[call.name])
            # A folder that is only looked at is there as soon as anything in it is.
            if path is not None and _is_file(path):
                self._note(self._opened, path)
        elif call.name in _OPENS:
            at, flags = _OPENS[call.name]
            said = number_of(call.given[flags]) if flags is not None and flags < len(call.given) else None
            writes = call.name == "creat" or bool((said or 0) & _WRITES)
            self._note(self._changed if writes else self._opened, self._absolute(pid, call, at))

    def _note(self, kept: dict[str, None], path: str | None) -> None:
        if path is not None and len(kept) < _MOST:
            kept[path] = None

    def _absolute(self, pid: str, call: Call, at: int) -> str | None:
        """Give the path of an argument from the root on, None where it begins in a folder that is not known."""
        found = path_of(call.given[at]) if at < len(call.given) else None
        if not found:
            return None
        path = os.fsdecode(found)
        if not path.startswith("/"):
            here = self._here.get(pid, "/")
            beside = call.given[at - 1] if at > 0 and call.name.endswith(("at", "at2", "statx")) else _AT_HERE
            if here is None or _AT_HERE not in beside:
                return None
            path = os.path.join(here, path)
        # Never over a link: '..' is left to the file system, which knows what it leads to.
        return os.path.realpath(path) if "/../" in f"{path}/" else os.path.normpath(path)


def measured(usage: Usage, cpu_seconds: float) -> dict[str, int]:
    """Give what a command took of each limit that a trace tells of: as a number of bytes, a count or seconds."""
    return {
        "address_space": usage.mapped,
        "open_files": usage.open_files,
        "cpu_time": int(cpu_seconds) + 1,
    }


def limit_lines(taken: dict[str, int], limits: object) -> list[Line]:
    """Give a line for each limit of which more was taken than there is: the next power of two of what it was."""
    found = []
    for key, value in taken.items():
        if value > getattr(limits, key):
            found.append(lines.limit(key, 1 << (value - 1).bit_length()))
    return found


def _is_file(path: str) -> bool:
    with suppress(OSError, ValueError):
        return not stat.S_ISDIR(os.stat(path).st_mode)
    return False
