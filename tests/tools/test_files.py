from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from typing import TYPE_CHECKING

import pytest

from spl.tools.data import SCHEMAS, DataPlane
from spl.tools.files import LIST_LIMIT, READ_LIMIT, WRITE_LIMIT
from spl.tools.pieces import OUTPUT_LIMIT
from tests.full import full

if TYPE_CHECKING:
    from pathlib import Path

    from spl.tools.mediated import Result

NOTHING_THERE = "No such file or directory"


def use(folder: Path, tool: str, **arguments: object) -> Result:
    """Call a tool as the operator."""
    result: Result = asyncio.run(getattr(DataPlane(folder, label=None), tool)(arguments))
    return result


def refused(folder: Path, tool: str, **arguments: object) -> str:
    result = use(folder, tool, **arguments)
    assert (result.status, result.records) == ("error", ())
    assert "\n" not in result.output
    return result.output


def names(result: Result) -> list[str]:
    return [json.loads(line.split(" ", 2)[2]) for line in result.output.splitlines() if line[0] != "("]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_file", {}),
        ("read_file", {"path": 7}),
        ("read_file", {"path": None}),
        ("read_file", {"path": "x" * 5000}),
        ("read_file", {"path": "a", "offset": -1}),
        ("read_file", {"path": "a", "offset": True}),
        ("read_file", {"path": "a", "offset": 1.0}),
        ("read_file", {"path": "a", "offset": 1 << 63}),
        ("read_file", {"path": "a", "limit": 5}),
        ("write_file", {"path": "a"}),
        ("write_file", {"path": "a", "content": ["x"]}),
        ("write_file", {"path": "a", "content": "x" * (WRITE_LIMIT + 1)}),
        ("list_dir", {"path": {}}),
        ("search", {}),
        ("search", {"text": ""}),
        ("search", {"text": "x" * 1001}),
    ],
)
def test_arguments_that_are_none_are_an_error_in_one_sentence(
    tmp_path: Path, tool: str, arguments: dict[str, object]
) -> None:
    (tmp_path / "a").write_text("text")
    assert refused(tmp_path, tool, **arguments).startswith(f"{tool} takes ")
    assert (tmp_path / "a").read_text() == "text"


def test_a_model_is_told_of_every_tool_and_of_no_argument_that_is_not_taken() -> None:
    assert list(SCHEMAS) == ["read_file", "write_file", "list_dir", "search"]
    for said in SCHEMAS.values():
        assert set(said) == {"description", "parameters"}
        assert said["parameters"]["additionalProperties"] is False
        assert set(said["parameters"]["required"]) <= set(said["parameters"]["properties"])


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "//etc/passwd",
        "..",
        "a/..",
        "a/../..",
        "a/../../x",
        "../x",
        "./..",
        "a\0b",
        "\ud800",
        "a/" * 2000,
        "\u00e9" * 3000,
    ],
)
@pytest.mark.parametrize("tool", ["read_file", "write_file", "list_dir", "search"])
def test_a_path_that_leads_out_or_is_none_is_refused(tmp_path: Path, tool: str, path: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    more = {"write_file": {"content": "x"}, "search": {"text": "x"}}.get(tool, {})
    assert "cannot be" in refused(data, tool, path=path, **more)
    assert list(data.iterdir()) == []
    assert list(tmp_path.iterdir()) == [data]


# --- reading ---


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    for text in ("a", "é\n\x1b[31m\r\n", "x" * READ_LIMIT):
        (tmp_path / "a").write_text(text, newline="")
        assert use(tmp_path, "read_file", path="a").output == text
    (tmp_path / "a").write_text("")
    assert use(tmp_path, "read_file", path="a").output == "(the file is empty)"


@pytest.mark.parametrize("letter", ["x", "é", "€", "𝄞"])
@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_a_long_file_is_read_in_pieces_of_whole_characters_that_lose_nothing(
    tmp_path: Path, letter: str, shift: int
) -> None:
    text = "y" * shift + letter * (150_000 // len(letter.encode()))
    (tmp_path / "a").write_text(text)
    seen, offset = "", 0
    for _ in range(4):
        result = use(tmp_path, "read_file", path="a", offset=offset)
        assert len(result.output) <= OUTPUT_LIMIT
        piece, more, last = result.output.partition("\n(more follows: read on with offset ")
        seen += piece
        if not more:
            break
        offset = int(last.rstrip(")"))
    assert seen == text


def test_an_offset_within_a_character_gives_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("𝄞é!")
    seen = [use(tmp_path, "read_file", path="a", offset=offset).output for offset in range(9)]
    assert seen[:7] == ["𝄞é!", "é!", "é!", "é!", "é!", "!", "!"]
    assert seen[7:] == ["(nothing follows: the file has 7 bytes)"] * 2


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfe", b"ends \xe2\x82", b"\x80\x80\x80\x80"])
def test_a_binary_file_is_said_to_be_one_with_its_size(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    assert refused(tmp_path, "read_file", path="a") == (
        f'"a" cannot be read: it is a binary file of {len(data)} bytes'
    )


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    with open(tmp_path / "huge", "wb") as file:
        file.write(b"x" * 100_000)
        file.truncate(1 << 30)
    assert "offset" in use(tmp_path, "read_file", path="huge").output
    assert f"binary file of {1 << 30} bytes" in refused(tmp_path, "read_file", path="huge", offset=1 << 20)
    assert "over 1 MiB" in use(tmp_path, "search", text="x").output


def test_a_file_that_grows_while_it_is_read_is_read_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("line\n")
    done = threading.Event()

    def grow() -> None:
        with open(path, "a") as file:
            while not done.is_set() and file.tell() < 64 << 20:
                file.write("line\n" * 1000)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(50):
            result = use(tmp_path, "read_file", path="log")
            assert (result.status, len(result.output) <= OUTPUT_LIMIT) == ("ok", True)
            assert use(tmp_path, "search", text="line").status == "ok"
    finally:
        done.set()
        writer.join()


# --- what is no file ---


def test_what_is_no_file_is_refused_unopened_and_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "up").symlink_to("..")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        for name, what in (("fifo", "FIFO"), ("socket", "socket"), ("folder", "folder"), ("zero", "symlink")):
            assert f"it is a {what}" in refused(tmp_path, "read_file", path=name)
            assert f"it is a {what}" in refused(tmp_path, "write_file", path=name, content="x")
        for name in ("fifo", "socket", "zero", "up"):
            assert "it is a" in refused(tmp_path, "list_dir", path=name)
            assert "it is a" in refused(tmp_path, "search", path=name, text="x")
        assert use(tmp_path, "list_dir").output.splitlines() == [
            'FIFO - "fifo"',
            'folder - "folder"',
            'socket - "socket"',
            'symlink - "up"',
            'symlink - "zero"',
        ]
        assert use(tmp_path, "search", text="x").output == "(nothing)\n(left out: 4 no file)"
    assert "it is a file" in refused_list_of_a_file(tmp_path)
    assert "no folder" in refused(tmp_path, "read_file", path="up/x")
    assert "no folder" in refused(tmp_path, "write_file", path="up/x", content="x")


def refused_list_of_a_file(folder: Path) -> str:
    (folder / "file").write_text("x")
    return refused(folder, "list_dir", path="file")


def test_what_is_not_there_is_said_not_to_be(tmp_path: Path) -> None:
    assert refused(tmp_path, "read_file", path="x/y") == f'"x/y" cannot be read: {NOTHING_THERE}'
    assert refused(tmp_path / "gone", "list_dir") == f'"." cannot be listed: {NOTHING_THERE}'


# --- writing ---


def test_a_file_is_written_whole_for_its_owner_alone_with_the_folders_it_needs(tmp_path: Path) -> None:
    result = use(tmp_path, "write_file", path="a/b/c", content="é" * 3)
    assert (result.status, result.output) == ("ok", 'Wrote 6 bytes to "a/b/c".')
    assert (tmp_path / "a/b/c").read_text() == "ééé"
    assert stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode) == 0o600
    assert {stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("a", "a/b")} == {0o700}
    assert use(tmp_path, "write_file", path="a/b/c", content="").output == 'Wrote 0 bytes to "a/b/c".'
    assert (tmp_path / "a/b/c").read_text() == ""
    assert os.listdir(tmp_path / "a/b") == ["c"]


def test_a_file_that_was_open_to_others_is_so_no_more_when_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o644)
    use(tmp_path, "write_file", path="a", content="new")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_the_other_name_of_a_hard_link_keeps_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "outside").write_text("old")
    os.link(tmp_path / "outside", tmp_path / "data/a")
    assert use(tmp_path / "data", "read_file", path="a").output == "old"
    use(tmp_path / "data", "write_file", path="a", content="new")
    assert (tmp_path / "outside").read_text() == "old"


def test_content_is_counted_in_bytes(tmp_path: Path) -> None:
    assert use(tmp_path, "write_file", path="a", content="é" * (WRITE_LIMIT // 2)).status == "ok"
    said = refused(tmp_path, "write_file", path="b/c", content="é" * (WRITE_LIMIT // 2) + "x")
    assert (
        said
        == f'"b/c" cannot be written: its content takes {WRITE_LIMIT + 1} bytes, and {WRITE_LIMIT} is the most'
    )
    assert "lone surrogate" in refused(tmp_path, "write_file", path="b/c", content="\udc80")
    assert os.listdir(tmp_path) == ["a"]


def test_a_write_that_fails_says_why_and_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with full(1000):
        said = refused(tmp_path, "write_file", path="a", content="x" * 2000)
        refused(tmp_path, "write_file", path="new/folder/a", content="x" * 2000)
    assert said == '"a" cannot be written: File too large'
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_folder_that_could_not_be_filled_goes_but_not_one_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    said = refused(tmp_path, "write_file", path="there/new/" + "x" * 300, content="x")
    assert said.endswith("cannot be written: File name too long")
    assert os.listdir(tmp_path / "there") == []


def test_no_tool_shows_or_takes_a_half_written_file(tmp_path: Path) -> None:
    draft = ".spl~0123456789abcdef"
    (tmp_path / draft).write_text("half a secret")
    assert use(tmp_path, "list_dir").output == "(nothing)"
    assert use(tmp_path, "search", text="half").output == "(nothing)"
    for tool, more in (("read_file", {}), ("write_file", {"content": "x"}), ("search", {"text": "half"})):
        assert refused(tmp_path, tool, path=draft, **more).endswith(NOTHING_THERE)
        assert refused(tmp_path, tool, path=f"{draft}/x", **more).endswith(NOTHING_THERE)


def test_nobody_ever_reads_half_of_what_is_written_or_sees_where_it_was(tmp_path: Path) -> None:
    whole = {letter * 300_000 for letter in "ab"}
    use(tmp_path, "write_file", path="f", content="a" * 300_000)
    done = threading.Event()

    def write() -> None:
        for _ in range(50):
            for content in sorted(whole):
                use(tmp_path, "write_file", path="f", content=content)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while not done.is_set():
            assert use(tmp_path, "list_dir").output == 'file 300000 "f"'
            assert (tmp_path / "f").read_text() in whole
    finally:
        writer.join()


# --- listing ---


def test_a_folder_is_listed_in_order_with_kinds_and_sizes(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text("four")
    (tmp_path / ".c").write_text("")
    assert use(tmp_path, "list_dir").output == 'file 0 ".c"\nfile 4 "a"\nfolder - "b"'
    assert use(tmp_path, "list_dir", path="b").output == "(nothing)"


@pytest.mark.parametrize(
    "name",
    [
        b'x"\nfile 9 "y',
        b"\x1b[2J",
        b"\r",
        b"\xe2\x80\xae txt",
        b"\xe2\x80\xa8",
        b"\xff\xfe",
        b"a:1: b",
        b"\\n",
    ],
)
def test_no_name_can_pass_for_an_entry_of_its_own(tmp_path: Path, name: bytes) -> None:
    with open(os.fsencode(tmp_path) + b"/" + name, "w") as file:
        file.write("hit")
    (line,) = use(tmp_path, "list_dir").output.splitlines()
    assert line.isprintable()
    assert json.loads(line.split(" ", 2)[2]) == os.fsdecode(name)
    (hit,) = use(tmp_path, "search", text="hit").output.splitlines()
    assert hit.isprintable()
    assert hit == f"{line.split(' ', 2)[2]}:1: hit"


def test_a_name_in_an_error_can_not_pass_for_another_line(tmp_path: Path) -> None:
    assert refused(tmp_path, "read_file", path="x\n\x1b[2J").startswith('"x\\n\\u001b[2J" cannot be read')
    assert len(refused(tmp_path, "read_file", path="x/" * 90 + "y" * 3000)) < 500


def test_a_large_folder_is_cut_and_says_so(tmp_path: Path) -> None:
    for number in range(LIST_LIMIT + 5):
        (tmp_path / f"{number:05}").touch()
    result = use(tmp_path, "list_dir")
    assert names(result) == [f"{number:05}" for number in range(LIST_LIMIT)]
    assert result.output.endswith("\n(more: these are the first 1000)")


def test_a_folder_of_long_names_is_cut_at_what_fits(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / (f"{number:03}" + "\x01" * 250)).touch()
    result = use(tmp_path, "list_dir")
    assert len(result.output) <= OUTPUT_LIMIT
    assert result.output.endswith(f"\n(more: these are the first {len(names(result))})")
