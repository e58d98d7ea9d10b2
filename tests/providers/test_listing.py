"""The models that a service reports: the request to each, the decoded list, and the errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from fakes import Answer, FakeTransport
from zot.errors import AuthFailed, ConnectionFailed, NoCredit, NotFound, ProviderError, Stalled, StreamBroken
from zot.providers.model_listing import Dialect, Served, list_models, merged
from zot.providers.models import Catalogue, Model, catalogue


def page(content: Any, status: int = 200) -> Answer:
    """One answer, byte by byte."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Answer([bytes([byte]) for byte in body], status=status)


async def ask(
    transport: FakeTransport, dialect: Dialect = "chat", *, base_url: str = "https://api.test", key: str = "sk-secret"
) -> tuple[Served, ...]:
    return await list_models("acme", dialect, transport, base_url=base_url, key=key)


ANTHROPIC = {
    "data": [{"type": "model", "id": "claude-x", "display_name": "Claude X", "max_input_tokens": 9, "max_tokens": 3}],
    "has_more": True,
    "last_id": "claude-x",
}
LAST = {"data": [{"id": "claude-y", "display_name": "Claude Y"}], "has_more": False, "last_id": "claude-y"}
GEMINI = {
    "models": [
        {"name": "models/gemini-x", "displayName": "Gemini X", "inputTokenLimit": 9, "outputTokenLimit": 3,
         "supportedGenerationMethods": ["generateContent", "countTokens"]},
        {"name": "models/embedding-x", "supportedGenerationMethods": ["embedContent"]},
    ],
    "nextPageToken": "a/b",
}  # fmt: skip
OPENAI = {"object": "list", "data": [{"id": "gpt-x", "object": "model", "created": 1, "owned_by": "o"}]}
GROQ = {"data": [{"id": "llama-x", "context_window": 9, "max_completion_tokens": 3}]}
MISTRAL = {"data": [{"id": "mistral-x", "name": "M", "max_context_length": 9}]}
OPENROUTER = {
    "data": [{"id": "a/x", "name": "A: X", "context_length": 9, "top_provider": {"max_completion_tokens": 3}}]
}
OLLAMA = {"models": [{"name": "llama3:8b", "model": "llama3:8b", "size": 1}]}


@pytest.mark.parametrize(
    ("dialect", "pages", "urls", "header", "served"),
    [
        (
            "anthropic",
            [ANTHROPIC, LAST],
            ["/v1/models?limit=1000", "/v1/models?limit=1000&after_id=claude-x"],
            ("x-api-key", "sk-secret"),
            [Served("claude-x", "Claude X", 9, 3), Served("claude-y", "Claude Y")],
        ),
        (
            "gemini",
            [GEMINI, {"models": []}],
            ["/v1beta/models?pageSize=1000", "/v1beta/models?pageSize=1000&pageToken=a%2Fb"],
            ("x-goog-api-key", "sk-secret"),
            [Served("gemini-x", "Gemini X", 9, 3)],
        ),
        ("responses", [OPENAI], ["/v1/models"], ("authorization", "Bearer sk-secret"), [Served("gpt-x")]),
        ("chat", [GROQ], ["/v1/models"], ("authorization", "Bearer sk-secret"), [Served("llama-x", "", 9, 3)]),
        ("chat", [MISTRAL], ["/v1/models"], ("authorization", "Bearer sk-secret"), [Served("mistral-x", "M", 9)]),
        ("chat", [OPENROUTER], ["/v1/models"], ("authorization", "Bearer sk-secret"), [Served("a/x", "A: X", 9, 3)]),
        ("ollama", [OLLAMA], ["/api/tags"], ("authorization", "Bearer sk-secret"), [Served("llama3:8b")]),
    ],
)  # fmt: skip
async def test_every_service_is_asked_in_its_own_way(
    dialect: Dialect, pages: Sequence[Any], urls: list[str], header: tuple[str, str], served: list[Served]
) -> None:
    transport = FakeTransport([page(content) for content in pages])
    assert list(await ask(transport, dialect)) == served
    assert [request.url for request in transport.requests] == [f"https://api.test{url}" for url in urls]
    assert {request.headers[header[0]] for request in transport.requests} == {header[1]}
    assert {(request.method, request.body) for request in transport.requests} == {("GET", b"")}
    assert [response.closed for response in transport.responses] == [1] * len(pages)


@pytest.mark.parametrize("base_url", ["http://here:1", "http://here:1/", "http://here:1/v1", "http://here:1/v1/"])
async def test_an_address_may_end_in_the_version(base_url: str) -> None:
    transport = FakeTransport([page(OPENAI)])
    await ask(transport, base_url=base_url, key="")
    assert transport.requests[0].url == "http://here:1/v1/models"
    assert "authorization" not in transport.requests[0].headers


async def test_a_service_that_never_ends_its_list_is_asked_ten_times() -> None:
    transport = FakeTransport([page(ANTHROPIC)] * 20)
    assert len(await ask(transport, "anthropic")) == len(transport.requests) == 10


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            page({"error": {"message": "bad key sk-secret"}}, 401),
            AuthFailed,
            "acme: http 401: bad key [key]; check the key",
        ),
        (
            page(b"nope", 404),
            NotFound,
            "acme: http 404: nope; this server does not list its models, or has another address: see --base-url",
        ),
        (
            Answer([], status=402),
            NoCredit,
            "acme: http 402: no reason was given; the account has no credit left, or may not spend more: see the "
            "provider's page for billing",
        ),
        (
            ConnectionFailed("connection refused"),
            ConnectionFailed,
            "acme: connection refused; check that the server is running and that --base-url is right",
        ),
        (
            page(b"<html>"),
            StreamBroken,
            "acme: the list of models is not what the API promises: JSON is malformed: invalid character (byte 0); "
            "check --base-url",
        ),
        (
            page({"data": [{"id": 7}]}),
            StreamBroken,
            "acme: the list of models is not what the API promises: data[0].id must be a string, not a whole number; "
            "check --base-url",
        ),
        (
            Answer([b" " * (1 << 20)] * 9),
            StreamBroken,
            "acme: the list of models is longer than 8 MiB; check --base-url",
        ),
    ],
)
async def test_a_failure_names_its_provider_and_a_remedy(answer: Any, kind: type[ProviderError], text: str) -> None:
    transport = FakeTransport([answer])
    with pytest.raises(ProviderError) as caught:
        await ask(transport)
    assert (type(caught.value), str(caught.value), caught.value.provider) == (kind, text, "acme")
    assert [response.closed for response in transport.responses] == [1] * len(transport.responses)


@pytest.mark.parametrize("answer", [None, Answer([b"{", None])])
async def test_a_service_that_falls_silent_is_given_up_at_the_deadline(answer: Answer | None) -> None:
    with pytest.raises(Stalled, match=r"^acme: the list of models did not arrive within 0\.05 s; try again$"):
        await list_models("acme", "chat", FakeTransport([answer]), base_url="http://x", key="", within_s=0.05)


def test_served_models_are_marked_and_unknown_ones_added() -> None:
    listed = Catalogue(
        "acme", (Model("a", "acme", 9, 3, True), Model("b", "acme", 9, 3, True), Model("c", "acme", 9, 3, True))
    )
    served = [Served("a"), Served("b-20250929"), Served("d-2026-01-31", "D", 5, 2), Served("e")]
    assert merged(listed, served) == [
        (listed.models[0], True),
        (listed.models[1], True),
        (listed.models[2], False),
        (Model("d-2026-01-31", "acme", 5, 2, reasoning=True, name="D"), True),
        (Model("e", "acme", 32_768, 8192, reasoning=True, name="e", window_known=False), True),
    ]


def test_the_models_we_know_lose_nothing() -> None:
    known = catalogue("openai")
    assert merged(known, []) == [(model, False) for model in known.models]
