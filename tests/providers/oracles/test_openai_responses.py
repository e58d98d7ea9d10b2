"""The official OpenAI client understands lab's Responses, and we write the requests that it writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import responses_validator

from zot.providers.openai_responses import OpenAIResponses

from .late import Late
from .openai_client import ERRORS, connected, picture
from .scenes import AGAIN, RETRIED, SCENES, STATUSES, TOOL, Call, Heard, sent, told
from .typed import misfits

if TYPE_CHECKING:
    import openai
    from openai.types import responses
else:
    openai = Late("openai")
    responses = Late("openai.types.responses")

TOOLS: list[Any] = [
    {"type": "function", "name": TOOL.name, "description": TOOL.description, "parameters": TOOL.schema, "strict": False}
]


def heard(response: responses.Response) -> Heard:
    thinking = ""
    sealed: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    for item in response.output:
        match item:
            case responses.ResponseOutputMessage():
                assert item.content
            case responses.ResponseReasoningItem():
                assert item.encrypted_content
                thinking += "".join(part.text for part in item.summary)
                sealed += () if item.summary else (item.encrypted_content,)
            case responses.ResponseFunctionToolCall():
                calls += ((item.call_id, item.name, json.loads(item.arguments)),)
            case _:
                raise AssertionError(item)
    return Heard(
        text=response.output_text, thinking=thinking, sealed=sealed, calls=calls,
        stop=_stop(response, called=bool(calls)), counters=_counters(response),
    )  # fmt: skip


def _stop(response: responses.Response, *, called: bool) -> str:
    if response.incomplete_details is not None:
        assert response.status == "incomplete"
        return {"max_output_tokens": "length", "content_filter": "refusal"}[response.incomplete_details.reason or ""]
    assert response.status == "completed"
    return "tool_use" if called else "end_turn"


def _counters(response: responses.Response) -> tuple[int, int, int, int]:
    usage = response.usage
    assert usage is not None
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    cached = usage.input_tokens_details.cached_tokens
    return usage.input_tokens - cached, usage.output_tokens, cached, 0


@pytest.mark.parametrize("lines", SCENES)
def test_the_client_understands_a_stream(lab_url: str, lines: str) -> None:
    text, end = "", None
    with connected(lab_url) as client, client.responses.stream(model="lab-1", input=told(lines)) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type in ("response.completed", "response.incomplete"):
                end = event.response
    assert end is not None
    assert heard(end) == SCENES[lines]
    assert text == SCENES[lines].text


@pytest.mark.parametrize("lines", SCENES)
def test_the_client_understands_a_whole_reply(lab_url: str, lines: str) -> None:
    with connected(lab_url) as client:
        assert heard(client.responses.create(model="lab-1", input=told(lines))) == SCENES[lines]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", STATUSES)
def test_the_client_raises_the_right_error(lab_url: str, status: int, *, stream: bool) -> None:
    with connected(lab_url) as client, pytest.raises(openai.APIStatusError) as raised:
        client.responses.create(model="lab-1", input=f"!status {status}", stream=stream)
    assert (type(raised.value), raised.value.status_code) == (getattr(openai, ERRORS[status]), status)
    assert (bool(raised.value.type), bool(raised.value.message)) == (True, True)


def test_the_client_yields_an_error_inside_the_stream(lab_url: str) -> None:
    with connected(lab_url) as client:
        stream = client.responses.create(
            model="lab-1", input=told('say a ;; error rate_limit_exceeded "Too much"'), stream=True
        )
        last = [*stream][-1]
    assert isinstance(last, responses.ResponseErrorEvent)
    assert (last.code, last.message) == ("rate_limit_exceeded", "Too much")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [*RETRIED, "overloaded"])
def test_the_client_retries(lab_url: str, status: int | str, *, stream: bool) -> None:
    asked = told(f"status {status} {AGAIN}")
    with connected(lab_url, retries=2) as client:
        if stream:
            with client.responses.stream(model="lab-1", input=asked) as answer:
                text = answer.get_final_response().output_text
        else:
            text = client.responses.create(model="lab-1", input=asked).output_text
    assert text == "ok"


def test_the_client_continues_a_response(lab_url: str) -> None:
    asked = told("call read {} id=c1 ;; --- ;; say ok")
    with connected(lab_url) as client:
        first = client.responses.create(model="lab-1", input=asked)
        results: Any = [{"type": "function_call_output", "call_id": "c1", "output": "x"}]
        second = client.responses.create(model="lab-1", input=results, previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError, match="not found") as raised:
            client.responses.create(model="lab-1", input="x", previous_response_id="resp_nowhere")
    assert second.output_text == "ok"
    assert raised.value.code == "previous_response_not_found"


def test_the_client_counts_tokens(lab_url: str) -> None:
    with connected(lab_url) as client:
        assert client.responses.input_tokens.count(model="lab-1", input="hi").input_tokens > 0


def test_the_client_s_requests_are_accepted(lab_url: str) -> None:
    bodies: list[bytes] = []
    shown = {"type": "input_image", "detail": "auto", "image_url": picture()}
    asked = {"type": "input_text", "text": told("think a ;; call read {} id=c1 ;; --- ;; say b")}
    items: list[Any] = [{"type": "message", "role": "user", "content": [asked, shown]}]
    with connected(lab_url, bodies) as client:
        for _ in range(2):
            with client.responses.stream(
                model="lab-1", store=False, max_output_tokens=8000, prompt_cache_key="k", instructions="Be brief.",
                reasoning={"effort": "low", "summary": "auto"}, include=["reasoning.encrypted_content"],
                tools=TOOLS, parallel_tool_calls=True, input=items,
            ) as stream:  # fmt: skip
                response = stream.get_final_response()
            for item in response.output:
                items.append(item.to_dict(exclude_none=True))
                if item.type == "function_call":
                    items.append({"type": "function_call_output", "call_id": item.call_id, "output": "x"})
    assert response.output_text == "b"
    assert [responses_validator.problems(body) for body in bodies] == [[], []]


def test_our_requests_fit_the_client_s_types() -> None:
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    body = sent(OpenAIResponses(base_url="http://lab.invalid", origin="lab"), "gpt-5")
    assert misfits(body, ResponseCreateParamsStreaming) == []
