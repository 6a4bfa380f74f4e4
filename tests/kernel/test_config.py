from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import InvalidBody, MissingField, SplError
from spl.kernel.config import Config, check
from spl.kernel.names import CONFIG, CONFIG_THREAD, ENGINE
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore
from tests.kernel.instance import MEMBERS, TRANSPORT, instance

PROFILE, CAPACITY = "work_loop_profile", "admission_capacity"

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.claim("T1")
def test_an_instance_without_configuration_runs_its_operator_in_process_and_others_sandboxed(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            config = here.kernel.config
            assert (config.transport, config.member_transport) == ("in_process", "sandboxed")

    asyncio.run(run())


@pytest.mark.claim("T2")
def test_the_newest_record_of_each_key_is_in_force_in_either_direction(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            config = here.kernel.config
            for transport in ("sandboxed", "in_process", "sandboxed"):
                await here.configure(TRANSPORT, transport)
                assert (config.transport, config.member_transport) == (transport, "sandboxed")
            for transport in ("in_process", "sandboxed"):
                await here.configure(MEMBERS, transport)
                assert (config.transport, config.member_transport) == ("sandboxed", transport)

    asyncio.run(run())


@pytest.mark.claim("T2")
def test_what_is_in_force_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            for transport in ("sandboxed", "in_process", "sandboxed"):
                await here.configure(TRANSPORT, transport)
            await here.configure(MEMBERS, "in_process")
        async with instance(tmp_path) as again:
            config = again.kernel.config
            assert (config.transport, config.member_transport) == ("sandboxed", "in_process")

    asyncio.run(run())


def test_the_log_is_read_past_one_page(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            body = {"kind": CONFIG, "topic": TRANSPORT, "transport": "in_process"}
            await here.store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", body)] * 1200)
            await here.configure(TRANSPORT, "sandboxed")
            assert (await Config.follow(here.store)).transport == "sandboxed"

    asyncio.run(run())


@pytest.mark.claim("T3")
@pytest.mark.parametrize("typo", ["sandbox", "Sandboxed", "", "in-process", "IN_PROCESS", " sandboxed"])
def test_a_typo_moves_nobody(tmp_path: Path, typo: str) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            for topic in (TRANSPORT, MEMBERS):
                await here.configure(topic, typo)
            config = here.kernel.config
            assert (config.transport, config.member_transport) == ("in_process", "sandboxed")

    asyncio.run(run())


@pytest.mark.claim("T3")
def test_a_typo_after_a_good_value_reads_as_the_default(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.configure(TRANSPORT, "sandboxed")
            await here.configure(TRANSPORT, "sandbxed")
            await here.configure(MEMBERS, "in_process")
            await here.configure(MEMBERS, "in_proces")
            config = here.kernel.config
            assert (config.transport, config.member_transport) == ("in_process", "sandboxed")

    asyncio.run(run())


def test_a_profile_is_that_of_the_tier_before_that_of_all_before_the_shipped_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            config = here.kernel.config

            def of(tier: str) -> str:
                return config.profile_of(tier)

            assert (config.profile, of("trial"), config.tier_profiles) == ("worker", "worker", {})
            await here.say(topic=PROFILE, profile="small", tier="trial")
            assert (config.profile, of("trial"), of("operator")) == ("worker", "small", "worker")
            await here.say(topic=PROFILE, profile="strict")
            assert (config.profile, of("trial"), of("operator")) == ("strict", "small", "strict")
            assert config.tier_profiles == {"trial": "small"}
            # Both ways back: a tier's own is taken back, then the choice for all.
            await here.say(topic=PROFILE, profile=None, tier="trial")
            assert (of("trial"), config.tier_profiles) == ("strict", {})
            await here.say(topic=PROFILE, profile=None, tier=None)
            assert (config.profile, of("trial")) == ("worker", "worker")

    asyncio.run(run())


@pytest.mark.parametrize("tier", ["trial", "paid", "team", "operator"])
def test_every_tier_of_the_contract_may_have_a_profile_of_its_own(tmp_path: Path, tier: str) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.say(topic=PROFILE, profile="strict", tier=tier)
            assert here.kernel.config.tier_profiles == {tier: "strict"}
            assert here.kernel.config.profile_of(tier) == "strict"

    asyncio.run(run())


def test_the_newest_capacity_is_in_force_and_can_be_taken_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, capacity=2) as here:
            config, admission = here.kernel.config, here.kernel.admission
            assert (config.capacity, admission.capacity(1)) == (None, 2)
            for capacity in (5, 0, 4096):
                await here.say(topic=CAPACITY, capacity=capacity)
                assert config.capacity == admission.capacity(1) == admission.available(1) == capacity
            await here.say(topic=CAPACITY, capacity=None)
            assert (config.capacity, admission.capacity(1)) == (None, 2)

    asyncio.run(run())


def test_a_profile_and_a_capacity_are_in_force_after_a_restart_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.say(topic=PROFILE, profile="strict")
            await here.say(topic=PROFILE, profile="small", tier="team")
            await here.say(topic=CAPACITY, capacity=3)
        async with instance(tmp_path) as again:
            config = again.kernel.config
            assert (config.profile, config.tier_profiles, config.capacity) == ("strict", {"team": "small"}, 3)

    asyncio.run(run())


@pytest.mark.parametrize("value", [7, ["strict"], {"strict": 1}, True, -1, 4097, 1.5, "5"])
def test_a_profile_or_capacity_in_an_old_log_that_could_not_be_written_now_says_nothing(
    tmp_path: Path, value: object
) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "hub.db")
        config = await Config.follow(store)
        profile = value if not isinstance(value, str) else None
        for body in (
            {"topic": PROFILE, "profile": profile},
            {"topic": PROFILE, "profile": "strict", "tier": [value]},
            {"topic": CAPACITY, "capacity": value if value != 7 else "7"},
        ):
            await store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", {"kind": CONFIG, **body})])
        assert (config.profile, config.tier_profiles, config.capacity) == ("worker", {}, None)
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("transport", [None, 7, ["sandboxed"], {"sandboxed": True}, True])
def test_a_value_that_is_no_string_in_an_old_log_reads_as_the_default(
    tmp_path: Path, transport: object
) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "hub.db")
        config = await Config.follow(store)
        for topic in (TRANSPORT, MEMBERS, 3, None):
            body = {"kind": CONFIG, "topic": topic, "transport": transport}
            await store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", body)])
        assert (config.transport, config.member_transport) == ("in_process", "sandboxed")
        await store.close()

    asyncio.run(run())


@pytest.mark.claim("T2")
@pytest.mark.parametrize(
    ("thread", "kind"), [("th_other", CONFIG), (CONFIG_THREAD, "my.engine.config.v1"), (CONFIG_THREAD, None)]
)
def test_a_record_of_another_thread_or_kind_configures_nothing(
    tmp_path: Path, thread: str, kind: str | None
) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "hub.db")
        config = await Config.follow(store)
        body = {"topic": TRANSPORT, "transport": "sandboxed", **({"kind": kind} if kind else {})}
        await store.append([Draft(thread, ENGINE, "LEARN", body)])
        assert config.transport == "in_process"
        assert (await Config.follow(store)).transport == "in_process"
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, MissingField),
        ({"topic": None}, MissingField),
        ({"topic": TRANSPORT}, MissingField),
        ({"topic": 3, "transport": "sandboxed"}, InvalidBody),
        ({"topic": [TRANSPORT], "transport": "sandboxed"}, InvalidBody),
        ({"topic": "work_loop_transports", "transport": "sandboxed"}, InvalidBody),
        ({"topic": TRANSPORT, "transport": None}, InvalidBody),
        ({"topic": MEMBERS, "transport": True}, InvalidBody),
        ({"topic": TRANSPORT, "transport": "sandboxed", "tier": "trial"}, InvalidBody),
        ({"topic": PROFILE}, MissingField),
        ({"topic": PROFILE, "tier": "trial"}, MissingField),
        ({"topic": PROFILE, "profile": 3}, InvalidBody),
        ({"topic": PROFILE, "profile": ["strict"]}, InvalidBody),
        ({"topic": PROFILE, "profile": "strict", "tier": "gold"}, InvalidBody),
        ({"topic": PROFILE, "profile": "strict", "tier": ["trial"]}, InvalidBody),
        ({"topic": PROFILE, "profile": "strict", "capacity": 3}, InvalidBody),
        ({"topic": CAPACITY}, MissingField),
        ({"topic": CAPACITY, "capacity": -1}, InvalidBody),
        ({"topic": CAPACITY, "capacity": 4097}, InvalidBody),
        ({"topic": CAPACITY, "capacity": True}, InvalidBody),
        ({"topic": CAPACITY, "capacity": 2.0}, InvalidBody),
        ({"topic": CAPACITY, "capacity": "2"}, InvalidBody),
        ({"topic": CAPACITY, "capacity": 2, "tier": "trial"}, InvalidBody),
    ],
)
def test_a_body_that_configures_nothing_is_refused(body: dict[str, Any], error: type[SplError]) -> None:
    with pytest.raises(error):
        check({"kind": CONFIG, **body})
