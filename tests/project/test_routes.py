"""Every route is documented, and nothing is that is not a route."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from spl.api.worker import DOORS
from tests import claims
from tests.api.described import operations
from tests.routes_page import EXAMPLES

if TYPE_CHECKING:
    from spl.api.operations import Operation

DOOR = re.compile(r"^\| `(GET|POST|PUT|DELETE) (/\S*)` \|", re.MULTILINE)
ROUTE = re.compile(r"^### (GET|POST|PUT|DELETE) (/\S*)$", re.MULTILINE)


def read(page: str) -> str:
    return (claims.ROOT / "docs" / page).read_text(encoding="utf-8")


def test_the_reference_has_a_section_for_each_route_there_is() -> None:
    served = [(operation.method, operation.path) for operation in operations()]
    assert sorted(ROUTE.findall(read("routes.md"))) == sorted(served)


def test_the_page_of_the_api_has_a_row_for_each_door_there_is() -> None:
    assert set(DOOR.findall(read("api.md"))) == {(method, path.decode()) for method, path in DOORS}


@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.name)
def test_a_route_says_what_its_fields_mean_and_its_example_is_one_that_it_takes(operation: Operation) -> None:
    assert operation.summary
    assert (operation.name in EXAMPLES) == (operation.body is not None)
    if operation.body is not None:
        operation.body.model_validate(EXAMPLES[operation.name])
