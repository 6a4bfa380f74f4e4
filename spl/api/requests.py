"""Reading a request: its body and its query, each against what the route knows; anything else is an error."""

from __future__ import annotations

import asyncio
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from spl.errors import EventUnknown, InvalidBody, MissingField
from spl.kernel.terms import Start
from spl.records.canonical import parse
from spl.records.filter import MOST_OFFSET, Search, filter_of, sort_of
from spl.records.record import Draft

if TYPE_CHECKING:
    from starlette.requests import Request

MOST = 1000
MOST_ITEMS = 100_000
MOST_DIGITS = 100_000
LONG = 16384
"""Bytes of a body past which it is worked on when the turn of whoever sent it comes, the operator's at once."""

_SHORT = 65536
_LONG = 1e17
_WITH_EXPONENT = re.compile(rb"[0-9][eE][+]?[0-9]{2}")
_DEFAULT = 100
_SEQUENCES = 2**63

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
    """A body's fields; unknown ones and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RecordBody(Body):
    """`POST /v1/records`."""

    thread: str
    actor: str
    act: str
    body: dict[str, Any]
    parents: list[str] = []
    clock: int | None = None
    data_type: str = "SCALAR"
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

    filter: dict[str, Any]
    thread: str | None = None
    sort: dict[str, Any] = {}
    limit: Annotated[int, Field(ge=1, le=MOST)] = _DEFAULT
    offset: Annotated[int, Field(ge=0, le=MOST_OFFSET)] = 0
    explain: bool = False

    def search(self) -> Search:
        """Give the search that the log takes; raises `InvalidBody` with the place of what is wrong."""
        return Search(filter_of(self.filter, self.thread), sort_of(self.sort), self.limit, self.offset)


class StartBody(Body):
    """`POST /v1/work/loop`."""

    goal: Annotated[str, AfterValidator(_not_blank), Field(max_length=65536)]
    actor: _Name | None = None
    model: _Model | None = None
    max_turns: Annotated[int, Field(ge=1, le=100_000)] | None = None
    budget_usd: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    wall_clock_secs: Annotated[float, Field(gt=0, le=604_800)] | None = None
    forbidden_tools: Annotated[list[_Name], Field(max_length=100)] = []
    tools: Annotated[list[_Name], Field(max_length=100)] | None = None

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

    type: str

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


def query(request: Request, *known: str) -> dict[str, str]:
    """Give the query's fields; raises `InvalidBody` for one the route does not know or that comes twice."""
    fields: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise InvalidBody(f"the query has no field {name!r} here: it knows {', '.join(known) or 'none'}")
        if name in fields:
            raise InvalidBody(f"the query names {name!r} twice")
        fields[name] = value
    return fields


def page(fields: dict[str, str]) -> tuple[int, int]:
    """Give `since` (exclusive, default 0) and `limit` (1 to 1000, default 100) of a query; raises `InvalidBody`."""
    return _number(fields, "since", 0, 0, _SEQUENCES - 1), _number(fields, "limit", _DEFAULT, 1, MOST)


def beginning(request: Request, fields: dict[str, str]) -> tuple[int, int | None]:
    """Give the sequence that an event stream begins after and the clock above which it tells; raises `InvalidBody`.

    `Last-Event-ID`, which a reader that comes again sends, goes before the query's `since`.
    """
    since, _ = page(fields)
    known = request.headers.getlist("last-event-id")
    if known:
        since = _whole(",".join(known), "the header Last-Event-ID", 0, _SEQUENCES - 1)
    clock = _number(fields, "since_clock", 0, 0, _SEQUENCES - 1) if "since_clock" in fields else None
    return since, clock


def _number(fields: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    said = fields.get(name)
    return default if said is None else _whole(said, f"the query's {name!r}", least, most)


def _whole(said: str, what: str, least: int, most: int) -> int:
    if not (said.isascii() and said.isdigit() and len(said) < 20 and least <= int(said) <= most):
        raise InvalidBody(f"{what} must be a whole number from {least} to {most}")
    return int(said)
