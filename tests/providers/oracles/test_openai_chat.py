"""The official OpenAI client understands lab's Chat Completions, and we write the requests that it writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import chat_validator
import msgspec
import pytest

from zot.config.vendors import VENDORS
from zot.providers.openai_chat import ChatCompletions

from .late import Late
from .openai_client import ERRORS, connected, picture
from .scenes import AGAIN, RETRIED, SCENES, STATUSES, TOOL, Heard, sent, told
from .typed import misfits

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
else:
    openai = Late("openai")

#: As OpenAI itself wants it: nothing of what other servers added.
QUIRKS = VENDORS["openai"].chat
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.schema}}
]
_STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "content_filter": "refusal"}


def asking(prompt: str) -> dict[str, Any]:
    return {"model": "lab-1", "messages": [{"role": "user", "content": prompt}]}


def heard(completion: ChatCompletion | ChatCompletionChunk, message: ChatCompletionMessage, stop: str) -> Heard:
    calls = tuple(
        (call.id, call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or ()
        if call.type == "function"
    )
    usage = completion.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    cached = (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0
    thinking = (message.model_extra or {}).get("reasoning_content") or ""
    return Heard(
        text=message.content or "", thinking=thinking, calls=calls, stop=_STOPS.get(stop, stop),
        counters=(usage.prompt_tokens - cached, usage.completion_tokens, cached, 0),
    )  # fmt: skip


def expected(lines: str) -> Heard:
    """This API has no form for sealed thoughts."""
    return msgspec.structs.replace(SCENES[lines], sealed=())


@pytest.mark.parametrize("lines", SCENES)
def test_the_client_understands_a_stream(lab_url: str, lines: str) -> None:
    text = thinking = ""
    with connected(lab_url) as client:
        with client.chat.completions.stream(**asking(told(lines)), stream_options={"include_usage": True}) as stream:
            for event in stream:
                if event.type == "chunk" and event.chunk.choices:
                    delta = event.chunk.choices[0].delta
                    text += delta.content or ""
                    thinking += (delta.model_extra or {}).get("reasoning_content") or ""
            # Not the final one: for a reply that was cut off or refused, the client raises instead.
            completion = stream.current_completion_snapshot
    [choice] = completion.choices
    assert heard(completion, choice.message, choice.finish_reason) == expected(lines)
    assert (text, thinking) == (SCENES[lines].text, SCENES[lines].thinking)


@pytest.mark.parametrize("lines", SCENES)
def test_the_client_understands_a_whole_reply(lab_url: str, lines: str) -> None:
    with connected(lab_url) as client:
        completion = client.chat.completions.create(**asking(told(lines)))
    [choice] = completion.choices
    assert heard(completion, choice.message, choice.finish_reason) == expected(lines)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", STATUSES)
def test_the_client_raises_the_right_error(lab_url: str, status: int, *, stream: bool) -> None:
    with connected(lab_url) as client, pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(**asking(f"!status {status}"), stream=stream)
    assert (type(raised.value), raised.value.status_code) == (getattr(openai, ERRORS[status]), status)
    assert (bool(raised.value.type), bool(raised.value.message)) == (True, True)


def test_the_client_raises_an_error_inside_the_stream(lab_url: str) -> None:
    with connected(lab_url) as client:
        stream = client.chat.completions.create(**asking(told('say a ;; error server_error "Too much"')), stream=True)
        with pytest.raises(openai.APIError, match="Too much") as raised:
            list(stream)
    assert (raised.value.code, raised.value.type) == ("server_error", "server_error")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [*RETRIED, "overloaded"])
def test_the_client_retries(lab_url: str, status: int | str, *, stream: bool) -> None:
    asked = told(f"status {status} {AGAIN}")
    with connected(lab_url, retries=2) as client:
        if stream:
            chunks = client.chat.completions.create(**asking(asked), stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            text = client.chat.completions.create(**asking(asked)).choices[0].message.content or ""
    assert text == "ok"


def test_the_client_finds_models(lab_url: str) -> None:
    with connected(lab_url) as client:
        assert [model.id for model in client.models.list()] == ["lab-1"]
        model = client.models.retrieve("gpt-x")
    assert (model.id, model.object) == ("gpt-x", "model")


def test_the_client_s_requests_are_accepted(lab_url: str) -> None:
    bodies: list[bytes] = []
    asked = {"type": "text", "text": told("think a ;; call read {} id=c1 ;; --- ;; say b")}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [asked, {"type": "image_url", "image_url": {"url": picture()}}]},
    ]
    with connected(lab_url, bodies) as client:
        for _ in range(2):
            with client.chat.completions.stream(
                model="lab-1", max_completion_tokens=8000, stream_options={"include_usage": True},
                reasoning_effort="low", tools=TOOLS, messages=messages,
            ) as stream:  # fmt: skip
                message = stream.get_final_completion().choices[0].message
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in message.tool_calls or ()
            ]
            messages.append({"role": "assistant", "content": message.content or None, "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in calls]
    assert message.content == "b"
    assert [chat_validator.problems(body, QUIRKS) for body in bodies] == [[], []]


def test_our_requests_fit_the_client_s_types() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    body = sent(ChatCompletions(base_url="http://lab.invalid", origin="lab", quirks=QUIRKS), "gpt-5")
    assert misfits(body, CompletionCreateParamsStreaming) == []
