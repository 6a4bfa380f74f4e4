"""The pages a person reads, taken apart: their fenced blocks, their code spans and their links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.claims import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS: Final = frozenset(("", "sh", "bash", "console"))
"""What a fence is called whose block is commands to run."""

SAMPLES: Final = frozenset(("text", "toml", "json", "http", "ini"))
"""What a fence is called whose block is to be read."""

NEEDS: Final = frozenset(("systemd", "a paid key"))
"""What a block may need that no test has: it is not run, and its commands and options are checked to exist."""

_MAKE: Final = re.compile(r"^make (?:demo|test)\b", re.MULTILINE)
_FENCE: Final = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)")
_MARK: Final = re.compile(r"<!-- needs (.+?) -->")
_SPAN: Final = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_LINK: Final = re.compile(r"\[(?:[^][]|\[[^]]*\])*\]\(([^()\s]+)\)")
_HEADING: Final = re.compile(r"#{1,6} +(.+?)(?: +#+)? *")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, the line on which its text begins, what its fence says, what it is marked to need."""

    page: str
    line: int
    info: str
    text: str
    needs: str | None = None

    @property
    def is_commands(self) -> bool:
        """Whether it is commands, by what its fence is called."""
        return self.info in COMMANDS

    @property
    def is_run(self) -> bool:
        """Whether a test runs it: not what it cannot have, nor 'make demo' and 'make test' themselves."""
        return self.is_commands and self.needs is None and not _MAKE.search(self.text)


@dataclass(frozen=True)
class Page:
    """One page, split into its blocks and its prose; lines keep their numbers in both."""

    name: str
    blocks: tuple[Block, ...]
    prose: str

    def spans(self) -> Iterator[tuple[int, str]]:
        """Yield the code spans of the prose, each with its line."""
        for found in _SPAN.finditer(self.prose):
            yield self.prose.count("\n", 0, found.start()) + 1, " ".join(found[2].split())

    def links(self) -> Iterator[tuple[int, str]]:
        """Yield where the links of the prose lead, each with its line."""
        prose = _SPAN.sub(lambda found: re.sub(r"[^\n]", "x", found[0]), self.prose)
        for found in _LINK.finditer(prose):
            yield prose.count("\n", 0, found.start()) + 1, found[1]

    def anchors(self) -> set[str]:
        """Give the anchors of the headings, as GitHub makes them: a heading that comes again gets a number."""
        seen: dict[str, int] = {}
        anchors = set()
        for line in self.prose.splitlines():
            if not (found := _HEADING.fullmatch(line)):
                continue
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", found[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            anchors.add(f"{slug}-{seen[slug]}" if slug in seen else slug)
            seen[slug] = seen.get(slug, 0) + 1
        return anchors


def take_apart(name: str, text: str) -> Page:
    """Give a page's blocks and its prose; raises ValueError for a fence that is not closed and for an unknown need."""
    blocks, prose, lines = [], [], iter(enumerate(text.splitlines(), 1))
    needs: str | None = None
    for number, line in lines:
        if not (opened := _FENCE.fullmatch(line)):
            prose.append(line)
            if mark := _MARK.fullmatch(line.strip()):
                needs = mark[1]
                if needs not in NEEDS:
                    raise ValueError(
                        f"{name}:{number}: a block can be marked to need {', '.join(sorted(NEEDS))}"
                    )
            elif line.strip():
                needs = None
            continue
        prose.append("")
        body = []
        for _, inside in lines:
            prose.append("")
            if re.fullmatch(rf" *{opened['fence'][0]}{{{len(opened['fence'])},}} *", inside):
                break
            body.append(inside.removeprefix(opened["indent"]))
        else:
            raise ValueError(f"{name}:{number}: this block is not closed")
        info = opened["info"].strip()
        blocks.append(Block(name, number + 1, info, "".join(f"{each}\n" for each in body), needs))
        needs = None
    return Page(name, tuple(blocks), "\n".join(prose))


def names() -> list[str]:
    """Give the pages there are: the README's and those of docs/."""
    return ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def read(name: str) -> Page:
    """Read one page."""
    return take_apart(name, (ROOT / name).read_text(encoding="utf-8"))
