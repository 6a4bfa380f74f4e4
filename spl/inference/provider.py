"""What a provider is: something that completes requests and knows what its models cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spl.inference.model import Reply, Request
    from spl.inference.prices import Price


class Provider(Protocol):
    """Something that completes requests; `name` is what settings and messages call it.

    `url` is where its requests go, None if they go nowhere.
    """

    name: str
    default_model: str
    url: str | None

    async def complete(self, request: Request) -> Reply:
        """Give the model's reply; the request names its model and bounds its output.

        Raises Unanswered where there is none; whatever else it raises counts as a reply that was paid for and lost.
        """
        ...

    def price(self, model: str) -> Price | None:
        """Give what a model costs as far as the provider's own list says, or None if it does not."""
        ...

    async def close(self) -> None:
        """Let go of its connections; called once, when no request is under way."""
        ...
