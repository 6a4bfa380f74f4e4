from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from spl.errors import NotFound, table

if TYPE_CHECKING:
    from tests.cli.conftest import Spl

TABLE = [kind for kind in table() if kind.__module__ == "spl.errors"]


def test_every_error_is_listed_as_its_class_has_it(spl: Spl) -> None:
    listed = json.loads(spl("errors").stdout)
    assert [
        (row["code"], row["http_status"], row["exit_status"], row["remedy"]) for row in listed["data"]
    ] == [(kind.code, kind.status, kind.exit_status, kind.remedy) for kind in TABLE]
    assert {"0", "1", "2", "70", "130"} <= {row["exit_status"] for row in listed["exit_statuses"]}


def test_every_exit_status_of_an_error_is_told_in_the_list_of_statuses(spl: Spl) -> None:
    statuses = [row["exit_status"] for row in json.loads(spl("errors").stdout)["exit_statuses"]]
    told = {number for status in statuses for number in _numbers(status)}
    assert {kind.exit_status for kind in TABLE} <= told


def _numbers(status: str) -> list[int]:
    first, _, last = status.partition("-")
    return [*range(int(first), int(last) + 1)] if last else list(map(int, status.split(", ")))


@pytest.mark.parametrize("code", ["ADMISSION_CEILING", "admission_ceiling"])
def test_one_error_is_told_of_whole(spl: Spl, code: str) -> None:
    told = json.loads(spl("errors", code).stdout)
    assert (told["code"], told["exit_status"]) == ("ADMISSION_CEILING", 30)
    assert told["meaning"] == "As many sandboxed runs are live as the host's memory is meant to carry."
    assert "wait for a run to end" in spl("errors", code, "-o", "table").stdout


def test_the_list_says_the_first_sentence_of_what_one_error_is_told_of_by_all(spl: Spl) -> None:
    rows = {row["code"]: row["meaning"] for row in json.loads(spl("errors").stdout)["data"]}
    whole = json.loads(spl("errors", "ESCAPE_FAILED").stdout)["meaning"]
    assert whole == f"{rows['ESCAPE_FAILED']}. Only the command line says this."


def test_an_error_that_there_is_not_is_not_found(spl: Spl) -> None:
    refused = spl("errors", "NO_SUCH\x1b[2J")
    assert (refused.returncode, refused.stdout) == (NotFound.exit_status, "")
    assert "'spl errors'" in refused.stderr
    assert "\x1b" not in refused.stderr
