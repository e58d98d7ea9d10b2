"""The official Anthropic client understands lab, and we write the requests that it writes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import validator

from zot.providers.anthropic import AnthropicMessages

from .late import Late
from .scenes import AGAIN, PICTURE, RETRIED, SCENES, STATUSES, TOOL, Call, Heard, sent, told
from .typed import misfits

if TYPE_CHECKING:
    import anthropic
else:
    anthropic = Late("anthropic")

ASK: dict[str, Any] = {"model": "lab-1", "max_tokens": 8000}
TYPES = {
    400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError",
    404: "NotFoundError", 413: "RequestTooLargeError", 422: "UnprocessableEntityError",
    429: "RateLimitError", 500: "InternalServerError", 503: "ServiceUnavailableError",
    529: "OverloadedError",
}  # fmt: skip


@pytest.fixture(scope="module")
def client(lab_url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="key", base_url=lab_url, max_retries=0, timeout=15.0) as asked:
        yield asked


def heard(message: anthropic.types.Message) -> Heard:
    text = thinking = ""
    sealed: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    for block in message.content:
        match block:
            case anthropic.types.TextBlock():
                text += block.text
            case anthropic.types.ThinkingBlock():
                assert block.signature
                thinking += block.thinking
            case anthropic.types.RedactedThinkingBlock():
                sealed += (block.data,)
            case anthropic.types.ToolUseBlock():
                calls += ((block.id, block.name, block.input),)
            case _:
                raise AssertionError(block)
    stop = {"max_tokens": "length"}.get(message.stop_reason or "", message.stop_reason or "")
    usage = message.usage
    counters = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_input_tokens or 0,
        usage.cache_creation_input_tokens or 0,
    )
    return Heard(text=text, thinking=thinking, sealed=sealed, calls=calls, stop=stop, counters=counters)


@pytest.mark.parametrize("lines", SCENES)
def test_the_client_understands_a_stream(client: anthropic.Anthropic, lines: str) -> None:
    with client.messages.stream(**ASK, messages=[{"role": "user", "content": told(lines)}]) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert heard(message) == SCENES[lines]
    assert text == SCENES[lines].text


@pytest.mark.parametrize("lines", SCENES)
def test_the_client_understands_a_whole_reply(client: anthropic.Anthropic, lines: str) -> None:
    message = client.messages.create(**ASK, messages=[{"role": "user", "content": told(lines)}])
    assert heard(message) == SCENES[lines]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", STATUSES)
def test_the_client_raises_the_right_error(client: anthropic.Anthropic, status: int, *, stream: bool) -> None:
    with pytest.raises(anthropic.APIStatusError) as raised:
        client.messages.create(**ASK, stream=stream, messages=[{"role": "user", "content": f"!status {status}"}])
    assert (type(raised.value), raised.value.status_code) == (getattr(anthropic, TYPES[status]), status)
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["type"] == "error"


def test_the_client_raises_an_error_inside_the_stream(client: anthropic.Anthropic) -> None:
    lines = 'say a ;; error overloaded_error "Too much"'
    with pytest.raises(anthropic.APIStatusError, match="Too much") as raised:
        with client.messages.stream(**ASK, messages=[{"role": "user", "content": told(lines)}]) as stream:
            stream.until_done()
    assert raised.value.body == {"type": "error", "error": {"type": "overloaded_error", "message": "Too much"}}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [*RETRIED, "overloaded"])
def test_the_client_retries(lab_url: str, status: int | str, *, stream: bool) -> None:
    asked = told(f"status {status} {AGAIN}")
    with anthropic.Anthropic(api_key="key", base_url=lab_url, max_retries=2, timeout=15.0) as client:
        if stream:
            with client.messages.stream(**ASK, messages=[{"role": "user", "content": asked}]) as answer:
                message = answer.get_final_message()
        else:
            message = client.messages.create(**ASK, messages=[{"role": "user", "content": asked}])
    assert heard(message).text == "ok"


def test_the_client_counts_tokens_and_finds_models(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="lab-1", messages=[{"role": "user", "content": "hi"}])
    assert counted.input_tokens > 0
    listed = client.models.list()
    assert ([model.id for model in listed], listed.has_more) == (["lab-1"], False)
    model = client.models.retrieve("claude-x")
    assert (model.id, model.type, model.lifecycle, model.created_at.year) == ("claude-x", "model", "active", 1970)


def test_the_client_s_requests_are_accepted(lab_url: str) -> None:
    bodies: list[bytes] = []
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(PICTURE).decode()}
    messages: list[Any] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": told("think a ;; call read {} id=c1 ;; --- ;; say b")},
                {"type": "image", "source": source},
            ],
        }
    ]
    http = anthropic.DefaultHttpxClient(event_hooks={"request": [lambda request: bodies.append(request.read())]})
    with anthropic.Anthropic(api_key="key", base_url=lab_url, http_client=http) as client:
        for _ in range(2):
            with client.messages.stream(
                **ASK,
                system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
                thinking={"type": "enabled", "budget_tokens": 2048},
                tools=[{"name": TOOL.name, "description": TOOL.description, "input_schema": TOOL.schema}],
                messages=messages,
            ) as stream:
                message = stream.get_final_message()
            messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "is_error": False,
                    "content": [{"type": "text", "text": "x"}, {"type": "image", "source": source}],
                }
                for block in message.content
                if block.type == "tool_use"
            ]
            messages.append({"role": "user", "content": results})
    assert message.content[0].type == "text"
    assert [validator.problems(body) for body in bodies] == [[], []]


def test_our_requests_fit_the_client_s_types() -> None:
    from anthropic.types.message_create_params import MessageCreateParamsStreaming

    body = sent(AnthropicMessages(base_url="http://lab.invalid", origin="lab"), "lab-1")
    assert misfits(body, MessageCreateParamsStreaming) == []
