from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from spl.tools.data import DataPlane
from spl.tools.pieces import OUTPUT_LIMIT

if TYPE_CHECKING:
    from pathlib import Path

    from spl.tools.mediated import Result


def use(folder: Path, tool: str, **arguments: object) -> Result:
    """Call a tool as the operator."""
    result: Result = asyncio.run(getattr(DataPlane(folder, label=None), tool)(arguments))
    return result


def test_a_text_is_found_as_it_stands_with_where(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/c").write_text("one\r\nA.c\nabc\n", newline="")
    (tmp_path / "a").write_text("x\ty a.c")
    assert use(tmp_path, "search", text="a.c").output == '"a":1: x\\ty a.c'
    assert use(tmp_path, "search", text="c").output == '"a":1: x\\ty a.c\n"b/c":2: A.c\n"b/c":3: abc'
    assert use(tmp_path, "search", text="one", path="b").output == '"b/c":1: one'
    assert use(tmp_path, "search", text="one", path="b/c").output == '"b/c":1: one'
    assert use(tmp_path, "search", text=".*").output == "(nothing)"
    assert "one line" in use(tmp_path, "search", text="a\nb").output


def test_a_long_line_is_cut_around_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x" * 5000 + "needle" + "y" * 5000)
    result = use(tmp_path, "search", text="needle").output
    assert "xneedley" in result
    assert len(result) == len('"a":1: ') + 200


def test_what_is_not_searched_is_said(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"needle\0")
    (tmp_path / "large").write_text("needle" * 200_000)
    (tmp_path / "link").symlink_to("text")
    (tmp_path / "text").write_text("needle")
    assert use(tmp_path, "search", text="needle").output == (
        '"text":1: needle\n(left out: 1 binary, 1 no file, 1 over 1 MiB)'
    )


def test_a_search_ends_at_its_hits(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n" * 201)
    lines = use(tmp_path, "search", text="x").output.splitlines()
    assert (len(lines), lines[-1]) == (201, "(left out: everything after 200 hits)")
    (tmp_path / "a").write_text("x\n" * 200)
    assert len(use(tmp_path, "search", text="x").output.splitlines()) == 200


def test_a_search_ends_at_its_bytes(tmp_path: Path) -> None:
    for number in range(34):
        (tmp_path / f"{number:02}").write_text("y" * (1 << 20))
    (tmp_path / "99").write_text("needle")
    assert use(tmp_path, "search", text="needle").output == "(nothing)\n(left out: everything after 32 MiB)"


def test_a_search_ends_at_its_entries(tmp_path: Path) -> None:
    for number in range(10_001):
        (tmp_path / f"{number:05}").touch()
    said = asyncio.run(DataPlane(tmp_path, label=None, search_seconds=100).search({"text": "x"})).output
    assert said == "(nothing)\n(left out: everything after 10000 entries)"


def test_a_search_ends_at_its_deadline(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    said = asyncio.run(DataPlane(tmp_path, label=None, search_seconds=0).search({"text": "x"})).output
    assert said == "(nothing)\n(left out: everything after 0 s)"


def test_a_search_ends_at_what_fits_in_an_answer(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(("needle" + "\x01" * 190 + "\n") * 100)
    said = use(tmp_path, "search", text="needle").output
    assert len(said) <= OUTPUT_LIMIT
    assert said.endswith("\n(left out: everything after what fits in one answer)")


def test_a_deep_tree_is_searched_to_a_depth_and_read_no_deeper_than_a_path_may_go(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    (tmp_path / ("d/" * 32) / "a").write_text("needle")
    (tmp_path / ("d/" * 33) / "a").write_text("needle")
    path = "d/" * 32 + "a"
    assert use(tmp_path, "search", text="needle").output == f'"{path}":1: needle\n(left out: 1 too deep)'
    assert "100 names" in use(tmp_path, "read_file", path="d/" * 101 + "a").output
    assert "No such file or directory" in use(tmp_path, "read_file", path="d/" * 100 + "a").output
