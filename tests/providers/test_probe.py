"""One request to a service, and the verdict on the key."""

from __future__ import annotations

import json

import pytest

from fakes import Answer, FakeTransport
from zot.config.vendors import VENDORS, endpoint
from zot.errors import ConnectionFailed
from zot.providers import model_listing as probing
from zot.providers.base import HttpRequest
from zot.providers.model_listing import Probed, probe


async def ask(transport: FakeTransport, name: str = "anthropic", key: str = "k") -> Probed:
    vendor = VENDORS[name]
    return await probe(vendor, endpoint(vendor, api=None, base_url=None, env={}), key, transport)


REFUSED_BY_GEMINI = json.dumps({"error": {"code": 400, "details": [{"reason": "API_KEY_INVALID"}]}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "probed"),
    [
        (200, b"{}", Probed("accepted", "it accepts the key")),
        (401, b"k", Probed("refused", "it refuses the key (http 401)")),
        (403, b"", Probed("refused", "it refuses the key (http 403)")),
        (400, REFUSED_BY_GEMINI, Probed("refused", "it refuses the key (http 400)")),
        (400, b'{"error": {"details": [{"reason": 7}]}}', Probed("unclear", "it answers http 400")),
        (
            400,
            b'{"code": "invalid-argument", "error": "Incorrect API key provided: k."}',
            Probed("refused", "it refuses the key (http 400)"),
        ),
        (402, b"", Probed("unclear", "it answers http 402")),
        (404, b"<html>", Probed("unclear", "it answers http 404")),
        (429, b"", Probed("unclear", "it answers http 429")),
        (503, b"k", Probed("unreachable", "it failed (http 503)")),
    ],
)
async def test_an_answer_is_judged_by_its_status(status: int, body: bytes, probed: Probed) -> None:
    transport = FakeTransport([Answer([body], status)])
    assert await ask(transport) == probed
    assert [response.closed for response in transport.responses] == [True]


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://here:8000", "http://here:8000/v1/models"),
        ("http://here:8000/v1/", "http://here:8000/v1/models"),
        ("https://here/api/paas/v4", "https://here/api/paas/v4/models"),
        ("https://here/v1/chat/completions", "https://here/v1/models"),
    ],
)
async def test_a_custom_server_is_asked_at_its_address(address: str, url: str) -> None:
    transport, vendor = FakeTransport([Answer([b""])]), VENDORS["openai"]
    await probe(vendor, endpoint(vendor, api=None, base_url=address, env={}), "", transport)
    assert [request.url for request in transport.requests] == [url]


async def test_without_a_key_none_can_be_refused() -> None:
    assert await ask(FakeTransport([Answer([b""], 401)]), "ollama", "") == Probed(
        "refused", "it requires a key (http 401)"
    )
    assert await ask(FakeTransport([Answer([b""], 200)]), "ollama", "") == Probed("accepted", "it answers")


async def test_an_unreachable_service_is_reported() -> None:
    assert await ask(FakeTransport([ConnectionFailed("no route")])) == Probed("unreachable", "no route")


async def test_a_service_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "WITHIN_S", 0.05)
    assert await ask(FakeTransport([None])) == Probed("unreachable", "no answer within 0.05 s")
    assert await ask(FakeTransport([Answer([None], 500)])) == Probed("unreachable", "no answer within 0.05 s")


@pytest.mark.parametrize(
    ("name", "url", "headers"),
    [
        (
            "anthropic",
            "https://api.anthropic.com/v1/models?limit=1",
            {"x-api-key": "k", "anthropic-version": "2023-06-01"},
        ),
        ("openai", "https://api.openai.com/v1/models", {"authorization": "Bearer k"}),
        ("gemini", "https://generativelanguage.googleapis.com/v1beta/models?pageSize=1", {"x-goog-api-key": "k"}),
        ("groq", "https://api.groq.com/openai/v1/models", {"authorization": "Bearer k"}),
        ("openrouter", "https://openrouter.ai/api/v1/key", {"authorization": "Bearer k"}),
    ],
)
async def test_each_service_gets_a_request_that_needs_a_key(name: str, url: str, headers: dict[str, str]) -> None:
    transport = FakeTransport([Answer([b""])])
    await ask(transport, name)
    assert transport.requests == [HttpRequest(url, {"accept": "application/json", **headers}, b"", "GET")]
