"""Every command block of the pages does what it says, or is marked with what no test has."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.claims import ROOT
from tests.docs import session
from tests.docs.blocks import SAMPLES, Page, names, read, take_apart
from tests.docs.calls import calls, wrong

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = names()
RUN = [name for name in PAGES if any(block.is_run for block in read(name).blocks)]


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[session.Ran]]]:
    """Give what comes of each page that is asked for; two at a time, the longest first."""
    asked = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == test_every_command_block_of_a_page_runs.__name__
    ]
    pages = {name: [block for block in read(name).blocks if block.is_run] for name in asked}
    with ThreadPoolExecutor(2) as pool:
        longest = sorted(pages, key=lambda name: sum(len(block.text) for block in pages[name]), reverse=True)
        yield {name: pool.submit(session.run, pages[name]) for name in longest}


@pytest.mark.parametrize("name", RUN)
def test_every_command_block_of_a_page_runs(name: str, ran: dict[str, Future[session.Ran]]) -> None:
    came = ran[name].result()

    assert came.wrong == [], "\n".join(came.wrong)
    assert came.done == sum(block.is_run for block in read(name).blocks)


@pytest.mark.parametrize("name", PAGES)
def test_every_command_and_option_that_a_page_names_exists(name: str) -> None:
    page = read(name)
    named = [(block.line, block.text) for block in page.blocks if block.is_commands]
    named += [(line, span) for line, span in page.spans() if span.split()[0] == "spl"]

    unknown = [
        f"{name}:{line}: {reason}"
        for line, text in named
        for call in calls(text)
        if (reason := wrong(call)) is not None
    ]

    assert unknown == []


@pytest.mark.parametrize("name", PAGES)
def test_every_make_target_that_a_page_names_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    page = read(name)
    texts = [block.text for block in page.blocks if block.is_commands]
    texts += [span for _, span in page.spans()]

    named = {target for text in texts for target in re.findall(r"^make ([a-z]+)", text, re.MULTILINE)}

    assert named <= targets


@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_a_page_is_commands_or_of_a_known_kind(name: str) -> None:
    other = [block for block in read(name).blocks if not block.is_commands and block.info not in SAMPLES]

    assert other == []


def test_no_two_pages_write_a_profile_of_one_name() -> None:
    """For a reader goes from one page to the next in one home."""
    wrote: dict[str, str] = {}
    for name in PAGES:
        text = "".join(block.text for block in read(name).blocks if block.is_run)
        found = re.findall(r"(?<!>)>\S*/profiles/([a-z0-9-]+)\.toml|profile new ([a-z0-9-]+)", text)
        found += re.findall(r"profile trace --name ([a-z0-9-]+)()", text)
        for profile in {one or other for one, other in found}:
            assert wrote.setdefault(profile, name) == name, f"{profile} is written by {name} as well"
    assert {"docs/five-minutes.md", "docs/authoring-profiles.md", "docs/profiles.md"} <= set(wrote.values())


@pytest.mark.parametrize("name", ["docs/five-minutes.md", "docs/authoring-profiles.md"])
def test_a_tutorial_leaves_nothing_in_the_readers_folder(name: str) -> None:
    text = "".join(block.text for block in read(name).blocks if block.is_run)

    assert re.findall(r"(?<![<>0-9-])[12]?>(?![>&])\s*(?!~/\.syncro/|/dev/null)\S+", text) == []


def page_of(text: str) -> Page:
    return take_apart("page.md", text)


def test_blocks_are_found_by_their_fences_with_their_lines_and_what_they_need() -> None:
    page = page_of(
        "Say `spl stop`.\n\n```\none\n```\n\n  ~~~sh\n  two\n  ```\n  ~~~\n"
        "<!-- needs systemd -->\n\n```bash\nthree\n```\n```console\nfour\n```\n"
        "```text\nnot a command\n```\n````\n```\n````\n"
    )

    found = [(block.line, block.text, block.needs) for block in page.blocks if block.is_commands]

    assert found == [
        (4, "one\n", None),
        (8, "two\n```\n", None),
        (14, "three\n", "systemd"),
        (17, "four\n", None),
        (23, "```\n", None),
    ]
    assert [block.line for block in page.blocks if block.is_run] == [4, 8, 17, 23]
    assert list(page.spans()) == [(1, "spl stop")]


def test_a_mark_holds_for_the_block_that_follows_it_alone() -> None:
    page = page_of(
        "<!-- needs a paid key -->\n```\none\n```\n```\ntwo\n```\n<!-- needs systemd -->\ntext\n```\nthree\n```\n"
    )

    assert [block.needs for block in page.blocks] == ["a paid key", None, None]


@pytest.mark.parametrize(
    ("text", "reason"), [("```\nopen", "page.md:1: this"), ("<!-- needs luck -->", "page.md:1: a ")]
)
def test_a_block_without_an_end_and_an_unknown_need_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        page_of(text)


def test_what_sets_up_the_checkout_or_runs_all_tests_is_not_run() -> None:
    page = page_of(
        "```\ngit clone <this repository> spl && cd spl\nmake demo\n```\n```\necho make demo\n```\n"
    )

    assert [block.is_run for block in page.blocks] == [False, True]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("spl stop # and spl start", [["stop"]]),
        ("THREAD=$(spl run -o json 'one two' | jq -r .thread)", [["run", "-o", "json", "one two"]]),
        ("spl stop && spl restore >file 2>&1", [["stop"], ["restore"]]),
        ("A=b C=d spl run \\\n  goal; true", [["run", "goal"]]),
        ('spl why "$(spl run goal)"', [["why", "SUBSTITUTED"], ["run", "goal"]]),
        ("cat >x <<'END'\nspl no command\nEND\nspl init", [["init"]]),
        ("splice; ./spl-x; echo spl", []),
    ],
)
def test_commands_are_found_where_a_shell_would_run_them(text: str, found: list[list[str]]) -> None:
    assert list(calls(text)) == found


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "goal", "--max-turns", "3"], None),
        (["profile", "try", "small", "--", "id", "--no-option"], None),
        (["--help"], None),
        (["config"], None),
        (["stopp"], "there is no command spl stopp"),
        (["config", "set-transprot", "sandboxed"], "there is no command spl config set-transprot"),
        (["run", "goal", "--max-turn", "3"], "spl run: No such option"),
        (["run", "goal", "--max-turns"], "spl run: Option '--max-turns' requires an argument."),
        (["stop", "now"], "spl stop: takes no 'now'"),
    ],
)
def test_a_command_or_an_option_that_is_not_there_is_said(words: list[str], reason: str | None) -> None:
    said = wrong(words)

    assert said == reason or (reason is not None and said is not None and said.startswith(reason))


def test_a_block_that_fails_is_told_with_its_place_and_what_it_said_and_none_after_it_runs() -> None:
    page = page_of(
        "```\nA=1; echo first\n```\n\n```\necho out $A; echo err >&2; false | true\n```\n```\necho after\n```\n"
    )

    came = session.run(page.blocks)

    assert came.done == 1
    (told,) = came.wrong
    assert told.startswith("page.md:6: exit status 1 of\necho out $A;")
    assert "--- stdout\nout 1\n" in told
    assert "--- stderr\nerr\n" in told


def test_a_daemon_in_the_foreground_is_waited_for_and_stopped_at_the_end() -> None:
    page = page_of(
        "```\nspl serve --port 0   # stays\nspl status\n```\n```\ntest -S ~/.syncro/run/spl.sock\n```\n"
    )

    came = session.run(page.blocks)

    assert (came.wrong, came.done) == ([], 2)


def test_what_a_page_leaves_running_is_named() -> None:
    page = page_of(
        "```\nspl serve --daemon --home $(mktemp -d)/home\n"
        "mkfifo up\nsh -c 'echo >up; sleep 1000' &\nread -r <up || true\n```\n"
    )

    came = session.run(page.blocks)

    left = "\n".join(came.wrong)
    assert "sleep 1000" in left
    assert "serve --foreground" in left
    assert "left behind: /run/spl/" in left
