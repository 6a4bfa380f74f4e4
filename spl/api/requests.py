"""Reading a request's body: a model for each, which also describes it; anything else is an error."""

from __future__ import annotations

import asyncio
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from spl.api.queries import DEFAULT, MOST
from spl.errors import EventUnknown, InvalidBody, MissingField
from spl.kernel.terms import Start
from spl.records.canonical import parse
from spl.records.filter import MOST_OFFSET, MOST_SORTED, Search, filter_of, sort_of
from spl.records.record import ACTS, DATA_TYPES, MAX_PARENTS, Draft

if TYPE_CHECKING:
    from starlette.requests import Request

MOST_ITEMS = 100_000
MOST_DIGITS = 100_000
LONG = 16384
"""Bytes of a body past which it is worked on when the turn of whoever sent it comes, the operator's at once."""

_SHORT = 65536
_LONG = 1e17
_WITH_EXPONENT = re.compile(rb"[0-9][eE][+]?[0-9]{2}")

_Name = Annotated[str, Field(min_length=1, max_length=200)]


def _a_line(value: str) -> str:
    # What the settings can give a price, and a terminal can be shown.
    if not value.isprintable() or not value.strip():
        raise ValueError("it must be a line of text")
    return value


_Model = Annotated[_Name, AfterValidator(_a_line)]


def _not_blank(goal: str) -> str:
    if not goal.strip():
        raise ValueError("it says nothing")
    return goal


class Body(BaseModel):
    """A body's fields; unknown ones and other types are refused. Of itself it has none."""

    # Built when it is asked for first, as a query is.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


def _described(about: str | None = None, **schema: Any) -> Any:
    """Give what describes a field whose bounds are another's to judge, with a message of its own."""
    return Field(description=about, json_schema_extra=schema)


class RecordBody(Body):
    """`POST /v1/records`."""

    thread: Annotated[str, _described(pattern="^[A-Za-z0-9._:@-]{1,200}$")]
    actor: Annotated[
        str, _described("whose record it is", pattern="^did:[a-z0-9]+:[A-Za-z0-9._:%-]+$", maxLength=300)
    ]
    act: Annotated[str, _described(enum=list(ACTS))]
    body: Annotated[
        dict[str, Any], _described("with a `kind` of the form `scope.category.entity.v1`, if any")
    ]
    parents: Annotated[
        list[str], _described(items={"type": "string", "pattern": "^[0-9a-f]{64}$"}, maxItems=MAX_PARENTS)
    ] = []
    clock: Annotated[int | None, _described("the log gives the next one where it is left out")] = None
    data_type: Annotated[str, _described(enum=list(DATA_TYPES))] = "SCALAR"
    judged_by: str | None = None

    def draft(self) -> Draft:
        """Give the draft the log takes."""
        return Draft(
            self.thread,
            self.actor,
            self.act,
            self.body,
            tuple(self.parents),
            self.clock,
            self.data_type,
            self.judged_by,
        )


class SearchBody(Body):
    """`POST /v1/records/query`."""

    filter: Annotated[
        dict[str, Any], _described("what to match, as the API's page tells; `{}` is everything")
    ]
    thread: str | None = None
    sort: Annotated[
        dict[str, Any],
        _described(
            "fields by which to sort, the first before the others: 1 rises, -1 falls",
            additionalProperties={"enum": [1, -1]},
            maxProperties=MOST_SORTED,
        ),
    ] = {}
    limit: Annotated[int, Field(ge=1, le=MOST)] = DEFAULT
    offset: Annotated[int, Field(ge=0, le=MOST_OFFSET)] = 0
    explain: bool = False

    def search(self) -> Search:
        """Give the search that the log takes; raises `InvalidBody` with the place of what is wrong."""
        return Search(filter_of(self.filter, self.thread), sort_of(self.sort), self.limit, self.offset)


class StartBody(Body):
    """`POST /v1/work/loop`."""

    goal: Annotated[str, AfterValidator(_not_blank), Field(max_length=65536), _described(minLength=1)]
    actor: Annotated[_Name | None, _described("for whom; whoever asks unless it is given")] = None
    model: Annotated[_Model | None, _described("the provider's default unless it is given")] = None
    max_turns: Annotated[int, Field(ge=1, le=100_000)] | None = None
    budget_usd: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    wall_clock_secs: Annotated[float, Field(gt=0, le=604_800)] | None = None
    forbidden_tools: Annotated[
        list[_Name], Field(max_length=100), _described("tools that no call of the run may use")
    ] = []
    tools: Annotated[
        Annotated[list[_Name], Field(max_length=100)] | None,
        _described("the tools that it may use; all that are granted unless it is given"),
    ] = None

    def start(self) -> Start:
        """Give the start the kernel decides on."""
        return Start(
            goal=self.goal,
            actor=self.actor,
            model=self.model,
            max_turns=self.max_turns,
            budget_usd=None if self.budget_usd is None else Decimal(str(self.budget_usd)),
            wall_clock_secs=self.wall_clock_secs,
            forbidden_tools=tuple(self.forbidden_tools),
            tools=None if self.tools is None else tuple(self.tools),
        )


class CheckBody(Body):
    """`POST /v1/provider/check`."""

    model: _Model | None = None


class EventBody(Body):
    """`POST /v1/runs/{thread}/events`."""

    type: Annotated[str, _described(enum=["stop"])]

    def require_known(self) -> None:
        """Refuse an event that no run takes; raises `EventUnknown`."""
        if self.type != "stop":
            raise EventUnknown(f"a run takes no event {self.type!r:.80}: there is 'stop'")


_B = TypeVar("_B", bound=Body)


async def read_body(request: Request, form: type[_B]) -> _B:
    """Read a request's body; raises `MissingField` for an absent field and `InvalidBody` for all else."""
    said = await read_json(await request.body())
    if not isinstance(said, dict):
        raise InvalidBody("the body must be a JSON object")
    try:
        return form.model_validate(said)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
    absent = [each for each in found if each["type"] == "missing"]
    first = (absent or found)[0]
    place = ".".join(str(part) for part in first["loc"])
    if absent:
        raise MissingField(f"the field {place!r} is missing")
    raise InvalidBody(f"the field {place!r}: {first['msg'].removeprefix('Value error, ')}")


async def read_json(body: bytes, *, most_items: int = MOST_ITEMS) -> Any:
    """Read a body as JSON; raises `InvalidBody`.

    A document of very many small things takes thirty times its text as objects, so their number is bounded; a long
    one is read in a thread, so that the event loop goes on meanwhile.
    """
    if body.count(b",") + body.count(b"[") + body.count(b"{") > most_items:
        raise InvalidBody(f"the JSON has more than {most_items} commas and brackets")
    if len(body) > _SHORT:
        return await asyncio.to_thread(_read, body)
    return _read(body)


def _read(body: bytes) -> Any:
    value = parse(body)
    if _WITH_EXPONENT.search(body):
        _refuse_long_numbers(value)
    return value


def _refuse_long_numbers(value: Any) -> None:
    """Refuse numbers that are long when they are written out, as they are in a record: `1e308` has 309 digits then.

    A body of a megabyte would become fifty of the log's, and keep the event loop for seconds.
    """
    digits, values = 0, [value]
    while values:
        each = values.pop()
        if isinstance(each, dict):
            values.extend(each.values())
        elif isinstance(each, list):
            values.extend(each)
        elif isinstance(each, float) and abs(each) >= _LONG:
            digits += int(math.log10(abs(each)))
            if digits > MOST_DIGITS:
                raise InvalidBody(
                    f"the JSON has numbers with exponents of over {MOST_DIGITS} digits when they are written out"
                )
