"""The same script in the words of each API, as bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from inline_snapshot import snapshot
from msgspec import Raw

from zot.providers.lab.anthropic import AnthropicApi
from zot.providers.lab.api import LabApi, LabRequest, LabTool, UserText
from zot.providers.lab.gemini import GeminiApi
from zot.providers.lab.openai_chat import ChatApi
from zot.providers.lab.openai_responses import ResponsesApi
from zot.providers.lab.performance import Broken, Silence
from zot.providers.lab.script import Script, demo
from zot.providers.lab.stage import LabService
from zot.providers.models import catalogue

from .talk import CHAT, GEMINI, GEMINI_WHOLE, MESSAGES, RESPONSES, body, steps, stream

REPLY = """
think "hm"
say "Hel" "lo"
call read {"path": "é"} chunks=2
usage input=1 output=2 cache_read=3 cache_write=4
"""


def chat(*, streaming: bool = True) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    options = {"include_usage": True}
    return json.dumps({"model": "m", "messages": messages, "stream": streaming, "stream_options": options}).encode()


def responses(*, streaming: bool = True) -> bytes:
    return json.dumps({"model": "m", "input": "hi", "stream": streaming}).encode()


def gemini() -> bytes:
    return json.dumps({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}).encode()


@pytest.mark.parametrize(
    ("name", "target", "request_"),
    [
        ("anthropic", MESSAGES, body("hi")),
        ("openai_chat", CHAT, chat()),
        ("openai_responses", RESPONSES, responses()),
        ("gemini", GEMINI, gemini()),
    ],
)
def test_each_api_phrases_a_reply_in_its_own_format(name: str, target: str, request_: bytes) -> None:
    golden = Path(__file__).parent / "golden" / f"{name}.sse"
    assert stream(REPLY, request_, target) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("target", "request_", "whole"),
    [
        (
            MESSAGES,
            body("hi", stream=False),
            snapshot(
                {
                    "id": "msg_lab_1",
                    "type": "message",
                    "role": "assistant",
                    "model": "lab",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "lab-dffeeeb5"},
                        {"type": "text", "text": "Hello"},
                        {"type": "tool_use", "id": "toolu_lab_1", "name": "read", "input": {"path": "é"}},
                    ],
                    "stop_reason": "tool_use",
                    "stop_sequence": None,
                    "usage": {
                        "input_tokens": 1,
                        "cache_creation_input_tokens": 4,
                        "cache_read_input_tokens": 3,
                        "output_tokens": 2,
                    },
                }
            ),
        ),
        (
            CHAT,
            chat(streaming=False),
            snapshot(
                {
                    "object": "chat.completion",
                    "id": "chatcmpl-lab-1",
                    "created": 0,
                    "model": "m",
                    "choices": [
                        {
                            "index": 0,
                            "message": {
                                "role": "assistant",
                                "content": "Hello",
                                "refusal": None,
                                "reasoning_content": "hm",
                                "tool_calls": [
                                    {
                                        "id": "call_lab_1",
                                        "type": "function",
                                        "function": {"name": "read", "arguments": '{"path":"é"}'},
                                    }
                                ],
                            },
                            "logprobs": None,
                            "finish_reason": "tool_calls",
                        }
                    ],
                    "usage": {
                        "prompt_tokens": 8,
                        "completion_tokens": 2,
                        "total_tokens": 10,
                        "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 4},
                    },
                }
            ),
        ),
        (
            RESPONSES,
            responses(streaming=False),
            snapshot(
                {
                    "id": "resp_lab_1",
                    "object": "response",
                    "created_at": 0,
                    "status": "completed",
                    "error": None,
                    "incomplete_details": None,
                    "instructions": None,
                    "metadata": {},
                    "model": "m",
                    "output": [
                        {
                            "id": "rs_lab_1_0",
                            "type": "reasoning",
                            "summary": [{"type": "summary_text", "text": "hm"}],
                            "encrypted_content": "lab-rs_lab_1_0",
                        },
                        {
                            "id": "msg_lab_1_1",
                            "type": "message",
                            "status": "completed",
                            "role": "assistant",
                            "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
                        },
                        {
                            "id": "fc_lab_1_2",
                            "type": "function_call",
                            "status": "completed",
                            "call_id": "call_lab_1",
                            "name": "read",
                            "arguments": '{"path":"é"}',
                        },
                    ],
                    "parallel_tool_calls": True,
                    "temperature": 1.0,
                    "tool_choice": "auto",
                    "tools": [],
                    "top_p": 1.0,
                    "usage": {
                        "input_tokens": 8,
                        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 4},
                        "output_tokens": 2,
                        "output_tokens_details": {"reasoning_tokens": 0},
                        "total_tokens": 10,
                    },
                }
            ),
        ),
        (
            GEMINI_WHOLE,
            gemini(),
            snapshot(
                {
                    "candidates": [
                        {
                            "content": {
                                "parts": [
                                    {"text": "hm", "thought": True},
                                    {"text": "Hello"},
                                    {
                                        "functionCall": {"id": "call_lab_1", "name": "read", "args": {"path": "é"}},
                                        "thoughtSignature": "bGFiLWRmZmVlZWI1",
                                    },
                                ],
                                "role": "model",
                            },
                            "index": 0,
                            "finishReason": "STOP",
                        }
                    ],
                    "usageMetadata": {
                        "promptTokenCount": 8,
                        "cachedContentTokenCount": 3,
                        "candidatesTokenCount": 2,
                        "totalTokenCount": 10,
                    },
                    "modelVersion": "m",
                    "responseId": "resp_lab_1",
                }
            ),
        ),
    ],
)
def test_a_reply_as_one_body(target: str, request_: bytes, whole: Any) -> None:
    assert json.loads(stream(REPLY, request_, target)) == whole


def in_every_api(lines: str) -> list[str]:
    """Return the reply of each API to the same script."""
    requests = ((body("hi"), MESSAGES), (chat(), CHAT), (responses(), RESPONSES), (gemini(), GEMINI))
    return [stream(lines, request, target) for request, target in requests]


def test_usage_can_be_reported_twice() -> None:
    lines = "usage-twice\nsay x"
    counts = [
        stream(lines).count('"output_tokens":20'),
        stream(lines, chat(), CHAT).count('"completion_tokens":20'),
        stream(lines, responses(), RESPONSES).count('"output_tokens":20'),
        stream(lines, gemini(), GEMINI).count('"candidatesTokenCount":20'),
    ]
    assert counts == [2, 2, 2, 2]


def test_chat_completions_counts_only_when_asked() -> None:
    request = b'{"model":"m","messages":[],"stream":true}'
    assert '"usage"' not in stream("say x", request, CHAT)


@pytest.mark.parametrize(
    ("stop", "spoken"),
    [
        (
            "end_turn",
            ('"stop_reason":"end_turn"', '"finish_reason":"stop"', "response.completed", '"finishReason":"STOP"'),
        ),
        (
            "tool_use",
            ('"stop_reason":"tool_use"', '"finish_reason":"tool_calls"', "response.completed", '"finishReason":"STOP"'),
        ),
        (
            "length",
            (
                '"stop_reason":"max_tokens"',
                '"finish_reason":"length"',
                '{"reason":"max_output_tokens"}',
                '"finishReason":"MAX_TOKENS"',
            ),
        ),
        (
            "refusal",
            (
                '"stop_reason":"refusal"',
                '"finish_reason":"content_filter"',
                '{"reason":"content_filter"}',
                '"finishReason":"SAFETY"',
            ),
        ),
        (
            "pause_turn",
            ('"stop_reason":"pause_turn"', '"finish_reason":"stop"', "response.completed", '"finishReason":"STOP"'),
        ),
        ("odd", ('"stop_reason":"odd"', '"finish_reason":"odd"', "response.completed", '"finishReason":"odd"')),
    ],
)
def test_each_api_has_its_own_words_for_stopping(stop: str, spoken: tuple[str, ...]) -> None:
    lines = f"say x\nstop {stop}"
    answers = in_every_api(lines)
    assert [word in answer for word, answer in zip(spoken, answers, strict=True)] == [True] * 4


def test_errors_inside_a_stream() -> None:
    lines = 'error overloaded_error "Too much"'
    ends = [answer.strip().split("\n")[-1] for answer in in_every_api(lines)]
    assert ends == snapshot(
        [
            'data: {"type":"error","error":{"type":"overloaded_error","message":"Too much"}}',
            'data: {"error":{"message":"Too much","type":"overloaded_error","param":null,"code":"overloaded_error"}}',
            'data: {"type":"error","sequence_number":0,"code":"overloaded_error","message":"Too much","param":null}',
            'data: {"error":{"code":503,"message":"Too much","status":"UNAVAILABLE"}}',
        ]
    )


def test_outside_a_stream_an_error_event_is_a_status() -> None:
    plan = LabService(Script.parse('say "a"\nerror overloaded_error "Too much"')).answer(
        "POST", MESSAGES, {}, body("hi", stream=False)
    )
    assert plan.status == 529
    assert list(plan.steps) == [b'{"type":"error","error":{"type":"overloaded_error","message":"Too much"}}']


@pytest.mark.parametrize("api", [AnthropicApi(), ChatApi(), ResponsesApi(), GeminiApi("m", stream=True)])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 502, 529])
def test_every_status_has_a_body(api: LabApi, status: int) -> None:
    error = json.loads(api.failure(status, "why"))["error"]
    assert error["message"] == "why"
    assert error["status" if isinstance(api, GeminiApi) else "type"]


def test_a_fault_that_breaks_a_stream_breaks_a_whole_body() -> None:
    request = body("hi", stream=False)
    whole = steps(Script.parse("say x"), request)
    [half, broken] = steps(Script.parse("say x\ncut json"), request)
    assert isinstance(half, bytes)
    assert isinstance(whole[0], bytes)
    assert whole[0].startswith(half[:30])
    assert broken == Broken("cut")
    assert steps(Script.parse("say x\nstall pings"), request)[0] == Silence()
    assert steps(Script.parse("refuse"), request)[0] == Broken("refused")
    assert steps(Script.parse('raw "odd"'), request) == [b"odd"]


def test_raw_bytes_alone_replace_the_whole_reply() -> None:
    assert stream('raw "event: x\\ndata: {}\\n\\n"') == "event: x\ndata: {}\n\n"


def test_raw_bytes_may_appear_between_words() -> None:
    answer = stream('say "a"\nraw ": note\\n\\n"\nsay "b"')
    assert (
        answer.index('"text":"a"') < answer.index(": note") < answer.index('"text":"b"') < answer.index("message_stop")
    )


def test_a_lone_surrogate_cannot_break_the_bytes() -> None:
    assert '"text":"a\ufffd"' in stream("say 'a\ud800'")


def test_an_empty_reply_is_still_a_message() -> None:
    answer = stream("usage output=0")
    assert "content_block" not in answer
    assert answer.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')


def texts(*said: tuple[str, int]) -> tuple[UserText, ...]:
    return tuple(UserText(*each) for each in said)


REASONING = {"type": "reasoning", "summary": []}
ANSWER = {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]}
CALL = {"type": "function_call", "call_id": "call_lab_4", "name": "x", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "call_lab_4", "output": "ok"}


@pytest.mark.parametrize(
    ("items", "said", "next_call"),
    [
        ("hi", [("hi", 0)], 1),
        ([{"role": "user", "content": "hi"}], [("hi", 0)], 1),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, REASONING, CALL, RESULT],
            [("hi", 1)],
            5,
        ),
        ([{"role": "user", "content": "hi"}, CALL, RESULT, CALL, CALL, RESULT, RESULT], [("hi", 2)], 5),
        ([{"role": "user", "content": "a"}, ANSWER, {"role": "user", "content": "c"}], [("c", 0)], 1),
    ],
)
def test_responses_requests_are_understood(items: Any, said: list[tuple[str, int]], next_call: int) -> None:
    request = json.dumps(
        {"model": "m", "input": items, "tools": [{"type": "web_search"}, {"type": "function", "name": "run"}]}
    ).encode()
    assert ResponsesApi().read(request) == LabRequest(
        "m", False, texts(*said), (LabTool("run", Raw(b"{}")),), next_call
    )


ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_lab_2"}, {"id": "other"}]}
STEER = {"type": "text", "text": "go"}
IMAGE: dict[str, Any] = {
    "role": "user",
    "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}],
}
TOOL = {"role": "tool", "tool_call_id": "x", "content": "ok"}


@pytest.mark.parametrize(
    ("messages", "said", "next_call"),
    [
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], [("hi", 0)], 1),
        ([{"role": "user", "content": "hi"}, ASSISTANT, TOOL, TOOL], [("hi", 1)], 3),
        ([{"role": "user", "content": "hi"}, ASSISTANT, TOOL, IMAGE], [("hi", 1)], 3),
        (
            [{"role": "user", "content": "hi"}, ASSISTANT, TOOL, {"role": "user", "content": "steer"}],
            [("steer", 0), ("hi", 1)],
            3,
        ),
        (
            [{"role": "user", "content": "hi"}, ASSISTANT, TOOL, {**IMAGE, "content": [*IMAGE["content"], STEER]}],
            [("go", 0), ("hi", 1)],
            3,
        ),
        ([IMAGE], [("see", 0)], 1),
        ([], [("", 0)], 1),
    ],
)
def test_chat_requests_are_understood(messages: Any, said: list[tuple[str, int]], next_call: int) -> None:
    request = json.dumps({"model": "m", "messages": messages, "stream": True}).encode()
    assert ChatApi().read(request) == LabRequest("m", True, texts(*said), (), next_call, wants_usage=False)


SAID = {
    "role": "model",
    "parts": [{"functionCall": {"id": "call_lab_2", "name": "x"}}, {"functionCall": {"name": "y"}}],
}
TOLD = {"functionResponse": {"name": "x", "response": {"output": "ok"}}}
SHOWN = {"inlineData": {"mimeType": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("contents", "said", "next_call"),
    [
        ([{"parts": [{"text": "hi"}, SHOWN]}], [("hi", 0)], 1),
        (
            [{"role": "user", "parts": [{"text": "hi"}]}, SAID, {"role": "user", "parts": [TOLD, TOLD, SHOWN]}],
            [("hi", 1)],
            3,
        ),
        (
            [{"role": "user", "parts": [{"text": "hi"}]}, SAID, {"role": "user", "parts": [TOLD, {"text": "b"}]}],
            [("b", 0), ("hi", 1)],
            3,
        ),
        ([], [("", 0)], 1),
    ],
)
def test_gemini_requests_are_understood(contents: Any, said: list[tuple[str, int]], next_call: int) -> None:
    request = json.dumps(
        {"contents": contents, "tools": [{"googleSearch": {}}, {"functionDeclarations": [{"name": "run"}]}]}
    ).encode()
    assert GeminiApi("m", stream=True).read(request) == LabRequest(
        "m", True, texts(*said), (LabTool("run", Raw(b"{}")),), next_call
    )


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1beta/models/m:streamGenerateContent", ("m", True)),
        ("/v1/models/a%2Fb:generateContent", ("a/b", False)),
        ("/v1alpha/models/m:generateContent", ("m", False)),
        ("/v1beta/models/m:embedContent", None),
        ("/v2/models/m:generateContent", None),
        ("/v1beta/models/m", None),
    ],
)
def test_gemini_names_model_and_method_in_the_path(path: str, asked: tuple[str, bool] | None) -> None:
    api = GeminiApi.at(path)
    ask = api and api.read(b'{"contents":[]}')
    assert (ask and (ask.model, ask.stream)) == asked


def test_arguments_that_gemini_cannot_express_end_its_reply_with_its_own_reason() -> None:
    lines = "call bash {}\ncall-raw bash '{\"a'\ncall bash {}"
    parsed = json.loads(stream(lines, gemini(), GEMINI_WHOLE))
    [candidate] = parsed["candidates"]
    assert len(candidate["content"]["parts"]) == 2
    assert (candidate["finishReason"], candidate["finishMessage"]) == (
        "MALFORMED_FUNCTION_CALL",
        'Malformed function call: bash({"a)',
    )


def test_a_missing_end_leaves_a_whole_body_complete() -> None:
    def whole(lines: str) -> bytes:
        [step] = steps(Script.parse(lines), body("hi", stream=False))
        assert isinstance(step, bytes)
        return step

    assert whole("say half\nno-end") == whole("say half")


ANTHROPIC_CLIENT = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
OPENAI_CLIENT = {"authorization": "Bearer k"}
GEMINI_CLIENT = {"x-goog-api-key": "k"}


def got(path: str, headers: dict[str, str], method: str = "GET", data: bytes = b"") -> tuple[int, Any]:
    """The status of an answer, and its body."""
    plan = LabService(demo()).answer(method, path, headers, data)
    [body_] = plan.steps
    assert isinstance(body_, bytes)
    return plan.status, json.loads(body_)


CLAUDE = snapshot(
    {
        "type": "model",
        "id": "lab-1",
        "display_name": "lab-1",
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    }
)
GPT = snapshot({"id": "lab-1", "object": "model", "created": 0, "owned_by": "zot"})
GOOGLE = snapshot(
    {
        "name": "models/lab-1",
        "version": "1",
        "displayName": "lab-1",
        "supportedGenerationMethods": ["generateContent", "countTokens"],
        "inputTokenLimit": 200000,
        "outputTokenLimit": 64000,
    }
)
CLAUDES = {"data": [CLAUDE], "has_more": False, "first_id": "lab-1", "last_id": "lab-1"}


@pytest.mark.parametrize(
    ("path", "headers", "listed"),
    [
        ("/v1/models", ANTHROPIC_CLIENT, CLAUDES),
        ("/v1/models?limit=1000", {**OPENAI_CLIENT, "anthropic-version": "2023-06-01"}, CLAUDES),
        ("/v1/models/lab-1", ANTHROPIC_CLIENT, CLAUDE),
        ("/v1/models", OPENAI_CLIENT, {"object": "list", "data": [GPT]}),
        ("/models", {}, {"object": "list", "data": [GPT]}),
        ("/v1/models/lab-1", {}, GPT),
        ("/v1/models/a%2Fb", OPENAI_CLIENT, {**GPT, "id": "a/b"}),
        ("/v1beta/models?pageSize=5", {}, {"models": [GOOGLE]}),
        ("/v1beta/models/lab-1", GEMINI_CLIENT, GOOGLE),
        ("/v1/models/lab-1", GEMINI_CLIENT, GOOGLE),
        ("/v1/models?key=k", {}, {"models": [GOOGLE]}),
    ],
)
def test_each_api_lists_models_in_its_own_shape(path: str, headers: dict[str, str], listed: Any) -> None:
    assert got(path, headers) == (200, listed)


def test_the_model_is_listed_under_the_name_that_zot_gives_it() -> None:
    _, listing = got("/v1/models", {})
    assert [model["id"] for model in listing["data"]] == [model.id for model in catalogue("lab").models]


@pytest.mark.parametrize(
    ("path", "data", "counted"),
    [
        ("/v1/messages/count_tokens", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
         {"input_tokens": 15}),
        ("/v1/responses/input_tokens", b'{"model":"m","input":"hi"}',
         {"object": "response.input_tokens", "input_tokens": 7}),
        ("/v1beta/models/m:countTokens", b'{"contents":[{"parts":[{"text":"hi"}]}]}', {"totalTokens": 10}),
        ("/v1beta/models/m:countTokens", b'{"generateContentRequest":{"contents":[]}}', {"totalTokens": 11}),
    ],
)  # fmt: skip
def test_each_api_counts_tokens_in_its_own_shape(path: str, data: bytes, counted: Any) -> None:
    assert got(path, {}, "POST", data) == (200, counted)


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "kind"),
    [
        ("POST", "/v1/nope", ANTHROPIC_CLIENT, 404, AnthropicApi),
        ("POST", "/v1/nope", OPENAI_CLIENT, 404, ChatApi),
        ("POST", "/v1/nope", {}, 404, ChatApi),
        ("POST", "/v1/messages/batches", {}, 404, AnthropicApi),
        ("POST", "/v1beta/models/m:embedContent", {}, 404, GeminiApi),
        ("GET", "/v1beta/models/m:generateContent", {}, 404, GeminiApi),
        ("POST", "/v1/messages/count_tokens", {}, 400, AnthropicApi),
        ("POST", "/v1/responses/input_tokens", {}, 400, ChatApi),
        ("POST", "/v1beta/models/m:countTokens", {}, 400, GeminiApi),
    ],
)
def test_each_api_phrases_its_own_errors(
    method: str, path: str, headers: dict[str, str], status: int, kind: type[LabApi]
) -> None:
    found, error = got(path, headers, method, b"[")
    assert found == status
    if kind is AnthropicApi:
        assert error == {"type": "error", "error": {"type": ANY, "message": ANY}}
    elif kind is ChatApi:
        assert error == {"error": {"message": ANY, "type": ANY, "param": None, "code": ANY}}
    else:
        assert error == {"error": {"code": status, "message": ANY, "status": ANY}}


def test_each_api_has_its_own_status_for_a_rate_limit() -> None:
    requests = ((body("!retry 1"), MESSAGES), (chat(), CHAT), (responses(), RESPONSES), (gemini(), GEMINI))
    script = Script.parse("status overloaded")
    assert [LabService(script).answer("POST", target, {}, request).status for request, target in requests] == [
        529,
        503,
        503,
        503,
    ]


@pytest.mark.parametrize(
    ("status", "advice"),
    [("401", "false"), ("404", "false"), ("429", "true"), ("529", "true"), ("401 x-should-retry=true", "true")],
)
def test_anthropic_advises_clients_whether_to_retry(status: str, advice: str) -> None:
    plan = LabService(Script.parse(f"status {status}")).answer("POST", MESSAGES, {}, body("hi"))
    assert plan.headers["x-should-retry"] == advice


def test_gemini_gives_the_retry_delay_in_the_body() -> None:
    error = json.loads(stream("status 429 retry-after=7", gemini(), GEMINI))["error"]
    assert error["details"] == [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}]


@pytest.mark.parametrize(
    "origin",
    ["http://localhost", "http://localhost:3000", "https://127.0.0.1:8443", "http://[::1]:80", "http://a.localhost"],
)
def test_a_page_of_this_machine_may_call(origin: str) -> None:
    asked = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    plan = LabService(demo()).answer("OPTIONS", MESSAGES, asked, b"")
    assert (plan.status, list(plan.steps)) == (204, [])
    assert plan.headers["access-control-allow-origin"] == origin
    assert plan.headers["access-control-allow-headers"] == "x-api-key"
    assert "POST" in plan.headers["access-control-allow-methods"]
    answer = LabService(demo()).answer("POST", MESSAGES, {"origin": origin}, body("!echo x"))
    assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    "origin", ["https://example.com", "http://localhost.example.com", "null", "http://127.0.0.1.example.com", "file://"]
)
def test_a_page_from_elsewhere_may_not_call(origin: str) -> None:
    asked = {"origin": origin, "access-control-request-method": "POST"}
    plan = LabService(demo()).answer("OPTIONS", MESSAGES, asked, b"")
    assert plan.status == 403
    answer = LabService(demo()).answer("POST", MESSAGES, {"origin": origin}, body("!echo x"))
    assert [name for plan in (plan, answer) for name in plan.headers if name.startswith("access-control")] == []


def test_options_can_be_requested_without_a_page() -> None:
    plan = LabService(demo()).answer("OPTIONS", "/", {}, b"")
    assert (plan.status, plan.headers["allow"]) == (204, "GET, HEAD, POST, OPTIONS")
