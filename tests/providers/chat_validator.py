"""Requests that servers of Chat Completions refuse, as far as known: the rules of the strictest ones combined."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from validator import Object, read_strictly

from zot.config.vendors import ChatQuirks

_TOP = {"model", "stream", "messages"}
_TOP_OPTIONAL = {"stream_options", "tools", "reasoning_effort", "reasoning_format", "reasoning", "thinking"}
_NAME = r"[a-zA-Z0-9_-]{1,64}"
_THOUGHTS = {"reasoning_content", "reasoning_details", "reasoning"}
_KEYS = {
    "system": ({"role", "content"}, set[str]()),
    "user": ({"role", "content"}, set[str]()),
    "assistant": ({"role", "content"}, {"tool_calls"} | _THOUGHTS),
    "tool": ({"role", "content", "tool_call_id"}, set[str]()),
}
_EFFORTS = {"none", "low", "medium", "high", "default"}


def problems(body: bytes, quirks: ChatQuirks | None = None) -> list[str]:
    """Return everything a server with these quirks would refuse about a request; empty if it is fine."""
    request = read_strictly(body)
    if isinstance(request, str):
        return [request]
    return [*_Check(quirks or ChatQuirks()).request(request)]


class _Check(msgspec.Struct):
    quirks: ChatQuirks

    def request(self, request: Object) -> Iterator[str]:
        needed = _TOP | {self.quirks.max_tokens_field} | ({"stream_options"} if self.quirks.usage_on_request else set())
        allowed = needed | _TOP_OPTIONAL - (set() if self.quirks.usage_on_request else {"stream_options"})
        if not needed <= request.keys() <= allowed:
            yield f"wrong keys: {sorted(request)}"
        if request.get("stream") is not True or request.get("stream_options", {"include_usage": True}) != {
            "include_usage": True
        }:
            yield "not a stream with usage"
        tokens = request.get(self.quirks.max_tokens_field)
        if not isinstance(tokens, int) or tokens < 1:
            yield "no positive number of tokens"
        yield from _reasoning(request)
        yield from _tools(request.get("tools"))
        yield from self.messages(request.get("messages"))

    def messages(self, messages: Any) -> Iterator[str]:
        if not isinstance(messages, list) or not messages:
            yield "no messages"
            return
        asked: list[str] = []
        before = ""
        for number, message in enumerate(messages):
            where, role = f"messages.{number}", message.get("role")
            needed, optional = _KEYS.get(role, (set[str](), set[str]()))
            if not needed or not needed <= message.keys() <= needed | optional:
                yield f"{where}: {role} with the keys {sorted(message)}"
                return
            yield from self.order(role, before, asked, where)
            yield from self.message(message, where)
            if role == "tool":
                if message["tool_call_id"] not in asked:
                    yield f"{where}: a result for no call"
                asked = [call_id for call_id in asked if call_id != message["tool_call_id"]]
            elif role == "assistant":
                asked = [call["id"] for call in message.get("tool_calls", ())]
                if len({*asked}) < len(asked):
                    yield f"{where}: two calls with one id"
            before = role
        if asked:
            yield f"calls without results: {asked}"
        if before not in ("user", "tool"):
            yield f"the last message is of {before}"

    def order(self, role: str, before: str, asked: list[str], where: str) -> Iterator[str]:
        if role == "system" and before:
            yield f"{where}: a system message that is not the first"
        if role != "tool" and asked:
            yield f"{where}: {role} before the results of {asked}"
        if role == "user" and before == "tool" and not self.quirks.user_after_tool:
            yield f"{where}: a user after a tool"
        if role == before and role in ("user", "assistant"):
            yield f"{where}: {role} twice in a row"
        if role in ("assistant", "tool") and before in ("", "system"):
            yield f"{where}: begins with {role}"

    def message(self, message: Object, where: str) -> Iterator[str]:
        content, calls = message["content"], message.get("tool_calls")
        match message["role"], content:
            case "assistant", None if calls:
                pass
            case "user", list() if content:
                for part in content:
                    yield from self.part(part, where)
                if len(content) == 1 and content[0].get("type") == "text":
                    yield f"{where}: a list for one text"
            case _, str() if content.strip():
                pass
            case _:
                yield f"{where}: empty or strange content {content!r}"
        if calls is not None:
            yield from self.calls(calls, where)
        yield from self.thoughts(message, where)

    def thoughts(self, message: Object, where: str) -> Iterator[str]:
        given = _THOUGHTS & message.keys()
        match self.quirks.thoughts:
            case "reasoning_content":
                wanted = {"reasoning_content"} if message.get("tool_calls") else set()
                if given != wanted or not all(message[name].strip() for name in given):
                    yield f"{where}: thoughts in {sorted(given)}"
            case "reasoning_details":
                details = message.get("reasoning_details")
                if "reasoning_content" in given or (
                    details is not None and not (isinstance(details, list) and details)
                ):
                    yield f"{where}: thoughts in {sorted(given)}"
            case _ if given:
                yield f"{where}: thoughts that nobody asked for"
            case _:
                pass

    def part(self, part: Object, where: str) -> Iterator[str]:
        match part:
            case {"type": "text", "text": str(text)} if text.strip() and len(part) == 2:
                pass
            case {"type": "image_url", "image_url": {"url": str(url)}} if len(part) == 2:
                yield from self.image(url, where)
            case _:
                yield f"{where}: a strange part {part!r}"

    def image(self, url: str, where: str) -> Iterator[str]:
        found = re.fullmatch(r"data:(image/\w+);base64,(.*)", url)
        if found is None or found[1] not in self.quirks.images.types:
            yield f"{where}: an image that is not taken"
            return
        try:
            data = base64.b64decode(found[2], validate=True)
        except binascii.Error:
            yield f"{where}: an image that is not base64"
            return
        if not 0 < len(data) <= self.quirks.images.max_bytes:
            yield f"{where}: an image of {len(data)} bytes"

    def calls(self, calls: Any, where: str) -> Iterator[str]:
        if not isinstance(calls, list) or not calls:
            yield f"{where}: calls, but none"
            return
        for call in calls:
            match call:
                case {"type": "function", "id": str(id_), "function": {"name": str(name), "arguments": str(text)}}:
                    if len(call) != 3 or len(call["function"]) != 2 or not re.fullmatch(_NAME, name):
                        yield f"{where}: a call of {name!r}"
                    if not re.fullmatch(self.quirks.call_ids, id_):
                        yield f"{where}: a call with the id {id_!r}"
                    if not isinstance(read_strictly(text.encode()), dict):
                        yield f"{where}: arguments that are no object: {text}"
                case _:
                    yield f"{where}: not a call: {json.dumps(call)}"


def _reasoning(request: Object) -> Iterator[str]:
    if request.get("reasoning_effort", "low") not in _EFFORTS:
        yield "an unknown effort"
    if request.get("thinking", {"type": "enabled"}) not in ({"type": "enabled"}, {"type": "disabled"}):
        yield "not a way of thinking"
    if request.get("reasoning", {"effort": "low"}).get("effort") not in _EFFORTS:
        yield "not a way of reasoning"


def _tools(tools: Any) -> Iterator[str]:
    if tools is None:
        return
    if not isinstance(tools, list) or not tools:
        yield "tools, but none"
        return
    names = [tool.get("function", {}).get("name") for tool in tools]
    if len({*names}) < len(names):
        yield "two tools with one name"
    for tool in tools:
        match tool:
            case {
                "type": "function",
                "function": {"name": str(name), "description": str(), "parameters": {"type": "object"}},
            } if tool.keys() == {"type", "function"} and re.fullmatch(_NAME, name):
                pass
            case _:
                yield f"not a tool: {json.dumps(tool)}"
