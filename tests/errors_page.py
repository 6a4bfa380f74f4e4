"""The page that lists every error a person can meet: the table of spl/errors.py, and what there is to say beyond it."""

from __future__ import annotations

import tomllib
from inspect import getdoc
from pathlib import Path
from typing import Final

from spl import errors

TEXTS: Final = Path(__file__).resolve().parent / "troubleshooting.toml"

INTRODUCTION = """\
# Troubleshooting

Every error is one line, on standard error or in a JSON answer: what failed, on what, why, and what to do. This page has
them by their codes: the table has all, and below it is what more there is to say of those that people meet.

Look here first:

```
spl doctor || echo "exit status $?"     # can this host confine workers
spl serve --daemon
spl status                              # what the running daemon took, and why it refuses, if it does
spl thread records th_engine_isolation  # starts that were refused for isolation
tail ~/.syncro/logs/daemon.log          # or the journal
```

`spl why THREAD` tells of one run. What is no error and surprises all the same:

| what you see | why |
|---|---|
| `outcome blocked`, no model is configured | the provider is `echo`: it knows one goal ([providers.md](providers.md)) |
| your own run says `transport in_process` | the operator's runs are, until `spl config set-transport sandboxed` |
| `narrowed` names the file tools | a sandboxed run has no handles for them ([judgment.md](judgment.md#with-what)) |
| a changed transport does nothing to a run | a run keeps what it began with; the next one goes by the change |
| workers are there, and no run is | they [stand by](operating.md#standby-workers) for the next ones |
| `spl bench` misses a goal | nothing is kept from running by it, and a busy host misses more |
| a rule never decides | `spl config list-rules` counts hits; `resource` is `"tool:bash"`, not `"bash"` |
| `evidence worker` | no successful call ran in the kernel: the success is the worker's own word |
| `gdb` and `strace` are refused | [the daemon protects itself](confinement.md#the-daemons-own-protection) |

Over HTTP an error is `{"object":"error","type","code","message"}`, with the status below. On the command line it is
`spl: CODE: what failed; what to do`. Nothing was written when one is given, except the record of a refusal.

Exit statuses: 0 success, 1 a reader that has gone or a missed goal of `spl bench`, 2 usage, 10-19 the host, 20-29 the
request, 30-39 a run, 40-49 the log, 50-59 the escape suite, 70 a fault of the daemon's own, 130 an interrupt; 126 and
127 are a shell's, for a command that could not be tried or traced, as 128 and a signal's number are.

Made by `make docs` from spl/errors.py and tests/troubleshooting.toml.

## Every code

| code | HTTP status | exit status | meaning | remedy |
|---|---|---|---|---|
"""


def rows() -> list[type[errors.SplError]]:
    """Give the errors that have a row: the table's, without what a test has derived from them."""
    return [error for error in errors.table() if error.__module__ == errors.__name__]


def texts() -> dict[str, str]:
    """Give what there is to say beyond the table, by code."""
    said: dict[str, str] = tomllib.loads(TEXTS.read_text(encoding="utf-8"))
    return said


def page() -> str:
    """Give the text of docs/troubleshooting.md."""
    said = texts()
    table = "".join(f"{_row(error)}\n" for error in rows())
    sections = (
        f"\n## {error.code}\n\n{said[error.code].strip()}\n" for error in rows() if error.code in said
    )
    return INTRODUCTION + table + "".join(sections)


def _row(error: type[errors.SplError]) -> str:
    meaning = (getdoc(error) or "").partition("\n\n")[0].replace("\n", " ")
    cells = [f"`{error.code}`", str(error.status), str(error.exit_status), meaning, error.remedy]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
