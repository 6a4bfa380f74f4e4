"""Profiles as a person writes them, each in a folder of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bwrap.errors import ProfileError
from bwrap.library import Library

if TYPE_CHECKING:
    from pathlib import Path

    from bwrap.profile import Profile


def written(folder: Path, text: str, *, extends: str = "worker", name: str = "own") -> Profile:
    """Write a profile that extends another (the first of its lines says so) and load it."""
    head = f'extends = "{extends}"\n' if extends else ""
    (folder / f"{name}.toml").write_text(head + text, encoding="utf-8")
    return Library(folder).load(name)


def refused(folder: Path, text: str, *, extends: str = "worker", name: str = "own") -> ProfileError:
    """Write a profile that cannot be loaded, and give the error, one sentence with two lines of excerpt."""
    with pytest.raises(ProfileError) as caught:
        written(folder, text, extends=extends, name=name)
    error = caught.value
    assert "\n" not in str(error)
    assert error.excerpt.count("\n") == (1 if error.excerpt else 0)
    return error


def marked(error: ProfileError) -> str:
    """Give what the carets of an error stand under, where each character takes one column."""
    line, carets = error.excerpt.split("\n")
    return line[carets.index("^") : carets.rindex("^") + 1]
