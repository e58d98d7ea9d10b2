"""One small question to a model service: can it be reached, and does it take the key?"""

from __future__ import annotations

import asyncio
from typing import Literal, TypeAlias

import msgspec

from zot.config.vendors import Endpoint, Vendor
from zot.errors import AuthFailed, ProviderError
from zot.providers.api_errors import refusal
from zot.providers.base import Deadlines, HttpRequest, HttpResponse, Transport
from zot.providers.listing import models_request

#: How long all of it may take.
WITHIN_S = 8.0
_DEADLINES = Deadlines(connect_s=5.0, headers_s=5.0, silence_s=5.0)
_MAX_BODY = 64 * 1024

#: ``unclear``: something answered, but it did not say what it thinks of the key.
Outcome: TypeAlias = Literal["accepted", "refused", "unreachable", "unclear"]


class Probed(msgspec.Struct, frozen=True):
    """What came of it; ``detail`` is for a person, and quotes nothing that the service said."""

    outcome: Outcome
    detail: str


async def probe(vendor: Vendor, where: Endpoint, key: str, transport: Transport) -> Probed:
    """Ask for the list of models, which costs nothing. Never raises what the network or the service does."""
    try:
        async with asyncio.timeout(WITHIN_S):
            response = await transport.send(_request(vendor, where, key), _DEADLINES)
            try:
                return _judged(response.status, b"" if response.status == 200 else await _body(response), key)
            finally:
                response.close()
    except TimeoutError:
        return Probed("unreachable", f"no answer within {WITHIN_S:g} s")
    except ProviderError as problem:
        return Probed("unreachable", str(problem))


#: Whose list of models is open to everybody, so that another question is needed.
_OTHER_PATHS = {"openrouter": "/v1/key"}


def _request(vendor: Vendor, where: Endpoint, key: str) -> HttpRequest:
    request = models_request(where.api, where.base_url, key, count=1)
    if where.foreign or vendor.name not in _OTHER_PATHS:
        return request
    base = where.base_url.rstrip("/").removesuffix("/v1")
    return msgspec.structs.replace(request, url=base + _OTHER_PATHS[vendor.name])


async def _body(response: HttpResponse) -> bytes:
    body = b""
    while len(body) < _MAX_BODY and (data := await response.read()):
        body += data
    return body


def _judged(status: int, body: bytes, key: str) -> Probed:
    if status == 200:
        return Probed("accepted", "it takes the key" if key else "it answers")
    # Some call a wrong key a bad request; that an account has no credit says nothing against its key.
    if status in (401, 403) or type(refusal(status, {}, body, now=0.0)) is AuthFailed:
        return Probed("refused", f"it {'refuses the' if key else 'wants a'} key (http {status})")
    if status >= 500:
        return Probed("unreachable", f"it has a problem of its own (http {status})")
    return Probed("unclear", f"it answers http {status}")
