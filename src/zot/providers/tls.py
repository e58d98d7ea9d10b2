"""TLS for a client: whom we trust, and what to say when trust fails. Imports ssl only when used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zot.errors import ConnectionFailed, ConnectionImpossible

if TYPE_CHECKING:
    import ssl

#: Where systems keep their certificates as one file per subject hash.
_HASHED_DIRECTORIES = ("/etc/ssl/certs", "/etc/pki/tls/certs")


def client_context(env: Mapping[str, str]) -> ssl.SSLContext:
    """Return a context that verifies chain and host name, with TLS 1.2 or later and ALPN http/1.1.

    Trusts what ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` name and nothing else; without them, the system's
    certificates. Raise ConnectionImpossible when what they name cannot be read.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    cafile, capath = env.get("SSL_CERT_FILE"), env.get("SSL_CERT_DIR")
    if cafile or capath:
        _trust_named(context, cafile or None, capath or None)
    elif directory := next(filter(_is_hashed, _HASHED_DIRECTORIES), None):
        # A directory is searched by hash when needed (0.3 ms); a bundle is parsed whole (23 to 48 ms).
        context.load_verify_locations(capath=directory)
    else:
        context.load_default_certs()
    return context


def explain(exc: OSError, label: str, within_s: float) -> ConnectionFailed:
    """Say what a failed handshake means and what to check. Impossible is what the next attempt would meet again."""
    import ssl

    if isinstance(exc, TimeoutError):
        # Most servers that speak plain http wait for the end of a line that never comes.
        return ConnectionImpossible(
            f"{label} accepts connections, but did not answer the TLS handshake within {within_s:g} s: "
            "check that it speaks https; the address of a server that does not begins with http://"
        )
    if isinstance(exc, ssl.SSLCertVerificationError):
        return ConnectionImpossible(
            f"the certificate of {label} is not trusted ({exc.verify_message}): check the address; "
            "if a private authority signed it, set SSL_CERT_FILE to that authority's PEM file"
        )
    if isinstance(exc, ssl.SSLError) and not isinstance(exc, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ConnectionImpossible(
            f"no TLS connection to {label} ({exc.reason or 'handshake failed'}): "
            "check that it speaks https; the address of a server that does not begins with http://"
        )
    return ConnectionFailed(
        f"{label} closed the connection during the TLS handshake: check that it speaks https, and any firewall"
    )


def _trust_named(context: ssl.SSLContext, cafile: str | None, capath: str | None) -> None:
    try:
        context.load_verify_locations(cafile=cafile, capath=capath)
    except OSError as exc:
        raise ConnectionImpossible(f"SSL_CERT_FILE cannot be loaded ({exc}): it must be a readable PEM file") from exc


def _is_hashed(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(len(entry.name) == 10 and entry.name.endswith(".0") for entry in entries)
    except OSError:
        return False
