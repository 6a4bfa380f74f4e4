"""The report as a person reads it: docs/escape.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escape.attempts import ATTEMPTS, CLASSES
from escape.report import collapsed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Json = dict[str, Any]

_RUN = "A whole run of the installed worker, as the seed has it verified: the one row that is no attempt."
_LONGEST = 200


def page(said: Json) -> str:
    """Give a report as a page of Markdown."""
    parts = (
        _introduction(said),
        _made_on(said),
        _attempts(said),
        _allowed(),
        _mutations(said),
        _unmoved(said),
    )
    return "\n".join(line for part in parts for line in part) + "\n"


def _introduction(said: Json) -> Iterator[str]:
    rows, made = said["rows"], {row["id"] for row in said["rows"]}
    red = sum(not row["ok"] for row in rows)
    yield "# The escape suite"
    yield ""
    yield (
        f"{len(made)} attempts to get out of a sandboxed run, made from inside the confined process of a member's "
        "run, in both [shapes](confinement.md) and under every shipped profile that a run can start with: "
        f"{len(rows)} rows, {red or 'none'} red. A row is green only with the answer of the [layer](layers.md) "
        "that must give it; refused by something else is red as well. Beside the layers, `doors` is the daemon "
        "at its worker socket, and `kernel` the host's kernel itself. Right before each attempt something of its "
        "kind must work, and its victims (a process, another run, listening ports, files, segments and queues, a "
        "key, a terminal) are looked at from outside before and after."
    )
    yield ""
    yield (
        "`spl escape run` makes the rows afresh, `spl escape mutate` takes each layer away and shows which turn "
        "red, `spl escape report` shows the report that came with this release. Made by `make docs` from "
        "escape/report.json, which `make escape` writes."
    )
    yield ""


def _made_on(said: Json) -> Iterator[str]:
    yield "## Made on"
    yield ""
    shapes = list(said["hosts"])
    yield "| what | " + " | ".join(shapes) + " |"
    yield "|---" * (1 + len(shapes)) + "|"
    names = list(dict.fromkeys(name for host in said["hosts"].values() for name in host if name != "shape"))
    for name in names:
        yield (
            f"| {name} | " + " | ".join(_code(said["hosts"][shape].get(name, "")) for shape in shapes) + " |"
        )
    yield ""
    yield "The profiles, by their digests:"
    yield ""
    yield from (f"- {name} `{digest}`" for name, digest in said["profiles"].items())
    yield ""
    apart: dict[tuple[str, str], list[str]] = {}
    for each in said["lacks"]:
        apart.setdefault((each["id"], each["why"]), []).append(f"{each['shape']} {each['profile']}")
    if apart:
        yield "Not attempted there, and why:"
        yield ""
        for (name, why), where in sorted(apart.items()):
            what = "every attempt" if name == "*" else _code(name)
            yield f"- {what} ({', '.join(sorted(where))}): {_text(why)}"
        yield ""


def _attempts(said: Json) -> Iterator[str]:
    yield "## Attempts"
    yield ""
    yield (
        "One line an attempt; where shapes or profiles differ, the answers say in which. The layer is the one "
        "that must answer; behind it stand, in this order, those that do when it is gone."
    )
    yield ""
    classes = {"run": _RUN, **{each.__name__.rpartition(".")[2]: _first(each.__doc__) for each in CLASSES}}
    counted = {kind: {row["id"] for row in said["rows"] if row["class"] == kind} for kind in classes}
    yield "| class | attempts | what they try |"
    yield "|---|---|---|"
    yield from (
        f"| [{kind}](#{kind}) | {len(counted[kind])} | {_text(about)} |" for kind, about in classes.items()
    )
    by_id: dict[str, list[Json]] = {}
    for row in said["rows"]:
        by_id.setdefault(row["id"], []).append(row)
    for kind, about in classes.items():
        yield ""
        yield f"### {kind}"
        yield ""
        yield _text(about)
        yield ""
        yield "| attempt | what it does | an escape would mean | layer | answer | behind it |"
        yield "|---|---|---|---|---|---|"
        yield from (_attempt(name, by_id[name]) for name in sorted(counted[kind]))
    yield ""


def _first(text: str | None) -> str:
    """Give the first paragraph of a docstring as one line."""
    return " ".join(str(text).partition("\n\n")[0].split())


def _attempt(name: str, rows: Sequence[Json]) -> str:
    attempt = ATTEMPTS.get(name)
    if attempt is None:
        sentence, escape = "does the seed's verify goal", "nothing could be trusted"
    else:
        sentence = attempt.sentence + (f" ({attempt.cve})" if attempt.cve else "")
        escape = "nothing: it is allowed, see below" if attempt.allowed else attempt.escape
    first = rows[0]["layer"]
    behind = dict.fromkeys(wall.layer for wall in (attempt.walls if attempt else ()) if wall.layer != first)
    cells = (
        _text(sentence),
        _text(escape),
        _told(rows, "layer"),
        _told(rows, "got"),
        ", ".join(behind) or "-",
    )
    return f"| `{name}` | {' | '.join(cells)} |"


def _told(rows: Sequence[Json], name: str) -> str:
    """Give what rows say, each thing once, with where it is said if that is not everywhere."""
    said: dict[str, str] = {}
    for row in collapsed(rows):
        value = _short(row[name] if row["ok"] or name != "got" else f"RED: {row[name]}")
        said[value] = f"{said[value]}, {row['where']}" if value in said else row["where"]
    if len(said) == 1:
        return _text(next(iter(said)))
    return "; ".join(f"{_text(value)} ({where})" for value, where in said.items())


def _allowed() -> Iterator[str]:
    yield "## Allowed on purpose"
    yield ""
    for each in ATTEMPTS.values():
        if each.allowed:
            reason = each.allowed[0].upper() + each.allowed[1:]
            yield f"- `{each.id}`: {_text(each.sentence)}. {_text(reason)}."
    yield ""


def _mutations(said: Json) -> Iterator[str]:
    yield "## Each layer taken away"
    yield ""
    yield (
        "What turned red when a layer was left out of a worker's launch and all else was as in production, of "
        "the attempts that it must stop. A layer that another hides is shown in a pair: with what masks it "
        "lifted, its rows are green while it is there, and red once it is gone. A layer whose absence nothing "
        "notices would be a failure of the suite, and so would an attempt that was not made. Those that stay "
        "green are stopped by what stands behind, with the same answer, or are about another part of the layer."
    )
    yield ""
    yield "| layer | taken away | mask lifted | shapes | red | of | for example |"
    yield "|---|---|---|---|---|---|---|"
    merged: dict[tuple[str, ...], list[Json]] = {}
    for each in said["mutations"]:
        merged.setdefault((each["layer"], each["name"], ", ".join(each["lifted"])), []).append(each)
    for (layer, name, lifted), found in merged.items():
        shapes = ", ".join(each["shape"] + ("" if each["ok"] else " (NOT NOTICED)") for each in found)
        own = {row for each in found for row in each["own"]}
        red = {row: got for each in found for row, got in each["red"].items() if row in own}
        examples = _examples(red)
        yield f"| {layer} | {_text(name)} | {lifted or '-'} | {shapes} | {len(red)} | {len(own)} | {examples} |"
    yield ""


def _unmoved(said: Json) -> Iterator[str]:
    """List what no removal turned red: what it claims is shown by its answer and its control alone."""
    red = {row for each in said["mutations"] for row in each["red"]}
    left: dict[str, list[str]] = {}
    for row in collapsed(said["rows"]):
        if row["id"] not in red and row["id"] in ATTEMPTS:
            left.setdefault(row["layer"], []).append(row["id"])
    total = len(ATTEMPTS)
    count = len({name for names in left.values() for name in names})
    yield f"{total - count} of {total} attempts turned red under some removal. The others, by who must answer:"
    yield ""
    for layer, names in sorted(left.items()):
        yield f"- {layer}: {', '.join(_code(name) for name in sorted(set(names)))}"
    yield ""
    yield (
        "Nothing of the daemon's own (`doors`) is taken away here, nor of the kernel's: that those rows can fail "
        "is shown by their controls, and by the tests of the API. no_new_privs goes with bubblewrap only, which "
        "always sets it; the limit on cores is the daemon's own, and inherited."
    )


def _examples(red: dict[str, str], most: int = 3) -> str:
    said = [f"{_code(name)} ({_text(_short(got, 60))})" for name, got in sorted(red.items())]
    return ", ".join(said[:most]) or "none"


def _short(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _code(value: object) -> str:
    return f"`{value}`"


def _text(text: str) -> str:
    """Give text as a cell of a table shows it."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
