"""Laying a profile over the one it extends, each value keeping where it was said.

Tables merge by key. Lists append, and `"!value"` takes an inherited value away. A list of tables is one table by a
key of its rows: a row for the same call, group or path merges with the inherited one, and `"!call"` takes it away.
The calls that are allowed are read in their order, with every removal kept: `"!call"` may mean one of a group's.

What one profile says is bounded, so that no file of 64 KiB keeps its reader long: a list has at most 256 entries, and
none of them twice.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bwrap.document import Document, Path, Span
    from bwrap.errors import ProfileError

REMOVES = "!"
MOST_ENTRIES = 256

ROWS: dict[Path, str] = {
    ("syscalls", "refuse"): "group",
    ("syscalls", "when"): "call",
    ("filesystem", "tmpfs"): "path",
}
# What a removal here takes away, only who expands the groups can tell.
_IN_ORDER = ("syscalls", "allow")
_WHEN = ("syscalls", "when")
_LONGEST_NAME = 64
"""Characters. `difflib` takes time by the square of a word's length."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was said: in which profile, and where in its file; `path` is the one it has there."""

    profile: str
    document: Document
    path: Path
    key: Span
    span: Span

    @property
    def place(self) -> str:
        """The file and line, as `worker.toml:7`, or the whole path where the file is a person's own."""
        return f"{self.document.file}:{self.document.place(self.span).line}"

    def fault(self, path: Path, reason: str, *, at_key: bool = False) -> ProfileError:
        """Make the error that points here."""
        return self.document.fault(self.key if at_key else self.span, dotted(path), reason)


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its origin: a table of nodes, a list of nodes, or a plain value."""

    value: Any
    origin: Origin
    removed: Mapping[object, Origin] = field(default_factory=dict)
    """Of a list: what was taken away from it, by its name, with where."""

    def plain(self) -> Any:
        """Give the value without the origins."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def nearest(self, path: Path) -> Node:
        """Give the node at a path, or the last one on the way to it."""
        return self._walk(path)[0]

    def fault(self, path: Path, reason: str, *, at_key: bool = False) -> ProfileError:
        """Make the error for a path, named as in the file that said it: merging has counted its lists anew."""
        node, rest = self._walk(path)
        return node.origin.fault((*node.origin.path, *rest), reason, at_key=at_key)

    def _walk(self, path: Path) -> tuple[Node, Path]:
        node = self
        for depth, step in enumerate(path):
            inner = node.value
            at_index = isinstance(inner, list) and isinstance(step, int) and step < len(inner)
            if not (at_index or (isinstance(inner, dict) and step in inner)):
                return node, path[depth:]
            node = inner[step]
        return node, ()

    def leaves(self, path: Path = ()) -> Iterator[tuple[Path, Any, Origin]]:
        """Give each plain value, and each list without any, with its path."""
        if isinstance(self.value, dict) or (isinstance(self.value, list) and self.value):
            inner = self.value.items() if isinstance(self.value, dict) else enumerate(self.value)
            for step, node in inner:
                yield from node.leaves((*path, step))
        else:
            yield path, self.plain(), self.origin


def read(profile: str, document: Document) -> Node:
    """Give a document's values as a node, each with its origin; raises `ProfileError` for a list beyond its bounds."""
    return _read(profile, document, document.values, ())


def merge(parent: Node, child: Node, path: Path = ()) -> Node:
    """Lay a child over its parent; raises `ProfileError` for a removal of what is not there."""
    if isinstance(child.value, dict):
        result = dict(parent.value) if isinstance(parent.value, dict) else {}
        for key, node in child.value.items():
            result[key] = merge(result.get(key, Node(None, node.origin)), node, (*path, key))
        return Node(result, child.origin)
    if isinstance(child.value, list):
        inherited = parent.value if isinstance(parent.value, list) else []
        removed = dict(parent.removed)
        return Node(_appended(inherited, child.value, path, removed), child.origin, removed)
    return child


def dotted(path: Path) -> str:
    """Write a path as a person does: `syscalls.when[2].call`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Give `; did you mean …?` for what a misspelt name is nearest to, or nothing."""
    short = sorted(each for each in known if len(each) <= _LONGEST_NAME)
    near = difflib.get_close_matches(name, short, n=1, cutoff=0.7) if len(name) <= _LONGEST_NAME else None
    return f"; did you mean {near[0]!r}?" if near else ""


def _read(profile: str, document: Document, value: Any, path: Path) -> Node:
    if isinstance(value, dict):
        inner: Any = {key: _read(profile, document, each, (*path, key)) for key, each in value.items()}
    elif isinstance(value, list):
        _require_bounded(document, value, path)
        inner = [_read(profile, document, each, (*path, index)) for index, each in enumerate(value)]
    else:
        inner = value
    span = document.spans.get(path) or document.whole
    return Node(inner, Origin(profile, document, path, document.keys.get(path, span), span))


def _require_bounded(document: Document, value: list[Any], path: Path) -> None:
    """Refuse an entry past the last there may be, and a word that stands in the list already."""

    def refuse(index: int, reason: str) -> ProfileError:
        here = (*path, index)
        return document.fault(document.spans.get(here) or document.whole, dotted(here), reason)

    seen = set()
    for index, each in enumerate(value):
        if index == MOST_ENTRIES:
            raise refuse(index, f"a list has at most {MOST_ENTRIES} entries")
        # By its type as well, see `_name`.
        word = None if isinstance(each, dict | list) else (type(each), each)
        if word is not None and word in seen:
            raise refuse(index, f"{each!r} stands in this list already")
        seen.add(word)


def _appended(
    inherited: list[Node], added: list[Node], path: Path, removed: dict[object, Origin]
) -> list[Node]:
    """Give a list with another laid over it; what is taken away or put back is so in `removed` as well."""
    result: dict[object, Node] = {}
    for node in inherited:
        result[_key(node, path)] = node
    for index, node in enumerate(added):
        here = (*path, index)
        removal = isinstance(node.value, str) and node.value.startswith(REMOVES)
        name = node.value[1:] if removal else _key(node, path)
        if path == _IN_ORDER or (name not in result and not removal):
            result[_key(node, path)] = merge(Node(None, node.origin), node, here)
            removed.pop(name, None)
        elif name not in result:
            known = [f"{REMOVES}{_name(each, path)}" for each in result.values()]
            reason = f"{node.value!r} removes what is not inherited{suggestion(node.value, known)}"
            raise node.origin.fault(here, reason)
        elif removal:
            del result[name]
            removed[name] = node.origin
        elif isinstance(node.value, dict):
            _require_mergeable(result[name], node, path, here)
            result[name] = merge(result[name], node, here)
    return list(result.values())


def _key(node: Node, path: Path) -> object:
    """Give what an entry of a list is found by: its name, or something that is like no other."""
    name = None if path == _IN_ORDER else _name(node, path)
    return object() if name is None else name


def _require_mergeable(one: Node, other: Node, path: Path, here: Path) -> None:
    """Refuse a second row of one profile for the same thing, and values for one argument of a call over another's."""
    if one.origin.profile == other.origin.profile:
        known_by = ROWS[path]
        reason = f"a second row for {other.value[known_by].value!r} in one profile: make them one"
        raise other.value[known_by].origin.fault((*here, known_by), reason)
    if path != _WHEN or "argument" not in other.value or "argument" not in one.value:
        return
    if one.value["argument"].value != other.value["argument"].value:
        call = other.value["call"].value
        raise other.value["argument"].origin.fault(
            (*here, "argument"),
            f"what is inherited compares argument {one.value['argument'].value} of {call!r}; "
            f"take that away first, with when = [{REMOVES + str(call)!r}, …]",
        )


def _name(node: Node, path: Path) -> object:
    """Give what an entry of a list is known by; None is like no other."""
    value = node.value
    if path in ROWS:
        # What should be a row and is none stays, for who checks the types.
        value = value[ROWS[path]].value if isinstance(value, dict) and ROWS[path] in value else None
    if isinstance(value, str):
        return value
    # By its type as well: 1 and true are equal to Python, and not to a person.
    return None if value is None or isinstance(value, dict | list) else (type(value), value)
