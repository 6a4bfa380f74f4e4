"""Scenarios of a worker that has been entrusted: a whole run at scripted doors, or something else in its place."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bwrap import host as hosts
from bwrap.library import Library
from bwrap.plan import Places, resolve
from spl.transports import image as images
from tests.bwrap.stage import examine

if TYPE_CHECKING:
    from bwrap.confined import Confined
    from tests.bwrap.stage import Stage

GIVEN = b'{"credential": "c0ffee-c0ffee"}\n'

# The answers to a run of one turn with a call of each domain, then a reply.
ANSWERS: list[tuple[str, dict[str, Any]]] = [
    (
        "run",
        {
            "opening": [{"role": "user", "content": "Go."}],
            "mark": "ab12",
            "tools": [
                {"name": "calculate", "domain": "sandboxed"},
                {"name": "record_note", "domain": "mediated"},
            ],
        },
    ),
    (
        "infer",
        {
            "reply": {
                "text": "",
                "calls": [
                    {"id": "c1", "name": "calculate", "arguments": {"expression": "6 * 7.5e0 // 2 ** 0.5"}},
                    {"id": "c2", "name": "record_note", "arguments": {"text": "x" * 100_000}},
                ],
            }
        },
    ),
    ("propose", {"decision": "allow", "observations": []}),
    ("records", {"id": "r", "observations": []}),
    ("propose", {"decision": "allow", "observations": []}),
    ("call", {"status": "ok", "output": "noted " * 50_000, "observations": ["Seen."]}),
    ("infer", {"reply": {"text": "Done.", "calls": []}}),
]


async def does(stage: Stage, source: str, extra: str = "") -> dict[str, Any]:
    """Have a worker do something of a test's instead of its run; give what it said on standard error and its exit.

    `source` is the body of a function that gives a JSON value; `extra` are lines of a profile that extends worker.
    """
    body = "\n".join(f"    {line}" for line in source.strip().splitlines())
    changes = f"def _asked():\n{body}\ndef _drive(doors):\n    _write(2, json.dumps(_asked()))\n"
    worker = await stage.launch(stage.plan(extra=extra), stage.image(changes))
    worker.entrust(GIVEN)
    return await _ended(worker)


async def runs(stage: Stage, python: str = "", profile: str = "worker", extra: str = "") -> dict[str, Any]:
    """Give a whole run to a worker, of another interpreter if one is named; give the doors it went through too.

    `extra` are lines of a profile that extends the one that is named.
    """
    host = replace(examine(), python=hosts.examine_python(python)) if python else examine()
    plan = stage.plan(profile, extra)
    if python:
        plan = resolve(Library().load(profile), host, Places(stage.home, f"{stage.folder}/w"))
    with closing(images.seal(host.python)) as image:
        worker = await stage.launch(plan, image)
    visited: list[str] = []

    async def doors(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                visited.append(head.split()[1].rpartition("/")[2])
                if length := re.search(r"\r\nContent-Length: (\d+)", head):
                    await reader.readexactly(int(length[1]))
                door, answer = ANSWERS[len(visited) - 1]
                body = json.dumps(answer).encode()
                said = (
                    f"HTTP/1.1 {200 if visited[-1] == door else 404} \r\nContent-Length: {len(body)}\r\n\r\n"
                )
                writer.write(said.encode() + body)
                await writer.drain()
        finally:
            writer.close()

    async with await asyncio.start_unix_server(doors, sock=stage.listener):
        worker.entrust(GIVEN)
        ended = await _ended(worker)
    return {
        **ended,
        "visited": visited,
        "layers": [layer.layer for layer in worker.receipt.layers],
        "shape": str(worker.process.shape),
        "version": host.python.version,
    }


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError as end:
        return end.partial.decode()


async def _ended(worker: Confined) -> dict[str, Any]:
    ended = await worker.wait()
    return {"code": ended.code, "signal": ended.signal, "said": worker.stderr}
