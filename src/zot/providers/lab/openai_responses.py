"""lab as the OpenAI Responses API."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import msgspec

from zot.providers.lab.api import CurrentRun, LabBlock, LabRefusal, LabRequest, LabTool, encode, next_call
from zot.providers.lab.directives import UsageDirective
from zot.providers.lab.openai_chat import OpenAiApi

_INCOMPLETE = {"length": "max_output_tokens", "refusal": "content_filter"}
_MOST_RESPONSES = 256
_MOST_CHARS = 16 * 1024 * 1024
#: Fixed cost of an item, even an empty one.
_ITEM_CHARS = 100
_ITEM_PREFIX = {"text": "msg", "thinking": "rs", "redacted": "rs", "call": "fc"}


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Item(msgspec.Struct):
    type: str = "message"
    role: str = ""
    content: str | list[_Part] | None = None
    call_id: str = ""


class _Tool(msgspec.Struct):
    type: str = "function"
    name: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class _Request(msgspec.Struct):
    model: str
    input: str | list[_Item] = ""
    previous_response_id: str | None = None
    conversation: Any = None
    store: bool | None = None
    stream: bool | None = False
    tools: list[_Tool] | None = None


_requests = msgspec.json.Decoder(_Request)


class Responses:
    """Conversations by the id of their last response. Bounded: the oldest are evicted.

    Only data that chooses a scene is kept: the user's texts, and whether there were replies and calls.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[_Item]] = {}
        self._sizes: dict[str, int] = {}

    def find(self, id_: str) -> list[_Item]:
        """Return the conversation up to the response with this id. Raise LabRefusal if it is unknown."""
        if id_ not in self._known:
            raise LabRefusal(
                f"Previous response with id '{id_}' not found: lab remembers the last {_MOST_RESPONSES} responses, "
                "except those with store=false",
                code="previous_response_not_found",
                param="previous_response_id",
            )
        return self._known[id_]

    def remember(self, id_: str, items: list[_Item]) -> None:
        """Store a conversation; evict the oldest ones if there are too many or they are too long."""
        kept = [_Item(item.type, item.role, _kept(item), item.call_id) for item in items]
        self._known[id_] = kept
        self._sizes[id_] = sum(_ITEM_CHARS + sum(map(len, _texts(item))) for item in kept)
        while len(self._known) > _MOST_RESPONSES or (len(self._known) > 1 and sum(self._sizes.values()) > _MOST_CHARS):
            oldest = next(iter(self._known))
            del self._known[oldest], self._sizes[oldest]


class ResponsesApi(OpenAiApi):
    """One request to ``POST /v1/responses``, and its errors."""

    def __init__(self, responses: Responses | None = None) -> None:
        self._responses = responses or Responses()
        self._items: list[_Item] = []
        self._store = True

    def read(self, body: bytes) -> LabRequest:
        request = _requests.decode(body)
        if request.conversation is not None:
            raise LabRefusal(
                "lab keeps no conversations: continue with previous_response_id, or send the whole input",
                code="conversation_not_found",
                param="conversation",
            )
        items = [_Item(role="user", content=request.input)] if isinstance(request.input, str) else request.input
        if request.previous_response_id is not None:
            items = [*self._responses.find(request.previous_response_id), *items]
        self._items, self._store = items, request.store is not False
        run = CurrentRun()
        for spoken, group in groupby(items, _is_spoken):
            if spoken:
                # Thoughts, text and calls are separate items: consecutive ones form one reply.
                run.reply(calls=any(_is_call(item) for item in group))
                continue
            for item in group:
                if item.role == "user":
                    run.user(_texts(item))
        ids = (item.call_id for item in items)
        # Other kinds run in the service itself, or take no JSON.
        tools = tuple(LabTool(tool.name, tool.parameters) for tool in request.tools or () if tool.type == "function")
        return LabRequest(request.model, bool(request.stream), run.texts(), tools, next_call(ids))

    def voice(self, ask: LabRequest, number: int, usage: UsageDirective) -> ResponsesVoice:
        return ResponsesVoice(ask.model, number, usage, self._remember if self._store else None)

    def _remember(self, id_: str, blocks: list[LabBlock]) -> None:
        calls = [_Item("function_call", call_id=block.id) for block in blocks if block.kind == "call"]
        self._responses.remember(id_, [*self._items, *(calls or [_Item(role="assistant")])])


class ResponsesVoice:
    """Replies of ``POST /v1/responses``. Events are numbered, so an instance encodes one reply only."""

    call_prefix = "call_lab_"

    def __init__(
        self,
        model: str,
        number: int,
        usage: UsageDirective,
        remember: Callable[[str, list[LabBlock]], None] | None = None,
    ) -> None:
        self._model = model
        self._number = number
        self._remember = remember
        self._sequence = 0
        self._usage = {
            "input_tokens": usage.input + usage.cache_read + usage.cache_write,
            "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input + usage.cache_read + usage.cache_write + usage.output,
        }

    def begin(self, *, twice: bool) -> list[bytes]:
        started = self._response("in_progress", [])
        again = {**started, "usage": self._usage} if twice else started
        return [
            self._event("response.created", {"response": started}),
            self._event("response.in_progress", {"response": again}),
        ]

    def open(self, block: LabBlock) -> list[bytes]:
        added = self._event("response.output_item.added", {**self._place(block), "item": self._item(block, done=False)})
        match block.kind:
            case "text":
                part = {**self._inside(block), "part": _text("")}
                return [added, self._event("response.content_part.added", part)]
            case "thinking":
                part = {**self._inside(block), "part": {"type": "summary_text", "text": ""}}
                return [added, self._event("response.reasoning_summary_part.added", part)]
            case _:
                return [added]

    def delta(self, block: LabBlock, text: str) -> bytes:
        match block.kind:
            case "text":
                return self._event("response.output_text.delta", {**self._inside(block), "delta": text, "logprobs": []})
            case "call":
                return self._event("response.function_call_arguments.delta", {**self._inside(block), "delta": text})
            case _:
                return self._event("response.reasoning_summary_text.delta", {**self._inside(block), "delta": text})

    def close(self, block: LabBlock) -> list[bytes]:
        place, text = self._inside(block), block.text
        match block.kind:
            case "text":
                events = [
                    self._event("response.output_text.done", {**place, "text": text, "logprobs": []}),
                    self._event("response.content_part.done", {**place, "part": _text(text)}),
                ]
            case "thinking":
                part = {"type": "summary_text", "text": text}
                events = [
                    self._event("response.reasoning_summary_text.done", {**place, "text": text}),
                    self._event("response.reasoning_summary_part.done", {**place, "part": part}),
                ]
            case "call":
                events = [self._event("response.function_call_arguments.done", {**place, "arguments": text})]
            case "redacted":
                events = []
        done_item = {**self._place(block), "item": self._item(block, done=True)}
        return [*events, self._event("response.output_item.done", done_item)]

    def end(self, blocks: list[LabBlock], stop: str, *, twice: bool) -> list[bytes]:
        response = self._ended(blocks, stop)
        if self._remember is not None:
            self._remember(response["id"], blocks)
        return [self._event(f"response.{response['status']}", {"response": response})]

    def whole(self, blocks: list[LabBlock], stop: str) -> bytes:
        return encode(self._ended(blocks, stop))

    def ping(self) -> bytes:
        return b": ping\n\n"

    def error(self, code: str, message: str) -> bytes:
        return self._event("error", {"code": code, "message": message, "param": None})

    def _ended(self, blocks: list[LabBlock], stop: str) -> dict[str, Any]:
        reason = _INCOMPLETE.get(stop)
        status = "completed" if reason is None else "incomplete"
        response = self._response(status, [self._item(block, done=True) for block in blocks])
        details = None if reason is None else {"reason": reason}
        return {**response, "incomplete_details": details, "usage": self._usage}

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"resp_lab_{self._number}",
            "object": "response",
            "created_at": 0,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
        }

    def _item(self, block: LabBlock, *, done: bool) -> dict[str, Any]:
        status = "completed" if done else "in_progress"
        text = block.text if done else ""
        id_ = self._item_id(block)
        match block.kind:
            case "text":
                content = [_text(text)] if done else []
                return {"id": id_, "type": "message", "status": status, "role": "assistant", "content": content}
            case "call":
                call = {"call_id": block.id, "name": block.tool, "arguments": text}
                return {"id": id_, "type": "function_call", "status": status, **call}
            case "thinking":
                summary = [{"type": "summary_text", "text": text}] if done else []
                return {
                    "id": id_,
                    "type": "reasoning",
                    "summary": summary,
                    "encrypted_content": _seal(f"lab-{id_}", done=done),
                }
            case "redacted":
                return {
                    "id": id_,
                    "type": "reasoning",
                    "summary": [],
                    "encrypted_content": _seal(block.text, done=done),
                }

    def _item_id(self, block: LabBlock) -> str:
        return f"{_ITEM_PREFIX[block.kind]}_lab_{self._number}_{block.index}"

    def _place(self, block: LabBlock) -> dict[str, Any]:
        return {"output_index": block.index}

    def _inside(self, block: LabBlock) -> dict[str, Any]:
        """Return the position of a delta: messages have contents, reasoning has summaries, calls have neither."""
        part = {"text": {"content_index": 0}, "thinking": {"summary_index": 0}}.get(block.kind, {})
        return {"item_id": self._item_id(block), **self._place(block), **part}

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        data = encode({"type": name, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _seal(sealed: str, *, done: bool) -> str:
    """Return encrypted thinking; only half of it until it is done."""
    return sealed if done else sealed[: len(sealed) // 2]


def _is_spoken(item: _Item) -> bool:
    return item.role == "assistant" or item.type == "reasoning" or _is_call(item)


def _is_call(item: _Item) -> bool:
    """True for function_call, custom_tool_call, local_shell_call and the like."""
    return item.type.endswith("_call")


def _kept(item: _Item) -> list[_Part]:
    return [_Part("input_text", text) for text in _texts(item)] if item.role == "user" else []


def _texts(item: _Item) -> list[str]:
    if isinstance(item.content, str):
        return [item.content]
    return [part.text for part in item.content or [] if part.type == "input_text"]
