"""Providers that a conversation has left: how each was asked, so that it can be gone back to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from zot.config.config import OF_PROVIDER, Config
from zot.errors import ConfigError

if TYPE_CHECKING:
    from zot.providers.models import Model


class LeftProviders:
    """Remembers providers by their names."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[dict[str, Any], Model]] = {}

    def leave(self, name: str, config: Config, model: Model) -> None:
        """One was asked for a model, as ``config`` says."""
        self._left[name] = {field: getattr(config, field) for field in ("provider", *OF_PROVIDER)}, model

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def settings(self, name: str) -> dict[str, Any]:
        """Return how a provider is asked: as before, or as nothing but its name says."""
        return self._left[name][0] if name in self._left else {"provider": name, **dict.fromkeys(OF_PROVIDER)}

    def elsewhere(self, provider: str, config: Config) -> list[Model]:
        """Return the models of other providers than ``provider`` that were asked before, or have a key."""
        from zot.config.vendors import VENDORS

        found: list[Model] = []
        for name, vendor in VENDORS.items():
            if name == provider or not (vendor.key_names or name in self._left):
                continue
            try:
                found += self.models(name, config)
            except ConfigError:
                continue  # It is not set up: `zot doctor` tells what is missing.
        return found

    def models(self, name: str, config: Config) -> list[Model]:
        """Return the models of a provider, the one that was asked last first; none if it cannot be asked.

        Raise ConfigError if it is not set up.
        """
        from zot.runtime.providers import credential_of, models_of

        asked = msgspec.structs.replace(config, model=None, **self.settings(name))
        if name not in self._left:
            return [*models_of(asked).models] if credential_of(asked) is not None else []
        last = self._left[name][1]
        return [last, *(model for model in models_of(asked).models if model.id != last.id)]
