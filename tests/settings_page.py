"""The page that lists every setting, made from the fields of spl/settings.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spl.settings import PREFIX, Settings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

INTRODUCTION = """\
# Settings

What the daemon runs with. A flag of `spl serve` (`--home`, `--port`, `--provider`, `--provider-url`, `--model`) wins
over a variable, a variable over `config.toml` in the home, and that over the default. A value that is not valid and a
name that is no setting are errors that name the flag, the variable, or the file and its key; nothing is started then.
`home` cannot stand in `config.toml`, which lies in it.

`SPL_URL` and `SPL_TOKEN` are the command line's (see [commands.md](commands.md)); the daemon does not read them.

Made by `make docs` from spl/settings.py.

| key of config.toml | variable | default | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Give the text of docs/settings.md."""
    return INTRODUCTION + "".join(_row(name, field) for name, field in Settings.model_fields.items())


def _row(name: str, field: FieldInfo) -> str:
    key = "none" if name == "home" else f"`{name}`"
    default = "unset" if field.default is None else f"`{field.default}`"
    return f"| {key} | `{PREFIX}{name.upper()}` | {default} | {field.description} |\n"
