"""The pages that list the layers and what a profile can say, made from the tables of bwrap/ and profiles/."""

from __future__ import annotations

import inspect
import tomllib
from typing import TYPE_CHECKING

from bwrap import floor, groups, layers, library, merge, needs
from bwrap.library import Library
from bwrap.profile import TOKENS, Profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

_LAYERS = """\
# Layers

What a sandboxed run is confined by, one layer a row. Each is looked at from outside, in `/proc/<pid>`, and tried from
inside by the worker itself, before the run is given its credential; one that is not as claimed refuses the start by
its name. Three more names stand in refusals, of what comes before any layer: `profile`, where the one that was chosen
cannot be used any more; `sandbox`, where bubblewrap, the interpreter or the host could not make the process at all, or
its program ended by itself; and `image`, where another program than the sealed one answered. A profile without a
namespace does not claim its layer; `landlock` is claimed where the kernel has it. Made by `make docs` from
bwrap/layers.py.

| layer | claim | shapes | if it is refused |
|---|---|---|---|
"""

_PROFILES = """\
# What a profile says

A profile is one TOML file; how its words become a process stands in [confinement.md](confinement.md), and how to
write one, step by step, in [authoring-profiles.md](authoring-profiles.md). Made by `make docs` from bwrap/profile.py,
bwrap/floor.py, bwrap/needs.py and profiles/.

## Your own, in five lines

```
spl serve --daemon              # makes the home, ~/.syncro, the first time
cat >~/.syncro/profiles/lean.toml <<'END'
extends = "worker"
description = "A worker with less memory."

[limits]
address_space = "64M"
END
spl profile lint lean           # can a run start with it, is it above the floor, may anything surprise
spl profile show lean           # every value, and which file and line said it
spl profile try lean -- id      # run a command so, and be told what it was refused
```

Once it is chosen, the next sandboxed run goes by it, and its receipt says so:

```
spl config set-profile lean
spl config set-transport sandboxed     # the operator's own runs too; all others are sandboxed already
GOAL='Record a note whose text is exactly: lean . Use the record_note tool with only the text argument. Then stop.'
THREAD=$(spl run -o json "$GOAL" | jq -r .thread)
spl thread records $THREAD -o json | jq '.data[].body | select(.kind == "core.work.isolation.v1") |
  .profile, (.layers[] | select(.layer == "limits") | .observed[0])'
```

One more call, out of those of the [groups to allow](#to-allow), is one more line, and the run after that has it:

```
cat >>~/.syncro/profiles/lean.toml <<'END'

[syscalls]
allow = ["uname"]
END
spl profile lint lean
spl profile try lean -- uname
```

`spl config unset-profile` goes back to `worker`; then `rm ~/.syncro/profiles/lean.toml` is the end of it.

## The rules

The shipped profiles are found by name, and a user's own in `profiles/` of the instance's home (`~/.syncro`), where
`name.toml` is the profile `name`: lower-case letters, digits and dashes. It must be the user's or root's, and writable
by nobody else. A shipped name always means the shipped profile: a file that bears one is never read, which
`spl profile list` and `spl profile lint` say.

- `extends` names one parent, shipped or one's own, at most {deepest} deep.
- Tables merge by key, and a value said again replaces the inherited one.
- Lists append. `"!value"` in a list takes an inherited value away, and it is an error if there is none.
- The rows of a list of tables are known by one key each: {rows}.
  A row with the same one merges with the inherited row, and `"!…"` with it takes that away: `refuse = ["!@mount"]`.
- In `syscalls.allow`, `"!call"` also takes one call out of a group named before it.
- Sizes are written `"512M"` (`K`, `M` and `G` are powers of 1024), durations `"60s"`, `"2m"` or `"1h"`, what a call
  answers as the name of an errno, see errno(3): `"EPERM"`.
- Paths are absolute, without `.`, `..` and patterns. `"?/path"` in `read_only` may be absent on a host.
- The host's things are named by token: {tokens}. `@python` is the interpreter with
  its library and env, `@home` the instance's home, `@worker_socket` the worker's socket in it. `@scratch` is `/tmp` in
  the sandbox, which is there only if `tmpfs` or `empty` names it: `tmpfs = [{{ path = "@scratch", size = "16M" }}]`.
- An unknown key, group, call or constant is an error with its file, line and column; so is a file of over 64 KiB, a
  list of over {entries} entries or with a word twice, and over {values} values in all conditions together.

**Which word counts.** Of several words on one call that of the profile furthest down the chain counts, and in one
profile the call's own name before a group. Two words that count alike and mean different things are an error.
`worker` allows `write` and `writev` by a group; laid over it,

```toml
[syscalls]
allow = ["writev"]
refuse = [{{ group = "@output", errno = "EACCES" }}]
```

has `write` answer EACCES, since this was said later, and `writev` still allowed, since it is named by itself.

**Conditions.** With `equals` a call is allowed when one argument is one of some values, with `has` when it has all the
bits of one value; everything else answers EPERM. Both compare the argument's lower 32 bits.

```toml
[[syscalls.when]]          # threads and no processes: for 'spl profile try', since the floor refuses every new task
call = "clone"
argument = 0
has = "CLONE_THREAD"       # several bits are one number: 0x00010100
```

## Shipped

{shipped}## Keys

{keys}## The floor

What a profile that runs work for anyone may not fall below, the operator's own work too. `spl profile lint` names each
breach with its place; a run on such a profile is refused by the layer's name. `spl profile try` asks for no floor.

| row | layer | what must hold |
|---|---|---|
{floor}
And under every profile, because no profile can say otherwise:

{construction}
## What a run needs

With less than this no run can start, or come to its end; `spl profile lint` says so as an error, and a run on such a
profile is refused by the layer `profile`. The home must be empty as well, which the floor asks for already.

| need | what must be there |
|---|---|
{needs}
## Constants

The C names that conditions may use, by header. A name here allows nothing.

{constants}
## Groups of system calls

The floor allows the calls of the groups to allow, and for some values those it names itself; no others.

{groups}"""


def layers_page() -> str:
    """Give the text of docs/layers.md."""
    rows = [
        f"| `{row.name}` | {row.claim} | {', '.join(row.shapes)} | {row.remedy} |\n"
        for row in layers.every_layer()
    ]
    return _LAYERS + "".join(rows)


def profiles_page() -> str:
    """Give the text of docs/profiles.md."""
    return _PROFILES.format(
        deepest=library.DEEPEST,
        entries=merge.MOST_ENTRIES,
        values=groups.MOST_VALUES,
        rows=", ".join(f"`{key}` in `{merge.dotted(path)}`" for path, key in merge.ROWS.items()),
        tokens=", ".join(f"`{token}`" for token in TOKENS),
        shipped="".join(_shipped()),
        keys="".join(_table(Profile, ())),
        floor="".join(f"| {row.name} | `{row.layer}` | {row.sentence} |\n" for row in floor.FLOOR),
        needs="".join(f"| {row.name} | {row.sentence} |\n" for row in needs.NEEDS),
        construction="".join(f"- {sentence}\n" for sentence in floor.BY_CONSTRUCTION),
        constants="".join(_constants()),
        groups="".join(_groups()),
    )


def _shipped() -> Iterator[str]:
    """Give each shipped profile as it is written, after the one it extends."""
    for profile in sorted(map(Library().load, Library().shipped()), key=lambda each: len(each.chain)):
        written = (library.SHIPPED / f"{profile.name}.toml").read_text(encoding="utf-8")
        yield f"### `{profile.name}`\n\n```toml\n{written}```\n\n"


def _table(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    """Give a table's keys that are plain, then the tables in it."""
    if path:
        yield f"### `{'.'.join(path)}`\n\n{inspect.cleandoc(model.__doc__ or '')}\n\n"
    inner = {key: library.table_of(model, key) for key in model.model_fields if key != "name"}
    yield "| key | what it says |\n|---|---|\n"
    if not path:
        yield "| `extends` | the name of the profile it is laid over |\n"
    yield from (
        f"| `{key}` | {model.model_fields[key].description} |\n"
        for key, table in inner.items()
        if table is None
    )
    yield "\n"
    for key, table in inner.items():
        if table is not None:
            yield from _table(table, (*path, key))


def _constants() -> Iterator[str]:
    for header, table in tomllib.loads(
        (groups.FOLDER / "constants.toml").read_text(encoding="utf-8")
    ).items():
        yield f"- `{header}`: {', '.join(f'`{name}`' for name in table)}\n"


def _groups() -> Iterator[str]:
    for file, title in ((groups.ALLOWED, "To allow"), (groups.REFUSED, "To refuse")):
        yield f"### {title}\n\n"
        yield from (_group(name) for name, group in sorted(groups.groups().items()) if group.file == file)


def _group(name: str) -> str:
    group = groups.groups()[name]
    calls = ", ".join(f"`{call}`" for call in group.calls)
    only = "".join(
        f" On {arch} also {', '.join(f'`{call}`' for call in listed)}."
        for arch, listed in (("x86_64", group.x86_64), ("aarch64", group.aarch64))
        if listed
    )
    return f"#### `@{name}`\n\n{group.reason}\n\n{calls}.{only}\n\n"
