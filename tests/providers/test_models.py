"""The catalogue of models: names, prices, and the source of the key."""

from __future__ import annotations

import pytest

from zot.config.vendors import VENDORS
from zot.errors import UserError
from zot.messages import Counters
from zot.providers.base import Model, Price
from zot.providers.models import catalogue

SONNET = catalogue("anthropic").find("claude-sonnet-4-5")


def test_the_price_of_a_call_is_right_to_the_bit() -> None:
    assert SONNET.charge(Counters(100, 1, 0, 0, 0.0)).cost_usd == 0.00031499999999999996
    everything = SONNET.charge(Counters(1_000_000, 1_000_000, 1_000_000, 1_000_000, 0.0))
    assert everything == Counters(1_000_000, 1_000_000, 1_000_000, 1_000_000, 3.0 + 15.0 + 0.3 + 3.75)


def test_a_missing_price_is_unknown_and_not_zero() -> None:
    model = Model("m", "acme", 1000, 100, reasoning=False)
    charged = model.charge(Counters(100, 1, 0, 0, 0.0))
    assert charged == Counters(100, 1, 0, 0, 0.0, price_known=False)
    assert charged.cost is None
    assert Model("m", "acme", 1000, 100, False, Price(0, 0, 0, 0)).charge(Counters(1, 1, 1, 1, 0.0)).cost == 0.0


def test_a_sum_with_an_unknown_price_is_unknown() -> None:
    known, unknown = Counters(1, 2, 3, 4, 0.5), Counters(1, 1, 1, 1, 0.0, price_known=False)
    assert known + known == Counters(2, 4, 6, 8, 1.0)
    assert known + unknown == Counters(2, 3, 4, 5, 0.5, price_known=False)
    assert (unknown + known).cost is None


@pytest.mark.parametrize("provider", ["anthropic", "lab"])
def test_every_model_is_listed_once_under_its_provider_and_has_a_price(provider: str) -> None:
    models = catalogue(provider).models
    assert len({model.id for model in models}) == len(models) > 0
    assert {model.provider for model in models} == {provider}
    assert all(model.price is not None and 0 < model.max_output < model.context_window for model in models)
    assert catalogue(provider).find(None) == models[0]


def test_every_provider_that_needs_a_key_names_its_sources() -> None:
    assert [vendor.name for vendor in VENDORS.values() if vendor.needs_key and not vendor.key_names] == []


def test_an_unknown_provider_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"^unknown provider 'acme'; known: anthropic, deepseek, gemini, .*, xai$"):
        catalogue("acme")


def test_an_unlisted_model_gets_the_requested_reasoning() -> None:
    assert catalogue("ollama").find("qwen3").reasoning
    assert catalogue("openai", unlisted=True).find("my-model").reasoning
    assert not catalogue("openai", unlisted=True).find("gpt-4o").reasoning
