"""Every route is documented, and nothing is that is not a route."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from spl.api.operator import OperatorApi
from spl.api.worker import DOORS
from tests import claims

if TYPE_CHECKING:
    from starlette.routing import Route

ROW = re.compile(r"^\| `(GET|POST|PUT|DELETE) (/\S*)` \|", re.MULTILINE)


def test_the_page_of_the_api_lists_the_routes_there_are() -> None:
    api = OperatorApi(*[cast("object", None)] * 7)  # type: ignore[arg-type]
    served = {(method, route.path) for route in api.routes() for method in _methods(route)}
    served |= {(method, path.decode()) for method, path in DOORS}

    documented = set(ROW.findall((claims.ROOT / "docs" / "api.md").read_text(encoding="utf-8")))

    assert documented == served


def _methods(route: Route) -> set[str]:
    return (route.methods or set()) - {"HEAD"}
