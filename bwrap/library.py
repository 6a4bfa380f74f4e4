"""Profiles by name: the shipped ones, taken once, and a user's own, read anew each time they are asked for.

A name means one file. The shipped names are taken: a file of a user's that bears one would make a receipt say
`worker` of something else, so it is never read, and `strays` says so.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from bwrap import groups
from bwrap.document import Document
from bwrap.errors import ProfileError
from bwrap.merge import Node, merge, read, suggestion
from bwrap.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

SHIPPED = groups.FOLDER.parent
NAMES = "a name is lower-case letters, digits and dashes, at most 64, and begins with a letter"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
DEEPEST = 8
_MOST_BYTES = 64 << 10
_HARMLESS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_EXTENDS = "extends"
_WORDS = {"missing": "it is not said, here or in what this extends", "model_type": "it should be a table"}
"""What is said instead of pydantic's own words, by its name for the mistake."""
_ALONE = "this says no 'extends', so it has to say everything: begin it with extends = \"worker\""


class Library:
    """The shipped profiles as they are now, and those in a folder of the user's, if one is given."""

    def __init__(self, own: Path | None = None, shipped: Path = SHIPPED) -> None:
        """Read the shipped profiles and groups: what is installed over them later changes nothing for this object."""
        self._own = own
        self._shipped = {
            path.stem: Document(str(path), path.read_bytes()) for path in sorted(shipped.glob("*.toml"))
        }
        self._loaded: dict[str, tuple[list[Document], Profile]] = {}
        groups.groups()
        groups.constants()

    def shipped(self) -> list[str]:
        """Give the names of the shipped profiles."""
        return list(self._shipped)

    def own(self) -> list[str]:
        """Give the names of the user's own profiles, whether they can be used or not; raises `ProfileError`."""
        return [name for name in self._files() if name not in self._shipped]

    def strays(self) -> dict[str, ProfileError]:
        """Give what is to be said of each file of the user's that bears a shipped name; raises `ProfileError`."""
        return {
            name: ProfileError(
                f"{self._own}/{name}.toml",
                "",
                f"{name!r} is the name of a shipped profile, so this file is never read: "
                f'rename it, and begin it with extends = "{name}"',
            )
            for name in self._files()
            if name in self._shipped
        }

    def load(self, name: str) -> Profile:
        """Find a profile and merge what it extends; the same object for as long as no file of it has changed.

        Every word of it is checked, those on system calls for both architectures. Raises `ProfileError` with the
        file and the place in it.
        """
        documents = self._chain(name)
        texts = [document.text for document in documents]
        if name in self._loaded:
            known, profile = self._loaded[name]
            if [document.text for document in known] == texts:
                return profile
        profile = _profile(name, documents, self._shipped)
        self._loaded[name] = (documents, profile)
        return profile

    def draft(self, name: str, text: str, file: str | None = None) -> Profile:
        """Read a text as the profile it would be under a name, though no file holds it; `file` is what errors call it.

        Raises `ProfileError`, also for a text that is too long for a file.
        """
        data = text.encode()
        document = Document(file or f"{name}.toml", data)
        if len(data) > _MOST_BYTES:
            raise ProfileError(document.file, "", f"it is longer than {_MOST_BYTES} bytes")
        return _profile(name, self._chain(name, document), self._shipped)

    def _chain(self, name: str, first: Document | None = None) -> list[Document]:
        """Give the documents a profile is merged from, its own first; that is the one given, if one is."""
        names = [name]
        documents = [first or self._find(name)]
        while (parent := documents[-1].values.get(_EXTENDS)) is not None:
            last = documents[-1]
            if not isinstance(parent, str):
                raise _at_extends(last, "it must be the name of one profile")
            names.append(parent)
            if parent in names[:-1]:
                raise _at_extends(last, f"a cycle: {' -> '.join(names)}")
            if len(names) > DEEPEST:
                raise _at_extends(last, f"more than {DEEPEST} profiles deep: {' -> '.join(names)}")
            try:
                documents.append(self._find(parent))
            except UnknownProfile as error:
                raise _at_extends(last, error.reason) from None
        return documents

    def _files(self) -> list[str]:
        """Give the names of the files in the user's folder, without their ending."""
        if self._own is None:
            return []
        try:
            return sorted(
                name.removesuffix(".toml") for name in os.listdir(self._own) if name.endswith(".toml")
            )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ProfileError(str(self._own), "", f"the folder cannot be read: {error.strerror}") from None

    def _find(self, name: str) -> Document:
        if not is_name(name):
            raise UnknownProfile(repr(name), "", NAMES)
        if name in self._shipped:
            return self._shipped[name]
        own = None if self._own is None else self._own / f"{name}.toml"
        if own is None or own.name not in (f"{each}.toml" for each in self.own()):
            near = suggestion(name, [*self._shipped, *self.own()])
            raise UnknownProfile(name, "", f"there is no profile {name!r}{near}")
        return Document(str(own), _own_bytes(own))


def is_name(text: str) -> bool:
    """Whether a profile can have this name."""
    return _NAME.fullmatch(text) is not None


class UnknownProfile(ProfileError, LookupError):
    """No profile has this name."""


def _own_bytes(path: Path) -> bytes:
    """Read a file of the user's own; whoever could write to it would decide how workers are confined."""

    def refused(reason: str) -> ProfileError:
        return ProfileError(str(path), "", reason)

    try:
        # Not blocking, for what should be a file and is a FIFO; no terminal of the daemon's, for one that is a tty.
        with open(
            path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | _HARMLESS)
        ) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise refused("it is not a regular file")
            if found.st_uid not in (os.geteuid(), 0):
                raise refused(f"it belongs to uid {found.st_uid}, who could change what is confined by it")
            # A umask of 002 goes with a group that is the user's alone.
            others = 0o002 if found.st_gid == os.getegid() else 0o022
            if found.st_mode & others:
                raise refused(
                    f"its mode {stat.S_IMODE(found.st_mode):04o} lets others write to it: chmod go-w"
                )
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise refused(f"it cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise refused(f"it is longer than {_MOST_BYTES} bytes")
    return data


def _profile(name: str, documents: Sequence[Document], shipped: Collection[str]) -> Profile:
    chain = [*reversed([name, *(str(each.values[_EXTENDS]) for each in documents[:-1])])]
    said: Node | None = None
    for each, document in zip(chain, reversed(documents), strict=True):
        node = read(each, document)
        if "name" in node.value:
            raise node.value["name"].origin.fault(("name",), "a profile's name is its file's", at_key=True)
        node.value.pop(_EXTENDS, None)
        if document is not documents[0]:
            # Of one that opens the network nobody should read that it has none.
            node.value.pop("description", None)
        said = merge(Node(None, node.origin) if said is None else said, node)
    if said is None:
        raise UnknownProfile(name, "", "nothing was read")
    try:
        words = (
            {"description": f"What {chain[-2]!r} says, and what its own file changes."} if chain[1:] else {}
        )
        profile = Profile.model_validate({**words, **said.plain(), "name": name})
    except ValidationError as error:
        raise _invalid(said, error, rooted=chain[0] in shipped) from None
    profile.came_from(said, tuple(chain))
    for arch in groups.ARCHITECTURES:
        groups.rules(profile, arch)
    return profile


def _at_extends(document: Document, reason: str) -> ProfileError:
    origin = read("", document).nearest((_EXTENDS,)).origin
    return origin.fault((_EXTENDS,), reason)


def _invalid(said: Node, error: ValidationError, *, rooted: bool) -> ProfileError:
    """Give the first fault; `rooted` says that a shipped profile is at the root, which says everything there is."""
    # A key that is not known first: the one it should be may be what another fault misses.
    first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    path = first["loc"]
    if first["type"] == "extra_forbidden":
        known = _keys(path[:-1])
        near = suggestion(str(path[-1]), known) or f": there are {', '.join(known)}"
        reason = f"there is no such key here{near}"
        return said.fault(path, reason, at_key=True)
    if first["type"] == "missing" and not rooted and not any(isinstance(step, int) for step in path):
        return said.fault(path, _ALONE)
    reason = _WORDS.get(
        first["type"], first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    )
    return said.fault(path, reason)


def _keys(path: Sequence[str | int]) -> list[str]:
    """Give the keys that a table may have."""
    model: type[BaseModel] = Profile
    for step in path:
        if isinstance(step, str):
            model = table_of(model, step) or model
    keys = [key for key in model.model_fields if key != "name"]
    return [*keys, _EXTENDS] if model is Profile else keys


def table_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Give the model of the table, or of the list's tables, at a key; None when there are plain values."""
    inner = model.model_fields[key].annotation
    inner = getattr(inner, "__args__", (inner,))[0]
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
