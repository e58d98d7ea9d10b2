"""What must never be shown: found in a text in all the forms that it may have there, and replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

#: Shorter ones would be found everywhere, and are no secrets.
_SHORTEST = 4
_SHOWN = "[key]"


class Mask:
    """Replaces secrets in texts. Knows each as it is and percent-encoded."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = {*secrets}

    def add(self, secrets: Iterable[str]) -> None:
        """Know more of them."""
        self._secrets.update(secrets)

    def __call__(self, text: str) -> str:
        """Return ``text`` without them."""
        forms = {form for secret in self._secrets for form in _forms(secret) if len(form) >= _SHORTEST}
        # The longest first: a part of one may be another.
        for form in sorted(forms, key=len, reverse=True):
            text = text.replace(form, _SHOWN)
        return text


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
