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
    ],
)
def test_a_body_that_configures_nothing_is_refused(body: dict[str, Any], error: type[SplError]) -> None:
    with pytest.raises(error):
        check({"kind": CONFIG, **body})
