"""Credentials: a provider's key from flags, environment, auth.json or a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from zot.config.config import zot_home
from zot.config.vendors import Vendor, same_address
from zot.errors import ConfigError, KeyMissing

if TYPE_CHECKING:
    from zot.config.auth_file import AuthEntry


class Credential(msgspec.Struct, frozen=True):
    """A key, or the command that prints it. ``origin`` says where it was found and can be shown."""

    origin: str
    key: str = ""
    command: str = ""

    def __repr__(self) -> str:
        """Name only the origin, never the key."""
        return f"Credential({self.origin})"


def find(vendor: Vendor, given: str | None, env: Mapping[str, str], *, base_url: str = "") -> Credential | None:
    """Return the key for ``vendor``; None if there is none. Runs no command. Raise ConfigError for an unusable one.

    A stored key is sent only to the address it was stored for: the vendor's own, unless stored with another.
    """
    if given:
        return Credential("--api-key", key=checked(vendor.name, given))
    name = next((name for name in vendor.key_names if env.get(name)), None)
    if name is not None:
        return Credential(name, key=checked(vendor.name, env[name]))
    entry = _stored(vendor, env)
    if entry is None or not same_address(base_url or vendor.base_url, entry.base_url or vendor.base_url):
        return None
    if entry.key:
        return Credential("auth.json", key=checked(vendor.name, entry.key))
    return Credential("a command in auth.json", command=entry.command)


def stored_for(vendor: Vendor, env: Mapping[str, str]) -> str:
    """Return the address a key is stored for; "" if none is stored. Raise ConfigError for an unusable file."""
    entry = _stored(vendor, env)
    return "" if entry is None else entry.base_url or vendor.base_url


def missing(vendor: Vendor, env: Mapping[str, str]) -> KeyMissing:
    """Return the error that explains how to configure a key."""
    other = " at its own address; one is stored, but for another" if stored_for(vendor, env) else ""
    return KeyMissing(
        f"no key for {vendor.name}{other}: set {' or '.join(vendor.key_names)}, or run: zot login {vendor.name}. "
        'The provider lab needs none: --provider lab (in Python: provider="lab")'
    )


def _stored(vendor: Vendor, env: Mapping[str, str]) -> AuthEntry | None:
    home = zot_home(env)
    if home is None or not vendor.key_names:
        return None
    from zot.config.auth_file import stored  # Imported lazily: few users have stored keys.

    return stored(home, vendor.name)


def checked(provider: str, key: str) -> str:
    """Return ``key`` if it is well-formed. Raise ConfigError, which does not quote it."""
    if not key.isascii() or not key.isprintable():
        raise ConfigError(f"the key for {provider} has invalid characters; copy the whole key again")
    return key
