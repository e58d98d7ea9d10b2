"""Model listings of a service, and a probe that tells whether it accepts the key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Literal, TypeAlias
from urllib.parse import quote

import msgspec

from zot.config.base_url import api_base
from zot.config.vendors import Endpoint, Vendor
from zot.encoding import UNREADABLE, explain, thread_safe_type
from zot.errors import AuthFailed, ConnectionFailed, NoCredit, NotFound, ProviderError, Stalled, StreamBroken
from zot.providers.api_errors import advice, attribute_error, response_error
from zot.providers.base import Deadlines, HttpRequest, HttpResponse, Transport
from zot.providers.mask import Mask
from zot.providers.models import Catalogue, Model, unknown_model

#: Listing formats; "ollama" is its native list, which includes models never loaded.
Dialect: TypeAlias = Literal["anthropic", "responses", "chat", "gemini", "ollama"]

_WITHIN_S = 30.0
_DEADLINES = Deadlines(connect_s=10.0, headers_s=20.0)
_MAX_BYTES = 8 * 1024 * 1024
_MAX_PAGES = 10

#: Time limit of a probe.
WITHIN_S = 8.0
_PROBE_DEADLINES = Deadlines(connect_s=5.0, headers_s=5.0, silence_s=5.0)
_MAX_BODY = 64 * 1024

#: ``unclear``: the server answered, but neither accepted nor refused the key.
Outcome: TypeAlias = Literal["accepted", "refused", "unreachable", "unclear"]

#: Services whose list of models is public: another request must test the key.
_OTHER_PATHS = {"openrouter": "/v1/key"}


class Served(msgspec.Struct, frozen=True):
    """A model that a service lists, with its limits as reported."""

    id: str
    name: str = ""
    context_window: int | None = None
    max_output: int | None = None


async def list_models(
    provider: str, dialect: Dialect, transport: Transport, *, base_url: str, key: str, within_s: float = _WITHIN_S
) -> tuple[Served, ...]:
    """Return the served models, in the service's order. Raise ProviderError with advice."""
    first = models_request(dialect, base_url, key)
    try:
        async with asyncio.timeout(within_s):
            return tuple([served async for served in _pages(dialect, transport, first, base_url=base_url, key=key)])
    except TimeoutError:
        error: ProviderError = Stalled(f"the list of models did not arrive within {within_s:g} s")
    except ProviderError as problem:
        error = problem
    attribute_error(error, provider=provider, mask=Mask(first.secrets()))
    if todo := _advice(error, provider):
        error.args = (f"{error}; {todo}",)
    raise error


def models_request(dialect: Dialect, base_url: str, key: str, *, mark: str = "", count: int = 1000) -> HttpRequest:
    """Return the request for one page of at most ``count`` models; ``mark`` selects it, "" for the first."""
    base = base_url.rstrip("/").removesuffix("/v1").removesuffix("/v1beta")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    page = quote(mark, safe="")
    match dialect:
        case "anthropic":
            url = f"{base}/v1/models?limit={count}{f'&after_id={page}' if mark else ''}"
            headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        case "gemini":
            url = f"{base}/v1beta/models?pageSize={count}{f'&pageToken={page}' if mark else ''}"
            headers = {"x-goog-api-key": key} if key else {}
        case "ollama":
            url = f"{base}/api/tags"
        case "responses" | "chat":
            url = f"{api_base(base_url)}/models"
    return HttpRequest(url, {**headers, "accept": "application/json"}, b"", method="GET")


async def _pages(
    dialect: Dialect, transport: Transport, first: HttpRequest, *, base_url: str, key: str
) -> AsyncIterator[Served]:
    """Yield the models of all pages, up to a limit of pages."""
    http = first
    for _ in range(_MAX_PAGES):
        page, mark = _read(dialect, await _fetch(transport, http))
        for served in page:
            yield served
        if not mark:
            return
        http = models_request(dialect, base_url, key, mark=mark)


def merged(listed: Catalogue, served: Sequence[Served]) -> list[tuple[Model, bool]]:
    """Return the models of a catalogue, and whether each is served; then the served ones it does not list."""
    ids = {model.id for model in served}
    known = {model.id for model in listed.models}
    dated = {_undated(model_id) for model_id in ids}
    new = [model for model in served if model.id not in known and _undated(model.id) not in known]
    return [
        *((model, model.id in ids or model.id in dated) for model in listed.models),
        *((_described(model, listed.provider), True) for model in new),
    ]


def _described(served: Served, provider: str) -> Model:
    model = unknown_model(served.id, provider)
    window = served.context_window
    reported = {
        "name": served.name,
        "context_window": window,
        "max_output": served.max_output,
        "window_known": bool(window),
    }
    return msgspec.structs.replace(model, **{field: value for field, value in reported.items() if value})


def _undated(model_id: str) -> str:
    """Return an id without its trailing date: vendors list `name-20250929` and accept `name`."""
    head, _, tail = model_id.rpartition("-")
    if len(tail) == 8 and tail.isdecimal():
        return head
    if len(model_id) > 11 and model_id[-11] == "-" and model_id[-10:].replace("-", "").isdecimal():
        return model_id[:-11]
    return model_id


def _advice(error: ProviderError, provider: str) -> str:
    match error:
        case AuthFailed() if not isinstance(error, NoCredit):
            return "check the key"
        case NotFound():
            return "this server does not list its models, or has another address: see --base-url"
        case ConnectionFailed():
            return "check that the server is running and that --base-url is right"
        case Stalled():
            return "try again"
        case StreamBroken():
            return "check --base-url"
        case _:
            return advice(error, provider)


async def _fetch(transport: Transport, http: HttpRequest) -> bytes:
    response = await transport.send(http, _DEADLINES)
    try:
        body = await _body(response)
    finally:
        response.close()
    if response.status != 200:
        raise response_error(response.status, response.headers, body, now=time.time())
    return body


async def _body(response: HttpResponse) -> bytes:
    body = bytearray()
    while data := await response.read():
        body += data
        if len(body) > _MAX_BYTES:
            raise StreamBroken(f"the list of models is longer than {_MAX_BYTES // 1024**2} MiB")
    return bytes(body)


class _Top(msgspec.Struct):
    max_completion_tokens: int | None = None


class _Item(msgspec.Struct):
    """A model in the union of all services' formats."""

    id: str = ""
    name: str = ""
    display_name: str | None = None
    gemini_name: str | None = msgspec.field(default=None, name="displayName")
    context_length: int | None = None
    context_window: int | None = None
    max_context_length: int | None = None
    max_input_tokens: int | None = None
    input_limit: int | None = msgspec.field(default=None, name="inputTokenLimit")
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    output_limit: int | None = msgspec.field(default=None, name="outputTokenLimit")
    top_provider: _Top | None = None
    methods: list[str] | None = msgspec.field(default=None, name="supportedGenerationMethods")

    def served(self) -> Served:
        """Return its id, name and limits."""
        output = self.max_tokens or self.max_completion_tokens or self.output_limit
        if output is None and self.top_provider is not None:
            output = self.top_provider.max_completion_tokens
        return Served(
            (self.id or self.name).removeprefix("models/"),
            self.display_name or self.gemini_name or (self.name if self.id else ""),
            self.context_length
            or self.context_window
            or self.max_context_length
            or self.max_input_tokens
            or self.input_limit,
            output,
        )


class _Page(msgspec.Struct):
    data: list[_Item] = []
    models: list[_Item] = []
    has_more: bool = False
    last_id: str | None = None
    next_token: str | None = msgspec.field(default=None, name="nextPageToken")


def _read(dialect: Dialect, body: bytes) -> tuple[list[Served], str | None]:
    """Return the models of one page, and the mark of the next. Raise StreamBroken if it is invalid."""
    try:
        page = msgspec.json.decode(body, type=thread_safe_type(_Page))
    except UNREADABLE as problem:
        raise StreamBroken(f"the list of models is not what the API promises: {explain(problem)}") from None
    items = page.models if dialect in ("gemini", "ollama") else page.data
    able = (item for item in items if item.methods is None or "generateContent" in item.methods)
    mark = page.next_token if dialect == "gemini" else page.last_id if page.has_more else None
    return [served for item in able if (served := item.served()).id], mark


class Probed(msgspec.Struct, frozen=True):
    """The outcome of a probe; ``detail`` is for a person and quotes nothing from the service."""

    outcome: Outcome
    detail: str


async def probe(vendor: Vendor, where: Endpoint, key: str, transport: Transport) -> Probed:
    """Request the list of models, which is free. Never raises errors of the network or the service."""
    try:
        async with asyncio.timeout(WITHIN_S):
            response = await transport.send(_request(vendor, where, key), _PROBE_DEADLINES)
            try:
                return _judged(response.status, b"" if response.status == 200 else await _probe_body(response), key)
            finally:
                response.close()
    except TimeoutError:
        return Probed("unreachable", f"no answer within {WITHIN_S:g} s")
    except ProviderError as problem:
        return Probed("unreachable", str(problem))


def _request(vendor: Vendor, where: Endpoint, key: str) -> HttpRequest:
    request = models_request(where.api, where.base_url, key, count=1)
    if where.foreign or vendor.name not in _OTHER_PATHS:
        return request
    base = where.base_url.rstrip("/").removesuffix("/v1")
    return msgspec.structs.replace(request, url=base + _OTHER_PATHS[vendor.name])


async def _probe_body(response: HttpResponse) -> bytes:
    body = b""
    while len(body) < _MAX_BODY and (data := await response.read()):
        body += data
    return body


def _judged(status: int, body: bytes, key: str) -> Probed:
    if status == 200:
        return Probed("accepted", "it accepts the key" if key else "it answers")
    # Some services call a wrong key a bad request. Missing credit does not make a key wrong.
    if status in (401, 403) or type(response_error(status, {}, body, now=0.0)) is AuthFailed:
        return Probed("refused", f"it {'refuses the' if key else 'requires a'} key (http {status})")
    if status >= 500:
        return Probed("unreachable", f"it failed (http {status})")
    return Probed("unclear", f"it answers http {status}")
