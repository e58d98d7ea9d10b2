"""OAuth for MCP servers over HTTP: discovery, registration, login by browser, refresh, and the stored tokens.

Tokens are bound to the address of their server, and registrations to the issuer that made them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from binascii import b2a_base64
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from zot.config.auth_file import read_entries, write_entries
from zot.config.base_url import split_url
from zot.encoding import UNREADABLE, decoder
from zot.errors import ConfigError, ConnectionImpossible, ProviderError
from zot.files import directory_lock
from zot.mcp.source import McpSource
from zot.providers.base import Deadlines, HttpRequest, HttpResponse, Transport
from zot.text import printable_line

T = TypeVar("T")

FILE_NAME: Final = "mcp-auth.json"
_MAX_ANSWER_BYTES: Final = 1024 * 1024
#: Time for one request to an authorization server, and for a person to log in.
_REQUEST_S: Final = 20.0
LOGIN_S: Final = 300.0
#: A token this close to its end is refreshed first.
_EARLY_S: Final = 60.0
#: The most logins that one connection asks for: a server may answer each token with another demand.
_MAX_LOGINS: Final = 3
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_OFFLINE: Final = "offline_access"
_PAGE: Final = "<!doctype html><title>zot</title><p>{}</p>"


class AuthorizationFailed(Exception):
    """A login or a refresh failed; the message is for people."""


class LoginNeeded(AuthorizationFailed):
    """The user has to log in, and cannot be asked now."""


class StoredToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens for one server, and the facts needed to refresh them."""

    access_token: str = ""
    refresh_token: str = ""
    #: Seconds since the epoch; 0 if unknown.
    expires_at: float = 0.0
    scope: str = ""
    resource: str = ""
    issuer: str = ""
    token_endpoint: str = ""
    client_id: str = ""
    client_secret: str = ""
    auth_method: str = ""

    def __repr__(self) -> str:
        """Show no token."""
        return f"StoredToken(issuer={self.issuer!r})"


class ServerTokens:
    """Tokens by server address, in a private file of ``home``; without one, they last as long as this object."""

    def __init__(self, home: str | None) -> None:
        self._home = home
        self._own: dict[str, StoredToken] = {}

    def get(self, url: str) -> StoredToken | None:
        """Return the tokens for exactly this address. Raise ConfigError if the file is damaged or open to others."""
        if self._home is None:
            return self._own.get(url)
        raw = read_entries(self._path()).get(url)
        if raw is None:
            return None
        try:
            found: StoredToken = decoder(StoredToken).decode(raw)
        except UNREADABLE:
            raise ConfigError(f"{self._path()} is damaged; try: zot mcp login") from None
        return found

    def put(self, url: str, token: StoredToken) -> None:
        """Store the tokens of a server. Raise ConfigError, OSError."""
        if self._home is None:
            self._own[url] = token
            return
        with directory_lock(self._home):
            entries = read_entries(self._path())
            write_entries(self._path(), {**entries, url: msgspec.Raw(msgspec.json.encode(token))})

    def remove(self, url: str) -> bool:
        """Forget the tokens of a server; False if there were none. Raise ConfigError, OSError."""
        if self._home is None:
            return self._own.pop(url, None) is not None
        with directory_lock(self._home):
            entries = read_entries(self._path())
            is_known = entries.pop(url, None) is not None
            if is_known:
                write_entries(self._path(), entries)
        return is_known

    def _path(self) -> str:
        assert self._home is not None
        return os.path.join(self._home, FILE_NAME)


class _ResourceMetadata(msgspec.Struct, frozen=True):
    resource: str = ""
    authorization_servers: list[str] = []
    scopes_supported: list[str] | None = None


class _IssuerMetadata(msgspec.Struct, frozen=True):
    issuer: str = ""
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    registration_endpoint: str = ""
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    scopes_supported: list[str] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False


class _Registered(msgspec.Struct, frozen=True):
    client_id: str
    client_secret: str = ""
    token_endpoint_auth_method: str = ""


class _Granted(msgspec.Struct, frozen=True):
    access_token: str
    token_type: str = "Bearer"
    expires_in: float | None = None
    refresh_token: str = ""
    scope: str = ""


def challenge_of(header: str) -> dict[str, str]:
    """Return the parameters of a `WWW-Authenticate: Bearer` header, by name in lower case."""
    found = re.findall(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,]+))', header)
    return {name.lower(): quoted or plain for name, quoted, plain in found}


Browse: TypeAlias = Callable[[str], Coroutine[Any, Any, None]]


class Authorization:
    """The authorization of one server: a header for its requests, and the answer to its demands.

    ``browse`` shows a person the address of the login; without it, only stored tokens are used and refreshed.
    """

    def __init__(
        self,
        source: McpSource,
        transport: Transport,
        tokens: ServerTokens,
        *,
        browse: Browse | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._source = source
        self._transport = transport
        self._tokens = tokens
        self._browse = browse
        self._now = now
        self._lock = asyncio.Lock()
        self._logins = 0
        #: The last token that was sent, to tell whether another request has replaced it.
        self._sent = ""

    async def header(self) -> str:
        """Return the authorization header, "" without a token. Refreshes a token that is about to end."""
        if "authorization" in self._source.headers:
            return ""
        async with self._lock:
            token = await asyncio.to_thread(self._tokens.get, self._source.url)
            if token is None or not token.access_token:
                return ""
            if token.expires_at and token.expires_at - _EARLY_S < self._now() and token.refresh_token:
                token = await self._refreshed(token) or token
            self._sent = token.access_token
            return f"Bearer {token.access_token}"

    async def challenged(self, sent: str, status: int, challenge: Mapping[str, str]) -> bool:
        """Handle a refusal of a request with the header ``sent``. True if it should be sent again.

        Raise LoginNeeded if a person has to log in, AuthorizationFailed if that failed.
        """
        if "authorization" in self._source.headers:
            return False
        async with self._lock:
            known = await asyncio.to_thread(self._tokens.get, self._source.url)
            if known is not None and sent != f"Bearer {known.access_token}" and status == 401:
                return True  # Another request has replaced the token meanwhile.
            wants_more = status == 403 and challenge.get("error") == "insufficient_scope"
            if status == 403 and not wants_more:
                return False
            if known is not None and known.refresh_token and not wants_more and await self._refreshed(known):
                return True
            if self._browse is None:
                raise LoginNeeded(f"it requires a login; run: zot mcp login {self._source.name}")
            if self._logins >= _MAX_LOGINS:
                raise AuthorizationFailed(f"it refused {_MAX_LOGINS} logins in a row")
            self._logins += 1
            await self.login(challenge, known)
            return True

    async def login(self, challenge: Mapping[str, str], known: StoredToken | None = None) -> StoredToken:
        """Log in with the help of a person, and store the tokens. Raise AuthorizationFailed."""
        resource, scopes = await self._resource(challenge)
        issuer = resource.authorization_servers[0]
        metadata = await self._issuer(issuer, is_fallback=not resource.resource)
        if known is not None and known.issuer != issuer:
            if self._source.client_secret:  # It belongs to a registration at the other one.
                raise AuthorizationFailed(
                    f"it names another authorization server than before, {printable_line(issuer, 200)}, which must not"
                    f" get client_secret; if that is right, run: zot mcp logout {self._source.name}"
                )
            known = None
        wanted = self._scope(challenge, scopes, metadata, known)
        async with _Redirect() as redirect:
            client = await self._client(metadata, redirect.uri, wanted, known)
            verifier = _random(48)
            state = _random(24)
            asked = {
                "response_type": "code",
                "client_id": client.client_id,
                "redirect_uri": redirect.uri,
                "code_challenge": _base64url(hashlib.sha256(verifier.encode()).digest()),
                "code_challenge_method": "S256",
                "state": state,
                "resource": resource.resource or self._source.url,
                **({"scope": wanted} if wanted else {}),
            }
            separator = "&" if "?" in metadata.authorization_endpoint else "?"
            assert self._browse is not None
            browsing = asyncio.get_running_loop().create_task(
                self._browse(f"{metadata.authorization_endpoint}{separator}{urlencode(asked)}"), name="zot mcp browse"
            )
            try:
                answer = await redirect.answer(browsing)
            finally:
                browsing.cancel()
                await asyncio.wait({browsing})
        code = _checked_answer(answer, state, metadata)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect.uri,
            "code_verifier": verifier,
            "resource": asked["resource"],
        }
        before = StoredToken(
            resource=asked["resource"],
            issuer=issuer,
            token_endpoint=metadata.token_endpoint,
            client_id=client.client_id,
            client_secret=client.client_secret,
            auth_method=client.token_endpoint_auth_method,
            scope=wanted,
        )
        return await self._granted(before, form)

    async def _refreshed(self, token: StoredToken) -> StoredToken | None:
        """Return new tokens; None if the refresh was refused, and a login is needed."""
        form = {"grant_type": "refresh_token", "refresh_token": token.refresh_token, "resource": token.resource}
        try:
            return await self._granted(token, {**form, **({"scope": token.scope} if token.scope else {})})
        except AuthorizationFailed:
            return None

    async def _granted(self, before: StoredToken, form: dict[str, str]) -> StoredToken:
        """Ask for tokens and store them."""
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        match before.auth_method:
            case "client_secret_basic":
                pair = f"{quote(before.client_id, safe='')}:{quote(before.client_secret, safe='')}"
                headers["authorization"] = f"Basic {b2a_base64(pair.encode(), newline=False).decode()}"
            case "client_secret_post":
                form = {**form, "client_id": before.client_id, "client_secret": before.client_secret}
            case _:
                form = {**form, "client_id": before.client_id}
        status, body = await self._fetch(before.token_endpoint, headers, urlencode(form).encode(), method="POST")
        if status != 200:
            raise AuthorizationFailed(f"the authorization server refused the token (HTTP {status}): {_error_in(body)}")
        granted = _read(_Granted, body, "the answer of the token endpoint")
        if granted.token_type.lower() != "bearer" or not granted.access_token.isascii():
            raise AuthorizationFailed("the token endpoint granted no usable bearer token")
        token = msgspec.structs.replace(
            before,
            access_token=granted.access_token,
            refresh_token=granted.refresh_token or before.refresh_token,
            expires_at=0.0 if granted.expires_in is None else self._now() + granted.expires_in,
            scope=granted.scope or before.scope,
        )
        await asyncio.to_thread(self._tokens.put, self._source.url, token)
        return token

    # Discovery.

    async def _resource(self, challenge: Mapping[str, str]) -> tuple[_ResourceMetadata, Sequence[str] | None]:
        """Return the metadata of the server, and the scopes that it names."""
        target = split_url(self._source.url)
        origin, path = f"{target.origin.scheme}://{target.origin.authority}", target.path.partition("?")[0].rstrip("/")
        place = "/.well-known/oauth-protected-resource"
        named = challenge.get("resource_metadata", "")
        for url in [named] if named else [*([f"{origin}{place}{path}"] if path else []), f"{origin}{place}"]:
            status, body = await self._fetch(url)
            if status == 200:
                found = _read(_ResourceMetadata, body, "the server's metadata")
                if not _covers(found.resource, self._source.url):
                    raise AuthorizationFailed(
                        f"the server's metadata is for another address: {printable_line(found.resource, 200)}"
                    )
                if not found.authorization_servers:
                    raise AuthorizationFailed("the server's metadata names no authorization server")
                return found, found.scopes_supported
        # Servers of before 2025-06-18 are their own authorization servers.
        return _ResourceMetadata(authorization_servers=[origin]), None

    async def _issuer(self, issuer: str, *, is_fallback: bool) -> _IssuerMetadata:
        """Return the metadata of an authorization server. Raise AuthorizationFailed."""
        target = split_url(issuer)
        origin, path = f"{target.origin.scheme}://{target.origin.authority}", target.path.rstrip("/")
        oauth, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
        places = [f"{origin}{oauth}{path}", f"{origin}{openid}{path}"]
        for url in [*places, f"{issuer.rstrip('/')}{openid}"] if path else places:
            status, body = await self._fetch(url)
            if status != 200:
                continue
            found = _read(_IssuerMetadata, body, "the metadata of the authorization server")
            if found.issuer != issuer and not (is_fallback and found.issuer.rstrip("/") == issuer.rstrip("/")):
                raise AuthorizationFailed(
                    f"the metadata at {url} is of another issuer: {printable_line(found.issuer, 200)}"
                )
            if "S256" not in (found.code_challenge_methods_supported or ()):
                raise AuthorizationFailed("the authorization server does not support PKCE with S256")
            for endpoint in (found.authorization_endpoint, found.token_endpoint):
                self._check_address(endpoint)
            return found
        if is_fallback:
            return _IssuerMetadata(issuer, f"{origin}/authorize", f"{origin}/token", f"{origin}/register")
        raise AuthorizationFailed(f"the authorization server {printable_line(issuer, 200)} has no metadata")

    def _scope(
        self,
        challenge: Mapping[str, str],
        supported: Sequence[str] | None,
        metadata: _IssuerMetadata,
        known: StoredToken | None,
    ) -> str:
        """Return the scopes to ask for: those of the configuration, of the challenge, or of the server's metadata."""
        chosen = (self._source.scope or challenge.get("scope") or " ".join(supported or ())).split()
        if known is not None and challenge.get("error") == "insufficient_scope":
            chosen = [*known.scope.split(), *chosen]
        if chosen and _OFFLINE in (metadata.scopes_supported or ()):
            chosen.append(_OFFLINE)
        return " ".join(dict.fromkeys(chosen))

    async def _client(
        self, metadata: _IssuerMetadata, redirect_uri: str, scope: str, known: StoredToken | None
    ) -> _Registered:
        """Return zot's identity at an authorization server: configured, a metadata document, or registered now."""
        source, methods = self._source, metadata.token_endpoint_auth_methods_supported
        is_document = source.client_id.startswith("https://")
        if source.client_id and (not is_document or metadata.client_id_metadata_document_supported):
            return _Registered(source.client_id, source.client_secret, _method(methods, source.client_secret))
        if not metadata.registration_endpoint:
            raise AuthorizationFailed(
                f"the authorization server does not register clients; register zot there with the redirect address"
                f" http://127.0.0.1/callback, then set client_id in [mcp.{source.name}]"
            )
        self._check_address(metadata.registration_endpoint)
        wanted = {
            "client_name": "zot",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "application_type": "native",
            "token_endpoint_auth_method": _method(methods, "" if methods is None or "none" in methods else "secret"),
            **({"scope": scope} if scope else {}),
        }
        headers = {"content-type": "application/json", "accept": "application/json"}
        body = msgspec.json.encode(wanted)
        status, answer = await self._fetch(metadata.registration_endpoint, headers, body, method="POST")
        if status not in (200, 201):
            raise AuthorizationFailed(f"zot could not be registered (HTTP {status}): {_error_in(answer)}")
        made = _read(_Registered, answer, "the registration")
        method = made.token_endpoint_auth_method or _method(methods, made.client_secret)
        return _Registered(made.client_id, made.client_secret, method)

    async def _fetch(
        self, url: str, headers: Mapping[str, str] | None = None, body: bytes = b"", *, method: str = "GET"
    ) -> tuple[int, bytes]:
        self._check_address(url)
        request = HttpRequest(url, {"accept": "application/json", **(headers or {})}, body, method)
        try:
            async with asyncio.timeout(_REQUEST_S):
                response = await self._transport.send(request, Deadlines(headers_s=_REQUEST_S))
                return response.status, await read_body(response, _MAX_ANSWER_BYTES)
        except TimeoutError:
            raise AuthorizationFailed(f"{urlsplit(url).hostname} did not answer within {_REQUEST_S:g} s") from None
        except ProviderError as problem:
            raise AuthorizationFailed(str(problem)) from None

    def _check_address(self, url: str) -> None:
        """Raise AuthorizationFailed for an address that must not be contacted: secrets travel by https alone.

        Plain http is for a server on this machine that refers to this machine. A server on a public address must not
        make zot send requests into the local network.
        """
        try:
            origin = split_url(url).origin
        except ConnectionImpossible as problem:
            raise AuthorizationFailed(f"an address of the login is unusable: {problem}") from None
        own = split_url(self._source.url).origin.host
        if origin.scheme != "https" and not (own in _LOOPBACK and origin.host in _LOOPBACK):
            raise AuthorizationFailed(f"the login uses {origin.label} without https")
        if _is_private(origin.host) and not _is_private(own):
            raise AuthorizationFailed(f"the login leads to {origin.label}, an address of the local network")


async def read_body(response: HttpResponse, limit: int) -> bytes:
    """Return a whole body. Raise ProviderError if it is longer than ``limit`` bytes, or cut short."""
    pieces, size = list[bytes](), 0
    try:
        while data := await response.read():
            size += len(data)
            if size > limit:
                raise ProviderError(f"the answer has more than {limit} bytes", status=response.status)
            pieces.append(data)
    finally:
        response.close()
    return b"".join(pieces)


def _checked_answer(answer: Mapping[str, str], state: str, metadata: _IssuerMetadata) -> str:
    """Return the code of a redirect. Raise AuthorizationFailed if it is not the answer to this login."""
    from hmac import compare_digest  # Imported lazily: only logins need it.

    if not compare_digest(answer.get("state", "").encode(), state.encode()):
        raise AuthorizationFailed("the browser returned from another login")
    issuer = answer.get("iss")
    if issuer is None and metadata.authorization_response_iss_parameter_supported:
        raise AuthorizationFailed("the authorization server did not identify itself (no iss)")
    if issuer is not None and issuer != metadata.issuer:
        raise AuthorizationFailed(f"another authorization server answered: {printable_line(issuer, 200)}")
    if "error" in answer:
        said = printable_line(f"{answer['error']} {answer.get('error_description', '')}".strip(), 300)
        raise AuthorizationFailed(f"the login was refused: {said}")
    if not answer.get("code"):
        raise AuthorizationFailed("the browser returned without a code")
    return answer["code"]


class _Redirect:
    """A listener on the loopback interface for the browser's return, once."""

    def __init__(self) -> None:
        self._arrived: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self.uri = ""

    async def __aenter__(self) -> _Redirect:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=16 * 1024)
        self.uri = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/callback"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def answer(self, browsing: asyncio.Task[None]) -> dict[str, str]:
        """Return the parameters with which the browser comes back. Raise AuthorizationFailed."""
        until = asyncio.get_running_loop().time() + LOGIN_S
        either: set[asyncio.Future[Any]] = {self._arrived, browsing}
        await asyncio.wait(either, timeout=LOGIN_S, return_when=asyncio.FIRST_COMPLETED)
        if browsing.done() and not browsing.cancelled() and (problem := browsing.exception()) is not None:
            raise problem
        left = until - asyncio.get_running_loop().time()
        await asyncio.wait({self._arrived}, timeout=max(0.0, left))
        if not self._arrived.done():
            raise AuthorizationFailed(f"the browser did not return within {LOGIN_S:g} s")
        return self._arrived.result()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, _, rest = head.partition("\r\n")[0].partition(" ")
                target = urlsplit(rest.partition(" ")[0])
                is_it = method == "GET" and target.path == "/callback"
                said = "You can close this page: zot has the answer." if is_it else "This is not the page."
                page = _PAGE.format(said).encode()
                top = f"HTTP/1.1 {200 if is_it else 404} OK\r\ncontent-type: text/html\r\n"
                writer.write(f"{top}content-length: {len(page)}\r\nconnection: close\r\n\r\n".encode() + page)
                await writer.drain()
                if is_it and not self._arrived.done():
                    self._arrived.set_result(dict(parse_qsl(target.query)))
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


def _is_private(host: str) -> bool:
    """True if ``host`` is an address of this machine or of a private network, as far as its text says."""
    import ipaddress  # Imported lazily: only logins need it.

    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name.rpartition(".")[2][:1].isdigit()  # Such as 127.1, which resolvers accept.
    return not (getattr(address, "ipv4_mapped", None) or address).is_global


def _covers(resource: str, url: str) -> bool:
    """True if metadata for ``resource`` apply to ``url``: the same origin, and a beginning of its path."""
    try:
        theirs, ours = split_url(resource), split_url(url)
    except ConnectionImpossible:
        return False
    path, own = theirs.path.rstrip("/"), ours.path.partition("?")[0].rstrip("/")
    return theirs.origin == ours.origin and (own == path or own.startswith(f"{path}/"))


def _method(supported: Sequence[str] | None, secret: str) -> str:
    """Return how zot identifies itself at a token endpoint."""
    if not secret:
        return "none"
    for method in ("client_secret_basic", "client_secret_post"):
        if supported is None or method in supported:
            return method
    return "none"


def _read(kind: type[T], body: bytes, what: str) -> T:
    reader: Any = decoder(kind)
    try:
        found: T = reader.decode(body)
    except UNREADABLE:
        raise AuthorizationFailed(f"{what} cannot be read") from None
    return found


def _error_in(body: bytes) -> str:
    """Return the error of an authorization server, printable and short; it contains no token."""
    try:
        said = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        return "no reason given"
    return printable_line(f"{said.get('error', '')} {said.get('error_description', '')}".strip(), 300)


def _random(size: int) -> str:
    return _base64url(os.urandom(size))


def _base64url(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode().rstrip("=").replace("+", "-").replace("/", "_")
