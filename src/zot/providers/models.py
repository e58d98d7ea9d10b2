"""The catalogue: which models there are, what they can hold and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from zot.errors import UserError
from zot.providers.vendors import VENDORS

if TYPE_CHECKING:
    from zot.messages import Counters  # Only for its name: this file is read before hello is answered.


class Price(msgspec.Struct, frozen=True):
    """US dollars for a million tokens."""

    input: float
    output: float
    cache_read: float
    cache_write: float


class Model(msgspec.Struct, frozen=True):
    """One model. ``price`` is None when nobody told us: unknown is not free."""

    id: str
    provider: str
    context_window: int
    max_output: int
    reasoning: bool
    price: Price | None = None

    def charge(self, counters: Counters) -> Counters:
        """Return ``counters`` with their cost at this model's prices."""
        if self.price is None:
            return msgspec.structs.replace(counters, cost_usd=0.0, price_known=False)
        cost = (
            counters.input * self.price.input / 1e6
            + counters.output * self.price.output / 1e6
            + counters.cache_read * self.price.cache_read / 1e6
            + counters.cache_write * self.price.cache_write / 1e6
        )
        return msgspec.structs.replace(counters, cost_usd=cost, price_known=True)


#: When the prices were last looked at.
AS_OF = "2026-05-01"


_SONNET = Price(3.0, 15.0, 0.3, 3.75)
_OPUS_OLD = Price(15.0, 75.0, 1.5, 18.75)
_OPUS = Price(5.0, 25.0, 0.5, 6.25)

_ANTHROPIC = (
    Model("claude-sonnet-4-5", "anthropic", 200_000, 64_000, True, _SONNET),
    Model("claude-opus-4-1", "anthropic", 200_000, 32_000, True, _OPUS_OLD),
    Model("claude-opus-4-0", "anthropic", 200_000, 32_000, True, _OPUS_OLD),
    Model("claude-sonnet-4-0", "anthropic", 200_000, 64_000, True, _SONNET),
    Model("claude-haiku-4-5", "anthropic", 200_000, 64_000, True, Price(1.0, 5.0, 0.1, 1.25)),
    Model("claude-3-7-sonnet-20250219", "anthropic", 200_000, 64_000, True, _SONNET),
    Model("claude-3-5-sonnet-20241022", "anthropic", 200_000, 8_192, False, _SONNET),
    Model("claude-3-5-haiku-latest", "anthropic", 200_000, 8_192, False, Price(0.8, 4.0, 0.08, 1.0)),
    Model("claude-3-opus-20240229", "anthropic", 200_000, 4_096, False, _OPUS_OLD),
    Model("claude-opus-4-5", "anthropic", 200_000, 64_000, True, _OPUS),
    Model("claude-opus-4-6", "anthropic", 1_000_000, 128_000, True, _OPUS),
    Model("claude-opus-4-7", "anthropic", 1_000_000, 128_000, True, _OPUS),
    Model("claude-sonnet-4-6", "anthropic", 1_000_000, 64_000, True, _SONNET),
)
_LAB = (Model("lab-1", "lab", 200_000, 64_000, True, Price(0.0, 0.0, 0.0, 0.0)),)

_MODELS: Mapping[str, tuple[Model, ...]] = {"anthropic": _ANTHROPIC, "lab": _LAB}


class Catalogue(msgspec.Struct, frozen=True):
    """The models of one provider, the default first. An ``open`` one serves others, too, of which we know nothing."""

    provider: str
    models: tuple[Model, ...]
    open: bool = False

    def find(self, model_id: str | None) -> Model:
        """Return the model of that id, the default for None. Raise UserError, with the known ones, if there is none."""
        if model_id is None and self.models:
            return self.models[0]
        for model in self.models:
            if model.id == model_id:
                return model
        if self.open and model_id:
            return Model(model_id, self.provider, _UNKNOWN_WINDOW, _UNKNOWN_OUTPUT, reasoning=False)
        known = ", ".join(model.id for model in self.models) or "none"
        if not model_id:
            raise UserError(f"{self.provider} needs to be told which model: pass --model")
        raise UserError(f"unknown model {model_id!r} (provider {self.provider!r}); known: {known}")


#: What an unlisted model is taken to hold: little enough for most servers.
_UNKNOWN_WINDOW = 32_768
_UNKNOWN_OUTPUT = 8_192


def catalogue(provider: str, *, unlisted: bool = False) -> Catalogue:
    """Return the models of ``provider``; with ``unlisted``, others may be asked for, too.

    Raise UserError, with the known ones, if there is no such provider.
    """
    vendor = VENDORS.get(provider)
    if vendor is None:
        raise UserError(f"unknown provider {provider!r}; known: {', '.join(sorted(VENDORS))}")
    return Catalogue(provider, _MODELS.get(provider, ()), vendor.open or unlisted)
