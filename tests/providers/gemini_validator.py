"""Requests that the Gemini API refuses, as far as known. Stricter than the API where it is vague."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from validator import read_strictly

Object: TypeAlias = dict[str, Any]

_TOP = {"contents", "systemInstruction", "tools", "generationConfig"}
_KINDS = {"text", "inlineData", "functionCall", "functionResponse"}
_SPEAKERS = {"user": {"text", "inlineData", "functionResponse"}, "model": {"text", "functionCall"}}
_IMAGES = {"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"}
_NAME = re.compile(r"[a-zA-Z_][\w.:-]{0,63}", re.ASCII)
_BUDGETS = {
    "gemini-2.5-pro": range(128, 32769),
    "gemini-2.5-flash-lite": range(24577),
    "gemini-2.5-flash": range(24577),
}
_LEVELS = {
    "gemini-3-pro": {"LOW", "HIGH"},
    "gemini-3-flash": {"MINIMAL", "LOW", "MEDIUM", "HIGH"},
    "gemini-3.7-flash": {"LOW", "MEDIUM", "HIGH"},
    "gemini-flash-latest": {"LOW", "MEDIUM", "HIGH"},
}


def problems(body: bytes, model: str = "lab-1") -> list[str]:
    """Return everything the service would refuse about a request to ``model``; empty if it is fine."""
    request = read_strictly(body)
    if isinstance(request, str):
        return [request]
    request = _spelled(request)
    return [*_top(request), *_generation(request.get("generationConfig", {}), model), *_contents(request, model)]


#: JSON that is not the API's own: its keys mean nothing to it.
_FOREIGN = {"args", "response", "parametersJsonSchema", "parameters"}


def _spelled(value: Any) -> Any:
    """Return the request in one spelling: the API takes snake_case, too, and Google's own clients mix them."""
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    if not isinstance(value, dict):
        return value
    camel = {re.sub("_([a-z])", lambda found: found[1].upper(), name): inner for name, inner in value.items()}
    return {name: inner if name in _FOREIGN else _spelled(inner) for name, inner in camel.items()}


def _top(request: Object) -> Iterator[str]:
    if "contents" not in request or not request.keys() <= _TOP:
        yield f"wrong keys: {sorted(request)}"
    for part in request.get("systemInstruction", {}).get("parts", ()):
        if part.keys() != {"text"} or not part["text"]:
            yield "the system instruction is not text"
    declared = [tool for entry in request.get("tools", ()) for tool in entry["functionDeclarations"]]
    if len({tool["name"] for tool in declared}) < len(declared):
        yield "two tools with one name"
    for tool in declared:
        yield from _tool(tool)


def _tool(tool: Object) -> Iterator[str]:
    if tool.keys() != {"name", "description", "parametersJsonSchema"}:
        yield f"tool with the keys {sorted(tool)}"
        return
    if not _NAME.fullmatch(tool["name"]):
        yield f"tool name {tool['name']!r}"
    if tool["parametersJsonSchema"].get("type") != "object" or "$schema" in tool["parametersJsonSchema"]:
        yield f"tool {tool['name']}: the schema is not of an object"


def _generation(config: Object, model: str) -> Iterator[str]:
    if not config.keys() <= {"maxOutputTokens", "thinkingConfig"}:
        yield f"wrong keys: {sorted(config)}"
    if not isinstance(config.get("maxOutputTokens"), int) or config["maxOutputTokens"] < 1:
        yield "maxOutputTokens is not a positive number"
    thinking = config.get("thinkingConfig", {})
    if thinking.keys() >= {"thinkingBudget", "thinkingLevel"}:
        yield "a thinking budget and a level"
    budgets = next((allowed for name, allowed in _BUDGETS.items() if model.startswith(name)), range(0))
    if "thinkingBudget" in thinking and thinking["thinkingBudget"] not in budgets:
        yield f"a thinking budget of {thinking['thinkingBudget']} for {model}"
    if thinking.get("thinkingBudget", 0) >= config.get("maxOutputTokens", 0):
        yield "the thinking budget does not fit"
    levels = next((allowed for name, allowed in _LEVELS.items() if model.startswith(name)), set())
    if "thinkingLevel" in thinking and thinking["thinkingLevel"] not in levels:
        yield f"the thinking level {thinking['thinkingLevel']} for {model}"


def _contents(request: Object, model: str) -> Iterator[str]:
    contents = request.get("contents")
    if not isinstance(contents, list) or not contents:
        yield "no contents"
        return
    roles = [content.get("role") for content in contents]
    if roles != ["user", "model"] * (len(roles) // 2) + ["user"]:
        yield f"roles do not alternate from user to user: {roles}"
    asked: list[Object] = []
    ever: list[str] = []
    for number, content in enumerate(contents):
        where = f"contents.{number}"
        if content.keys() != {"role", "parts"} or not isinstance(content["parts"], list) or not content["parts"]:
            yield f"{where}: not a role with parts"
            return
        for part in content["parts"]:
            yield from _part(part, where, content["role"])
        yield from _pairing(content["parts"], where, asked)
        calls = [part for part in content["parts"] if "functionCall" in part]
        if calls and model.startswith("gemini-3") and "thoughtSignature" not in calls[0]:
            yield f"{where}: a call without the signature of its thought"
        asked = [part["functionCall"] for part in calls]
        ever += [call["id"] for call in asked if "id" in call]
    if len({*ever}) < len(ever):
        yield "a call id that was used before"
    if asked:
        yield "calls without results"


def _pairing(parts: list[Object], where: str, asked: list[Object]) -> Iterator[str]:
    is_result = ["functionResponse" in part for part in parts]
    if is_result != sorted(is_result, reverse=True):
        yield f"{where}: results must come first"
    answered = [part["functionResponse"] for part in parts if "functionResponse" in part]
    named = [(call.get("id"), call.get("name")) for call in asked]
    if [(result.get("id"), result.get("name")) for result in answered] != named:
        yield f"{where}: these are not the results of the calls, in their order"


def _part(part: Object, where: str, role: str) -> Iterator[str]:
    kinds = part.keys() & _KINDS
    if len(kinds) != 1 or not kinds <= _SPEAKERS.get(role, set()):
        yield f"{where}: a part of {sorted(kinds)} is not allowed here"
        return
    if not part.keys() <= kinds | ({"thought", "thoughtSignature"} if role == "model" else set()):
        yield f"{where}: a part with the keys {sorted(part)}"
    if "thoughtSignature" in part and not _is_base64(part["thoughtSignature"]):
        yield f"{where}: the signature is not base64"
    match [*kinds]:
        case ["text"] if not part["text"].strip() and "thoughtSignature" not in part:
            yield f"{where}: blank text"
        case ["inlineData"]:
            yield from _image(part["inlineData"], where)
        case ["functionCall"]:
            yield from _call(part["functionCall"], where)
        case ["functionResponse"]:
            yield from _result(part["functionResponse"], where)
        case _:
            pass


def _call(call: Object, where: str) -> Iterator[str]:
    if not {"name", "args"} <= call.keys() <= {"id", "name", "args"} or not isinstance(call["args"], dict):
        yield f"{where}: not a call"
    elif not _NAME.fullmatch(call["name"]) or call.get("id") == "":
        yield f"{where}: a call with id {call.get('id')!r} and name {call['name']!r}"


def _result(result: Object, where: str) -> Iterator[str]:
    if not {"name", "response"} <= result.keys() <= {"id", "name", "response"}:
        yield f"{where}: not a result"
    elif not isinstance(result["response"], dict) or not [text for text in result["response"].values() if text]:
        yield f"{where}: an empty result"


def _image(image: Object, where: str) -> Iterator[str]:
    if image.keys() != {"mimeType", "data"} or image["mimeType"] not in _IMAGES:
        yield f"{where}: an image of type {image.get('mimeType')!r}"
    elif not image["data"] or not _is_base64(image["data"]):
        yield f"{where}: an image that is not base64"


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, altchars=b"-_" if {*"-_"} & {*text} else None, validate=True))
    except binascii.Error:
        return False
