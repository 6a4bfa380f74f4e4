from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from spl.home import Home
from spl.kernel.credentials import Credentials
from spl.logs import redaction
from spl.logs.fields import plain
from spl.logs.redaction import REDACTED, keeping_out, redacted

if TYPE_CHECKING:
    from pathlib import Path

KEY = 'gw/"quoted"\\and%odd-' + "k" * 20
WORDS = "Xq3-" + "s" * 39


@pytest.fixture(autouse=True)
def none_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_kept", ())


def test_the_tokens_and_credentials_that_are_made_here_are_taken_out(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home", create=True)
    run: Any = None
    for secret in (
        home.ensure_token("ana"),
        Credentials(lambda: 0.0).mint(run, lambda *_: True, seconds=None),
    ):
        for text in (
            secret,
            f"?token={secret}&x=1",
            f"b'{secret}'",
            secret.upper(),
            f"x{secret}",
            secret[:-20],
        ):
            assert secret[18:23].casefold() not in redacted(text).casefold(), text
            assert REDACTED in redacted(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"Authorization: Bearer {WORDS}", f"Authorization: {REDACTED}"),
        (f"{{'authorization': 'Basic {WORDS}'}}", f"{{'authorization': '{REDACTED}'}}"),
        (f"(b'x-api-key', b'{WORDS}')", f"(b'x-api-key', b'{REDACTED}')"),
        (f'"cookie":"{WORDS}","more":1', f'"cookie":"{REDACTED}","more":1'),
        (f"the bearer {WORDS} is not known", f"the bearer {REDACTED} is not known"),
        ("http://ana:pass@word@proxy:3128/a@b", f"http://{REDACTED}@proxy:3128/a@b"),
        (f"the key sk-proj-{WORDS}.", f"the key {REDACTED}."),
    ],
)
def test_what_carries_a_credential_elsewhere_is_taken_out_and_the_rest_stays(text: str, said: str) -> None:
    assert redacted(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "a bearer on every request",
        "spl_run_grace is a setting",
        "th_run_0123456789abcdef01234567 did:sync:user:ana tok_0123456789ab",
        "http://127.0.0.1:9100/v1/runs?cursor=a@b",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "a.",
        "a+",
        "sk-",
        "://",
        "a://b",
        "spl_",
        "spl_run_",
        "bearer ",
        "bearer",
        "%20",
        " ",
        "cookie:",
        "authorization: bearer ",
    ],
)
def test_no_text_takes_longer_than_its_length_is_worth(piece: str) -> None:
    """By the square of its length some of these would take ten seconds."""
    text = f"sk- {piece * (60_000 // len(piece))}"
    began = time.thread_time()
    redacted(text)
    assert time.thread_time() - began < 0.5


def test_a_key_that_was_read_is_taken_out_in_whatever_form_and_so_is_the_one_before_it() -> None:
    held = iter((KEY, None, other := secrets.token_urlsafe(30)))
    read = keeping_out(lambda _: next(held))
    assert KEY in redacted(KEY)
    assert [read("openai") for _ in range(3)] == [KEY, None, other]
    for text in (KEY, json.dumps({"a": KEY}), repr(KEY), f"/?k={quote(KEY, safe='')}", f"{other}!"):
        assert redacted(text) != text
        assert "kkkk" not in redacted(text)
        assert other not in redacted(text)


def test_a_word_in_the_place_of_a_key_is_not_and_of_many_keys_the_newest_are_held() -> None:
    keys = ["ollama", *(f"{number}-{secrets.token_urlsafe(30)}" for number in range(9))]
    held = iter(keys)
    read = keeping_out(lambda _: next(held))
    for _ in keys:
        read("openai")
    assert redacted("the model runs on ollama") == "the model runs on ollama"
    assert redaction._kept == tuple(reversed(keys[-4:]))


def test_it_is_taken_out_of_names_and_of_what_lies_within_and_what_is_no_data_is_told_as_text() -> None:
    token = f"spl_local_0123abcd_{WORDS}"
    looped: list[Any] = []
    looped.append(looped)
    fields = {
        "event": f"with {token}",
        token: 1,
        "within": {token: [{"a": (token,)}]},
        "bytes": token.encode(),
        "error": ValueError(token),
        "infinite": float("inf"),
        "looped": looped,
        "number": 3,
    }
    found = plain(None, "", fields)
    said = json.dumps(found, allow_nan=False)
    assert WORDS not in said
    assert said.count(REDACTED) == 6
    assert (found["number"], found["error"], found["infinite"]) == (3, REDACTED, "inf")
