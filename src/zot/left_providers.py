"""Providers that a conversation has left: how each was asked, so that it can be gone back to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from zot.config import Config

if TYPE_CHECKING:
    from zot.providers.models import Model

#: What holds for one provider only: nobody else is asked there, or with that key.
_OWN = ("base_url", "api", "api_key", "script", "replay")


class LeftProviders:
    """Remembers providers by their names."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[dict[str, Any], Model]] = {}

    def leave(self, name: str, config: Config, model: Model) -> None:
        """One was asked for a model, as ``config`` says."""
        self._left[name] = {field: getattr(config, field) for field in ("provider", *_OWN)}, model

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def settings(self, name: str) -> dict[str, Any]:
        """Return how a provider is asked: as before, or as nothing but its name says."""
        return self._left[name][0] if name in self._left else {"provider": name, **dict.fromkeys(_OWN)}

    def models(self, name: str, config: Config) -> list[Model]:
        """Return the models of a provider, the one that was asked last first; none if it cannot be asked.

        Raise ConfigError if it is not set up.
        """
        from zot.provision import credential_of, models_of

        asked = msgspec.structs.replace(config, model=None, **self.settings(name))
        if name not in self._left:
            return [*models_of(asked).models] if credential_of(asked) is not None else []
        last = self._left[name][1]
        return [last, *(model for model in models_of(asked).models if model.id != last.id)]
