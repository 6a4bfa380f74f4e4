from __future__ import annotations

import pytest
from starlette.requests import Request

from spl.api.queries import Page, Query, RecordsQuery, RunsQuery, WatchQuery
from spl.errors import InvalidBody


def asked(text: str, *last_event_ids: str) -> Request:
    headers = [(b"last-event-id", each.encode()) for each in last_event_ids]
    return Request({"type": "http", "query_string": text.encode(), "headers": headers})


def test_a_query_gives_its_fields() -> None:
    assert RecordsQuery.read(asked("thread=th_x&since=3")) == RecordsQuery(thread="th_x", since=3)
    assert Query.read(asked("")) == Query()


def test_a_field_that_is_empty_is_still_a_field() -> None:
    with pytest.raises(InvalidBody, match="knows none"):
        Query.read(asked("x="))
    assert RecordsQuery.read(asked("thread=")).thread == ""


def test_a_field_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidBody, match="no field 'x' here: it knows since, limit"):
        Page.read(asked("x=1"))


def test_a_field_that_comes_twice_is_refused() -> None:
    with pytest.raises(InvalidBody, match="names 'limit' twice"):
        Page.read(asked("limit=1&limit=1"))


def test_a_page_has_its_defaults_and_its_bounds() -> None:
    assert Page.read(asked("")) == Page(since=0, limit=100)
    assert Page.read(asked(f"since={2**63 - 1}&limit=1000")) == Page(since=2**63 - 1, limit=1000)
    for text in (
        "limit=1001",
        f"since={2**63}",
        "limit=%2B1",
        "limit=1_0",
        "limit=1.0",
        "limit= 1",
        "limit=",
    ):
        with pytest.raises(InvalidBody, match="whole number from"):
            Page.read(asked(text))


def test_a_word_is_one_of_those_there_are() -> None:
    with pytest.raises(InvalidBody, match="'state' must be 'running', 'done', 'stopped' or 'stopped_short'"):
        RunsQuery.read(asked("state=bogus"))
    with pytest.raises(InvalidBody, match="newest and without 'since'"):
        RunsQuery.read(asked("order=newest&since=0"))


def test_the_last_event_a_reader_has_seen_goes_before_what_its_query_says() -> None:
    query = WatchQuery.read(asked("since=3"))
    assert query.beginning(asked("")) == 3
    assert query.beginning(asked("", "7")) == 7
    for wrong in (["x"], ["7", "7"], ["-1"], [str(2**63)], [""]):
        with pytest.raises(InvalidBody, match="Last-Event-ID must be a whole number from 0 to"):
            query.beginning(asked("", *wrong))
