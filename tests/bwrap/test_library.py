"""Profiles by name: the shipped ones, taken once, and a user's own, of whom nobody else may be the author."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bwrap import groups
from bwrap.errors import ProfileError
from bwrap.library import SHIPPED, Library, UnknownProfile
from tests.bwrap.authored import marked, refused, written
from tests.bwrap.conftest import ORDINARY, SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER = ORDINARY + 1
OWN = 'extends = "worker"\n'


class User:
    """Whose profiles are read: root, or an ordinary user with a folder of their own."""

    def __init__(self, uid: int, folder: Path) -> None:
        self.uid, self.folder = uid, folder
        self.library = Library(folder)

    def file(
        self, name: str = "own.toml", text: str = OWN, *, uid: int | None = None, mode: int = 0o600
    ) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        self.give(path, uid)
        return path

    def give(self, path: Path, uid: int | None = None) -> None:
        """Make a path this user's, or another's, where the tests may."""
        if os.getuid() == 0:
            os.chown(path, self.uid if uid is None else uid, -1, follow_symlinks=False)

    def refused(self, name: str = "own") -> ProfileError:
        with pytest.raises(ProfileError) as caught, self.acting():
            self.library.load(name)
        return caught.value

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Act with this user's rights: root, who may read anything, would learn nothing of modes."""
        before = os.geteuid()
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(before)


@pytest.fixture(params=SHAPES)
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    """Give the user of each shape in turn."""
    if request.param == "hosted" and os.getuid() != 0:
        pytest.skip("the hosted shape needs root")
    with tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp") as name:
        uid = ORDINARY if request.param == "same-user" and os.getuid() == 0 else os.getuid()
        folder = Path(name)
        one = User(uid, folder)
        one.give(folder)
        yield one
        folder.chmod(0o700)


# --- names ---


def test_the_shipped_profiles_are_there_without_a_folder_of_ones_own() -> None:
    library = Library()

    assert {"base", "strict", "worker"} <= set(library.shipped())
    assert library.own() == []
    assert [library.load(name).name for name in library.shipped()] == library.shipped()


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    library = Library(tmp_path / "absent")

    assert library.own() == []
    assert library.load("worker").name == "worker"


def test_ones_own_profiles_are_listed_whether_they_can_be_used_or_not(tmp_path: Path) -> None:
    for name in ("good.toml", "broken.toml", "Shouting.toml", "notes.txt"):
        (tmp_path / name).write_text("=")

    assert Library(tmp_path).own() == ["Shouting", "broken", "good"]


@pytest.mark.parametrize(
    "name", ["", "Worker", "../worker", "a/b", "1st", "a" * 65, "a\n", "-a", "a.toml", "é", "a\0", "\udcff"]
)
def test_a_name_that_could_be_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownProfile, match="a name is lower-case letters, digits and dashes") as caught:
        Library(tmp_path).load(name)

    assert str(caught.value).isprintable()


def test_a_name_that_could_be_a_path_is_refused_where_it_is_extended(tmp_path: Path) -> None:
    error = refused(tmp_path, 'extends = "../own"', extends="")

    assert (error.line, marked(error)) == (1, '"../own"')
    assert "a name is lower-case letters" in error.reason


@pytest.mark.parametrize(
    ("name", "near"),
    [("wroker", "worker"), ("mi-own", "my-own"), ("strickt", "strict"), ("entirely-different", None)],
)
def test_an_unknown_profile_is_answered_with_what_may_be_meant(
    tmp_path: Path, name: str, near: str | None
) -> None:
    written(tmp_path, "", name="my-own")

    with pytest.raises(UnknownProfile) as caught:
        Library(tmp_path).load(name)

    assert caught.value.reason == f"there is no profile {name!r}" + (
        f"; did you mean {near!r}?" if near else ""
    )


def test_an_unknown_parent_is_named_where_it_is_extended(tmp_path: Path) -> None:
    error = refused(tmp_path, 'description = "d"\nextends = "wroker"', extends="")

    assert (error.line, error.column, marked(error)) == (2, 11, '"wroker"')
    assert error.reason == "there is no profile 'wroker'; did you mean 'worker'?"
    assert not isinstance(error, UnknownProfile)


@pytest.mark.parametrize("value", ["3", '["worker"]', "true", "{ name = 'worker' }"])
def test_a_profile_extends_one_parent_by_its_name(tmp_path: Path, value: str) -> None:
    error = refused(tmp_path, f"extends = {value}", extends="")

    assert (error.place, error.reason, marked(error)) == (
        "extends",
        "it must be the name of one profile",
        value,
    )


def test_profiles_that_extend_each_other_are_an_error_in_the_one_that_closes_the_ring(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b"')
    (tmp_path / "b.toml").write_text('description = "d"\nextends = "c"')
    (tmp_path / "c.toml").write_text('extends = "b"')

    with pytest.raises(ProfileError, match="a cycle: a -> b -> c -> b") as caught:
        Library(tmp_path).load("a")

    assert (caught.value.file, caught.value.line, marked(caught.value)) == (f"{tmp_path}/c.toml", 1, '"b"')


def test_a_profile_that_extends_itself_is_an_error(tmp_path: Path) -> None:
    assert refused(tmp_path, 'extends = "own"', extends="").reason == "a cycle: own -> own"


def test_a_profile_may_extend_eight_deep_and_no_deeper(tmp_path: Path) -> None:
    for at in range(8):
        (tmp_path / f"p{at}.toml").write_text(f'extends = "{f"p{at + 1}" if at < 6 else "base"}"')
    (tmp_path / "q.toml").write_text('extends = "p0"')

    assert len(Library(tmp_path).load("p0").chain) == 8
    with pytest.raises(ProfileError, match="more than 8 profiles deep: q -> p0 -> ") as caught:
        Library(tmp_path).load("q")
    assert (caught.value.file, marked(caught.value)) == (f"{tmp_path}/p6.toml", '"base"')


@pytest.mark.claim("I12")
@pytest.mark.parametrize("make", ["file", "broken file", "folder", "dangling link"])
def test_a_file_that_bears_a_shipped_name_is_never_read_and_is_said_to_be_astray(
    tmp_path: Path, make: str
) -> None:
    stray = tmp_path / "worker.toml"
    match make:
        case "file":
            stray.write_text('extends = "base"\n[namespaces]\nnet = false')
        case "broken file":
            stray.write_text("=")
        case "folder":
            stray.mkdir()
        case _:
            stray.symlink_to("absent")
    own = written(tmp_path, "", name="own")
    library = Library(tmp_path)

    assert library.load("worker").digest == Library().load("worker").digest == own.digest
    assert library.own() == ["own"]
    assert list(library.strays()) == ["worker"]
    error = library.strays()["worker"]
    assert (error.file, error.line) == (str(stray), None)
    assert error.reason == (
        "'worker' is the name of a shipped profile, so this file is never read: "
        'rename it, and begin it with extends = "worker"'
    )


def test_without_a_file_of_a_shipped_name_nothing_is_astray(tmp_path: Path) -> None:
    written(tmp_path, "", name="own")

    assert Library(tmp_path).strays() == Library().strays() == Library(tmp_path / "absent").strays() == {}


# --- whose files they are ---


def test_ones_own_file_and_roots_are_read(user: User) -> None:
    user.file()
    user.file("roots.toml", uid=0, mode=0o644)

    with user.acting():
        assert user.library.load("own").chain == ("base", "worker", "own")
        assert user.library.load("roots").name == "roots"


def test_a_link_to_ones_own_file_is_read(user: User) -> None:
    (user.folder / "own.toml").symlink_to(user.file("elsewhere.txt"))

    with user.acting():
        assert user.library.load("own").name == "own"


@pytest.mark.parametrize("mode", [0o602, 0o622, 0o666])
def test_a_file_that_others_may_write_to_is_refused_with_its_mode(user: User, mode: int) -> None:
    user.file(mode=mode)

    assert user.refused().reason == f"its mode {mode:04o} lets others write to it: chmod go-w"


@pytest.mark.parametrize("how", ["file", "link"])
def test_a_file_of_another_user_is_refused_with_the_owner(user: User, how: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another")
    target = user.file("own.toml" if how == "file" else "elsewhere.txt", uid=OTHER, mode=0o644)
    if how == "link":
        (user.folder / "own.toml").symlink_to(target)

    assert user.refused().reason == f"it belongs to uid {OTHER}, who could change what is confined by it"


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device", "loop", "dangling link"])
def test_what_is_no_file_is_refused_at_once_and_leaves_no_descriptor(user: User, kind: str) -> None:
    path = user.folder / "own.toml"
    match kind:
        case "pipe":
            os.mkfifo(path, 0o600)
        case "folder":
            path.mkdir()
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "device":
            path.symlink_to("/dev/null")
        case "loop":
            path.symlink_to("own.toml")
        case _:
            path.symlink_to("absent")
    user.give(path)
    before = os.listdir("/proc/self/fd")

    error = user.refused()

    expected = {
        "pipe": "it is not a regular file",
        "device": "it is not a regular file",
        "folder": "it cannot be read: Is a directory",
        "socket": "it cannot be read: No such device or address",
        "loop": "it cannot be read: Too many levels of symbolic links",
        "dangling link": "it cannot be read: No such file or directory",
    }
    assert (error.file, error.reason) == (str(path), expected[kind])
    assert os.listdir("/proc/self/fd") == before


def test_a_terminal_in_a_files_place_does_not_become_the_readers(tmp_path: Path) -> None:
    """A daemon leads a session without a terminal: the first it opens would be its own, and send it signals."""
    leader, follower = os.openpty()
    (tmp_path / "own.toml").symlink_to(os.ttyname(follower))
    program = (
        "import os, pathlib, sys\n"
        "from bwrap.errors import ProfileError\n"
        "from bwrap.library import Library\n"
        "try: Library(pathlib.Path(sys.argv[1])).load('own')\n"
        "except ProfileError as error: print(error.reason)\n"
        "try: os.open('/dev/tty', os.O_RDONLY)\n"
        "except OSError as error: print(error.strerror)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        start_new_session=True,
        capture_output=True,
        text=True,
        cwd=SHIPPED.parent,
    )
    os.close(leader)
    os.close(follower)

    assert done.stdout.splitlines() == ["it is not a regular file", "No such device or address"]


def test_a_file_of_64_kib_is_read_and_a_longer_one_refused(user: User) -> None:
    comment = "#" + "-" * 1022 + "\n"
    user.file(text=OWN + comment * 63 + "#" * 800)
    with user.acting():
        assert user.library.load("own").name == "own"

    user.file(text=OWN + comment * 64)

    assert user.refused().reason == "it is longer than 65536 bytes"


def test_a_folder_that_is_a_file_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "profiles").touch()
    library = Library(tmp_path / "profiles")

    for ask in (library.own, lambda: library.load("own")):
        with pytest.raises(ProfileError, match="the folder cannot be read: Not a directory"):
            ask()


@pytest.mark.parametrize("user", ["same-user"], indirect=True)  # root may read anything
@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "what"),
    [(0o000, 0o600, "the folder"), (0o400, 0o600, "it"), (0o700, 0o000, "it")],
)
def test_what_cannot_be_read_is_said_to_be_so_and_not_to_be_absent(
    user: User, folder_mode: int, file_mode: int, what: str
) -> None:
    user.file(mode=file_mode)
    user.folder.chmod(folder_mode)

    assert user.refused().reason == f"{what} cannot be read: Permission denied"


# --- what changes, and what does not ---


def test_a_profile_is_the_same_object_until_one_of_its_files_changes(tmp_path: Path) -> None:
    written(tmp_path, "[limits]\nprocesses = 4", name="parent")
    (tmp_path / "own.toml").write_text('extends = "parent"')
    library = Library(tmp_path)
    first = library.load("own")

    assert library.load("own") is first
    assert library.load("worker") is library.load("worker")

    (tmp_path / "parent.toml").write_text('extends = "worker"\n[limits]\nprocesses = 3')
    assert library.load("own").limits.processes == 3

    (tmp_path / "own.toml").write_text('extends = "parent"\n[limits]\nprocesses = 2')
    assert library.load("own").limits.processes == 2
    assert first.limits.processes == 4


def test_a_change_that_keeps_the_time_and_the_size_of_a_file_is_seen(tmp_path: Path) -> None:
    written(tmp_path, "[limits]\nprocesses = 4")
    library = Library(tmp_path)
    found = (tmp_path / "own.toml").stat()
    assert library.load("own").limits.processes == 4

    (tmp_path / "own.toml").write_text(f"{OWN}[limits]\nprocesses = 3")
    os.utime(tmp_path / "own.toml", ns=(found.st_atime_ns, found.st_mtime_ns))

    assert library.load("own").limits.processes == 3


def test_a_file_that_went_or_broke_since_is_an_error_and_not_what_it_was(tmp_path: Path) -> None:
    written(tmp_path, "")
    library = Library(tmp_path)
    library.load("own")

    (tmp_path / "own.toml").write_text("=")
    with pytest.raises(ProfileError, match="not valid TOML"):
        library.load("own")

    (tmp_path / "own.toml").unlink()
    with pytest.raises(UnknownProfile):
        library.load("own")


@pytest.mark.claim("M4")
def test_a_shipped_file_that_is_replaced_after_the_library_was_made_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, own = tmp_path / "profiles", tmp_path / "own"
    shutil.copytree(SHIPPED, shipped)
    own.mkdir()
    (own / "mine.toml").write_text(OWN)
    monkeypatch.setattr(groups, "FOLDER", shipped / "syscalls")
    _forget_groups()
    try:
        library = Library(own, shipped)
        (shipped / "worker.toml").write_text('extends = "base"\n[namespaces]\nnet = false\n')
        (shipped / "base.toml").unlink()
        (shipped / "more.toml").write_text(OWN)
        for path in (shipped / "syscalls").iterdir():
            path.write_text("")

        digests = [library.load(name).digest for name in ("worker", "mine")]
        listed = library.shipped()
    finally:
        _forget_groups()
    monkeypatch.undo()

    assert digests == [Library().load("worker").digest] * 2
    assert listed == Library().shipped()


def _forget_groups() -> None:
    groups.groups.cache_clear()
    groups.constants.cache_clear()


def test_a_file_that_its_users_own_group_can_write_is_no_others(user: User) -> None:
    """A umask of 002 goes with a group that is the user's alone."""
    path = user.file(mode=0o664)
    with user.acting():
        assert user.library.load("own").chain == ("base", "worker", "own")
    if os.getuid() == 0:
        os.chown(path, -1, OTHER)
        assert "lets others write to it" in user.refused().reason


def test_what_a_profile_is_for_is_said_by_its_own_file_or_not_at_all(tmp_path: Path) -> None:
    assert "worker" in (found := written(tmp_path, "[namespaces]\nnet = false").description)
    assert "no network" not in found
    assert written(tmp_path, 'description = "Mine."').description == "Mine."
