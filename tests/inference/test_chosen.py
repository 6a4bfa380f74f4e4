"""A setting names its provider exactly, and one that cannot be asked safely is refused before it is given a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spl.errors import SettingsInvalid
from spl.inference.chosen import URLS, chosen
from spl.inference.model import Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spl.inference.provider import Provider

LOCAL = "http://127.0.0.1:11434/v1"


def provider(
    setting: str | None = "openai", url: str | None = None, model: str | None = "m", **keys: str
) -> Provider:
    return chosen(setting, url=url, model=model, key=keys.get, seconds=1)


def test_a_setting_names_its_provider(tmp_path: Path) -> None:
    script = tmp_path / "with:colon.json"
    script.write_text('{"replies": []}')

    assert provider("echo").name == "echo"
    assert provider(f"script:{script}").name == "script"
    for name, url in URLS.items():
        asked = provider(name, **{name: "sk-1"})
        assert (asked.name, asked.default_model, asked.url) == (name, "m", url)


@pytest.mark.parametrize("setting", ["", "Echo", "echo:", "script", "script:", "gpt"])
def test_a_setting_that_names_no_provider_is_refused(setting: str) -> None:
    with pytest.raises(SettingsInvalid, match="is not known: it is 'anthropic', 'openai', 'echo'"):
        provider(setting)


def test_without_a_setting_it_is_the_provider_whose_key_is_there() -> None:
    assert provider(None, model=None).name == "echo"
    assert provider(None, anthropic="sk-1").name == "anthropic"
    assert provider(None, openai="sk-1").name == "openai"
    for given in ({"model": "m"}, {"url": LOCAL, "model": None}):
        with pytest.raises(SettingsInvalid, match="is set, but no provider, and there is no key"):
            provider(None, **given)
    with pytest.raises(SettingsInvalid, match="keys of anthropic and openai in secrets/"):
        provider(None, anthropic="sk-1", openai="sk-2")


@pytest.mark.parametrize("name", list(URLS))
def test_a_provider_needs_a_model_and_at_its_own_address_a_key(name: str) -> None:
    with pytest.raises(SettingsInvalid, match="needs a model"):
        provider(name, model=None, **{name: "sk-1"})
    with pytest.raises(SettingsInvalid, match=f"there is no secrets/{name}.key"):
        provider(name)
    assert provider(name, LOCAL).url == LOCAL


@pytest.mark.parametrize(
    "url",
    [
        "", "openai", "ftp://host/v1", "http://", "//host/v1", "http://host:0/v1", "http://host:port/v1",
        "http://[::1/v1", "http://host/v 1", "http://ho\nst/v1", "http://hôte/v1", "http:\\\\host/v1",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingsInvalid, match="is no http or https URL"):
        provider(url=url)


@pytest.mark.claim("B4")
@pytest.mark.parametrize(
    "url", ["https://user:sk-9@host/v1", "https://host/v1?key=sk-9", "https://host/#sk-9"]
)
def test_an_address_that_could_hold_a_key_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsInvalid, match="more than scheme, host, port and path") as raised:
        provider(url=url)
    assert "sk-9" not in str(raised.value.wire())


@pytest.mark.claim("B4")
@pytest.mark.parametrize(
    ("url", "is_private"),
    [
        ("https://models.example/v1", True),
        ("http://127.0.0.1:1/v1", True),
        ("http://127.9.9.9/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://localhost:8080/v1", True),
        ("HTTP://LOCALHOST/v1", True),
        ("http://models.example/v1", False),
        ("http://192.168.1.7:11434/v1", False),
        ("http://localhost.example/v1", False),
        ("http://127.0.0.1.example/v1", False),
        ("http://0.0.0.0/v1", False),
    ],
)
def test_no_key_goes_out_in_the_clear(url: str, is_private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[Callable[[], str | None]] = []
    monkeypatch.setattr("spl.inference.openai.OpenAiProvider", lambda _, __, key, **___: readers.append(key))

    if is_private:
        provider(url=url, openai="sk-1")
        assert readers[0]() == "sk-1"
        return
    with pytest.raises(SettingsInvalid, match="in the clear"):
        provider(url=url, openai="sk-1")
    # Without a key it may be asked, and one that is put there later stays here.
    keys: dict[str, str] = {}
    chosen("openai", url=url, model="m", key=keys.get, seconds=1)
    keys["openai"] = "sk-1"
    assert readers[0]() is None


@pytest.mark.claim("B4")
def test_a_provider_at_its_own_address_is_not_asked_once_its_key_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers: list[Callable[[], str | None]] = []
    monkeypatch.setattr("spl.inference.openai.OpenAiProvider", lambda _, __, key, **___: readers.append(key))
    keys = {"openai": "sk-1"}
    chosen("openai", url=None, model="m", key=keys.get, seconds=1)
    assert readers[0]() == "sk-1"

    del keys["openai"]

    with pytest.raises(Unanswered, match=r"was not asked: secrets/openai\.key is gone") as raised:
        readers[0]()
    assert raised.value.unpaid
