"""What each actor's runs use up: how many are going, and how many were started and what they cost today, in UTC.

The log is read for it once, at the daemon's start; from then on it is counted here, before anything is awaited, so
that no number of starts at once gets past a ceiling.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from spl.errors import WorkConcurrencyExceeded, WorkDailyCapExceeded, WorkDailyCountExceeded
from spl.kernel.names import LOOP, OUTCOME

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from spl.errors import SplError
    from spl.kernel.tiers import Tier
    from spl.records.record import Record
    from spl.records.store import Store

_PAGE = 1000
_DATE = 10
"""Characters of a time in ISO 8601 that are its date."""


class Usage:
    """Counts by actor; `now` is the time of day in UTC."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._going: Counter[str] = Counter()
        self._started: Counter[tuple[str, str]] = Counter()
        self._spent: dict[tuple[str, str], Decimal] = {}
        self._reserved: dict[str, list[Decimal]] = {}
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._settled = asyncio.Event()

    async def read(self, store: Store) -> None:
        """Count what the log says of today, before anything is started; every run in it must have its outcome.

        What a run cost is counted where it ended: not when each call was made, but never less than that. What is
        dated later than today counts today as well: the clock has gone back, and nobody gets a day twice by it.
        """
        today = self.today()
        for anchor in await _since(store, LOOP, "started_at", today):
            for day in {today, anchor.body["started_at"][:_DATE]}:
                self._started[day, anchor.body["actor"]] += 1
        for outcome in await _since(store, OUTCOME, "ended_at", today):
            cost = Decimal(str(outcome.body["spent_usd"]))
            for anchor in await store.select(thread=outcome.thread, kind=LOOP, limit=1):
                for day in {today, outcome.body["ended_at"][:_DATE]}:
                    self._charge(day, anchor.body["actor"], cost)

    def refusals(self, actor: str, tier: Tier) -> list[SplError]:
        """Give what keeps another run of this actor from being started now."""
        found: list[SplError] = []
        started, spent = self._started[self.today(), actor], self.spent(actor)
        if tier.concurrent_runs is not None and self._going[actor] >= tier.concurrent_runs:
            found.append(
                WorkConcurrencyExceeded(
                    f"runs of {actor} that are going on: {self._going[actor]}, and its tier {tier.name} allows "
                    f"{tier.concurrent_runs} at once (concurrent_runs)",
                    limit=tier.concurrent_runs,
                    running=self._going[actor],
                    **_until(1, tier, "concurrent_runs"),
                )
            )
        if tier.daily_runs is not None and started >= tier.daily_runs:
            found.append(
                WorkDailyCountExceeded(
                    f"runs of {actor} that were started today: {started}, and its tier {tier.name} allows "
                    f"{tier.daily_runs} a day (daily_runs)",
                    limit=tier.daily_runs,
                    started=started,
                    **_until(self._until_midnight(), tier, "daily_runs"),
                )
            )
        if tier.daily_cost_usd is not None and spent >= tier.daily_cost_usd:
            found.append(
                WorkDailyCapExceeded(
                    f"the runs of {actor} have cost {money(spent)} USD today, and its tier {tier.name} allows "
                    f"{money(tier.daily_cost_usd)} USD a day (daily_cost_usd)",
                    limit_usd=float(tier.daily_cost_usd),
                    spent_usd=float(spent),
                    **_until(self._until_midnight(), tier, "daily_cost_usd"),
                )
            )
        return found

    def take(self, actor: str) -> Place:
        """Count a run in before it starts; whoever calls this has seen that there are no `refusals`."""
        day = self.today()
        self._going[actor] += 1
        self._started[day, actor] += 1
        return Place(self, day, actor)

    def spent(self, actor: str) -> Decimal:
        """Give what this actor's runs have cost today, in US dollars."""
        return self._spent.get((self.today(), actor), Decimal(0))

    def spent_by_all(self) -> Decimal:
        """Give what everyone's runs have cost today, in US dollars."""
        today = self.today()
        return sum((usd for (day, _), usd in self._spent.items() if day == today), Decimal(0))

    def left(self, actor: str, most: Decimal) -> Decimal:
        """Give what of a day's `most` is neither spent by this actor's runs nor reserved for calls under way."""
        return most - self.spent(actor) - sum(self._reserved.get(actor, ()), Decimal(0))

    def queue(self, actor: str) -> asyncio.Lock:
        """Give the lock under which this actor's runs reserve, one after another as they come."""
        return self._queues.setdefault(actor, asyncio.Lock())

    def reserve(self, actor: str, usd: Decimal) -> None:
        """Set aside what a model call of this actor's run can cost."""
        self._reserved.setdefault(actor, []).append(usd)

    def settle(self, actor: str, reserved: Decimal, cost_usd: Decimal) -> None:
        """Count what a model call of this actor's run has cost, in the place of what was reserved for it."""
        self._reserved[actor].remove(reserved)
        if not self._reserved[actor]:
            del self._reserved[actor]
        self._charge(self.today(), actor, cost_usd)
        self._settled.set()
        self._settled = asyncio.Event()

    async def freed(self, actor: str) -> bool:
        """Wait until a call under way is settled; false at once where nothing is reserved for this actor's runs."""
        if actor not in self._reserved:
            return False
        await self._settled.wait()
        return True

    def ended(self, actor: str) -> None:
        """Count a run out; a `Place` does this once."""
        self._going[actor] -= 1
        if not self._going[actor]:
            del self._going[actor]

    def never_started(self, day: str, actor: str) -> None:
        """Take a start back that came to nothing; a `Place` does this once."""
        self._started[day, actor] -= 1

    def _charge(self, day: str, actor: str, cost_usd: Decimal) -> None:
        self._spent[day, actor] = self._spent.get((day, actor), Decimal(0)) + cost_usd

    def today(self) -> str:
        """Give the day in UTC, as ISO 8601 writes it."""
        return self._now().date().isoformat()

    def _until_midnight(self) -> int:
        now = self._now()
        return 86_400 - (now.hour * 3600 + now.minute * 60 + now.second)


class Place:
    """One run's place among its actor's, given back once however often it is released."""

    def __init__(self, usage: Usage, day: str, actor: str) -> None:
        self._usage = usage
        self._day = day
        self._actor = actor
        self._held = True

    def release(self, *, started: bool = True) -> None:
        """Count the run out; with `started` false its start is not counted among the day's either."""
        if self._held:
            self._held = False
            self._usage.ended(self._actor)
            if not started:
                self._usage.never_started(self._day, self._actor)


def money(usd: Decimal, rounding: str = ROUND_HALF_EVEN) -> str:
    """Write US dollars as a person would, to a millionth."""
    return f"{usd.quantize(Decimal('0.000001'), rounding).normalize():f}"


def _until(seconds: int, tier: Tier, ceiling: str) -> dict[str, object]:
    """Give when to try again; where a ceiling is 0 no wait helps, and what does."""
    if getattr(tier, ceiling) > 0:
        return {"retry_after_secs": seconds}
    return {
        "remedy": f"give the tier another: 'spl config set-tier {tier.name} --reset {ceiling.replace('_', '-')}'"
    }


async def _since(store: Store, kind: str, field: str, day: str) -> list[Record]:
    """Give the records whose time is on a day or after it: the newest, back to the first that is older."""
    limit = _PAGE
    while True:
        newest = await store.select(kind=kind, limit=limit, newest_first=True)
        if len(newest) < limit or newest[-1].body[field][:_DATE] < day:
            return [each for each in newest if each.body[field][:_DATE] >= day]
        limit *= 4
