from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import ExpressionInvalid, InvalidBody, MissingField, SplError
from spl.kernel.config import MOST_EXPRESSIONS, MOST_RULES, Config, check
from spl.kernel.expressions import LONGEST
from spl.kernel.names import CONFIG, CONFIG_THREAD, ENGINE
from spl.kernel.rules import Asked
from spl.records.record import Draft
from spl.records.sqlite import SqliteStore
from tests.kernel.instance import MEMBERS, OPERATOR, TRANSPORT, instance, today

PROFILE, CAPACITY, STANDBY = "work_loop_profile", "admission_capacity", "standby_workers"
RULE = "permission_rule"
A_RULE: dict[str, object] = {"name": "r", "action": "deny", "priority": 1, "expression": "true"}

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kernel.instance import Instance


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


@pytest.mark.claim("T2")
@pytest.mark.parametrize("field", [1, "x", None])
def test_a_field_without_a_name_hides_no_record(tmp_path: Path, field: object) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            body = {"kind": CONFIG, "topic": TRANSPORT, "transport": "sandboxed", "": field}
            await here.store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", body)])
            assert here.kernel.config.transport == "sandboxed"

    asyncio.run(run())


def test_the_log_is_read_past_one_page(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            body = {"kind": CONFIG, "topic": TRANSPORT, "transport": "in_process"}
            await here.store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", body)] * 1200)
            await here.configure(TRANSPORT, "sandboxed")
            assert (await Config.follow(here.store, today)).transport == "sandboxed"

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


def test_the_newest_number_of_standbys_is_in_force_and_whoever_follows_is_told_of_each_decision(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            config, told = here.kernel.config, list[int | None]()
            assert config.standby is None
            config.changed = lambda: told.append(config.standby)
            for number in (5, 0, 64, None):
                await here.say(topic=STANDBY, workers=number)
            assert told == [5, 0, 64, None]

    asyncio.run(run())


def test_the_profiles_of_sandboxed_runs_are_those_of_the_tiers_whose_runs_are(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            config = here.kernel.config
            assert config.sandboxed_profiles == ["worker"]
            await here.say(topic=PROFILE, profile="strict", tier="operator")
            assert config.sandboxed_profiles == ["worker"]
            await here.configure(TRANSPORT, "sandboxed")
            assert config.sandboxed_profiles == ["strict", "worker"]
            await here.say(topic=PROFILE, profile="small", tier="paid")
            assert sorted(config.sandboxed_profiles) == ["small", "strict", "worker"]
            await here.configure(MEMBERS, "in_process")
            assert config.sandboxed_profiles == ["strict"]

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


def test_rules_that_are_there_at_the_start_need_nothing_that_is_installed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.rule("r", "true")
            config = await Config.follow(here.store, today)
            monkeypatch.setitem(sys.modules, "cel_expr_python", None)
            asked = Asked("record_note", {}, OPERATOR, "operator", "in_process", "th_1", "", 1, 0.0)
            found = config.rules.judge(asked)
            assert found is not None
            assert found.rule.name == "r"

    asyncio.run(run())


@pytest.mark.parametrize("value", [7, ["strict"], {"strict": 1}, True, -1, 4097, 1.5, "5"])
def test_a_profile_or_capacity_in_an_old_log_that_could_not_be_written_now_says_nothing(
    tmp_path: Path, value: object
) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "hub.db")
        config = await Config.follow(store, today)
        profile = value if not isinstance(value, str) else None
        for body in (
            {"topic": PROFILE, "profile": profile},
            {"topic": PROFILE, "profile": "strict", "tier": [value]},
            {"topic": CAPACITY, "capacity": value if value != 7 else "7"},
            {"topic": STANDBY, "workers": value if value != 7 else 65},
        ):
            await store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", {"kind": CONFIG, **body})])
        assert (config.profile, config.tier_profiles, config.capacity) == ("worker", {}, None)
        assert config.standby is None
        await store.close()

    asyncio.run(run())


@pytest.mark.parametrize("transport", [None, 7, ["sandboxed"], {"sandboxed": True}, True])
def test_a_value_that_is_no_string_in_an_old_log_reads_as_the_default(
    tmp_path: Path, transport: object
) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "hub.db")
        config = await Config.follow(store, today)
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
        config = await Config.follow(store, today)
        body = {"topic": TRANSPORT, "transport": "sandboxed", **({"kind": kind} if kind else {})}
        await store.append([Draft(thread, ENGINE, "LEARN", body)])
        assert config.transport == "in_process"
        assert (await Config.follow(store, today)).transport == "in_process"
        await store.close()

    asyncio.run(run())


@pytest.mark.claim("T2", "K5")
def test_what_anyone_else_has_on_the_configurations_thread_configures_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            for said in ({"topic": TRANSPORT, "transport": "sandboxed"}, {"topic": RULE, **A_RULE}):
                body = {"kind": CONFIG, **said}
                await here.store.append([Draft(CONFIG_THREAD, OPERATOR, "LEARN", body)])
            assert here.kernel.config.transport == "in_process"
            assert here.kernel.config.rules.listed() == []

    asyncio.run(run())


# --- permission rules ---


@pytest.mark.claim("K4")
def test_the_newest_record_of_each_rules_name_is_in_force_now_and_after_a_restart(tmp_path: Path) -> None:
    def listed(config: Config) -> list[tuple[str, str, int, bool]]:
        rules = [rule for rule, _ in config.rules.listed()]
        return [(rule.name, rule.action, rule.priority, rule.enabled) for rule in rules]

    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.rule("one", "true", priority=1)
            await here.rule("two", "false", priority=2)
            await here.rule("three", "false", priority=3)
            await here.rule("one", "false", action="allow", priority=4)
            await here.rule("three", None)
            off = {"name": "two", "action": "deny", "priority": 2, "expression": "false", "enabled": False}
            await here.say(topic=RULE, **off)
            in_force = [("one", "allow", 4, True), ("two", "deny", 2, False)]
            assert listed(here.kernel.config) == in_force
        async with instance(tmp_path) as again:
            assert listed(again.kernel.config) == in_force

    asyncio.run(run())


@pytest.mark.claim("K4")
@pytest.mark.parametrize(
    "change",
    [
        {"name": None},
        {"name": ["r"]},
        {"expression": ["true"]},
    ],
)
def test_a_rule_in_the_log_that_could_not_be_written_now_changes_nothing(
    tmp_path: Path, change: dict[str, object]
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.rule("r", "true")
            body = {"kind": CONFIG, "topic": RULE, **A_RULE, "expression": "false", **change}
            await here.store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", body)])
            assert [rule.expression for rule, _ in here.kernel.config.rules.listed()] == ["true"]

    asyncio.run(run())


@pytest.mark.claim("K4", "K8")
@pytest.mark.parametrize("change", [{"action": "ask"}, {"priority": "1"}, {"priority": True}])
def test_a_rule_of_a_later_release_denies_what_it_matches_and_is_asked_first(
    tmp_path: Path, change: dict[str, object]
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.rule("s", "true", action="allow", priority=9)
            body = {"kind": CONFIG, "topic": RULE, **A_RULE, "priority": 10, **change}
            await here.store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", body)])
            first, _ = here.kernel.config.rules.listed()[0]
            assert (first.name, first.action) == (A_RULE["name"], "deny")

    asyncio.run(run())


@pytest.mark.claim("K4")
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": ...}, MissingField),
        ({"action": ...}, MissingField),
        ({"priority": ...}, MissingField),
        ({"expression": ...}, MissingField),
        ({"name": ""}, InvalidBody),
        ({"name": "-r"}, InvalidBody),
        ({"name": "a rule"}, InvalidBody),
        ({"name": "r" * 65}, InvalidBody),
        ({"name": 7}, InvalidBody),
        ({"action": "permit"}, InvalidBody),
        ({"action": ["deny"]}, InvalidBody),
        ({"priority": 1.0}, InvalidBody),
        ({"priority": True}, InvalidBody),
        ({"priority": 1_000_001}, InvalidBody),
        ({"enabled": "no"}, InvalidBody),
        ({"enabled": None}, InvalidBody),
        ({"expression": 7}, InvalidBody),
        ({"tier": "trial"}, InvalidBody),
        ({"expression": ""}, ExpressionInvalid),
        ({"expression": "resource =="}, ExpressionInvalid),
        ({"expression": "resource"}, ExpressionInvalid),
        ({"expression": "tool == 'bash'"}, ExpressionInvalid),
    ],
)
def test_a_rule_that_could_decide_nothing_or_something_else_is_refused_and_not_written(
    tmp_path: Path, change: dict[str, object], error: type[SplError]
) -> None:
    async def run() -> None:
        said = {name: value for name, value in {**A_RULE, **change}.items() if value is not ...}
        async with instance(tmp_path) as here:
            with pytest.raises(error) as refused:
                await here.say(topic=RULE, **said)
            assert type(refused.value) is error
            assert await here.store.count() == 0
            assert here.kernel.config.rules.listed() == []

    asyncio.run(run())


async def _written(here: Instance, *rules: tuple[str, str]) -> None:
    """Put rules on the log at once, as if they had been written one by one."""
    bodies = [
        {"kind": CONFIG, "topic": RULE, **A_RULE, "name": name, "expression": said} for name, said in rules
    ]
    await here.store.append([Draft(CONFIG_THREAD, ENGINE, "LEARN", body) for body in bodies])


def test_there_may_be_so_many_rules_and_one_that_is_there_can_still_be_replaced_or_taken_away(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await _written(here, *((f"r{n}", "false") for n in range(MOST_RULES - 1)))
            off = {**A_RULE, "name": "last", "enabled": False}
            await here.say(topic=RULE, **off)
            with pytest.raises(InvalidBody, match="there are 1000 permission rules, and 1000 is the most"):
                await here.rule("more", "true")
            await here.say(topic=RULE, **off)
            await here.rule("r0", "true")
            await here.rule("r1", None)
            await here.rule("more", "true")
            assert len(here.kernel.config.rules.listed()) == MOST_RULES

    asyncio.run(run())


def test_of_many_rules_that_are_written_at_once_only_as_many_are_taken_as_there_may_be(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await _written(here, *((f"r{n}", "false") for n in range(MOST_RULES - 1)))
            before = await here.store.count()
            writes = [here.rule(f"new{n}", "true") for n in range(40)]
            answers = await asyncio.gather(*writes, return_exceptions=True)
            assert sum(isinstance(answer, InvalidBody) for answer in answers) == 39
            assert len(here.kernel.config.rules.listed()) == MOST_RULES
            assert await here.store.count() == before + 1

    asyncio.run(run())


def test_all_expressions_together_may_be_so_long_and_one_can_still_be_replaced_by_none_that_is_longer(
    tmp_path: Path,
) -> None:
    def of(length: int) -> str:
        return "true //" + "x" * (length - 7)

    async def run() -> None:
        async with instance(tmp_path) as here:
            full = MOST_EXPRESSIONS // LONGEST
            await _written(here, *((f"r{n}", of(LONGEST)) for n in range(full - 1)))
            await here.rule("last", of(LONGEST - 4))
            said = f"would have {MOST_EXPRESSIONS + 1} characters, and {MOST_EXPRESSIONS} is the most"
            with pytest.raises(InvalidBody, match=said):
                await here.rule("more", "!true")
            await here.rule("more", "true")
            with pytest.raises(InvalidBody, match=said):
                await here.rule("last", of(LONGEST - 3))
            await here.rule("r0", of(LONGEST))
            await here.rule("r1", None)
            await here.rule("last", of(LONGEST - 3))
            # Of a log that holds more already, as much may stay.
            await _written(here, ("r1", of(LONGEST)), ("r256", of(LONGEST)))
            await here.rule("r0", of(LONGEST))
            with pytest.raises(InvalidBody, match="1048576 is the most"):
                await here.rule("more", "!true")

    asyncio.run(run())


# --- bodies ---


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
        ({"topic": STANDBY}, MissingField),
        ({"topic": STANDBY, "workers": 65}, InvalidBody),
        ({"topic": STANDBY, "workers": True}, InvalidBody),
        ({"topic": STANDBY, "workers": 2, "profile": "worker"}, InvalidBody),
    ],
)
def test_a_body_that_configures_nothing_is_refused(body: dict[str, Any], error: type[SplError]) -> None:
    with pytest.raises(error):
        check({"kind": CONFIG, **body})
