"""What must never be shown: found in a text in all the forms that it may have there, and replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: Shorter ones would be found everywhere, and are no secrets.
_SHORTEST = 4
_SHOWN = "[key]"
#: So much of the beginning of one is more than how all keys of a service begin.
_TELLING = 8


class Mask:
    """Replaces secrets in texts. Knows each as it is and percent-encoded."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = {*secrets}

    def add(self, secrets: Iterable[str]) -> None:
        """Know more of them."""
        self._secrets.update(secrets)

    def __call__(self, text: str) -> str:
        """Return ``text`` without them."""
        for form in self.forms():
            text = text.replace(form, _SHOWN)
        return text

    def forms(self) -> list[str]:
        """Return all that must not be shown, the longest first: a part of one may be another."""
        forms = {form for secret in self._secrets for form in _forms(secret) if len(form) >= _SHORTEST}
        return sorted(forms, key=len, reverse=True)


class StreamMask:
    """Replaces secrets in bytes that come in pieces. What may be the beginning of one waits for the next piece."""

    def __init__(self, mask: Mask) -> None:
        self._forms = [form.encode() for form in mask.forms()]
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be shown by now."""
        data = self._held + data
        cut = len(data) - self._begun(data)
        while (earlier := min((self._across(data, form, cut) for form in self._forms), default=cut)) < cut:
            cut = earlier
        self._held = data[cut:]
        return self._masked(data[:cut])

    def finish(self) -> bytes:
        """Return the rest. A good part of a secret that was cut off is not shown, either."""
        rest = self._masked(self._held)
        self._held = b""
        begun = self._begun(rest)
        return rest[:-begun] + _SHOWN.encode() if begun >= _TELLING else rest

    def _begun(self, data: bytes) -> int:
        """Return how many of the last bytes may be the beginning of a secret."""
        lengths = (n for form in self._forms for n in range(len(form) - 1, 0, -1) if data.endswith(form[:n]))
        return max(lengths, default=0)

    def _across(self, data: bytes, form: bytes, cut: int) -> int:
        """Return where a secret begins that a cut would go through; the cut itself if it goes through none."""
        found = data.find(form, max(0, cut - len(form) + 1), cut + len(form) - 1)
        return found if 0 <= found < cut else cut

    def _masked(self, data: bytes) -> bytes:
        for form in self._forms:
            data = data.replace(form, _SHOWN.encode())
        return data


def userinfo(url: str) -> Iterator[str]:
    """Yield what is secret in the user name and password of a URL: also the two as a header would carry them."""
    before, found, _ = url.partition("://")[2].rpartition("@") if "://" in url else url.rpartition("@")
    if not found:
        return
    from base64 import b64encode
    from urllib.parse import unquote

    yield before
    user, _, password = before.partition(":")
    # A name alone is a token; beside a password it is only a name.
    yield password or user
    yield unquote(password or user)
    yield b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


def _forms(secret: str) -> Iterator[str]:
    from urllib.parse import quote  # Only a text that is to be shown needs it: few calls fail.

    yield secret
    yield quote(secret, safe="")
    yield quote(secret)
