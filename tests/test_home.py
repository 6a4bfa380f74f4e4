from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spl.errors import (
    DaemonUnreachable,
    HomeInUse,
    HomeUnsafe,
    HostRefused,
    SettingsInvalid,
    SocketPathTooLong,
)
from spl.home import Home, check_socket_path, locate, login, running_pid
from tests.full import full

if TYPE_CHECKING:
    from collections.abc import Iterator

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home", create=True)


def test_a_new_home_and_its_folders_are_open_to_nobody_else(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        home = Home.open(tmp_path / "home", create=True)
    finally:
        os.umask(before)
    for folder in (home.path, home.profiles, home.data, home.run, home.logs):
        assert mode(folder) == 0o700, folder


def test_opening_a_home_again_changes_nothing(home: Home) -> None:
    assert Home.open(home.path, create=True).path == home.path
    assert Home.open(home.path, create=False).path == home.path


def test_a_home_that_is_not_there_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachable, match="there is no home at"):
        Home.open(tmp_path / "home", create=False)
    assert not (tmp_path / "home").exists()


def test_symlinks_among_the_parents_are_resolved_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    home = Home.open(tmp_path / "link" / "home", create=True)
    assert home.path == tmp_path / "real" / "home"


@pytest.mark.parametrize("ending", ["", "/", "//"])
def test_a_home_that_is_a_symlink_is_refused(home: Home, tmp_path: Path, ending: str) -> None:
    (tmp_path / "link").symlink_to(home.path)
    with pytest.raises(HomeUnsafe, match="it is a symlink"):
        Home.open(f"{tmp_path}/link{ending}", create=True)


def test_a_folder_of_the_home_that_is_a_symlink_is_refused(home: Home, tmp_path: Path) -> None:
    home.data.rmdir()
    home.data.symlink_to(tmp_path)
    with pytest.raises(HomeUnsafe, match=r"data.* it is a symlink"):
        Home.open(home.path, create=True)


def test_a_home_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(HomeUnsafe, match="Not a directory"):
        Home.open(tmp_path / "file", create=True)


@pytest.mark.parametrize("others", [0o770, 0o707, 0o750, 0o701, 0o777])
def test_a_home_open_to_others_is_refused_with_its_mode_and_left_as_it_is(
    tmp_path: Path, others: int
) -> None:
    path = tmp_path / "home"
    path.mkdir()
    path.chmod(others)
    with pytest.raises(HomeUnsafe, match=f"its mode is {others:04o}, not 0700"):
        Home.open(path, create=True)
    assert mode(path) == others
    assert list(path.iterdir()) == []


@root_only
def test_someone_elses_home_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir(0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(HomeUnsafe, match="it belongs to uid 12345"):
        Home.open(path, create=True)
    assert list(path.iterdir()) == []


@root_only
def test_root_is_told_to_be_the_user_whose_home_it_names(tmp_path: Path) -> None:
    path = tmp_path / "home"
    path.mkdir(0o700)
    for uid, how in (
        (pwd.getpwnam("nobody").pw_uid, "'runuser -u nobody -- spl …'"),
        (12345, "the uid 12345"),
    ):
        os.chown(path, uid, uid)
        with pytest.raises(HomeUnsafe) as refused:
            Home.open(path, create=False)
        assert how in str(refused.value.fields["remedy"])


def test_a_home_without_a_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostRefused, match="cannot be made: No such file or directory"):
        Home.open(tmp_path / "nowhere" / "home", create=True)


def test_a_home_whose_path_holds_a_nul_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HomeUnsafe, match="holds a NUL"):
        Home.open(f"{tmp_path}/a\0b", create=True)


def test_a_home_whose_sockets_cannot_be_bound_is_refused_with_the_length_and_not_made(
    tmp_path: Path,
) -> None:
    room = 107 - len("/run/spl-worker.sock") - len(os.fsencode(tmp_path)) - 1
    Home.open(tmp_path / ("x" * room), create=True)
    with pytest.raises(SocketPathTooLong, match="takes 108 bytes"):
        Home.open(tmp_path / ("y" * (room + 1)), create=True)
    assert [path.name[0] for path in tmp_path.iterdir()] == ["x"]


def test_the_length_of_a_socket_path_is_counted_in_bytes() -> None:
    check_socket_path("é" * 53)
    with pytest.raises(SocketPathTooLong, match="takes 108 bytes"):
        check_socket_path("é" * 54)


def test_a_home_is_found_by_flag_then_variable_then_alias_then_default() -> None:
    both = {"SPL_HOME": "/spl", "SYNCROPEL_HOME": "/alias"}
    assert locate("/flag", both) == Path("/flag")
    assert locate(None, both) == Path("/spl")
    assert locate(None, {"SYNCROPEL_HOME": "/alias"}) == Path("/alias")
    assert locate(None, {}) == Path("~/.syncro").expanduser()


def test_an_empty_home_is_not_the_current_folder() -> None:
    with pytest.raises(HomeUnsafe, match="empty"):
        locate(None, {"SPL_HOME": ""})


def test_the_lock_names_this_process_until_it_is_released(home: Home) -> None:
    assert running_pid(home) is None
    with home.lock():
        assert running_pid(home) == os.getpid()
        assert mode(home.pid) == 0o600
    assert running_pid(home) is None


def test_a_second_daemon_is_refused_with_the_first_ones_pid(home: Home) -> None:
    with home.lock():
        other = subprocess.run(
            [sys.executable, "-c", LOCK, str(home.path)], capture_output=True, text=True, timeout=30
        )
    assert f"in use by another daemon (pid {os.getpid()})" in other.stdout


def test_a_pid_that_nobody_holds_the_lock_for_is_not_trusted(home: Home) -> None:
    home.pid.write_text(f"{os.getpid()}\n")
    assert running_pid(home) is None
    with home.lock():
        assert home.pid.read_text() == f"{os.getpid()}\n"


def test_a_lock_ends_with_its_process(home: Home) -> None:
    script = LOCK + "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(home.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        assert running_pid(home) == holder.pid
        with pytest.raises(HomeInUse, match=f"pid {holder.pid}"):
            home.lock()
        holder.kill()
        holder.wait()
    assert running_pid(home) is None
    home.lock().release()


@pytest.mark.parametrize("said", ["", "1", "none", "-5", "9" * 40])
def test_one_that_only_looks_does_not_keep_a_daemon_from_starting_whatever_a_killed_one_left(
    home: Home, said: str
) -> None:
    # Process 1 lives: a pid that has been given to another by now. Whoever looks here looks for a while.
    home.pid.write_text(said)
    with home.pid.open() as looked:
        fcntl.flock(looked, fcntl.LOCK_SH)
        ended = threading.Timer(0.05, fcntl.flock, (looked, fcntl.LOCK_UN))
        ended.start()
        with home.lock():
            assert running_pid(home) == os.getpid()
        ended.join()


def test_those_that_look_all_the_time_do_not_keep_a_daemon_from_starting(home: Home) -> None:
    home.lock().release()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            running_pid(home)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(50):
            home.lock().release()
    finally:
        stop.set()
        looker.join()


def test_a_token_is_made_once_and_for_its_owner_alone(home: Home) -> None:
    before = os.umask(0)
    try:
        token = home.ensure_token("alice")
    finally:
        os.umask(before)
    assert token.startswith("spl_local_2bd806c9_")  # the first 8 digits of the login's SHA-256
    assert len(token) == len("spl_local_2bd806c9_") + 43
    assert mode(home.token) == 0o600
    assert home.ensure_token("alice") == home.read_token() == token
    assert [path.name for path in home.path.iterdir() if path.is_file()] == ["token"]


def test_makers_of_a_token_agree_on_one(home: Home) -> None:
    tokens: list[str] = []
    makers = [threading.Thread(target=lambda: tokens.append(home.ensure_token(login()))) for _ in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1


def test_a_rotated_token_takes_the_place_of_the_old_one(home: Home) -> None:
    old = home.ensure_token("alice")
    before = os.umask(0)
    try:
        new = home.rotate_token("alice")
    finally:
        os.umask(before)
    assert new.startswith("spl_local_2bd806c9_")
    assert new != old
    assert home.read_token() == home.ensure_token("alice") == new
    assert mode(home.token) == 0o600
    assert [path.name for path in home.path.iterdir() if path.is_file()] == ["token"]


def test_a_token_is_rotated_where_there_is_none_or_one_that_is_refused(home: Home, tmp_path: Path) -> None:
    assert home.rotate_token("alice") == home.read_token()
    home.token.rename(tmp_path / "elsewhere")
    home.token.symlink_to(tmp_path / "elsewhere")
    elsewhere = (tmp_path / "elsewhere").read_text()
    assert home.rotate_token("alice") == home.read_token()
    assert (tmp_path / "elsewhere").read_text() == elsewhere


def test_one_that_reads_while_the_token_is_rotated_is_given_the_one_or_the_other(home: Home) -> None:
    made = {home.ensure_token("alice")}
    read: set[str] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            read.add(home.read_token())

    looker = threading.Thread(target=look)
    looker.start()
    try:
        made |= {home.rotate_token("alice") for _ in range(50)}
    finally:
        stop.set()
        looker.join()
    assert len(made) == 51
    assert read <= made
    assert home.read_token() in made


def test_a_token_that_cannot_be_put_into_place_leaves_nothing_behind(home: Home) -> None:
    home.token.mkdir()
    with pytest.raises(HostRefused, match="cannot be written: Is a directory"):
        home.rotate_token("alice")
    assert [path.name for path in home.path.iterdir() if path.name.startswith(".token")] == []


@pytest.mark.parametrize("reason", ["full", "read-only"])
def test_a_token_that_cannot_be_written_is_refused_by_its_path_and_the_old_one_stays_whole(
    reason: str,
) -> None:
    with ordinary_user() as folder:
        home = Home.open(folder / "home", create=True)
        said = {"full": "File too large", "read-only": "Permission denied"}[reason]
        refusal = re.escape(f"the token file {str(home.token)!r} cannot be written: {said}")
        with full() if reason == "full" else read_only(home.path):
            for make in (home.ensure_token, home.rotate_token):
                with pytest.raises(HostRefused, match=refusal):
                    make("alice")
        assert [path.name for path in home.path.iterdir() if path.is_file()] == []
        old = home.ensure_token("alice")
        with full() if reason == "full" else read_only(home.path):
            with pytest.raises(HostRefused, match=refusal):
                home.rotate_token("alice")
            # One that is there needs nothing written.
            assert home.ensure_token("alice") == home.read_token() == old
        assert [path.name for path in home.path.iterdir() if path.is_file()] == ["token"]


@pytest.mark.parametrize("reason", ["full", "read-only"])
def test_a_home_whose_pid_file_cannot_be_written_is_refused_by_its_path_and_not_held(reason: str) -> None:
    with ordinary_user() as folder:
        home = Home.open(folder / "home", create=True)
        said = {"full": "File too large", "read-only": "Permission denied"}[reason]
        refusal = re.escape(f"the file {str(home.pid)!r} cannot be written: {said}")
        before = os.listdir("/proc/self/fd")
        with full() if reason == "full" else read_only(home.run):
            with pytest.raises(HostRefused, match=refusal):
                home.lock()
            assert running_pid(home) is None
        assert os.listdir("/proc/self/fd") == before
        with home.lock():
            assert running_pid(home) == os.getpid()


@contextlib.contextmanager
def ordinary_user() -> Iterator[Path]:
    """Be a user whom modes hold back, root too, and give a folder of that user's."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(23456)
    try:
        with tempfile.TemporaryDirectory(prefix="spl-", dir="/tmp") as folder:
            yield Path(folder)
    finally:
        os.seteuid(before)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let nothing be made or taken away in a folder for a while."""
    folder.chmod(0o500)
    try:
        yield
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("others", [0o640, 0o604, 0o620])
def test_a_token_file_open_to_others_is_refused(home: Home, others: int) -> None:
    home.ensure_token("alice")
    home.token.chmod(others)
    with pytest.raises(HomeUnsafe, match=f"its mode {others:04o} opens it to others"):
        home.ensure_token("alice")


def test_a_token_file_that_is_a_symlink_is_refused(home: Home, tmp_path: Path) -> None:
    home.ensure_token("alice")
    home.token.rename(tmp_path / "elsewhere")
    home.token.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HomeUnsafe, match="it is a symlink"):
        home.read_token()


def test_a_token_file_that_is_a_fifo_is_refused_without_waiting_for_a_writer(home: Home) -> None:
    os.mkfifo(home.token, 0o600)
    with pytest.raises(HomeUnsafe, match="it is not a regular file"):
        home.read_token()


@root_only
def test_someone_elses_token_file_is_refused(home: Home) -> None:
    home.ensure_token("alice")
    os.chown(home.token, 12345, 12345)
    with pytest.raises(HomeUnsafe, match="it belongs to uid 12345"):
        home.read_token()


def test_a_file_without_a_token_in_it_is_refused_and_not_quoted(home: Home) -> None:
    home.token.write_text("hunter2")
    home.token.chmod(0o600)
    with pytest.raises(HomeUnsafe, match="does not hold a token") as refused:
        home.read_token()
    assert "hunter2" not in str(refused.value)


def test_a_home_without_a_token_says_that_no_daemon_has_run(home: Home) -> None:
    with pytest.raises(DaemonUnreachable, match="no daemon has run in this home"):
        home.read_token()


LOCK = textwrap.dedent("""
    import sys
    from spl.errors import HomeInUse
    from spl.home import Home
    try:
        lock = Home.open(sys.argv[1], create=False).lock()
        print("locked", flush=True)
    except HomeInUse as error:
        print(error, flush=True)
""")


# --- the keys of providers ---


@pytest.fixture
def key(home: Home) -> Path:
    path = home.secrets / "openai.key"
    path.write_text("sk-1234\n")
    path.chmod(0o600)
    return path


@pytest.mark.claim("B4")
def test_a_key_is_read_as_it_is_now_and_there_may_be_none(home: Home, key: Path) -> None:
    assert home.read_key("openai") == "sk-1234"
    assert home.read_key("anthropic") is None
    key.write_text("sk-5678")
    assert home.read_key("openai") == "sk-5678"


def test_a_home_that_is_not_there_yet_has_no_key(tmp_path: Path) -> None:
    assert Home(tmp_path / "none").read_key("openai") is None


@pytest.mark.claim("B4")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_open_to_others_is_refused(home: Home, key: Path, mode: int) -> None:
    key.chmod(mode)
    with pytest.raises(
        HomeUnsafe, match=rf"'secrets/openai.key' of the home is refused: its mode {mode:04o}"
    ):
        home.read_key("openai")


@pytest.mark.claim("B4")
def test_a_folder_of_keys_that_is_a_symlink_is_refused_without_its_path(home: Home, key: Path) -> None:
    home.secrets.rename(home.path / "elsewhere")
    home.secrets.symlink_to(home.path / "elsewhere")
    with pytest.raises(HomeUnsafe, match="'secrets' of the home is refused: it is a symlink") as raised:
        home.read_key("openai")
    assert str(home.path) not in raised.value.message


@pytest.mark.claim("B4")
def test_a_folder_of_keys_open_to_others_is_refused(home: Home, key: Path) -> None:
    home.secrets.chmod(0o750)
    with pytest.raises(HomeUnsafe, match="'secrets' is refused: its mode is 0750"):
        home.read_key("openai")


@pytest.mark.claim("B4")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "two words",
        "a\nb",
        "a\rb",
        "sk-\x00",
        "schlüssel",
        '"sk-1"',
        "OPENAI_API_KEY=sk-1",
        "\ufeffsk-1",
        "k" * 4097,
    ],
)
def test_what_can_be_no_key_is_refused_and_not_repeated(home: Home, key: Path, text: str) -> None:
    key.write_bytes(text.encode())
    with pytest.raises(SettingsInvalid, match="does not hold a key") as raised:
        home.read_key("openai")
    assert not text.strip() or text.strip() not in raised.value.message


@pytest.mark.claim("B4")
def test_a_key_that_is_a_symlink_a_fifo_or_a_folder_is_refused(home: Home, key: Path) -> None:
    key.rename(home.path / "elsewhere")
    key.symlink_to(home.path / "elsewhere")
    with pytest.raises(HomeUnsafe, match="symlink"):
        home.read_key("openai")
    key.unlink()
    os.mkfifo(key, 0o600)
    with pytest.raises(HomeUnsafe, match="not a regular file"):
        home.read_key("openai")
    key.unlink()
    key.mkdir(0o700)
    with pytest.raises(HomeUnsafe, match="not a regular file"):
        home.read_key("openai")


def test_opening_a_log_is_given_time_by_its_size(home: Home) -> None:
    assert home.opening_seconds() == 0
    with open(home.database, "wb") as log:
        log.truncate(4 << 30)
    assert home.opening_seconds() == 1024
