"""Scripts for the `script` provider: what a model would reply, turn by turn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

NOTE: dict[str, Any] = {"name": "record_note", "arguments": {"text": "again"}}
SUM: dict[str, Any] = {"name": "calculate", "arguments": {"expression": "6 * 7"}}
BAD_SUM: dict[str, Any] = {"name": "calculate", "arguments": {"expression": "1 / 0"}}
UNKNOWN: dict[str, Any] = {"name": "launch_rocket", "arguments": {"to": "the moon"}}
READ: dict[str, Any] = {"name": "read_thread", "arguments": {"thread": "th_of_nobody"}}


def write(folder: Path, *replies: dict[str, Any]) -> str:
    """Write a script and give the setting that names it."""
    folder.mkdir(mode=0o755, exist_ok=True)
    path = folder / "script.json"
    path.write_text(json.dumps({"replies": replies}))
    path.chmod(0o644)
    return f"script:{path}"


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    """Give a reply that makes calls."""
    return {"calls": list(calls), "stop_reason": "tool_use"}


def saying(text: str) -> dict[str, Any]:
    """Give a reply that ends the run."""
    return {"text": text, "stop_reason": "end"}


def bash(command: str) -> dict[str, Any]:
    """Give a reply that calls for a command of the host's."""
    return calling({"name": "bash", "arguments": {"command": command}})


def endless(turns: int = 5000) -> list[dict[str, Any]]:
    """Give more turns than a test waits for."""
    return [calling(NOTE)] * turns
