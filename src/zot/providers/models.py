"""The catalogue: which models there are, what they can hold and what they cost."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from zot.config.vendors import VENDORS
from zot.encoding import learned
from zot.errors import UserError

if TYPE_CHECKING:
    from zot.messages import Counters  # Only for its name: this file is read before hello is answered.

#: Made by scripts/catalogue.py.
_PATH = os.path.join(os.path.dirname(__file__), "catalogue.json")


class Rate(msgspec.Struct, frozen=True, omit_defaults=True):
    """US dollars for a million tokens. What has no price of its own costs as much as input does."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def cost(self, counters: Counters) -> float:
        """Return what these tokens cost, in US dollars."""
        cache_read = self.input if self.cache_read is None else self.cache_read
        cache_write = self.input if self.cache_write is None else self.cache_write
        return (
            counters.input * self.input / 1e6
            + counters.output * self.output / 1e6
            + counters.cache_read * cache_read / 1e6
            + counters.cache_write * cache_write / 1e6
        )


class Tier(Rate, frozen=True, omit_defaults=True, kw_only=True):
    """What all tokens of a call cost if its input, cached or not, is more than ``above`` tokens."""

    above: int


class Price(Rate, frozen=True, omit_defaults=True):
    """What a model costs. ``tiers`` go up."""

    tiers: tuple[Tier, ...] = ()

    def rate(self, counters: Counters) -> Rate:
        """Return what holds for one call."""
        size = counters.input + counters.cache_read + counters.cache_write
        return next((tier for tier in reversed(self.tiers) if size > tier.above), self)


class Model(msgspec.Struct, frozen=True):
    """One model. ``price`` is None when nobody told us: unknown is not free.

    ``base_url`` is where it is served if not where its provider's others are; ``as_of`` when what is said here was
    last looked at, "" if it is not from the catalogue. Without ``window_known``, its window is a guess.
    """

    id: str
    provider: str
    context_window: int
    max_output: int
    reasoning: bool
    price: Price | None = None
    name: str = ""
    base_url: str = ""
    as_of: str = ""
    window_known: bool = True

    def charge(self, counters: Counters) -> Counters:
        """Return the ``counters`` of one call with their cost at this model's prices."""
        if self.price is None:
            return msgspec.structs.replace(counters, cost_usd=0.0, price_known=False)
        return msgspec.structs.replace(counters, cost_usd=self.price.rate(counters).cost(counters), price_known=True)


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
            return unknown_model(model_id, self.provider)
        known = ", ".join(model.id for model in self.models) or "none"
        if not model_id:
            raise UserError(f"{self.provider} needs to be told which model: name one, on the command line with --model")
        raise UserError(f"unknown model {model_id!r} (provider {self.provider!r}); known: {known}")


#: What an unlisted model is taken to hold: little enough for most servers.
_UNKNOWN_WINDOW = 32_768
_UNKNOWN_OUTPUT = 8_192


def unknown_model(model_id: str, provider: str) -> Model:
    """Return a model of which nothing but its name is known.

    It is taken to reason: who asks for that means it, and a service that cannot says so.
    """
    return Model(
        model_id, provider, _UNKNOWN_WINDOW, _UNKNOWN_OUTPUT, reasoning=True, name=model_id, window_known=False
    )


def catalogue(provider: str, *, unlisted: bool = False) -> Catalogue:
    """Return the models of ``provider``; with ``unlisted``, others may be asked for, too.

    Raise UserError, with the known ones, if there is no such provider.
    """
    vendor = VENDORS.get(provider)
    if vendor is None:
        raise UserError(f"unknown provider {provider!r}; known: {', '.join(sorted(VENDORS))}")
    return Catalogue(provider, _listed(provider), vendor.open or unlisted)


class _Snapshot(msgspec.Struct):
    """The file. Each provider's models stay text until they are asked for: most are never."""

    as_of: str
    providers: dict[str, msgspec.Raw]


class _Row(msgspec.Struct):
    id: str
    name: str
    context_window: int
    max_output: int
    reasoning: bool
    price: Price | None


@cache
def _listed(provider: str) -> tuple[Model, ...]:
    with open(_PATH, "rb") as file:
        snapshot = msgspec.json.decode(file.read(), type=learned(_Snapshot))
    rows = msgspec.json.decode(snapshot.providers[provider], type=learned(list[_Row]))
    return tuple(
        Model(
            row.id,
            provider,
            row.context_window,
            row.max_output,
            row.reasoning,
            row.price,
            name=row.name,
            as_of=snapshot.as_of,
        )
        for row in rows
    )
