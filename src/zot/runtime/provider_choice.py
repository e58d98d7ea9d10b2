"""Providers for a Config: which models there are, at which address, with which key."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config.config import OF_PROVIDER, Config, may_exist, zot_home
from zot.config.credentials import Credential, find, missing, stored_for
from zot.config.vendors import VENDORS, Endpoint, endpoint
from zot.errors import ConfigError, ConnectionImpossible
from zot.providers.models import Catalogue, Model, catalogue

if TYPE_CHECKING:
    from zot.providers.lab.script import Script
    from zot.providers.recording import RecordingHeader


def models_of(config: Config) -> Catalogue:
    """Return the models that can be used, the user's own included.

    With --replay, the recorded model comes first, at its recorded price. Raise ConfigError.
    """
    if not config.replay:
        catalogue(config.provider)  # Raises a clear error for an unknown provider.
        return _with_own(catalogue(config.provider, unlisted=endpoint_of(config).foreign), config)
    recorded = _recorded(config)
    known = _with_own(catalogue(recorded.provider, unlisted=True), config)
    first = known.find(recorded.model)
    return Catalogue(recorded.provider, (first, *(model for model in known.models if model != first)), open=True)


def credential_of(config: Config, model: Model | None = None) -> Credential | None:
    """Return the key, or how to get it; None if there is none and none is needed. Raise ConfigError."""
    vendor, where = VENDORS[config.provider], endpoint_of(config, model)
    found = find(vendor, config.api_key, config.environment, base_url=where.base_url)
    if found is None and vendor.needs_key and not where.elsewhere:
        raise missing(vendor, config.environment)
    return found


def unused_key(config: Config) -> str:
    """Return a notice that no key is sent because the address is not the vendor's own; "" if it does not apply."""
    vendor, where = VENDORS[config.provider], endpoint_of(config)
    if not (vendor.needs_key and where.elsewhere) or credential_of(config) is not None:
        return ""
    from zot.config.base_url import split_url  # Imported lazily: few users set an address.

    try:
        place = split_url(where.base_url).origin.authority
    except ConnectionImpossible as problem:
        raise ConfigError(f"base_url: {problem}") from None
    stored = "; the stored one is for another address" if stored_for(vendor, config.environment) else ""
    return f"no key is used: {place} is not {vendor.name}'s own address{stored}"


def script_of(config: Config) -> Script:
    """Return the script that lab plays. Raise ConfigError if it cannot be read."""
    from zot.providers.lab.script import Script, demo  # Imported lazily: only lab needs it.

    return Script.load(config.script) if config.script else demo()


def _with_own(listed: Catalogue, config: Config) -> Catalogue:
    """Return a catalogue with the user's models added."""
    home = zot_home(config.environment)
    if home is None or not may_exist(path := os.path.join(home, "models.json")):
        return listed
    from zot.providers.user_models import load, overlaid  # Imported lazily: few users have models of their own.

    # Entries of unknown providers are ignored: other programs may share the file.
    return overlaid(listed, load(path).get(listed.provider, ()))


def endpoint_of(config: Config, model: Model | None = None) -> Endpoint:
    """Return address and API for a model; for None, those that most models use. A recording's API is as recorded.

    A configured address wins over the model's own.
    """
    api = config.api or (_recorded(config).api if config.replay else None)
    address = config.base_url or (model.base_url if model is not None else "")
    return endpoint(VENDORS[config.provider], api=api, base_url=address or None, env=config.environment)


def _recorded(config: Config) -> RecordingHeader:
    from zot.providers.recording import header_of  # Imported lazily: only `--replay` needs it.

    assert config.replay is not None
    return header_of(config.replay)


class EarlierProviders:
    """The providers used earlier in a conversation, by name."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[dict[str, Any], Model]] = {}

    def leave(self, name: str, config: Config, model: Model) -> None:
        """Remember a provider's settings and its last model."""
        self._left[name] = {field: getattr(config, field) for field in ("provider", *OF_PROVIDER)}, model

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def settings(self, name: str) -> dict[str, Any]:
        """Return a provider's settings: the remembered ones, or defaults."""
        return self._left[name][0] if name in self._left else {"provider": name, **dict.fromkeys(OF_PROVIDER)}

    def elsewhere(self, provider: str, config: Config) -> list[Model]:
        """Return the models of all providers but ``provider`` that were used before or have a key."""
        found: list[Model] = []
        for name, vendor in VENDORS.items():
            if name == provider or not (vendor.key_names or name in self._left):
                continue
            try:
                found += self.models(name, config)
            except ConfigError:
                continue  # Not set up; `zot doctor` reports why.
        return found

    def models(self, name: str, config: Config) -> list[Model]:
        """Return a provider's models, the last used one first; none if it was never used and has no key.

        Raise ConfigError if it is not set up.
        """
        asked = msgspec.structs.replace(config, model=None, **self.settings(name))
        if name not in self._left:
            return [*models_of(asked).models] if credential_of(asked) is not None else []
        last = self._left[name][1]
        return [last, *(model for model in models_of(asked).models if model.id != last.id)]
