from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bwrap import profile
from bwrap.errors import ProfileError
from bwrap.profile import SHIPPED, Profile, load

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, text: str, name: str = "own", extends: str = "worker") -> Profile:
    head = f'extends = "{extends}"\n' if extends else ""
    (folder / f"{name}.toml").write_text(head + text)
    return load(name, (folder, SHIPPED))


def refused(folder: Path, text: str, extends: str = "worker") -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        written(folder, text, extends=extends)
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_worker_profile_is_base_with_its_own_laid_over() -> None:
    worker = load("worker")

    assert worker.name == "worker"
    assert (worker.namespaces.user, worker.namespaces.pid) == (True, False)
    assert worker.filesystem.read_only == ["@python"]
    assert (worker.limits.address_space, worker.limits.cpu_time) == (512 << 20, 60)
    assert worker.filesystem.tmpfs == []
    assert "@mount" in [row.group for row in worker.syscalls.refuse]
    assert worker.syscalls.default == "ENOSYS"


def test_values_replace_tables_merge_and_lists_append_without_repeats(tmp_path: Path) -> None:
    own = written(
        tmp_path,
        '[limits]\nprocesses = 4\n[syscalls]\nallow = ["@python", "listen"]\n[namespaces]\npid = true',
    )

    assert (own.limits.processes, own.limits.open_files) == (4, 64)
    assert own.syscalls.allow == ["@python", "@unix-client", "listen"]
    assert (own.namespaces.pid, own.namespaces.net) == (True, True)


def test_an_inherited_entry_is_removed_by_name(tmp_path: Path) -> None:
    own = written(tmp_path, '[syscalls]\nallow = ["!@unix-client"]\n[filesystem]\nempty = ["!@home"]')

    assert own.syscalls.allow == ["@python"]
    assert own.filesystem.empty == []


def test_removing_what_is_not_inherited_is_an_error(tmp_path: Path) -> None:
    error = refused(tmp_path, '[syscalls]\nallow = ["!@network"]')

    assert (error.place, error.reason) == ("syscalls.allow", "'!@network' removes what is not inherited")


def test_profiles_that_extend_each_other_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b"')
    (tmp_path / "b.toml").write_text('extends = "a"')

    with pytest.raises(ProfileError, match="a cycle: a -> b -> a"):
        load("a", (tmp_path,))


def test_a_profile_may_extend_eight_deep_and_no_deeper(tmp_path: Path) -> None:
    for at in range(8):
        (tmp_path / f"p{at}.toml").write_text(
            f'extends = "{f"p{at + 1}" if at < 6 else "base"}"\ndescription = "d"'
        )

    load("p0", (tmp_path, SHIPPED))
    (tmp_path / "q.toml").write_text('extends = "p0"')
    with pytest.raises(ProfileError, match="more than 8 profiles deep"):
        load("q", (tmp_path, SHIPPED))


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("[limit]\nprocesses = 1", "limit", "Extra inputs are not permitted"),
        ("[limits]\nthreads = 1", "limits.threads", "Extra inputs are not permitted"),
        ('name = "x"', "name", "a profile's name is its file's"),
        ('[limits]\naddress_space = "512MB"', "limits.address_space", "'512MB' is not a size such as '512M'"),
        ('[limits]\naddress_space = "0"', "limits.address_space", "'0' is not a size such as '512M'"),
        ('[limits]\naddress_space = "-1M"', "limits.address_space", "'-1M' is not a size such as '512M'"),
        ('[limits]\ncpu_time = "60"', "limits.cpu_time", "'60' is not a duration such as '60s'"),
        ("[limits]\ncpu_time = 0", "limits.cpu_time", "Input should be greater than 0"),
        ("[limits]\nprocesses = 8.0", "limits.processes", "Input should be a valid integer"),
        ("[limits]\nprocesses = true", "limits.processes", "Input should be a valid integer"),
        ("[limits]\nopen_files = 2", "limits.open_files", "Input should be greater than 2"),
        ('[namespaces]\nnet = "yes"', "namespaces.net", "Input should be a valid boolean"),
        ('[filesystem]\nread_only = ["@root"]', "filesystem.read_only.1", "'@root' is not one of the tokens"),
        ('[filesystem]\nread_only = ["etc"]', "filesystem.read_only.1", "'etc' is neither a token nor"),
        ('[filesystem]\nread_only = ["/a/../etc"]', "filesystem.read_only.1", "without '.' and '..'"),
        ('[filesystem]\nread_only = ["/a\\u0000"]', "filesystem.read_only.1", "is neither a token nor"),
        ('[filesystem]\nread_only = ["/etc/*"]', "filesystem.read_only.1", "'/etc/*' is a pattern"),
        ('[filesystem]\nproc = "host"', "filesystem.proc", "Input should be 'none' or 'own'"),
        ('[syscalls]\ndefault = "ENOPE"', "syscalls.default", "'ENOPE' is not the name of an errno"),
        (
            '[[syscalls.when]]\ncall = "read"\nargument = 6\nequals = [1]',
            "syscalls.when.7.argument",
            "less than",
        ),
        ("extends = 3", "extends", "must be the name of one profile"),
    ],
)
def test_a_mistake_is_named_by_its_place_and_reason(
    tmp_path: Path, text: str, place: str, reason: str
) -> None:
    error = refused(tmp_path, text, extends="" if text.startswith("extends") else "worker")

    assert error.place == place
    assert reason in error.reason
    assert str(tmp_path) in error.file


def test_broken_toml_is_named_by_its_line(tmp_path: Path) -> None:
    assert "line 3" in refused(tmp_path, "[limits]\nprocesses = =\n").reason


def test_text_that_is_not_utf_8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_bytes(b"description = '\xff'")

    with pytest.raises(ProfileError, match="utf-8"):
        load("own", (tmp_path,))


@pytest.mark.parametrize("name", ["", "Worker", "../worker", "a/b", "1st", "a" * 65, "a\n", "-a", "a.toml"])
def test_a_name_that_could_be_a_path_is_refused(name: str) -> None:
    with pytest.raises(ProfileError, match="a name is lower-case letters, digits and dashes"):
        load(name)


def test_an_unknown_profile_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=f"^profile nobody: not found in {tmp_path}$"):
        load("nobody", (tmp_path,))


@pytest.mark.parametrize(("said", "value"), [("7", 7), ("1K", 1 << 10), ("512M", 512 << 20), ("2G", 2 << 30)])
def test_sizes_are_binary(said: str, value: int) -> None:
    assert profile._size(said) == value


@pytest.mark.parametrize(("said", "value"), [("60s", 60), ("2m", 120), ("1h", 3600)])
def test_durations_are_seconds(said: str, value: int) -> None:
    assert profile._seconds(said) == value


def test_the_digest_is_of_what_is_said_not_of_how(tmp_path: Path) -> None:
    one = written(tmp_path, '[limits]\nprocesses = 4\ncpu_time = "60s"\n', "one")
    other = written(tmp_path, 'description = "Another."\n[limits]\ncpu_time = "1m"\nprocesses = 4\n', "other")

    assert one.digest == other.digest
    assert one.digest != load("worker").digest


@pytest.mark.parametrize(
    "text",
    [
        "[limits]\nprocesses = 9", "[namespaces]\npid = true", '[syscalls]\nallow = ["listen"]',
        '[syscalls]\ndefault = "EPERM"', '[filesystem]\nread_only = ["/etc"]',
        '[[filesystem.tmpfs]]\npath = "/var"\nsize = "1M"',
        '[[syscalls.when]]\ncall = "listen"\nargument = 1\nequals = [1]',
    ],
)  # fmt: skip
def test_the_digest_changes_with_any_value(tmp_path: Path, text: str) -> None:
    assert written(tmp_path, text).digest != load("worker").digest
