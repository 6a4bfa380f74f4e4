"""The pages that list the layers and what a profile can say, made from the tables of bwrap/ and profiles/."""

from __future__ import annotations

import typing
from inspect import getdoc
from typing import TYPE_CHECKING

from bwrap import groups, layers
from bwrap.profile import SHIPPED, TOKENS, Profile, load

if TYPE_CHECKING:
    from pydantic import BaseModel

_LAYERS = """\
# Layers

What a sandboxed run is confined by, one layer a row. Each is looked at from outside, in `/proc/<pid>`, and tried from
inside by the worker itself, before the run is given its credential; one that is not as claimed refuses the start by
its name. Two more names stand in refusals, of what comes before any layer: `sandbox`, where bubblewrap, the
interpreter or the host could not make the process at all, and `image`, where another program than the sealed one
answered. Made by `make docs` from bwrap/layers.py.

| layer | claim | shapes | if it is refused |
|---|---|---|---|
"""

_PROFILES = """\
# What a profile says

A profile is one TOML file; how its words become a process stands in [confinement.md](confinement.md). Made by
`make docs` from bwrap/profile.py and profiles/.

`extends` names one parent: tables merge by key, lists append, `"!value"` takes an inherited value away. Sizes are
written `"512M"`, durations `"60s"`. The host's things are named by token: {tokens}.

## Shipped

{shipped}
## Keys

| key | table |
|---|---|
{keys}
## Groups of system calls

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
    names = sorted(path.stem for path in SHIPPED.glob("*.toml"))
    shipped = "".join(f"- `{name}`: {load(name).description}\n" for name in names)
    return _PROFILES.format(
        tokens=", ".join(f"`{token}`" for token in TOKENS),
        shipped=shipped,
        keys="".join(_keys(Profile, "")),
        groups="".join(_group(name) for name in sorted(groups.groups())),
    )


def _keys(model: type[BaseModel], place: str) -> list[str]:
    found: list[str] = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if typing.get_origin(inner) is list:
            (inner,) = typing.get_args(inner)
        path = f"{place}{name}"
        if isinstance(inner, type) and hasattr(inner, "model_fields"):
            found += [f"| `{path}` | {_sentence(inner)} |\n", *_keys(inner, f"{path}.")]
        elif path != "name":
            found.append(f"| `{path}` | |\n")
    return found


def _sentence(model: type[BaseModel]) -> str:
    return (getdoc(model) or "").replace("\n", " ").strip()


def _group(name: str) -> str:
    group = groups.groups()[name]
    calls = ", ".join(f"`{call}`" for call in group.calls)
    only = "".join(
        f" On {arch} also {', '.join(f'`{call}`' for call in listed)}."
        for arch, listed in (("x86_64", group.x86_64), ("aarch64", group.aarch64))
        if listed
    )
    return f"### `@{name}`\n\n{group.reason}\n\n{calls}.{only}\n\n"
