"""Permission rules written while a run is going: its next call is judged by them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end import scripts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.daemon import Shape
    from tests.end_to_end.model import Model

pytestmark = pytest.mark.one_shape

# The manual's own command, word for word.
STOP_THAT = r"""
spl config add-permission-rule --name stop-that --action deny --priority 100 \
  --expression 'resource == "tool:bash"'
"""
NO_NOTES = STOP_THAT.replace("tool:bash", "tool:record_note")


@pytest.mark.claim("K1", "K4", "N4")
def test_the_manuals_rule_stops_the_next_command_of_a_run_that_is_going(
    same_user: Shape, home: Path, model: Model
) -> None:
    first, second = (home.with_name(name) for name in ("first", "second"))
    with model.daemon(same_user, home) as daemon:
        thread = daemon.start("Touch two files.")["thread"]
        model.asked().answer(scripts.bash(f"touch {first}; id -u"))
        asked = model.asked()
        assert asked.shown.startswith(f"{same_user.uid}\n")
        assert first.exists()

        done = same_user.shell(home, STOP_THAT)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["name"] == "stop-that"

        asked.answer(scripts.bash(f"touch {second}"))
        asked = model.asked()
        assert asked.shown == "This call was not run (rule): the rule 'stop-that' denies it."
        asked.answer(scripts.saying("Done."))
        row = daemon.finish(thread)
        verdicts = daemon.bodies(thread, "core.work.tool_verdict.v1")
        rules = daemon.request("GET", "/v1/rules")["data"]

    assert not second.exists()
    assert [(each["decision"], each["layer"], each["rule"]) for each in verdicts] == [
        ("allow", "allow", None),
        ("deny", "rule", "stop-that"),
    ]
    assert (row["transport"], row["tool_calls_ok"], row["tool_calls_failed"]) == ("in_process", 1, 1)
    assert [(rule["name"], rule["hits"]) for rule in rules] == [("stop-that", 1)]


@pytest.mark.claim("K4")
def test_a_rule_comes_and_goes_under_a_run_on_either_transport(
    shape: Shape, home: Path, model: Model
) -> None:
    with model.daemon(shape, home) as daemon:
        for transport in ("in_process", "sandboxed"):
            daemon.set_transport(transport)
            thread = daemon.start("Take notes.")["thread"]
            for command in (NO_NOTES, "spl config disable-permission-rule stop-that", NO_NOTES):
                asked = model.asked()
                assert shape.shell(home, command).returncode == 0
                asked.answer(scripts.calling(scripts.NOTE))
            model.asked().answer(scripts.saying("Done."))
            daemon.finish(thread)
            verdicts = daemon.bodies(thread, "core.work.tool_verdict.v1")
            assert [each["decision"] for each in verdicts] == ["deny", "allow", "deny"]
            assert len(daemon.bodies(thread, "core.work.note.v1")) == 1
