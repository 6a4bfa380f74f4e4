"""What a model gave a tool, held against what it was told the tool takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def fault(tool: str, parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """Say in one sentence what is wrong with a call's arguments, or None; `parameters` are the tool's JSON Schema.

    Of JSON Schema this knows objects of strings and whole numbers, each within bounds that the schema names.
    """
    known, needed = parameters["properties"], parameters["required"]
    if not set(needed) <= set(arguments) <= set(known):
        takes = ", ".join(name if name in needed else f"{name} if wanted" for name in known)
        return f"{tool} takes {takes}, and no other argument"
    for name, value in arguments.items():
        said = known[name]
        if said["type"] == "string":
            least, most = said.get("minLength", 0), said["maxLength"]
            if not isinstance(value, str) or not least <= len(value) <= most:
                return f"{tool} takes its {name} as a string of {least} to {most} characters"
        else:
            least, most = said["minimum"], said["maximum"]
            # Not isinstance: True is an int to Python.
            if type(value) is not int or not least <= value <= most:
                return f"{tool} takes its {name} as a whole number from {least} to {most}"
    return None
