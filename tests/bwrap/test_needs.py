"""What a run needs of a profile: each need missed at the word that takes it away, and missed by a live start too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bwrap import groups, needs
from bwrap.errors import LayerError
from bwrap.library import Library
from bwrap.needs import LEAST, NEEDS, VALUES
from bwrap.seccomp import architecture
from spl.transports import image as images
from tests.bwrap.authored import marked, written
from tests.bwrap.stage import examine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bwrap.conftest import Daemon

TMPFS = '\n[[filesystem.tmpfs]]\npath = "/tmp"\nsize = "1M"\n'
ROWS = {row.name: row for row in NEEDS}


def calls(name: str) -> list[str]:
    """Give the calls of a row that this machine has."""
    here = groups.rules(Library().load("worker"), architecture()).allow
    return [call for call in needs.CALLS[name][1] if call in here]


def without(call: str) -> tuple[str, str]:
    """Give the lines that take a call away, and the word that is marked."""
    return f'[syscalls]\nallow = ["!{call}"]', f'"!{call}"'


def row(call: str, said: str) -> tuple[str, str]:
    """Give the lines that say another condition on a call, and the word that is marked."""
    text = f'{{ call = "{call}", {said} }}'
    return f'[syscalls]\nwhen = ["!{call}", {text}]{TMPFS}', text


# For each row of the table, what falls short of it and the words that are marked.
RED: dict[str, dict[str, tuple[str, str]]] = {
    "@python": {"not shown": ('[filesystem]\nread_only = ["!@python"]', '["!@python"]')},
    "@worker_socket": {"not shown": ('[filesystem]\nsockets = ["!@worker_socket"]', '["!@worker_socket"]')},
    **{name: {call: without(call) for call in calls(name)} for name in needs.CALLS},
    **{
        call: {
            "no condition": (f'[syscalls]\nwhen = ["!{call}"]{TMPFS}', f'["!{call}"]'),
            "another value": row(call, f"argument = {argument}, equals = [77]"),
            "another argument": row(call, "argument = 3, equals = [1]"),
        }
        for call, (_, argument, _) in VALUES.items()
    },
    "address_space": {"too little": ('[limits]\naddress_space = "19M"', '"19M"')},
    "file_size": {"too little": ("[limits]\nfile_size = 65535", "65535")},
    "open_files": {"too few": ("[limits]\nopen_files = 8", "8")},
}


def test_every_need_has_a_name_of_its_own_and_examples_that_fall_short_of_it() -> None:
    assert len(ROWS) == len(NEEDS)
    assert {name for name, cases in RED.items() if cases} == set(ROWS)


@pytest.mark.claim("I12")
@pytest.mark.parametrize("name", ROWS)
def test_a_profile_that_falls_short_of_a_need_is_refused_at_the_word_that_does(
    tmp_path: Path, name: str
) -> None:
    for case, (text, word) in RED[name].items():
        own = written(tmp_path, text)
        found = needs.missing(own)

        assert {each.row.name for each in found} == {name}, case
        fault = found[0].fault
        assert (fault.file, marked(fault)) == (f"{tmp_path}/own.toml", word), case
        assert fault.reason == f"{found[0].said}, and no run can start without {ROWS[name].sentence}", case
        with pytest.raises(LayerError) as refused:
            needs.require(own)
        assert (refused.value.layer, refused.value.expected) == ("profile", ROWS[name].sentence), case
        assert refused.value.observed.startswith(f"{tmp_path}/own.toml:{fault.line}: {fault.place}: "), case


def test_a_group_that_is_taken_away_is_marked_with_all_that_went_with_it(tmp_path: Path) -> None:
    (lack,) = needs.missing(written(tmp_path, '[syscalls]\nallow = ["!@unix-client"]'))

    assert (marked(lack.fault), lack.said) == (
        '"!@unix-client"',
        "it does not allow connect",
    )


def test_a_call_that_is_refused_is_marked_where_it_is(tmp_path: Path) -> None:
    text = '[[syscalls.refuse]]\ngroup = "@unix-client"\nerrno = "EACCES"'
    (lack,) = needs.missing(written(tmp_path, text))

    assert marked(lack.fault) == '"@unix-client"'


def test_each_value_that_is_missed_is_named(tmp_path: Path) -> None:
    (lack,) = needs.missing(
        written(tmp_path, '[[syscalls.when]]\ncall = "prctl"\nequals = ["!PR_CAPBSET_READ"]')
    )

    assert lack.said == "it does not allow prctl for PR_CAPBSET_READ"


@pytest.mark.parametrize("name", ["worker", "strict"])
def test_a_profile_for_work_is_shipped_with_all_that_a_run_needs(name: str) -> None:
    needs.require(Library().load(name))


def test_base_is_there_to_be_extended_and_runs_nothing() -> None:
    assert {each.row.name for each in needs.missing(Library().load("base"))} >= {
        "@python",
        "memory",
        "socket",
    }


@pytest.mark.parametrize(
    "text",
    [
        '[syscalls]\ndefault = "EPERM"',
        '[syscalls]\nrefuse = ["!@mount", { group = "@trace", errno = "EACCES" }]',
        '[syscalls]\nwhen = ["!landlock_add_rule"]',
        '[syscalls]\nallow = ["!mremap", "!writev"]\nwhen = ["!futex", "!clock_gettime"]',
        '[limits]\naddress_space = "20M"\nfile_size = "64K"\nprocesses = 1\nopen_files = 9\ncpu_time = "1s"',
        '[[syscalls.when]]\ncall = "read"\nargument = 0\nequals = [0, 3]',
    ],
)
def test_what_a_run_does_not_need_may_be_taken_away(tmp_path: Path, text: str) -> None:
    assert needs.missing(written(tmp_path, text)) == []


def test_the_least_of_a_limit_is_the_number_that_its_text_stands_for(tmp_path: Path) -> None:
    for name, (number, text, _) in LEAST.items():
        value = text if text.isdigit() else f'"{text}"'

        assert getattr(written(tmp_path, f"[limits]\n{name} = {value}").limits, name) == number


def test_the_program_fits_in_the_least_size_of_a_file() -> None:
    image = images.seal(examine().python)
    try:
        with open(image.open(), "rb") as file:
            assert len(file.read()) < LEAST["file_size"][0]
    finally:
        image.close()


# --- live ---


def run(daemon: Daemon, text: str) -> dict[str, Any]:
    """Have a whole run under a profile of these lines; gives how it ended, or the layer that refused its start."""
    result: dict[str, Any] = daemon.play("runs_under", module="needed", extra=text)
    return result


@pytest.mark.claim("I12")
@pytest.mark.parametrize(
    ("name", "case"),
    [
        (name, case)
        for name in ROWS
        if name not in ("address_space", "file_size")
        for case in RED[name]
        if case != "another argument"
    ],
)
def test_no_run_comes_to_its_end_without_what_a_need_names(hosted: Daemon, name: str, case: str) -> None:
    # bubblewrap sets up what it has not by the time that the limits are set: the need is what it takes for all of it.
    text = "[limits]\nopen_files = 3" if name == "open_files" else RED[name][case][0]

    assert not run(hosted, text)["done"]


@pytest.mark.claim("I12")
def test_a_run_comes_to_its_end_with_what_it_needs_and_no_more(daemon: Daemon, tmp_path: Path) -> None:
    needed = {call for name in needs.CALLS for call in calls(name)}
    worker = groups.rules(Library().load("worker"), architecture())
    spare, conditions = sorted(worker.allow - needed), sorted(worker.when.keys() - VALUES.keys())
    limits = "\n".join(f"{name} = {number}" for name, (number, _, _) in LEAST.items())
    taken = ", ".join(f'"!{call}"' for call in spare)
    unmet = ", ".join(f'"!{call}"' for call in (*conditions, needs._WITH_TMPFS))
    text = f"[limits]\n{limits}\n[syscalls]\nallow = [{taken}]\nwhen = [{unmet}]"

    assert len(spare) > 20
    assert conditions == ["clock_gettime", "futex"]
    assert needs.missing(written(tmp_path, text)) == []
    assert run(daemon, text) == {"done": True, "why": ""}
