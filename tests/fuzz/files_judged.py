"""What may come of an input of `files`: each judge gives the outcome's name, or raises `Broken` for what may not be.

Any exception that a judge lets through is a defect of what it judges.
"""

from __future__ import annotations

import asyncio
import json
import os
import random as randoms
import socket
import tempfile
import tomllib
import zlib
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bwrap import bpf, floor, groups, lint, render, seccomp
from bwrap import host as hosts
from bwrap.errors import ConfinementError, LayerError, ProfileError
from bwrap.library import SHIPPED, Library
from bwrap.plan import Places, resolve
from spl.errors import ExpressionInvalid, HomeUnsafe, InvalidBody, SettingsInvalid, SplError
from spl.inference.broker import Broker
from spl.inference.model import Request
from spl.inference.script import ScriptProvider
from spl.kernel import expressions, guard, tiers
from spl.kernel.config import Config
from spl.kernel.names import CONFIG, CONFIG_THREAD, ENGINE, IN_PROCESS, SANDBOXED
from spl.kernel.rules import Asked, Match, Rule, Rules
from spl.kernel.terms import Terms, granted, narrow
from spl.records.canonical import canonical, parse
from spl.records.record import Record, record_id
from spl.settings import Settings, load
from tests.fuzz.files_expressions import arguments
from tests.fuzz.files_made import DANGEROUS
from tests.inference.accounts import Purse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bwrap.profile import Profile
    from bwrap.seccomp import Rules as CallRules

SECRET = "spl_local_5ec2e700_" + "S" * 43
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_LONGEST_MESSAGE = 20_000
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


class Broken(AssertionError):
    """An outcome that may not be."""


def require(said: object, what: str) -> None:
    """Raise `Broken` unless this holds."""
    if not said:
        raise Broken(what)


def sentence(message: str) -> None:
    """Require that a message is one line, and no endless one."""
    require(message and "\n" not in message, f"the message is no sentence: {message!r:.300}")
    require(len(message) <= _LONGEST_MESSAGE, f"the message has {len(message)} characters")


# --- profiles ---


def profile(data: bytes) -> str:
    """A profile, or an error with its place; one that loads can be linted, shown, resolved and compiled, or is refused.

    Whatever passes the floor lets none of the calls through that the floor says are never allowed.
    """
    place = _place()
    own = place.profiles / "own.toml"
    own.write_bytes(data)
    try:
        found = place.library.load("own")
    except ProfileError as error:
        _profile_error(error)
        return "refused"
    for remark in (*lint.lint(found), *lint.lint_here(found, str(place.home))):
        _profile_error(remark.fault)
    render.described(found)
    json.dumps([render.written(found, path, said) for path, said, _ in found.values()], default=str)
    below = bool(floor.breaches(found))
    try:
        plan = resolve(found, place.host, place.places)
        render.rendered(found, plan)
        outcome = "resolved"
    except ProfileError as error:
        _profile_error(error)
        outcome = "cannot be had here"
    except ConfinementError as error:
        sentence(str(error))
        outcome = "not on this host" if isinstance(error, LayerError) else "makes no filter"
    for arch in groups.ARCHITECTURES:
        try:
            answers = _answers(arch, _frozen(groups.rules(found, arch)), found)
        except ConfinementError as error:
            sentence(str(error))
            continue
        require(below or not answers, f"it passes the floor, and on {arch} lets through {answers}")
    return f"{outcome}, below the floor" if below else outcome


def _profile_error(error: ProfileError) -> None:
    sentence(str(error))
    require(str(error).isprintable(), "the message cannot be printed")
    require(error.file.endswith(".toml"), f"no file: {error.file!r}")
    whole = ("longer than", "nested too deeply")
    require(error.line or any(each in error.reason for each in whole), f"no line: {error}")
    lines = error.excerpt.split("\n")
    require(len(lines) == 2 or not error.excerpt, f"the excerpt is no two lines: {error.excerpt!r}")
    require(all(line.isprintable() for line in lines), "the excerpt cannot be printed")


_memory: dict[tuple[str, str], list[str]] = {}


def _frozen(rules: CallRules) -> str:
    return json.dumps(asdict(rules), default=sorted, sort_keys=True)


def _answers(arch: str, key: str, found: Profile) -> list[str]:
    """Compile what a profile says, and give each call that may never be allowed and is; remembered by its rules."""
    if (arch, key) not in _memory:
        rules = groups.rules(found, arch)
        program = bpf.load(seccomp.compile_filter(rules, arch).program)
        # What no rule names has the default's answer, which the compiler looks at: of those one in sixteen.
        tried = [
            (call, arguments)
            for at, (call, arguments) in enumerate(_never(arch))
            if call in rules.allow or call in rules.when or at % 16 == 0
        ]
        _memory[arch, key] = [
            f"{call}{arguments}"
            for call, arguments in tried
            if bpf.run(program, seccomp.number(call, arch), _AUDIT[arch], arguments) == seccomp.ALLOW
        ]
    return _memory[arch, key]


@cache
def _never(arch: str) -> list[tuple[str, tuple[int, ...]]]:
    """Give each call that no profile above the floor allows, with some arguments, read from the tables themselves."""
    refused, allowed = (
        tomllib.loads((SHIPPED / "syscalls" / name).read_text(encoding="utf-8"))
        for name in ("refused.toml", "allowed.toml")
    )
    known = seccomp.names(arch)
    may = {call for said in allowed.values() for call in (*said["calls"], *said.get(arch, ()))}
    never = {call for said in refused.values() for call in (*said["calls"], *said.get(arch, ()))} & known
    tried = [(call, (value,) * 6) for call in sorted(never - may) for value in (0, 1, 0x00010000, 0xFFFFFFFF)]
    tried += [(call, (0,) * 6) for call in sorted(known - never - may - DANGEROUS.keys())]
    return tried + [
        (call, tuple(value if at == argument else 0 for at in range(6)))
        for call, (argument, values) in DANGEROUS.items()
        for value in values
    ]


class _Place:
    """A home with a profiles folder and a worker socket, and what examines this host, kept while the process lives."""

    def __init__(self) -> None:
        self._kept = tempfile.TemporaryDirectory(prefix="spl-fuzz-")
        self.home = Path(self._kept.name) / "home"
        self.profiles = self.home / "profiles"
        self.home.mkdir(mode=0o700)
        self.profiles.mkdir(mode=0o700)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(f"{self._kept.name}/w")
        self.places = Places(str(self.home), f"{self._kept.name}/w")
        self.library = Library(self.profiles)
        self.host = hosts.examine()


@cache
def _place() -> _Place:
    return _Place()


# --- settings ---


def config(data: bytes) -> str:
    """Settings, or one sentence."""
    home = _place().home
    (home / "config.toml").write_bytes(data)
    return _settings({"SPL_HOME": str(home)})


def variables(data: bytes) -> str:
    """Settings, or one sentence, without the value of what is called a token."""
    (_place().home / "config.toml").write_bytes(b"")
    rows = [os.fsdecode(row).partition("=") for row in data.split(b"\0") if row]
    environ = {name: value for name, _, value in rows if name}
    return _settings({"SPL_HOME": str(_place().home), **environ})


def _settings(environ: dict[str, str]) -> str:
    hidden = {name: SECRET for name in environ if name.endswith("_TOKEN")}
    try:
        found = load({}, {**environ, **hidden, "SPL_TOKEN": SECRET})
    except (SettingsInvalid, HomeUnsafe) as error:
        sentence(error.message)
        require(SECRET not in error.message, "the message holds a secret")
        return error.code
    require(0 <= found.port <= 65535, f"the port {found.port}")
    require(Settings.model_validate(found.model_dump()) == found, "they are not themselves")
    return "settings"


# --- expressions ---


def expression(data: bytes) -> str:
    """An expression, or an error with its place; what compiles judges any call as a rule of its action may."""
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    try:
        expressions.check(text)
        outcome = "compiled"
    except ExpressionInvalid as error:
        sentence(error.message)
        line, column = error.fields["line"], error.fields["column"]
        require(isinstance(line, int) and isinstance(column, int) and min(line, column) >= 1, "no place")
        shown = str(error.fields["excerpt"]).split("\n")
        require(len(shown) == 2 and all(each.isprintable() for each in shown), f"the excerpt {shown!r}")
        outcome = "refused"
    random = randoms.Random(zlib.crc32(data))
    # A rule that cannot be compiled may stand in the log all the same: it denies when it denies.
    answers = {_verdict(text, arguments(random), refused=outcome == "refused") for _ in range(4)}
    return f"{outcome}: {', '.join(sorted(answers))}"


def _verdict(text: str, args: dict[str, Any], *, refused: bool) -> str:
    asked = Asked("bash", args, "did:sync:user:ann", "trial", SANDBOXED, "th_1", "tidy up", 2, 0.5)
    alone = _first(asked, Rule("x", "deny", 0, text))
    allows = _first(asked, Rule("x", "allow", 0, text))
    beside = _first(
        asked, Rule("a", "deny", 2, "false"), Rule("x", "deny", 1, text), Rule("z", "allow", 0, "true")
    )
    require(beside is not None, "the last rule did not match")
    said = "false" if alone is None else "true" if alone.error is None else "cannot be evaluated"
    if alone is not None and alone.error is not None:
        sentence(alone.error)
    require(allows is None or allows.error is None, "an allow rule that cannot be evaluated allowed")
    require(
        (allows is not None) == (said == "true"), f"a deny rule is {said}, and as an allow rule it is not"
    )
    wanted = "z" if said == "false" else "x"
    require(
        beside is None or beside.rule.name == wanted,
        f"beside others {beside} decides, and alone it is {said}",
    )
    require(said == "cannot be evaluated" or not refused, f"what does not compile is {said}")
    # What cannot be evaluated has no opposite: were it read as an answer, that of both would be the same.
    other = _first(asked, Rule("x", "deny", 0, f"!({text}\n)"))
    opposite = "false" if other is None else "true" if other.error is None else "cannot be evaluated"
    require(opposite != said or said == "cannot be evaluated", f"it is {said}, and so is its opposite")
    return said


def _first(asked: Asked, *given: Rule) -> Match | None:
    """Judge a call by these rules alone."""
    rules = _empty()
    for rule in given:
        rules.put(rule)
    found = rules.judge(asked)
    for rule in given:
        rules.drop(rule.name)
    return found


@cache
def _empty() -> Rules:
    # One for all, as a daemon has: the library keeps what it is told to declare, some 150 KB, for ever.
    return Rules(lambda: NOON)


# --- configuration records ---

_OPERATOR, _MEMBER, _NOBODY = "did:sync:user:op", "did:sync:user:mia", "did:sync:user:nobody"


def bodies(data: bytes) -> str:
    """Configuration that is checked is taken or refused; what stands in the log already widens nobody's reach."""
    try:
        said = parse(data)
    except InvalidBody:
        return "no JSON"
    config = Config(lambda: NOON)
    outcomes = set()
    newest: dict[object, object] = {}
    for at, body in enumerate(said if isinstance(said, list) else []):
        if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
            continue
        if body["kind"] in (CONFIG, "core.engine.tier.v1"):
            outcomes.add(_checked(config, body))
        whose = {each: config.tier_of(each, _OPERATOR).name for each in (_OPERATOR, _MEMBER, _NOBODY)}
        config.take(Record("0" * 64, (), CONFIG_THREAD, ENGINE, "LEARN", body, at, "SCALAR", None, at + 1))
        if body["kind"] == CONFIG and isinstance(body.get("topic"), str):
            newest[body["topic"]] = body.get("transport")
        elif body["kind"] == "core.engine.tier.v1":
            now = {each: config.tier_of(each, _OPERATOR).name for each in whose}
            require(now == whose, f"a tier record changed who has which: {now}")
        _in_bounds(config, newest)
    return ", ".join(sorted(outcomes)) or "nothing to check"


def _checked(config: Config, body: dict[str, Any]) -> str:
    try:
        config.check(body)
    except SplError as error:
        sentence(error.message)
        return error.code
    return "taken"


def _in_bounds(config: Config, newest: dict[object, object]) -> None:
    for topic, in_force, default in (
        ("work_loop_transport", config.transport, IN_PROCESS),
        ("work_loop_transport_members", config.member_transport, SANDBOXED),
    ):
        said = newest.get(topic)
        wanted = said if isinstance(said, str) and said in (IN_PROCESS, SANDBOXED) else default
        require(in_force == wanted, f"{topic} is {in_force!r} after {said!r}")
    require(config.capacity is None or 0 <= config.capacity <= 4096, f"the capacity {config.capacity!r}")
    require(isinstance(config.profile, str), "the profile is no name")
    require(set(config.tier_profiles) <= set(tiers.NAMES), "a tier that there is not has a profile")
    json.dumps([tier.wire() for tier in config.tiers()], allow_nan=False)
    require(config.tier_of(_OPERATOR, _OPERATOR).name == tiers.OPERATOR, "the operator's tier")
    for actor in (_MEMBER, _NOBODY):
        tier = config.tier_of(actor, _OPERATOR)
        require(tier.name in tiers.GIVEN, f"a member has the tier {tier.name!r}")
        made = tiers.ceilings(
            tier,
            max_turns=None,
            wall_clock_secs=None,
            budget_usd=None,
            left_usd=tier.daily_cost_usd,
            sandboxed=True,
        )
        require(made.budget_usd is not None and made.max_turns is not None, "a member's run has no ceiling")
        asked = Asked("write_file", {"a": 1}, actor, tier.name, SANDBOXED, "th_1", "", 1, 0.0)
        for terms, layer in ((_terms(actor, ()), "grant"), (_terms(actor, ("calculate",)), "clamp")):
            tool = "write_file" if layer == "grant" else "calculate"
            verdict = guard.judge(
                replace(asked, tool=tool), terms=terms, rules=config.rules, ending=None, truncated=False
            )
            require((verdict.decision, verdict.layer) == ("deny", layer), f"{tool} is given: {verdict}")


def _terms(actor: str, forbidden: Sequence[str]) -> Terms:
    """Give the terms of a member's sandboxed run."""
    tools, narrowed = narrow(granted(host=False), sandboxed=True)
    tier = tiers.SHIPPED[tiers.TRIAL]
    made = tiers.ceilings(
        tier, max_turns=None, wall_clock_secs=None, budget_usd=None, left_usd=None, sandboxed=True
    )
    return Terms(
        "th_1",
        "",
        actor,
        actor,
        tier.name,
        SANDBOXED,
        made,
        tools,
        tuple(forbidden),
        narrowed,
        "script",
        "worker",
        "",
        None,
    )


# --- scripts ---


def script(data: bytes) -> str:
    """A provider, or one sentence; each of its replies is charged, or refused as any provider's would be."""
    path = _place().home / "script.json"
    path.write_bytes(data)
    try:
        provider = ScriptProvider.load(str(path))
    except SettingsInvalid as error:
        sentence(error.message)
        return "refused"
    return asyncio.run(_replayed(Broker(provider)))


async def _replayed(broker: Broker) -> str:
    outcomes = set()
    for turn in range(5):
        try:
            charged = await broker.infer(Request(None, (), (), turn), Purse("1"))
        except SplError as error:
            sentence(error.message)
            outcomes.add(error.code)
        else:
            json.dumps(charged.reply.wire(), allow_nan=False)
            outcomes.add("replied")
    return ", ".join(sorted(outcomes))


# --- JSON and records ---


def document(data: bytes) -> str:
    """A value that is written again as it was read, with one id whichever way round it came, or `InvalidBody`."""
    try:
        value = parse(data)
    except InvalidBody as error:
        sentence(error.message)
        return "refused"
    written = canonical(value)
    again = parse(written)
    require(again == value, "it was read as another value than was written")
    require(canonical(again) == written, "its canonical form has another")
    require(canonical(_turned(value)) == written, "the order of its keys stands in its canonical form")
    body = {"kind": "x.y.z.v1", "value": value}
    try:
        id_ = record_id((), "t", "did:x:y", "DO", body, 1, "SCALAR")
    except InvalidBody:
        return "too deep for a record"
    record = Record(id_, (), "t", "did:x:y", "DO", body, 1, "SCALAR", None, 1)
    wire = parse(json.dumps(record.wire()).encode())
    fields = (wire[name] for name in ("parents", "thread", "actor", "act", "body", "clock", "data_type"))
    require(record_id(*fields) == id_, "what was exported has another id")
    return "read"


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(each) for each in value] if isinstance(value, list) else value
