"""The work loop as a machine without input or output: steps out, answers in.

A driver takes each step to its door, sends the JSON answer back, and throws in a `DoorError` where a door
fails. The loop decides nothing that matters: the kernel judges every call, counts the turns and ends the run.
"""

from __future__ import annotations

from spl.loop.tools import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

Json = dict[str, "Any"]
Step = tuple[str, Json]
"""A door (`run`, `infer`, `propose`, `call` or `record`) and the payload to take there."""


class DoorError(Exception):
    """A door refused the step or gave no usable answer; `code` is the answer's, `message` one sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


def work() -> Generator[Step, Json, str]:
    """Do one run: give steps, take answers, return a word for why it ended.

    The word is `completed` (a reply without calls), `stopped` (a stop verdict) or the `end` that the infer
    door gave. A `DoorError` thrown in ends the loop and comes out of it unchanged.
    """
    contract = yield "run", {}
    messages: list[Json] = list(contract["opening"])
    mark = str(contract["mark"])
    domains: dict[str, str] = {tool["name"]: tool["domain"] for tool in contract["tools"]}
    while True:
        # A copy, for the in-process driver keeps what it is given and this list grows.
        answer = yield "infer", {"messages": list(messages)}
        if "end" in answer:
            return str(answer["end"])
        reply = answer["reply"]
        messages.append({"role": "assistant", "content": reply["text"], "calls": reply["calls"]})
        if not reply["calls"]:
            return "completed"
        for call in reply["calls"]:
            message = yield from _carry_out(call, domains, mark)
            if message is None:
                return "stopped"
            messages.append(message)


def _carry_out(call: Json, domains: dict[str, str], mark: str) -> Generator[Step, Json, Json | None]:
    """Propose a call and have it run if allowed; give the tool's message, or None on a stop verdict."""
    call_id = call["id"]
    verdict = yield "propose", {"call_id": call_id}
    if verdict["decision"] == "stop":
        return None
    observations: list[str] = list(verdict.get("observations", ()))
    if verdict["decision"] != "allow":
        return _tool_message(call, "error", verdict["text"], observations, mark)
    if domains.get(call["name"]) == "sandboxed":
        status, output = run(call["name"], call["arguments"])
        body = {"call_id": call_id, "status": status, "output": output}
        result = yield "record", {"kind": "core.work.tool_result.v1", "body": body}
    else:
        result = yield "call", {"call_id": call_id}
        status, output = result["status"], result["output"]
    return _tool_message(call, status, output, [*observations, *result.get("observations", ())], mark)


def _tool_message(call: Json, status: str, output: str, observations: list[str], mark: str) -> Json:
    """Put what the kernel noticed beside the tool's own output, never in place of it.

    An output may hold lines of its own making: `mark` is what tells those of the kernel apart.
    """
    content = "\n".join([output, *(f"[observation {mark}] {text}" for text in observations)])
    return {"role": "tool", "call_id": call["id"], "name": call["name"], "status": status, "content": content}
