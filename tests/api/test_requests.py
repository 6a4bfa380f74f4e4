from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from spl.api.requests import MOST_DIGITS, RecordBody, StartBody, read_json
from spl.errors import InvalidBody
from spl.kernel.terms import Start


def test_a_start_leaves_to_the_tier_what_it_does_not_say() -> None:
    assert StartBody(goal="x").start() == Start(goal="x")


def test_a_budget_is_taken_as_it_was_written() -> None:
    assert StartBody(goal="x", budget_usd=0.1).start().budget_usd == Decimal("0.1")
    assert StartBody(goal="x", budget_usd=1).start().budget_usd == Decimal(1)


def test_asking_for_no_tools_is_not_asking_for_all() -> None:
    assert StartBody(goal="x", tools=[]).start().tools == ()
    assert StartBody(goal="x").start().tools is None


def test_a_records_clock_is_the_logs_to_give_unless_said() -> None:
    said = {"thread": "th_x", "actor": "did:sync:user:op", "act": "KNOW", "body": {}}
    assert RecordBody.model_validate(said).draft().clock is None
    assert RecordBody.model_validate({**said, "clock": 0}).draft().clock == 0


@pytest.mark.parametrize("number", [b"1e308", b"-1E+308", b"1.5e300", b"12e30"])
def test_a_body_that_would_be_many_times_as_long_on_record_is_refused(number: bytes) -> None:
    digits = len(str(abs(int(float(number)))))
    most = MOST_DIGITS // (digits - 1)
    assert len(asyncio.run(read_json(b'{"x": [%b]}' % b",".join([number] * most)))["x"]) == most
    with pytest.raises(InvalidBody, match="when they are written out"):
        asyncio.run(read_json(b'{"x": [%b]}' % b",".join([number] * (most + 2))))


def test_digits_that_are_written_out_or_stand_in_a_text_are_no_exponents() -> None:
    text = b'{"x": ["%b", 1e-300, 0.5e10]}' % (b"1e308," * 1000)
    assert len(asyncio.run(read_json(text))["x"]) == 3
