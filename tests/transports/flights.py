"""Runs in flight with real workers, played in a child of each shape: what becomes of them, and what they may."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from bwrap import host as hosts
from bwrap import uids
from bwrap.confined import Confined
from bwrap.host import Shape
from spl.client import Client
from spl.daemon import assemble
from spl.errors import AdmissionCeiling, DaemonStopping, RunFinished
from spl.kernel import names
from spl.kernel.opening import mark
from spl.kernel.outcome import STOPPED, Ending
from spl.kernel.terms import Start
from spl.settings import load
from spl.transports.starting import Room
from tests.end_to_end import scripts
from tests.kernel.instance import (
    ADMINISTRATOR,
    MEMBER,
    MEMBERS,
    NOTE,
    OPERATOR,
    TRANSPORT,
    Gated,
    Hanging,
    Listening,
    call,
    calls,
    chained,
    replies_of,
    says,
    short,
)
from tests.transports.starts import GRACE, SECONDS, THEIRS, all_free, keeping, sandboxing

if TYPE_CHECKING:
    from pathlib import Path

    from spl.kernel.runs import Run
    from spl.transports.sandboxed import Worker
    from tests.transports.starts import Patch

MINE = Start(goal="a goal", wall_clock_secs=SECONDS)
DATA = ["list_dir", "read_file", "search", "write_file"]
HOST = ["bash", "host_list_dir", "host_read_file", "host_search", "host_write_file"]


def gone(worker: Worker) -> None:
    """Fail if anything of a worker is left: a process, a zombie, or its uid in use."""
    assert not worker.confined.alive
    assert not os.path.exists(f"/proc/{worker.pid}")
    with pytest.raises(ChildProcessError):
        # Neither a living nor a dead child of any kind.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if hosts.shape() is Shape.HOSTED:
        assert not uids.in_use(worker.uid)


# --- flips ---


async def flipped(tmp_path: Path, patch: Patch) -> None:
    """Flip both keys, forth and back, while runs go on that never end by themselves."""
    async with sandboxing(tmp_path, provider=Hanging()) as (here, sandbox, transports):
        await here.give(MEMBER, "paid")
        made = keeping(sandbox, patch)
        runs = [await transports.start(ADMINISTRATOR, each) for each in (MINE, THEIRS)]
        await here.configure(TRANSPORT, "sandboxed")
        await here.configure(MEMBERS, "in_process")
        runs += [await transports.start(ADMINISTRATOR, each) for each in (MINE, THEIRS)]
        await here.configure(TRANSPORT, "in_process")
        await here.configure(MEMBERS, "sandboxed")

        async def now() -> list[str]:
            return [(await here.kernel.rows.row(run.terms.thread))["transport"] for run in runs]

        kept = ["in_process", "sandboxed", "sandboxed", "in_process"]
        assert await now() == kept
        assert [worker.confined.alive for worker in made] == [True, True]
        assert len(here.kernel.live) == 4
        await transports.stop()
        assert await now() == kept
        outcomes = [(await here.bodies(run.terms.thread, names.OUTCOME))[0] for run in runs]
        assert [each["transport"] for each in outcomes] == kept
        killed = {"signal": "SIGKILL"}
        assert [each["exit"] for each in outcomes] == [None, killed, killed, None]
        for worker in made:
            gone(worker)


# --- stops ---


async def stopped(tmp_path: Path, patch: Patch, during: str) -> None:
    """Stop a run while its model call goes on: one that asks for a call then, for none, or one that never ends."""
    reply = NOTE if during == "a call" else says("Done.")
    provider = Gated(replies_of(tmp_path, reply))
    grace = 0.1 if during == "for ever" else GRACE
    async with sandboxing(tmp_path, provider=provider, run_grace=grace) as (here, sandbox, transports):
        made, finish, endings = keeping(sandbox, patch), here.kernel.finish, list[Ending]()

        async def finishing(run: Run, ending: Ending) -> None:
            endings.append(ending)
            await finish(run, ending)

        patch.setattr(here.kernel, "finish", finishing)
        run = await transports.start(ADMINISTRATOR, THEIRS)
        thread = run.terms.thread
        await provider.asked.wait()
        for _ in range(2):
            await here.kernel.stop(ADMINISTRATOR, thread)
        if during != "for ever":
            provider.released.set()
        await asyncio.gather(*transports._runs)
        # Not at its wall clock: by itself, or at the end of its grace.
        assert [each.cause for each in endings] == ["stop" if during == "for ever" else None]
        records = await here.on(thread)
        outcome = records[-1].body
        assert (outcome["outcome"], outcome["state"]) == ("cancelled", "stopped")
        assert outcome["summary"] == f"Stopped by {OPERATOR}."
        assert outcome["exit"] == ({"signal": "SIGKILL"} if during == "for ever" else {"code": 0})
        assert (await here.kernel.rows.row(thread))["state"] == "stopped"
        verdicts = [record.body for record in records if record.kind == names.TOOL_VERDICT]
        expected = [("stop", "stop")] if during == "a call" else []
        assert [(each["decision"], each["layer"]) for each in verdicts] == expected
        assert await here.bodies(thread, names.TOOL_RESULT) == []
        assert chained(records)
        gone(made[0])
        assert all_free(here)
        assert here.kernel.usage.refusals(MEMBER, here.kernel.tier_of(MEMBER)) == []
        with pytest.raises(RunFinished):
            await here.kernel.stop(ADMINISTRATOR, thread)


# --- drains ---


async def drained(tmp_path: Path, patch: Patch) -> None:
    """Drain while one worker waits for its model, another is being made, and none may be started."""
    provider = Gated(replies_of(tmp_path, NOTE))
    async with sandboxing(tmp_path, provider=provider) as (here, sandbox, transports):
        await here.give(MEMBER, "paid")
        drains = list[asyncio.Task[None]]()
        run = await transports.start(ADMINISTRATOR, THEIRS)
        await provider.asked.wait()

        async def stopping() -> None:
            await transports.drain(SECONDS, asyncio.Event())

        # Confirmed, and with no run yet, when the daemon is told to stop.
        made = keeping(sandbox, patch, lambda _: drains.append(asyncio.create_task(stopping())))
        look_again = Confined.look_again

        def late(confined: Confined) -> None:
            transports._stopped.set()
            look_again(confined)

        patch.setattr(Confined, "look_again", late)
        with pytest.raises(DaemonStopping):
            await transports.start(ADMINISTRATOR, THEIRS)
        assert not made[0].confined.alive
        assert run.terms.thread in here.kernel.live
        provider.released.set()
        await drains[0]
        records = await here.on(run.terms.thread)
        outcome = records[-1].body
        # By itself, and long before its time was up.
        assert (outcome["outcome"], outcome["exit"]) == ("failed", {"code": 0})
        assert outcome["summary"] == STOPPED.summary
        verdicts = [record.body for record in records if record.kind == names.TOOL_VERDICT]
        assert [(each["decision"], each["layer"]) for each in verdicts] == [("stop", "stop")]
        assert chained(records)
        assert len(await here.store.select(kind=names.LOOP)) == 1
        gone(made[0])
        assert all_free(here)
        # Of a profile that nobody has asked for, nothing is looked up any more.
        sandbox.plans.stop()
        assert (await transports.room("worker")).capacity == 2
        assert await transports.room("strict") == Room(0, 0, 0)
        await here.say(topic="work_loop_profile", profile="strict")
        said = await transports.preview(ADMINISTRATOR, THEIRS)
        assert [each["code"] for each in said["refusals"]] == ["DAEMON_STOPPING"]


# --- previews ---


async def previewed(tmp_path: Path, patch: Patch) -> None:
    """Preview a member's start where it can be had, and where there is no place."""
    async with sandboxing(tmp_path) as (here, sandbox, transports):
        made = keeping(sandbox, patch)
        first = await transports.preview(ADMINISTRATOR, THEIRS)
        assert (first["transport"], first["profile"], first["narrowed"]) == ("sandboxed", "worker", DATA)
        assert first["admission"] == {"admission_capacity": 2, "admission_available": 2}
        assert (first["would_start"], first["refusals"]) == (True, [])
        slots = [here.kernel.admission.take(1, OPERATOR) for _ in range(2)]
        second = await transports.preview(ADMINISTRATOR, THEIRS)
        assert second["admission"] == {"admission_capacity": 2, "admission_available": 0}
        assert [each["code"] for each in second["refusals"]] == ["ADMISSION_CEILING"]
        assert second["would_start"] is False
        with pytest.raises(AdmissionCeiling) as error:
            await transports.start(ADMINISTRATOR, THEIRS)
        # The very refusal that a start meets.
        assert second["refusals"] == [error.value.wire()]
        for slot in slots:
            slot.release()
        assert (await transports.preview(ADMINISTRATOR, THEIRS))["would_start"]
        assert (made, here.kernel.live, await here.store.count()) == ([], {}, 0)
        assert all_free(here)


# --- what a run has, and what it is told ---


async def narrowed(tmp_path: Path, patch: Patch, actor: str) -> None:
    """Have a worker's model ask for a tool that is withheld, and for one that is not."""
    asked = calls(call(DATA[1], "c1", path="readme"), call("record_note", "c2", text="x"))
    provider = Listening(replies_of(tmp_path, asked, says("Done.")))
    async with sandboxing(tmp_path, provider=provider) as (here, _, transports):
        await here.configure(TRANSPORT, "sandboxed")
        (tmp_path / "data" / "readme").write_text("nothing of this reaches a worker")
        run = await transports.start(
            ADMINISTRATOR, Start(goal="a goal", actor=actor, wall_clock_secs=SECONDS)
        )
        await asyncio.gather(*transports._runs)
        own = actor == OPERATOR and hosts.shape() is Shape.SAME_USER
        withheld = sorted([*DATA, *(HOST if own else [])])
        (anchor,) = await here.bodies(run.terms.thread, names.LOOP)
        row = await here.kernel.rows.row(run.terms.thread)
        assert anchor["narrowed"] == row["narrowed"] == withheld
        heard = provider.requests[0]
        assert f"{', '.join(withheld)} are withheld" in heard.messages[0]["content"]
        assert [tool["name"] for tool in heard.tools] == ["record_note", "read_thread", "calculate"]
        verdicts = await here.bodies(run.terms.thread, names.TOOL_VERDICT)
        assert [each["layer"] for each in verdicts] == ["grant", "allow"]
        (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
        assert (outcome["outcome"], outcome["tool_calls_ok"], outcome["tool_calls_failed"]) == (
            "completed",
            1,
            1,
        )
        assert "nothing of this" not in str(provider.requests[-1].messages)


async def hosting(tmp_path: Path, patch: Patch) -> None:
    """Ask a daemon as `serve` makes it what its operator's runs would have."""
    flags = {"home": tmp_path / "home", "port": 0, "provider": scripts.write(tmp_path / "script")}
    async with AsyncExitStack() as stack:
        daemon = await assemble(load(flags, {}), stack, asyncio.Event())
        client = Client(str(daemon.home.operator_socket))
        said = {"goal": "x"}
        found: dict[str, Any] = await asyncio.to_thread(client.request, "POST", "/v1/work/loop/preview", said)
        assert found["transport"] == "in_process"
        has = [name for name in HOST if name in found["tools"]]
        assert has == (HOST if hosts.shape() is Shape.SAME_USER else [])
        assert [name for name in DATA if name in found["tools"]] == DATA


# --- long conversations ---


async def talkative(tmp_path: Path, patch: Patch) -> None:
    """Have a model say so much, on both transports, that it may not be told all of it again."""
    said = {**NOTE, "text": "é" * 400_000}
    found = []
    for transport in ("in_process", "sandboxed"):
        folder = tmp_path / transport
        folder.mkdir()
        provider = Listening(replies_of(folder, said, said, said, says("Done.")))
        async with sandboxing(folder, provider=provider) as (here, _, transports):
            await here.configure(MEMBERS, transport)
            run = await transports.start(ADMINISTRATOR, THEIRS)
            await asyncio.gather(*transports._runs)
            assert len(provider.requests) == 3
            (outcome,) = await here.bodies(run.terms.thread, names.OUTCOME)
            assert outcome["transport"] == transport
            found.append({name: outcome[name] for name in ("outcome", "summary", "turns", "tool_calls_ok")})
    assert found[0] == found[1]
    assert found[0] == {
        "outcome": "failed",
        "summary": "The conversation came to more than 1000000 characters, which is the most.",
        "turns": 3,
        "tool_calls_ok": 3,
    }


# --- observations ---

_NO = calls(call("record_note", text="no"))
_READ = calls(call("read_thread", thread="th_nothing"))
_SUM = calls(call("calculate", expression="6 * 7"))
_CUT_OFF = {**NOTE, "stop_reason": "length"}
_SCRIPT = (*[NOTE] * 3, *[_NO] * 3, *[_READ] * 3, *[_SUM] * 4, _CUT_OFF, says("Done."))


async def observed(tmp_path: Path, patch: Patch) -> None:
    """Play one script on both transports and compare what was observed, written and shown."""
    found = []
    for transport in ("in_process", "sandboxed"):
        folder = tmp_path / transport
        folder.mkdir()
        provider = Listening(replies_of(folder, *_SCRIPT))
        async with sandboxing(folder, provider=provider) as (here, _, transports):
            await here.give(MEMBER, "team")
            await here.configure(MEMBERS, transport)
            await here.rule("no-no", "resource == 'tool:record_note' && args.text == 'no'")
            run = await transports.start(ADMINISTRATOR, THEIRS)
            await asyncio.gather(*transports._runs)
            records = [each for each in await here.on(run.terms.thread) if each.kind != names.ISOLATION]
            assert records[0].body["transport"] == transport
            observations = [each.body for each in records if each.kind == names.OBSERVATION]
            said = [(each["rule"], each["text"], each["tool"], each["call_id"]) for each in observations]
            # Without the opening, which says what the transport withholds.
            messages = json.loads(
                json.dumps(provider.requests[-1].messages[1:]).replace(mark(run.terms), "MARK")
            )
            found.append((said, [short(each.kind) for each in records], messages))
            shown = [each["content"] for each in messages if each["role"] == "tool"]
            lines = [line for each in shown for line in each.splitlines() if line.startswith("[observation ")]
            assert lines == [f"[observation MARK] {text}" for _, text, _, _ in said]
    assert found[0] == found[1]
    assert [rule for rule, *_ in found[0][0]] == [
        *("repeated_call", "repeated_call", "empty_reread", "empty_reread", "repeated_call"),
        *("repeated_call", "repeated_call", "cut_off_call"),
    ]
