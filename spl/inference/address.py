"""The address of a provider: what may be one, and who can read what is sent there."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from spl.errors import SettingsInvalid


def base_url(url: str) -> str:
    """Give a base URL without its last slash; raises SettingsInvalid for what is none, or holds more than that."""
    if "@" in url or "?" in url or "#" in url:
        # What stands before an @ is a password, and addresses are shown and logged.
        raise SettingsInvalid(
            "the provider's address holds more than scheme, host, port and path",
            remedy="a key belongs in secrets/; take everything else out of provider_url",
        )
    try:
        parts = urlsplit(url)
        is_base = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_base = False
    if not is_base or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise SettingsInvalid(f"the provider's address {url!r} is no http or https URL")
    return url.rstrip("/")


def is_of_this_host(url: str) -> bool:
    """Tell whether an address is one of this host's own."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(url: str) -> bool:
    """Tell whether nobody between here and an address can read what is sent."""
    return urlsplit(url).scheme == "https" or is_of_this_host(url)
