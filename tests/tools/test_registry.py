from __future__ import annotations

import pytest

from spl.loop import tools as sandboxed
from spl.tools.registry import TOOLS, Domain


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


@pytest.mark.claim("K1")
def test_the_kernel_runs_the_mediated_tools_and_no_other() -> None:
    assert {name for name, tool in TOOLS.items() if tool.run is not None} == {"record_note", "read_thread"}
    assert {name for name, tool in TOOLS.items() if tool.domain is Domain.MEDIATED} == {
        "record_note",
        "read_thread",
    }


def test_the_sandboxed_tools_are_those_of_the_loop() -> None:
    found = {name for name, tool in TOOLS.items() if tool.domain is Domain.SANDBOXED}
    assert found == set(sandboxed.SCHEMAS)


def test_no_tool_reaches_the_host() -> None:
    assert Domain.KERNEL_TRUST not in {tool.domain for tool in TOOLS.values()}
