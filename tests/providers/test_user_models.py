"""models.json: the user's own models, and corrections of known ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import Zot, serving, text_of
from zot.config.config import Config
from zot.errors import ConfigError, UserError
from zot.providers.lab.script import Script
from zot.providers.models import Catalogue, Model, Price, catalogue
from zot.runtime.provider_choice import models_of


def models(home: Path, provider: str, *own: dict[str, Any]) -> Catalogue:
    """Return the models of a provider, with these in the file."""
    write(home, {"providers": {provider: {"models": own}}})
    return models_of(Config(provider=provider, env={"ZOT_HOME": str(home)}))


def write(home: Path, content: Any) -> Path:
    path = home / "models.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def of(*own: dict[str, Any]) -> dict[str, Any]:
    return {"providers": {"openai": {"models": own}}}


def test_a_new_model_comes_last_with_all_its_declared_fields(tmp_path: Path) -> None:
    mine = {
        "id": "mine", "name": "My model", "reasoning": True, "contextWindow": 5000, "maxTokens": 1000,
        "priceInput": 1, "priceOutput": 2.5, "priceCacheRead": 0.1, "priceCacheWrite": 1.5,
        "baseUrl": "http://localhost:1", "colour": "red",
    }  # fmt: skip
    found = models(tmp_path, "openai", mine)
    assert found.models[:-1] == catalogue("openai").models
    price = Price(1.0, 2.5, 0.1, 1.5)
    assert found.find("mine") == Model("mine", "openai", 5000, 1000, True, price, "My model", "http://localhost:1")


def test_undeclared_fields_of_a_new_model_are_unknown(tmp_path: Path) -> None:
    assert models(tmp_path, "ollama", {"id": "mine"}).find(None) == Model(
        "mine", "ollama", 32_768, 8192, reasoning=True, price=None, name="mine", window_known=False
    )


@pytest.mark.parametrize("prices", [{"priceInput": 1}, {"priceOutput": 1}, {"priceCacheRead": 1}])
def test_half_a_price_is_no_price(tmp_path: Path, prices: dict[str, float]) -> None:
    assert models(tmp_path, "ollama", {"id": "mine", **prices}).find("mine").price is None


def test_a_known_model_keeps_its_place_and_its_other_fields(tmp_path: Path) -> None:
    listed = catalogue("anthropic").models[0]
    found = models(tmp_path, "anthropic", {"id": listed.id, "maxTokens": 10, "priceOutput": 1}).models
    assert [model.id for model in found] == [model.id for model in catalogue("anthropic").models]
    assert found[0] == Model(
        listed.id, "anthropic", listed.context_window, 10, True, Price(2.0, 1.0, 0.1, 2.5), listed.name
    )


def test_a_declared_price_has_no_tiers(tmp_path: Path) -> None:
    found = models(tmp_path, "gemini", {"id": "gemini-2.5-pro", "priceInput": 1}, {"id": "gemini-4-argon", "name": "A"})
    assert found.find("gemini-2.5-pro").price == Price(1.0, 10.0, 0.125)
    assert found.find("gemini-4-argon").price == catalogue("gemini").find("gemini-4-argon").price


def test_free_is_a_price(tmp_path: Path) -> None:
    found = models(tmp_path, "ollama", {"id": "mine", "priceInput": 0, "priceOutput": 0})
    assert found.find("mine").price == Price(0.0, 0.0)


@pytest.mark.parametrize("content", [{}, {"providers": {}}, {"providers": {"acme": {"models": [{"id": "x"}]}}, "v": 2}])
def test_a_file_without_a_provider_s_models_changes_nothing(tmp_path: Path, content: Any) -> None:
    write(tmp_path, content)
    assert models_of(Config(env={"ZOT_HOME": str(tmp_path)})) == catalogue("anthropic")


def test_a_new_model_does_not_open_a_catalogue(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown model 'other'.*, mine$"):
        models(tmp_path, "anthropic", {"id": "mine"}).find("other")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "the JSON ends too early"),
        ("[]", "it must be an object, not a list"),
        ({"providers": []}, "providers must be an object, not a list"),
        (of({}), "providers[...].models[0].id is missing"),
        (of({"id": ""}), "providers[...].models[0].id must be a string that is not empty"),
        (
            of({"id": "m", "contextWindow": "big"}),
            "providers[...].models[0].contextWindow must be a whole number, not a string",
        ),
        (of({"id": "m", "maxTokens": 0}), "providers[...].models[0].maxTokens must be a whole number of at least 1"),
        (of({"id": "m", "priceInput": -1}), "providers[...].models[0].priceInput must be a number of at least 0"),
        (
            of({"id": "m", "baseUrl": 1}),
            "providers[...].models[0].baseUrl must be a string, not a whole number",
        ),
    ],
)
def test_a_wrong_file_is_named_with_the_field_that_is_wrong(tmp_path: Path, content: Any, problem: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        models_of(Config(env={"ZOT_HOME": str(tmp_path)}))
    assert str(caught.value) == f"{path}: {problem}"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "models.json").mkdir()
    with pytest.raises(ConfigError, match=r"models\.json: Is a directory$"):
        models_of(Config(env={"ZOT_HOME": str(tmp_path)}))


# Where a model is asked.


def saying(text: str) -> Script:
    return Script.parse(f"say {text}\n")


def test_a_model_is_called_at_its_own_address(tmp_path: Path, zot: Callable[..., Zot]) -> None:
    with serving(saying("here")) as here, serving(saying("there")) as there:
        own = [{"id": "a", "baseUrl": here}, {"id": "b", "baseUrl": f"{there}/v1"}]
        write(tmp_path, {"providers": {"anthropic": {"models": own}}})
        env = {"ZOT_HOME": str(tmp_path), "ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}
        process = zot("--provider", "anthropic", "--model", "a", env=env)
        assert said(process) == "here"
        process.ask({"type": "set_model", "model": "b"})
        assert said(process) == "there"
        process.finish()


def test_an_address_that_is_given_wins_over_the_models_own(tmp_path: Path, zot: Callable[..., Zot]) -> None:
    with serving(saying("given")) as given:
        write(tmp_path, {"providers": {"anthropic": {"models": [{"id": "a", "baseUrl": "http://127.0.0.1:1"}]}}})
        env = {"ZOT_HOME": str(tmp_path), "ANTHROPIC_API_KEY": "k"}
        process = zot("--provider", "anthropic", "--model", "a", "--base-url", given, env=env)
        assert said(process) == "given"
        process.finish()


def test_a_model_with_an_address_of_its_own_needs_no_key_of_the_vendor(tmp_path: Path, zot: Callable[..., Zot]) -> None:
    with serving(saying("here")) as here:
        write(tmp_path, {"providers": {"anthropic": {"models": [{"id": "a", "baseUrl": here}]}}})
        process = zot("--provider", "anthropic", "--model", "a", env={"ZOT_HOME": str(tmp_path)})
        assert said(process) == "here"
        process.ask({"type": "set_model", "model": "claude-sonnet-4-5"})
        process.send({"type": "prompt", "message": "hi"})
        [error] = [frame["message"] for frame in process.until(type="done") if frame["type"] == "error"]
        assert error.startswith("anthropic: no key for anthropic: set ANTHROPIC_API_KEY")
        process.finish()


def said(process: Zot) -> str:
    process.send({"type": "prompt", "message": "hi"})
    return text_of(process.until(type="done"))


def test_a_call_costs_what_the_file_declares(tmp_path: Path, zot: Callable[..., Zot]) -> None:
    write(tmp_path, {"providers": {"lab": {"models": [{"id": "lab-1", "priceInput": 10, "priceOutput": 50}]}}})
    process = zot(env={"ZOT_HOME": str(tmp_path)})
    process.send({"type": "prompt", "message": "!usage 1000000 2 0 0"})
    [usage] = [frame for frame in process.until(type="done") if frame["type"] == "usage"]
    assert usage["cost_usd"] == 10.0001
    process.finish()
