"""Errors that services report only in a sentence are classified; similar sentences stay bad requests."""

from __future__ import annotations

import json

import pytest

from zot.errors import AuthFailed, BadRequest, ContextTooLong, NoCredit, ProviderError, ServiceFailed
from zot.providers.api_errors import error_from_body, response_error, stream_error


def _anthropic(message: str) -> object:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}, "request_id": "req_1"}


def _google(message: str) -> object:
    return [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}]


def _openai(message: str, kind: str | None = "invalid_request_error", code: object = None) -> object:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _flat(message: str, kind: str, code: object) -> object:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def _xai(message: str) -> object:
    return {"code": "Client specified an invalid argument", "error": message}


def _openrouter(raw: object) -> object:
    return {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": json.dumps(raw)}}}


_VLLM = "This model's maximum context length is 8192 tokens. However, you requested {} output tokens and your prompt contains at least {} input tokens, for a total of at least {} tokens."  # noqa: E501
_ROUTED = "This endpoint's maximum context length is 65536 tokens. However, you requested about {} tokens ({} of text input, {} in the output)."  # noqa: E501
_VLLM_OUTPUT = "'max_tokens' or 'max_completion_tokens' is too large: {}. This model's maximum context length is 4096 tokens and your request has {} input tokens."  # noqa: E501

TOO_LONG: dict[str, object] = {
    "anthropic": _anthropic("prompt is too long: 207791 tokens > 200000 maximum"),
    "anthropic on other clouds": _anthropic("Prompt is too long"),
    "anthropic, with the answer": _anthropic(
        "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input length"
    ),
    "gemini": _google("The input token count (1200293) exceeds the maximum number of tokens allowed (1048576)."),
    "gemini, older": _google("The input token count exceeds the maximum number of tokens allowed 32768."),
    "deepseek": _openai(
        "This model's maximum context length is 131072 tokens. However, you requested 131172 tokens (131072 in the "
        "messages, 100 in the completion). Please reduce the length of the messages or completion.",
        code="invalid_request_error",
    ),
    "openai of old": _openai(
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens."
    ),
    "vllm": _flat(_VLLM.format(64, 8129, 8193), "BadRequestError", 400),
    "vllm, about the answer": _flat(_VLLM_OUTPUT.format(2000, 2104), "BadRequestError", 400),
    "openrouter": {"error": {"message": _ROUTED.format(70000, 62000, 8000), "code": 400}},
    "openrouter, from behind": _openrouter(_anthropic("prompt is too long: 207791 tokens > 200000 maximum")),
    "openrouter, with a word from behind": _openrouter(_openai("m", code="context_length_exceeded")),
    "xai": _xai("This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    "mistral": _flat(
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        "invalid_request_prompt",
        "3051",
    ),
    "kimi": _openai("Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)"),
    "groq's words": _openai("Please reduce the length of the messages or completion."),
    "llama.cpp of old": _openai("the request exceeds the available context size, try increasing it", code=400),
    "lm studio": {"error": "The number of tokens to keep from the initial prompt is greater than the context length."},
    "ollama": _openai("prompt too long; exceeded max context length by 4096 tokens", "api_error"),
    "together": _openai("The input (265330 tokens) is longer than the model's context length (262144 tokens)."),
    "litellm": _openai("litellm.ContextWindowExceededError: OpenAIException - whatever", "None", "400"),
}

NEAR_MISSES: dict[str, object] = {
    "too long an answer": _anthropic("max_tokens: 21333 > 4096, which is the maximum allowed number of output tokens"),
    "too long an answer at openai": _openai("max_tokens is too large: 99. This model supports at most 16384 tokens."),
    "an answer as long as the window": _flat(_VLLM_OUTPUT.format(4096, 12), "BadRequestError", 400),
    "little said, much wanted": {"error": {"message": _ROUTED.format(65810, 1430, 64000), "code": 400}},
    "little said, much wanted at vllm": _flat(_VLLM.format(8100, 93, 8193), "BadRequestError", 400),
    "little said, much wanted at anthropic": _anthropic(
        "input length and `max_tokens` exceed context limit: 9 + 200000 > 200000"
    ),
    "a name that is too long": _anthropic("tools.0.name: String should have at most 64 characters; name is too long"),
    "a quotation": _anthropic('messages.3: unexpected text "prompt is too long: 5 tokens > 4 maximum"'),
    "another thing in the prompt": _anthropic("prompt is too long for a cache of this kind"),
    "another count": _google("The number of function declarations exceeds the maximum number of tokens allowed"),
    "a file": _google("Request payload size exceeds the limit: 20971520 bytes."),
    "a word that tells": _openai("This model's maximum context length is 8192 tokens.", code="unsupported_value"),
    "a word from behind that tells": _openrouter(_openai("prompt is too long", code="unsupported_value")),
    "mistral's number for something else": _flat("Prompt has a bad role", "invalid_request_prompt", "3051"),
    "nothing at all": _anthropic(""),
}

OTHERS: dict[str, tuple[object, type[ProviderError]]] = {
    "anthropic's credit": (
        _anthropic("Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."),
        NoCredit,
    ),
    "anthropic's limit": (_anthropic("You have reached your specified API usage limits. You will regain"), NoCredit),
    "xai's key": (_xai("Incorrect API key provided: na***ys. You can obtain an API key from x.ai."), AuthFailed),
}


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("case", TOO_LONG)
def test_a_too_long_conversation_is_recognised_by_the_message(case: str, status: int) -> None:
    assert type(response_error(status, {}, json.dumps(TOO_LONG[case]).encode(), now=0.0)) is ContextTooLong


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_similar_messages_stay_bad_requests(case: str) -> None:
    assert type(response_error(400, {}, json.dumps(NEAR_MISSES[case]).encode(), now=0.0)) is BadRequest


@pytest.mark.parametrize("case", OTHERS)
def test_credit_and_key_errors_are_recognised_by_the_message(case: str) -> None:
    body, kind = OTHERS[case]
    assert type(response_error(400, {}, json.dumps(body).encode(), now=0.0)) is kind


def test_the_message_is_ignored_with_another_status() -> None:
    body = json.dumps(_anthropic("prompt is too long: 207791 tokens > 200000 maximum")).encode()
    kinds = [type(response_error(status, {}, body, now=0.0)) for status in (401, 409, 418, 429, 500)]
    assert ContextTooLong not in kinds
    assert ContextTooLong is type(response_error(400, {}, body, now=0.0))


def test_inside_a_stream_the_message_counts_for_bad_requests() -> None:
    said = "prompt is too long: 207791 tokens > 200000 maximum"
    assert type(stream_error("invalid_request_error", said)) is ContextTooLong
    assert type(error_from_body(json.dumps({"error": {"message": said, "code": 400}}).encode())) is ContextTooLong
    assert type(stream_error("api_error", said)) is ServiceFailed
    assert type(stream_error("", said)) is ServiceFailed
