"""Requests that the Anthropic Messages API refuses, as far as known. Stricter than the API where it is vague."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

Object: TypeAlias = dict[str, Any]

_TOP = {"model", "max_tokens", "stream", "messages"}
_TOP_OPTIONAL = {"system", "tools", "thinking"}
_IMAGES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_KEYS = {
    "text": {"text"},
    "image": {"source"},
    "tool_result": {"tool_use_id", "content", "is_error"},
    "tool_use": {"id", "name", "input"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
}
_SPEAKERS = {"user": {"text", "image", "tool_result"}, "assistant": _KEYS.keys() - {"image", "tool_result"}}
_THINKING = {"thinking", "redacted_thinking"}
_MAX_CACHE_MARKS = 4


def problems(body: bytes) -> list[str]:
    """Return everything the service would refuse about a request; empty if it is fine."""
    request = read_strictly(body)
    if isinstance(request, str):
        return [request]
    found = [*_top(request), *_messages(request.get("messages")), *_thinking(request)]
    marks = body.count(b'"cache_control"')
    return found if marks <= _MAX_CACHE_MARKS else [*found, f"{marks} cache marks"]


def read_strictly(text: bytes) -> Object | str:
    """Return the object that ``text`` is for the strictest reader, or the error in it."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except ValueError as problem:
        return f"not strict JSON: {problem}"
    return value if isinstance(value, dict) else "not an object"


def _object(pairs: list[tuple[str, Any]]) -> Object:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a repeated key")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _top(request: Object) -> Iterator[str]:
    if not _TOP <= request.keys() <= _TOP | _TOP_OPTIONAL:
        yield f"wrong keys: {sorted(request)}"
    if not isinstance(request.get("max_tokens"), int) or request["max_tokens"] < 1:
        yield "max_tokens is not a positive number"
    for block in request.get("system", ()):
        yield from _block(block, "system", {"text"})
    names = [tool["name"] for tool in request.get("tools", ())]
    if len(set(names)) < len(names):
        yield "two tools with one name"
    for tool in request.get("tools", ()):
        yield from _tool(tool)
    thinking = request.get("thinking")
    if thinking is not None and not 1024 <= thinking["budget_tokens"] < request["max_tokens"]:
        yield "the thinking budget does not fit"


def _thinking(request: Object) -> Iterator[str]:
    """With thinking, the model's tool use since the last user message must begin with a thought.

    Text after the results of the last message is not taken for a prompt: there the API is vague.
    """
    opening: Object | None = None
    for message in reversed(request.get("messages") or ()):
        kinds = {block["type"] for block in message["content"]} if isinstance(message["content"], list) else set()
        if message["role"] == "assistant":
            opening = message
        elif "tool_result" not in kinds or (opening is not None and kinds != {"tool_result"}):
            break
    if "thinking" in request and opening is not None and opening["content"][0]["type"] not in _THINKING:
        yield "thinking is on, but the turn does not begin with a thought"


def _tool(tool: Object) -> Iterator[str]:
    if not {"name", "description", "input_schema"} <= tool.keys() <= {*_CACHED, "name", "description", "input_schema"}:
        yield f"tool with the keys {sorted(tool)}"
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", tool["name"]):
        yield f"tool name {tool['name']!r}"
    if tool["input_schema"].get("type") != "object":
        yield f"tool {tool['name']}: the schema is not of an object"


_CACHED = {"cache_control"}


def _messages(messages: Any) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        yield "no messages"
        return
    roles = [message.get("role") for message in messages]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        yield f"roles do not alternate from user to user: {roles}"
    asked: list[str] = []
    ever: set[str] = set()
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        content = message.get("content")
        if message.keys() != {"role", "content"} or not isinstance(content, list) or not content:
            yield f"{where}: not a role with content"
            return
        for block in content:
            yield from _block(block, where, _SPEAKERS.get(message["role"], set()))
        yield from _pairing(content, where, asked)
        asked = [str(block.get("id")) for block in content if block.get("type") == "tool_use"]
        if len({*asked} | ever) < len(asked) + len(ever):
            yield f"{where}: a call id that was used before"
        ever |= {*asked}
        if content[-1].get("type") in _THINKING:
            yield f"{where}: the final block cannot be thinking"
    if asked:
        yield f"calls without results: {asked}"


def _pairing(content: list[Object], where: str, asked: list[str]) -> Iterator[str]:
    is_result = [block.get("type") == "tool_result" for block in content]
    if is_result != sorted(is_result, reverse=True):
        yield f"{where}: results must come first"
    answered = [str(block.get("tool_use_id")) for block in content if block.get("type") == "tool_result"]
    if sorted(answered) != sorted(asked):
        yield f"{where}: results for {answered}, but the calls were {asked}"


def _block(block: Object, where: str, allowed: set[str]) -> Iterator[str]:
    kind = block.get("type")
    if kind not in allowed:
        yield f"{where}: {kind} is not allowed here"
        return
    if block.keys() - _CACHED != {"type", *_KEYS[kind]}:
        yield f"{where}: {kind} with the keys {sorted(block)}"
        return
    if "cache_control" in block and (kind in _THINKING or block["cache_control"] != {"type": "ephemeral"}):
        yield f"{where}: a wrong cache mark"
    match kind:
        case "text" if not block["text"].strip():
            yield f"{where}: blank text"
        case "image":
            yield from _image(block["source"], where)
        case "thinking" if not block["signature"]:
            yield f"{where}: thinking without signature"
        case "redacted_thinking" if not block["data"]:
            yield f"{where}: redacted thinking without data"
        case "tool_use":
            if not isinstance(block["input"], dict):
                yield f"{where}: the input of a call is not an object"
            if not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]) or not block["name"]:
                yield f"{where}: a call with id {block['id']!r} and name {block['name']!r}"
        case "tool_result":
            if not isinstance(block["content"], list) or not block["content"]:
                yield f"{where}: an empty result"
                return
            for inner in block["content"]:
                yield from _block(inner, where, {"text"} if block["is_error"] else {"text", "image"})
        case _:
            pass


def _image(source: Object, where: str) -> Iterator[str]:
    if source.keys() != {"type", "media_type", "data"} or source["type"] != "base64":
        yield f"{where}: not an image source"
    elif source["media_type"] not in _IMAGES:
        yield f"{where}: an image of type {source['media_type']!r}"
    else:
        try:
            if not base64.b64decode(source["data"], validate=True):
                yield f"{where}: an empty image"
        except binascii.Error:
            yield f"{where}: an image that is not base64"
