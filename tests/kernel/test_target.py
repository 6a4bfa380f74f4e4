from __future__ import annotations

import pytest

from spl.kernel.expressions import compiled, declared
from spl.kernel.target import target

LANGUAGE = declared({})
HEAVY = "args.l.all(a, args.l.all(b, a + b >= 0))"


def of(expression: str) -> str | None:
    return target(compiled(LANGUAGE, expression))


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ('resource == "tool:bash"', "tool:bash"),
        ('"tool:bash" == resource', "tool:bash"),
        ("resource == 'tool:bash' && args.x == 1", "tool:bash"),
        ("resource == r'''tool:bash''' && (args.x || args.y) && !args.z", "tool:bash"),
        (f'resource == "tool:bash" && {HEAVY}', "tool:bash"),
        (f'resource == "tool:bash" && ({HEAVY} ? args.x : args.y)', "tool:bash"),
        ('((resource == "tool:bash" // || true\n) && args.x)', "tool:bash"),
        ('resource == "tool:bash"' + ' && args.x == "a || b"' * 100, "tool:bash"),
        (r'resource == "tool:\x62ash && true || \U0001F600\000"', "tool:bash && true || \U0001f600\0"),
        (f'resource == "tool:{"x" * 4000}"', f"tool:{'x' * 4000}"),
        ('resource == ""', ""),
        ('resource == "tool:a" && resource == "tool:b"', "tool:a"),
    ],
)
def test_a_rule_that_begins_with_its_resource_is_for_that_one_alone(expression: str, named: str) -> None:
    assert of(expression) == named


@pytest.mark.parametrize(
    "expression",
    [
        "true",
        "dyn(args.x)",
        'resource != "tool:bash"',
        '!(resource == "tool:bash")',
        '(resource == "tool:bash") == true',
        'resource == "tool:bash" || args.x',
        'resource == "tool:bash" && args.x || args.y',
        'resource == "tool:bash" && args.x ? args.y : args.z',
        'resource == "tool:bash" ? true : false',
        '(resource == "tool:bash" || args.x) && args.y',
        'resource.startsWith("tool:")',
        'resource == dyn("tool:bash")',
        'resource == "tool:" + "bash"',
        "resource == actor",
        "resource == resource",
        'actor == "tool:bash"',
        'args.resource == "tool:bash"',
        '"tool:bash" == "tool:bash"',
        "1.5 == 2.5 && args.x",
        '["tool:bash"].exists(resource, resource == "tool:bash")',
        # The library looks at what stands before, and the whole errs if that is over its budget.
        f'{HEAVY} && resource == "tool:bash"',
        'args.x == 1 && resource == "tool:bash"',
    ],
)
def test_any_other_rule_may_match_whatever_is_called(expression: str) -> None:
    assert of(expression) is None
