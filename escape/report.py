"""The report: what stands in the repository, and how a fresh one is held against it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bwrap.library import Library
from spl import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from escape.suite import Found

    Json = dict[str, Any]

PATH: Final = Path(__file__).resolve().parent / "report.json"
"""Where the last report stands."""

_ROW: Final = {
    "id": str, "shape": str, "profile": str, "layer": str, "class": str, "expected": str, "got": str, "ok": bool,
}  # fmt: skip
_LACK: Final = {"id": str, "shape": str, "profile": str, "why": str}
_MUTATION: Final = {
    "layer": str, "name": str, "shape": str, "profile": str, "lifted": list, "own": list, "red": dict,
    "red_before": dict, "unmade": list, "ok": bool,
}  # fmt: skip
_KEY: Final = ("id", "shape", "profile")
_ALWAYS: Final = ("layer", "class", "ok")
_ON_THE_SAME: Final = ("expected", "got")
_LARGEST: Final = 16 << 20
_KERNEL: Final = ("kernel", "bubblewrap", "machine", "landlock_abi")


def document(found: Found, mutated: Found) -> Json:
    """Give the report of one making of the whole suite."""
    library = Library()
    return {
        "version": __version__,
        "hosts": found.hosts,
        "profiles": {name: library.load(name).digest for name in sorted(library.shipped())},
        "rows": found.rows,
        "lacks": found.lacks,
        "mutations": mutated.mutations,
    }


def save(said: Json, path: Path = PATH) -> None:
    """Write a report, one row a line: a change of one row is a change of one line."""
    lines = ["{"]
    for name, value in said.items():
        if isinstance(value, list):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            lines.append(f"  {json.dumps(name)}: [\n{rows}\n  ],")
        else:
            lines.append(f"  {json.dumps(name)}: {json.dumps(value, indent=2)},".replace("\n", "\n  "))
    path.write_text("\n".join(lines)[:-1] + "\n}\n", encoding="utf-8")


def load(path: Path = PATH) -> Json:
    """Read a report; raises `OSError`, and `ValueError` for what is none."""
    with open(path, "rb") as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError(f"more than {_LARGEST} bytes")
    try:
        said = json.loads(text)
        _require(said["hosts"], dict)
        _require(said["profiles"], dict)
        for name, wanted in (("rows", _ROW), ("lacks", _LACK), ("mutations", _MUTATION)):
            _require(said[name], list)
            for each in said[name]:
                _require(each, dict)
                for key, kind in wanted.items():
                    _require(each[key], kind)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not of its form: {error}") from None
    return dict(said)


def _require(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")


def differences(kept: Json, fresh: Json) -> list[str]:
    """Say in what a fresh report is otherwise than the one that is kept.

    A row's layer, class and verdict must be the same on every host, and each layer's absence noticed; a row's expected
    and its got where kernel and bubblewrap are the same, and the image where interpreter and libseccomp are as well. A
    row that another host has nothing to attempt for is left aside.
    """
    alike = _alike(kept, fresh, _KERNEL)
    names = _ALWAYS + (_ON_THE_SAME if alike else ())
    before, after = _by_key(kept["rows"]), _by_key(fresh["rows"])
    aside = set() if alike else _by_key(kept["lacks"]).keys() | _by_key(fresh["lacks"]).keys()
    said = []
    # What the image is depends on who compiles it, and for which calls.
    if _alike(kept, fresh, (*_KERNEL, "interpreter", "libseccomp")) and not _alike(kept, fresh, ("image",)):
        said.append("the attempts are not those that the report was made with")
    for key in sorted((before.keys() | after.keys()) - aside):
        if key not in before or key not in after:
            said.append(f"{' '.join(key)}: {'new' if key in after else 'gone'}")
            continue
        said += [
            f"{' '.join(key)}: {name} {before[key][name]!r}, now {after[key][name]!r}"
            for name in names
            if before[key][name] != after[key][name]
        ]
    if alike:
        said += _red_no_more(kept["mutations"], fresh["mutations"])
    return said + [
        f"without {layer}, {name}, {shape}: {how}"
        for how, here, there in (("gone", kept, fresh), ("new", fresh, kept))
        for layer, name, shape in sorted(_noticed(here) - _noticed(there))
    ]


def _red_no_more(kept: Sequence[Json], fresh: Sequence[Json]) -> list[str]:
    """Say which attempts turned red without a layer and do so no more: one that stays green may not try any more."""
    after = {(each["layer"], each["name"], each["shape"]): each["red"].keys() for each in fresh}
    return [
        f"without {each['layer']}, {each['name']}, {each['shape']}: {name} stays green"
        for each in kept
        for name in sorted(
            each["red"].keys() - after.get((each["layer"], each["name"], each["shape"]), each["red"])
        )
    ]


def collapsed(rows: Iterable[Json]) -> list[Json]:
    """Give rows of one attempt that say the same as one, with `where` they are: shapes and profiles, or everywhere."""
    merged: dict[tuple[object, ...], Json] = {}
    rows = list(rows)
    every = {(row["shape"], row["profile"]) for row in rows}
    for row in rows:
        key = tuple(row[name] for name in ("id", *_ALWAYS, *_ON_THE_SAME))
        merged.setdefault(key, {**row, "where": []})["where"].append((row["shape"], row["profile"]))
    for each in merged.values():
        places = [f"{shape} {profile}" for shape, profile in each["where"]]
        each["where"] = "everywhere" if set(each["where"]) == every else ", ".join(places)
    return list(merged.values())


def _alike(kept: Json, fresh: Json, names: Sequence[str]) -> bool:
    """Say whether both were made on hosts of which these things are the same, shape by shape."""

    def seen(said: Json) -> dict[str, list[object]]:
        return {shape: [host.get(name) for name in names] for shape, host in said["hosts"].items()}

    return seen(kept) == seen(fresh)


def _noticed(said: Json) -> set[tuple[str, str, str]]:
    return {(each["layer"], each["name"], each["shape"]) for each in said["mutations"] if each["ok"]}


def _by_key(rows: Iterable[Json]) -> dict[tuple[str, ...], Json]:
    return {tuple(row[name] for name in _KEY): row for row in rows}
