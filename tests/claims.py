"""The page that sets each claim of tests/claims.toml beside the tests that prove it.

Marks are read from the source of the tests, not by collecting them: reading takes milliseconds, needs no
working package and sees the tests that this host could not run.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
CLAIMS = ROOT / "tests" / "claims.toml"

INTRODUCTION = """\
# Claims

What the system promises, each with the tests that prove it; one without a test is **unproven**. "Both
transports" means the same test runs once in process and once sandboxed. "Both shapes" means once as an
ordinary user (the same-user shape) and once as root (the hosted shape: every worker under an unprivileged uid
of its own).

Made by `make docs` from tests/claims.toml and the tests' `claim` marks.
"""


def sections() -> dict[str, dict[str, str]]:
    """Give the claims as they stand in tests/claims.toml: section title → id → line."""
    with CLAIMS.open("rb") as file:
        return tomllib.load(file)


def proofs(tests: Path = ROOT / "tests") -> dict[str, list[str]]:
    """Give for each id that a mark names the tests that carry it, as pytest names them.

    Raises ValueError for a mark whose ids are not written out as strings.
    """
    found: dict[str, list[str]] = {}
    for file in sorted(tests.rglob("test_*.py")):
        name = file.relative_to(tests.parent).as_posix()
        for test, ids in _marked(ast.parse(file.read_bytes(), filename=name), name):
            for claim in ids:
                found.setdefault(claim, []).append(test)
    return found


def page() -> str:
    """Give the text of docs/claims.md."""
    proven = proofs()
    lines = [INTRODUCTION]
    for title, claims in sections().items():
        lines.append(f"## {title}\n")
        for claim, text in claims.items():
            tests = [f"`{test}`" for test in proven.get(claim, [])]
            lines.append(f"- **{claim}** {text}")
            lines += [f"  - {test}" for test in tests or ["**unproven**"]]
        lines.append("")
    return "\n".join(lines)


def _marked(module: ast.Module, file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each test of a module with the ids that it, its class and its module are marked with."""
    everywhere = [
        claim
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        if any(isinstance(name, ast.Name) and name.id == "pytestmark" for name in ast.walk(node))
        for claim in _ids(node.value, file)
    ]
    yield from _marked_in(module.body, file, file, everywhere)


def _marked_in(
    body: list[ast.stmt], prefix: str, file: str, inherited: list[str]
) -> Iterator[tuple[str, list[str]]]:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        ids = inherited + [claim for decorator in node.decorator_list for claim in _ids(decorator, file)]
        name = f"{prefix}::{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from _marked_in(node.body, name, file, ids)
        elif node.name.startswith("test_"):
            yield name, list(dict.fromkeys(ids))


def _ids(expression: ast.expr, file: str) -> Iterator[str]:
    """Yield the ids of every `pytest.mark.claim(...)` in an expression, those of a parameter included."""
    for node in ast.walk(expression):
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "claim"
        ):
            continue
        for argument in node.args:
            match argument:
                case ast.Constant(value=str(claim)):
                    yield claim
                case _:
                    raise ValueError(f"{file}:{argument.lineno}: a claim mark names its ids as strings")
