from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from spl.tools.data import DataPlane

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spl.tools.mediated import Result

SECRET = "what only bob knows"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with something of the operator's, of alice's and of bob's; and a secret beside it."""
    folder = tmp_path / "data"
    for path, text in (
        ("readme", "for all, not SECRET"),
        ("members/alice/notes", "mine"),
        ("members/bob/notes", SECRET),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/notes").write_text(SECRET)
    return folder


def use(folder: Path, label: str | None, tool: str, **arguments: object) -> Result:
    result: Result = asyncio.run(getattr(DataPlane(folder, label=label), tool)(arguments))
    return result


def answers(folder: Path, label: str | None, path: str) -> list[str]:
    """Everything the tools that read say of a path."""
    return [
        use(folder, label, "read_file", path=path).output,
        use(folder, label, "list_dir", path=path).output,
        use(folder, label, "search", path=path, text="knows").output,
    ]


@pytest.mark.parametrize("label", ["", ".", "..", "a/b", "a b", "é", "a\n", "a\0", "x" * 101, "~", "*"])
def test_there_is_no_view_for_what_can_be_no_label(data: Path, label: str) -> None:
    with pytest.raises(ValueError, match="no member can have the label"):
        DataPlane(data, label=label)


@pytest.mark.parametrize("label", ["a", "...", "A.b_c-d%3A", "x" * 100, ".spl", "..a"])
def test_every_label_has_a_folder_to_write_in_and_read(data: Path, label: str) -> None:
    path = f"members/{label}/notes"
    assert use(data, label, "write_file", path=path, content="mine").status == "ok"
    assert use(data, label, "read_file", path=path).output == "mine"
    assert json.dumps(label) in use(data, label, "list_dir", path="members").output


def test_the_operator_reads_and_writes_all(data: Path) -> None:
    assert use(data, None, "read_file", path="members/bob/notes").output == SECRET
    assert use(data, None, "list_dir", path="members").output == 'folder - "alice"\nfolder - "bob"'
    assert use(data, None, "search", text="knows").output == f'"members/bob/notes":1: {SECRET}'
    for path in ("new/file", "members/bob/notes", "readme"):
        assert use(data, None, "write_file", path=path, content="x").status == "ok"


def test_a_member_reads_what_is_everyones_and_their_own_by_the_same_paths(data: Path) -> None:
    assert use(data, "alice", "read_file", path="readme").output == "for all, not SECRET"
    assert use(data, "alice", "read_file", path="members/alice/notes").output == "mine"
    assert use(data, "alice", "list_dir").output == 'folder - "members"\nfile 19 "readme"'


def test_the_other_members_are_not_there_for_a_member(data: Path) -> None:
    assert use(data, "alice", "list_dir", path="members").output == 'folder - "alice"'
    assert use(data, "carol", "list_dir", path="members").output == "(nothing)"
    for path in (".", "members"):
        assert use(data, "alice", "search", text="knows", path=path).output == "(nothing)"


@pytest.mark.parametrize("beneath", ["", "/notes", "/none", "/notes/none"])
def test_asking_tells_nothing_of_whether_a_member_exists(data: Path, beneath: str) -> None:
    said = [answers(data, "alice", f"members/{who}{beneath}") for who in ("bob", "eve")]
    assert said[0] == [answer.replace("eve", "bob") for answer in said[1]]
    assert all("No such file or directory" in answer for answer in said[0])


@pytest.mark.parametrize(
    "path",
    [
        "members/./bob",
        "members//bob",
        "./members/bob",
        ".//members/.//bob/",
        "members/alice/../bob",
        "members/alice/../../members/bob",
        "Members/bob",
        "MEMBERS/BOB",
        "members/Bob",
        "members/bob ",
        "members/bob.",
        "members\\bob",
        "members/\uff42ob",
        "\uff4dembers/bob",
        "members/bo\u200bb",
        "members/b%6fb",
        "members/bob\n",
        "/members/bob",
    ],
)
def test_no_spelling_leads_into_another_members_folder(data: Path, path: str) -> None:
    for each in (path, f"{path}/notes"):
        assert SECRET not in "".join(answers(data, "alice", each))
        said = use(data, "alice", "write_file", path=each, content="x")
        assert said.status == "error"
    assert (data / "members/bob/notes").read_text() == SECRET
    assert sorted(os.listdir(data / "members")) == ["alice", "bob"]


@pytest.mark.parametrize("label", ["alice", None])
@pytest.mark.parametrize("tool", ["read_file", "write_file", "list_dir", "search"])
def test_a_path_has_one_spelling_so_that_a_rule_about_it_cannot_be_passed_by_another(
    data: Path, tool: str, label: str | None
) -> None:
    more = {"write_file": {"content": "x"}, "search": {"text": "x"}}.get(tool, {})
    for path in (
        "./members/alice/notes",
        "members//alice/notes",
        "members/./alice/notes",
        "members/alice/notes/",
        "members/alice/notes/.",
        "members/alice/.//notes//./",
    ):
        said = use(data, label, tool, path=path, **more)
        assert said.status == "error"
        assert said.output.endswith(
            ": a path here has no empty name, no '.' and no '/' at its end: write it as \"members/alice/notes\""
        )
    assert (data / "members/alice/notes").read_text() == "mine"


@pytest.mark.parametrize("path", ["", "./", "./.", ".//", "././/."])
def test_the_folder_itself_has_one_spelling_too(data: Path, path: str) -> None:
    listed = use(data, None, "list_dir", path=".")
    assert (listed.status, listed.output) == ("ok", use(data, None, "list_dir").output)
    assert use(data, None, "search", path=".", text="knows").output == f'"members/bob/notes":1: {SECRET}'
    assert use(data, None, "list_dir", path=path).output.endswith('write it as "."')


def test_a_long_path_is_not_repeated_to_say_how_it_is_written(data: Path) -> None:
    said = use(data, None, "read_file", path=f"./{'x' * 3000}")
    assert said.output.endswith("a path here has no empty name, no '.' and no '/' at its end")
    assert len(said.output) < 500


def test_two_names_that_look_the_same_are_two(data: Path) -> None:
    (data / "members/é").mkdir()
    (data / "members/é/notes").write_text(SECRET)
    assert SECRET not in "".join(answers(data, "alice", "members/e\u0301/notes"))
    use(data, None, "write_file", path="é", content="composed")
    use(data, None, "write_file", path="e\u0301", content="decomposed")
    assert use(data, None, "read_file", path="é").output == "composed"


def test_the_members_folder_is_known_by_what_it_is_wherever_it_is_mounted(data: Path) -> None:
    (data / "again").mkdir()
    program = (
        "import asyncio, sys; from spl.tools.data import DataPlane; plane = DataPlane(sys.argv[1], label='alice')\n"
        "for path in ('again/bob/notes', 'again/alice/notes'):\n"
        "    print(asyncio.run(plane.read_file({'path': path})).output)\n"
        "print(asyncio.run(plane.search({'text': 'knows'})).output)\n"
    )
    bind = ["bwrap", "--dev-bind", "/", "/", "--bind", str(data / "members"), str(data / "again")]
    done = subprocess.run(
        [*bind, sys.executable, "-c", program, str(data)], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        '"again/bob/notes" cannot be read: No such file or directory',
        "mine",
        "(nothing)",
    ]


@pytest.mark.parametrize("path", ["notes", "readme", "members", "members/alice", "members/bob/new", "."])
def test_a_member_who_writes_elsewhere_is_told_where_they_may(data: Path, path: str) -> None:
    said = use(data, "alice", "write_file", path=path, content="x")
    assert (said.status, said.records) == ("error", ())
    assert said.output == (
        f'{json.dumps(path)} cannot be written: this run writes only beneath "members/alice/"'
    )
    assert (data / "readme").read_text() == "for all, not SECRET"
    assert sorted(os.listdir(data)) == ["members", "readme"]
    assert os.listdir(data / "members/bob") == ["notes"]


def test_a_members_folder_is_made_when_they_first_write(tmp_path: Path) -> None:
    assert use(tmp_path, "alice", "write_file", path="members/alice/a/b", content="x").status == "ok"
    assert (tmp_path / "members/alice/a/b").read_text() == "x"


def test_a_symlink_leads_nowhere_wherever_it_stands(data: Path) -> None:
    outside = data.parent / "outside"
    (data / "members/alice/folder").symlink_to(outside)
    (data / "members/alice/file").symlink_to(outside / "notes")
    (data / "members/alice/bob").symlink_to("../bob")
    (data / "members/carol").symlink_to(outside)
    for label in ("alice", "carol", None):
        for path in (
            "members/alice/folder",
            "members/alice/folder/notes",
            "members/alice/file",
            "members/carol/notes",
        ):
            assert SECRET not in "".join(answers(data, label, path))
            assert use(data, label, "write_file", path=path, content="x").status == "error"
    assert SECRET not in "".join(answers(data, "alice", "members/alice/bob/notes"))
    assert SECRET not in use(data, None, "search", path="members/alice", text="knows").output
    assert os.listdir(outside) == ["notes"]
    assert (outside / "notes").read_text() == SECRET


def test_a_data_folder_that_became_a_symlink_is_not_followed(data: Path) -> None:
    data.rename(data.parent / "old")
    data.symlink_to(data.parent / "outside")
    assert SECRET not in "".join(answers(data, None, "notes"))
    assert use(data, None, "write_file", path="x", content="x").status == "error"


def test_the_folder_is_opened_anew_at_each_call(data: Path) -> None:
    plane = DataPlane(data, label=None)
    assert asyncio.run(plane.read_file({"path": "readme"})).status == "ok"
    data.rename(data.parent / "old")
    data.mkdir()
    (data / "readme").write_text("new")
    assert asyncio.run(plane.read_file({"path": "readme"})).output == "new"


def racing(swap: Callable[[], None], call: Callable[[], None], rounds: int) -> None:
    """Make calls while something is swapped over and over in another thread."""
    done = threading.Event()

    def swapping() -> None:
        while not done.is_set():
            swap()

    thread = threading.Thread(target=swapping)
    thread.start()
    try:
        for _ in range(rounds):
            call()
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("swapped", ["members/alice/x", "members/alice/x/y"], ids=["folder", "file"])
def test_a_name_swapped_for_a_symlink_at_any_moment_lets_nobody_out(data: Path, swapped: str) -> None:
    mine, outside = data / "members/alice", data.parent / "outside"
    (outside / "y").write_text(SECRET)
    (mine / "x").mkdir()
    name = data / swapped
    aside = data.parent / "aside"
    target = outside if swapped.endswith("x") else outside / "y"
    seen: set[str] = set()

    def swap() -> None:
        # A write may put the folder or the file back at any moment: then that round is over.
        with suppress(OSError):
            os.rename(name, aside)
        with suppress(OSError):
            os.symlink(target, name)
        with suppress(OSError):
            os.unlink(name)
        with suppress(OSError):
            os.rename(aside, name)
        shutil.rmtree(aside, ignore_errors=True)

    def call() -> None:
        seen.add(use(data, "alice", "write_file", path="members/alice/x/y", content="mine").status)
        for path in ("members/alice/x", "members/alice/x/y"):
            assert SECRET not in "".join(answers(data, "alice", path))
        assert SECRET not in use(data, "alice", "search", text="knows").output

    racing(swap, call, rounds=150)
    assert "ok" in seen
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"notes": SECRET, "y": SECRET}


@pytest.mark.parametrize("put", ["os.symlink(outside, name)", "os.mkfifo(name)"], ids=["symlink", "FIFO"])
@pytest.mark.parametrize("tool", ["read_file", "search"])
def test_a_file_swapped_between_the_look_at_it_and_its_opening_is_not_read(
    data: Path, tool: str, put: str
) -> None:
    program = (
        "import asyncio, os, sys; from spl.tools.data import DataPlane; folder, outside, tool = sys.argv[1:]\n"
        "name = f'{folder}/members/alice/notes'\n"
        "def swap(event, about):\n"
        "    if event == 'open' and about[0] == 'notes':\n"
        f"        os.unlink(name); {put}\n"
        "arguments = {'path': 'members/alice/notes', **({'text': 'knows'} if tool == 'search' else {})}\n"
        "sys.addaudithook(swap)\n"
        "print(asyncio.run(getattr(DataPlane(folder, label='alice'), tool)(arguments)))\n"
    )
    command = [sys.executable, "-c", program, str(data), str(data.parent / "outside/notes"), tool]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert ("it is a FIFO" if "mkfifo" in put else "symbolic links") in done.stdout
    assert SECRET not in done.stdout
    assert not (data / "members/alice/notes").is_file() or (data / "members/alice/notes").is_symlink()


@pytest.mark.parametrize("what", ["os.mkdir(name)", "os.symlink(outside, name)"], ids=["folder", "symlink"])
def test_what_is_put_where_a_file_is_being_written_is_not_written_through(data: Path, what: str) -> None:
    program = (
        "import asyncio, os, sys; from spl.tools.data import DataPlane; folder, outside = sys.argv[1:]\n"
        "name = f'{folder}/members/alice/new'\n"
        "def swap(event, about):\n"
        "    if event == 'os.rename':\n"
        f"        {what}\n"
        "arguments = {'path': 'members/alice/new', 'content': 'mine'}\n"
        "sys.addaudithook(swap)\n"
        "print(asyncio.run(DataPlane(folder, label='alice').write_file(arguments)).status)\n"
    )
    outside = data.parent / "outside/notes"
    command = [sys.executable, "-c", program, str(data), str(outside)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert outside.read_text() == SECRET
    assert done.stdout == ("error\n" if "mkdir" in what else "ok\n")
    assert sorted(os.listdir(data / "members/alice")) == ["new", "notes"]


def test_no_call_leaves_a_descriptor_open(data: Path) -> None:
    (data / "link").symlink_to("readme")
    os.mkfifo(data / "fifo")

    def everything() -> None:
        for label in (None, "alice"):
            for path in (
                ".",
                "readme",
                "link",
                "fifo",
                "members/alice",
                "members/bob/notes",
                "none/none",
                "..",
                "link/x",
            ):
                answers(data, label, path)
                use(data, label, "write_file", path=path, content="x")

    everything()
    before = os.listdir("/proc/self/fd")
    everything()
    assert os.listdir("/proc/self/fd") == before
