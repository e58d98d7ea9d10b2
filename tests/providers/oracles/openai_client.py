"""The official OpenAI client, for both of its APIs."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from .scenes import PICTURE

ERRORS = {
    400: openai.BadRequestError, 401: openai.AuthenticationError, 403: openai.PermissionDeniedError,
    404: openai.NotFoundError, 413: openai.APIStatusError, 422: openai.UnprocessableEntityError,
    429: openai.RateLimitError, 500: openai.InternalServerError, 503: openai.InternalServerError,
    529: openai.InternalServerError,
}  # fmt: skip


@contextmanager
def connected(url: str, bodies: list[bytes] | None = None) -> Iterator[openai.OpenAI]:
    """A client of lab that keeps what it sends."""
    kept = bodies if bodies is not None else []
    hooks = {"request": [lambda request: kept.append(request.read())]}
    # Lab speaks plain HTTP here: to load all certificates for each client would take longer than the rest.
    http = openai.DefaultHttpxClient(event_hooks=hooks, verify=False)
    with openai.OpenAI(api_key="key", base_url=f"{url}/v1", http_client=http, max_retries=0, timeout=5.0) as client:
        yield client


def picture() -> str:
    return f"data:image/png;base64,{b64encode(PICTURE).decode()}"
