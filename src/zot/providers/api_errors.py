"""What a model service's refusal means, by its HTTP status and the vendor's words for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from zot.errors import BadRequest, NotFound, ProviderError, ServiceFailed, StreamBroken
from zot.learned import learned
from zot.providers.codes import BY_CODE, BY_STATUS, VAGUE

_MAX_MESSAGE = 2000
_MAX_OPENING = 200
_HOST = re.compile(r"[A-Za-z0-9._-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")
#: By which a request is called bad, and nothing else is said of it.
_MALFORMED = (400, 422)


class _Hint(msgspec.Struct, rename="camel"):
    """What Google adds to an error; of each kind of hint we know one field."""

    reason: str | None = None
    retry_delay: str | None = None


class _Detail(msgspec.Struct):
    type: str | None = None
    message: str | None = None
    code: str | int | None = None
    status: str | int | None = None
    metadata: dict[str, Any] | None = None
    details: Any = None

    @property
    def hints(self) -> list[_Hint]:
        try:
            return msgspec.convert(self.details, learned(list[_Hint]))
        except msgspec.ValidationError:
            return []  # Others have a field of that name, too.

    @property
    def words(self) -> tuple[str, ...]:
        """The words for the kind of error, the most telling first."""
        known = (hint.reason for hint in self.hints if hint.reason in BY_CODE)
        status = self.status if isinstance(self.status, str) else None
        return _named(*known, status, self.code, self.type)

    @property
    def delay_s(self) -> float | None:
        """The seconds it asks us to wait, as in ``"retryDelay": "34.07s"``."""
        delays = (_seconds((hint.retry_delay or "").removesuffix("s")) for hint in self.hints)
        return next((delay for delay in delays if delay is not None), None)


class _Body(msgspec.Struct):
    """Whatever has been seen: most put the details into ``error``, some beside it."""

    error: _Detail | str | None = None
    message: Any = None
    type: str | None = None
    code: str | int | None = None
    request_id: str | None = None


class _Told(msgspec.Struct, frozen=True):
    """What a body says. ``words`` are those by which a service names the kind of error, the most telling first.

    ``behind`` is what the service behind the service had told it: without that, many say nothing at all.
    """

    text: str
    words: tuple[str, ...] = ()
    request_id: str = ""
    delay_s: float | None = None
    behind: _Told | None = None


def refusal(status: int, headers: Mapping[str, str], body: bytes, *, now: float) -> ProviderError:
    """Return the error for a response with a status that is not a success. ``now`` is in seconds since the epoch."""
    if 300 <= status < 400:
        return NotFound(f"http {status}: the address has moved{_whither(headers)}", status=status)
    told, asked_s = _read(body), _retry_after(headers, now)
    usual = BY_STATUS.get(status) or (ServiceFailed if status >= 500 else BadRequest)
    kind = _by_words(told.words) or usual
    return (_closer(told) if kind is BadRequest and status in _MALFORMED else kind)(
        f"http {status}: {told.text or 'no reason was given'}",
        status=status,
        code=next(iter(told.words), ""),
        request_id=told.request_id or headers.get("request-id", "") or headers.get("x-request-id", ""),
        retry_after_s=told.delay_s if asked_s is None else asked_s,
    )


def sign(error: ProviderError, *, provider: str, mask: Callable[[str], str]) -> None:
    """Say whose error it is, in few words, without what ``mask`` hides. Once: it may be raised again."""
    if error.provider:
        return
    error.provider = provider
    # Before it is shortened: half a key would not be recognised.
    text = mask(str(error))
    error.code, error.request_id = mask(error.code), mask(error.request_id)
    short = text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]} ..."
    error.args = (f"{provider}: {short}",)


def not_a_stream(kind: str, opening: bytes, mask: Callable[[str], str]) -> ProviderError:
    """Return the error for an answer that should have been a stream of events and is ``kind``, beginning so."""
    try:
        told = msgspec.json.decode(opening, type=learned(_Body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        told = _Body()
    if told.error is not None:
        return reported(opening)  # Some say 200, and then what is wrong.
    shown = mask(_words(opening))  # All of it, before it is shortened: half a key would not be recognised.
    begins = f", which begins: {shown[:_MAX_OPENING]}" if shown else ", which is empty"
    return StreamBroken(f"http 200: not a stream of events but {kind}{begins}", status=200)


def in_stream(code: str, text: str) -> ProviderError:
    """Return the error for an error event inside a stream that had begun well."""
    return _in_stream(_Told(text, _named(code)))


def reported(body: bytes) -> ProviderError:
    """Return the error for an event inside a stream that has the form of an error's body."""
    return _in_stream(_read(body))


def _in_stream(told: _Told) -> ProviderError:
    code = next(iter(told.words), "")
    by_status = BY_STATUS.get(int(code)) if code.isascii() and code.isdecimal() and len(code) == 3 else None
    vague = BadRequest if VAGUE.intersection(told.words) else None
    kind = _by_words(told.words) or by_status or vague or ServiceFailed
    text = f"{code}: {told.text}" if code else told.text
    return (_closer(told) if kind is BadRequest else kind)(text, code=code, retry_after_s=told.delay_s)


def _closer(told: _Told) -> type[ProviderError]:
    """Return what is meant by a request being called bad: some services call everything so."""
    from zot.providers.wordings import meant  # Few requests are refused, and fewer so vaguely.

    source = told.behind or told
    by_words = _by_words(source.words) if told.behind is not None else None
    return by_words or meant((*told.words, *source.words), source.text) or BadRequest


def _by_words(words: tuple[str, ...]) -> type[ProviderError] | None:
    return next((kind for word in words if (kind := BY_CODE.get(word)) is not None), None)


def _read(body: bytes) -> _Told:
    """Return what an error body says, whatever its shape."""
    try:
        # Google wraps the object in an array where it would have streamed one.
        parsed: _Body | list[_Body] = msgspec.json.decode(body, type=learned(_Body | list[_Body]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Told(_words(body))
    if isinstance(parsed, list):
        parsed = parsed[0] if parsed else _Body()
    request_id = parsed.request_id or ""
    match parsed.error:
        case _Detail() as detail:
            return _explained(detail, body, request_id)
        case str(text):
            return _Told(text, _named(parsed.code, parsed.type), request_id)
        case None:
            text = parsed.message if isinstance(parsed.message, str) and parsed.message else _words(body)
            return _Told(text, _named(parsed.code, parsed.type), request_id)


def _named(*words: str | int | None) -> tuple[str, ...]:
    return tuple(str(word) for word in words if word)


def _explained(detail: _Detail, body: bytes, request_id: str) -> _Told:
    text, raw = detail.message or _words(body), (detail.metadata or {}).get("raw")
    behind = _read(raw.encode(errors="replace")) if isinstance(raw, str) and raw.strip() else None
    said = f"{text}: {behind.text}" if behind is not None else text
    return _Told(said, detail.words, request_id, detail.delay_s, behind)


def _words(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())


def _whither(headers: Mapping[str, str]) -> str:
    """Return which host a redirect names. Not more of it: the rest may have secrets in it."""
    from urllib.parse import urlsplit

    try:
        target = urlsplit(headers.get("location", ""), scheme="https")
        _ = target.port  # Raises, too, if it is none.
    except ValueError:
        return ""
    host = target.netloc.rpartition("@")[2]
    return f" to {target.scheme}://{host}" if _HOST.fullmatch(host) and target.scheme in ("http", "https") else ""


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds the service asked for, or those until the date it named."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (seconds := _seconds(headers.get(name, ""))) is not None:
            return seconds * scale
    date = _seconds_since_the_epoch(headers.get("retry-after", ""))
    return None if date is None else max(0.0, date - now)


def _seconds(text: str) -> float | None:
    """Read a number of seconds; None if it is none that can be waited."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _seconds_since_the_epoch(date: str) -> float | None:
    """Read the date of an HTTP header; None if it is none."""
    if ":" not in date:
        return None
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        parsed = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    # HTTP knows no other zone; a date that names none is meant so, too.
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
