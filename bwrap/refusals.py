"""What a confined command was refused, and by which layer, as strace(1) tells it.

The trace is the command's own doing and not to be trusted: a line counts only when it reads as strace writes it, and
a refusal only when the layer is certain: the filter's from the rules themselves, the others' from an errno that
nothing else gives. So a command may have been refused more than is said here, never less than is said.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from bwrap import floor, lines, seccomp, sources
from bwrap.host import Shape
from bwrap.mounts import Kind
from bwrap.text import printable, sized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bwrap.lines import Line
    from bwrap.plan import Plan
    from bwrap.profile import Limits

_MOST = 200
"""Different refusals that are kept: what is named may be the command's own invention."""

_BEGINNING = re.compile(r"(?:\[pid +\d+\] )?(\w+)\(")
_ENDING = re.compile(r"\) += (?:(-1) (E[A-Z0-9]+) \(.*\)|(\S+).*)")
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|/\*.*?\*/|[^"/,()\[\]{}]+|.')
_SIGNAL = re.compile(r"(?:\[pid +\d+\] )?--- (SIG[A-Z0-9]+) \{.*\bsi_code=0x80 .*\} ---")
_KILLED = re.compile(r"(?:\[pid +\d+\] )?\+\+\+ killed by (SIG[A-Z0-9]+)(?: \(core dumped\))? \+\+\+")
_UNNAMED = re.compile(r"syscall_0x([0-9a-f]+)")
_OCTAL = re.compile(r"-?0[0-7]+")
_NUMBER = re.compile(r"-?(?:0x[0-9a-f]{1,32}|0[0-7]{0,42}|[1-9][0-9]{0,38})")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"(?!\.\.\.)')
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-f]{2}|.)", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f"}

_NETWORK = {"ENETUNREACH", "EHOSTUNREACH", "ENETDOWN", "EADDRNOTAVAIL"}
# The key of [limits] that an errno or a signal comes from; None where any call can meet it.
_LIMITS: dict[str, tuple[str, set[str] | None]] = {
    "ENOMEM": ("address_space", {"mmap", "mremap", "mprotect"}),
    "EMFILE": ("open_files", None),
    "EFBIG": ("file_size", None),
    "EAGAIN": ("processes", {"clone", "clone3", "fork", "vfork"}),
}
_LIMIT_SIGNALS = {"SIGXCPU": ("processor time", "cpu_time"), "SIGXFSZ": ("the size of a file", "file_size")}
_SIZES = {"address_space", "file_size"}
_EXECUTES = {"execve", "execveat"}

_HOST_HAS = ", which the host has"
USUAL_CALLS = frozenset(("set_robust_list",))
"""Calls that libc makes in nearly every program, and goes without where they fail."""

# What the linker and libc look for in nearly every program, and do without.
_USUAL = re.compile(
    r"(/etc/ld\.so\.(?:cache|preload)|/etc/nsswitch\.conf|/usr/(?:lib|share)/locale/.*|/usr/lib/.*/gconv-modules\.cache)"
    + _HOST_HAS
)


@dataclass(frozen=True, slots=True)
class Refused:
    """One thing that was refused: by which layer, what it was, what it answered, and how often.

    `line` is what a profile would have to say to let it through, whoever allows that; None where no words can.
    """

    layer: str
    what: str
    answer: str
    times: int
    line: Line | None = field(default=None, compare=False)

    def wire(self) -> dict[str, object]:
        """Give the facts by name, for answers."""
        return {"layer": self.layer, "what": self.what, "answer": self.answer, "times": self.times}

    @property
    def usual(self) -> str | None:
        """The file or call, where it is one that nearly every program asks for and does without."""
        if self.layer == "syscalls" and self.what in USUAL_CALLS:
            return self.what
        found = _USUAL.fullmatch(self.what)
        return None if found is None else found[1]

    @property
    def order(self) -> tuple[object, ...]:
        """What to tell first: what was refused on purpose, and last what is missed by nearly every program."""
        on_purpose = self.answer == "EPERM" or " with argument " in self.what
        return (self.usual is not None, not on_purpose, self.layer, -self.times, self.what)


class Call(NamedTuple):
    """A line of a trace: a call's name, its arguments as strace writes them, and its errno or what it gave."""

    name: str
    given: list[str]
    failed: str | None
    result: str | None


class Refusals:
    """Reads a trace line by line, from the moment the command is executed.

    Before that comes bubblewrap's own end of the start, and env(1), the first word of the command line; the fourth is
    the program. Where env itself is refused, that is the first refusal.
    """

    def __init__(self, plan: Plan, command: Sequence[str]) -> None:
        self._plan = plan
        self._rules, self._arch = plan.filter.rules, plan.filter.arch
        self._launcher, self._program = os.fsencode(command[0]), os.fsencode(command[3])
        self._seen: Counter[tuple[str, str, str]] = Counter()
        self._lines: dict[tuple[str, str, str], Line | None] = {}
        self.begun = False

    def take(self, line: str) -> None:
        """Take one line in; one that does not read as strace's is no line of a trace."""
        if signal := _SIGNAL.fullmatch(line) or _KILLED.fullmatch(line):
            self._signalled(signal[1])
        elif call := read(line):
            name, given, answer, _ = call
            if not self.begun and name == "execve":
                path = path_of(given[0])
                self.begun = path == self._program or (path == self._launcher and answer is not None)
            if self.begun and answer is not None:
                self._failed(name, given, answer)

    def found(self) -> list[Refused]:
        """Give what was refused so far: what was refused on purpose first, what nearly every program misses last."""
        return sorted(
            (Refused(*key, times, self._lines.get(key)) for key, times in self._seen.items()),
            key=lambda row: row.order,
        )

    def _signalled(self, name: str) -> None:
        if not self.begun:
            return
        if name == "SIGSYS":
            self._note("syscalls", "a call of another architecture", "SIGSYS")
        elif name in _LIMIT_SIGNALS:
            what, key = _LIMIT_SIGNALS[name]
            self._note(
                "limits", limited(self._plan.limits, what, key), name, lines.raised(self._plan.limits, key)
            )

    def _failed(self, name: str, given: list[str], answer: str) -> None:
        path = next((found for each in given if (found := path_of(each)) is not None), None)
        shown = name if path is None else printable(os.fsdecode(path))
        if self._filtered(name, given, answer):
            self._note("syscalls", *self._called(name, given, answer))
        elif answer == "EROFS":
            self._note("mounts", f"to change {shown}", answer, writable(path))
        elif answer == "ENOENT" and path is not None and path.startswith(b"/") and os.path.lexists(path):
            # Of what is shown, execve says so of the interpreter that its first line or its header names.
            if name != "execve" or not self._is_shown(path):
                self._note("mounts", f"{shown}{_HOST_HAS}", answer, _shown(path))
        elif answer == "EACCES" and path is not None and self._is_the_uids(name, path):
            self._note("separate_user", f"{shown}, which is closed to the command's own uid", answer)
        elif answer in _NETWORK:
            self._note("network", name, answer, lines.share("net"))
        elif answer in _LIMITS:
            key, calls = _LIMITS[answer]
            if calls is None or name in calls:
                line = lines.raised(self._plan.limits, key)
                self._note("limits", limited(self._plan.limits, name, key), answer, line)

    def _note(self, layer: str, what: str, answer: str, line: Line | None = None) -> None:
        key = (layer, what, answer)
        if key not in self._seen and len(self._seen) >= _MOST:
            key, line = (layer, "and more that is not listed", answer), None
        self._seen[key] += 1
        self._lines.setdefault(key, line)

    def _is_the_uids(self, name: str, path: bytes) -> bool:
        """Whether a file that the host shows is refused to the command's uid, and would not be to this process's."""
        return (
            self._plan.host.shape is Shape.HOSTED
            and self._is_shown(path)
            and os.access(path, os.X_OK if name in _EXECUTES else os.R_OK)
        )

    def _is_shown(self, path: bytes) -> bool:
        targets = (os.fsencode(each.target) for each in self._plan.find(Kind.READ_ONLY))
        return any(path == target or path.startswith(target + b"/") for target in targets)

    def _filtered(self, name: str, given: list[str], answer: str) -> bool:
        """Whether it was the filter that answered: it did when the rules mean this answer, for it comes first."""
        call = self._known(name)
        condition = self._rules.when.get(call) if call is not None else None
        arguments: tuple[int, ...] = ()
        if condition is not None:
            values = [number_of(each) for each in given[: condition.argument + 1]]
            if len(values) <= condition.argument or values[-1] is None:
                return False
            arguments = tuple(value or 0 for value in values)
        action = seccomp.meaning(self._rules, call, arguments)
        return getattr(errno, answer, None) == action & 0xFFFF  # no errno is 0, as what is allowed has

    def _known(self, name: str) -> str | None:
        """Give the name the rules have for a call; strace has none for what is newer than it is."""
        unnamed = _UNNAMED.fullmatch(name)
        if unnamed is None:
            return name
        wanted = int(unnamed[1], 16)
        return next(
            (call for call in seccomp.names(self._arch) if seccomp.number(call, self._arch) == wanted), None
        )

    def _called(self, name: str, given: list[str], answer: str) -> tuple[str, str, Line | None]:
        """Say what was called, with the argument that decides, what it answered, and the line that would allow it."""
        call = self._known(name)
        if call is None:
            return name, answer, None
        condition = self._rules.when.get(call)
        line = line_for(call, given, condition.argument if condition else None)
        if condition is None:
            return call, answer, line
        symbol = printable(_symbol(given[condition.argument]))
        return f"{call} with argument {condition.argument} {symbol}", answer, line


def limited(limits: Limits, what: str, key: str) -> str:
    """Say what a limit refuses, with the limit as the profile names and writes it."""
    value = getattr(limits, key)
    said = f"{value}s" if key == "cpu_time" else sized(value) if key in _SIZES else str(value)
    return f"{what}, where {key} is {said}"


def line_for(call: str, given: Sequence[str], argument: int | None) -> Line | None:
    """Give the line that allows a call as it was made: for one value of the argument that decides, or whatever it is.

    Where the profile compares no argument, the floor may: it allows some calls for some values alone. None where the
    argument's value cannot be told.
    """
    if argument is None and call in floor.ONLY:
        argument = floor.ONLY[call][0]
    if argument is None:
        return lines.allow(call)
    value = number_of(given[argument]) if argument < len(given) else None
    if value is None:
        return None
    return lines.when(call, argument, lines.constant(call, _symbol(given[argument]), value & 0xFFFFFFFF))


def read(line: str) -> Call | None:
    """Read a call's line; None for one that does not read as strace's."""
    begins = _BEGINNING.match(line)
    if begins is None:
        return None
    given, depth, at = [""], 0, begins.end()
    for piece in _PIECE.finditer(line, at):
        text = piece[0]
        if text == ")" and depth == 0:
            ends = _ENDING.fullmatch(line, piece.start())
            if ends is None:
                return None
            return Call(begins[1], [each.strip() for each in given], ends[2], ends[3])
        if text == "," and depth == 0:
            given.append("")
            continue
        depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
        given[-1] += text
    return None


def _shown(path: bytes) -> Line | None:
    with suppress(ValueError):
        return lines.show(os.fsdecode(path))
    return None


def writable(path: bytes | None) -> Line | None:
    """Give the line for a folder in memory in which a file could be made; the host itself no profile can open."""
    if path is None or not path.startswith(b"/") or os.path.dirname(path) == b"/":
        return None
    folder = os.fsdecode(os.path.dirname(path))
    with suppress(ValueError):
        if any(sources.within(folder, each) for each in sources.HOST_FOLDERS):
            return lines.show(os.fsdecode(path))
        return lines.folder_in_memory(folder)
    return None


def path_of(argument: str) -> bytes | None:
    """Give the bytes of an argument's first string, or None when it has none, or not the whole of it."""
    found = _QUOTED.search(argument)
    return None if found is None else _ESCAPE.sub(_unescaped, os.fsencode(found[1]))


def _unescaped(match: re.Match[bytes]) -> bytes:
    said = match[1]
    if said[:1].isdigit():
        return bytes([int(said, 8) & 0xFF])
    if said[:1] == b"x" and len(said) == 3:
        return bytes([int(said[1:], 16)])
    return _LETTERS.get(said, said)


def number_of(argument: str) -> int | None:
    """Give an argument as the filter sees it, 64 bits; None when it is no number. Flags are joined by a bar."""
    parts = [part.strip() for part in re.sub(r"/\*.*?\*/", "", argument).split("|")]
    if not all(_NUMBER.fullmatch(part) for part in parts):
        return 0 if argument == "NULL" else None
    value = 0
    for part in parts:
        # A mode is octal, and begins with a 0 as C writes it.
        value |= int(part, 8 if _OCTAL.fullmatch(part) else 0)
    return value & 0xFFFFFFFFFFFFFFFF


def _symbol(argument: str) -> str:
    """Give an argument by its C name where strace knows one."""
    return re.sub(r"[^|]*?/\*\s*(.*?)\s*\*/", r"\1", argument)
