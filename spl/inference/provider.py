"""What a provider is, and the one that a setting names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spl.errors import SettingsInvalid
from spl.inference.echo import EchoProvider
from spl.inference.script import ScriptProvider

if TYPE_CHECKING:
    from decimal import Decimal

    from spl.inference.model import Reply, Request


class Provider(Protocol):
    """Something that completes requests; `name` is what settings and messages call it."""

    name: str
    default_model: str

    async def complete(self, request: Request) -> Reply:
        """Give the model's reply; the request names its model. Raises ProviderFailed, or what it will."""
        ...

    def price(self, model: str) -> tuple[Decimal, Decimal] | None:
        """Give US dollars for a million tokens of input and of output, or None if the price is not known."""
        ...


def provider_named(setting: str) -> Provider:
    """Give the provider of a setting, `echo` or `script:PATH`; raises SettingsInvalid for any other."""
    kind, _, path = setting.partition(":")
    if setting == "echo":
        return EchoProvider()
    if kind == "script" and path:
        return ScriptProvider.load(path)
    raise SettingsInvalid(f"the provider {setting!r} is not known: it is 'echo' or 'script:PATH'")
