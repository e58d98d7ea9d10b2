"""Masks that replace secrets in text and byte streams, in all their encoded forms."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator

#: Shorter strings would match everywhere, and are not secrets.
_SHORTEST = 4
_SHOWN = "[key]"
#: Longer than the common prefix of a service's keys.
_TELLING = 8


class Mask:
    """Replaces secrets in text, plain and percent-encoded."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = {*secrets}

    def add(self, secrets: Iterable[str]) -> None:
        """Add secrets."""
        self._secrets.update(secrets)

    def __call__(self, text: str) -> str:
        """Return ``text`` with secrets replaced."""
        for form in self.forms():
            text = text.replace(form, _SHOWN)
        return text

    def forms(self) -> list[str]:
        """Return all forms of the secrets, longest first: one may contain another."""
        forms = {form for secret in self._secrets for form in _forms(secret) if len(form) >= _SHORTEST}
        return sorted(forms, key=len, reverse=True)


class StreamMask:
    """Replaces secrets in a byte stream. A possible beginning of a secret is held until the next piece."""

    def __init__(self, mask: Mask) -> None:
        self._forms = [form.encode() for form in mask.forms()]
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that are safe to show so far."""
        data = self._held + data
        cut = len(data) - self._begun(data)
        while (earlier := min((self._across(data, form, cut) for form in self._forms), default=cut)) < cut:
            cut = earlier
        self._held = data[cut:]
        return self._masked(data[:cut])

    def finish(self) -> bytes:
        """Return the rest. A truncated secret is masked too if it is long enough."""
        rest = self._masked(self._held)
        self._held = b""
        begun = self._begun(rest)
        return rest[:-begun] + _SHOWN.encode() if begun >= _TELLING else rest

    def _begun(self, data: bytes) -> int:
        """Return the length of the longest suffix that may begin a secret."""
        lengths = (n for form in self._forms for n in range(len(form) - 1, 0, -1) if data.endswith(form[:n]))
        return max(lengths, default=0)

    def _across(self, data: bytes, form: bytes, cut: int) -> int:
        """Return the start of a secret that ``cut`` would split; ``cut`` itself if there is none."""
        found = data.find(form, max(0, cut - len(form) + 1), cut + len(form) - 1)
        return found if 0 <= found < cut else cut

    def _masked(self, data: bytes) -> bytes:
        for form in self._forms:
            data = data.replace(form, _SHOWN.encode())
        return data


def userinfo(url: str) -> Iterator[str]:
    """Yield the secrets in a URL's user name and password, also as in a Basic header."""
    before, found, _ = url.partition("://")[2].rpartition("@") if "://" in url else url.rpartition("@")
    if not found:
        return
    from urllib.parse import unquote  # Imported lazily: few addresses have a password.

    yield before
    user, _, password = before.partition(":")
    # A name alone is a token; with a password it is not secret.
    yield password or user
    yield unquote(password or user)
    yield b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def _forms(secret: str) -> Iterator[str]:
    from urllib.parse import quote  # Imported lazily: needed only when a call fails.

    yield secret
    yield quote(secret, safe="")
    yield quote(secret)
