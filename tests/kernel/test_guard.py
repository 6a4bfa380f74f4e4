from __future__ import annotations

import pytest

from spl.kernel.guard import judge

REACH = ("record_note", "calculate")


@pytest.mark.claim("K2")
@pytest.mark.parametrize(
    ("tool", "forbidden", "truncated", "decision", "layer"),
    [
        ("record_note", (), False, "allow", "allow"),
        ("record_note", ("calculate",), False, "allow", "allow"),
        ("record_note", ("record_note",), False, "deny", "clamp"),
        ("bash", (), False, "deny", "grant"),
        ("bash", ("bash",), False, "deny", "grant"),
        ("", (), False, "deny", "grant"),
        ("Record_note", (), False, "deny", "grant"),
        ("record_note", (), True, "deny", "truncated"),
        ("bash", ("bash",), True, "deny", "truncated"),
    ],
)
def test_the_first_layer_with_an_objection_answers(
    tool: str, forbidden: tuple[str, ...], truncated: bool, decision: str, layer: str
) -> None:
    verdict = judge(tool, reach=REACH, forbidden=forbidden, truncated=truncated)
    assert (verdict.decision, verdict.layer, verdict.rule) == (decision, layer, None)
    assert verdict.allowed is (decision == "allow")


def test_what_the_model_is_shown_names_the_layer_and_the_tool() -> None:
    text = judge("bash", reach=REACH, forbidden=(), truncated=False).text
    assert text == "This call was not run (grant): the tool 'bash' is not in this run's reach."
