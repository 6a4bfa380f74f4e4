"""Every command that asks a daemon, over TCP from where there is no home: as the operator, and as a member.

Each works, or is refused with a code and something to do. One daemon serves them all.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from escape.instance import VERIFY_GOAL
from spl.cli.calling import commands
from spl.cli.options import Invocation
from spl.errors import (
    MemberExists,
    NotFound,
    ProviderFailed,
    RunFinished,
    ScopeDenied,
    SettingsInvalid,
    SplError,
    TokenRevoked,
)
from tests.commands_page import leaves
from tests.end_to_end.daemon import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escape.installation import Installation
    from tests.end_to_end.daemon import Daemon

LOCAL = {
    *("bench", "completion", "doctor", "errors", "escape", "init", "profile", "serve", "service", "version"),
}
"""Commands that ask no daemon, whatever SPL_URL says."""


class Row(NamedTuple):
    """A command, and what refuses it to the operator and to a member; None where it works."""

    words: str
    operator: type[SplError] | None = None
    member: type[SplError] | None = None


# THREAD is a run of the member's that has ended; the rule r and the member eve are there each time.
TABLE = [
    Row("status"),
    Row("console --once -o json"),
    Row("run --detach GOAL"),
    Row("run --preview GOAL"),
    Row("runs list"),
    Row("runs show THREAD"),
    Row("runs tail THREAD"),
    Row("runs stop THREAD", RunFinished, RunFinished),
    Row("why THREAD"),
    Row("verify THREAD"),
    Row("thread records THREAD"),
    Row("config show"),
    Row("config list-tiers"),
    Row("config set-transport sandboxed", None, ScopeDenied),
    Row("config set-profile worker", None, ScopeDenied),
    Row("config unset-profile", None, ScopeDenied),
    Row("config set-capacity 1", None, ScopeDenied),
    Row("config unset-capacity", None, ScopeDenied),
    Row("config set-standby 1", None, ScopeDenied),
    Row("config unset-standby", None, ScopeDenied),
    Row("config set-tier paid --max-turns 3", None, ScopeDenied),
    Row("config set-actor-tier did:sync:user:x paid", None, ScopeDenied),
    Row("config unset-actor-tier did:sync:user:x", None, ScopeDenied),
    Row("config add-permission-rule --name r --action deny --expression false", None, ScopeDenied),
    Row("config list-rules", None, ScopeDenied),
    Row("config disable-permission-rule r", None, ScopeDenied),
    Row("config enable-permission-rule r", None, ScopeDenied),
    Row("config remove-permission-rule r", None, ScopeDenied),
    Row("member add new", None, ScopeDenied),
    Row("member list", None, ScopeDenied),
    Row("member revoke eve", None, ScopeDenied),
    Row("token mint", None, ScopeDenied),
    Row("token list", None, ScopeDenied),
    Row("token revoke none", NotFound, ScopeDenied),
    Row("token rotate none", NotFound, ScopeDenied),
    # What is called is the operator's to pay; the provider of this daemon has no model.
    Row("provider check", ProviderFailed, ScopeDenied),
    # These are of a home, and of a daemon on the machine of whoever types them.
    Row("stop", SettingsInvalid, SettingsInvalid),
    Row("backup", SettingsInvalid, SettingsInvalid),
    Row("restore", SettingsInvalid, SettingsInvalid),
    Row("token show", SettingsInvalid, SettingsInvalid),
]
# Written as somebody, which is not the same for both; and one that has no end but an interrupt, or that of its token.
APART = {"know", "thread watch"}


class Far(NamedTuple):
    """Where the daemon is, whose tokens there are, and the thread of a run that has ended."""

    url: str
    operator: str
    member: str
    thread: str
    daemon: Daemon


@pytest.fixture(scope="module")
def far(world_readable: Installation) -> Iterator[Far]:
    shape = Shape("hosted", 0, tuple(world_readable.command), world_readable.env)
    with tempfile.TemporaryDirectory(prefix="spl-") as folder:
        home = Path(folder) / "home"
        with shape.daemon(home, "--provider", "echo") as daemon:
            member = daemon.request("POST", "/v1/members", {"label": "mia", "tier": "paid"})
            thread = daemon.client_of(member["token"]).request(
                "POST", "/v1/work/loop", {"goal": VERIFY_GOAL}
            )["thread"]
            daemon.finish(thread)
            token = (home / "token").read_text().strip()
            yield Far(f"http://127.0.0.1:{daemon.port}", token, member["token"], thread, daemon)


@pytest.fixture
def away(far: Far, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Far:
    """Give the daemon to someone on another machine: without a home, and with no way to one."""
    for name in ("SPL_HOME", "SYNCROPEL_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPL_URL", far.url)
    rule: dict[str, Any] = {
        "name": "r",
        "action": "deny",
        "priority": 0,
        "expression": "false",
        "enabled": True,
    }
    far.daemon.configure(topic="permission_rule", **rule)
    with suppress(MemberExists):
        far.daemon.request("POST", "/v1/members", {"label": "eve"})
    return far


def test_the_table_has_every_command_that_asks_a_daemon() -> None:
    named = {" ".join(word for word in row.words.split() if word.islower()) for row in TABLE}
    missing = [
        path
        for name, _ in leaves()
        if (path := name.removeprefix("spl ")).split()[0] not in LOCAL
        and path not in APART
        and not any(each == path or each.startswith(f"{path} ") for each in named)
    ]
    assert missing == []


@pytest.mark.parametrize("whose", ["operator", "member"])
@pytest.mark.parametrize("row", TABLE, ids=[row.words for row in TABLE])
def test_a_command_from_elsewhere_works_or_is_refused_with_a_code_and_a_remedy(
    away: Far, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, row: Row, whose: str
) -> None:
    monkeypatch.setenv("SPL_TOKEN", getattr(away, whose))
    expected = getattr(row, whose)
    told = {"GOAL": VERIFY_GOAL, "THREAD": away.thread}
    words = [told.get(word, word) for word in row.words.split()]
    if expected is None:
        spl(*words)
    else:
        with pytest.raises(expected) as refused:
            spl(*words)
        assert type(refused.value) is expected
        assert refused.value.remedy
        assert getattr(away, whose) not in refused.value.message
    assert list(tmp_path.iterdir()) == []


def spl(*words: str) -> None:
    """Run a command in this process; raises what it is refused with."""
    commands.main(list(words), prog_name="spl", standalone_mode=False, obj=Invocation())


@pytest.mark.parametrize("whose", ["operator", "member"])
def test_a_record_is_written_from_elsewhere_and_a_thread_watched_until_its_token_ends(
    away: Far, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], whose: str
) -> None:
    monkeypatch.setenv("SPL_TOKEN", away.operator)
    spl("member", "add", f"{whose}-1")
    minted = json.loads(capsys.readouterr().out)
    monkeypatch.setenv("SPL_TOKEN", minted["token"] if whose == "member" else away.operator)
    body = '{"kind":"app.note.text.v1","text":"from afar"}'
    spl("know", "--thread", f"th_{whose}", "--actor", minted["actor"], "--act", "KNOW", "--body", body)
    assert json.loads(capsys.readouterr().out)["body"]["text"] == "from afar"
    monkeypatch.setenv("SPL_TOKEN", away.operator)
    spl("member", "revoke", f"{whose}-1")
    monkeypatch.setenv("SPL_TOKEN", minted["token"])
    with pytest.raises(TokenRevoked):
        spl("thread", "watch", f"th_{whose}")
