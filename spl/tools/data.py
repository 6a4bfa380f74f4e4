"""The data plane: the file tools over one folder of the instance, the same paths for everyone who may see them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from spl.tools.beneath import Refusal, Tree, checked, quoted
from spl.tools.files import SEARCH_SECONDS, Files, schemas

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MEMBERS = "members"
"""The folder with one folder for each member, by label."""

_SHOWN = 300
_LABEL = re.compile(r"[A-Za-z0-9._%-]{1,100}")

SCHEMAS: dict[str, dict[str, Any]] = schemas(
    "",
    "Relative to the instance's data folder, which is '.'; a member writes beneath members/<label>/ only",
    default=True,
)


class DataPlane(Files):
    """The file tools over the data folder, as its operator sees it or as one member does.

    A member reads everything but the other members' folders, which are not there for them, and writes in their own
    alone. The folder is opened at each call: its operator may put another in its place.
    """

    def __init__(
        self, folder: str | Path, *, label: str | None, search_seconds: float = SEARCH_SECONDS
    ) -> None:
        """Take the member's label, or None for the operator; raises `ValueError` for what can be no label."""
        if label is not None and (label in {".", ".."} or not _LABEL.fullmatch(label)):
            raise ValueError(f"no member can have the label {label!r}")
        super().__init__(_Data(os.fspath(folder), label), SCHEMAS, search_seconds=search_seconds)


class _Data(Tree):
    def __init__(self, root: str, label: str | None) -> None:
        self.root = root
        self._label = label

    def names(self, path: str) -> list[str]:
        if checked(path).startswith("/"):
            raise Refusal("a path here is relative to the data folder")
        names = path.split("/")
        if ".." in names:
            raise Refusal("a path here may not hold '..'")
        plain = [name for name in names if name not in {"", "."}]
        # One spelling for each path, or a rule about `args.path` could be passed by another.
        if plain != names and path != ".":
            written = quoted(self.path(plain))
            advice = f": write it as {written}" if len(written) <= _SHOWN else ""
            raise Refusal(f"a path here has no empty name, no '.' and no '/' at its end{advice}")
        return plain

    def path(self, names: Sequence[str]) -> str:
        return "/".join(names) or "."

    def may_write(self, names: Sequence[str]) -> None:
        if self._label is not None and (len(names) < 3 or list(names[:2]) != [MEMBERS, self._label]):
            raise Refusal(f"this run writes only beneath {quoted(f'{MEMBERS}/{self._label}/')}")

    def only(self, root: int, folder: int) -> str | None:
        if self._label is None:
            return None
        try:
            members = os.stat(MEMBERS, dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            return None
        # By what it is, not by its name: that may be spelled in several ways where a file system folds case, and the
        # folder may be mounted elsewhere too.
        return self._label if os.path.samestat(members, os.fstat(folder)) else None
