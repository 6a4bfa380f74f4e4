"""Goals that a person would give, and what they see of them: what `spl run` prints, how it exits, what `spl why` says.

The model is played by the test, and at the end by a server of Chat Completions; everything else is real.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spl.errors import RunNotCompleted
from tests.end_to_end import scripts
from tests.end_to_end.counterparts import OPENAI, Answer, Price, relayed
from tests.end_to_end.daemon import SECONDS, Shape
from tests.end_to_end.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from escape.installation import Installation
    from tests.end_to_end.counterparts import Exchange
    from tests.end_to_end.daemon import Daemon
    from tests.end_to_end.model import Asked

pytestmark = pytest.mark.one_shape

Json = dict[str, Any]

MEMBER = "did:sync:user:ada"
"""Of the tier `team`; its runs are sandboxed."""
FOR_MEMBER = ("--actor", MEMBER)

FILES = "list_dir, read_file, search, write_file"
COULD_USE = "record_note, read_thread, calculate, read_file, write_file, list_dir, search"
SORTED = "calculate, list_dir, read_file, read_thread, record_note, search, write_file"

CHAIN = ("core.work.tool_call.v1", "core.work.note.v1")


@dataclass(frozen=True)
class Seen:
    """What a person has seen of one run at the end of it."""

    status: int
    row: dict[str, str]
    complaint: str
    page: list[tuple[str, str]]

    @property
    def thread(self) -> str:
        return self.row["thread"]

    def says(self, label: str) -> list[str]:
        """Give what the page of `spl why` says under a label, as often as it stands there."""
        return [value for name, value in self.page if name == label]

    def ended(self, state: str, outcome: str, summary: str) -> bool:
        """Tell whether it ended so, which the row and the page both say, and the exit status and the complaint too."""
        assert (self.row["state"], self.row["outcome"], self.row["summary"]) == (state, outcome, summary)
        success = "a success" if state == "done" else "no success"
        assert self.says("ended")[0].startswith(f"{outcome}, {success}; state {state}, evidence ")
        assert self.says("summary") == [summary]
        if state == "done":
            return (self.status, self.complaint) == (0, "")
        assert self.complaint == (
            f"spl: RUN_NOT_COMPLETED: the run {self.thread} ended {state}, outcome {outcome}: "
            f"{summary.removesuffix('.')}; 'spl why {self.thread}' tells how it came to that\n"
        )
        return self.status == RunNotCompleted.exit_status


@dataclass(frozen=True)
class Person:
    """Somebody at a terminal of the daemon's host."""

    shape: Shape
    daemon: Daemon

    def spl(self, *arguments: str) -> str:
        """Give what a command prints, which must succeed."""
        ended = self.shape.run(*arguments, "--home", str(self.daemon.home))
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    def gives(self, goal: str, *options: str, meanwhile: Callable[[], None] = lambda: None) -> Seen:
        """Give a goal with `spl run`, do something, and look at what came of it."""
        home = str(self.daemon.home)
        with self.shape.begin("run", goal, "--home", home, "-o", "table", *options) as running:
            try:
                meanwhile()
                printed, complaint = running.communicate(timeout=SECONDS)
            finally:
                # A run that nobody answers any more would be waited for.
                running.kill()
        row = dict(_pairs(printed))
        page = _pairs(self.spl("why", row["thread"], "-o", "table"))
        return Seen(running.returncode, row, complaint, page)


@dataclass(frozen=True)
class Played(Person):
    """The same, and the test plays the model."""

    model: Model

    def has(self, goal: str, *replies: Json | Callable[[Asked], Json], options: tuple[str, ...] = ()) -> Seen:
        """Give a goal and have the model reply, turn by turn."""

        def play() -> None:
            for reply in replies:
                asked = self.model.asked()
                assert {"role": "user", "content": goal} in asked.messages
                asked.answer(reply(asked) if callable(reply) else reply)

        return self.gives(goal, *options, meanwhile=play)


@pytest.fixture(scope="module")
def person(world_readable: Installation) -> Iterator[Played]:
    """Give the operator of a hosted daemon: one for all that is only asked and looked at."""
    shape = Shape("hosted", 0, tuple(world_readable.command), world_readable.env)
    with tempfile.TemporaryDirectory(prefix="spl-") as folder:
        model = Model(Path(folder, "model.sock"))
        with model.daemon(shape, Path(folder, "home")) as daemon:
            daemon.configure(topic="actor_tier", actor=MEMBER, tier="team")
            yield Played(shape, daemon, model)
        model.close()


def _pairs(table: str) -> list[tuple[str, str]]:
    """Read a table about a run, of two columns; what is folded goes on in the lines below."""
    lines = [line for line in table.splitlines() if line.strip()]
    indent = lines[0].index("th_run_")
    pairs: list[tuple[str, str]] = []
    for line in lines:
        if label := line[:indent].strip():
            pairs.append((label, line[indent:]))
        else:
            pairs[-1] = pairs[-1][0], pairs[-1][1] + line[indent:]
    return pairs


def call(name: str, **arguments: object) -> Json:
    return {"name": name, "arguments": arguments}


def calling(name: str, **arguments: object) -> Json:
    return scripts.calling(call(name, **arguments))


def test_a_goal_of_ten_turns_with_files_ends_with_a_true_answer(person: Played) -> None:
    seen = person.has(
        "Write 17 and 25 into numbers.txt, add up what stands there, and keep the sum in sum.txt.",
        calling("list_dir"),
        {
            **calling("write_file", path="numbers.txt", content="17\n25\n"),
            "text": "An empty folder. I begin.",
        },
        scripts.calling(call("search", text="25"), call("list_dir")),
        calling("read_file", path="numbers.txt"),
        lambda asked: calling("calculate", expression=" + ".join(asked.shown.split())),
        lambda asked: calling("record_note", text=f"The sum is {asked.shown}"),
        calling("read_thread", thread="th_engine_config"),
        calling("write_file", path="sum.txt", content="42"),
        calling("read_file", path="sum.txt"),
        lambda asked: scripts.saying(f"The sum is {asked.shown}, and sum.txt has it."),
    )
    assert seen.ended("done", "completed", "The sum is 42, and sum.txt has it.")
    assert (person.daemon.home / "data" / "sum.txt").read_text() == "42"
    assert (seen.row["turns"], seen.row["tool_calls_ok"], seen.row["tool_calls_failed"]) == ("10", "10", "0")
    assert seen.says("model") == ["played, answered by script"]
    assert seen.says("where") == ["in_process: in the daemon itself, confined by nothing"]
    assert seen.says("could use") == [COULD_USE]
    assert seen.says("said") == ["An empty folder. I begin."]
    assert seen.says("result")[:6] == [
        "ok: (nothing)",
        'ok: Wrote 6 bytes to "numbers.txt".',
        'ok: "numbers.txt":2: 25',
        'ok: file 6 "numbers.txt"',
        r"ok: 17\n25\n",
        "ok: 42",
    ]
    assert seen.says("note") == ["The sum is 42"]
    assert seen.says("calls") == ["10 succeeded, 0 failed or were not run"]


def test_a_goal_of_ten_turns_in_a_sandbox_ends_with_a_true_answer(person: Played) -> None:
    noted = person.has(
        "Note the rate of interest.",
        calling("record_note", text="rate 1.05"),
        scripts.saying("Noted."),
        options=FOR_MEMBER,
    )

    def first(asked: Asked) -> Json:
        lines = [json.loads(line) for line in asked.shown.splitlines()]
        (note,) = [each["body"]["text"] for each in lines if each["body"]["kind"] == "core.work.note.v1"]
        return calling("calculate", expression=f"1000 * {note.removeprefix('rate ')}")

    def note(asked: Asked) -> Json:
        return calling("record_note", text=asked.shown)

    def year(asked: Asked) -> Json:
        before = next(each["content"] for each in reversed(asked.messages) if each.get("name") == "calculate")
        return calling("calculate", expression=f"{before} * 1.05")

    def answer(asked: Asked) -> Json:
        assert not {"read_file", "write_file"} & set(asked.tools)
        sums = [each["content"] for each in asked.messages if each.get("name") == "calculate"]
        return scripts.saying(f"1000 become {float(sums[-1]):.2f} in {len(sums)} years.")

    seen = person.has(
        f"What do 1000 become in four years at the rate noted on {noted.thread}?",
        calling("read_thread", thread=noted.thread),
        first, note, year, note, year, note, year, note,
        answer,
        options=FOR_MEMBER,
    )  # fmt: skip
    assert seen.ended("done", "completed", "1000 become 1215.51 in 4 years.")
    assert (seen.row["turns"], seen.row["narrowed"], seen.row["budget_usd"]) == ("10", FILES, "2")
    (where,) = seen.says("where")
    assert where.startswith("sandboxed, under the profile worker, ")
    assert where.endswith(" layers confirmed before it began")
    assert seen.says("withheld") == [FILES]
    assert seen.says("turns") == ["10 of 50"]
    assert [each[:4] for each in seen.says("note")] == ["1050", "1102", "1157", "1215"]
    assert seen.says("calls") == ["9 succeeded, 0 failed or were not run"]


@pytest.mark.parametrize("options", [(), FOR_MEMBER], ids=["in_process", "sandboxed"])
@pytest.mark.parametrize(
    ("goal", "note", "answer"),
    [
        ("東京の天気を調べて、メモしてください。", "晴れ、最高気温は23℃", "メモしました。"),
        ("اجمع ٢ و ٣ ثم اكتب المجموع.", "المجموع خمسة", "تم، المجموع خمسة."),
        ("🌦️ in 🇯🇵? → 📝!", "☀️ 23°", "Done 🎉"),
    ],
    ids=["japanese", "arabic", "emoji"],
)
def test_a_goal_in_any_language_is_read_back_as_it_was_written(
    person: Played, options: tuple[str, ...], goal: str, note: str, answer: str
) -> None:
    seen = person.has(goal, calling("record_note", text=note), scripts.saying(answer), options=options)
    assert seen.ended("done", "completed", answer)
    assert seen.row["goal"] == goal
    assert seen.says("asked") == [goal]
    assert seen.says("call 1") == [f'record_note {{"text": "{note}"}}']
    assert seen.says("note") == [note]
    listed = person.spl("runs", "list", "-o", "table").splitlines()
    assert [line for line in listed if seen.thread in line and line.endswith(goal)]
    records = json.loads(person.spl("thread", "records", seen.thread))["data"]
    bodies = {each["body"]["kind"]: each["body"] for each in records}
    assert bodies["core.work.loop.v1"]["goal"] == goal
    assert bodies["core.work.note.v1"]["text"] == note
    assert bodies["core.work.loop_outcome.v1"]["summary"] == answer


def test_a_model_that_makes_one_failing_call_again_and_again_is_told_so_and_halted(person: Played) -> None:
    seen = person.has("Divide 1 by 0.", *[scripts.calling(scripts.BAD_SUM)] * 5)
    assert seen.ended(
        "stopped_short", "guardrail_halt", "The same call of 'calculate' failed 5 times in a row."
    )
    assert seen.says("result") == ["error: calculate cannot work this out: it divides by zero"] * 5
    assert seen.says("observed") == [
        f"repeated_call: You have called 'calculate' with the same arguments {times} times in a row. "
        "Change something, or stop."
        for times in (3, 4, 5)
    ]


def test_a_model_that_answers_at_once_completes_and_the_page_says_that_nothing_was_done(
    person: Played,
) -> None:
    claimed = "I have written the poem to poem.txt."
    seen = person.has("Write a poem to poem.txt.", scripts.saying(claimed))
    assert seen.ended("done", "completed", claimed)
    assert not (person.daemon.home / "data" / "poem.txt").exists()
    assert seen.says("calls") == ["none: all that the success rests on is what the model said"]


@pytest.mark.parametrize("options", [(), FOR_MEMBER], ids=["in_process", "sandboxed"])
def test_a_model_that_never_stops_is_stopped_at_its_last_turn(
    person: Played, options: tuple[str, ...]
) -> None:
    steps = [calling("record_note", text=f"step {number}") for number in (1, 2, 3)]
    seen = person.has("Count for ever.", *steps, options=("--max-turns", "3", *options))
    assert seen.ended("stopped_short", "max_turns", "The run used its 3 turns (max_turns).")
    assert seen.says("turns") == ["3 of 3"]
    assert seen.says("note") == ["step 1", "step 2", "step 3"]


def test_a_model_that_asks_for_a_tool_that_is_not_there_is_told_what_is_and_goes_on(person: Played) -> None:
    refused = f"the tool 'launch_rocket' is not in this run's reach, which is {SORTED}"

    def instead(asked: Asked) -> Json:
        assert asked.shown == f"This call was not run (grant): {refused}."
        return scripts.calling(scripts.NOTE)

    given_up = "I could not launch it, and noted that."
    seen = person.has(
        "Launch the rocket.", scripts.calling(scripts.UNKNOWN), instead, scripts.saying(given_up)
    )
    assert seen.ended("done", "completed", given_up)
    assert seen.says("verdict") == [
        f"deny (layer grant): {refused}",
        "allow (layer allow): nothing objected",
    ]
    assert seen.says("calls") == ["1 succeeded, 1 failed or were not run"]


def test_a_model_that_asks_for_a_withheld_tool_is_told_so_and_a_run_of_nothing_else_is_blocked(
    person: Played,
) -> None:
    refused = "the tool 'read_file' is withheld from runs that are sandboxed"

    def give_up(asked: Asked) -> Json:
        assert asked.shown == f"This call was not run (grant): {refused}."
        return scripts.saying("I have no files here.")

    seen = person.has(
        "Read numbers.txt.", calling("read_file", path="numbers.txt"), give_up, options=FOR_MEMBER
    )
    summary = "Every tool call was denied. The last reply: I have no files here."
    assert seen.ended("stopped_short", "blocked", summary)
    assert seen.says("verdict") == [f"deny (layer grant): {refused}"]
    assert seen.says("calls") == ["0 succeeded, 1 failed or were not run"]


def test_a_reply_that_was_cut_off_is_told_with_what_there_is_of_it(person: Played) -> None:
    seen = person.has("Write a book.", {"text": "It was a dark and stormy ni", "stop_reason": "length"})
    assert seen.ended("stopped_short", "failed", "The last reply was cut off by the output limit.")
    assert seen.says("said") == ["It was a dark and stormy ni"]
    assert seen.says("calls") == ["none"]


def test_a_call_of_a_reply_that_was_cut_off_is_not_run_and_may_be_made_anew(person: Played) -> None:
    cut_off = {"calls": [call("record_note", text="It was a da")], "stop_reason": "length"}
    seen = person.has(
        "Note how the book begins.",
        cut_off,
        calling("record_note", text="It was a dark night."),
        scripts.saying("Noted."),
    )
    assert seen.ended("done", "completed", "Noted.")
    assert seen.says("verdict")[0] == (
        "deny (layer truncated): the reply was cut off by the output limit, its arguments may be incomplete"
    )
    assert seen.says("note") == ["It was a dark night."]


@pytest.mark.parametrize("options", [(), FOR_MEMBER], ids=["in_process", "sandboxed"])
def test_a_model_that_declines_is_said_to_have_declined(person: Played, options: tuple[str, ...]) -> None:
    declined = {"text": "I can't help with that.", "stop_reason": "refusal"}
    seen = person.has("Do something terrible.", declined, options=options)
    assert seen.ended("stopped_short", "failed", "The model declined to go on. I can't help with that.")


def test_a_long_last_word_is_whole_in_the_row_and_its_beginning_in_the_complaint(person: Played) -> None:
    told = "I cannot.\n" + "Because " * 100
    seen = person.has("Launch.", scripts.calling(scripts.UNKNOWN), scripts.saying(told))
    shown = f"Every tool call was denied. The last reply: {told}".replace("\n", r"\n")
    # A line of the table is folded at a blank, which it then does without.
    assert "".join(seen.row["summary"].split()) == "".join(shown.split())
    (complaint,) = seen.complaint.splitlines()
    assert f"outcome blocked: {shown[:200]}" in complaint
    assert complaint.endswith(f"…; 'spl why {seen.thread}' tells how it came to that")
    assert len(complaint) < 600


@pytest.mark.claim("K1")
def test_arguments_that_are_no_json_object_are_denied_and_shown_as_the_model_wrote_them(
    hosted: Shape, home: Path
) -> None:
    broken = '{"text": "It was a dark'
    replies = [
        OPENAI.reply("", call("record_note", text="x")),
        OPENAI.reply("", call("record_note", text="a dark night")),
        OPENAI.reply("Noted."),
    ]
    replies[0]["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = broken
    asked: list[Json] = []

    def answer(exchange: Exchange) -> Answer:
        asked.append(exchange.asked)
        return Answer(200, replies[len(asked) - 1])

    with relayed(OPENAI, 0) as relay:
        relay.answer = answer
        with relay.daemon(hosted, home, {OPENAI.model: Price("1", "1")}) as daemon:
            seen = Person(hosted, daemon).gives("Note how the book begins.", *FOR_MEMBER)
    assert seen.ended("done", "completed", "Noted.")
    assert asked[1]["messages"][-1]["content"] == (
        "This call was not run (malformed): its arguments are not a JSON object."
    )
    assert seen.says("call 1") == [f"record_note with arguments that are no JSON object: {broken}"]
    assert seen.says("verdict") == [
        "deny (layer malformed): its arguments are not a JSON object",
        "allow (layer allow): nothing objected",
    ]
    assert seen.says("note") == ["a dark night"]
