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
        (f"Authorization: Token {WORDS}", f"Authorization: {REDACTED}"),
        (
            f'authorization: Digest username="ana", response="{WORDS}"\nmore',
            f"authorization: {REDACTED}\nmore",
        ),
        (f"Cookie: a=1; session={WORDS}", f"Cookie: {REDACTED}"),
        (f"{{'Set-Cookie': 'a=1; b=\"{WORDS}\"', 'x': 1}}", f"{{'Set-Cookie': '{REDACTED}', 'x': 1}}"),
        (f'{{\\"authorization\\": \\"Bearer {WORDS}\\"}}', f'{{\\"authorization\\": \\"{REDACTED}'),
        ("ftp://u:pw@host", f"ftp://{REDACTED}@host"),
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
        "no authorization, or a cookie",
        "spl_run_grace is a setting",
        "th_run_0123456789abcdef01234567 did:sync:user:ana tok_0123456789ab",
        "http://127.0.0.1:9100/v1/runs?cursor=a@b",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    "part",
    [
        "a.b+c-", "a://", "authorization:", "authorization ", "api-key, ", "cookie=\\\\", "bearer ", "basic%20",
        "sk-", "spl_a_", "x@",
    ],
)  # fmt: skip
@pytest.mark.parametrize("begin", ["://", "authorization: ", "cookie: b'", ""])
def test_a_long_text_of_whatever_kind_takes_no_long_time(begin: str, part: str) -> None:
    began = time.process_time()
    redacted(begin + part * (120_000 // len(part)) + " ://")
    assert time.process_time() - began < 2


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
    assert redaction._kept == tuple((key,) for key in reversed(keys[-4:]))


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
