"""Reading a request's query: one model for each form of it, which also describes it; anything else is an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from spl.errors import InvalidBody
from spl.kernel.rows import State

if TYPE_CHECKING:
    from starlette.requests import Request

MOST: Final = 1000
DEFAULT: Final = 100
_LAST: Final = 2**63 - 1
"""The last sequence that a log can give."""


@dataclass(frozen=True)
class Whole:
    """A whole number between two bounds, in digits alone, for a model of pydantic's."""

    least: int
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Give what validates it; see pydantic's "Custom types"."""
        del source, handler
        return core_schema.no_info_before_validator_function(
            self._read, core_schema.int_schema(ge=self.least, le=self.most)
        )

    def _read(self, said: str | int) -> int:
        said = str(said)
        # What int() takes beside digits, a sign, spaces, underscores and other scripts' digits, is not meant.
        if said.isascii() and said.isdigit() and len(said) < 20 and self.least <= int(said) <= self.most:
            return int(said)
        raise PydanticCustomError(
            "whole_number",
            "a whole number from {least} to {most}",
            {"least": self.least, "most": self.most},
        )


Since = Annotated[int, Whole(0, _LAST)]
Limit = Annotated[int, Whole(1, MOST), Field(description="how many there are on a page, at the most")]


class Query(BaseModel):
    """A query's fields; unknown ones, and one that comes twice, are refused. Of itself it has none."""

    # Built when it is asked for first: the daemon is to start fast.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def read(cls, request: Request) -> Self:
        """Read a request's query; raises `InvalidBody`."""
        fields: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if name not in cls.model_fields:
                known = ", ".join(cls.model_fields) or "none"
                raise InvalidBody(f"the query has no field {name!r} here: it knows {known}")
            if name in fields:
                raise InvalidBody(f"the query names {name!r} twice")
            fields[name] = value
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
        expected = first["msg"] if first["type"] == "whole_number" else first["ctx"]["expected"]
        raise InvalidBody(f"the query's {first['loc'][0]!r} must be {expected}")


class Page(Query):
    """A page of a listing."""

    since: Annotated[Since, Field(description="a sequence, exclusive: the page begins after it")] = 0
    limit: Limit = DEFAULT


class RecordsQuery(Query):
    """`GET /v1/records`."""

    thread: str | None = None
    actor: str | None = None
    kind: Annotated[str | None, Field(description="the body's `kind`")] = None
    since: Annotated[Since, Field(description="a sequence, exclusive: the page begins after it")] = 0
    limit: Limit = DEFAULT


class RunsQuery(Query):
    """`GET /v1/runs`."""

    state: State | None = None
    actor: Annotated[str | None, Field(description="whose runs; a member's bearer covers its own")] = None
    since: Annotated[Since, Field(description="the `sequence` of a row, exclusive")] = 0
    limit: Limit = DEFAULT
    order: Annotated[
        Literal["oldest", "newest"],
        Field(
            description="`newest`: of the newest `limit` runs those in the `state`; no `since`, no next page"
        ),
    ] = "oldest"

    @classmethod
    def read(cls, request: Request) -> Self:
        """Read a request's query; raises `InvalidBody`."""
        found = super().read(request)
        if found.order == "newest" and "since" in found.model_fields_set:
            raise InvalidBody("the query's 'order' must be oldest, or newest and without 'since'")
        return found


class WatchQuery(Query):
    """A watch of records."""

    since: Annotated[Since, Field(description="a sequence, exclusive: the stream begins after it")] = 0
    since_clock: Annotated[
        Since | None, Field(description="records whose clock is at or below it are left out")
    ] = None

    def beginning(self, request: Request) -> int:
        """Give the sequence that the stream begins after; raises `InvalidBody`.

        `Last-Event-ID`, which a reader that comes again sends, goes before `since`.
        """
        known = request.headers.getlist("last-event-id")
        if not known:
            return self.since
        try:
            return WatchQuery.model_validate({"since": ",".join(known)}).since
        except ValidationError:
            raise InvalidBody(f"the header Last-Event-ID must be a whole number from 0 to {_LAST}") from None
