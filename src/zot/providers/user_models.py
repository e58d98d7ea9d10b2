"""The user's models.json: models missing from the catalogue, and overrides of listed ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

import msgspec

from zot import files
from zot.encoding import decoder
from zot.providers.models import Catalogue, Model, Price, unknown_model

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Dollars = Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class OwnModel(msgspec.Struct, frozen=True, rename="camel"):
    """One model of the file. Unset fields come from the catalogue, or are unknown."""

    id: _Text
    name: str | None = None
    reasoning: bool | None = None
    context_window: _Count | None = None
    max_tokens: _Count | None = None
    price_input: _Dollars | None = None
    price_output: _Dollars | None = None
    price_cache_read: _Dollars | None = None
    price_cache_write: _Dollars | None = None
    base_url: str | None = None

    def over(self, model: Model) -> Model:
        """Return ``model`` with the fields set here."""
        overrides = {
            "name": self.name,
            "reasoning": self.reasoning,
            "context_window": self.context_window,
            "window_known": None if self.context_window is None else True,
            "max_output": self.max_tokens,
            "base_url": self.base_url,
        }
        known = {field: value for field, value in overrides.items() if value is not None}
        return msgspec.structs.replace(model, price=self._price(model.price), as_of="", **known)

    def _price(self, listed: Price | None) -> Price | None:
        """Return the price: the listed one if none is set, else without tiers; None without input or output."""
        given = (self.price_input, self.price_output, self.price_cache_read, self.price_cache_write)
        if all(value is None for value in given):
            return listed
        before = (listed.input, listed.output, listed.cache_read, listed.cache_write) if listed else (None,) * 4
        paid, made, read, written = (new if new is not None else old for new, old in zip(given, before, strict=True))
        return None if paid is None or made is None else Price(paid, made, read, written)


class _Provider(msgspec.Struct, frozen=True):
    models: tuple[OwnModel, ...] = ()


class _File(msgspec.Struct, frozen=True):
    providers: dict[str, _Provider] = {}


def load(path: str) -> dict[str, tuple[OwnModel, ...]]:
    """Return the models of a file, by provider; empty without a file. Unknown fields are ignored.

    The file is read again only if it has changed. Raise ConfigError with the file and the wrong field.
    """
    return _cache.read(path)


def _load(path: str) -> dict[str, tuple[OwnModel, ...]]:
    try:
        parsed = files.load(path, decoder(_File).decode)
    except FileNotFoundError:
        return {}
    return {name: provider.models for name, provider in parsed.providers.items()}


_cache = files.FileCache(_load)


@lru_cache(maxsize=64)  # Sessions of one process share a catalogue.
def overlaid(listed: Catalogue, own: tuple[OwnModel, ...]) -> Catalogue:
    """Return a catalogue with the user's models: known ones overridden in place, new ones at the end."""
    models = {model.id: model for model in listed.models}
    for mine in own:
        models[mine.id] = mine.over(models.get(mine.id) or unknown_model(mine.id, listed.provider))
    return msgspec.structs.replace(listed, models=tuple(models.values()))
