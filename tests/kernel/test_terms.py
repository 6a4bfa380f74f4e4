from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import InvalidBody, ProfileInvalid, RunActorNotCovered, ScopeDenied, SplError
from spl.kernel import names
from spl.kernel.opening import opening
from spl.kernel.outcome import Ending
from spl.kernel.principals import Principal
from spl.kernel.terms import Start
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MEMBERS,
    MIA,
    NOTE,
    OPERATOR,
    TRANSPORT,
    Instance,
    call,
    calls,
    carry_out,
    instance,
    says,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.terms import Terms

CLEAN = Ending(clean=True)
EVERYONES = ("record_note", "read_thread", "calculate")
DATA = ("read_file", "write_file", "list_dir", "search")
HOST = ("bash", "host_read_file", "host_write_file", "host_list_dir", "host_search")


def terms(here: Instance, principal: Principal = ADMINISTRATOR, **asked: Any) -> Terms:
    return here.kernel.terms(principal, Start(**{"goal": "a goal", **asked}))


@pytest.mark.claim("T1")
def test_the_transport_follows_from_whom_the_run_is_for_not_from_who_asks(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            assert terms(here).transport == "in_process"
            assert terms(here, actor=OPERATOR).transport == "in_process"
            assert terms(here, actor=MEMBER).transport == "sandboxed"
            assert terms(here, MIA).transport == "sandboxed"
            await here.configure(TRANSPORT, "sandboxed")
            await here.configure(MEMBERS, "in_process")
            assert terms(here).transport == "sandboxed"
            assert terms(here, actor=MEMBER).transport == "in_process"

    asyncio.run(run())


@pytest.mark.claim("T1", "T6")
def test_what_was_decided_at_the_start_stands_when_the_configuration_changes(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path, NOTE, says("Done.")) as here:
            runs = [await here.open(actor=OPERATOR), await here.open(actor=MEMBER)]
            await here.configure(TRANSPORT, "sandboxed")
            await here.configure(MEMBERS, "in_process")
            for each, transport in zip(runs, ("in_process", "sandboxed"), strict=True):
                assert each.terms.transport == transport
                assert (await here.kernel.rows.row(each.terms.thread))["transport"] == transport
                await turn(each)
                await here.kernel.finish(each, CLEAN)
                (outcome,) = await here.bodies(each.terms.thread, names.OUTCOME)
                assert outcome["transport"] == transport

    asyncio.run(run())


@pytest.mark.claim("B1")
def test_the_row_shows_the_ceiling_that_the_run_holds(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            assert opened.terms.ceilings.budget_usd is not None
            assert (await here.kernel.rows.row(opened.terms.thread))["budget_usd"] == 0.25
            await here.configure(TRANSPORT, "sandboxed")
            own = await here.open(actor=OPERATOR)
            assert (await here.kernel.rows.row(own.terms.thread))["budget_usd"] == 5.0
            for each, budget in ((opened, 0.25), (own, 5.0)):
                await here.kernel.finish(each, CLEAN)
                assert (await here.kernel.rows.row(each.terms.thread))["budget_usd"] == budget

    asyncio.run(run())


def test_a_profile_belongs_to_a_sandboxed_run_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            assert terms(here).profile is None
            assert (terms(here, actor=MEMBER).profile, terms(here, actor=MEMBER).tier) == ("worker", "trial")

    asyncio.run(run())


def test_a_sandboxed_run_gets_the_profile_of_its_tier_before_that_of_all(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            await here.configure(TRANSPORT, "sandboxed")
            await here.say(topic="work_loop_profile", profile="strict")
            assert (terms(here).profile, terms(here, actor=MEMBER).profile) == ("strict", "strict")
            await here.say(topic="work_loop_profile", profile="small", tier="operator")
            assert (terms(here).profile, terms(here, actor=MEMBER).profile) == ("small", "strict")

    asyncio.run(run())


def test_a_run_in_flight_keeps_its_profile(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            await here.say(topic="work_loop_profile", profile="strict")
            assert (await here.kernel.rows.row(opened.terms.thread))["profile"] == "worker"

    asyncio.run(run())


@pytest.mark.claim("I4")
def test_anchor_and_receipt_bear_the_same_digest_of_the_profile(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            opened = await here.open()
            (anchor,) = await here.bodies(opened.terms.thread, names.LOOP)
            (receipt,) = await here.bodies(opened.terms.thread, names.ISOLATION)
            assert anchor["profile_digest"] == receipt["profile_digest"] == "d" * 64
            own = await here.open(actor=OPERATOR)
            (anchor,) = await here.bodies(own.terms.thread, names.LOOP)
            assert (anchor["profile"], anchor["profile_digest"]) == (None, None)

    asyncio.run(run())


def test_a_profile_that_cannot_be_used_is_refused_when_it_is_chosen_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            with pytest.raises(ProfileInvalid, match="no profile 'wroker'"):
                await here.say(topic="work_loop_profile", profile="wroker")
            assert await here.store.count() == 0
            assert here.kernel.config.profile == "worker"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("principal", "asked", "error"),
    [
        (Principal(MEMBER, frozenset()), {}, ScopeDenied),
        (MIA, {"actor": OPERATOR}, RunActorNotCovered),
        (ADMINISTRATOR, {"actor": names.ENGINE}, InvalidBody),
        (ADMINISTRATOR, {"actor": "did:sync:user:.."}, InvalidBody),
        (ADMINISTRATOR, {"tools": ("record_note", "Calculate")}, InvalidBody),
        (ADMINISTRATOR, {"forbidden_tools": ("Bash",)}, InvalidBody),
    ],
)
def test_a_start_that_may_not_be_is_refused(
    tmp_path: Path, principal: Principal, asked: dict[str, Any], error: type[SplError]
) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            with pytest.raises(error):
                terms(here, principal, **asked)
            assert await here.store.count() == 0

    asyncio.run(run())


# --- tools ---


@pytest.mark.claim("N1", "N2", "N3", "N4")
@pytest.mark.parametrize(
    ("actor", "host_tools", "transport", "reach", "withheld"),
    [
        (MEMBER, True, "sandboxed", EVERYONES, DATA),
        (MEMBER, False, "sandboxed", EVERYONES, DATA),
        (MEMBER, True, "in_process", EVERYONES + DATA, ()),
        (MEMBER, False, "in_process", EVERYONES + DATA, ()),
        (OPERATOR, True, "sandboxed", EVERYONES, DATA + HOST),
        (OPERATOR, False, "sandboxed", EVERYONES, DATA),
        (OPERATOR, True, "in_process", EVERYONES + DATA + HOST, ()),
        (OPERATOR, False, "in_process", EVERYONES + DATA, ()),
    ],
)
def test_a_run_has_its_grant_but_what_its_transport_withholds_and_says_so_in_three_places(
    tmp_path: Path,
    actor: str,
    host_tools: bool,
    transport: str,
    reach: tuple[str, ...],
    withheld: tuple[str, ...],
) -> None:
    async def run() -> None:
        async with instance(tmp_path, host_tools=host_tools) as here:
            for topic in (TRANSPORT, MEMBERS):
                await here.configure(topic, transport)
            opened = await here.open(actor=actor)
            assert opened.terms.transport == transport
            (anchor,) = await here.bodies(opened.terms.thread, names.LOOP)
            row = await here.kernel.rows.row(opened.terms.thread)
            for said in (anchor, row):
                assert set(said["tools"]) == set(reach)
                assert said["narrowed"] == sorted(withheld)
            contract = await opened.door("run", {})
            assert {tool["name"] for tool in contract["tools"]} == set(reach)
            told = contract["opening"][0]["content"]
            assert [name for name in sorted(DATA + HOST) if name in told.replace(",", "").split()] == sorted(
                withheld
            )
            if withheld:
                assert f"where it runs, {', '.join(sorted(withheld))} are withheld" in told

    asyncio.run(run())


@pytest.mark.claim("N2", "N3")
def test_only_what_the_request_left_of_the_grant_counts_as_withheld(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            for asked, tools, narrowed in (
                (("search", "record_note", "read_file"), ("record_note",), ("read_file", "search")),
                (("calculate", "record_note"), ("record_note", "calculate"), ()),
                (("search",), (), ("search",)),
                ((), (), ()),
            ):
                found = terms(here, MIA, tools=asked)
                assert (found.tools, found.narrowed) == (tools, narrowed)
                told = opening(found)[0]["content"]
                assert [name for name in sorted(DATA) if name in told.replace(",", "").split()] == [*narrowed]
            own = terms(here, tools=("bash", "calculate"))
            assert (own.tools, own.narrowed) == (("calculate", "bash"), ())

    asyncio.run(run())


@pytest.mark.claim("N4")
@pytest.mark.parametrize("name", HOST)
@pytest.mark.parametrize(
    ("actor", "host_tools", "transport"),
    [
        (MEMBER, True, "in_process"),
        (MEMBER, True, "sandboxed"),
        (OPERATOR, False, "in_process"),
        (OPERATOR, False, "sandboxed"),
    ],
)
def test_a_tool_of_the_host_cannot_be_asked_for_by_whom_it_is_not_granted(
    tmp_path: Path, actor: str, host_tools: bool, transport: str, name: str
) -> None:
    async def run() -> None:
        async with instance(tmp_path, host_tools=host_tools) as here:
            for topic in (TRANSPORT, MEMBERS):
                await here.configure(topic, transport)
            await here.give(MEMBER, "team")
            with pytest.raises(InvalidBody, match=f"the tool '{name}' is not granted"):
                terms(here, actor=actor, tools=(name,))

    asyncio.run(run())


@pytest.mark.claim("T1", "N4")
@pytest.mark.parametrize(
    "actor", ["did:sync:agent:op", "did:sync:user:OP", "did:sync:user:op-", "did:sync:user:o"]
)
def test_a_name_that_is_nearly_the_operators_makes_no_operator(tmp_path: Path, actor: str) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            found = terms(here, actor=actor)
            assert (found.tier, found.transport, found.tools) == ("trial", "sandboxed", EVERYONES)
            await here.configure(MEMBERS, "in_process")
            assert terms(here, actor=actor).tools == (*EVERYONES, *DATA)

    asyncio.run(run())


@pytest.mark.claim("N1", "N4")
@pytest.mark.parametrize("host_tools", [True, False])
def test_a_run_has_nothing_behind_it_but_what_its_grant_is_about(tmp_path: Path, host_tools: bool) -> None:
    async def run() -> None:
        async with instance(tmp_path, host_tools=host_tools) as here:
            for transport in ("in_process", "sandboxed"):
                await here.configure(TRANSPORT, transport)
                await here.configure(MEMBERS, transport)
                for actor in (OPERATOR, MEMBER, "did:sync:agent:op"):
                    behind = (await here.open(actor=actor)).context
                    inside = transport == "in_process"
                    assert (behind.data is not None) is inside
                    assert (behind.host is not None) is (inside and host_tools and actor == OPERATOR)

    asyncio.run(run())


@pytest.mark.claim("K2")
def test_a_run_clamps_itself_by_the_names_of_tools_whether_granted_or_not(tmp_path: Path) -> None:
    async def run() -> None:
        async with instance(tmp_path) as here:
            found = terms(here, MIA, forbidden_tools=("record_note", "bash", "record_note"))
            assert found.forbidden == ("bash", "record_note")
            # What is forbidden stays in its reach: its calls are answered by the clamp, not by the grant.
            assert found.tools == EVERYONES

    asyncio.run(run())


# --- what the data plane's tools do in process ---


def test_a_members_run_in_process_reads_and_writes_the_data_folder_its_own_part_alone(tmp_path: Path) -> None:
    async def run() -> None:
        files = calls(
            call("write_file", "c1", path="members/mia/notes", content="hers"),
            call("read_file", "c2", path="members/mia/notes"),
            call("write_file", "c3", path="members/ned/notes", content="hers"),
            call("write_file", "c4", path="shared", content="hers"),
            call("read_file", "c5", path="members/ned/own"),
            call("read_file", "c6", path="readme"),
            call("read_file", "c7", path="../hub.db"),
        )
        async with instance(tmp_path, files, says("Done.")) as here:
            data = tmp_path / "data"
            (data / "members/ned").mkdir(parents=True)
            (data / "members/ned/own").write_text("ned's")
            (data / "readme").write_text("for all")
            await here.configure(MEMBERS, "in_process")
            opened = await here.open(actor=MEMBER)
            await carry_out(opened)
            results = await here.bodies(opened.terms.thread, names.TOOL_RESULT)
            said = {each["call_id"]: (each["status"], each["output"]) for each in results}
            assert {name for name, (status, _) in said.items() if status == "ok"} == {"c1", "c2", "c6"}
            assert (said["c2"][1], said["c6"][1]) == ("hers", "for all")
            assert (data / "members/mia/notes").read_text() == "hers"
            assert not (data / "shared").exists()
            assert not (data / "members/ned/notes").exists()
            assert "ned's" not in str(said)

    asyncio.run(run())


@pytest.mark.claim("N4")
def test_the_operators_run_in_process_reads_and_writes_the_data_folder_and_the_host(tmp_path: Path) -> None:
    async def run() -> None:
        outside = tmp_path / "outside"
        files = calls(
            call("write_file", "c1", path="members/ned/notes", content="from the operator"),
            call("host_write_file", "c2", path=str(outside), content="written"),
            call("host_read_file", "c3", path=str(outside)),
            call("bash", "c4", command=f"cat {outside}; echo and run"),
        )
        async with instance(tmp_path, files) as here:
            opened = await here.open(actor=OPERATOR)
            await carry_out(opened)
            results = await here.bodies(opened.terms.thread, names.TOOL_RESULT)
            assert [each["status"] for each in results] == ["ok"] * 4
            assert results[2]["output"] == "written"
            assert "written" in results[3]["output"]
            assert "and run" in results[3]["output"]
            assert (tmp_path / "data/members/ned/notes").read_text() == "from the operator"

    asyncio.run(run())
