"""Requests that the OpenAI Responses API refuses, as far as known. Stricter than the API where it is vague."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

from validator import read_strictly

Object: TypeAlias = dict[str, Any]

_TOP = {"model", "stream", "store", "input", "max_output_tokens", "prompt_cache_key"}
_TOP_OPTIONAL = {"instructions", "tools", "parallel_tool_calls", "reasoning", "include"}
_KEYS = {
    "message": {"role", "content"},
    "answer": {"role", "content", "id", "status"},
    "reasoning": {"id", "summary", "encrypted_content"},
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
    "input_text": {"text"},
    "output_text": {"text", "annotations"},
    "summary_text": {"text"},
    "input_image": {"detail", "image_url"},
}
#: Clients send a call back as they got it. With its id, the thought before it must be there, too.
_MAY_BE = {"function_call": {"id", "status"}}
_ITEMS = {"message", "reasoning", "function_call", "function_call_output"}
_PARTS = {"user": {"input_text", "input_image"}, "assistant": {"output_text"}}
_EFFORTS = {"none", "minimal", "low", "medium", "high", "xhigh", "max"}
_NAME = r"[a-zA-Z0-9_-]{1,64}"
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,(.+)")
_MAX_IMAGE = 20_000_000
_MIN_OUTPUT = 16


def problems(body: bytes) -> list[str]:
    """Return everything the service would refuse about a request; empty if it is fine."""
    request = read_strictly(body)
    if isinstance(request, str):
        return [request]
    return [*_top(request), *_reasoning(request), *_input(request.get("input"))]


def _top(request: Object) -> Iterator[str]:
    if not _TOP <= request.keys() <= _TOP | _TOP_OPTIONAL:
        yield f"wrong keys: {sorted(request)}"
    if request.get("stream") is not True or request.get("store") is not False:
        yield "it must be streamed, and not be stored"
    if not isinstance(request.get("max_output_tokens"), int) or request["max_output_tokens"] < _MIN_OUTPUT:
        yield "max_output_tokens is too small"
    if not 0 < len(request.get("prompt_cache_key", "")) <= 64:
        yield "the cache key is empty or too long"
    if request.get("instructions", "x") == "":
        yield "empty instructions"
    tools = request.get("tools", ())
    if len({tool["name"] for tool in tools}) < len(tools):
        yield "two tools with one name"
    for tool in tools:
        yield from _tool(tool)


def _tool(tool: Object) -> Iterator[str]:
    if tool.keys() != {"type", "name", "description", "parameters", "strict"} or tool["type"] != "function":
        yield f"tool with the keys {sorted(tool)}"
    elif not re.fullmatch(_NAME, tool["name"]):
        yield f"tool name {tool['name']!r}"
    elif tool["parameters"].get("type") != "object":
        yield f"tool {tool['name']}: the schema is not of an object"
    elif tool["strict"] is not False:
        yield f"tool {tool['name']}: strict, but its schema may not be"


def _reasoning(request: Object) -> Iterator[str]:
    """Thoughts are wanted sealed, by models that think, or they could not be sent back."""
    if ("reasoning" in request) != ("include" in request):
        yield "reasoning without include, or the other way round"
    if "reasoning" not in request:
        return
    if request.get("include") != ["reasoning.encrypted_content"]:
        yield "thoughts are not included"
    wanted = request["reasoning"]
    if not {"effort"} <= wanted.keys() <= {"effort", "summary"} or wanted["effort"] not in _EFFORTS:
        yield f"reasoning {wanted}"
    if wanted.get("summary", "auto") != "auto":
        yield f"summary {wanted['summary']!r}"


def _input(items: Any) -> Iterator[str]:
    if not isinstance(items, list) or not items:
        yield "no input"
        return
    for number, item in enumerate(items):
        yield from _item(item, f"input.{number}")
    kinds = [item.get("type") for item in items]
    for number, (kind, after) in enumerate(zip(kinds, [*kinds[1:], None], strict=True)):
        if kind == "reasoning" and not (
            after in ("reasoning", "function_call")
            or (after == "message" and items[number + 1].get("role") == "assistant")
        ):
            yield f"input.{number}: a thought without what came of it"
        if kind == "function_call" and "id" in items[number] and kinds[number - 1] not in ("reasoning", kind):
            yield f"input.{number}: a call by its id without the thought before it"
    ids = [item["id"] for item in items if "id" in item]
    if len({*ids}) < len(ids):
        yield "two items with one id"
    yield from _pairing(items)


def _pairing(items: list[Object]) -> Iterator[str]:
    """Every call has one result, after it and before the next message; every result has its call."""
    waiting: list[str] = []
    calls = Counter(item.get("call_id") for item in items if item.get("type") == "function_call")
    yield from (f"{call_id!r} was called {times} times" for call_id, times in calls.items() if times > 1)
    for number, item in enumerate(items):
        match item.get("type"):
            case "function_call":
                waiting.append(item.get("call_id", ""))
            case "function_call_output" if item.get("call_id") in waiting:
                waiting.remove(item["call_id"])
            case "function_call_output":
                yield f"input.{number}: no call is waiting for {item.get('call_id')!r}"
            case "message" if waiting and item.get("role") == "user":
                yield f"input.{number}: calls without results: {waiting}"
                waiting = []
    if waiting:
        yield f"calls without results: {waiting}"


def _item(item: Object, where: str) -> Iterator[str]:
    kind = item.get("type", "")
    form = "answer" if item.get("role") == "assistant" else kind
    if kind not in _ITEMS or item.keys() - _MAY_BE.get(form, set()) != {"type", *_KEYS[form]}:
        yield f"{where}: {kind!r} with the keys {sorted(item)}"
        return
    match kind:
        case "message":
            if form == "answer" and (not item["id"].startswith("msg_") or item["status"] != "completed"):
                yield f"{where}: a message with id {item['id']!r} and status {item['status']!r}"
            yield from _parts(item["content"], where, _PARTS.get(item["role"], set()))
        case "reasoning":
            if not item["id"] or not item["encrypted_content"]:
                yield f"{where}: a thought without id or seal"
            if item["summary"]:
                yield from _parts(item["summary"], where, {"summary_text"})
        case "function_call":
            yield from _call(item, where)
        case _:
            if isinstance(item["output"], str):
                if not item["output"]:
                    yield f"{where}: an empty result"
            else:
                yield from _parts(item["output"], where, {"input_text", "input_image"})


def _call(item: Object, where: str) -> Iterator[str]:
    if not re.fullmatch(_NAME, item["call_id"]) or not re.fullmatch(_NAME, item["name"]):
        yield f"{where}: a call with id {item['call_id']!r} and name {item['name']!r}"
    try:
        if not isinstance(json.loads(item["arguments"]), dict):
            yield f"{where}: the arguments are no object"
    except ValueError:
        yield f"{where}: the arguments are not JSON"


def _parts(parts: Any, where: str, allowed: set[str]) -> Iterator[str]:
    if not isinstance(parts, list) or not parts:
        yield f"{where}: no content"
        return
    for part in parts:
        kind = part.get("type")
        if kind not in allowed:
            yield f"{where}: {kind} is not allowed here"
        elif part.keys() != {"type", *_KEYS[kind]}:
            yield f"{where}: {kind} with the keys {sorted(part)}"
        elif kind == "input_image":
            yield from _image(part["image_url"], where)
        elif not part["text"].strip():
            yield f"{where}: blank text"


def _image(url: str, where: str) -> Iterator[str]:
    found = _IMAGE.fullmatch(url)
    if found is None:
        yield f"{where}: not an image: {url[:40]!r}"
    elif len(found[1]) > _MAX_IMAGE:
        yield f"{where}: an image that is too large"
    else:
        try:
            base64.b64decode(found[1], validate=True)
        except binascii.Error:
            yield f"{where}: an image that is not base64"
