"""Addresses and APIs of the vendors."""

from __future__ import annotations

import pytest

from zot.config.vendors import VENDORS, ApiName, Endpoint, endpoint
from zot.errors import ConfigError


@pytest.mark.parametrize(
    ("vendor", "api", "base_url", "env", "expected"),
    [
        ("openai", "chat", None, {}, Endpoint("chat", "https://api.openai.com", False, False)),
        (
            "openai",
            "chat",
            "https://api.openai.com/v1",
            {},
            Endpoint("chat", "https://api.openai.com/v1", False, False),
        ),
        ("openai", None, "http://localhost:1", {}, Endpoint("chat", "http://localhost:1", True, True)),
        ("openai", None, None, {"OPENAI_BASE_URL": "http://a:1"}, Endpoint("chat", "http://a:1", True, True)),
        ("openai", None, "http://b:1", {"OPENAI_BASE_URL": "http://a:1"}, Endpoint("chat", "http://b:1", True, True)),
        ("openai", "responses", "http://b:1", {}, Endpoint("responses", "http://b:1", True, True)),
        ("groq", None, "http://proxy:1", {}, Endpoint("chat", "http://proxy:1", False, True)),
        ("lab", "chat", None, {}, Endpoint("chat", "http://lab.invalid", False, False)),
    ],
)
def test_an_address_decides_where_and_how(
    vendor: str, api: ApiName | None, base_url: str | None, env: dict[str, str], expected: Endpoint
) -> None:
    assert endpoint(VENDORS[vendor], api=api, base_url=base_url, env=env) == expected


@pytest.mark.parametrize(
    "spelled",
    [
        "https://api.anthropic.com:443", "https://API.Anthropic.com", "HTTPS://api.anthropic.com",
        "https://api.anthropic.com/", "https://api.anthropic.com./", "https://api.anthropic.com/v1",
        "https://api.anthropic.com:443//v1//", "https://api.anthropic.com.:443/v1/", "https://api.anthropic.com#x",
    ],
)  # fmt: skip
def test_the_vendor_s_own_address_may_be_spelled_in_other_ways(spelled: str) -> None:
    where = endpoint(VENDORS["anthropic"], api=None, base_url=spelled, env={})
    assert where == Endpoint("anthropic", spelled, False, False)


@pytest.mark.parametrize(
    "other",
    [
        "http://api.anthropic.com", "https://api.anthropic.com:8443", "http://api.anthropic.com:443",
        "https://api.anthropic.com.evil.test", "https://evil.test/api.anthropic.com",
        "https://api.anthropic.com@evil.test", "https://evil.test#api.anthropic.com", "https://api.anthropic.com/proxy",
        "https://api.anthropic.com?x=1", "https://api.anthropic.com..", "https://api.anthropic.com:0443443", "nonsense",
    ],
)  # fmt: skip
def test_another_address_is_not_the_vendor_s_own(other: str) -> None:
    assert endpoint(VENDORS["anthropic"], api=None, base_url=other, env={}).elsewhere


@pytest.mark.parametrize(
    ("vendor", "spelled"),
    [
        ("gemini", "https://generativelanguage.googleapis.com/v1beta/"),
        ("groq", "https://api.groq.com:443/openai/v1/chat/completions"),
        ("openrouter", "https://OpenRouter.ai/api/v1"),
    ],
)
def test_its_own_address_may_have_a_path(vendor: str, spelled: str) -> None:
    assert not endpoint(VENDORS[vendor], api=None, base_url=spelled, env={}).elsewhere


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("", "http://localhost:11434"),
        ("http://gpu:8080", "http://gpu:8080"),
        ("https://gpu/ollama", "https://gpu/ollama"),
        ("gpu", "http://gpu:11434"),
        ("gpu:8080", "http://gpu:8080"),
        (":8080", "http://localhost:8080"),
        ("0.0.0.0", "http://localhost:11434"),
        ("0.0.0.0:8080", "http://localhost:8080"),
        ("[::]:8080", "http://localhost:8080"),
        ("[::1]", "http://[::1]:11434"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_address_of_ollama_may_be_as_short_as_ollama_accepts(given: str, address: str) -> None:
    assert endpoint(VENDORS["ollama"], api=None, base_url=None, env={"OLLAMA_HOST": given}).base_url == address


def test_an_api_that_a_vendor_does_not_speak_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"groq does not speak the API 'gemini'; it speaks: chat"):
        endpoint(VENDORS["groq"], api="gemini", base_url=None, env={})
