"""The official Gemini client understands lab, and we write the requests that it writes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import gemini_validator
import pytest

from zot.providers.gemini import GeminiGenerateContent

from .late import Late
from .scenes import AGAIN, PICTURE, SCENES, STATUSES, TOOL, Call, Heard, sent, told

if TYPE_CHECKING:
    from google import genai
    from google.genai import errors, types
else:
    genai = Late("google.genai")
    errors = Late("google.genai.errors")
    types = Late("google.genai.types")

_FEW_CERTIFICATES = Path(__file__).parent.parent / "tls" / "ca.pem"
_STOPS = {"STOP": "end_turn", "MAX_TOKENS": "length", "SAFETY": "refusal"}


@contextmanager
def connected(
    url: str, bodies: list[bytes] | None = None, retry_options: types.HttpRetryOptions | None = None
) -> Iterator[genai.Client]:
    """A client of lab that keeps its requests."""
    kept = bodies if bodies is not None else []
    hooks = {"request": [lambda request: kept.append(request.read())]}
    # Lab speaks plain HTTP here: to load all certificates for each client would take longer than the rest.
    options = types.HttpOptions(
        base_url=url,
        timeout=15_000,
        retry_options=retry_options,
        client_args={"event_hooks": hooks, "verify": False},
        async_client_args={"verify": False},
    )
    with mock.patch.dict(os.environ, SSL_CERT_FILE=str(_FEW_CERTIFICATES)):
        client = genai.Client(api_key="key", http_options=options)
    try:
        yield client
    finally:
        client.close()


def heard(replies: Iterable[types.GenerateContentResponse]) -> Heard:
    """Join all chunks of a reply. The usage in the last one counts."""
    text = thinking = stop = ""
    sealed: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    usage = types.GenerateContentResponseUsageMetadata()
    for reply in replies:
        for part in _parts(reply):
            if part.function_call is not None:
                call = part.function_call
                calls += ((call.id or "", call.name or "", call.args or {}),)
            elif part.thought and part.thought_signature:
                sealed += (part.thought_signature.decode(),)
            elif part.thought:
                thinking += part.text or ""
            else:
                text += part.text or ""
        usage = reply.usage_metadata or usage
        ends = [candidate.finish_reason for candidate in reply.candidates or () if candidate.finish_reason]
        stop = ends[0].value if ends else stop
    stop = "tool_use" if calls and stop == "STOP" else _STOPS.get(stop, stop)
    return Heard(text=text, thinking=thinking, sealed=sealed, calls=calls, stop=stop, counters=_counters(usage))


def _counters(usage: types.GenerateContentResponseUsageMetadata) -> tuple[int, int, int, int]:
    given, written, cached = usage.prompt_token_count, usage.candidates_token_count, usage.cached_content_token_count
    assert usage.total_token_count == (given or 0) + (written or 0)
    return (given or 0) - (cached or 0), written or 0, cached or 0, 0


@pytest.mark.parametrize("lines", SCENES)
def test_the_client_understands_a_stream(lab_url: str, lines: str) -> None:
    with connected(lab_url) as client:
        assert heard(client.models.generate_content_stream(model="lab-1", contents=told(lines))) == SCENES[lines]


@pytest.mark.parametrize("lines", SCENES)
def test_the_client_understands_a_whole_reply(lab_url: str, lines: str) -> None:
    with connected(lab_url) as client:
        assert heard([client.models.generate_content(model="lab-1", contents=told(lines))]) == SCENES[lines]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", STATUSES)
def test_the_client_raises_the_right_error(lab_url: str, status: int, *, stream: bool) -> None:
    asked: Any = {"model": "lab-1", "contents": f"!status {status}"}
    with connected(lab_url) as client, pytest.raises(errors.APIError) as raised:
        list(client.models.generate_content_stream(**asked) if stream else [client.models.generate_content(**asked)])
    assert type(raised.value) is (errors.ServerError if status >= 500 else errors.ClientError)
    assert (raised.value.code, bool(raised.value.status), bool(raised.value.message)) == (status, True, True)


def test_the_client_raises_an_error_inside_the_stream(lab_url: str) -> None:
    lines = 'say a ;; error overloaded_error "Too much"'
    with connected(lab_url) as client, pytest.raises(errors.APIError, match="Too much") as raised:
        list(client.models.generate_content_stream(model="lab-1", contents=told(lines)))
    assert (raised.value.code, raised.value.status) == (503, "UNAVAILABLE")


#: The client has a list of its own, without 409 and 529.
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, "overloaded"])
def test_the_client_retries(lab_url: str, status: int | str) -> None:
    options = types.HttpRetryOptions(attempts=3, initial_delay=0.001, max_delay=0.002, jitter=0.0)
    with connected(lab_url, retry_options=options) as client:
        asked = told(f"status {status} {AGAIN}")
        assert heard([client.models.generate_content(model="lab-1", contents=asked)]).text == "ok"
        assert heard(client.models.generate_content_stream(model="lab-1", contents=asked)).text == "ok"


def test_the_client_counts_tokens_and_finds_models(lab_url: str) -> None:
    with connected(lab_url) as client:
        assert (client.models.count_tokens(model="lab-1", contents="hi").total_tokens or 0) > 0
        assert [model.name for model in client.models.list()] == ["models/lab-1"]
        model = client.models.get(model="gemini-x")
    assert (model.name, model.display_name) == ("models/gemini-x", "gemini-x")
    assert model.supported_actions == ["generateContent", "countTokens"]


def test_the_client_s_requests_are_accepted(lab_url: str) -> None:
    bodies: list[bytes] = []
    asked = types.Part(text=told("think a ;; call read {} id=c1 ;; --- ;; say b"))
    contents = [types.Content(role="user", parts=[asked, types.Part.from_bytes(data=PICTURE, mime_type="image/png")])]
    declared = types.FunctionDeclaration(
        name=TOOL.name, description=TOOL.description, parameters_json_schema=TOOL.schema
    )
    config = types.GenerateContentConfig(
        system_instruction=types.Content(parts=[types.Part(text="Be brief.")]),
        max_output_tokens=8000,
        thinking_config=types.ThinkingConfig(include_thoughts=True),
        tools=[types.Tool(function_declarations=[declared])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    with connected(lab_url, bodies) as client:
        for _ in range(2):
            chunks = [*client.models.generate_content_stream(model="lab-1", contents=contents, config=config)]
            parts = [part for chunk in chunks for part in _parts(chunk) if part.text or part.function_call]
            contents.append(types.Content(role="model", parts=parts))
            calls = [part.function_call for part in parts if part.function_call]
            results = [types.FunctionResponse(id=call.id, name=call.name, response={"output": "x"}) for call in calls]
            contents.append(
                types.Content(role="user", parts=[types.Part(function_response=result) for result in results])
            )
    assert [part.text for part in parts] == ["b"]
    assert [gemini_validator.problems(body) for body in bodies] == [[], []]


def _parts(chunk: types.GenerateContentResponse) -> list[types.Part]:
    contents = [candidate.content for candidate in chunk.candidates or () if candidate.content]
    return [part for content in contents for part in content.parts or ()]


def test_our_requests_fit_the_client_s_types() -> None:
    body = sent(GeminiGenerateContent(base_url="http://lab.invalid", origin="lab"), "gemini-3-flash")
    assert body.keys() == {"contents", "generationConfig", "systemInstruction", "tools"}
    types.GenerationConfig.model_validate(body["generationConfig"])
    types.Content.model_validate(body["systemInstruction"])
    for content in body["contents"]:
        types.Content.model_validate(content)
    for tool in body["tools"]:
        types.Tool.model_validate(tool)
