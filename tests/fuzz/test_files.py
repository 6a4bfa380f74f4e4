"""Bad input in files and expressions is refused in a sentence, and what gets through opens nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fuzz import files

if TYPE_CHECKING:
    from pathlib import Path

FEW, SEED = 40, 1
"""So many of each class in the suite; `make soak` makes more, from other seeds."""

KEPT = list(files.seeds())


@pytest.mark.claim("K8")
def test_whatever_is_written_in_a_file_or_an_expression_ends_in_what_may_be() -> None:
    figures = files.rounds(FEW, SEED)

    assert [f"{each.kind} {each.seed}:{each.index}: {each.said}" for each in figures.findings] == []
    assert {kind: counts.total() for kind, counts in figures.counts.items()} == dict.fromkeys(
        files.CLASSES, FEW
    )
    # What is all refused alike has tried little.
    assert all(len(counts) > 1 for counts in figures.counts.values())


@pytest.mark.parametrize(("kind", "path"), KEPT, ids=[f"{kind}-{path.name}" for kind, path in KEPT])
def test_what_was_not_as_it_must_be_once_is_now(kind: str, path: Path) -> None:
    assert files.CLASSES[kind][1](path.read_bytes())


def test_an_input_that_ends_the_process_is_found_and_the_next_is_judged_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = [[{"outcome": "refused", "resident": 1}]] * 2
    monkeypatch.setattr(files, "CLASSES", {"cel": files.CLASSES["cel"]})
    monkeypatch.setattr(files, "_judged_by_a_child", lambda *_: (list(said.pop()), "status -11: "))

    figures = files.rounds(3, SEED)

    assert figures.counts["cel"] == {"refused": 2, "ended the process": 1}
    assert [(each.index, each.said) for each in figures.findings] == [(1, "status -11: ")]
    assert "cel 1:1: `status -11: `" in files.told(figures)
