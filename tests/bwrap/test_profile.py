"""What a profile may say: each mistake is named with its place, and each value is worth what it says."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from bwrap.library import SHIPPED, Library, table_of
from bwrap.profile import Profile
from tests.bwrap.authored import marked, refused, written

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pydantic import BaseModel


def test_the_worker_profile_is_base_with_its_own_laid_over() -> None:
    worker = Library().load("worker")

    assert (worker.name, worker.chain) == ("worker", ("base", "worker"))
    assert (worker.namespaces.user, worker.namespaces.pid) == (True, False)
    assert worker.filesystem.read_only == ["@python"]
    assert worker.filesystem.empty == ["@home"]
    assert (worker.limits.address_space, worker.limits.cpu_time) == (512 << 20, 60)
    assert worker.filesystem.tmpfs == []
    assert "@mount" in [row.group for row in worker.syscalls.refuse]
    assert worker.syscalls.default == "ENOSYS"


def test_the_strict_profile_is_the_workers_with_a_pid_namespace_and_less_of_everything() -> None:
    worker, strict = (Library().load(name) for name in ("worker", "strict"))

    assert strict.chain == ("base", "worker", "strict")
    assert strict.namespaces.pid
    assert all(getattr(strict.limits, name) <= said for name, said in worker.limits)
    assert strict.limits != worker.limits


# --- mistakes ---

ALONE = "this says no 'extends', so it has to say everything: begin it with extends = \"worker\""

# What is written from the second line on; line, column and marked text of the fault; its place and reason.
MISTAKES = {
    "an unknown table": (
        "[limit]\nprocesses = 1", 2, 1, "[limit]", "limit", "no such key here; did you mean 'limits'?",
    ),
    "an unknown table on the way": ("[limit.x]\ny = 1", 2, 1, "[limit.x]", "limit", "did you mean 'limits'?"),
    "an unknown key": (
        "[limits]\n procesess = 1", 3, 2, "procesess", "limits.procesess", "did you mean 'processes'?",
    ),
    "a key like no other": (
        "[limits]\nint = 1", 3, 1, "int", "limits.int",
        "there is no such key here: there are address_space, file_size, processes, open_files, cpu_time",
    ),
    "an unknown key of a row": (
        '[[filesystem.tmpfs]]\npath = "/a"\nsize = "1M"\nsise = 1',
        5, 1, "sise", "filesystem.tmpfs[0].sise", "did you mean 'size'?",
    ),
    "an unknown key of a row in a line": (
        '[filesystem]\ntmpfs = [{ path = "/a", size = "1M", mod = 1 }]',
        3, 38, "mod", "filesystem.tmpfs[0].mod", "there are path, size",
    ),
    "an unknown key at the top": ('extend = "x"', 2, 1, "extend", "extend", "did you mean 'extends'?"),
    "a name": ('name = "x"', 2, 1, "name", "name", "a profile's name is its file's"),
    "a description that is none": ("description = 3", 2, 15, "3", "description", "it should be a valid string"),
    "a number for a table": ("limits = 3", 2, 10, "3", "limits", "it should be a table"),
    "a table for a list": (
        "[filesystem.empty]\na = 1", 2, 1, "[filesystem.empty]", "filesystem.empty", "a valid list",
    ),
    "a row without its key": (
        "[[syscalls.when]]\nargument = 1", 2, 1, "[[syscalls.when]]", "syscalls.when[0].call",
        "it is not said, here or in what this extends",
    ),
    "no size": (
        '[limits]\naddress_space = "512MB"', 3, 17, '"512MB"', "limits.address_space", "not a size such as '512M'",
    ),
    "a size of nothing": (
        '[limits]\naddress_space = "0"', 3, 17, '"0"', "limits.address_space", "'0' is not a size",
    ),
    "less than no size": (
        '[limits]\naddress_space = "-1M"', 3, 17, '"-1M"', "limits.address_space", "'-1M' is not a size",
    ),
    "a size in other digits": (
        '[limits]\nfile_size = "٣M"', 3, 13, '"٣M"', "limits.file_size", "'٣M' is not a size",
    ),
    "a size with a line end": (
        '[limits]\nfile_size = "1M\\n"', 3, 13, '"1M\\n"', "limits.file_size", "is not a size",
    ),
    "a size beyond all": (
        '[limits]\nfile_size = "9999999999G"', 3, 13, '"9999999999G"', "limits.file_size", "less than",
    ),
    "a count beyond all": (
        "[limits]\nprocesses = 9223372036854775808", 3, 13, "9223372036854775808", "limits.processes", "less than",
    ),
    "no duration": ('[limits]\ncpu_time = "60"', 3, 12, '"60"', "limits.cpu_time", "not a duration such as '60s'"),
    "no time at all": ("[limits]\ncpu_time = 0", 3, 12, "0", "limits.cpu_time", "it should be greater than 0"),
    "a fraction": ("[limits]\nprocesses = 8.0", 3, 13, "8.0", "limits.processes", "it should be a valid integer"),
    "a truth for a number": ("[limits]\nprocesses = true", 3, 13, "true", "limits.processes", "a valid integer"),
    "too few files": ("[limits]\nopen_files = 2", 3, 14, "2", "limits.open_files", "it should be greater than 2"),
    "a word for a truth": (
        '[namespaces]\nnet = "yes"', 3, 7, '"yes"', "namespaces.net", "it should be a valid boolean",
    ),
    "an unknown token": (
        '[filesystem]\nread_only = ["@root"]', 3, 14, '"@root"', "filesystem.read_only[0]", "not one of the tokens",
    ),
    "a path that is not absolute": (
        '[filesystem]\nread_only = ["etc"]', 3, 14, '"etc"', "filesystem.read_only[0]",
        "'etc' is neither a token nor",
    ),
    "a path that goes up": (
        '[filesystem]\nread_only = ["/a/../etc"]', 3, 14, '"/a/../etc"', "filesystem.read_only[0]",
        "without '.' and '..'",
    ),
    "a path with a zero byte": (
        '[filesystem]\nread_only = ["/a\\u0000"]', 3, 14, '"/a\\u0000"', "filesystem.read_only[0]",
        "'/a\\x00' is neither",
    ),
    "a pattern": (
        '[filesystem]\nread_only = [\n  "/srv",\n  "/etc/*",\n]',
        5, 3, '"/etc/*"', "filesystem.read_only[1]", "'/etc/*' is a pattern",
    ),
    "an optional token": (
        '[filesystem]\nread_only = ["?@python"]', 3, 14, '"?@python"', "filesystem.read_only[0]",
        "only a path can be",
    ),
    "an optional empty folder": (
        '[filesystem]\nempty = ["?/a"]', 3, 10, '"?/a"', "filesystem.empty[0]", "'?/a' is neither",
    ),
    "another /proc": (
        '[filesystem]\nproc = "host"', 3, 8, '"host"', "filesystem.proc", "it should be 'none' or 'own'",
    ),
    "no errno": (
        '[syscalls]\ndefault = "ENOPE"', 3, 11, '"ENOPE"', "syscalls.default", "'ENOPE' is not the name of an errno",
    ),
    "what errno(3) is not": (
        '[syscalls]\ndefault = "errorcode"', 3, 11, '"errorcode"', "syscalls.default", "not the name",
    ),
    "an argument too far": (
        '[[syscalls.when]]\ncall = "listen"\nargument = 6\nequals = [1]',
        4, 12, "6", "syscalls.when[0].argument", "less than or equal to 5",
    ),
    "a value that is none": (
        '[[syscalls.when]]\ncall = "listen"\nargument = 0\nhas = 1.5',
        5, 7, "1.5", "syscalls.when[0].has", "it should be a number, or the C name of one",
    ),
    "a value among others that is none": (
        '[[syscalls.when]]\ncall = "listen"\nargument = 0\nequals = [1, false]',
        5, 14, "false", "syscalls.when[0].equals[1]", "it should be a number, or the C name of one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named_by_file_line_column_place_and_reason(tmp_path: Path, case: str) -> None:
    text, line, column, word, place, reason = MISTAKES[case]
    error = refused(tmp_path, text)

    assert (error.file, error.line, error.column) == (f"{tmp_path}/own.toml", line, column)
    assert (error.place, marked(error)) == (place, word)
    assert reason in error.reason
    assert str(error) == f"profile {tmp_path}/own.toml:{line}:{column}: {place}: {error.reason}"


def test_what_no_profile_of_the_chain_says_is_named_at_the_start_of_the_last(tmp_path: Path) -> None:
    error = refused(tmp_path, "# nothing\n", extends="")

    assert (error.line, error.column) == (1, 1)
    assert (error.place, error.reason) == ("description", ALONE)


def test_an_empty_file_is_an_error_with_a_place(tmp_path: Path) -> None:
    error = refused(tmp_path, "", extends="")

    assert (error.line, error.column, error.place) == (1, 1, "description")


def test_a_profile_alone_is_told_to_extend_another_and_what_it_lacks(tmp_path: Path) -> None:
    error = refused(tmp_path, 'description = "d"\n[limits]\nprocesses = 1', extends="")

    assert (error.place, error.reason) == ("namespaces", ALONE)


def test_a_row_that_lacks_its_key_is_told_nothing_of_extending(tmp_path: Path) -> None:
    base = (SHIPPED / "base.toml").read_text()
    error = refused(tmp_path, f"{base}[[syscalls.when]]\nargument = 1", extends="")

    assert (error.place, error.reason) == (
        "syscalls.when[0].call",
        "it is not said, here or in what this extends",
    )


def test_a_mistake_in_a_parent_is_named_in_the_parents_file(tmp_path: Path) -> None:
    (tmp_path / "parent.toml").write_text('extends = "worker"\n[limits]\nprocesses = 0\n')
    error = refused(tmp_path, "", extends="parent")

    assert (error.file, error.line, marked(error)) == (f"{tmp_path}/parent.toml", 3, "0")


def test_a_misspelt_key_is_named_before_what_is_missing_for_it(tmp_path: Path) -> None:
    assert refused(tmp_path, "[limits]\ncpu_tme = 3", extends="").place == "limits.cpu_tme"


def test_what_a_profile_says_reaches_a_person_as_printable_text(tmp_path: Path) -> None:
    error = refused(tmp_path, '"a\\u001b[31m\\u202e" = 1')

    assert str(error).isprintable()
    assert error.place.isprintable()
    assert "\x1b" not in error.excerpt


# --- values ---


@pytest.mark.parametrize(("said", "value"), [("7", 7), ("1K", 1 << 10), ("512M", 512 << 20), ("2G", 2 << 30)])
def test_sizes_are_binary(tmp_path: Path, said: str, value: int) -> None:
    assert written(tmp_path, f'[limits]\nfile_size = "{said}"').limits.file_size == value


@pytest.mark.parametrize(("said", "value"), [('"60s"', 60), ('"2m"', 120), ('"1h"', 3600), ("7", 7)])
def test_durations_are_seconds(tmp_path: Path, said: str, value: int) -> None:
    assert written(tmp_path, f"[limits]\ncpu_time = {said}").limits.cpu_time == value


@pytest.mark.parametrize(
    ("said", "path"),
    [("/a", "/a"), ("//a", "/a"), ("/a//b/", "/a/b"), ("/", "/"), ("///", "/"), ("?//a/", "?/a")],
)
def test_a_path_is_written_one_way_whatever_slashes_it_was_said_with(
    tmp_path: Path, said: str, path: str
) -> None:
    assert written(tmp_path, f'[filesystem]\nread_only = ["{said}"]').filesystem.read_only == [
        "@python",
        path,
    ]


# --- the digest ---

SAME = {
    "another description": 'description = "Another."',
    "what is said already": '[limits]\ncpu_time = "60s"\n[syscalls]\nallow = ["@unix-client"]',
    "other units": '[limits]\ncpu_time = "1m"\naddress_space = "524288K"\nfile_size = 16777216',
    "a comment": "# a comment",
    "a call taken away and given back": '[syscalls]\nallow = ["!connect", "connect"]',
    "a condition by its number": '[syscalls]\nwhen = ["!socket", { call = "socket", argument = 0, equals = [1] }]',
    "values in another order": (
        '[syscalls]\nwhen = ["!prctl", { call = "prctl", argument = 0, equals = '
        '["PR_GET_NO_NEW_PRIVS", "PR_CAPBSET_READ", "PR_GET_PDEATHSIG"] }]'
    ),
    "a group refused by another name": '[syscalls]\nrefuse = ["!@bpf", { group = "@bpf", errno = "EPERM" }]',
}

OTHER = {
    "processes": "[limits]\nprocesses = 9",
    "address space": '[limits]\naddress_space = "511M"',
    "pid namespace": "[namespaces]\npid = true",
    "cgroup namespace": "[namespaces]\ncgroup = false",
    "a call more": '[syscalls]\nallow = ["listen"]',
    "a call less": '[syscalls]\nallow = ["!connect"]',
    "default": '[syscalls]\ndefault = "EPERM"',
    "the errno of a group": '[syscalls]\nrefuse = [{ group = "@mount", errno = "EACCES" }]',
    "a group no more refused": '[syscalls]\nrefuse = ["!@mount"]',
    "a file": '[filesystem]\nread_only = ["/etc"]',
    "an optional file": '[filesystem]\nread_only = ["?/etc"]',
    "an empty folder": '[filesystem]\nempty = ["/etc"]',
    "a socket": '[filesystem]\nsockets = ["/etc"]',
    "proc": '[filesystem]\nproc = "own"',
    "a tmpfs": '[[filesystem.tmpfs]]\npath = "/var"\nsize = "1M"',
    "a larger tmpfs": '[[filesystem.tmpfs]]\npath = "/var"\nsize = "2M"',
    "a condition": '[[syscalls.when]]\ncall = "listen"\nargument = 1\nequals = [1]',
    "a condition on another argument": '[[syscalls.when]]\ncall = "listen"\nargument = 0\nequals = [1]',
    "a condition of a bit": '[[syscalls.when]]\ncall = "listen"\nargument = 1\nhas = 1',
    "a value more": '[[syscalls.when]]\ncall = "ioctl"\nequals = ["TIOCGPGRP"]',
    "a call of one architecture": '[syscalls]\nallow = ["pause"]',
}


@pytest.mark.parametrize("case", SAME)
def test_the_digest_is_of_what_is_said_not_of_how(tmp_path: Path, case: str) -> None:
    assert written(tmp_path, SAME[case]).digest == Library().load("worker").digest


def test_the_digest_is_of_what_is_said_not_of_the_order(tmp_path: Path) -> None:
    one = written(
        tmp_path,
        '[filesystem]\nread_only = ["/a", "/b"]\nempty = ["/c", "/d"]\n'
        'tmpfs = [{ path = "/e", size = "1M" }, { path = "/f", size = "2M" }]',
    )
    other = written(
        tmp_path,
        '[filesystem]\ntmpfs = [{ size = "2048K", path = "/f/" }, { path = "/e", size = "1M" }]\n'
        'empty = ["/d", "/c"]\nread_only = ["//b", "/a"]',
    )

    assert one.digest == other.digest


def test_a_token_is_not_what_it_comes_to(tmp_path: Path) -> None:
    tmpfs = '[[filesystem.tmpfs]]\npath = "{}"\nsize = "1M"'
    one, other = (written(tmp_path, tmpfs.format(path)).digest for path in ("@scratch", "/tmp"))

    assert one != other


def test_any_other_value_has_another_digest(tmp_path: Path) -> None:
    digests = {case: written(tmp_path, text).digest for case, text in OTHER.items()}
    digests |= {name: Library().load(name).digest for name in Library().shipped()}

    for one, other in itertools.combinations(digests, 2):
        assert digests[one] != digests[other], (one, other)


# --- the keys ---


def tables(model: type[BaseModel] = Profile) -> Iterator[type[BaseModel]]:
    yield model
    for key in model.model_fields:
        if inner := table_of(model, key):
            yield from tables(inner)


def test_every_key_says_what_it_means_and_every_table_what_it_is() -> None:
    keys = [(model, key) for model in tables() for key in model.model_fields if table_of(model, key) is None]

    assert len(keys) > 20
    assert [key for model, key in keys if not model.model_fields[key].description and key != "name"] == []
    assert [model for model in tables() if not model.__doc__] == []
