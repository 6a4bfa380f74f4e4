from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from spl.loop import tools as sandboxed
from spl.tools.data import DataPlane
from spl.tools.registry import TOOLS, Context, Domain

if TYPE_CHECKING:
    from pathlib import Path

    from spl.records.record import Record
    from spl.tools.mediated import Result

DATA = ("read_file", "write_file", "list_dir", "search")
HOST = ("bash", "host_read_file", "host_write_file", "host_list_dir", "host_search")


class Nobody:
    """A reader that may read nothing."""

    async def read(self, thread: str, since: int, limit: int) -> list[Record]:
        return []


async def use(name: str, context: Context, **arguments: object) -> Result:
    tool = TOOLS[name]
    assert tool.run is not None
    return await tool.run(context, arguments)


def test_each_tool_is_known_by_its_own_name_and_told_in_full() -> None:
    for name, tool in TOOLS.items():
        wire = tool.wire()
        assert wire == {
            "name": name,
            "description": tool.description,
            "parameters": tool.parameters,
            "domain": tool.domain.value,
        }
        assert type(wire["domain"]) is str
        assert tool.description
        assert tool.parameters["additionalProperties"] is False
        assert set(tool.parameters["required"]) <= set(tool.parameters["properties"])


@pytest.mark.claim("K1", "N4")
def test_each_tool_of_the_contract_is_run_where_its_domain_says() -> None:
    found = {name: (str(tool.domain), tool.host) for name, tool in TOOLS.items()}
    assert found == {
        "record_note": ("mediated", False),
        "read_thread": ("mediated", False),
        "calculate": ("sandboxed", False),
        **dict.fromkeys(DATA, ("kernel-trust-domain", False)),
        **dict.fromkeys(HOST, ("kernel-trust-domain", True)),
    }
    assert {name for name, tool in TOOLS.items() if tool.run is None} == set(sandboxed.SCHEMAS)


def test_a_trusting_domain_stands_above_one_that_trusts_less() -> None:
    assert list(Domain) == [Domain.SANDBOXED, Domain.MEDIATED, Domain.KERNEL_TRUST]


@pytest.mark.claim("N1", "N4")
@pytest.mark.parametrize("name", [*DATA, *HOST])
def test_a_tool_of_the_kernels_trust_has_nothing_to_work_on_in_a_run_that_was_given_nothing(
    name: str,
) -> None:
    arguments = {"path": "x", "text": "x", "content": "x", "command": "id"}
    result = asyncio.run(use(name, Context(Nobody()), **arguments))
    assert (result.status, result.output) == ("error", f"this run has nothing that {name} could work on")


def test_the_data_planes_tools_work_on_its_folder(tmp_path: Path) -> None:
    context = Context(Nobody(), data=DataPlane(tmp_path, label="mia"))

    async def done(name: str, **arguments: object) -> str:
        result = await use(name, context, **arguments)
        assert result.status == "ok", result.output
        return result.output

    async def run() -> None:
        await done("write_file", path="members/mia/notes", content="one\ntwo")
        assert (tmp_path / "members/mia/notes").read_text() == "one\ntwo"
        assert await done("read_file", path="members/mia/notes") == "one\ntwo"
        assert "notes" in await done("list_dir", path="members/mia")
        assert "two" in await done("search", path=".", text="two")

    asyncio.run(run())
