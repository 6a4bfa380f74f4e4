"""How a profile is put into the folder of a home: whole, under a name that is free."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import click

from bwrap.library import NAMES, is_name
from spl.errors import HostRefused, ProfileExists

if TYPE_CHECKING:
    from bwrap.library import Library
    from spl.home import Home


def profile_name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Give what was given as a profile's name; raises `click.BadParameter` for what can be none."""
    if value is not None and not is_name(value):
        raise click.BadParameter(NAMES, context, parameter)
    return value


def save(library: Library, home: Home, name: str, text: str) -> str:
    """Put a profile into the home's folder, whole and readable by its user alone, and give its path.

    Raises `ProfileError` for a text that is no profile, `ProfileExists` for a name that is taken, which a shipped
    one always is, and `HostRefused`.
    """
    require_free(library, home, name)
    path = str(home.profiles / f"{name}.toml")
    library.draft(name, text, path)
    draft = str(home.profiles / f".{name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            # Linked into place whole, for link(2) replaces nothing: what is there stays, whoever was first.
            os.link(draft, path, follow_symlinks=False)
        finally:
            os.unlink(draft)
    except FileExistsError:
        raise _taken(name, path) from None
    except OSError as error:
        raise HostRefused(f"the profile {path!r} cannot be written: {error.strerror}") from None
    return path


def require_free(library: Library, home: Home, name: str) -> None:
    """Refuse a name that a profile has, whether it can be used or not; raises `ProfileExists`."""
    path = str(home.profiles / f"{name}.toml")
    if name in library.shipped():
        raise ProfileExists(f"{name!r} is the name of a shipped profile")
    if os.path.lexists(path):
        raise _taken(name, path)


def _taken(name: str, path: str) -> ProfileExists:
    return ProfileExists(f"there is a profile {name!r} already: {path}")
