from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from tests import claims, errors_page
from tests.pages import PAGES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", PAGES)
def test_a_page_says_what_the_code_says(path: str) -> None:
    written = (claims.ROOT / path).read_text(encoding="utf-8")
    assert written == PAGES[path](), f"{path} is stale: run 'make docs'"


def test_every_mark_names_a_claim() -> None:
    known = {claim for section in claims.sections().values() for claim in section}
    unknown = {claim: tests for claim, tests in claims.proofs().items() if claim not in known}
    assert not unknown


def test_no_claim_id_stands_in_two_sections() -> None:
    ids = [claim for section in claims.sections().values() for claim in section]
    assert len(ids) == len(set(ids))


def test_marks_are_found_on_modules_classes_functions_and_parameters(tmp_path: Path) -> None:
    room = tmp_path / "tests" / "room"
    room.mkdir(parents=True)
    (room / "test_marks.py").write_text(
        textwrap.dedent("""
            import pytest
            pytestmark = [pytest.mark.claim("M1")]
            def test_plain(): ...
            @pytest.mark.claim("F1", "F2")
            async def test_function(): ...
            @pytest.mark.claim("C1")
            class TestClass:
                def test_method(self): ...
                def not_a_test(self): ...
            @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.claim("P1"))])
            def test_parameter(n): ...
        """)
    )
    name = "tests/room/test_marks.py"
    assert claims.proofs(tmp_path / "tests") == {
        "M1": [
            f"{name}::{test}"
            for test in ("test_plain", "test_function", "TestClass::test_method", "test_parameter")
        ],
        "F1": [f"{name}::test_function"],
        "F2": [f"{name}::test_function"],
        "C1": [f"{name}::TestClass::test_method"],
        "P1": [f"{name}::test_parameter"],
    }


def test_a_mark_whose_id_is_not_written_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_marks.py").write_text("@pytest.mark.claim(ID)\ndef test_it(): ...\n")
    with pytest.raises(ValueError, match=r"test_marks\.py:1: a claim mark names its ids as strings"):
        claims.proofs(tmp_path)


def test_every_error_has_a_row_with_its_code_statuses_and_remedy() -> None:
    rows = (claims.ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").splitlines()
    for error in errors_page.rows():
        start = f"| `{error.code}` | {error.status} | {error.exit_status} |"
        assert any(row.startswith(start) and error.remedy in row for row in rows), error.code


def test_what_is_said_of_errors_beyond_the_table_is_of_errors_that_there_are() -> None:
    codes = {error.code for error in errors_page.rows()}
    assert errors_page.texts().keys() - codes == set()
    page = (claims.ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    for code, text in errors_page.texts().items():
        assert f"\n## {code}\n\n{text.strip()}\n" in page, code


def test_every_error_says_what_it_means_and_what_to_do() -> None:
    assert [error.code for error in errors_page.rows() if not (error.__doc__ and error.remedy)] == []
