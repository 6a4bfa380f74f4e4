"""The page of the daemon's log, with a table of its events that is made from the calls in spl/ which log them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spl.logs.fields import LAST
from tests.claims import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LEVELS: Final[Mapping[str, str]] = {
    "info": "it went as it should; nothing is to be done",
    "warning": "nothing is broken now, but somebody may want to know why",
    "error": "somebody has to do something, or a run, a start or a backup is lost",
}
"""When each level is used."""

FIELDS: Final[Mapping[str, str]] = {
    "thread": "the run's thread",
    "pid": "a worker's process id, as the daemon's side sees it",
    "uid": "a worker's uid outside its namespaces",
    "profile": "what confines it",
    "actor": "whom the run is for",
    "layer": "the [layer](layers.md) that refused",
    "expected": "what that layer was to be",
    "observed": "what it was",
    "remedy": "what to do about it",
    "error": "why, in one sentence",
    "exception": "a traceback; on a terminal it follows on lines of its own",
    "exit": "how a process ended: its exit status, or of a worker also the signal",
    "clean": "whether it ended by itself, as it should",
    "cause": (
        "what ended it, if it did not do so itself: `stop`, `wall_clock`, `daemon`, or the kernel since it met its "
        "own bound (`memory`) or another's or the host's (`host_memory`)"
    ),
    "threads": "the threads of several runs",
    "pids": "the process ids of several workers",
    "records": "how many records there are",
    "format": "the format that the log of records has",
    "to": "the format that it is to have",
    "runs": "how many runs go on",
    "starts": "how many starts are under way",
    "seconds": "for how long at the most",
    "bytes": "how long the write-ahead log was",
    "path": "a file",
    "removed": "files that made room for it",
    "provider": "the model provider's name",
    "model": "the model's name",
    "door": "which of the worker's five doors",
    "rule": "the name of a rule",
    "name": "the name of a thread of the process",
    "where": "what Python was doing",
    "lines": "how many lines",
    "errors": "how many of them were errors",
}
"""What each field of a line means, wherever it stands."""

MEANINGS: Final[Mapping[str, str]] = {
    "the log is open": "The records can be read and written",
    "the log was not closed: its write-ahead log is taken in": (
        "The last daemon was killed; all it had acknowledged is there"
    ),
    "the log is of an earlier format: it is backed up, and then taken to this one": (
        "It takes a while for a long log: see [backups.md](backups.md)"
    ),
    "the log was taken to this format": "The backup of it as it was is at the path",
    "the delegated cgroup cannot be used in full": "See [confinement.md](confinement.md)",
    "killed workers of an earlier daemon": "What a daemon that died had left running is gone",
    "closed runs of an earlier daemon": "Runs that were going when it died have their outcome now",
    "the model has no price: runs with a budget are refused, and so is every sandboxed one": (
        "[Give it one](providers.md), be it 0"
    ),
    "sandboxed starts are refused": "The trial worker at the start could not be confined: see [doctor.md](doctor.md)",
    "sandboxed runs need a capacity that is set: the memory cannot be told": "`spl config set-capacity` sets it",
    "running sandboxed": "A confined worker has its credential and begins",
    "running in process": "A run begins in the daemon itself",
    "sandboxed start refused": "A start was refused by a layer; nothing of it was left running",
    "a layer of a standby worker changed": (
        "It was confirmed once and is not now: something on the host changed it. Its start was refused, and it is gone"
    ),
    "a standby worker ended": (
        "Killed by somebody, or for want of memory. Another is made, each time after a longer while"
    ),
    "something of a standby worker may be left": (
        "It was killed, and its end could not be seen. The next daemon's start looks for it"
    ),
    "no standby worker can be made": (
        "Each start makes its own worker, and is refused if it cannot. It is tried again, a minute apart at the most, "
        "and said once"
    ),
    "run ended": "A run has its outcome",
    "the outcome cannot be written": "The log of records takes none: is the disk full? It is tried again",
    "a run ended without its outcome": "It is given one when the daemon starts again",
    "a loop failed by a fault of the daemon's own": "The run ends `failed`. Report it",
    "a door failed by a fault of the daemon's own": "The worker was answered 500. Report it",
    "an observation rule failed": "The call went on without that observation. Report it",
    "no connection can be accepted for now": "Out of descriptors or memory; connections wait",
    "a connection is refused: its peer could not be judged": "Report it",
    "a connection is closed: its server failed": "Report it",
    "made a backup": "The one of the start is whole",
    "no backup could be made at the start": "See [backups.md](backups.md)",
    "draining": "It was told to stop: nothing starts, and runs leave at their next step",
    "breaking off runs": "They did not leave in time, or it was told to stop again",
    "stopping": "It was told to, and no run goes on but what is broken off",
    "the daemon ends by a fault of its own": "Report it",
    "a thread failed by a fault of the daemon's own": "Report it",
    "an error was ignored": "Python met it where nobody could be told. Report it",
    "lines of the log were lost": "[Nobody read them](#when-nobody-reads-it), or they could not be written",
}
"""What each event means."""

INTRODUCTION: Final = """\
# The daemon's log

What the daemon says of itself while it runs: that it started a worker, refused a start, could not make a backup. What
runs did, what they were allowed and what they cost is no part of it; that is on [record](records.md).

## Where it goes

To standard error, and nowhere else:

| started by | it is read with |
|---|---|
| `spl serve` | your own eyes |
| `spl serve --daemon` | `tail -f ~/.syncro/logs/daemon.log` |
| systemd | `journalctl -u spl-serve` |
| any of these | `spl console`, and `GET /v1/engine/watch`, which tells the newest lines |

On a terminal a line is for a person, with the time of the place and the level in colour (none with `NO_COLOR`):

```text
14:02:11 info    running sandboxed thread=th_run_5f0e9a7c2b41d86e3a90c7f1 pid=41523 profile=worker uid=1000 actor=…
```

Anywhere else it is one JSON object, the event first and the time, in UTC, last:

```json
{"event": "running sandboxed", "thread": "th_run_5f0e9a7c2b41d86e3a90c7f1", "pid": 41523, "profile": "worker",
 "uid": 1000, "actor": "did:sync:user:ana", "level": "info", "logger": "spl.transports",
 "timestamp": "2027-01-15T13:02:11.480195Z"}
```

There on one line. The setting `log_format` ([settings.md](settings.md)) makes it one or the other everywhere. In both
forms whatever a text holds stands as an escape, so that no run and no peer can end a line, forge one or steer a
terminal. A line is 16 KiB at the most; what is longest in it is cut, with `…` in the place.

## Reading it

In the journal each line has the priority of its level (sd-daemon(3)), so `-p` finds what matters:

<!-- needs systemd -->
```
journalctl -u spl-serve -p err                  # what somebody has to do something about
journalctl -u spl-serve -p warning --since today
journalctl -u spl-serve -o cat | jq -Rc 'fromjson? | select(.event? == "running sandboxed") | [.thread, .pid]'
```

`fromjson?` passes over what is no JSON: systemd's own lines, where a daemon says that it serves, and why one could not
start, which `-p err` has too.

The same of a daemon in the background:

```
spl serve --daemon
spl config set-transport sandboxed
GOAL='Record a note whose text is exactly: seen . Use the record_note tool with only the text argument. Then stop.'
THREAD=$(spl run -o json "$GOAL" | jq -r .thread)
jq -Rc 'fromjson? | select(.level? != "info")' ~/.syncro/logs/daemon.log
jq -Rc 'fromjson? | select(.event? == "running sandboxed") | [.thread, .pid, .profile]' ~/.syncro/logs/daemon.log
jq -Rne --arg thread "$THREAD" \\
  '[inputs | fromjson? | select(.event? == "run ended" and .thread == $thread)] | length == 1' ~/.syncro/logs/daemon.log
```

Why a daemon could not start, `spl serve --daemon` prints itself. What came up after it had begun (the log of records,
the port) stands in `daemon.log` too, in a sentence that is no JSON; what kept it from beginning (a setting, the home)
does not: it is found before that file is opened.

## Levels

"""

REST: Final = """
Python itself and the libraries beneath log too, above `info` and under names of their own, `asyncio` or `py.warnings`.

## When nobody reads it

A pipe that is full because its reader hangs, a terminal halted with Ctrl-S and a disk that is slow keep the log
waiting, and nothing else. A megabyte of lines waits, and as much again of errors. What comes then is lost, and so is
what a full disk does not take; once lines go out again, `lines of the log were lost` stands in their place and says how
many, and how many errors among them. At its end the daemon waits a second or two for what was not yet read.

## Rotation

The daemon never rotates `daemon.log` and knows no signal to open it anew, but only appends to it, so a file that was
copied and truncated goes on at its beginning. In `/etc/logrotate.d/spl`, for the home of a user `ana`:

```text
/home/ana/.syncro/logs/daemon.log {
    su ana ana
    weekly
    rotate 8
    copytruncate
    compress
    missingok
    notifempty
}
```

A line that is written between the copy and the truncation is lost, with nobody to count it. Who must not lose one
leaves the daemon in the foreground under a supervisor, whose log it then is: systemd's journal rotates itself.

## What is never in it

No goal, no reply of a model, no argument or result of a call: these are on record, for those who may read it. And no
credential, be it in an exception's text or in a traceback: `[redacted]` stands in the place of

- a token or a run's credential, whole or cut off;
- what follows `Authorization`, `X-Api-Key` or `Cookie`, and what follows `Bearer` or `Basic`;
- user and password in a URL;
- each key of 16 characters or more that was read from `secrets/`, in plain text or escaped, and what begins as most
  providers' keys do.

That is the second wall. The first is that nothing logs them, which a test sees to that plants one of each, makes the
daemon fail over them and looks for them everywhere.

Made by `make docs` from the calls in spl/ and tests/logs_page.py.
"""

# What `**layer_error.wire()` gives (bwrap.errors).
_WIRE: Final = ("layer", "expected", "observed", "remedy")
_CALLS: Final = {
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
}


@dataclass
class Event:
    """An event of the log: its level, who logs it, and its fields in their order."""

    level: str
    logger: str
    fields: list[str] = field(default_factory=list)


def events(folder: Path = ROOT / "spl") -> dict[str, Event]:
    """Give the events that the code logs; raises ValueError, with the place, for a call that keeps no rule of ours."""
    found: dict[str, Event] = {}
    for path in sorted(folder.rglob("*.py")):
        module = ast.parse(path.read_bytes(), filename=str(path))
        logger = _logger(module)
        for call in _logged(module):
            where = f"{path.relative_to(folder.parent)}:{call.lineno}"
            event, level, fields = _taken(call, where)
            one = found.setdefault(event, Event(level, logger or ""))
            if not logger or (one.level, one.logger) != (level, logger):
                raise ValueError(f"{where}: the event {event!r} has another level or logger elsewhere")
            one.fields += [each for each in fields if each not in one.fields]
    return found


def page() -> str:
    """Give the text of docs/logs.md."""
    found = events()
    if lacking := found.keys() ^ MEANINGS.keys():
        raise ValueError(f"an event without a meaning, or the other way round: {sorted(lacking)}")
    if unused := FIELDS.keys() - {name for each in found.values() for name in each.fields}:
        raise ValueError(f"fields that no event has: {sorted(unused)}")
    levels = _rows(("level", "when"), ((f"`{name}`", text) for name, text in LEVELS.items()))
    order = sorted(MEANINGS, key=lambda event: (list(LEVELS).index(found[event].level), found[event].logger))
    rows = (
        (
            event,
            f"`{found[event].level}`",
            f"`{found[event].logger}`",
            ", ".join(f"`{each}`" for each in found[event].fields),
            MEANINGS[event],
        )
        for event in order
    )
    table = _rows(("event", "level", "logger", "fields", "meaning"), rows)
    fields = _rows(("field", "meaning"), ((f"`{name}`", text) for name, text in FIELDS.items()))
    return f"{INTRODUCTION}{levels}\n## Events\n\n{table}\n{fields}{REST}"


def _rows(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join(
        f"| {' | '.join(line)} |\n".replace(" ---", "---").replace("--- ", "---") for line in lines
    )


def _logger(module: ast.Module) -> str | None:
    """Give the name of a module's logger."""
    for each in module.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "_log":
            return str(ast.literal_eval(each.value.args[0])) if isinstance(each.value, ast.Call) else None
    return None


def _logged(module: ast.Module) -> Iterator[ast.Call]:
    """Give the calls that log."""
    for each in ast.walk(module):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            on, name = ast.unparse(each.func.value), each.func.attr
            if on == "_log" or (name in _CALLS and on in {"log", "logger", "logging"}):
                yield each


def _taken(call: ast.Call, where: str) -> tuple[str, str, list[str]]:
    """Give the event, the level and the fields of a call."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr not in _CALLS or ast.unparse(call.func.value) != "_log":
        raise ValueError(f"{where}: what logs is called _log, and its levels are {', '.join(LEVELS)}")
    if len(call.args) != 1 or not isinstance(call.args[0], ast.Constant):
        raise ValueError(f"{where}: an event is one text, and what varies of it is a field")
    fields: list[str] = []
    for keyword in call.keywords:
        if keyword.arg is None:
            if not ast.unparse(keyword.value).endswith(".wire()"):
                raise ValueError(f"{where}: fields have names, but for those of a layer's error")
            fields += _WIRE
        else:
            fields.append("exception" if keyword.arg == "exc_info" else keyword.arg)
    fields += ["exception"] if call.func.attr == "exception" else []
    if unknown := {each for each in fields if each not in FIELDS or each in LAST}:
        raise ValueError(f"{where}: fields that tests/logs_page.py does not know: {sorted(unknown)}")
    return str(call.args[0].value), _CALLS[call.func.attr], fields
