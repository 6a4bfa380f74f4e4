"""The report: what stands in the repository, how a fresh one is held against it, and the page that people read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bwrap.library import Library
from escape.attempts import ATTEMPTS, CLASSES
from spl import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from escape.suite import Found

    Json = dict[str, Any]

PATH: Final = Path(__file__).resolve().parent / "report.json"
"""Where the last report stands."""

_KEY: Final = ("id", "shape", "profile")
_ALWAYS: Final = ("layer", "class", "ok")
_ON_THE_SAME: Final = ("expected", "got")
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
    said = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(said, dict) or not isinstance(said.get("rows"), list):
        raise ValueError(f"{path} is no report of the escape suite")  # noqa: TRY004 - as what is no JSON at all
    return said


def differences(kept: Json, fresh: Json) -> list[str]:
    """Say in what a fresh report is otherwise than the one that is kept.

    A row's layer, class and verdict must be the same on every host; its expected and its got where kernel and
    bubblewrap are, and the image where interpreter and libseccomp are as well. A row that one of the two hosts has
    nothing to attempt for is left aside.
    """
    names = _ALWAYS + (_ON_THE_SAME if _alike(kept, fresh, _KERNEL) else ())
    before, after = _by_key(kept["rows"]), _by_key(fresh["rows"])
    aside = _by_key(kept["lacks"]).keys() | _by_key(fresh["lacks"]).keys()
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
    return said


def page(said: Json) -> str:
    """Give the report as docs/escape.md."""
    return (
        "\n".join([*_introduction(said), *_made_on(said), *_attempts(said), *_allowed(), *_mutations(said)])
        + "\n"
    )


def _alike(kept: Json, fresh: Json, names: Iterable[str]) -> bool:
    return all(
        kept["hosts"].get(shape, {}).get(name) == host.get(name)
        for shape, host in fresh["hosts"].items()
        for name in names
    )


def _by_key(rows: Iterable[Json]) -> dict[tuple[str, ...], Json]:
    return {tuple(row[name] for name in _KEY): row for row in rows}


def _introduction(said: Json) -> Iterator[str]:
    rows, made = said["rows"], {row["id"] for row in said["rows"]}
    red = sum(not row["ok"] for row in rows)
    yield "# The escape suite"
    yield ""
    yield (
        f"{len(made)} attempts to get out of a sandboxed run, made from inside the confined process of a member's run, "
        "in both shapes and under every shipped profile that a run can start with: "
        f"{len(rows)} rows, {red or 'none'} red. A row is green only with the answer that proves the layer which must "
        "give it; refused by something else is red as well. Right before each attempt something of its kind must work, "
        "and the victims (a process, another run, listening ports, files, segments and queues, a key, a terminal) are "
        "looked at from outside before and after."
    )
    yield ""
    yield (
        "`spl escape run` makes the rows afresh, `spl escape mutate` takes each layer away and shows which turn red, "
        "`spl escape report` shows the report that came with this release. Made by `make docs` from "
        "escape/report.json, which `make escape` writes."
    )
    yield ""


def _made_on(said: Json) -> Iterator[str]:
    yield "## Made on"
    yield ""
    yield "| what | " + " | ".join(said["hosts"]) + " |"
    yield "|---" * (1 + len(said["hosts"])) + "|"
    names = list(dict.fromkeys(name for host in said["hosts"].values() for name in host if name != "shape"))
    for name in names:
        yield f"| {name} | " + " | ".join(_code(host.get(name, "")) for host in said["hosts"].values()) + " |"
    for name, digest in said["profiles"].items():
        yield f"| profile {name} |" + f" `{digest}` |" * len(said["hosts"])
    yield ""
    apart = Counter((each["id"], each["profile"], each["why"]) for each in said["lacks"])
    if apart:
        yield "Not attempted there, and why:"
        yield ""
        for (name, profile, why), _ in sorted(apart.items()):
            yield f"- {'every attempt' if name == '*' else _code(name)} under `{profile}`: {_text(_short(why))}"
        yield ""


def _attempts(said: Json) -> Iterator[str]:
    yield "## Attempts"
    yield ""
    yield (
        "One line an attempt; where shapes or profiles differ, the answers say in which. The layer is the one that "
        "must answer; behind it stand, in this order, those that do when it is gone."
    )
    by_id: dict[str, list[Json]] = {}
    for row in said["rows"]:
        by_id.setdefault(row["id"], []).append(row)
    kinds = ["run", *(module.__name__.rpartition(".")[2] for module in CLASSES)]
    for kind in kinds:
        chosen = {name: rows for name, rows in by_id.items() if rows[0]["class"] == kind}
        if not chosen:
            continue
        yield ""
        yield f"### {kind}"
        yield ""
        yield "| attempt | what it does | an escape would mean | layer | answer | behind it |"
        yield "|---|---|---|---|---|---|"
        for name, rows in sorted(chosen.items()):
            yield _attempt(name, rows)
    yield ""


def _attempt(name: str, rows: Sequence[Json]) -> str:
    attempt = ATTEMPTS.get(name)
    if attempt is None:
        sentence, escape = (
            "does a whole run of the installed worker, the seed's verify goal",
            "nothing could be trusted",
        )
    else:
        sentence = attempt.sentence + (f" ({attempt.cve})" if attempt.cve else "")
        escape = attempt.escape
    return (
        f"| `{name}` | {_text(sentence)} | {_text(escape)} | {_told(rows, 'layer')} | {_told(rows, 'got')} |"
    )


def _told(rows: Sequence[Json], name: str) -> str:
    """Give what rows say, each thing once, with where it is said if that is not everywhere."""
    said: dict[str, list[str]] = {}
    for row in rows:
        value = row[name] if row["ok"] or name != "got" else f"RED: {row[name]}"
        said.setdefault(value, []).append(f"{row['shape']} {row['profile']}")
    if len(said) == 1:
        return _text(_short(next(iter(said))))
    return "; ".join(f"{_text(_short(value))} ({', '.join(where)})" for value, where in said.items())


def _allowed() -> Iterator[str]:
    chosen = [each for each in ATTEMPTS.values() if each.allowed]
    if chosen:
        yield "## Allowed on purpose"
        yield ""
        for each in chosen:
            reason = each.allowed[0].upper() + each.allowed[1:]
            yield f"- `{each.id}`: {_text(each.sentence)}. {_text(reason)}."
        yield ""


def _mutations(said: Json) -> Iterator[str]:
    yield "## Each layer taken away"
    yield ""
    yield (
        "What turned red when a layer was left out of a worker's launch and all else was as in production. A layer "
        "that another hides is shown in a pair: with what masks it lifted, its rows are green while it is there, and "
        "red once it is gone. A layer whose absence nothing notices would be a failure of the suite."
    )
    yield ""
    yield "| layer | taken away | mask lifted | shapes | its rows that turned red | others that did |"
    yield "|---|---|---|---|---|---|"
    merged: dict[tuple[str, ...], list[Json]] = {}
    for each in said["mutations"]:
        merged.setdefault((each["layer"], each["name"], ", ".join(each["lifted"])), []).append(each)
    for (layer, name, lifted), found in merged.items():
        shapes = ", ".join(each["shape"] + ("" if each["ok"] else " (NOT NOTICED)") for each in found)
        own = {row for each in found for row in each["red"] if row in each["own"]}
        other = {row for each in found for row in each["red"]} - own
        yield f"| {layer} | {_text(name)} | {lifted or '-'} | {shapes} | {_some(own)} | {len(other) or '-'} |"
    yield ""


def _some(names: Iterable[str], most: int = 4) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(f"`{name}`" for name in ordered[:most]) + more or "none"


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _code(value: object) -> str:
    return f"`{value}`"


def _text(text: str) -> str:
    """Give text as a cell of a table shows it."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def layers_noticed(said: Mapping[str, Any]) -> set[str]:
    """Give the layers of which every removal was noticed."""
    missed = {each["layer"] for each in said["mutations"] if not each["ok"]}
    return {each["layer"] for each in said["mutations"]} - missed
