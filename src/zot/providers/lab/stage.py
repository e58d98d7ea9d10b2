"""The scripted service without I/O: chooses the scene for a request and plans the reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from zot.encoding import UNREADABLE, explain
from zot.errors import ConfigError
from zot.providers.lab import directives as d
from zot.providers.lab.api import LabApi, LabRefusal, LabRequest, UserText, call_shell, shell_of, status_of
from zot.providers.lab.performance import Pause, Performance, Plan, Step
from zot.providers.lab.script import Scene, Script, ScriptedReply

if TYPE_CHECKING:
    from zot.providers.lab.gemini import GeminiApi
    from zot.providers.lab.openai_responses import Responses

_REMEMBERED = 4096

_JSON = {"content-type": "application/json"}
_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}

_GET = ("GET", "HEAD")
#: Names and values for the log, in order.
_Notes: TypeAlias = dict[str, str]
_TOOLS_SHOWN = 30
_SHOWN_CHARS = 200
_PLAIN = re.compile(r"[\w.,:;/?&=%+*@~!-]+", re.ASCII)
_LOOPBACK = re.compile(
    r"https?://(?:localhost|[\w-]+\.localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?", re.IGNORECASE
)

_MODEL = "lab-1"
_PATHS = """\
POST /v1/messages, /v1/messages/count_tokens, /v1/chat/completions, /v1/responses, /v1/responses/input_tokens, \
/v1beta/models/MODEL:generateContent, :streamGenerateContent and :countTokens, \
GET /v1/models, /v1/models/MODEL, /v1beta/models and /v1beta/models/MODEL"""

_MODELS = re.compile(r"(?:/v1(?:beta|alpha)?)?/models(?:/([^:]+))?/?")

_KEYS = ("x-api-key", "authorization", "x-goog-api-key")

#: Fields of the conversation in each API.
_CONVERSATION = ("messages", "input", "contents", "previous_response_id")
#: Fields that may change between retries.
_METADATA = ("metadata", "cache_control")


class Cue(msgspec.Struct, frozen=True):
    """The chosen reply and its place in the script. ``reply`` counts from 1."""

    directives: list[d.Directive]
    prompt: str
    scene: str
    reply: int
    replies: int


class _Chosen(msgspec.Struct, frozen=True):
    """A scene, the text that selected it, and the replies since."""

    scene: Scene
    replies: tuple[ScriptedReply, ...]
    values: dict[str, str]
    said: UserText


class Stage:
    """Player of one script.

    In a script with scenes, the conversation determines the position: the user's newest text that matches a
    specific scene selects it, and the replies since then give the position; texts that match only a catch-all
    (reminders that agents add between tool results) do not change the scene. So conversations are independent, and
    a scene continues after a restart. The only state is how often a request has failed, because a retry is
    identical. A linear script is a tape: every request takes the next reply.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self._position = 0
        self._failures: dict[int, int] = {}

    def reply(self, ask: LabRequest, fingerprint: Callable[[], int]) -> Cue:
        """Return the reply to ``ask``; requests with the same ``fingerprint`` are retries.

        The fingerprint is computed only if the scene has failures. Raise ConfigError if the script has no answer.
        """
        if self.script.linear:
            return self._next_on_tape(ask)
        chosen = self._scene(ask)
        replies, values = chosen.replies, chosen.values
        request = fingerprint() if any(reply.fails for reply in replies) else 0
        failures = self._failures.pop(request, 0)
        reply = _pick(replies, values, chosen.said.turns, failures)
        if reply is None:
            raise ConfigError(f"{self.script.name} has no reply left: its scene has {_counted(replies)}")
        if reply.fails:
            self._remember(request, failures + 1)
        scene = f"{chosen.scene.title} ({self.script.name}:{chosen.scene.number})"
        return _cue(reply, replies, values, chosen.said.text, scene)

    def _next_on_tape(self, ask: LabRequest) -> Cue:
        replies = self.script.scenes[0].replies
        left = self._position
        for reply in replies:
            times = reply.times({})
            if times is None or left < times:
                self._position += 1
                return _cue(reply, replies, {}, ask.prompt.text, f"tape ({self.script.name})")
            left -= times
        raise ConfigError(f"{self.script.name} has no reply left: it has {_counted(replies)}")

    def _scene(self, ask: LabRequest) -> _Chosen:
        """Return the scene to play. Raise ConfigError if there is none."""
        prompt, general, replaced = ask.prompt, None, -1
        for said in ask.texts:
            found = self._match(said, ask)
            # An unanswered prompt stays in the conversation: its failures do not apply to the next prompt.
            failed = said.turns == replaced and found is not None and found.replies[0].fails
            if found is not None and found.scene.specific and not failed:
                return found
            if said is prompt:
                general = found
            if not _is_markup(said.text):
                replaced = said.turns
        if general is None:
            raise ConfigError(f"{self.script.name} has no scene for the prompt {prompt.text[:80]!r}")
        return general

    def _match(self, said: UserText, ask: LabRequest) -> _Chosen | None:
        """Return the first scene that matches a text; None if there is none."""
        text = said.text
        first, *_ = text.split(None, 1) or [""]
        for scene in self.script.scenes:
            if scene.word is not None and scene.word != first:
                continue  # The common case.
            groups = scene.match(text, tools=ask.tools)
            if groups is not None:
                shell = shell_of(ask.tools)
                about = {"chars": str(len(text)), "model": ask.model, "shell": shell.name if shell else "bash"}
                values = {**groups, **about}
                return _Chosen(scene, *_inner(scene.replies, values), said)
        return None

    def _remember(self, request: int, failures: int) -> None:
        self._failures[request] = failures
        if len(self._failures) > _REMEMBERED:
            del self._failures[next(iter(self._failures))]


def _cue(
    reply: ScriptedReply, replies: tuple[ScriptedReply, ...], values: dict[str, str], prompt: str, scene: str
) -> Cue:
    number = next(number for number, each in enumerate(replies, 1) if each is reply)
    return Cue(reply.directives(values), prompt, scene, number, len(replies))


def _inner(
    replies: tuple[ScriptedReply, ...], values: dict[str, str]
) -> tuple[tuple[ScriptedReply, ...], dict[str, str]]:
    """Return the replies of a nested script, if the scene is one."""
    match replies[0].directives(values):
        case [d.Play(source=source)]:
            return _in_prompt(source), {}
        case _:
            return replies, values


@lru_cache(maxsize=8)
def _in_prompt(source: str) -> tuple[ScriptedReply, ...]:
    """Return the replies of a script in a prompt; cached, since it comes with every request. Raise ConfigError."""
    script = Script.parse(source.replace(" ;; ", "\n"), "script in the prompt")
    if not script.linear:
        raise ConfigError("a script in a prompt cannot have scenes")
    return script.scenes[0].replies


def _pick(
    replies: Iterable[ScriptedReply], values: Mapping[str, str], turns: int, failures: int
) -> ScriptedReply | None:
    """Return the reply after ``turns`` successful ones and, from there, ``failures`` failed ones."""
    for reply in replies:
        times = reply.times(values)
        if reply.fails and turns:
            continue
        if times is None or (failures if reply.fails else turns) < times:
            return reply
        if reply.fails:
            failures -= times
        else:
            turns -= times
    return None


def _is_markup(text: str) -> bool:
    """True for text that agents add to a prompt: <system-reminder>, <environment_context> and the like."""
    return text.lstrip().startswith("<")


def _counted(replies: tuple[ScriptedReply, ...]) -> str:
    return f"{len(replies)} {'reply' if len(replies) == 1 else 'replies'}, and each request takes one"


class LabService:
    """Answers the requests of every API from one script. Deterministic: ids count up, and there is no clock."""

    def __init__(self, script: Script, log: Callable[[str], None] | None = None) -> None:
        self._stage = Stage(script)
        self._log = log
        self._number = 0
        self._responses: Responses | None = None

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Plan:
        """Plan the response to a request. Header names are lower case. Any error becomes an HTTP error."""
        self._number += 1
        notes: _Notes = {}
        plan = self._answer(method, target, headers, body, notes)
        if self._log is not None:
            about = {"status": "" if notes.get("fault") == "refuse" else str(plan.status), **notes}
            self._log(_line(f"req_lab_{self._number} {method} {_shown(target)}", about))
        return plan

    def refuse(self, status: int, message: str) -> Plan:
        """Plan the response to invalid HTTP."""
        if self._log is not None:
            self._log(_line("refused", {"status": str(status), "error": message}))
        return _failure(_anthropic(), status, message, {}, {})

    def _answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes, notes: _Notes) -> Plan:
        ids = {"request-id": f"req_lab_{self._number}", "x-request-id": f"req_lab_{self._number}"}
        common = {**ids, **_origin_headers(headers)}
        route = self._route(target, headers)
        if method == "OPTIONS":
            return _preflight(route.api, headers, common, notes)
        try:
            match route.what:
                case "reply" if method == "POST":
                    return self._reply(route.api, headers, body, common, notes)
                case "count" if method == "POST":
                    return _whole(route.api.count(body), common)
                case "models" if method in _GET:
                    return _whole(route.api.models(_MODEL), common)
                case "model" if method in _GET:
                    return _whole(route.api.model(route.model), common)
                case _:
                    return _failure(route.api, 404, f"lab has no {method} {target}; it has {_PATHS}", common, notes)
        except LabRefusal as refusal:
            notes["error"] = str(refusal)
            return Plan(400, {**common, **_JSON}, iter([refusal.body()]))
        except ConfigError as exc:
            return _failure(route.api, 400, str(exc), common, notes)
        except UNREADABLE as exc:
            return _failure(route.api, 400, f"not a request: {explain(exc)}", common, notes)

    def _route(self, target: str, headers: Mapping[str, str]) -> _Route:
        """Return the route of a path. Each API is imported on first use."""
        path, _, query = target.partition("?")
        if ":" in path:
            api = _gemini().at(path)
            if api is not None:
                return _Route(api, "count" if path.endswith(":countTokens") else "reply")
        match path.removeprefix("/v1"):
            case "/messages":
                return _Route(_anthropic(), "reply")
            case "/messages/count_tokens":
                return _Route(_anthropic(), "count")
            case "/chat/completions":
                return _Route(_chat(), "reply")
            case "/responses" | "/responses/input_tokens" as rest:
                return _Route(self._responses_api(), "reply" if rest == "/responses" else "count")
            case _:
                pass
        vendor = _vendor(path, query, headers)
        found = _MODELS.fullmatch(path)
        if found is None:
            return _Route(vendor, "nothing")
        if found[1] is None:
            return _Route(vendor, "models")
        from urllib.parse import unquote  # Imported lazily: one API is enough for most clients.

        return _Route(vendor, "model", unquote(found[1]))

    def _responses_api(self) -> LabApi:
        module = _api("openai_responses")
        self._responses = self._responses or module.Responses()
        made: LabApi = module.ResponsesApi(self._responses)
        return made

    def _reply(
        self, api: LabApi, headers: Mapping[str, str], body: bytes, common: Mapping[str, str], notes: _Notes
    ) -> Plan:
        ask = api.read(body)
        if self._log is not None:
            notes |= _asked(ask)
        cue = self._stage.reply(ask, lambda: _fingerprint(headers, ask.model, body))
        reply: Sequence[d.Directive] = [
            call_shell(part, ask.tools) if isinstance(part, d.Shell) else part for part in cue.directives
        ]
        if self._log is not None:
            notes |= _cued(cue, reply)
        status = _status(reply, api, ask)
        if status is not None:
            code = status.code or api.overloaded
            made = api.failure(code, f"status {code}, as scripted", retry_after=status.headers.get("retry-after", ""))
            scripted = made if status.body is None else status.body.encode(errors="replace")
            sent = {**common, **_JSON, **api.failure_headers(code), **status.headers}
            return Plan(code, sent, iter([*_waits(reply), scripted]))
        usage = next((part for part in reply if isinstance(part, d.UsageDirective)), d.UsageDirective())
        voice = api.voice(ask, self._number, usage)
        performance = Performance(reply, voice, ask.next_call, self._stage.script)
        if ask.stream:
            return Plan(200, {**common, **_STREAM}, performance.steps())
        return Plan(200, {**common, **_JSON}, performance.whole())


class _Route(msgspec.Struct, frozen=True):
    """Route of a request. ``what`` is "nothing" for unknown paths: then the API encodes the error."""

    api: LabApi
    what: Literal["reply", "count", "models", "model", "nothing"]
    model: str = ""


def _vendor(path: str, query: str, headers: Mapping[str, str]) -> LabApi:
    """Return the API to answer with where several vendors share a path."""
    if path.startswith(("/v1beta", "/v1alpha")) or "x-goog-api-key" in headers or "&key=" in f"&{query}":
        return _gemini()("", stream=False)
    if "anthropic-version" in headers or "x-api-key" in headers or path.startswith("/v1/messages"):
        return _anthropic()
    return _chat()


def _gemini() -> type[GeminiApi]:
    made: type[GeminiApi] = _api("gemini").GeminiApi
    return made


def _anthropic() -> LabApi:
    made: LabApi = _api("anthropic").AnthropicApi()
    return made


def _chat() -> LabApi:
    made: LabApi = _api("openai_chat").ChatApi()
    return made


def _api(name: str) -> ModuleType:
    """Return the module of one API, imported on first use: most clients use one."""
    return import_module(f"zot.providers.lab.{name}")


def _whole(body: bytes, common: Mapping[str, str]) -> Plan:
    return Plan(200, {**common, **_JSON}, iter([body]))


def _failure(api: LabApi, status: int, message: str, common: Mapping[str, str], notes: _Notes) -> Plan:
    notes["error"] = message
    return Plan(status, {**common, **_JSON, **api.failure_headers(status)}, iter([api.failure(status, message)]))


def _origin_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Allow local pages to read the response. Browsers withhold it from other pages."""
    origin = headers.get("origin", "")
    if not _LOOPBACK.fullmatch(origin):
        return {}
    exposed = "request-id, x-request-id, retry-after"
    return {"access-control-allow-origin": origin, "access-control-expose-headers": exposed, "vary": "origin"}


def _preflight(api: LabApi, headers: Mapping[str, str], common: Mapping[str, str], notes: _Notes) -> Plan:
    """Answer OPTIONS, a browser's CORS preflight."""
    methods = "GET, HEAD, POST, OPTIONS"
    if "origin" not in headers:
        return Plan(204, {**common, "allow": methods}, iter(()))
    if "access-control-allow-origin" not in common:
        return _failure(
            api, 403, "lab answers only pages of this machine: localhost, 127.0.0.1 or [::1]", common, notes
        )
    allowed = {
        "access-control-allow-methods": methods,
        "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
        "access-control-max-age": "600",
    }
    return Plan(204, {**common, **allowed}, iter(()))


def _fingerprint(headers: Mapping[str, str], model: str, body: bytes) -> int:
    """Return a hash of model and conversation: clients change the rest, and its order, in a retry.

    It includes the key, so clients with different keys never share a retry.
    """
    request = msgspec.json.decode(body)
    said = msgspec.json.encode([_without_metadata(request.get(name)) for name in _CONVERSATION], order="sorted")
    return hash((*(headers.get(name) for name in _KEYS), model, said))


def _without_metadata(value: Any) -> Any:
    """Return a part of a conversation without metadata."""
    match value:
        case dict():
            return {name: _without_metadata(inner) for name, inner in value.items() if not name.endswith(_METADATA)}
        case list():
            return [_without_metadata(inner) for inner in value]
        case _:
            return value


def _status(reply: Sequence[d.Directive], api: LabApi, ask: LabRequest) -> d.StatusDirective | None:
    """Return the status to answer with instead of a message; outside a stream, also for an error event."""
    for part in reply:
        match part:
            case d.StatusDirective():
                return part
            case d.ErrorDirective(code=code, message=message) if not ask.stream:
                status = api.overloaded if code == "overloaded_error" else status_of(code)
                return d.StatusDirective(status, {}, api.failure(status, message, code).decode())
            case _:
                pass
    return None


def _waits(reply: Sequence[d.Directive]) -> list[Step]:
    return [Pause(part.seconds) for part in reply if isinstance(part, d.Wait)]


def _asked(ask: LabRequest) -> _Notes:
    """Return the log fields of a request."""
    names = [tool.name for tool in ask.tools]
    more = [f"+{len(names) - _TOOLS_SHOWN}"] if len(names) > _TOOLS_SHOWN else []
    about = {"model": ask.model, "stream": "yes" if ask.stream else "no", "prompt": ask.prompt.text}
    return {**about, "tools": ",".join([*names[:_TOOLS_SHOWN], *more]) or "none"}


def _cued(cue: Cue, reply: Sequence[d.Directive]) -> _Notes:
    """Return the log fields of the chosen scene and reply, its text and its faults."""
    said = [_worded(part) for part in reply if isinstance(part, d.Content)]
    said = [word for word, before in zip(said, ["", *said], strict=False) if word != before]
    faults = [_worded(part) for part in reply if isinstance(part, d.Ending)]
    chosen = {"prompt": cue.prompt, "scene": cue.scene, "reply": f"{cue.reply}/{cue.replies}"}
    return {**chosen, "says": ", ".join(said), "fault": ", ".join(faults)}


def _worded(part: d.Directive) -> str:
    match part:
        case d.CallDirective(tool=tool):
            return f"call {tool}"
        case d.StatusDirective(code=code):
            return f"status {code or 'overloaded'}"
        case d.Cut(where=where):
            return f"cut {where}"
        case d.ErrorDirective(code=code):
            return f"error {code}"
        case d.NoEnd():
            return "no-end"
        case _:
            return type(part).__name__.lower()


def _line(head: str, notes: _Notes) -> str:
    """Return one line of the log, without empty fields."""
    return " ".join([head, *(f"{name}={_shown(value)}" for name, value in notes.items() if value)])


def _shown(text: str) -> str:
    """Return a text for the log: quoted unless plain, shortened, and without control characters."""
    short = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
    if _PLAIN.fullmatch(short):
        return short
    safe = "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in short.replace("\\", "\\\\"))
    return '"' + safe.replace('"', '\\"').replace("\\u000a", "\\n") + '"'
