"""The seed's own verification, as a user types it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.network import OWN_NETWORK

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape

# What a user types, word for word but for the wait: curl, jq and spl on port 9100 of a network of its own.
VERIFY = r"""
set -eu
spl serve >serve.out 2>serve.err &
until curl -s localhost:9100/health >/dev/null; do kill -0 $!; sleep 0.05; done
ADMIN=$(spl token show)
row() { curl -s -H "Authorization: Bearer $ADMIN" localhost:9100/v1/runs/$THREAD; }
verify() {
    THREAD=$(curl -s -X POST -H "Authorization: Bearer $ADMIN" -H 'content-type: application/json' \
      localhost:9100/v1/work/loop \
      -d '{"goal":"Record a note whose text is exactly: transport-check . Use the record_note tool with only the text '\
'argument. Then stop.","max_turns":3,"budget_usd":0.05}' | jq -r .thread)
    until [ "$(row | jq .state)" != '"running"' ]; do sleep 0.05; done
    row | jq .state
    spl thread records $THREAD -o json | jq -c \
      '.data[] | select(.body.kind == "core.work.loop_outcome.v1" or .body.kind == "core.work.note.v1") | .body'
    curl -s -H "Authorization: Bearer $ADMIN" localhost:9100/v1/engine/health | jq -c .work_loop
}
verify
spl know --thread th_engine_config --actor did:sync:system:engine --act LEARN \
  --body '{"kind":"core.engine.config.v1","topic":"work_loop_transport","transport":"sandboxed"}' >&2
verify
spl stop >&2
wait
"""


@pytest.mark.claim("V1", "T2", "T4")
def test_the_verification_of_the_seed_ends_done_in_process_and_then_sandboxed(
    shape: Shape, home: Path
) -> None:
    work = home.parent / "work"
    work.mkdir(mode=0o777)
    work.chmod(0o777)
    # The network of its own is made by root; the user in it is the shape's.
    done = shape.shell(home, VERIFY, prefix=OWN_NETWORK, cwd=str(work))

    said = done.stderr + (work / "serve.err").read_text()
    assert done.returncode == 0, said
    first, second = [done.stdout.splitlines()[at : at + 4] for at in (0, 4)]
    for lines, transport in ((first, "in_process"), (second, "sandboxed")):
        state, note, outcome, work_loop = (json.loads(line) for line in lines)
        assert state == "done"
        assert note["text"] == "transport-check"
        assert outcome["transport"] == transport
        assert outcome["tool_calls_ok"] >= 1
        assert outcome["success"] is True
        assert work_loop["transport"] == transport
        assert work_loop["admission_available"] == work_loop["admission_capacity"]
    assert f"shape         {shape.name}" in (work / "serve.out").read_text()
