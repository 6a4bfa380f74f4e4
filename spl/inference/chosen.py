"""Which provider the settings mean, and what must hold before it is given a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spl.errors import SettingsInvalid
from spl.inference.address import base_url, is_private
from spl.inference.echo import EchoProvider
from spl.inference.model import Unanswered
from spl.inference.script import ScriptProvider

if TYPE_CHECKING:
    from collections.abc import Callable

    from spl.inference.provider import Provider

URLS: Final = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
"""The providers that are asked over the network, and where each answers unless a setting says otherwise."""


def chosen(
    setting: str | None,
    *,
    url: str | None,
    model: str | None,
    key: Callable[[str], str | None],
    seconds: float,
) -> Provider:
    """Give the provider of a setting, `echo`, `script:PATH` or one of `URLS`; without one, that whose key is there.

    `key` reads the key of a provider, None if there is none; `seconds` is the longest that one call may take. Raises
    SettingsInvalid for a provider that cannot be asked as it is set up, and what `key` and the script's reading raise.
    """
    name = _keyed(key) if setting is None else setting
    if setting is None and name == "echo" and (url or model):
        raise SettingsInvalid(
            "a model or a provider's address is set, but no provider, and there is no key in secrets/",
            remedy='name the provider with --provider, or write it into config.toml, as provider = "NAME"',
        )
    kind, _, path = name.partition(":")
    if name == "echo":
        return EchoProvider()
    if kind == "script" and path:
        return ScriptProvider.load(path)
    if name not in URLS:
        raise SettingsInvalid(
            f"the provider {name!r} is not known: it is 'anthropic', 'openai', 'echo' or 'script:PATH'"
        )
    if model is None:
        raise SettingsInvalid(
            f"the provider {name!r} needs a model, and none is set",
            remedy='name one with --model, or write it into config.toml, as model = "NAME"',
        )
    own = url is None
    address = base_url(URLS[name] if url is None else url)
    has_key = key(name) is not None
    if own and not has_key:
        raise SettingsInvalid(
            f"the provider {name!r} needs a key, and there is no secrets/{name}.key in the home",
            remedy=f"write the key into secrets/{name}.key in the home, with the mode 0600",
        )
    if has_key and not is_private(address):
        raise SettingsInvalid(
            f"the provider's address {address!r} would be sent the key of secrets/{name}.key in the clear",
            remedy="use an https address, or one of this host, or take the key out of secrets/",
        )

    def read() -> str | None:
        # A key that is put there later must not go out in the clear either.
        found = key(name) if is_private(address) else None
        if own and found is None:
            raise Unanswered(f"the provider {name!r} was not asked: secrets/{name}.key is gone", unpaid=True)
        return found

    # Not for a daemon without a model: an HTTP client is a hundredth of a second and megabytes.
    if name == "anthropic":
        from spl.inference.anthropic import AnthropicProvider  # noqa: PLC0415

        return AnthropicProvider(address, model, read, seconds=seconds)
    from spl.inference.openai import OpenAiProvider  # noqa: PLC0415

    return OpenAiProvider(address, model, read, seconds=seconds)


def _keyed(key: Callable[[str], str | None]) -> str:
    found = [name for name in URLS if key(name) is not None]
    if len(found) > 1:
        raise SettingsInvalid(
            f"there are keys of {' and '.join(found)} in secrets/, and no setting says which provider to use",
            remedy='name one with --provider, or write it into config.toml, as provider = "NAME"',
        )
    return found[0] if found else "echo"
