"""The scripted model service, without I/O: a request in, a plan out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from zot.errors import ConfigError
from zot.providers.lab import directives as d
from zot.providers.lab.api import Api, Ask, encode, status_of
from zot.providers.lab.performance import Performance
from zot.providers.lab.plan import Pause, Plan, Step
from zot.providers.lab.script import Script
from zot.providers.lab.shell import call_shell
from zot.providers.lab.stage import Stage

_JSON = {"content-type": "application/json"}
_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


class Service:
    """Answers the requests of every API from one script. Deterministic: ids count up, and there is no clock."""

    def __init__(self, script: Script) -> None:
        self._stage = Stage(script)
        self._number = 0

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Plan:
        """Plan the answer to a request. Header names are lower case. Whatever is wrong becomes an HTTP error."""
        self._number += 1
        ids = {"request-id": f"req_lab_{self._number}", "x-request-id": f"req_lab_{self._number}"}
        path = target.partition("?")[0]
        if method in ("GET", "HEAD") and path in ("/v1/models", "/models", "/v1beta/models"):
            return Plan(200, {**ids, **_JSON}, iter([encode(_MODELS)]))
        api = _api(path)
        if api is None or method != "POST":
            message = f"lab has no {method} {target}; it has GET /v1/models and POST {', '.join(_PATHS)}"
            return _failure(api or _default(), 404, message, ids)
        try:
            ask = api.read(body)
            reply = self._stage.reply(ask, lambda: _fingerprint(headers, ask.model, body))
        except ConfigError as exc:
            return _failure(api, 400, str(exc), ids)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            return _failure(api, 400, f"not a request: {exc}", ids)
        return self._perform(reply, api, ask, ids)

    def refuse(self, status: int, message: str) -> Plan:
        """Plan the answer to what is no HTTP request."""
        return _failure(_default(), status, message, {})

    def _perform(self, reply: Sequence[d.Directive], api: Api, ask: Ask, ids: Mapping[str, str]) -> Plan:
        status = _status(reply, api, ask)
        if status is not None:
            made = api.failure(status.code, f"status {status.code}, as scripted")
            body = made if status.body is None else status.body.encode(errors="replace")
            return Plan(status.code, {**ids, **_JSON, **status.headers}, iter([*_waits(reply), body]))
        reply = [call_shell(part, ask.tools) if isinstance(part, d.Shell) else part for part in reply]
        usage = next((part for part in reply if isinstance(part, d.Usage)), d.Usage())
        voice = api.voice(ask, self._number, usage)
        performance = Performance(reply, voice, ask.next_call, self._stage.script.help)
        if ask.stream:
            return Plan(200, {**ids, **_STREAM}, performance.steps())
        return Plan(200, {**ids, **_JSON}, performance.whole())


_PATHS = (
    "/v1/messages",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1beta/models/MODEL:streamGenerateContent",
)

#: One list that the clients of every vendor can read.
_MODELS = {
    "object": "list",
    "data": [
        {
            "id": "lab-1",
            "object": "model",
            "type": "model",
            "display_name": "lab-1",
            "owned_by": "zot",
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
        }
    ],
    "has_more": False,
    "first_id": "lab-1",
    "last_id": "lab-1",
    "models": [{"name": "models/lab-1", "version": "1", "displayName": "lab-1"}],
}


def _api(path: str) -> Api | None:
    """Return the API behind a path. Each is imported when it is first asked for."""
    if "/models/" in path:
        from zot.providers.lab.gemini import GeminiApi

        return GeminiApi.at(path)
    match path.removeprefix("/v1"):
        case "/messages":
            return _default()
        case "/chat/completions":
            from zot.providers.lab.openai_chat import ChatApi

            return ChatApi()
        case "/responses":
            from zot.providers.lab.openai_responses import ResponsesApi

            return ResponsesApi()
        case _:
            return None


def _default() -> Api:
    from zot.providers.lab.anthropic import AnthropicApi

    return AnthropicApi()


def _failure(api: Api, status: int, message: str, ids: Mapping[str, str]) -> Plan:
    return Plan(status, {**ids, **_JSON}, iter([api.failure(status, message)]))


_KEYS = ("x-api-key", "authorization", "x-goog-api-key")


#: Where each API has its conversation, and what it continues.
_CONVERSATION = ("messages", "input", "contents", "previous_response_id")
#: Not said by anybody, and not always the same when a client tries again.
_ASIDE = ("metadata", "cache_control")


def _fingerprint(headers: Mapping[str, str], model: str, body: bytes) -> int:
    """Tell requests apart by model and conversation: clients change the rest, and its order, when they try again.

    The key counts too, so that clients with different keys never share a retry.
    """
    request = msgspec.json.decode(body)
    said = msgspec.json.encode([_spoken(request.get(name)) for name in _CONVERSATION], order="sorted")
    return hash((*(headers.get(name) for name in _KEYS), model, said))


def _spoken(value: Any) -> Any:
    """Return a part of a conversation without what clients note beside it."""
    match value:
        case dict():
            return {name: _spoken(inner) for name, inner in value.items() if not name.endswith(_ASIDE)}
        case list():
            return [_spoken(inner) for inner in value]
        case _:
            return value


def _status(reply: Sequence[d.Directive], api: Api, ask: Ask) -> d.Status | None:
    """Return the status that answers instead of a message. Outside a stream an error event can only be that."""
    for part in reply:
        match part:
            case d.Status():
                return part
            case d.Error(code=code, message=message) if not ask.stream:
                status = status_of(code)
                return d.Status(status, {}, api.failure(status, message, code).decode())
            case _:
                pass
    return None


def _waits(reply: Sequence[d.Directive]) -> list[Step]:
    return [Pause(part.seconds) for part in reply if isinstance(part, d.Wait)]
