"""The official OpenAI client, for both of its APIs."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .late import Late
from .scenes import PICTURE

if TYPE_CHECKING:
    import openai
else:
    openai = Late("openai")

ERRORS = {
    400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError",
    404: "NotFoundError", 413: "APIStatusError", 422: "UnprocessableEntityError",
    429: "RateLimitError", 500: "InternalServerError", 503: "InternalServerError",
    529: "InternalServerError",
}  # fmt: skip


@contextmanager
def connected(url: str, bodies: list[bytes] | None = None, retries: int = 0) -> Iterator[openai.OpenAI]:
    """A client of lab that keeps its requests."""
    kept = bodies if bodies is not None else []
    hooks = {"request": [lambda request: kept.append(request.read())]}
    # Lab speaks plain HTTP here: to load all certificates for each client would take longer than the rest.
    http = openai.DefaultHttpxClient(event_hooks=hooks, verify=False)
    with openai.OpenAI(
        api_key="key", base_url=f"{url}/v1", http_client=http, max_retries=retries, timeout=15.0
    ) as client:
        yield client


def picture() -> str:
    return f"data:image/png;base64,{b64encode(PICTURE).decode()}"
