"""The catalogue that is shipped, and the script that makes it from the data of genai-prices."""

from __future__ import annotations

import json
import re
import sys
from datetime import date
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from zot.config.vendors import VENDORS
from zot.messages import Counters
from zot.providers.models import Model, Price, Tier, catalogue

ROOT = Path(__file__).parents[2]
SHIPPED = json.loads((ROOT / "src" / "zot" / "providers" / "catalogue.json").read_text())

#: What clients of the first zot know, in its order: id, context window, longest reply, whether it thinks.
KNOWN: dict[str, list[tuple[str, int, int, bool]]] = {
    "anthropic": [
        ("claude-sonnet-4-5", 200_000, 64_000, True),
        ("claude-opus-4-1", 200_000, 32_000, True),
        ("claude-opus-4-0", 200_000, 32_000, True),
        ("claude-sonnet-4-0", 200_000, 64_000, True),
        ("claude-haiku-4-5", 200_000, 64_000, True),
        ("claude-3-7-sonnet-20250219", 200_000, 64_000, True),
        ("claude-3-5-sonnet-20241022", 200_000, 8_192, False),
        ("claude-3-5-haiku-latest", 200_000, 8_192, False),
        ("claude-3-opus-20240229", 200_000, 4_096, False),
        ("claude-opus-4-5", 200_000, 64_000, True),
        ("claude-opus-4-6", 1_000_000, 128_000, True),
        ("claude-opus-4-7", 1_000_000, 128_000, True),
        ("claude-sonnet-4-6", 1_000_000, 64_000, True),
    ],
    "openai": [
        ("gpt-5", 400_000, 128_000, True),
        ("gpt-5-mini", 400_000, 128_000, True),
        ("gpt-5-nano", 400_000, 128_000, True),
        ("gpt-4.1", 1_047_576, 32_768, False),
        ("gpt-4.1-mini", 1_047_576, 32_768, False),
        ("gpt-4.1-nano", 1_047_576, 32_768, False),
        ("gpt-4o", 128_000, 16_384, False),
        ("gpt-4o-mini", 128_000, 16_384, False),
        ("o4-mini", 200_000, 100_000, True),
        ("o3", 200_000, 100_000, True),
        ("o3-mini", 200_000, 100_000, True),
        ("o1", 200_000, 100_000, True),
        ("gpt-5.1", 272_000, 128_000, True),
        ("gpt-5.2", 272_000, 128_000, True),
        ("gpt-5.3", 272_000, 128_000, True),
        ("gpt-5.4", 272_000, 128_000, True),
        ("gpt-5.4-mini", 272_000, 128_000, True),
        ("gpt-5.5", 400_000, 128_000, True),
        ("gpt-5.5-mini", 400_000, 128_000, True),
    ],
    "kimi": [("kimi-for-coding", 262_144, 32_000, True)],
}

DEFAULTS = {
    "anthropic": "claude-sonnet-5-5",
    "openai": "gpt-6.1-sol",
    "gemini": "gemini-4-argon",
    "deepseek": "deepseek-flash",
    "kimi": "kimi-for-coding",
    "openrouter": "anthropic/claude-sonnet-5.5",
    "groq": "openai/gpt-oss-120b",
    "mistral": "mistral-medium-latest",
    "xai": "grok-4.7",
}


def test_every_vendor_has_its_place_and_the_file_says_when_it_was_made() -> None:
    assert SHIPPED.keys() == {"as_of", "providers"}
    assert date.fromisoformat(SHIPPED["as_of"]) >= date(2026, 10, 26)
    assert SHIPPED["providers"].keys() == VENDORS.keys()


@pytest.mark.parametrize("provider", VENDORS)
def test_every_model_is_sound(provider: str) -> None:
    models = catalogue(provider).models
    assert len({model.id for model in models}) == len(models)
    assert [model.id for model in models if not sound(model, provider)] == []


def sound(model: Model, provider: str) -> bool:
    tiers = model.price.tiers if model.price is not None else ()
    return (
        (model.provider, model.as_of, model.base_url) == (provider, SHIPPED["as_of"], "")
        and bool(model.id and model.name)
        and 0 < model.max_output < model.context_window
        and (model.price is None or provider == "lab" or min(model.price.input, model.price.output) > 0)
        and [tier.above for tier in tiers] == sorted({tier.above for tier in tiers})
    )


@pytest.mark.parametrize("provider", KNOWN)
def test_the_models_that_clients_know_come_first_after_the_default(provider: str) -> None:
    known, models = KNOWN[provider], catalogue(provider).models
    told = [(model.id, model.context_window, model.max_output, model.reasoning) for model in models]
    start = told.index(known[0])
    assert told[start : start + len(known)] == known
    assert [row[0] for row in told[:start]] == [DEFAULTS[provider]][:start]
    assert len(told) > len(known)


@pytest.mark.parametrize("provider", DEFAULTS)
def test_the_default_of_a_provider_is_a_current_model(provider: str) -> None:
    """As of the catalogue's date: the newest model of the line that the first zot had as its default, or an alias."""
    assert catalogue(provider).find(None).id == DEFAULTS[provider]


@pytest.mark.parametrize("provider", DEFAULTS)
def test_no_model_of_the_default_line_is_newer(provider: str) -> None:
    default = catalogue(provider).find(None).id
    line = re.escape(default)
    for number in re.findall(r"\d+", default):
        line = line.replace(number, r"(\d+)", 1)
    versions = {model.id: re.fullmatch(line, model.id) for model in catalogue(provider).models}
    # Grok 4.20 came before 4.3: what follows the point is a fraction.
    numbers = {name: float(".".join(found.groups()) or 0) for name, found in versions.items() if found}
    assert max(numbers, key=lambda name: numbers[name]) == default


@pytest.mark.parametrize("provider", sorted(VENDORS.keys() - {"ollama"}))
def test_every_provider_has_a_default_except_one_with_locally_loaded_models(provider: str) -> None:
    assert catalogue(provider).find(None) == catalogue(provider).models[0]
    assert catalogue("ollama").models == ()


@pytest.mark.parametrize(
    ("provider", "model_id", "price"),
    [
        ("anthropic", "claude-sonnet-4-5", Price(3.0, 15.0, 0.3, 3.75)),
        ("openai", "gpt-5", Price(1.25, 10.0, 0.125)),
        ("gemini", "gemini-2.5-pro", Price(1.25, 10.0, 0.125, None, (Tier(2.5, 15.0, 0.25, above=200_000),))),
        ("kimi", "kimi-for-coding", None),
        ("lab", "lab-1", Price(0.0, 0.0, 0.0)),
    ],
)
def test_prices_are_those_of_the_data(provider: str, model_id: str, price: Price | None) -> None:
    assert catalogue(provider).find(model_id).price == price


def test_a_long_call_costs_what_its_tier_says_for_all_of_its_tokens() -> None:
    gemini = catalogue("gemini").find("gemini-2.5-pro")
    short, long = Counters(100_000, 1000, 100_000, 0, 0.0), Counters(100_000, 1000, 100_001, 0, 0.0)
    assert gemini.charge(short).cost_usd == pytest.approx(0.125 + 0.01 + 0.0125, abs=1e-12)
    assert gemini.charge(long).cost_usd == pytest.approx(0.25 + 0.015 + 0.02500025, abs=1e-12)


def test_the_highest_tier_reached_applies() -> None:
    model = Model("m", "acme", 10, 1, False, Price(1, 0, tiers=(Tier(2, 0, above=10), Tier(3, 0, above=20))))
    costs = [model.charge(Counters(count, 0, 0, 0, 0.0)).cost_usd * 1e6 for count in (10, 11, 20, 21)]
    assert costs == pytest.approx([10, 22, 40, 63])


def test_a_kind_without_a_price_costs_as_much_as_input() -> None:
    plain, cached = Price(2.0, 8.0), Price(2.0, 8.0, 2.0, 2.0)
    counters = Counters(1000, 10, 500, 250, 0.0)
    assert plain.cost(counters) == cached.cost(counters)


# The script.

DATA = """
import datetime
from decimal import Decimal
from .types import *

__all__ = ('providers',)
MODELS = 'replaced'
providers: list[Provider] = [
    Provider(id='anthropic', name='Anthropic', models=[
        ModelInfo(id='claude-sonnet-4-5', match=ClauseOr(or_=[ClauseStartsWith(starts_with='claude-sonnet-4-5')]),
            name='Sonnet', context_window=200000, prices=ModelPrice(
                input_mtok=TieredPrices(base=Decimal('3'), tiers=[Tier(start=200000, price=Decimal('6'))]),
                output_mtok=Decimal('15'))),
        ModelInfo(id='claude-opus-5', match=ClauseEquals(equals='claude-opus-5'), context_window=1000000, prices=[
            ConditionalPrice(prices=ModelPrice(input_mtok=Decimal('9'), output_mtok=Decimal('9'))),
            ConditionalPrice(constraint=StartDateConstraint(start_date=datetime.date(2026, 5, 1)),
                prices=ModelPrice(
                    input_mtok=TieredPrices(base=Decimal('1'), tiers=[Tier(start=100000, price=Decimal('2'))]),
                    output_mtok=Decimal('4'), cache_read_mtok=Decimal('0.1'))),
            ConditionalPrice(constraint=StartDateConstraint(start_date=datetime.date(2027, 1, 1)),
                prices=ModelPrice(input_mtok=Decimal('7'), output_mtok=Decimal('7')))]),
        ModelInfo(id='claude-opus-6', match=ClauseEquals(equals='claude-opus-6'), context_window=5000, deprecated=True,
            prices=ModelPrice(input_mtok=Decimal('1'), output_mtok=Decimal('1'))),
        ModelInfo(id='claude-opus-7', match=ClauseEquals(equals='claude-opus-7'),
            prices=ModelPrice(input_mtok=Decimal('1'), output_mtok=Decimal('1'))),
        ModelInfo(id='claude-haiku-8', match=ClauseEquals(equals='claude-haiku-8'), context_window=5000,
            prices=ModelPrice(input_mtok=Decimal('1'))),
        ModelInfo(id='claude-opus-9-image', match=ClauseEquals(equals='x'), context_window=5000,
            prices=ModelPrice(input_mtok=Decimal('1'), output_mtok=Decimal('1'))),
    ]),
    Provider(id='deepseek', name='DeepSeek', models=[
        ModelInfo(id='deepseek-v4', match=ClauseEquals(equals='deepseek-v4'), context_window=100000, prices=[
            ConditionalPrice(prices=ModelPrice(input_mtok=Decimal('1'), output_mtok=Decimal('2'))),
            ConditionalPrice(constraint=TimeOfDateConstraint(start_time=datetime.time(1, 0, tzinfo=datetime.UTC),
                end_time=datetime.time(4, 0, tzinfo=datetime.UTC)),
                prices=ModelPrice(input_mtok=Decimal('2'), output_mtok=Decimal('4')))]),
    ]),
    EMPTY
]
"""


def render(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = spec_from_file_location("catalogue_script", ROOT / "scripts" / "catalogue.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "catalogue_script", script)
    spec.loader.exec_module(script)
    others = ("openai", "google", "moonshotai", "openrouter", "groq", "mistral", "x-ai")
    source = DATA.replace("EMPTY", "".join(f"Provider(id={name!r}, models=[])," for name in others))
    text = script.render(source, date(2026, 10, 26))
    assert text == script.render(source, date(2026, 10, 26))
    return json.loads(text)["providers"]


def test_the_script_keeps_valid_and_useful_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """No retired models, image models, or models without a window or price; and no tier beyond the window."""
    models = {model["id"]: model for model in render(monkeypatch)["anthropic"]}
    assert models["claude-sonnet-4-5"]["price"] == {"input": 3.0, "output": 15.0}
    assert models["claude-opus-4-1"]["price"] is None
    assert models["claude-opus-5"] == {
        "id": "claude-opus-5",
        "name": "claude-opus-5",
        "context_window": 1_000_000,
        "max_output": 64_000,
        "reasoning": True,
        "price": {
            "input": 1.0,
            "output": 4.0,
            "cache_read": 0.1,
            "tiers": [{"above": 100_000, "input": 2.0, "output": 4.0, "cache_read": 0.1}],
        },
    }
    known = {row[0] for row in KNOWN["anthropic"]} | {DEFAULTS["anthropic"]}
    assert [name for name in models if name not in known] == ["claude-opus-5"]


def test_the_script_takes_the_highest_of_hourly_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert render(monkeypatch)["deepseek"][-1]["price"] == {"input": 2.0, "output": 4.0}
